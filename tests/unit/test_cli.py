"""The command line: bad input is reported before any work, with its own exit code."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.evidence_fixtures import finished_base, record
from toolchain.cli.app import app
from toolchain.cli.failing import handled
from toolchain.core import errors
from toolchain.core.cache import Cache
from toolchain.core.errors import ToolchainError
from toolchain.core.process import CommandError
from toolchain.pipeline.records import write_record
from toolchain.stages.stage import Built, Planned

TOP = Path(__file__).resolve().parents[2]
WHEEL = ("--source", "triton=pypi:3.7.1")


@pytest.fixture
def clean(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty cache and none of the tool's variables."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOOLCHAIN_")}
    return {**env, "TOOLCHAIN_CACHE": str(tmp_path / "cache 'with' \"quotes\""), "COLUMNS": "200", "NO_COLOR": "1"}


def call(env: dict[str, str], *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolchain", *words],
        capture_output=True, text=True, env={**env, "PYTHONPATH": str(TOP)}, cwd=cwd, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("build", "llvm", "--gpu", "gfx9999"), 7, "unknown GPU 'gfx9999'"),
        (("build", "llvm", "--base", "debian31"), 7, "debian13"),
        (("plan", "llvm", "--glibc", "2.17"), 7, "no floor is known for glibc 2.17"),
        (("plan", "llvm", "--glibc", "2.31", "--base", "debian13"), 3, "--glibc 2.31"),
        (("plan", "triton", "--triton", "3.7.1", "--base", "debian13", "--python", "3.11"), 7, "has no Python 3.11"),
        (("build", "sysroot", "--base", "debian13"), 7, "compiled against that base itself"),
        (("build", "llvm", "--aotriton", "0.99b"), 7, "0.99b"),
        (("build", "llvm", "--triton", "3.99.0"), 7, "second LLVM"),
        (("build", "llvm", "--aotriton", "0.14b"), 4, "--source"),
        (("build", "nothing"), 7, "nothing"),
        (("build", "llvm", "--arch", "vax"), 7, "vax"),
        (("build", "triton", "--arch", "arm64", "--base", "debian13"), 7, "triton is not built for arm64"),
        (("plan", "triton", "--python", "3.12,3.13"), 7, "no portable wheel is built for Python 3.12"),
        (("plan", "triton", "--python", "3.11"), 7, "leaves out Python 3.13"),
        (("build", "llvm", "--arch", "arm64", "--base", "ubi9"), 7, "nothing is built for arm64 on base ubi9"),
        (("reproduce", "llvm"), 5, "no finished image here"),
        (("build", "llvm", "--source", "gcc=/tmp"), 3, "unknown source 'gcc'"),
        (("plan", "llvm", "--source", "llvm=/a", "--source", "llvm=/b"), 3, "names llvm more than once"),
        (("build", "llvm", "--source", "llvm=/no/such/folder"), 5, "/no/such/folder"),
        (("build", "llvm", "--patch", "llvm=/no/such/file"), 3, "no such file"),
        (("plan", "triton", *WHEEL, "--patch", f"triton={__file__}"), 3, "has nothing to patch"),
        (("lock", "base", "-o", "/no/such/folder/lock"), 3, "cannot write /no/such/folder/lock"),
        (("build", "triton", *WHEEL), 15, "--allow-binary triton-wheel"),
        (("publish", "oci:out", "x", "--compression", "rar"), 3, "rar"),
        (("build", "llvm", "--only", "everything"), 7, "everything"),
        (("kernels", "run", "--limit", "0"), 2, "limit"),
        (("build", "all", "--no-such-flag"), 2, "no-such-flag"),
        (("plan", "llvm", "--gpu", "gfx942", "--gpu", "gfx1100"), 2, "--gpu is given 2 times"),
        (("build", "llvm", "--archive", "/dev/null"), 3, "nothing can be written"),
        (("publish",), 3, "no destination"),
        (("publish", "oci:/tmp/x"), 3, "names no image"),
        (("publish", "oci:/tmp/x:v1", "llvm"), 3, "names one image"),
        (("bundle", "export", f"oci:/tmp/x@sha256:{'0' * 64}"), 3, "names a bundle that exists"),
        (("publish", "oci:/tmp/x", "llvm"), 5, "no finished image here"),
        (("verify", "oci:/no/such/folder"), 13, "not an OCI layout"),
    ],
)
def test_bad_input(
    words: tuple[str, ...], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("TOOLCHAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    env = {"TOOLCHAIN_CACHE": str(tmp_path / "cache 'with' \"quotes\""), "COLUMNS": "200", "NO_COLOR": "1"}
    done = CliRunner().invoke(app, [*words], env=env)
    assert done.exit_code == code, done.output
    assert says in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == [], "something was written"


def test_a_base_that_is_not_here_is_not_made_offline(clean: dict[str, str], tmp_path: Path) -> None:
    """It has begun by then, so the cache's own folders are there; but nothing in them can be taken for a base."""
    done = call(clean, "build", "llvm", "--arch", "arm64", "--offline", cwd=tmp_path)
    assert done.returncode == 18, done.stderr
    assert "--offline" in done.stderr
    assert done.stdout == ""
    cache = Path(clean["TOOLCHAIN_CACHE"])
    assert [path for path in cache.rglob("*") if path.is_file() and path.suffix not in {".lock", ".log"}] == []
    planned = call(clean, "plan", "llvm", "--arch", "arm64", "--offline", cwd=tmp_path)
    assert (planned.returncode, "exit code 18" in planned.stderr) == (0, True)
    assert "18" not in call(clean, "plan", "llvm", "--arch", "arm64", cwd=tmp_path).stderr


