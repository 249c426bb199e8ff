"""Tests of Triton caches that the real Triton compiles ahead of time, and of their images for MCV.

In a test whose name says "missed", Triton looks for the kernels in a new process.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernel_fixtures import local_executor
from tests.refusals import refused
from toolchain.core import cache as places
from toolchain.core.errors import (
    ContractError,
    DigestError,
    KernelError,
    UnsupportedError,
)
from toolchain.core.process import piped
from toolchain.core.recipe import root
from toolchain.kernels.cache_entries import (
    LAUNCHES,
    Entry,
    dummy_key,
    entry_folder,
    key_label,
    labels,
    lay_out,
    write_manifest,
)
from toolchain.kernels.cache_image import TritonCache, read_cache, require_hit
from toolchain.kernels.calls import Call, Outcome, by_gpu, calls_of, in_orders, listed, rule_of
from toolchain.kernels.campaign import run_campaign
from toolchain.kernels.ledger import Ledger
from toolchain.kernels.rules import Rule, RuleSet
from toolchain.kernels.shards import shard_of
from toolchain.kernels.shared import SharedResults
from toolchain.kernels.worker_process import MakeWorker
from toolchain.oci import labels as names
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import ImageSpec, add_layer, write_image
from toolchain.oci.layer import compress, write_layer
from toolchain.oci.layout import Layout
from toolchain.request.model import Request
from toolchain.stages import kernel_workers, triton_cache
from toolchain.stages.triton_cache import _not_served, _require_any, _require_compiled, _unpack, outcomes_of

TESTS = Path(__file__).resolve().parents[1]
CALLS = root() / "containerfiles/triton-cache/calls.py"
pytest.importorskip("triton")


def call(direction: str, dtype: str = "bf16", seq: int = 128) -> Call:
    return Call(gpu="gfx942", rows=({"direction": direction, "dtype": dtype, "seq": seq},))


FOUR = [call(direction, dtype) for direction in ("forward", "backward") for dtype in ("bf16", "fp16")]


def command(lds: int = 65536) -> list[str]:
    return [sys.executable, os.fspath(CALLS), "gfx942", str(lds), "small_calls"]


def environment(cache: Path, **more: str) -> dict[str, str]:
    paths = os.pathsep.join([*filter(None, [more.pop("site", "")]), os.fspath(TESTS / "standin_wheel")])
    return {**os.environ, "PYTHONPATH": paths, "TRITON_CACHE_DIR": os.fspath(cache), **more}


def starting(folder: Path) -> MakeWorker:
    """Return a function that starts a worker as the stage does; the Triton of the worker writes to `folder/made`."""

    def start(_files: str, _out: Path) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
        launches = folder / "made" / LAUNCHES
        launches.mkdir(parents=True, exist_ok=True)
        more = {"TRITON_STORE_BINARY_ONLY": "1", "CALLS_LAUNCHES": os.fspath(launches)}
        return piped(
            [sys.executable, os.fspath(CALLS.with_name("worker.py"))], env=environment(folder / "made", **more)
        )

    return start


def rules(calls: Sequence[Call], lds: int = 65536) -> list[Rule]:
    return [replace(rule_of(one, "small_calls"), options=(("lds", lds),)) for one in calls]


def made(
    calls: Sequence[Call], folder: Path, *, lds: int = 65536, count: Callable[[int, int, str], None] | None = None,
    shared: SharedResults | None = None, part: tuple[int, int] | None = None,
) -> tuple[list[Outcome], Mapping[str, Any]]:  # fmt: skip
    """Compile calls, or with `part` those of a shard, and return their outcomes and the workers' facts about Triton."""
    with Ledger(folder / "calls.sqlite") as ledger:
        executor = local_executor(starting(folder), workers=1)
        shard = shard_of(RuleSet(tuple(rules(calls, lds)), len(calls)), part, shared)
        result = run_campaign(
            shard.rules, executor, ledger, folder, worker_tree=os.fspath(TESTS / "standin_wheel"), keep_going=True,
            on_count=count, shared=shared,
        )  # fmt: skip
        shard.finish(shared, result.entries)
    return outcomes_of(result, calls, folder)


