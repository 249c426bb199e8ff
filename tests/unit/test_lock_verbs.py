"""Tests of `lock` and `--locked`, and of refusing sources and bases that differ from the lock."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from tests.evidence_fixtures import finished_base, finished_sysroot
from tests.git_server import git
from tests.lock_fixtures import lock
from tests.refusals import refused
from tests.request_fixtures import specs
from tests.small_llvm import small_llvm
from tests.small_triton import small_triton
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import LockedError
from toolchain.engine.progress import Progress
from toolchain.pipeline import lockfile, locking
from toolchain.pipeline.fetching import Prefetch
from toolchain.pipeline.lock_differences import differences
from toolchain.pipeline.plan import plan
from toolchain.pipeline.workspace import BuildWorkspace
from toolchain.request.model import DEFAULT_GLIBC, Request
from toolchain.sources import distro
from toolchain.sources.edits import read_edits
from toolchain.sources.resolve import fetch_source
from toolchain.sources.suites import Package
from toolchain.sources.tree import Source, scan_tree

TOP = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Here:
    """A working folder, and an empty cache."""

    folder: Path
    cache: Cache

    def call(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    for name in [name for name in os.environ if name.startswith("TOOLCHAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "a cache"))
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Here(folder, Cache(tmp_path / "a cache"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with the files of LLVM that a plan needs."""
    top = small_llvm(tmp_path / "my secret folder" / "llvm project")
    (top / "docs").mkdir()
    (top / "docs" / "text").write_text("not built from\n")
    return top


# Builds


def test_workspace_verifies_a_source_and_compares_it_with_the_lock(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "c")
    how: list[dict[str, Any]] = []
    held: list[Source] = []
    one = plan(Request(cache=cache, sources=specs({"llvm": str(checkout)})), "llvm")[1].planned.sources[0]

    def fetched(_: Request, source: Source, **given: Any) -> Source:
        how.append(given)
        return source

    monkeypatch.setattr("toolchain.pipeline.workspace.fetch_for", fetched)
    monkeypatch.setattr(locking, "check", lambda *_: None)
    monkeypatch.setattr(locking, "check_tree", lambda _, source: held.append(source))
    fetching = Prefetch(Request(cache=cache), [])
    with Progress("t", 1, 1, Console(file=io.StringIO())) as progress:
        asked = Request(cache=cache, lock=lock())
        workspace = BuildWorkspace(request=asked, log=tmp_path / "log", progress=progress, stage="t", prefetch=fetching)
        assert workspace.fetch(one) == one
    assert how[0]["verify"] is True
    assert held == [one]


# The verbs


def test_the_lock_of_the_quickstart_is_current(tmp_path: Path) -> None:
    """The base in the lock is open, because the packages of mirrors change."""
    there = lockfile.read(TOP / lockfile.DEFAULT)
    named = specs({"llvm": "distro:llvm-toolchain-22", "triton": "pypi:3.7.1"})
    request = Request(cache=Cache(tmp_path / "empty"), sources=named, only="mlir-tblgen", glibc=DEFAULT_GLIBC)
    now = locking.resolve(request, [row.planned for row in plan(request, "all")], "all")
    again = "toolchain lock all --source llvm=distro:llvm-toolchain-22 --source triton=pypi:3.7.1 --only mlir-tblgen"
    assert differences(there, now, whole=True) == [], f"make it again: {again} --open-base"
    assert [one.state for one in there.bases] == ["open", "open"]
    assert {one.name: one.wheel for one in there.sources} == {"flash-attn": False, "llvm": False, "triton": True}
    assert all(one.tree for one in there.sources if not one.wheel)
    assert all(one.license for one in there.sources)
    assert lockfile.render(there) == (TOP / lockfile.DEFAULT).read_bytes()
    options = (TOP / "quickstart").read_text()
    assert "--locked" in options
    assert "--source llvm=distro:llvm-toolchain-22 --source triton=pypi:3.7.1 --only mlir-tblgen" in options


