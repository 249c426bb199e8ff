"""digest.write_atomically under several threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from toolchain.core.digest import write_atomically


def test_threads_that_write_the_same_file_leave_one_whole_file_and_no_partial(tmp_path: Path) -> None:
    path = tmp_path / "file"
    start = threading.Barrier(8)

    def write(number: int) -> None:
        start.wait()
        for _ in range(20):
            write_atomically(path, bytes([number]) * 5000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    content = path.read_bytes()
    assert content == content[:1] * 5000
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
