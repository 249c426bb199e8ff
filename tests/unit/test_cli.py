"""The command line: bad input is reported before any work, with its own exit code."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from scripts import error_ids
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


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start in an empty folder, with an empty cache and none of the tool's variables."""
    for name in [name for name in os.environ if name.startswith("TOOLCHAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache 'with' \"quotes\""))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)


def call(*words: str, **env: str) -> Result:
    return CliRunner().invoke(app, words, env=env)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("build", "llvm", "--gpu", "gfx9999"), 7, "unknown-gpu"),
        (("plan", "llvm", "--glibc", "2.31", "--base", "debian13"), 3, "options-exclude"),
        (("plan", "triton", "--triton", "3.7.1", "--base", "debian13", "--python", "3.11"), 7, "python-not-in-base"),
        (("build", "sysroot", "--base", "debian13"), 7, "stage-not-for-base"),
        (("build", "llvm", "--aotriton", "0.99b"), 7, "unknown-release"),
        (("build", "llvm", "--triton", "3.99.0"), 7, "unknown-triton"),
        (("build", "llvm", "--aotriton", "0.14b"), 4, "release-incomplete"),
        (("build", "nothing"), 7, "unknown-stage"),
        (("plan", "triton", "--python", "3.12,3.13"), 7, "python-not-built"),
        (("reproduce", "llvm"), 5, "image-not-found"),
        (("build", "llvm", "--source", "gcc=/tmp"), 3, "unknown-source"),
        (("plan", "llvm", "--source", "llvm=/a", "--source", "llvm=/b"), 3, "option-twice"),
        (("build", "llvm", "--source", "llvm=/no/such/folder"), 5, "not-a-source"),
        (("build", "llvm", "--patch", "llvm=/no/such/file"), 3, "patch-missing"),
        (("plan", "triton", *WHEEL, "--patch", f"triton={__file__}"), 3, "patch-without-source"),
        (("lock", "base", "-o", "/no/such/folder/lock"), 3, "output-unwritable"),
        (("verify", "oci:/no/such/folder", "--vsa", "/proc/vsa"), 3, "output-unwritable"),
        (("build", "triton", *WHEEL), 15, "prebuilt-not-allowed"),
        (("publish", "oci:out", "x", "--compression", "rar"), 3, "unknown-compression"),
        (("build", "llvm", "--only", "everything"), 7, "unknown-value"),
        (("kernels", "run", "--limit", "0"), 2, "limit"),
        (("build", "all", "--no-such-flag"), 2, "no-such-flag"),
        (("plan", "llvm", "--gpu", "gfx942", "--gpu", "gfx1100"), 2, "--gpu"),
        (("build", "llvm", "--archive", "/dev/null"), 3, "archive-unwritable"),
        (("publish",), 3, "no-destination"),
        (("publish", "oci:/tmp/x", "llvm", "--dest", "oci:/tmp/y"), 3, "options-exclude"),
        (("cache", "prune", "llvm", "--unused-for", "90"), 3, "options-exclude"),
        (("publish", "oci:/tmp/x"), 3, "no-image-named"),
        (("publish", "oci:/tmp/x:v1", "llvm"), 3, "place-names-image"),
        (("bundle", "export", f"oci:/tmp/x@sha256:{'0' * 64}"), 3, "bundle-exists"),
        (("publish", "oci:/tmp/x", "llvm"), 5, "image-not-found"),
    ],
)
def test_invalid_command_line_is_refused_and_writes_nothing(
    words: tuple[str, ...], code: int, says: str, tmp_path: Path
) -> None:
    done = call(*words)
    assert done.exit_code == code, done.output
    assert (says if code == 2 else f"[{says}]") in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == [], "something was written"


def test_offline_build_does_not_make_missing_base(tmp_path: Path) -> None:
    done = call("build", "llvm", "--arch", "arm64", "--offline")
    assert done.exit_code == 18, done.stderr
    cache = tmp_path / "cache 'with' \"quotes\""
    assert [path for path in cache.rglob("*") if path.is_file() and path.suffix not in {".lock", ".log"}] == []
    assert call("plan", "llvm", "--arch", "arm64", "--offline").exit_code == 0


HOSTILE = ("base", "arch", "source", "patch", "triton", "aotriton", "gpu", "select", "allow-binary", "drop-binary",
           "python", "only")  # fmt: skip


def test_newline_in_option_is_refused_and_shell_syntax_is_not_run(tmp_path: Path) -> None:
    """A value may come from the command line, the environment or the configuration file."""
    canary = tmp_path / "canary"
    for option in HOSTILE:
        value = ("llvm=" if option in {"source", "patch"} else "") + f"a\nRUN touch {canary}"
        assert call("plan", "kernels", f"--{option}", value).exit_code in {2, 3}, option
        found = call("plan", "kernels", **{f"TOOLCHAIN_{option.upper().replace('-', '_')}": value})
        # A list in a variable is split at white space, so no item contains the newline.
        good = {0} if option in {"allow-binary", "drop-binary"} else set()
        assert found.exit_code in {2, 3} | good, (option, found.output, found.exception)
        found = call("plan", "kernels", f"--{option}", value.replace("\nRUN", "$(").replace("canary", "canary)"))
        assert found.exit_code != 1, (option, found.exception)
    (tmp_path / "toolchain.toml").write_text(f'select = "a\\nRUN touch {canary}"\n')
    assert call("plan", "kernels").exit_code == 3
    assert not canary.exists()


