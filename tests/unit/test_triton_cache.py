"""Tests of Triton caches that the real Triton compiles ahead of time, and of kernels that Triton misses in them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.refusals import refused
from tests.triton_cache_fixtures import CALLS, FOUR, Cache, cache, call, command, environment, made
from toolchain.core import cache as places
from toolchain.core.errors import KernelError
from toolchain.kernels.cache_entries import LAUNCHES, entry_folder, lay_out
from toolchain.kernels.cache_image import require_hit
from toolchain.kernels.calls import Call, by_gpu, in_orders
from toolchain.request.model import Request
from toolchain.stages import kernel_workers, triton_cache
from toolchain.stages.triton_cache import _not_served, _require_any, _require_compiled, _unpack

__all__ = ["cache"]  # the fixture

pytest.importorskip("triton")


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


# Kernels that Triton misses in a new process, which `require_hit` reports beforehand where it can.


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
