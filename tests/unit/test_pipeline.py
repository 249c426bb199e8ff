"""The plan and its execution: early refusals, work folders, locks and reuse of records."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock
from rich.console import Console

from tests.evidence_fixtures import finished_base, record
from tests.refusals import refused
from toolchain.core import process
from toolchain.core.cache import Cache
from toolchain.core.errors import (
    ContractError,
    DigestError,
    EngineError,
    UnreachableError,
)
from toolchain.engine import probe as engine_probe
from toolchain.engine import resources
from toolchain.engine.progress import Progress
from toolchain.oci import descriptor as media
from toolchain.oci.layout import Layout
from toolchain.pipeline import fetching as prefetch
from toolchain.pipeline import plan as planning
from toolchain.pipeline import run as pipeline
from toolchain.pipeline.fetching import Prefetch
from toolchain.pipeline.plan import find, plan
from toolchain.pipeline.records import write_record
from toolchain.pipeline.workspace import BuildWorkspace
from toolchain.request.model import Request
from toolchain.sources.mirrors import Mirror
from toolchain.sources.tree import Source
from toolchain.stages import mmdebstrap
from toolchain.stages.stage import Built, ContractCheck, LayerContent, Planned, Stage, Workspace

SOURCE = Source(
    name="llvm",
    kind="distro",
    where="llvm-toolchain-99",
    version="",
    digest=None,
    path=None,
    locked=False,
)


@dataclass
class Fake:
    """A stage whose build calls a Python function."""

    name: str
    planned: Callable[[], Planned]
    work: Callable[[Workspace], object] = lambda _: None
    built: list[Planned] = field(default_factory=list)

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:  # noqa: ARG002 - as in stages
        return self.planned()

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:  # noqa: ARG002
        self.built.append(planned)
        self.work(workspace)
        return Built(planned=planned, input_digest=str(planned.input_digest), manifest="", layers=())


def planned(name: str, **more: Any) -> Planned:
    return Planned(**{"name": name, "image": f"image-of-{name}", "inputs": {"stage": name}, **more})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Built]]:
    """Return a function that builds the given stages, whatever the target."""

    def build(*stages: Stage, offline: bool = False) -> list[Built]:
        for module in (planning, pipeline):
            monkeypatch.setattr(module, "stages_of", lambda target, request: stages)
        return pipeline.build(Request(cache=Cache(tmp_path / "cache"), offline=offline), "all")

    return build


def test_too_little_disk_for_later_stage_is_refused_before_first_build(
    run: Callable[..., list[Built]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "disk_free", lambda _: 6_000_000_000)
    dependencies = Fake("base", lambda: planned("base", disk=5_000_000_000))
    with refused("disk-too-small"):
        run(dependencies, Fake("llvm", lambda: planned("llvm", disk=14_000_000_000)))
    assert dependencies.built == []
    run(dependencies)
    assert len(dependencies.built) == 1


def test_missing_engine_is_refused_before_base_is_built(
    run: Callable[..., list[Built]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(_: object) -> None:
        raise EngineError("test-error", "buildah is not installed")

    monkeypatch.setattr(engine_probe, "probe", probe)
    dependencies = Fake("base", lambda: planned("base"))
    with pytest.raises(EngineError):
        run(dependencies, Fake("llvm", lambda: planned("llvm", engine=True)))
    assert dependencies.built == []
    run(dependencies)
    assert len(dependencies.built) == 1


@pytest.mark.parametrize(("contract", "told"), [(True, True), (False, False)])
def test_missing_emulator_is_refused_before_first_architecture_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contract: bool, told: bool
) -> None:
    """Otherwise the build of the second architecture would fail after hours of work on the first."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path))
    both = {arch: Fake("llvm", partial(planned, "llvm", inputs={"arch": arch})) for arch in ("amd64", "arm64")}
    for module in (planning, pipeline):
        monkeypatch.setattr(module, "stages_of", lambda target, request: (both[request.arch[0]],))
    request = Request(cache=Cache(tmp_path / "cache"), arch=("amd64", "arm64"), contract=contract)
    if told:
        with refused("qemu-missing", "qemu-aarch64-static"):
            pipeline.build(request, "llvm")
        assert [stage.built for stage in both.values()] == [[], []]
        pipeline.build(replace(request, arch=("amd64",)), "llvm")
    else:
        pipeline.build(request, "llvm")
        assert [len(stage.built) for stage in both.values()] == [1, 1]


