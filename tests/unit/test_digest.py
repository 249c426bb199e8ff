"""digest.write_atomically under several threads."""

from __future__ import annotations

import threading
from pathlib import Path

from toolchain.core.digest import write_atomically


def test_threads_that_write_the_same_file_leave_one_whole_file_and_no_partial(tmp_path: Path) -> None:
    path, failures = tmp_path / "file", []
    start = threading.Barrier(8)

    def write(number: int) -> None:
        start.wait()
        try:
            for _ in range(20):
                write_atomically(path, bytes([number]) * 5000)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    content = path.read_bytes()
    assert content == content[:1] * 5000
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
