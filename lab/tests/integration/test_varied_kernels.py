"""The bytes of thirty kernels depend neither on the order of blocks on the heap nor on Python's hash seed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.tests.language_cases.all_cases import CASES, compile_cases
from toolchain.engine.variation import Variation

GPUS = ("gfx942", "gfx1100")


def compiled(folder: Path) -> dict[tuple[str, str], bytes | str]:
    """Return the bytes, or Triton's reason for a failure, of 15 kernels for each GPU, by GPU and name."""
    drawn = random.Random(54).sample(CASES, 15)
    with ThreadPoolExecutor(len(GPUS)) as pool:
        found = pool.map(lambda gpu: compile_cases(folder, gpu, drawn), GPUS)
        return {
            (gpu, name): result.read_bytes() if isinstance(result, Path) else result
            for gpu, results in zip(GPUS, found, strict=True)
            for name, result in results.items()
        }


def heap(folder: Path, seed: int) -> str:
    """Build the library that `reproduce --vary` preloads, and return its path."""
    Variation(seed).prepare(folder)
    environment = {"PATH": os.environ["PATH"], "SEED": str(seed), "DAYS": "1"}
    done = subprocess.run(["sh", "prepare.sh"], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert "heap" in done.stdout.splitlines(), done.stderr
    return str(folder / "heap.so")


def test_kernels_do_not_depend_on_addresses_or_hash_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = compiled(tmp_path / "usual")
    assert sum(isinstance(result, bytes) for result in usual.values()) == len(usual) == 30
    for seed in (1, 2, 3):
        monkeypatch.setenv("LD_PRELOAD", heap(tmp_path / f"heap{seed}", seed))
        monkeypatch.setenv("PYTHONHASHSEED", str(seed))
        ask = [sys.executable, "-c", "print(open('/proc/self/maps').read())"]
        assert "heap.so" in subprocess.run(ask, capture_output=True, text=True, check=True).stdout
        differing = [key for key, result in compiled(tmp_path / str(seed)).items() if result != usual[key]]
        assert not differing, differing
        monkeypatch.delenv("LD_PRELOAD")
