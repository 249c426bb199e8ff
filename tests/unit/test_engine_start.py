"""buildah that does not start is started again; one that failed is not."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from toolchain.engine.storage import Storage
from toolchain.process import CommandError
from toolchain.settings import Cache

# Counts its calls in a file and fails the first N times with the given words.
PROGRAM = """
import pathlib, sys
count = pathlib.Path(sys.argv[1])
n = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(n))
if n <= int(sys.argv[2]):
    sys.exit(sys.argv[3])
print("done")
"""
BUSY = "Close_Fd sealing memfd copy: Device or resource busy"


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return Storage(Cache(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("failures", "words", "code", "calls"),
    [
        (0, BUSY, 0, 1),
        (2, BUSY, 0, 3),
        (9, BUSY, 1, 4),
        (1, "Error: no such image", 1, 1),
    ],
)
def test_starts(storage: Storage, tmp_path: Path, failures: int, words: str, code: int, calls: int) -> None:
    count = tmp_path / "count"
    argv = [sys.executable, "-c", PROGRAM, str(count), str(failures), words]
    result = storage.attempt(argv, check=False, capture=True)
    assert (result.returncode, int(count.read_text())) == (code, calls)
    assert result.stdout == ("done\n" if code == 0 else "")


def test_a_failure_is_told(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="exited with 1") as caught:
        storage.attempt([sys.executable, "-c", PROGRAM, str(tmp_path / "count"), "9", "Error: broken"])
    assert "Error: broken" in caught.value.why