HOSTILE = ("base", "arch", "source", "patch", "triton", "aotriton", "gpu", "select", "allow-binary", "drop-binary",
           "python", "only")  # fmt: skip


def test_no_value_begins_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Option values, from wherever they come, with a newline are refused; what a shell would run is data."""
    for name in [name for name in os.environ if name.startswith("TOOLCHAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    canary = tmp_path / "canary"
    for option in HOSTILE:
        name = "llvm=" if option in {"source", "patch"} else ""
        for way in ("option", "environment"):
            words, env = ["plan", "kernels"], {}
            if way == "option":
                words += [f"--{option}", f"{name}a\nRUN touch {canary}"]
            else:
                env = {f"TOOLCHAIN_{option.upper().replace('-', '_')}": f"{name}a\nRUN touch {canary}"}
            found = CliRunner().invoke(app, words, env=env)
            # A list in a variable is split at every white space, so there the newline never comes in.
            good = {0} if option in {"allow-binary", "drop-binary"} and way == "environment" else set()
            assert found.exit_code in {2, 3} | good, (option, way, found.output, found.exception)
        found = CliRunner().invoke(app, ["plan", "kernels", f"--{option}", f"{name}$(touch {canary})`touch {canary}`"])
        assert found.exit_code != 1, (option, found.exception)
    (tmp_path / "toolchain.toml").write_text(f'select = "a\\nRUN touch {canary}"\n')
    assert CliRunner().invoke(app, ["plan", "kernels"]).exit_code == 3
    assert not canary.exists()


def test_a_tree_without_mlir(clean: dict[str, str], tmp_path: Path) -> None:
    tree = tmp_path / "llvm project"
    (tree / "llvm").mkdir(parents=True)
    (tree / "llvm" / "CMakeLists.txt").write_text("project(LLVM)\n")
    done = call(clean, "build", "llvm", "--source", f"llvm={tree}")
    assert done.returncode == 5
    assert "mlir/CMakeLists.txt" in done.stderr
    assert "base:" not in done.stderr, "the base was begun before the source was looked at"


def test_an_unknown_key_in_the_file(clean: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "toolchain.toml").write_text('bass = "debian13"\n')
    done = call(clean, "plan", cwd=tmp_path)
    assert done.returncode == 3
    assert "unknown key 'bass'" in done.stderr
    assert "base" in done.stderr
    helped = call(clean, "plan", "--help", cwd=tmp_path)
    assert (helped.returncode, "--base" in helped.stdout) == (0, True), "which says what the key should be"
    assert "unknown key 'bass'" in helped.stderr


@pytest.mark.parametrize("words", [("build", "lvm"), ("plan", "lvm"), ("publish", "oci:x", "tolchain-base")])
def test_a_misspelt_name_is_answered_with_the_nearest(words: tuple[str, ...], tmp_path: Path) -> None:
    finished_base(Cache(tmp_path / "cache"), tmp_path / "base")
    done = CliRunner().invoke(app, [*words, "--cache", str(tmp_path / "cache")], env={"COLUMNS": "200"})
    assert done.exit_code in {5, 7}
    meant = "toolchain-base" if words[0] == "publish" else "llvm"
    assert re.search(rf"did you mean {meant}", done.stderr)


def test_who_wins(clean: dict[str, str], tmp_path: Path) -> None:
    """Command line over environment over file over default."""

    def image(*words: str, **env: str) -> str:
        done = call({**clean, **env}, "plan", "base", "--json", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["stages"][0]["image"])

    assert image() == "toolchain-base-debian13"
    (tmp_path / "t.toml").write_text('base = "ubi9"\n')
    named = {"TOOLCHAIN_CONFIG": "t.toml"}
    assert image(**named) == "toolchain-base-ubi9"
    assert image(TOOLCHAIN_BASE="debian12", **named) == "toolchain-base-debian12"
    assert image("--base", "almalinux8", TOOLCHAIN_BASE="debian12", **named) == "toolchain-base-almalinux8"


def test_the_query_of_a_bare_pins_does_not_come_from_the_file(clean: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "toolchain.toml").write_text('triton = "3.7.1"\n')
    assert json.loads(call(clean, "pins", "--json", cwd=tmp_path).stdout)["aotriton"]


def test_the_private_key_of_publish_does_not_decide_whose_signature_is_accepted(
    clean: dict[str, str], tmp_path: Path
) -> None:
    both = {**clean, "TOOLCHAIN_KEY": "mine"}
    reuse = ("build", "base", "--reuse-from", f"oci:{tmp_path}")
    for verb in (("verify", f"oci:{tmp_path}:x"), reuse):
        assert "mine" not in call(both, *verb, cwd=tmp_path).stderr
        done = call({**both, "TOOLCHAIN_PUBLIC_KEY": "theirs"}, *verb, cwd=tmp_path)
        assert (done.returncode, "cannot read the key theirs" in done.stderr) == (3, True)
        assert "cannot read the key given" in call(both, *verb, "--public-key", "given", cwd=tmp_path).stderr
    done = call({**both, "TOOLCHAIN_PUBLIC_KEY": "theirs"}, "publish", "oci:x", "llvm", cwd=tmp_path)
    assert "cannot read the key mine" in done.stderr


def test_paths_with_spaces_come_from_the_environment_too(clean: dict[str, str], tmp_path: Path) -> None:
    trees = [tmp_path / f"{name} of 'mine'" for name in ("llvm", "triton")]
    given = f"llvm={trees[0]}  triton={trees[1]}"
    done = call({**clean, "TOOLCHAIN_SOURCE": given}, "plan", "llvm", cwd=tmp_path)
    assert done.returncode == 5
    assert f"--source llvm={trees[0]} names no source" in done.stderr
    for tree in trees:
        tree.mkdir()
    (tmp_path / "t.toml").write_text('source = ["llvm=/from/the/file"]\n')
    clean = {**clean, "TOOLCHAIN_CONFIG": "t.toml"}
    patch = tmp_path / "a  patch"
    done = call({**clean, "TOOLCHAIN_SOURCE": given, "TOOLCHAIN_PATCH": f"llvm={patch}"}, "plan", "llvm", cwd=tmp_path)
    assert f"--patch llvm={patch}: no such file" in done.stderr
    patch.touch()
    done = call({**clean, "TOOLCHAIN_SOURCE": given, "TOOLCHAIN_PATCH": f"llvm={patch}"}, "plan", "llvm", cwd=tmp_path)
    assert f"{trees[0]} is not a whole source tree" in done.stderr
    done = call({**clean, "TOOLCHAIN_SOURCE": given}, "plan", "llvm", "--source", "llvm=/from/the/line", cwd=tmp_path)
    assert "--source llvm=/from/the/line names no source" in done.stderr


def test_plan_of_an_empty_machine_has_no_digests(clean: dict[str, str], tmp_path: Path) -> None:
    done = call(clean, "plan", "llvm", "--source", "llvm=distro:llvm-toolchain-22", "--json", cwd=tmp_path)
    base, system, llvm = json.loads(done.stdout)["stages"]
    assert base["input_digest"] is None
    assert (system["image"], system["input_digest"]) == ("toolchain-sysroot-glibc-2.31", None)
    assert llvm["input_digest"] is None
    assert llvm["reused"] is False
    assert llvm["image"] == "llvm-triton-22.1.8"
    (source,) = llvm["sources"]
    assert source["digest"] == "sha256:b49b9277aef97616320b2da259e1f8174c65b0ce2fbe2e8629644a97693402fe"


def test_plan_names_patches(clean: dict[str, str], tmp_path: Path) -> None:
    for name in ("one.patch", "two fix.patch"):
        (tmp_path / name).write_text(name)
    words = ["plan", "llvm", "--source", "llvm=distro:llvm-toolchain-22"]
    (bare,) = json.loads(call(clean, *words, "--json", cwd=tmp_path).stdout)["stages"][-1]["sources"]
    assert set(bare) == {"name", "ref", "repository", "digest"}
    words += ["--patch", "llvm=one.patch", "--patch", "llvm=two fix.patch"]
    (source,) = json.loads(call(clean, *words, "--json", cwd=tmp_path).stdout)["stages"][-1]["sources"]
    assert source.pop("patches") == [
        {"name": name, "digest": f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"}
        for name in ("one.patch", "two fix.patch")
    ]
    assert source == bare
    shown = call({**clean, "COLUMNS": "200"}, *words, cwd=tmp_path).stdout
    assert re.search(r"llvm distro:llvm-toolchain-22=\S+.*\n.*\+ one\.patch.*\n.*\+ two fix\.patch", shown), shown


REASON = "at line 3\nout of resource: shared memory"


@pytest.mark.parametrize(
    "failures",
    [{"gfx942/a": REASON}, [{"out": "gfx942/a", "status": "failed", "reason": REASON}]],
    ids=["calls", "aotriton"],
)
@pytest.mark.parametrize(("bad", "code"), [(2, 12), (0, 0)])
@pytest.mark.parametrize("verb", [("build", "kernels"), ("kernels", "run")])
def test_known_bad_kernels_show_in_the_exit_code(
    verb: tuple[str, ...], bad: int, code: int, failures: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counts = {"done": 4, "failed": bad, "timed_out": 0}
    built = Built(
        planned=Planned(name="kernels", image="k", inputs={}),
        input_digest="sha256:0",
        manifest="m",
        layers=(),
        facts={
            "kernels": counts,
            "known_bad": ["gfx942/a", "gfx942/b"],
            "failures": failures,
        },
    )
    write_record(Cache(tmp_path), record(stage="kernels", image="k", input_digest="sha256:0"))
    monkeypatch.setattr("toolchain.cli.build_cmd.build_stages", lambda *_, **__: [built])
    done = CliRunner().invoke(app, [*verb, "--json", "--cache", str(tmp_path)])
    assert json.loads(done.stdout)["publish"] == ["k.0"]
    assert (done.exit_code, json.loads(done.stdout)["stages"][0]["facts"]["kernels"]) == (code, counts)
    assert ("gfx942/a: out of resource: shared memory\n" in done.stderr) == (bad > 0), "the reason, where it is known"


def test_errors_are_data_too(clean: dict[str, str], tmp_path: Path) -> None:
    done = call(clean, "plan", "llvm", "--triton", "3.99", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert (said["exit_code"], said["error"]) == (7, "Unsupported")
    assert said["fix"]
    said = json.loads(call(clean, "pins", "--triton", "3.99", "--json", cwd=tmp_path).stdout)
    assert said["exit_code"] == 7
    (tmp_path / "toolchain.toml").write_text('bass = "debian13"\n')
    said = json.loads(call(clean, "plan", "--json", cwd=tmp_path).stdout)
    assert said["exit_code"] == 3


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_has_its_own_code(wrapped: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def verb() -> None:
        full = OSError(errno.ENOSPC, "No space left on device", "/some/file")
        if wrapped:
            raise errors.RegistryError("cannot store a blob") from full
        raise full

    with pytest.raises(typer.Exit) as caught:
        handled(verb)()
    assert caught.value.exit_code == 9
    said = capsys.readouterr().err
    assert "the disk is full" in said
    assert "/some/file" in said
    assert ("cannot store a blob" in said) == wrapped


def test_a_full_disk_is_told_by_programs_and_by_the_ledger_too(capsys: pytest.CaptureFixture[str]) -> None:
    def builds() -> None:
        tail = ["[3/9] x.cpp", "fatal error: error in backend: IO failure: No space left on device", "ninja: stopped"]
        inner = CommandError(["buildah"], 1, tail)
        error = errors.BuildError("building llvm failed")
        error.further = ("full log: /a/log",)
        raise error from inner

    def notes() -> None:
        with contextlib.closing(sqlite3.connect(":memory:")) as db:
            db.execute("PRAGMA max_page_count=2")
            db.executescript("CREATE TABLE a (x); CREATE TABLE b (x); CREATE TABLE c (x)")

    for verb in (builds, notes):
        with pytest.raises(typer.Exit) as caught:
            handled(verb)()
        assert caught.value.exit_code == 9
        assert "the disk is full" in capsys.readouterr().err.replace("log: /a/log", "")

    def fails() -> None:
        raise errors.BuildError("no") from CommandError(["buildah"], 1, ["something else"])

    with pytest.raises(typer.Exit) as caught:
        handled(fails)()
    assert caught.value.exit_code == 10


def _classes() -> Iterator[type[ToolchainError]]:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, ToolchainError) and value is not ToolchainError:
            yield value


def test_every_class_of_error_has_a_code_of_its_own_and_it_is_documented_with_a_remedy() -> None:
    codes = {cls.code: cls for cls in _classes()}
    assert len(codes) == len(list(_classes()))
    assert min(codes) >= 3
    text = (TOP / "docs" / "exit-codes.md").read_text()
    row = r"^\| (\d+) \| ([^|]+) \| [^|]+ \| [^|]{10,} \|$"  # code, title, meaning, remedy
    rows = {int(code): title for code, title in re.findall(row, text, re.MULTILINE)}
    assert {code: cls.title for code, cls in codes.items()} == {k: v for k, v in rows.items() if 3 <= k < 100}
