"""Tests that a compile process sees only the files that determine the names of its results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.kernel_fixtures import FakeWorkers, local_executor, make_rule
from tests.refusals import refused
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_file
from toolchain.core.recipe import Mount
from toolchain.engine.variation import Variation
from toolchain.kernels.campaign import run_campaign
from toolchain.kernels.file_sets import FileSets
from toolchain.kernels.ledger import DONE, FAILED, Entry, Ledger
from toolchain.kernels.result_name import Naming
from toolchain.kernels.result_store import KernelStore
from toolchain.kernels.rules import Rule
from toolchain.kernels.shared import SharedResults
from toolchain.request.model import Request
from toolchain.stages import aotriton_images, kernel_workers, kernels, triton_cache
from toolchain.stages.kernel_workers import KernelProject
from toolchain.stages.stage import Built, Planned, Workspace

START = Path(__file__).parents[2] / "aotriton" / "start.py"
LAYERS = ["sha256:" + "a" * 64]


def rule_of(source: str, root: str = "", *, kernel: str = "good") -> Rule:
    rule = replace(make_rule(kernel), source=source, root=root)
    return replace(rule, out=f"gfx942/{Path(source).stem}/{kernel}.hsaco")


def tree(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def naming_of(folder: Path, search: Sequence[str] = ()) -> Naming:
    return Naming(
        folder, triton=LAYERS, recipe={"aotriton/start.py": sha256_file(START)}, environment={}, search=search
    )


def shown(folder: Path) -> dict[str, str]:
    """Return the text of every file below a folder, and the target of every link."""
    return {
        path.relative_to(folder).as_posix(): os.fspath(path.readlink()) if path.is_symlink() else path.read_text()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Create a tree with files that Python runs by itself or prefers to a source."""
    found = tree(
        tmp_path / "tree",
        {
            "pack/k.py": "from . import low\n",
            "pack/low.py": "",
            "pack/other.py": "import json\n",
            "pack/__init__.py": "",
            "pack/__pycache__/low.cpython-313.pyc": "x",
            "pack/sitecustomize.py": "",
            "sitecustomize.py": "",
            "usercustomize.py": "",
            "more.pth": "import evil",
            "triton/__init__.py": "",
            ".git/hooks/post-checkout": "",
        },
    )
    found.joinpath("pack", "k.py").chmod(0o755)
    return found


def test_file_set_contains_only_the_imported_modules(hostile: Path, tmp_path: Path) -> None:
    naming = naming_of(hostile, search=("",))
    sets = FileSets(naming, tmp_path / "seen")
    rule = rule_of("pack/k.py", "pack")
    folder = sets.sources(naming.files(rule))
    assert shown(folder) == {"pack/k.py": "from . import low\n", "pack/low.py": "", "pack/__init__.py": ""}
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*.py")} == {0o644}
    assert {path.stat().st_mtime for path in [folder, *folder.rglob("*")]} == {0}
    assert list(shown(sets.recipe)) == ["aotriton/start.py"]


def test_module_that_opens_files_sees_the_tree_without_git_and_compiled_modules(hostile: Path, tmp_path: Path) -> None:
    (hostile / "pack" / "low.py").write_text("open('x')\n")
    (hostile / "link").symlink_to("/etc/hostname")
    naming = naming_of(hostile)
    folder = FileSets(naming, tmp_path / "seen").sources(naming.files(rule_of("pack/k.py", "pack")))
    seen = shown(folder)
    assert seen.keys() == naming.content(naming.files(rule_of("pack/k.py", "pack"))).keys()
    assert seen["link"] == "/etc/hostname"
    assert (folder / "link").lstat().st_mtime == 0
    assert "sitecustomize.py" in seen, "it is a part of the name"
    assert not [name for name in seen if "__pycache__" in name or ".git" in name]


def test_file_that_was_edited_after_it_was_named_is_refused(hostile: Path, tmp_path: Path) -> None:
    naming = naming_of(hostile)
    files = naming.files(rule_of("pack/k.py", "pack"))
    (hostile / "pack" / "low.py").write_text("edited\n")
    with refused("source-changed"):
        FileSets(naming, tmp_path / "seen").sources(files)