@dataclass(frozen=True)
class Cache:
    """A cache of four kernels, as a folder and as an image."""

    outcomes: list[Outcome]
    about: Mapping[str, Any]
    entries: list[Entry]
    folder: Path

    @property
    def mount(self) -> Path:
        """Return the path at which Triton uses the cache."""
        return self.folder / "mount"

    @property
    def tree(self) -> Path:
        """Return the folder that becomes the layer of the image."""
        return self.folder / "tree"

    def labels(self) -> dict[str, str]:
        """Return the labels that the stage writes."""
        return {
            **labels(self.entries),
            names.CACHE_MOUNT: os.fspath(self.mount),
            names.CACHE_TRITON_KEY: f"sha256:{self.about['triton_key']}",
            names.CACHE_TRITON_PATH: self.about["path"],
            names.CACHE_CALLS: json.dumps([outcome.call.name for outcome in self.outcomes]),
        }

    def read(self) -> TritonCache:
        """Write an image, and return the cache that `read_cache` reads from it."""
        return read_cache(*image(self.folder / "image", self.tree, self.labels()))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    folder = tmp_path_factory.mktemp("cache")
    outcomes, about = made(FOUR, folder)
    assert [outcome.entry.reason for outcome in outcomes] == [""] * 4
    kernels = [(outcome.call.gpu, *kernel) for outcome in outcomes for kernel in outcome.kernels]
    # The layer must contain neither the remains of an interrupted compile nor an entry that belongs to no call.
    (folder / "made" / entry_folder(kernels[0][2]) / "tmp.pid_7_0").mkdir()
    (folder / "made" / entry_folder("00" * 32)).mkdir()
    entries = lay_out(folder / "made", kernels, folder / "tree", os.fspath(folder / "mount"))
    write_manifest(entries, folder / "tree", about["mcv_key"])
    shutil.copytree(folder / "tree/io.triton.cache", folder / "mount")
    return Cache(outcomes, about, entries, folder)


def image(folder: Path, tree: Path, labels: Mapping[str, str], *, packed: str = "gzip") -> tuple[Layout, Descriptor]:
    """Write an image of one layer to a new layout, and return both."""
    shutil.rmtree(folder, ignore_errors=True)
    layout = Layout(folder / "layout").ensure()
    layer = write_layer(tree, folder / "layer.tar")
    blob = compress(layer, folder / "blob", packed)  # type: ignore[arg-type]
    spec = ImageSpec(arch="amd64", layers=(add_layer(layout, blob),), labels=labels)
    manifest = write_image(layout, spec)
    layout.tag(manifest, "cache")
    return layout, manifest


def looked_for(cache: Path, folder: Path, calls: Sequence[Call] = FOUR[:1], **env: str) -> tuple[Any, list[bool]]:
    """Return the facts about Triton in a new process, and for each kernel whether it was in the cache."""
    file = folder / "calls.jsonl"
    file.write_text("".join(json.dumps(call_.task(call_.name)) + "\n" for call_ in calls))
    done = subprocess.run([*command(), file], env=environment(cache, **env), capture_output=True, text=True, check=True)
    about, *answers = map(json.loads, done.stdout.splitlines())
    return about, [kernel["hit"] for answer in answers for kernel in answer["kernels"]]


def copied(cache: Cache, tmp_path: Path) -> Path:
    """Return a copy of the cache, because Triton writes the kernels that it misses."""
    return Path(shutil.copytree(cache.mount, tmp_path / "copy"))


def test_cache_folder_has_only_the_files_of_four_kernels(cache: Cache) -> None:
    assert len(cache.entries) == 4
    files = sorted(path.relative_to(cache.mount) for path in cache.mount.rglob("*") if path.is_file())
    assert {path.name.rpartition(".")[2] for path in files} == {"hsaco", "json", "source"}
    assert len(files) == 4 * 5
    launches = [json.loads(path.read_text()) for path in cache.mount.rglob("delta.launch.json")]
    assert {(launch["source"], launch["arch"]) for launch in launches} == {("small_wheel.py", "gfx942")}
    assert [["x", "*bf16"], ["y", "*bf16"], ["count", "i32"]] in [launch["signature"] for launch in launches]
    (row,) = by_gpu(cache.outcomes)
    assert [row[name] for name in ("calls", "kernels", "entries", "failed", "refused")] == [4, 4, 4, 0, 0]


def test_a_second_process_compiles_nothing(cache: Cache, tmp_path: Path) -> None:
    about, hits = looked_for(cache.mount, tmp_path, FOUR)
    assert hits == [True] * 6
    content = cache.read()
    require_hit(content, about)
    assert (content.entries, content.targets, len(content.calls)) == (4, ("gfx942",), 4)


