"""Keep a compiler cache small between runs: `trim FOLDER` before the build, `changed FOLDER` after it.

`trim` removes objects that were not used for some days, and then the least recently used objects until the rest is
small enough. It lists the remaining objects in a file. `changed` compares the cache with this list, and writes
`changed=true` or `changed=false` to the file that GITHUB_OUTPUT names, because a cache without new objects need not be
saved again. ccache touches the objects that it uses, and treats a removed object as missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_NOTE = ".objects-before"
_OWN = {"stats", "ccache.conf", "CACHEDIR.TAG", _NOTE}


def objects(folder: Path) -> dict[Path, os.stat_result]:
    """Return the status of each object in a cache, by path, or an empty dict if the folder does not exist."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in _OWN)
    return {path: path.stat() for path in files}


def trim(folder: Path, *, days: float, limit: int, now: float) -> tuple[int, int]:
    """Remove objects, list the remaining ones in a file, and return the numbers of kept and removed objects.

    An object is removed if it was not used for `days` days, or if it and all objects that were used after it take up
    more than `limit` bytes.
    """
    found = sorted(objects(folder).items(), key=lambda item: item[1].st_mtime, reverse=True)
    kept, size = [], 0
    for path, facts in found:
        size += facts.st_size
        if size > limit or facts.st_mtime < now - days * 86400:
            path.unlink()
        else:
            kept.append(path)
    if folder.is_dir():
        names = sorted(os.fspath(path.relative_to(folder)) for path in kept)
        (folder / _NOTE).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return len(kept), len(found) - len(kept)


def changed(folder: Path) -> bool:
    """Return whether the cache contains objects that the list of `trim` does not name."""
    note = folder / _NOTE
    before = set(note.read_text(encoding="utf-8").splitlines()) if note.is_file() else set()
    return any(os.fspath(path.relative_to(folder)) not in before for path in objects(folder))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["trim", "changed"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=float, default=14)
    parser.add_argument("--limit", type=float, default=4, help="maximum size in GB")
    given = parser.parse_args(argv)
    if given.verb == "trim":
        kept, removed = trim(given.folder, days=given.days, limit=int(given.limit * 1e9), now=time.time())
        print(f"compiler cache: {kept} files kept, {removed} removed")
        return 0
    answer = f"changed={str(changed(given.folder)).lower()}"
    print(answer)
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a", encoding="utf-8") as stream:
            stream.write(f"{answer}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
