"""Tests that a toolchain.toml that is found in the current folder cannot decide about trust."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.refusals import refused
from toolchain.cli.app import app
from toolchain.cli.config_file import read_config
from toolchain.cli.options import OF_VERBS, file_options
from toolchain.core.errors import ConfigError
from toolchain.request.model import options

# These are the options that such a file may set, each with a value. An option may only be added if it cannot decide
# whose code, keys, paths or registries are used.
FOUND = {
    "aotriton": '"0.13b"', "arch": '"amd64"', "compression": '"zstd"', "glibc": '"2.31"', "gpu": '"gfx942"',
    "jobs": "3", "kernel-memory": "4000", "kernel-timeout": "900", "limit": "4", "only": '"tablegen"',
    "python": '"3.13"', "rocm": '"6"', "select": '"attn*"', "stage": '"llvm"', "triton": '"3.7.1"',
    "wheel": '"flash-attn"', "without": '"flydsl"',
}  # fmt: skip
# These are all other options, each with a value that is valid in a named file.
REFUSED = {
    "allow-binary": '["ptxas"]', "base": '"ubi9"', "bundles": "true", "cache": '"there"', "calls": '"calls.toml"',
    "check": '"3"', "dest": '"oci:there"', "drop-binary": '["libdevice"]', "files": "true", "fresh": "true",
    "identity": '"me"', "issuer": '"https://evil.example"', "keep-going": "true", "kernel-key": '"k.pub"',
    "kernel-store": '"there"', "key": '"k"', "keyless": "true", "lock-file": '"../toolchain.lock"', "locked": "true",
    "mirror": '["https://github.com/=https://evil.example/"]', "offline": "true", "patch": '["llvm=a.patch"]',
    "policy": '"isolated"', "public-key": '"k.pub"', "reuse-from": '"evil.example/ns"', "runner": '"docker"',
    "scheduler": '"tcp://127.0.0.1:8786"', "sigstore": '"trust.json"', "source": '["llvm=llvm"]',
    "source-repo": '["evil/llvm"]',
}  # fmt: skip
NEVER_EMPTY = [option.variable for option in (*options(), *OF_VERBS) if option.never_empty]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def call(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == code, done.output
    return done


def test_every_option_is_on_one_of_the_two_lists() -> None:
    assert {option.name for option in file_options()} == FOUND.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", FOUND)
def test_found_file_sets_options_that_cannot_decide_about_trust(here: Path, name: str) -> None:
    (here / "toolchain.toml").write_text(f"{name} = {FOUND[name]}\n")
    found = read_config(None)
    assert found is not None
    assert found.values.keys() == {name.replace("-", "_")}


@pytest.mark.parametrize("name", REFUSED)
def test_found_file_with_a_forbidden_key_is_refused_with_its_name(here: Path, name: str) -> None:
    (here / "toolchain.toml").write_text(f"jobs = 3\n{name} = {REFUSED[name]}\n")
    said = call("plan", "base", code=3).stderr
    assert f" {name} = " in said
    named = read_config("toolchain.toml")
    assert named is not None
    assert named.values.keys() == {"jobs", name.replace("-", "_")}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("triton", "."),
        ("triton", "3.7.1/../.."),
        ("triton", "f6ded0be897e2878612dd903f7e8bb85448269e5"),
        ("triton", "https://evil.example/triton"),
        ("triton", "99.9"),
        ("stage", "oci:there"),
        ("glibc", "../floor"),
    ],
)
def test_found_file_with_an_unrecorded_value_is_refused(here: Path, name: str, value: str) -> None:
    """A commit is refused too, because GitHub serves the commits of every fork under the name of the original."""
    (here / "toolchain.toml").write_text(f'{name} = "{value}"\n')
    with pytest.raises(ConfigError):
        read_config(None)
    assert read_config("toolchain.toml") is not None


@pytest.mark.parametrize("number", ["9" * 5000, f"0x{'f' * 5000}"])
def test_found_file_with_an_endless_integer_is_refused(here: Path, number: str) -> None:
    (here / "toolchain.toml").write_text(f"limit = {number}\n")
    assert "more than 64 bits" in call("plan", "base", code=3).stderr


def test_misspelt_value_in_a_found_file_is_answered_with_the_known_one(here: Path) -> None:
    (here / "toolchain.toml").write_text('stage = "llv"\n')
    with refused("config-not-named", "did you mean llvm?"):
        read_config(None)


def test_verbs_refuse_such_a_file_but_help_and_version_do_not(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "toolchain.toml").write_text('public-key = "k.pub"\n')
    for words in (["verify", "oci:x"], ["images"], ["publish", "oci:x", "y"], ["kernels", "run"], ["doctor"]):
        call(*words, code=3)
    monkeypatch.setattr(sys, "argv", ["toolchain", "plan", "--help"])
    call("plan", "--help")
    call("--version")


def test_named_file_applies_to_verify(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "toolchain.toml").write_text('public-key = "none.pub"\n')
    assert "none.pub" in call("--config", "toolchain.toml", "verify", "oci:x", code=3).stderr
    monkeypatch.setenv("TOOLCHAIN_CONFIG", "toolchain.toml")
    assert "none.pub" in call("verify", "oci:x", code=3).stderr


def test_config_file_of_a_parent_folder_is_not_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "toolchain.toml").write_text('base = "ubi9"\nreuse-from = "evil.example/ns"\n')
    below = here / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    done = call("plan", "base", "--json")
    assert done.stderr == ""
    assert json.loads(done.stdout)["stages"][0]["image"] == "toolchain-base-debian13"


@pytest.mark.parametrize(("variable", "empty"), [(name, " " * (at % 2)) for at, name in enumerate(NEVER_EMPTY)])
def test_empty_variable_that_would_skip_a_check_is_refused(
    here: Path, variable: str, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = variable.removeprefix("TOOLCHAIN_")
    verb = {"KEY": ("publish", "oci:x"), "KERNEL_KEY": ("kernels", "run")}.get(name, ("verify", "oci:x"))
    monkeypatch.setenv(variable, empty)
    assert variable in call(*verb, code=3).stderr
    assert json.loads(call(*verb, "--json", code=3).stdout)["exit_code"] == 3
    call("plan", "base")  # a verb without that option
    given = f"--{name.replace('_', '-').lower()}"
    assert variable not in CliRunner().invoke(app, [*verb, given, "given"]).stderr


def test_variables_about_signatures_must_not_be_empty() -> None:
    names = ("IDENTITY", "ISSUER", "KERNEL_KEY", "KEY", "POLICY", "PUBLIC_KEY", "SIGSTORE", "SOURCE_REPO")
    assert sorted(NEVER_EMPTY) == [f"TOOLCHAIN_{name}" for name in names]