@pytest.mark.parametrize("whole", [False, True])
def test_no_file_outside_the_tree_is_copied_through_a_link(tmp_path: Path, whole: bool) -> None:
    (tmp_path / "private.py").write_text("SECRET = 1\n")
    found = tree(tmp_path / "tree", {"k.py": "import private\n" + ("open('x')\n" if whole else "")})
    (found / "private.py").symlink_to(tmp_path / "private.py")
    naming = naming_of(found)
    seen = shown(FileSets(naming, tmp_path / "seen").sources(naming.files(rule_of("k.py"))))
    assert not [text for text in seen.values() if "SECRET" in text]
    (found / "k2.py").symlink_to(tmp_path / "private.py")
    with refused("kernel-source-missing"):
        naming.files(rule_of("k2.py"))


def test_file_set_depends_on_the_root(tmp_path: Path) -> None:
    naming = naming_of(tree(tmp_path, {"a/b/k.py": ""}))
    assert naming.files(rule_of("a/b/k.py", "a")) != naming.files(rule_of("a/b/k.py", "a/b"))


class Recording:
    """Fake workers that record the file set and the output folder of each process."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeWorkers(folder)
        self.started: list[tuple[str, Path]] = []

    @contextlib.contextmanager
    def __call__(self, files: str, out: Path) -> Iterator[subprocess.Popen[str]]:
        assert list(out.iterdir()) == [], "it sees nothing that another process made"
        self.started.append((files, out))
        with self.fake(files, out) as child:
            yield child


@pytest.mark.parametrize(("workers", "most"), [(1, 3), (5, 15)])
def test_process_serves_one_set_of_files_and_has_a_separate_folder(tmp_path: Path, workers: int, most: int) -> None:
    rules = [rule_of(f"{name}.py", kernel=f"k{number}") for number in range(6) for name in "abc"]
    start = Recording(tmp_path / "workers")
    start.fake.provide(rules)
    executor = local_executor(
        start, workers=workers, timeout=60, files=lambda rule: Path(rule.source).stem, scratch=tmp_path
    )
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        result = run_campaign(rules, executor, ledger, tmp_path / "out", worker_tree="/src")
    assert result.counts()["done"] == len(rules)
    assert Counter(files for files, _ in start.started).keys() == {"a", "b", "c"}
    assert len(start.started) <= most, "a worker sees each set once"
    assert len({out for _, out in start.started}) == len(start.started)
    assert not any(out.exists() for _, out in start.started)


@pytest.mark.parametrize("what", ["link", "folder", "pipe"])
def test_output_that_is_not_a_regular_file_is_not_copied(tmp_path: Path, what: str) -> None:
    rule, start = rule_of("a.py"), Recording(tmp_path / "workers")
    start.fake.provide([rule])
    script = start.fake.folder / "worker.py"
    plant = {
        "link": "import os; os.unlink(out); os.symlink('/etc/hostname', out)",
        "folder": "import os; os.unlink(out); os.mkdir(out)",
        "pipe": "import os; os.unlink(out); os.mkfifo(out)",
    }[what]
    answers = "    print(json.dumps(answer), flush=True)"
    script.write_text(script.read_text().replace(answers, f"    {plant}\n{answers}"))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        executor = local_executor(start, workers=1, timeout=60)
        (entry,) = run_campaign([rule], executor, ledger, tmp_path / "out", worker_tree="/src", keep_going=True).entries
    assert entry.status == FAILED
    assert (tmp_path / "out" / rule.out).read_bytes() == b""


@pytest.mark.parametrize("suffix", [".hsaco", ".json"])
def test_changed_result_is_not_stored_and_is_compiled_again(tmp_path: Path, suffix: str) -> None:
    """A packer of the same tree may write to the folder of the code objects."""
    found = tree(tmp_path / "tree", {"a.py": ""})
    rule, start, out = rule_of("a.py"), Recording(tmp_path / "workers"), tmp_path / "out"
    start.fake.provide([rule])

    def run(shared: SharedResults | None = None) -> Entry:
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            executor = local_executor(start, workers=1, timeout=60)
            (entry,) = run_campaign([rule], executor, ledger, out, worker_tree="/src", shared=shared).entries
        return entry

    made = run()
    path = (out / rule.out).with_suffix(suffix)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"shared": 0', b'"shared": 1') if suffix == ".json" else whole + b"x")
    shared = SharedResults([KernelStore(tmp_path / "store")], naming_of(found))
    shared.compiled_by({"triton": "0"})
    with refused("kernel-changed"):
        shared.add(rule, made, out)
    assert run(shared).status == DONE
    assert len(start.started) == 2
    assert path.read_bytes() == whole
    assert hashlib.sha256((out / rule.out).read_bytes()).hexdigest() == made.sha256


def test_result_of_another_worker_is_used_but_not_stored(tmp_path: Path) -> None:
    """An update of the tool changes the name of a result even if the code object is the same."""
    found = tree(tmp_path / "tree", {"a.py": "", "b.py": ""})
    rules, start = [rule_of("a.py"), rule_of("b.py")], Recording(tmp_path / "workers")
    start.fake.provide(rules)

    def run(count: int, scope: str, store: str = "") -> int:
        shared = SharedResults([KernelStore(tmp_path / store)], naming_of(found)) if store else None
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            run_campaign(
                rules[:count], local_executor(start, workers=1, timeout=60), ledger, tmp_path / "out",
                worker_tree="/src", shared=shared, scope=scope,
            )  # fmt: skip
        return shared.counts.added if shared is not None else 0

    run(1, "before")
    assert run(1, "before", "same") == 1
    assert run(2, "after", "other") == 1, "only what was compiled now"
    assert run(2, "after", "again") == 0, "nothing tells which entries are of which worker"
    assert len(start.started) == 2


class Spy:
    """A workspace that records how a compile process would be started."""

    def __init__(self, folder: Path) -> None:
        self.request = Request(cache=Cache(folder / "cache"))
        self.calls: list[tuple[list[str], dict[str, Mount], dict[str, str]]] = []
        self.folder = folder

    def work(self) -> Path:
        return self.folder / "work"

    @property
    def cache(self) -> Cache:
        return self.request.cache

    def image_to_run(self, _: Built) -> str:
        return "image"

    def worker(self, _: str, argv: Sequence[str], *, mounts: Sequence[Mount], env: Mapping[str, str]) -> Any:
        self.calls.append((list(argv), {mount.target: mount for mount in mounts}, dict(env)))
        return contextlib.nullcontext(SimpleNamespace())


@pytest.mark.parametrize("seed", [None, 1], ids=["", "varied"])
@pytest.mark.parametrize("project", [kernels.PROJECT, aotriton_images.PROJECT], ids=["flash-attn", "aotriton"])
def test_compile_process_gets_only_the_named_variables_and_files(
    hostile: Path, tmp_path: Path, project: KernelProject, seed: int | None
) -> None:
    spy = Spy(tmp_path)
    if seed is not None:
        spy.request = replace(spy.request, variation=Variation(seed))
    workspace = cast("Workspace", spy)
    naming = project.naming(hostile, LAYERS, spy.request)
    setup = kernel_workers.compile_setup(
        naming, "image", workspace, source=project.source, out=tmp_path / "o", scratch=tmp_path / "compiling"
    )
    files = naming.files(rule_of("pack/k.py", "pack"))
    with setup.start(files, tmp_path / "own"):
        pass
    ((argv, mounts, _),) = spy.calls
    named = naming.shared
    assert "LD_PRELOAD" in named["environment"], "a name does not depend on a changed heap"
    variables = [
        f"{name}={value}"
        for name, value in sorted(named["environment"].items())
        if seed is None or name != "LD_PRELOAD"
    ]
    assert argv == ["env", "-i", *variables, *named["command"]]
    assert not [name for name in named["environment"] if name.startswith(("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"))]
    assert mounts.keys() == {"/recipe", project.source, "/out"}
    assert shown(mounts[project.source].source).keys() == naming.content(files).keys()
    assert shown(mounts["/recipe"].source).keys() == named["recipe"].keys()
    assert mounts["/out"].source == tmp_path / "own"
    assert [mount.target for mount in mounts.values() if not mount.read_only] == ["/out"]


def test_compile_process_of_a_wheel_gets_only_named_variables_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(triton_cache, "layer_digests", lambda *_: LAYERS)
    spy = Spy(tmp_path)
    built = Built(
        planned=Planned(name="flash-attn", image="x", inputs={}), input_digest="sha256:0", manifest="", layers=()
    )
    setup = triton_cache.compile_setup(built, tmp_path / "out", cast("Workspace", spy))
    rule = rule_of("flash_attn_calls.py")
    with setup.start(setup.naming.files(rule), tmp_path / "own"):
        pass
    ((argv, mounts, _),) = spy.calls
    named = setup.naming.shared
    variables = [f"{name}={text}" for name, text in sorted(named["environment"].items())]
    assert argv == ["env", "-i", *variables, *named["command"]]
    assert sorted(target for target, mount in mounts.items() if not mount.read_only) == ["/opt/triton-cache", "/out"]
    assert set(shown(mounts["/recipe"].source)) == set(named["recipe"])
    assert set(shown(mounts[setup.source].source)) == set(setup.naming.content(setup.naming.files(rule)))
    # Run the program outside a container, from folders of the same layout.
    program = mounts["/recipe"].source / named["command"][-1].removeprefix("/recipe/")
    modules = f"{Path(__file__).parents[1] / 'standin_wheel'}:{mounts[setup.source].source}"
    done = subprocess.run(
        [sys.executable, program], input="", capture_output=True, text=True, check=True,
        env={"PATH": os.defpath, "PYTHONPATH": modules, "TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[0])["ready"] is True


def test_result_name_depends_on_recipe_environment_command_and_triton(tmp_path: Path) -> None:
    rule, found = rule_of("k.py"), tree(tmp_path, {"k.py": ""})
    same: dict[str, Any] = {"triton": LAYERS, "recipe": {"a": "1"}, "environment": {"A": "1"}, "command": ("a",)}
    other = {"triton": ["sha256:" + "b" * 64], "recipe": {"a": "2"}, "environment": {"A": "2"}, "command": ("b",)}
    for changed, value in other.items():
        assert Naming(found, **same).inputs(rule) != Naming(found, **{**same, changed: value}).inputs(rule), changed


WORKER = """
import json, os, sys

