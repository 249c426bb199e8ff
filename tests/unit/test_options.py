"""Tests that an option needs only one declaration, and tests of the config file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.refusals import refused
from tests.small_llvm import small_llvm
from toolchain.cli.app import app
from toolchain.cli.build_options import make_request, with_request
from toolchain.cli.config_file import read_config
from toolchain.cli.parsing import Command
from toolchain.core.errors import ConfigError
from toolchain.oci.reference import LayoutRef, parse
from toolchain.pipeline import lockfile, locking, records
from toolchain.pipeline.lockfile import Lock
from toolchain.request import model as request_module
from toolchain.request.declaration import option
from toolchain.request.model import Request
from toolchain.stages.stage import Planned


@dataclass(frozen=True, kw_only=True)
class Wider(Request):
    """A request with an additional option, which is declared only here."""

    flavour: tuple[str, ...] = option(
        "flavour", default=(), kind="commas", help="What it tastes of.", is_input=True, lock="changed"
    )


@pytest.fixture
def wider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> typer.Typer:
    """Replace `Request` by `Wider`, and return a program with a verb that prints the additional option."""
    monkeypatch.setattr(request_module, "Request", Wider)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    program = typer.Typer()

    @program.callback()
    def begin(ctx: typer.Context, config: str | None = None) -> None:
        ctx.obj = read_config(config)

    @program.command(cls=Command)
    @with_request()
    def show(*, request: Wider) -> None:
        typer.echo(json.dumps(request.flavour))

    return program


def read_file(path: Path) -> dict[str, Any]:
    file = read_config(str(path))
    assert file is not None
    return dict(file.values)


def shown(program: typer.Typer, *words: str, **env: str) -> Any:
    done = CliRunner().invoke(program, [*words], env=env)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_option_is_read_from_command_line_environment_and_file(wider: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('flavour = ["rum", "raisin"]\n')
    named = ("--config", "t.toml", "show")
    assert shown(wider, "show") == []
    assert shown(wider, *named) == ["rum", "raisin"]
    assert shown(wider, *named, TOOLCHAIN_FLAVOUR="lemon") == ["lemon"]
    assert shown(wider, *named, "--flavour", "mint, nut", TOOLCHAIN_FLAVOUR="lemon") == ["mint", "nut"]
    assert "What it tastes of." in CliRunner().invoke(wider, ["show", "--help"], env={"COLUMNS": "200"}).output


def test_option_is_kept_in_record_and_lock(wider: typer.Typer) -> None:
    request, bare = make_request(flavour="mint,nut"), make_request()
    planned = Planned(name="llvm", image="i", inputs={})
    assert records.asked_for(request, planned)["flavour"] == ["mint", "nut"]
    assert "flavour" not in records.asked_for(bare, planned)
    made = locking.resolve(request, [], "llvm")
    again = lockfile.parse(lockfile.render(made), "again")
    assert again.request["flavour"] == ["mint", "nut"]
    words = lockfile.options(again)
    assert words[words.index("--flavour") + 1] == "mint,nut"
    assert locking.resolve(bare, [], "llvm").request == {"stage": "llvm", "glibc": "2.31", "arch": ["amd64"]}


def test_lock_with_an_option_that_locks_do_not_keep_is_refused() -> None:
    for name in ("flavour", "cache", "offline", "lock-file", "contract", "json"):
        with refused("lock-malformed"):
            lockfile.parse(lockfile.render(Lock(toolchain="1", epoch=1, format=1, request={name: "x"})), "a")


def test_options_of_a_lock_are_those_of_the_request(tmp_path: Path) -> None:
    """Earlier, --keep-going and --kernel-timeout were not kept in a lock."""
    asked = make_request(cache=tmp_path, keep_going=True, kernel_timeout=900.0, allow_binary=["ptxas", "libdevice"])
    made = lockfile.parse(lockfile.render(locking.resolve(asked, [], "kernels")), "lock")
    assert lockfile.options(made) == [
        "--allow-binary", "ptxas", "--allow-binary", "libdevice", "--arch", "amd64", "--glibc", "2.31",
        "--keep-going", "--kernel-timeout", "900",
    ]  # fmt: skip
    planned = Planned(name="kernels", image="i", inputs={})
    assert records.asked_for(asked, planned)["kernel_timeout"] == 900.0


# The config file


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def call(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == code, done.output
    return done.output


def test_config_file_sets_the_arguments_of_a_verb(here: Path) -> None:
    """A pin file contains only the commit of an LLVM, which is enough for the stage `llvm`."""
    commit = "f6ded0be897e2878612dd903f7e8bb85448269e5"
    (here / "pin").write_text(commit)
    (here / "t.toml").write_text(
        'triton = "pin"\nstage = "llvm"\nonly = "tablegen"\npython = "3.13"\ndest = "oci:out"\ncheck = "1"\n'
    )
    rows = json.loads(call("--config", "t.toml", "plan", "--json"))["stages"]
    assert rows[-1]["sources"][0]["ref"] == commit
    for verb, code in (("publish llvm", 5), ("lock --offline", 0), ("build --offline", 18)):
        call("--config", "t.toml", *verb.split(), code=code)


def test_missing_config_file_is_an_error(here: Path) -> None:
    call("--config", "none.toml", "plan", "base", code=3)
    (here / "toolchain.toml").symlink_to(here / "nowhere")
    call("plan", "base", code=3)


def test_key_does_not_set_another_option_of_the_same_name(here: Path) -> None:
    """`lock --check` has another meaning than the key `check`, and `pins` accepts only one of its options."""
    (here / "t.toml").write_text('check = "1"\ntriton = "3.6.0"\n')
    call("--config", "t.toml", "lock", "base", "--open-base")
    assert (here / "toolchain.lock").is_file()
    assert "3.7.1" in call("--config", "t.toml", "pins", "--triton", "3.7.1")


def test_kernels_run_refuses_a_stage_without_kernels_from_the_file(here: Path) -> None:
    (here / "toolchain.toml").write_text('stage = "llvm"\n')
    call("kernels", "run", code=3)
    call("kernels", "run", "kernels", "--offline", code=18)


def test_paths_are_relative_to_the_file(here: Path) -> None:
    tree, patch = here / "llvm project", here / "a.patch"
    small_llvm(tree, ("llvm", "mlir", "lld", "cmake", "third-party"))
    patch.touch()
    (here / "other" / "deep").mkdir(parents=True)
    (here / "other" / "deep" / "t.toml").write_text(
        'source = ["llvm=../../llvm project", "triton=pypi:triton"]\npatch = ["llvm=../../a.patch"]\n'
        f'key = "../k.pem"\ndest = "oci:../out/"\ncache = "{here / "c"}"\n'
    )
    found = read_file(Path("other/deep/t.toml"))
    assert Path(found["source"][0].partition("=")[2]).resolve() == tree
    assert found["source"][1] == "triton=pypi:triton"
    request = make_request(source=found["source"], patch=found["patch"], cache=found["cache"])
    assert request.patches["llvm"][0].resolve() == patch
    assert Path(found["key"]).resolve() == here / "other" / "k.pem"
    assert Path(found["dest"].removeprefix("oci:")).resolve() == here / "other" / "out"
    assert found["dest"].endswith("/"), "a folder with a colon in its name is written so"


def test_tilde_is_expanded_to_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = here / "home"
    (home / "sub").mkdir(parents=True)
    (home / "a.patch").touch()
    monkeypatch.setenv("HOME", str(home))
    (here / "t.toml").write_text('cache = "~/c"\ndest = "oci:~/out/"\npatch = ["llvm=~/a.patch"]\n')
    found = read_file(Path("t.toml"))
    assert (found["cache"], found["dest"]) == (f"{home}/c", f"oci:{home}/out/")
    for given in (found["patch"], ["llvm=~/a.patch"]):
        assert make_request(patch=given, cache=str(here / "c")).patches["llvm"] == (home / "a.patch",)
    assert parse("oci:~/out") == LayoutRef(home / "out")
    for words, env in ((["--cache=~/sub"], {}), ([], {"TOOLCHAIN_CACHE": "~/sub"})):
        done = CliRunner().invoke(app, ["cache", "ls", *words, "--json"], env=env)
        assert json.loads(done.stdout)["cache"] == f"{home}/sub", done.output


# Errors in the config file


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('jobs = "4"', "jobs"),
        ("jobs = true", "jobs"),
        ("jobs = -1", "jobs"),
        ('gpu = ["gfx942", 5]', "gpu.1"),
        ("kernel-timeout = nan", "kernel-timeout"),
        ('offline = "yes"', "offline"),
        ('source = "llvm=x"', "source"),
        ("triton = 3.7", "triton"),
        ('[sources]\nllvm = "x"', "'sources'"),
    ],
)
def test_a_value_of_another_type_is_refused(here: Path, line: str, says: str) -> None:
    (here / "toolchain.toml").write_text(line)
    with pytest.raises(ConfigError) as caught:
        read_config("toolchain.toml")
    assert caught.value.id in {"config-bad-value", "config-unknown-key"}
    assert says in caught.value.what.removeprefix("toolchain.toml: ")
    assert caught.value.why
    assert caught.value.fix


def test_valid_values_after_a_byte_order_mark_are_read(here: Path) -> None:
    bom = "\ufeff"  # some editors write this byte order mark
    (here / "t.toml").write_text(f'{bom}jobs = 4\nkernel-timeout = 900\ngpu = ["gfx942"]\noffline = false\n')
    assert read_file(here / "t.toml") == {"jobs": 4, "kernel_timeout": 900, "gpu": "gfx942", "offline": False}


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpu", "gfx9999"), ("triton", "banana")],
)
def test_error_names_the_origin_of_the_value(
    here: Path, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> str:
        done = CliRunner().invoke(app, ["plan", "llvm", *words], env={"COLUMNS": "300"})
        assert done.exit_code > 2
        return done.output.splitlines()[0]

    words = [f"--{name}", value]
    assert " is from" not in said()
    words = []
    (here / "other.toml").write_text(f'{name} = "{value}"\n')
    monkeypatch.setenv("TOOLCHAIN_CONFIG", "other.toml")
    assert said().endswith(f"(--{name} is from other.toml)")
    monkeypatch.setenv(f"TOOLCHAIN_{name.upper()}", value)
    assert said().endswith(f"(--{name} is from TOOLCHAIN_{name.upper()})")


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e10", "0"])
def test_invalid_kernel_timeout_is_refused(seconds: str, here: Path) -> None:
    """With such a timeout, the build would end with a traceback at the first kernel, hours after its start."""
    call("kernels", "run", "--kernel-timeout", seconds, code=2)
    (here / "t.toml").write_text(f"kernel-timeout = {seconds}\n")
    call("--config", "t.toml", "kernels", "run", code=3)


def test_empty_name_of_the_config_file_is_refused(here: Path) -> None:
    assert "--config" in call("--config", "", "plan", code=3)
    assert list(here.iterdir()) == []