def test_source_without_known_digest_is_fetched_before_build(
    run: Callable[..., list[Built]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the digest, a stage would be built for hours and could not be recorded."""
    known: list[str] = []
    monkeypatch.setattr(pipeline, "fetch_for", lambda _, source, **__: known.append(source.ref))
    # The prefetch fails, because the mirror does not answer.
    monkeypatch.setattr(prefetch, "fetch_for", refuse(UnreachableError("test-error", "the mirror does not answer")))

    def plan() -> Planned:
        source = replace(SOURCE, digest=f"sha256:{'a' * 64}" if known else None)
        return planned("llvm", inputs={"sources": source.digest} if known else None, sources=(source,))

    stage = Fake("llvm", plan)
    run(stage)
    assert known == [SOURCE.ref]
    assert [plan_.input_digest is None for plan_ in stage.built] == [False]


def refuse(error: Exception) -> Callable[..., None]:
    def fetch(*_: object, **__: object) -> None:
        raise error

    return fetch


def printing(workspace: Workspace, *, tenths: int) -> None:
    """Print a line every tenth of a second, as a long build does."""
    for _ in range(tenths):
        workspace.on_line("a package")
        time.sleep(0.1)


def test_prefetched_source_with_wrong_digest_aborts_the_running_stage(
    run: Callable[..., list[Built]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "fetch_for", refuse(DigestError("test-error", "llvm.tar has the wrong digest")))
    source = replace(SOURCE, digest=f"sha256:{'a' * 64}")

    dependencies = Fake("base", lambda: planned("base"), partial(printing, tenths=200))
    above = Fake("llvm", lambda: planned("llvm", sources=(source,)))
    with pytest.raises(DigestError, match="digest"):
        run(dependencies, above)
    assert above.built == []


@pytest.mark.parametrize("offline", [True, False])
def test_unavailable_source_aborts_an_offline_build(
    run: Callable[..., list[Built]], monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    """An online build continues, because the mirror may answer when the stage needs the source."""
    monkeypatch.setattr(prefetch, "fetch_for", refuse(UnreachableError("test-error", "it is not in the store")))
    source = replace(SOURCE, digest=f"sha256:{'a' * 64}")

    above = Fake("llvm", lambda: planned("llvm", sources=(source,)))
    stages = (Fake("base", lambda: planned("base"), partial(printing, tenths=10)), above)
    with refused("test-error") if offline else contextlib.nullcontext():
        run(*stages, offline=offline)
    assert bool(above.built) is not offline


def test_stages_without_input_digest_have_separate_work_folders(run: Callable[..., list[Built]]) -> None:
    places = []
    for image in ("toolchain-base-debian12", "toolchain-base-debian13"):
        row = planned("base", image=image, inputs=None)
        run(Fake("base", partial(replace, row), lambda workspace: places.append(workspace.work())))
    assert len(set(places)) == 2


def test_mmdebstrap_unpacks_in_the_work_folder_of_its_stage(
    tmp_path: Path, run: Callable[..., list[Built]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared folder would be unsafe, because it is emptied first and another base may be built meanwhile."""
    folders: list[str] = []
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    mirror = Mirror(site="http://mirror.invalid", login="user:secret", suite="stable", components=("main",), keyring="")
    monkeypatch.setattr("toolchain.sources.mirrors.apt_mirrors", lambda: [mirror])
    monkeypatch.setattr(process, "which", str)
    commands: list[list[str]] = []

    def called(argv: list[str], *, env: dict[str, str], **_: object) -> None:
        commands.append(argv)
        folders.append(env["TMPDIR"])
        assert env["http_proxy"] == "http://proxy.invalid:3128"
        assert "user:secret@" in Path(argv[-1]).read_text()

    monkeypatch.setattr(process, "run", called)

    def work(workspace: Workspace) -> None:
        mmdebstrap.run_mmdebstrap(
            workspace, tmp_path / "tar", suite="s", variant="v", packages=("p",), what="a base", options=()
        )
        assert Path(folders[-1]).parent == workspace.work()
        assert not any("secret" in word for word in commands[-1]), "it would stand in the log"

    run(Fake("base", lambda: planned("base", inputs=None), work))
    assert len(folders) == 1


def test_held_lock_is_refused_with_pid_of_its_holder(
    run: Callable[..., list[Built]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Fake("base", lambda: planned("base", inputs=None))
    locks = Cache(tmp_path / "cache").locks
    locks.mkdir(parents=True)
    with FileLock(locks / "base-image-of-base.lock"):
        monkeypatch.setenv("TOOLCHAIN_LOCK_TIMEOUT", "0.1")
        with refused("work-locked", os.getpid()):
            run(stage)
        for text in ("soon", "\u0663"):  # the second one is a decimal digit, but not in ASCII
            monkeypatch.setenv("TOOLCHAIN_LOCK_TIMEOUT", text)
            with refused("lock-timeout-invalid"):
                run(stage)
    assert stage.built == []
    monkeypatch.delenv("TOOLCHAIN_LOCK_TIMEOUT")
    run(stage)
    assert len(stage.built) == 1


def test_stage_is_planned_again_only_after_its_base_changes(run: Callable[..., list[Built]]) -> None:
    """A base without a digest before its build changes the inputs of the stages above, so they are planned again."""
    counted: list[str] = []

    def counting(name: str, resolved: Callable[[], bool] = lambda: True) -> Callable[[], Planned]:
        def plan() -> Planned:
            counted.append(name)
            return planned(name) if resolved() else planned(name, inputs=None)

        return plan

    run(Fake("base", counting("base")), Fake("llvm", counting("llvm")), Fake("triton", counting("triton")))
    assert counted == ["base", "llvm", "triton"]
    counted.clear()
    made: list[bool] = []
    base_ = Fake("base", counting("base", lambda: bool(made)), lambda _: made.append(True))
    run(base_, Fake("llvm", counting("llvm")))
    assert counted.count("llvm") == 2


def recorded(cache: Cache, row: Planned, **more: Any) -> None:
    """Record the row as if it had been built."""
    manifest = Layout(cache.images).ensure().put_json({"layers": []}, media.MANIFEST)
    about = {"stage": row.name, "image": row.image, "input_digest": row.input_digest, "manifest": manifest.digest}
    write_record(cache, record(**{**about, "request": {}, **more}))


def test_stage_built_without_its_contract_check_is_not_proved(tmp_path: Path) -> None:
    row, cache = planned("llvm", has_contract_check=True), Cache(tmp_path)
    recorded(cache, row, request={"contract": False})
    assert find(cache, row) is not None, "it can be published"
    assert find(cache, row, proved=True) is None
    assert find(cache, replace(row, has_contract_check=False), proved=True) is not None, (
        "a base has no contract to prove"
    )
    recorded(cache, row, request={"contract": True})
    assert find(cache, row, proved=True) is not None


def test_record_without_its_image_is_not_found(tmp_path: Path) -> None:
    row, cache = planned("llvm"), Cache(tmp_path)
    layout = Layout(cache.images).ensure()
    for gone in ("layer", "manifest", "record"):
        layer = layout.put_bytes(b"layer", media.LAYER)
        recorded(cache, row, layers=[layer.as_json()])
        built = find(cache, row)
        assert built is not None
        if gone == "record":
            cache.record(built.input_digest).write_text("{")
        else:
            layout.blob(layer.digest if gone == "layer" else built.manifest).unlink()
        assert find(cache, row) is None, gone


def test_a_layer_that_breaks_its_contract_is_not_recorded(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    dependencies, row, tree = finished_base(cache, tmp_path / "work"), planned("llvm"), tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("content")
    before = {path.name for path in (cache.images / "blobs" / "sha256").iterdir()}
    forgotten: list[str] = []
    engine: Any = SimpleNamespace(ensure_image=lambda *_: "candidate", forget_image=forgotten.append)

    def broken(_: str) -> dict[str, Any]:
        raise ContractError("test-error", "no mlir-tblgen")

    fetching = Prefetch(Request(cache=cache), [])
    with Progress("llvm", 1, 1, Console(file=io.StringIO())) as progress:
        workspace = BuildWorkspace(
            request=Request(cache=cache), log=tmp_path / "log", progress=progress, stage="t", prefetch=fetching,
            _engine=engine,
        )  # fmt: skip
        with pytest.raises(ContractError):
            workspace.finish(row, LayerContent(tree=tree), facts={}, check=ContractCheck(run=broken, on=dependencies))
    assert find(cache, row) is None
    assert not [name for name in Layout(cache.images).refs() if "llvm" in name]
    assert forgotten == ["candidate"]
    left = {path.name for path in (cache.images / "blobs" / "sha256").iterdir()} - before
    assert len(left) == 1, "the image's config; neither its layer nor its manifest"


def test_recorded_binary_needs_permission_in_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan does not know the findings of a scan, and the image is the same with and without the permission."""
    stage = Fake("llvm", lambda: planned("llvm"))
    for module in (planning, pipeline):
        monkeypatch.setattr(module, "stages_of", lambda target, request: (stage,))
    request = Request(cache=Cache(tmp_path))
    recorded(request.cache, planned("llvm"), binaries=["lib/x.o"])
    with refused("prebuilt-not-allowed", "lib/x.o"):
        pipeline.build(request, "llvm")
    (row,) = plan(request, "llvm")
    assert row.as_json()["binaries"] == ["lib/x.o"]
    (built,) = pipeline.build(replace(request, allow_binary=("lib/x.o",)), "llvm")
    assert built.reused
    assert stage.built == []


def test_base_built_by_another_call_meanwhile_is_reused(tmp_path: Path, run: Callable[..., list[Built]]) -> None:
    """The digest of the base is known only once it is built."""
    plans: list[int] = []

    def plan() -> Planned:
        plans.append(1)
        if len(plans) <= 2:  # planned with all stages, then alone before it has the lock
            return planned("base", inputs=None)
        recorded(Cache(tmp_path / "cache"), planned("base"))
        return planned("base")

    stage = Fake("base", plan)
    (built,) = run(stage)
    assert built.reused
    assert stage.built == []


def test_failing_program_is_reported_as_failed_build(run: Callable[..., list[Built]]) -> None:
    def work(_: Workspace) -> None:
        raise process.CommandError(["tar", "--extract"], 2, ["tar: no such file"])

    with refused("build-failed") as caught:
        run(Fake("llvm", lambda: planned("llvm"), work))
    assert "run: tar" not in caught.value.fix, "in a container that is gone"
