"""Make folders that contain exactly the files from which the names of kernel results are computed."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

from toolchain.core import recipe
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import SourceError
from toolchain.core.filesystem import emptied, read_regular
from toolchain.kernels.reached import link_digest
from toolchain.kernels.result_name import Naming

_LARGEST_FILE = 1 << 30  # the maximum size of one source file in bytes
# This is the modification time of copied files and folders. It is constant, because a compile process can see it.
_TIME = 0


class FileSets:
    """A folder with copies of the files that compile processes of a campaign see. The folder is emptied first.

    A copy has the content that was hashed into the names of results. If a file has changed since then, SourceError is
    raised when it is copied. Threads may share an object of this class.
    """

    def __init__(self, naming: Naming, folder: Path) -> None:
        self._naming = naming
        self._folder = emptied(folder)
        self._lock = threading.Lock()
        self._made: set[str] = set()

    @property
    def recipe(self) -> Path:
        """The folder that contains the recipe's files that run with Triton, at their paths below the recipe root."""
        return self._copied("recipe", recipe.root(), self._naming.shared["recipe"])

    def sources(self, files: str) -> Path:
        """Return the folder that contains a set of source files (see `Naming.files`), at their paths below the tree."""
        return self._copied(f"sources-{files}", self._naming.folder, self._naming.content(files))

    def _copied(self, name: str, top: Path, digests: Mapping[str, str]) -> Path:
        folder = self._folder / name
        with self._lock:
            if name not in self._made:
                shutil.rmtree(folder, ignore_errors=True)  # an earlier copy may have failed
                folder.mkdir()
                for path, digest in digests.items():
                    _copy(top, path, folder / path, digest)
                for place, _, _ in os.walk(folder):
                    os.utime(place, (_TIME, _TIME))
                self._made.add(name)
        return folder


def _copy(top: Path, path: str, target: Path, digest: str) -> None:
    """Copy a file or a link; raise SourceError if its content does not match `digest` (see `Reach.whole`)."""
    source = top / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink() and digest == link_digest(source):
        target.symlink_to(source.readlink())
        os.utime(target, (_TIME, _TIME), follow_symlinks=False)
        return
    content = read_regular(source, _LARGEST_FILE, within=top)
    if sha256_bytes(content) != digest:
        raise SourceError(
            "source-changed",
            f"{source} was changed while its kernels were compiled",
            why="the names of the results were computed from its earlier content",
            fix="run the command again",
        )
    target.write_bytes(content)
    target.chmod(0o644)
    os.utime(target, (_TIME, _TIME))
