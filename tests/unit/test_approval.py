"""A toolchain.toml that was merely found decides nothing about trust until the user approved it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from toolchain.cli.app import app
from toolchain.cli.approval import HARMLESS, harmless, settings
from toolchain.cli.config_file import file_options
from toolchain.cli.values import NEVER_EMPTY
from toolchain.trust.keys import new_key

# Every option that a file may hold and that decides about trust, with a value.
TRUSTING = {
    "allow-binary": '["ptxas"]',
    "base": '"oci:there"',
    "cache": '"there"',
    "dest": '"oci:there"',
    "kernel-key": '"k.pub"',
    "kernel-store": '"there"',
    "key": '"k"',
    "lock-file": '"../toolchain.lock"',
    "mirror": '["https://github.com/=https://evil.example/"]',
    "public-key": '"k.pub"',
    "reuse-from": '"evil.example/ns"',
    "runner": '"docker"',
    "scheduler": '"tcp://127.0.0.1:8786"',
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def call(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == code, done.output
    return done


def used(path: Path = Path("toolchain.toml")) -> set[str]:
    return {name.replace("_", "-") for name in settings(path, named=False).values}


def test_every_option_is_on_one_of_the_two_lists() -> None:
    """A new option is ignored without approval until someone has thought about it."""
    names = {option.name for option in file_options()}
    assert names >= HARMLESS
    assert names - HARMLESS <= TRUSTING.keys()
    assert harmless("base", "ubi9")
    assert harmless("lock-file", "locks/llvm.lock")


@pytest.mark.parametrize("name", sorted(TRUSTING.keys() & {option.name for option in file_options()}))
def test_a_found_file_needs_approval(here: Path, name: str) -> None:
    (here / "toolchain.toml").write_text(f"jobs = 3\n{name} = {TRUSTING[name]}\n")
    found = settings(Path("toolchain.toml"), named=False)
    assert dict(found.values) == {"jobs": 3}
    assert found.ignored == (name,)
    assert found.ignored_line.count("\n") == 0
    assert name in settings(Path("toolchain.toml"), named=True).trusting
    call("trust")
    assert used() == {"jobs", name}


def test_a_found_file_does_not_say_where_a_lock_is_written(here: Path, tmp_path: Path) -> None:
    """`bundle import` writes the bundle's lock if the file is missing."""
    (here / "below").symlink_to(tmp_path)
    for path in (tmp_path / "new.lock", "below/new.lock"):
        (here / "toolchain.toml").write_text(f'lock-file = "{path}"\n')
        assert used() == set()


def test_an_approval_is_for_this_content_this_path_and_these_keys(here: Path, tmp_path: Path) -> None:
    file = here / "toolchain.toml"
    text = 'reuse-from = "registry.example/ns"\npublic-key = "release.pub"\n'
    file.write_text(text)
    new_key(here / "release")
    assert 'public-key = "release.pub"' in call("trust").stdout
    assert used() == {"reuse-from", "public-key"}
    file.write_text(f"{text}# changed\n")
    assert used() == set()
    file.write_text(text)
    assert used() == {"reuse-from", "public-key"}
    new_key(here / "other")
    (here / "release.pub").write_bytes((here / "other.pub").read_bytes())
    assert used() == set(), "another key lies there now"
    call("trust")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "toolchain.toml").write_text(text)
    assert used(tmp_path / "copy" / "toolchain.toml") == set()
    (tmp_path / "link").symlink_to(here)
    assert used(tmp_path / "link" / "toolchain.toml"), "the same file by another way"
    assert not list(here.glob("*trusted*")), "it is remembered elsewhere"
    call("trust", "--revoke")
    assert used() == set()


def test_what_the_user_types_or_names_needs_no_approval(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("init", "--mirror", "https://github.com/=https://git.example/", "--allow-binary", "ptxas")
    assert used() == {"mirror", "allow-binary"}
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nobody"))
    assert used() == set()
    assert "ignored" in call("plan", "base").stderr
    for words in (("--config", "toolchain.toml"), ()):
        monkeypatch.setenv("TOOLCHAIN_CONFIG", "" if words else "toolchain.toml")
        said = call(*words, "plan", "base").stderr
        assert "ignored" not in said
        assert os.fspath(here / "toolchain.toml") in said


def test_no_file_of_a_folder_above_is_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "toolchain.toml").write_text('base = "ubi9"\nreuse-from = "evil.example/ns"\n')
    below = here / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    done = call("plan", "base", "--json")
    assert done.stderr == ""
    assert json.loads(done.stdout)["stages"][0]["image"] == "toolchain-base-debian13"


def test_plan_and_build_name_the_file_of_each_value(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'reuse-from = "registry.example/ns"\npublic-key = "release.pub"\nallow-binary = ["ptxas"]\n'
    (here / "toolchain.toml").write_text(text)
    assert json.loads(call("plan", "base", "--json").stdout)["trusting"] == []
    call("trust")
    where = os.fspath(here / "toolchain.toml")
    told: list[dict[str, Any]] = [{"option": "reuse-from", "value": "registry.example/ns", "from": where},
            {"option": "public-key", "value": "release.pub", "from": where},
            {"option": "allow-binary", "value": ["ptxas"], "from": where}]  # fmt: skip
    assert json.loads(call("plan", "base", "--json").stdout)["trusting"] == told
    (line,) = [line for line in call("build", "base", code=3).stderr.splitlines() if where in line]
    assert all(row["option"] in line for row in told)
    monkeypatch.setenv("TOOLCHAIN_REUSE_FROM", "oci:mine")
    given = call("plan", "base", "--json", "--allow-binary", "libdevice")
    assert json.loads(given.stdout)["trusting"] == told[1:2]


@pytest.mark.parametrize("variable", sorted(NEVER_EMPTY))
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_variable_skips_no_check(
    here: Path, variable: str, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = variable.removeprefix("TOOLCHAIN_")
    verb = {"KEY": ("publish", "oci:x"), "KERNEL_KEY": ("build", "base")}.get(name, ("verify", "oci:x"))
    monkeypatch.setenv(variable, empty)
    assert variable in call(*verb, code=3).stderr
    assert json.loads(call(*verb, "--json", code=3).stdout)["exit_code"] == 3
    call("plan", "base")  # a verb without that option
    given = f"--{name.replace('_', '-').lower()}"
    assert variable not in CliRunner().invoke(app, [*verb, given, "given"]).stderr