def test_order_of_calls_in_a_process_changes_their_keys(tmp_path: Path) -> None:
    """Two kernels share a function with a global constant, so Triton's key of one depends on the other."""
    calls = [call("tanh"), call("sigmoid")]
    outcomes, _ = made(calls, tmp_path)
    alone = {kernel for outcome in outcomes for kernel in outcome.kernels}
    ordered, _ = made(in_orders(outcomes), tmp_path)
    others = {kernel for outcome in ordered for kernel in outcome.kernels} - alone
    assert (len(alone), sorted(name for name, _ in others)) == (2, ["sigmoid", "tanh"])


def test_refused_calls_are_distinguished_from_failed_calls(tmp_path: Path) -> None:
    calls = [call("forward", "fp8"), call("broken"), call("wide", "fp16", 64)]
    unable, broken, large, absent = made([*calls, call("absent")], tmp_path, lds=4096)[0]
    assert (absent.refused, absent.entry.reason) == (False, "ModuleNotFoundError: No module named 'nowhere_at_all'")
    assert (unable.refused, unable.entry.reason) == (True, "RuntimeError: this device does not support fp8")
    assert (broken.refused, large.refused) == (False, False)
    assert "CompilationError" in broken.entry.reason
    assert "Hardware limit: 4096" in large.entry.reason
    with refused("kernels-failed"):
        _require_compiled([unable, broken, large], keep_going=False)
    with refused("wheel-refuses-calls"):
        _require_any([unable])
    with refused("kernels-failed"):
        _require_any([unable, broken])


def test_a_repeated_call_must_succeed_with_all_its_kernels_from_the_cache(cache: Cache) -> None:
    row = next(outcome for outcome in cache.outcomes if outcome.kernels)
    hits = [{"name": name, "hash": hash_, "hit": True} for name, hash_ in row.kernels]
    good = {"status": "done", "reason": "", "kernels": hits}
    assert _not_served([row], {row.call.name: good}) == ""
    for bad in (
        {},
        {row.call.name: {**good, "status": "failed"}},
        {row.call.name: {**good, "kernels": [*hits[1:], {**hits[0], "hit": False}]}},
        {row.call.name: {**good, "kernels": hits[1:]}},
    ):
        assert _not_served([row], bad)


def test_damaged_cache_entry_is_refused(cache: Cache, tmp_path: Path) -> None:
    gpu, (name, hash_) = "gfx942", cache.outcomes[0].kernels[0]
    for lost in (f"__grp__{name}.json", f"{name}.hsaco", f"../{LAUNCHES}/{hash_}.json"):
        broken = Path(shutil.copytree(cache.folder / "made", tmp_path / Path(lost).name / "made"))
        (broken / entry_folder(hash_) / lost).unlink()
        with refused("cache-entry-damaged"):
            lay_out(broken, [(gpu, name, hash_)], tmp_path / Path(lost).name / "tree", "/mount")
    with refused("cache-entry-damaged"):
        lay_out(cache.folder / "made", [("gfx1100", name, hash_)], tmp_path / "other", "/mount")
    for linked in (entry_folder(hash_), LAUNCHES):
        outside = Path(shutil.copytree(cache.folder / "made", tmp_path / linked / "made")) / linked
        outside.symlink_to(outside.rename(tmp_path / linked / "moved"))
        with refused("cache-entry-damaged", "leads out of"):
            lay_out(outside.parent, [(gpu, name, hash_)], tmp_path / linked / "tree", "/mount")