def test_llvm_tree_without_mlir_is_refused_before_base_is_built(tmp_path: Path) -> None:
    tree = tmp_path / "llvm project"
    (tree / "llvm").mkdir(parents=True)
    (tree / "llvm" / "CMakeLists.txt").write_text("project(LLVM)\n")
    done = call("build", "llvm", "--source", f"llvm={tree}")
    assert done.exit_code == 5
    assert "mlir/CMakeLists.txt" in done.stderr
    assert "base:" not in done.stderr, "the base was begun before the source was looked at"


@pytest.mark.parametrize(
    ("words", "meant"), [(("build", "lvm"), "llvm"), (("publish", "oci:x", "tolchain-base"), "toolchain-base")]
)
def test_misspelt_name_gets_suggestion(words: tuple[str, ...], meant: str, tmp_path: Path) -> None:
    finished_base(Cache(tmp_path / "cache"), tmp_path / "base")
    done = call(*words, "--cache", str(tmp_path / "cache"))
    assert done.exit_code in {5, 7}
    assert f"did you mean {meant}" in done.stderr


def test_precedence_is_command_line_environment_file_default(tmp_path: Path) -> None:
    def image(*words: str, **env: str) -> str:
        done = call("plan", "base", "--json", *words, **env)
        assert done.exit_code == 0, done.stderr
        return str(json.loads(done.stdout)["stages"][0]["image"])

    assert image() == "toolchain-base-debian13"
    (tmp_path / "t.toml").write_text('base = "ubi9"\n')
    named = {"TOOLCHAIN_CONFIG": "t.toml"}
    assert image(**named) == "toolchain-base-ubi9"
    assert image(TOOLCHAIN_BASE="debian12", **named) == "toolchain-base-debian12"
    assert image("--base", "almalinux8", TOOLCHAIN_BASE="debian12", **named) == "toolchain-base-almalinux8"


def test_pins_without_query_ignores_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "toolchain.toml").write_text('triton = "3.7.1"\n')
    assert json.loads(call("pins", "--json").stdout)["aotriton"]


def test_private_key_variable_does_not_affect_verification(tmp_path: Path) -> None:
    private, both = {"TOOLCHAIN_KEY": "mine"}, {"TOOLCHAIN_KEY": "mine", "TOOLCHAIN_PUBLIC_KEY": "theirs"}
    for verb in (("verify", f"oci:{tmp_path}:x"), ("build", "base", "--reuse-from", f"oci:{tmp_path}")):
        assert "mine" not in call(*verb, **private).stderr
        done = call(*verb, **both)
        assert (done.exit_code, "[key-unreadable]" in done.stderr) == (3, True)
        assert "[key-unreadable]" in call(*verb, "--public-key", "given", **private).stderr
    assert "[key-unreadable]" in call("publish", "oci:x", "llvm", **both).stderr


def test_environment_values_may_contain_paths_with_spaces(tmp_path: Path) -> None:
    trees = [tmp_path / f"{name} of 'mine'" for name in ("llvm", "triton")]
    given = {"TOOLCHAIN_SOURCE": f"llvm={trees[0]}  triton={trees[1]}"}
    done = call("plan", "llvm", **given)
    assert done.exit_code == 5
    assert "[not-a-source]" in done.stderr
    assert str(trees[0]) in done.stderr
    for tree in trees:
        tree.mkdir()
    patch = tmp_path / "a  patch"
    given["TOOLCHAIN_PATCH"] = f"llvm={patch}"
    assert "[patch-missing]" in call("plan", "llvm", **given).stderr
    assert str(patch) in call("plan", "llvm", **given).stderr
    patch.touch()
    assert "[source-incomplete]" in call("plan", "llvm", **given).stderr
    assert str(trees[0]) in call("plan", "llvm", **given).stderr


def test_plan_with_empty_cache_has_no_input_digests() -> None:
    done = call("plan", "llvm", "--source", "llvm=distro:llvm-toolchain-22", "--json")
    base, system, llvm = json.loads(done.stdout)["stages"]
    assert (base["input_digest"], system["input_digest"], llvm["input_digest"]) == (None, None, None)
    assert (llvm["image"], llvm["reused"]) == ("llvm-triton-22.1.8", False)
    (source,) = llvm["sources"]
    assert source["digest"] == "sha256:b49b9277aef97616320b2da259e1f8174c65b0ce2fbe2e8629644a97693402fe"