def test_edit_that_depends_on_the_fetched_llvm_is_locked(
    here: Here, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = small_triton(tmp_path / "triton")
    for part in ("amd", "nvidia"):
        (triton / "third_party" / part / "backend").mkdir(parents=True)
    content = (triton / "setup.py").read_bytes()
    (tmp_path / "e.toml").write_text(
        f'source = "triton"\ncommit = "{"c" * 40}"\nllvm = "22.1"\n[[edit]]\nfile = "setup.py"\n'
        f'sha256 = "{sha256_bytes(content).removeprefix("sha256:")}"\nfirst = 1\nlast = 0\ntext = ""\nwhy = "w"\n'
    )
    monkeypatch.setattr("toolchain.stages.triton_edits.shipped", lambda: (read_edits(tmp_path / "e.toml"),))
    git(checkout, "init", "-q")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "m")
    llvm = f"file://{checkout.rename(tmp_path / 'llvm')}@{git(tmp_path / 'llvm', 'rev-parse', 'HEAD')}"
    words = ("triton", "--source", f"llvm={llvm}", "--source", f"triton={triton}")
    done = here.call("lock", *words)
    assert done.exit_code == 0, done.stderr
    (row,) = [row for row in lockfile.read(here.folder / "toolchain.lock").sources if row.name == "triton"]
    assert [patch.name for patch in row.patches] == ["e.toml"]
    assert here.call("plan", *words, "--locked").exit_code == 0


