"""A Triton cache that the real Triton compiled from the calls of a small wheel, and its image."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.kernel_fixtures import local_executor
from toolchain.core.process import piped
from toolchain.core.recipe import root
from toolchain.kernels.cache_entries import LAUNCHES, Entry, entry_folder, labels, lay_out, write_manifest
from toolchain.kernels.cache_image import TritonCache, read_cache
from toolchain.kernels.calls import Call, Outcome, rule_of
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
from toolchain.stages.triton_cache import outcomes_of

TESTS = Path(__file__).resolve().parent
CALLS = root() / "containerfiles/triton-cache/calls.py"


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
        shard = shard_of(RuleSet(tuple(rules(calls, lds)), len(calls)), part, shared, {})
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