class _Modules:
    _root = ""
    def load(self, root, source):
        return sorted(sys.modules), list(sys.path)

def serve():
    modules = _Modules()
    loaded, path = modules.load(sys.argv[3], "k.py")
    import shadowed
    print(json.dumps({"loaded": loaded, "path": path, "cwd": os.getcwd(), "shadowed": shadowed.__file__}))
    try:
        modules.load("/elsewhere", "k.py")
    except ValueError:
        return 0
    return 1
"""


def test_the_sources_are_last_on_the_module_path(tmp_path: Path) -> None:
    """No file of the sources runs before a worker loads it."""
    files = {"sitecustomize.py": "raise SystemExit(9)\n", "json.py": "raise SystemExit(9)\n", "shadowed.py": ""}
    recipe = tree(tmp_path / "recipe", {"worker.py": WORKER, "start.py": START.read_text()})
    first = tree(tmp_path / "first", {"shadowed.py": ""})
    sources = tree(tmp_path / "sources", files)
    program = f"""
import runpy, sys
sys.path[0] = {str(recipe)!r}
module = runpy.run_path({str(recipe / "start.py")!r})
sys.argv += [{str(sources)!r}]  # the root, which a real worker gets with a task
sys.exit(module["main"](sys.argv[1:3]))
"""
    command = [sys.executable, "-c", program, str(first), str(sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=sources, env={"PATH": os.defpath})
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["cwd"] == "/"
    assert said["path"][0] == str(first)
    assert said["path"][-2:] == [str(sources), str(sources)]
    assert str(recipe) not in said["path"]
    assert said["shadowed"].startswith(str(first))