@pytest.mark.parametrize("fresh", [False, True])
def test_fresh_drops_a_damaged_entry(
    cache: Cache, tmp_path: Path, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, (name, hash_) = Path(shutil.copytree(cache.folder, tmp_path / "out")), cache.outcomes[0].kernels[0]
    (out / "made" / entry_folder(hash_) / f"{name}.hsaco").write_bytes(b"")
    monkeypatch.setattr(triton_cache, "layer_digests", lambda *_: [])
    monkeypatch.setattr(kernel_workers, "compile_setup", lambda *_, **__: None)
    request = Request(cache=places.Cache(tmp_path / "cache"), fresh=fresh)
    workspace: Any = SimpleNamespace(request=request, cache=request.cache, image_to_run=str)
    built: Any = SimpleNamespace(planned=SimpleNamespace(name="flash-attn"))
    triton_cache.compile_setup(built, out, workspace)
    _unpack(cache.outcomes, out)
    with contextlib.nullcontext() if fresh else pytest.raises(KernelError):
        lay_out(out / "made", [("gfx942", name, hash_)], tmp_path / "tree", "/mount")


# Tests of kernels that Triton misses, which `require_hit` reports beforehand where it can.


def test_kernel_of_another_sequence_length_is_a_cache_miss(cache: Cache, tmp_path: Path) -> None:
    _, hits = looked_for(copied(cache, tmp_path), tmp_path, [call("backward", seq=256)])
    assert hits == [False, True]  # the second kernel does not depend on the length


def test_set_variable_causes_a_cache_miss(cache: Cache, tmp_path: Path) -> None:
    """The variable is set to its default value."""
    about, hits = looked_for(cache.mount, tmp_path, AMDGCN_USE_BUFFER_OPS="1")
    with refused("cache-variables-set"):
        require_hit(cache.read(), about)
    assert hits == [False]


def test_another_triton_causes_a_cache_miss(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "site/triton").mkdir(parents=True)
    for path in Path(cache.about["path"]).iterdir():
        (tmp_path / "site/triton" / path.name).symlink_to(path)
    (tmp_path / "site/triton/language").unlink()
    shutil.copytree(Path(cache.about["path"], "language"), tmp_path / "site/triton/language")
    with (tmp_path / "site/triton/language/math.py").open("a") as stream:
        stream.write("# another\n")
    about, hits = looked_for(copied(cache, tmp_path), tmp_path, site=os.fspath(tmp_path / "site"))
    with refused("cache-other-triton"):
        require_hit(cache.read(), about)
    assert hits == [False]


def test_moved_cache_causes_a_cache_miss(cache: Cache, tmp_path: Path) -> None:
    shutil.copytree(cache.mount, tmp_path / "elsewhere")
    cache.mount.rename(tmp_path / "gone")  # while this folder exists, Triton finds the files that the groups name
    try:
        about, hits = looked_for(tmp_path / "elsewhere", tmp_path)
    finally:
        (tmp_path / "gone").rename(cache.mount)
    with refused("cache-other-folder"):
        require_hit(cache.read(), about)
    assert hits == [False]


# The format of MCV.


def test_dummy_key_equals_that_of_mcv() -> None:
    """The expected key was computed with sha256sum from the parts that the source of MCV names."""
    metadata = {"target": {"backend": "hip", "arch": "gfx942", "warp_size": 64}, "num_stages": 1, "num_warps": 4}
    assert (
        dummy_key(metadata, "unknown-triton-key") == "bf30a07105e04b07961aa66e0afc0ac3f1ee6155acf33e3c928166de4bafd2fd"
    )


def test_cache_of_an_old_triton_needs_a_label_with_its_key(cache: Cache, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(cache.tree, tmp_path / "tree"))
    shutil.rmtree(tree / "io.triton.manifest")
    write_manifest(cache.entries, tree, "3.4.0-abc")
    old = {**cache.labels(), **key_label("3.4.0-abc")}
    assert read_cache(*image(tmp_path / "image", tree, old)).entries == len(cache.entries)
    assert key_label(cache.about["mcv_key"]) == {}
    for other in ({}, key_label("3.4.0-other")):
        with refused("cache-mcv-unfit"):
            read_cache(*image(tmp_path / f"image{len(other)}", tree, cache.labels() | other))


Damage = Callable[[Path, dict[str, str]], object]


def append(name: str, text: str) -> Damage:
    return lambda tree, _: next(tree.rglob(name)).write_text(next(tree.rglob(name)).read_text() + text)


def swap(name: str, old: str, new: str) -> Damage:
    return lambda tree, _: next(tree.rglob(name)).write_text(next(tree.rglob(name)).read_text().replace(old, new))


def no_paths(group: Path) -> None:
    """Write a group of the same size whose paths are a number."""
    group.write_text(f'{{"child_paths":5{" " * (group.stat().st_size - 17)}}}')


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (append("scale.source", " "), "cache-size-bytes is wrong"),
        (lambda _, labels: labels.update({"cache.triton.image/entry-count": "5"}), "entry-count is wrong"),
        (lambda _, labels: labels.pop("cache.triton.image/entry-count"), "this image is not a Triton cache"),
        (swap("manifest.json", "gfx942", "gfx950"), "its manifest does not match"),
        (swap("manifest.json", '"dummy_key":"', '"dummy_key":"0'), "its manifest does not match"),
        (swap("delta.json", '"gfx942"', '"gfx940"'), "names other GPUs"),
        (swap("__grp__delta.json", "/mount/", "/other/"), "is not for"),
        (swap("__grp__delta.json", "delta.source", "delta.others"), "names other files"),
        (lambda tree, _: next(tree.rglob("scale.json")).parent.rename(tree / "io.triton.cache/ABC"), "does not look"),
        (lambda tree, _: (tree / "README").write_text("here"), "that MCV does not extract"),
        (lambda tree, _: (tree / "io.triton.cache/link").symlink_to("/etc/passwd"), "does not extract"),
        (lambda tree, _: (tree / "io.triton.manifest/manifest.json").write_text("{"), "cannot be read"),
        (lambda tree, _: (tree / "io.triton.manifest/manifest.json").write_text('{"triton":5}'), "cannot be read"),
        (lambda tree, _: no_paths(next(tree.rglob("__grp__delta.json"))), "__grp__delta.json cannot be read"),
        (lambda _, labels: labels.update({names.CACHE_CALLS: "junk"}), "list of calls cannot be read"),
        (lambda _, labels: labels.update({names.CACHE_CALLS: "[5]"}), "list of calls cannot be read"),
        (lambda _, labels: labels.update({names.CACHE_CALLS: '["gfx1151/a"]'}), "list of calls cannot be read"),
    ],
)
def test_error_names_the_broken_rule_of_an_image(cache: Cache, tmp_path: Path, damage: Damage, what: str) -> None:
    tree = Path(shutil.copytree(cache.tree, tmp_path / "tree"))
    labels = cache.labels()
    damage(tree, labels)
    with pytest.raises(ContractError) as raised:
        read_cache(*image(tmp_path / "image", tree, labels))
    assert what in str(raised.value)