def test_plan_names_patches(tmp_path: Path) -> None:
    for name in ("one.patch", "two fix.patch"):
        (tmp_path / name).write_text(name)
    words = ["plan", "llvm", "--source", "llvm=distro:llvm-toolchain-22", "--json"]
    (bare,) = json.loads(call(*words).stdout)["stages"][-1]["sources"]
    assert set(bare) == {"name", "ref", "repository", "digest"}
    words += ["--patch", "llvm=one.patch", "--patch", "llvm=two fix.patch"]
    (source,) = json.loads(call(*words).stdout)["stages"][-1]["sources"]
    assert source.pop("patches") == [
        {"name": name, "digest": f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"}
        for name in ("one.patch", "two fix.patch")
    ]
    assert source == bare


REASON = "at line 3\nout of resource: shared memory"


@pytest.mark.parametrize(
    ("verb", "bad", "code", "failures"),
    [
        (("build", "kernels"), 2, 12, {"gfx942/a": REASON}),
        (("kernels", "run"), 2, 12, [{"out": "gfx942/a", "status": "failed", "reason": REASON}]),
        (("kernels", "run"), 0, 0, {"gfx942/a": REASON}),
    ],
)
def test_known_bad_kernels_set_exit_code(
    verb: tuple[str, ...], bad: int, code: int, failures: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counts = {"done": 4, "failed": bad, "timed_out": 0}
    built = Built(
        planned=Planned(name="kernels", image="k", inputs={}),
        input_digest="sha256:0",
        manifest="m",
        layers=(),
        facts={"kernels": counts, "known_bad": ["gfx942/a", "gfx942/b"], "failures": failures},
    )
    write_record(Cache(tmp_path), record(stage="kernels", image="k", input_digest="sha256:0"))
    monkeypatch.setattr("toolchain.cli.build_cmd.build_stages", lambda *_, **__: [built])
    done = CliRunner().invoke(app, [*verb, "--json", "--cache", str(tmp_path)])
    assert json.loads(done.stdout)["publish"] == ["k.0"]
    assert (done.exit_code, json.loads(done.stdout)["stages"][0]["facts"]["kernels"]) == (code, counts)
    assert ("gfx942/a: out of resource: shared memory\n" in done.stderr) == (bad > 0), "the reason, where it is known"


def test_pins_of_a_release_whose_llvm_only_its_tree_names_refers_to_plan() -> None:
    for option in (("--aotriton", "0.11.1b"), ("--pytorch", "2.10")):
        error = json.loads(call("pins", *option, "--json").stdout)
        assert (error["id"], "plan aotriton" in error["fix"]) == ("aotriton-llvm-unknown", True)


def test_json_option_prints_errors_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.loads(call("plan", "llvm", "--triton", "3.99", "--json").stdout)
    assert (said["exit_code"], said["error"], bool(said["fix"])) == (7, "Unsupported", True)
    assert json.loads(call("pins", "--triton", "3.99", "--json").stdout)["exit_code"] == 7
    (tmp_path / "toolchain.toml").write_text('bass = "debian13"\n')
    monkeypatch.setattr(sys, "argv", ["toolchain", "plan", "--json"])
    said = json.loads(call("plan", "--json").stdout)
    assert (said["exit_code"], "'bass'" in said["what"]) == (3, True)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/some/file")


def full_below() -> None:
    try:
        full()
    except OSError as error:
        raise errors.RegistryError("test-error", "cannot store a blob") from error


def builds() -> None:
    tail = ["[3/9] x.cpp", "fatal error: error in backend: IO failure: No space left on device", "ninja: stopped"]
    raise errors.BuildError("test-error", "building llvm failed") from CommandError(["buildah"], 1, tail)


def notes() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.execute("PRAGMA max_page_count=2")
        db.executescript("CREATE TABLE a (x); CREATE TABLE b (x); CREATE TABLE c (x)")


def fails() -> None:
    raise errors.BuildError("test-error", "no") from CommandError(["buildah"], 1, ["something else"])


@pytest.mark.parametrize(("verb", "code"), [(full, 9), (full_below, 9), (builds, 9), (notes, 9), (fails, 10)])
def test_full_disk_exits_with_code_9(verb: Callable[[], None], code: int) -> None:
    with pytest.raises(typer.Exit) as caught:
        handled(verb)()
    assert caught.value.exit_code == code


def _classes() -> Iterator[type[ToolchainError]]:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, ToolchainError) and value is not ToolchainError:
            yield value


def test_error_ids_are_well_formed_and_documented() -> None:
    ids = error_ids.collected()
    assert [name for name in ids if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|usage", name) or len(name) > 40] == []
    listed = error_ids.PAGE.read_text().partition("| code | ids |")[2]
    assert set(re.findall("`([a-z0-9-]+)`", listed)) == ids.keys()


def test_each_error_class_has_unique_documented_exit_code() -> None:
    codes = {cls.code: cls for cls in _classes()}
    assert len(codes) == len(list(_classes()))
    assert min(codes) >= 3
    text = (TOP / "docs" / "exit-codes.md").read_text()
    row = r"^\| (\d+) \| ([^|]+) \| [^|]+ \| [^|]{10,} \|$"  # code, title, meaning, remedy
    rows = {int(code): title for code, title in re.findall(row, text, re.MULTILINE)}
    assert {code: cls.title for code, cls in codes.items()} == {k: v for k, v in rows.items() if 3 <= k < 100}