@pytest.mark.parametrize("output", ["/dev/null", "link", "pipe", "/proc/lock", "x" * 300])
def test_unwritable_output_is_refused_before_the_fetch(
    here: Here, checkout: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    Path("link").symlink_to("/etc/lock")
    os.mkfifo("pipe")
    fetched: list[Source] = []
    monkeypatch.setattr(locking, "fetch_for", lambda _, source: fetched.append(source))
    done = here.call("lock", "llvm", "--source", f"llvm={checkout}", "-o", output, "--json")
    assert json.loads(done.stdout)["id"] in {"output-unwritable", "output-is-link"}, done.output
    assert (done.exit_code, fetched) == (3, [])
    assert {path.name for path in here.folder.iterdir()} == {"link", "pipe"}


def test_lock_made_from_a_pin_in_a_folder_works_without_the_folder(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = small_triton(tmp_path / "secret")
    (triton / "cmake").mkdir()
    (triton / "cmake" / "llvm-hash.txt").write_text("a" * 40 + "\n")
    monkeypatch.setattr(locking, "fetch_for", lambda *_: None)
    done = here.call("lock", "llvm", "--triton", str(triton))
    assert done.exit_code == 0, done.output
    assert here.call("lock", "llvm", "--triton", str(triton), "--check").exit_code == 0
    named = f"https://github.com/llvm/llvm-project@{'a' * 40}"
    assert lockfile.read(Path("toolchain.lock")).request["source"] == {"llvm": named}
    assert "secret" not in Path("toolchain.lock").read_text()
    shutil.rmtree(triton)
    done = here.call("plan", "llvm", "--locked", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["stages"][-1]["sources"][0]["ref"] == "a" * 40


def test_changed_checkout_differs_from_its_lock(here: Here, checkout: Path, tmp_path: Path) -> None:
    cache = here.cache
    finished_base(cache, tmp_path / "work")
    finished_sysroot(cache, tmp_path / "old system", "amd64", glibc=DEFAULT_GLIBC)
    words = ("llvm", "--source", f"llvm={checkout}")
    done = here.call("lock", *words, "--json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["complete"] is True
    assert said["bases"] == [
        {"stage": "base", "name": "debian13", "arch": "amd64", "state": "resolved"},
        {"stage": "sysroot", "name": "glibc-2.31", "arch": "amd64", "state": "resolved"},
    ]
    content = (here.folder / "toolchain.lock").read_text()
    assert "secret" not in content
    assert str(tmp_path) not in content
    assert '{ name = "apt", version = "3.0.3", arch = "amd64", sha256 = "' + "5" * 64 in content
    assert here.call("lock", *words, "--check").exit_code == 0
    assert here.call("plan", *words, "--locked").exit_code == 0
    again = here.call("lock", *words, "-o", "other lock")
    assert again.exit_code == 0, again.stderr
    assert (here.folder / "other lock").read_text() == content

    # A checkout that was moved is the same source, because its tree is the same.
    moved = checkout.rename(tmp_path / "moved")
    words = ("llvm", "--source", f"llvm={moved}")
    assert here.call("plan", *words, "--lock-file", "other lock").exit_code == 0
    assert here.call("lock", *words, "--check").exit_code == 0
    (moved / "mlir" / "CMakeLists.txt").write_text("project(y)\n")
    before = sorted(p for p in (cache.root / "store").rglob("*"))
    for verb in ("plan", "fetch", "build"):
        done = here.call(verb, *words, "--locked")
        assert done.exit_code == 21, verb
        assert "[lock-differs]" in done.stderr, verb
    done = here.call("lock", *words, "--check", "--json")
    assert (done.exit_code, json.loads(done.stdout)["id"]) == (21, "lock-differs")
    assert not (here.folder / "out").exists()
    assert not cache.work.exists() or not list(cache.work.iterdir())
    assert {p.name for p in before} >= {p.name for p in cache.store.rglob("*") if "stat" not in p.parts}


def test_other_patch_or_base_differs_from_the_lock(here: Here, checkout: Path, tmp_path: Path) -> None:
    cache = here.cache
    finished_base(cache, tmp_path / "work")
    words = ("llvm", "--source", f"llvm={checkout}")
    assert here.call("lock", *words).exit_code == 0
    patch = tmp_path / "a patch"
    patch.write_text("--- a/mlir/x\n+++ b/mlir/x\n@@ -0,0 +1 @@\n+x\n")
    for more, says in (
        (("--patch", f"llvm={patch}"), "the patches (none) are locked, a patch (sha256:"),
        (("--base", "debian12"), "base debian12 (amd64) is not in the lock"),
    ):
        done = here.call("plan", *words, *more, "--locked")
        assert done.exit_code == 21, done.stderr
        assert says in done.stderr
    assert here.call("plan", "llvm", "--source", f"llvm={checkout / 'mlir'}", "--locked").exit_code == 5
    # Change the packages of the base that are recorded in the cache.
    (path,) = (cache.root / "locked").iterdir()
    value = json.loads(path.read_text())
    value["packages"][0]["version"] = "9"
    path.write_text(json.dumps(value))
    done = here.call("build", *words, "--locked")
    assert done.exit_code == 21
    assert "[lock-differs]" in done.stderr
    assert "debian13" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("plan", "--locked"), 3, "lock-unreadable"),
        (("lock", "--check"), 3, "lock-unreadable"),
        (("lock", "llvm", "--offline", "--source", "llvm=distro:llvm-toolchain-20"), 18, "offline-missing"),
        (("bundle", "export", "oci:x", "base"), 5, "base-not-built"),
    ],
)
def test_failed_verb_reports_its_reason_and_writes_nothing(
    here: Here, words: tuple[str, ...], code: int, says: str, tmp_path: Path
) -> None:
    done = here.call(*words)
    assert done.exit_code == code, done.stderr
    assert f"[{says}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(here.folder.iterdir()) == []


def test_offline_lock_reports_missing_tree_digest_and_packages(here: Here, tmp_path: Path) -> None:
    words = ("llvm", "--source", "llvm=distro:llvm-toolchain-22")
    done = here.call("lock", *words, "--offline")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("its tree digest is left out") == 1
    assert "incomplete: the packages of base debian13 (amd64)" in done.stderr
    found = lockfile.read(here.folder / "toolchain.lock")
    assert found.bases[0].state == "unresolved"
    assert found.bases[0].suite == "trixie"
    assert found.sources[0].tree == ""
    assert here.call("plan", *words, "--locked").exit_code == 0


def test_locked_package_version_is_planned_without_an_index(here: Here, tmp_path: Path) -> None:
    """The version in the lock is used even if the cache knows no version of the package, or a newer one."""
    package = "llvm-toolchain-20"

    def noted(version: str, digit: str) -> None:
        file = f"{package}_{version}.orig.tar.xz"
        distro.note(Package(name=package, version=version, file=file, sha256=digit * 64, size=9), here.cache)

    noted("20.1.2", "a")
    request = Request(cache=here.cache, glibc="2.31", sources=specs({"llvm": f"distro:{package}"}))
    planned = [row.planned for row in plan(request, "llvm")]
    lockfile.write(locking.resolve(request, planned, "llvm"), here.folder / "toolchain.lock")
    assert here.call("plan", "llvm", "--locked").exit_code == 0
    noted("20.1.8", "b")
    for named in ((), ("--source", f"llvm=distro:{package}"), ("--source", f"llvm=distro:{package}=20.1.2")):
        assert here.call("plan", "llvm", "--locked", *named).exit_code == 0
    other = here.call("plan", "llvm", "--locked", "--source", f"llvm=distro:{package}=20.1.8")
    assert other.exit_code == 21
    assert "[lock-differs]" in other.stderr
    assert "20.1.8" in other.stderr
    shutil.rmtree(here.cache.store / "distro")
    done = here.call("plan", "llvm", "--locked", "--json")
    assert done.exit_code == 0, done.stderr
    assert '"digest": "sha256:' + "a" * 64 in done.stdout
    assert "(unlocked)" not in here.call("plan", "llvm", "--locked").stdout


# Sources from the store


@pytest.mark.parametrize("forged", [False, True])
def test_changed_tree_in_the_store_is_replaced_or_refused(tmp_path: Path, checkout: Path, forged: bool) -> None:
    """If the recorded digest was changed too, the tree is refused, because it differs from the lock."""
    cache = Cache(tmp_path / "cache")
    request = Request(cache=cache, sources=specs({"llvm": str(checkout)}))
    (_, llvm) = plan(request, "llvm")
    locking.fetch_all(request, [llvm.planned])
    request = dataclasses.replace(request, lock=locking.make(request, [llvm.planned], "llvm", tmp_path / "a lock"))
    source_ = llvm.planned.sources[0]
    got = fetch_source(source_, cache=cache, offline=True, verify=True)
    locking.check_tree(request, got)
    assert got.path is not None
    victim = got.path / "llvm" / "CMakeLists.txt"
    victim.write_text("project(evil)\n")
    if not forged:
        clean_again = fetch_source(source_, cache=cache, offline=True)
        assert clean_again.path is not None
        assert (clean_again.path / "llvm" / "CMakeLists.txt").read_text() == "project(x)\n"
        return
    (sidecar,) = (p for p in (cache.store / "trees").glob("*.json") if not p.name.endswith(".stat.json"))
    info = scan_tree(got.path)
    sidecar.write_text(json.dumps({"digest": got.digest, "part": "", "tree": info.digest, "files": info.files,
                                   "bytes": info.bytes}))  # fmt: skip
    got = fetch_source(source_, cache=cache, offline=True)
    with refused("lock-differs") as caught:
        locking.check_tree(request, got)
    assert info.digest in caught.value.why
    with pytest.raises(LockedError):
        plan(request, "llvm")


def test_verify_finds_a_damaged_tree_with_unchanged_size_and_times(tmp_path: Path, checkout: Path) -> None:
    """A failing disk can change the bytes of a file without changing its size and times."""
    cache = Cache(tmp_path / "cache")
    (_, llvm) = plan(Request(cache=cache, sources=specs({"llvm": str(checkout)})), "llvm")
    source_ = llvm.planned.sources[0]
    got = fetch_source(source_, cache=cache, offline=True)
    assert got.path is not None
    victim = got.path / "llvm" / "CMakeLists.txt"
    victim.write_text("project(y)\n")
    # The recorded status is made to match the changed file, as if only the bytes had changed.
    stat = got.path.with_name(f"{got.path.name}.stat.json")
    status = victim.stat()
    seen = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    content = sha256_bytes(b"project(x)\n").removeprefix("sha256:")
    stat.write_text(json.dumps({"format": 1, "files": {"llvm/CMakeLists.txt": f"{seen} {content}"}}))
    believed = fetch_source(source_, cache=cache, offline=True)
    assert believed.path is not None
    assert (believed.path / "llvm" / "CMakeLists.txt").read_text() == "project(y)\n", "the test harms nothing"
    # The check needs another process, because a process does not read a tree again that it has written itself.
    code = (
        "import sys; from pathlib import Path; from toolchain.pipeline.plan import plan\n"
        "from toolchain.core.cache import Cache; from toolchain.request.model import Request\n"
        "from toolchain.sources.resolve import fetch_source; from toolchain.sources.spec import of_folder\n"
        "c = Cache(Path(sys.argv[1])); named = {'llvm': of_folder(Path(sys.argv[2]))}\n"
        "s = plan(Request(cache=c, sources=named), 'llvm')[1].planned\n"
        "fetch_source(s.sources[0], cache=c, offline=True, verify=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, cache.root, checkout], capture_output=True, text=True, check=False, cwd=TOP
    )
    assert done.returncode == 0, done.stderr
    assert "changed or damaged" in done.stderr
    assert victim.read_text() == "project(x)\n"