@pytest.mark.parametrize("packed", ["none", "zstd"])
def test_layer_with_another_compression_is_refused(cache: Cache, tmp_path: Path, packed: str) -> None:
    if packed == "zstd" and shutil.which("zstd") is None:
        pytest.skip("zstd is not installed: apt-get install zstd")
    with refused("cache-mcv-unfit"):
        read_cache(*image(tmp_path, cache.tree, cache.labels(), packed=packed))


@pytest.mark.parametrize("wheel", ["vllm", "aiter"])
def test_module_has_exactly_the_functions_in_the_table_of_calls(wheel: str) -> None:
    table = calls_of(wheel)
    tree = ast.parse((CALLS.parent / f"{table.module}.py").read_text())
    (made_,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_FUNCTIONS"
    ]
    assert isinstance(made_, ast.Dict)
    names_ = [ast.literal_eval(key) for key in made_.keys if key is not None]
    assert sorted(names_) == sorted({name for row in table.call for name in row["function"]})


# The list of calls.


@pytest.mark.parametrize("ask", [lambda: calls_of("torch"), lambda: listed(calls_of("flash-attn"), ["gfx90a"])])
def test_unlisted_wheel_or_gpu_is_refused(ask: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedError):
        ask()


def test_a_layer_with_other_bytes_than_its_digest_is_refused(cache: Cache, tmp_path: Path) -> None:
    layout, manifest = image(tmp_path / "image", cache.tree, cache.labels())
    _, layer = layout.children(manifest)
    blob = layout.blob(layer.digest)
    content = bytearray(blob.read_bytes())
    content[9] ^= 1  # the OS byte of gzip's header, which does not change the unpacked bytes
    blob.write_bytes(content)
    with pytest.raises(DigestError):
        read_cache(layout, manifest)


def test_worker_exits_with_the_code_of_calls_that_ended_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("triton_cache_worker", CALLS.with_name("worker.py"))
    assert spec is not None
    assert spec.loader is not None
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    (tmp_path / "calls.py").write_text("print('{}', flush=True)\nraise SystemExit(7)\n")
    monkeypatch.setattr(worker, "CALLS", tmp_path / "calls.py")
    caller = worker.Caller("gfx942", 65536, "module")
    os.waitid(os.P_PID, caller._process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(SystemExit, match="7"):
        caller.ask({})
    with contextlib.suppress(BrokenPipeError):
        caller._tasks.close()
    caller._answers.close()
