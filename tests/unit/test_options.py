"""One declaration of an option is enough: everything else derives from it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.small_llvm import small_llvm
from toolchain.cli.app import app
from toolchain.cli.config_file import file_options, read_content, read_values, render
from toolchain.cli.defaults import defaults, read_settings
from toolchain.cli.request import make_request, with_request
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError
from toolchain.lock import file as lockfile
from toolchain.lock.file import Lock
from toolchain.pipeline import locking, records
from toolchain.request import model as request_module
from toolchain.request.model import Request
from toolchain.request.options import option
from toolchain.stages.stage import Planned

TOP = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Wider(Request):
    """A request with one option more, and nothing else anywhere."""

    flavour: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "flavour", kind="commas", help="What it tastes of.", example="mint", is_input=True, lock="changed"
        ),
    )


@pytest.fixture
def wider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> typer.Typer:
    """A program with one verb that shows its request, while requests are `Wider`."""
    monkeypatch.setattr(request_module, "Request", Wider)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    program = typer.Typer()

    @program.command()
    @with_request()
    def show(*, request: Wider) -> None:
        typer.echo(json.dumps(request.flavour))

    return program


def read_file(path: Path) -> dict[str, Any]:
    return read_values(path, read_content(path))


def shown(program: typer.Typer, *words: str, values: Mapping[str, Any] | None = None, **env: str) -> Any:
    done = CliRunner().invoke(program, [*words], env=env, default_map=values)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("options_table", TOP / "scripts" / "options_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_command_line_environment_and_file_take_it(wider: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "toolchain.toml").write_text('flavour = ["rum", "raisin"]\n')
    values = read_file(tmp_path / "toolchain.toml")
    assert shown(wider) == []
    assert shown(wider, values=values) == ["rum", "raisin"]
    assert shown(wider, values=values, TOOLCHAIN_FLAVOUR="lemon") == ["lemon"]
    assert shown(wider, "--flavour", "mint, nut", values=values, TOOLCHAIN_FLAVOUR="lemon") == ["mint", "nut"]
    assert "What it tastes of." in CliRunner().invoke(wider, ["--help"], env={"COLUMNS": "200"}).output
    assert '# What it tastes of.\n# flavour = "mint"\n' in render({}, tmp_path)


def test_record_and_lock_keep_it(wider: typer.Typer) -> None:
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


def test_a_lock_cannot_make_options_that_none_keeps() -> None:
    for name in ("flavour", "cache", "offline", "lock-file", "contract", "json"):
        with pytest.raises(ConfigError, match="nothing that can be asked for"):
            lockfile.parse(lockfile.render(Lock(toolchain="1", epoch=1, format=1, request={name: "x"})), "a")


def test_the_table_has_it(wider: typer.Typer) -> None:
    command: Any = typer.main.get_command(wider)
    made = table().page({"build": command})
    assert "| `--flavour` | What it tastes of. | `build` | command line, environment, file | yes | when set |" in made


def test_what_an_import_prints_goes_on_as_it_was_asked(tmp_path: Path) -> None:
    """--keep-going and --kernel-timeout were lost on the way through a lock."""
    asked = make_request(cache=tmp_path, keep_going=True, kernel_timeout=900.0, allow_binary=["ptxas", "libdevice"])
    made = lockfile.parse(lockfile.render(locking.resolve(asked, [], "kernels")), "lock")
    assert lockfile.options(made) == [
        "--allow-binary", "ptxas", "--allow-binary", "libdevice", "--arch", "amd64", "--glibc", "2.31",
        "--keep-going", "--kernel-timeout", "900",
    ]  # fmt: skip
    planned = Planned(name="kernels", image="i", inputs={})
    assert records.asked_for(asked, planned)["kernel_timeout"] == 900.0


# toolchain init


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


def test_options_are_typed_once(here: Path) -> None:
    call(
        "init",
        "--stage",
        "llvm",
        "--source",
        "llvm=distro:llvm-toolchain-22",
        "--allow-binary",
        "ptxas",
        "--gpu",
        "MI300X",
    )
    assert tomllib.loads((here / "toolchain.toml").read_text()) == {
        "stage": "llvm", "source": ["llvm=distro:llvm-toolchain-22"], "allow-binary": ["ptxas"], "gpu": "MI300X",
    }  # fmt: skip
    rows = json.loads(CliRunner().invoke(app, ["plan", "--json"]).stdout)["stages"]
    assert [row["image"] for row in rows][-1] == "llvm-triton-22.1.8"


def test_what_is_there_stays(here: Path) -> None:
    (here / "toolchain.toml").write_text("mine")
    assert "already exists" in call("init", code=3)
    assert (here / "toolchain.toml").read_text() == "mine"
    (here / "link.toml").symlink_to(here / "nowhere")
    call("--config", "link.toml", "init", code=3)
    assert sorted(path.name for path in here.iterdir()) == ["link.toml", "toolchain.toml"]
    assert "cannot write" in call("--config", "no/such/folder.toml", "init", code=3)


def test_what_no_verb_takes_is_not_written(here: Path) -> None:
    call("init", "--gpu", "gfx9999", code=7)
    call("init", "--patch", "triton=none.patch", code=3)
    call("init", "--dest", "not a place", code=3)
    call("init", "--stage", "nothing", code=7)
    call("init", "--only", "everything", code=7)
    call("init", "--python", "3.013", code=3)
    call("init", "--base", "debian31", code=7)
    call("init", "--stage", "triton", "--only", "tablegen", code=11)
    assert list(here.iterdir()) == []


def test_after_it_no_verb_needs_an_option(here: Path) -> None:
    """A pin file names an LLVM alone, which is enough for the stage `llvm`."""
    commit = "f6ded0be897e2878612dd903f7e8bb85448269e5"
    (here / "pin").write_text(commit)
    call("init", "--triton", "pin", code=4)
    call("init", "--triton", "pin", "--stage", "triton", code=4)
    call("init", "--triton", "pin", "--stage", "llvm", "--only", "tablegen", "--python", "3.13", "--dest", "oci:out")
    rows = json.loads(CliRunner().invoke(app, ["plan", "--json"]).stdout)["stages"]
    assert rows[-1]["sources"][0]["ref"] == commit
    for verb, code, says in (("publish llvm", 5, "no finished image"), ("lock --offline", 0, "written"),
                             ("build --offline", 18, "--offline")):  # fmt: skip
        assert says in call(*verb.split(), code=code)


def test_the_next_command_can_be_pasted(here: Path) -> None:
    (here / "it's a folder").mkdir()
    code = "import sys; sys.argv[0] = 'toolchain'; from toolchain.cli.app import main; main()"
    words = [sys.executable, "-c", code, "--config", "it's a folder/t.toml", "init", "--jobs", "3"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(TOP)}, check=True)
    command = done.stderr.strip().partition(": ")[2].replace("toolchain", "printf '%s\\n'", 1)
    shown = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout.splitlines()
    assert shown == [b"--config", b"it's a folder/t.toml", b"plan"]


def test_a_path_that_is_no_text_cannot_be_written(here: Path) -> None:
    name = os.fsdecode(b"not \xff text")
    for flag in ("--cache", "--key"):
        assert "cannot be written" in call("init", flag, name, code=3)
    (here / name).mkdir()
    assert "cannot be written" in call("init", "--source", f"llvm={name}", code=3)
    assert [path.name for path in here.iterdir()] == [name]


def test_every_line_of_it_can_be_put_in_force(here: Path) -> None:
    call("init")
    lines = (here / "toolchain.toml").read_text().splitlines()
    keys = [line.removeprefix("# ") for line in lines if " = " in line]
    assert [key.partition(" = ")[0] for key in keys] == [one.name for one in file_options()]
    (here / "all.toml").write_text("\n".join(keys))
    assert set(read_file(here / "all.toml")) == {one.parameter for one in file_options()}


@pytest.mark.parametrize(
    ("stage", "worked"), [("llvm", None), ("all", None), ("kernels", "kernels"), ("aotriton", "aotriton")]
)
def test_a_worker_has_the_stage_of_the_file_where_that_has_kernels(here: Path, stage: str, worked: str | None) -> None:
    (here / "toolchain.toml").write_text(f'stage = "{stage}"\njobs = 3\n')
    found = defaults(read_settings(None))
    assert found is not None
    assert found["plan"] == {"stage": stage, "jobs": 3}
    assert (
        found["kernels"]["worker"]
        == found["kernels"]["run"]
        == ({"jobs": 3} if worked is None else {"stage": worked, "jobs": 3})
    )


def test_paths_are_relative_to_the_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, patch = here / "llvm project", here / "a.patch"
    small_llvm(tree, ("llvm", "mlir", "lld", "cmake", "third-party"))
    patch.touch()
    other = here / "other"
    (other / "deep").mkdir(parents=True)
    monkeypatch.chdir(other)
    given = ["--source", "llvm=../llvm project", "--patch", "llvm=../a.patch", "--key", "k.pem", "--dest", "oci:out/"]
    call("--config", "deep/t.toml", "init", *given, "--source", "triton=pypi:triton", "--cache", str(here / "c"))
    assert tomllib.loads((other / "deep" / "t.toml").read_text()) == {
        "source": ["llvm=../../llvm project", "triton=pypi:triton"], "patch": ["llvm=../../a.patch"], "key": "../k.pem",
        "dest": "oci:../out/", "cache": str(here / "c"),
    }  # fmt: skip
    monkeypatch.chdir(here)
    found = read_file(Path("other/deep/t.toml"))
    assert [Path(text.partition("=")[2]).resolve() for text in found["source"][:1]] == [tree]
    assert found["source"][1] == "triton=pypi:triton"
    request = make_request(source=found["source"], patch=found["patch"], cache=found["cache"])
    assert request.patches["llvm"][0].resolve() == patch
    assert Path(found["dest"].removeprefix("oci:")).resolve() == other / "out"
    assert found["dest"].endswith("/"), "a folder with a colon in its name is written so"


def test_variables_do_not_go_into_the_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCHAIN_GPU", "gfx942")
    call("init", "--limit", "3")
    assert tomllib.loads((here / "toolchain.toml").read_text()) == {"limit": 3}
    assert Cache(here.parent / "cache") == make_request().cache


# The file's own errors


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('jobs = "4"', "bad value for jobs"),
        ("jobs = true", "bad value for jobs"),
        ("jobs = 4.0", "bad value for jobs"),
        ("jobs = -1", "jobs is -1"),
        ("limit = 0", "limit is 0"),
        ("gpu = 5", "bad value for gpu"),
        ('gpu = ["gfx942", 5]', "bad value for gpu.1"),
        ("kernel-timeout = true", "bad value for kernel-timeout"),
        ("kernel-timeout = nan", "bad value for kernel-timeout"),
        ("kernel-timeout = 0", "kernel-timeout is 0"),
        ("offline = 1", "bad value for offline"),
        ('offline = "yes"', "bad value for offline"),
        ('source = "llvm=x"', "bad value for source"),
        ('source = { llvm = "x" }', "bad value for source"),
        ("triton = 3.7", "bad value for triton"),
        ("triton = 1979-05-27", "bad value for triton"),
        ("cache = []", "bad value for cache"),
        ('[sources]\nllvm = "x"', "unknown key 'sources'; did you mean 'source'?"),
    ],
)
def test_a_value_of_another_type_is_refused(here: Path, line: str, says: str) -> None:
    (here / "toolchain.toml").write_text(line)
    with pytest.raises(ConfigError) as caught:
        read_file(Path("toolchain.toml"))
    assert caught.value.what.startswith(f"toolchain.toml: {says}")
    assert caught.value.why
    assert caught.value.fix


def test_numbers_that_fit(here: Path) -> None:
    (here / "t.toml").write_text('jobs = 4\nkernel-timeout = 900\ngpu = ["gfx942"]\noffline = false\n')
    assert read_file(here / "t.toml") == {"jobs": 4, "kernel_timeout": 900, "gpu": "gfx942", "offline": False}


def test_the_mark_that_some_editors_put_in_front(here: Path) -> None:
    (here / "t.toml").write_bytes(b"\xef\xbb\xbfjobs = 4\n")
    assert read_file(here / "t.toml") == {"jobs": 4}


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpu", "gfx9999"), ("base", "debian31"), ("triton", "banana"), ("glibc", "2.17"),
     ("arch", "vax")],
)  # fmt: skip
def test_an_error_names_the_place_of_its_value(
    here: Path, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> str:
        done = CliRunner().invoke(app, ["plan", "llvm", *words], env={"COLUMNS": "300"})
        assert done.exit_code > 2
        return done.output.splitlines()[0]

    words = [f"--{name}", value]
    assert " is from" not in said()
    words = []
    (here / "toolchain.toml").write_text(f'{name} = "{value}"\n')
    assert said().endswith(f"(--{name} is from toolchain.toml)")
    (here / "toolchain.toml").rename(here / "other.toml")
    monkeypatch.setenv("TOOLCHAIN_CONFIG", "other.toml")
    assert said().endswith(f"(--{name} is from other.toml)")
    monkeypatch.setenv(f"TOOLCHAIN_{name.upper()}", value)
    assert said().endswith(f"(--{name} is from TOOLCHAIN_{name.upper()})")


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e10"])
def test_a_kernel_cannot_take_for_ever(seconds: str, tmp_path: Path) -> None:
    """No wait is so long: the first kernel would end the build with a traceback, after hours of LLVM."""
    with pytest.raises(ConfigError, match="is not a number of seconds from 1 to 1,000,000,000"):
        make_request(cache=tmp_path, kernel_timeout=float(seconds))


def test_an_error_names_the_place_of_its_source(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "toolchain.toml").write_text('source = ["llvm=no-llvm"]\n')
    words = ["plan", "llvm"]
    assert "--source llvm=no-llvm names no source (--source is from toolchain.toml)" in call(*words, code=5)
    words += ["--source", "triton=pypi:3.7.1"]
    assert "--source llvm=no-llvm names no source (--source is from toolchain.toml)" in call(*words, code=5)
    monkeypatch.setenv("TOOLCHAIN_SOURCE", "llvm=none")
    assert "--source llvm=none names no source (--source is from TOOLCHAIN_SOURCE)" in call(*words, code=5)
    assert "--source llvm=other names no source\n" in call(*words, "--source", "llvm=other", code=5)


@pytest.mark.parametrize("verb", ["plan", "init"])
def test_no_name_is_no_file(here: Path, verb: str) -> None:
    assert "--config" in call("--config", "", verb, code=3)
    assert list(here.iterdir()) == []
