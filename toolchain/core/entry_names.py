"""Checks of the file names in an untrusted archive."""

from __future__ import annotations

from toolchain.core.errors import HostileInputError

LONGEST_PART = 255  # bytes in one part of a path; the limit of common file systems
LONGEST_PATH = 4095  # bytes in a path; the limit of Linux
MOST = 1_000_000  # the maximum number of files and folders in an archive
_AGAIN = "download it again, or ask its author for a valid archive"


class EntryNames:
    """The names in one archive. Each must lead to a path below the target folder, and no two files may share a path.

    Args:
        printable: whether names must be printable and contain no backslash.
        ignore_case: whether two names that differ only in case conflict.
    """

    def __init__(self, archive: str, *, printable: bool = True, ignore_case: bool = False) -> None:
        self._archive = archive
        self._printable = printable
        self._ignore_case = ignore_case
        # Hashes are stored instead of names, because a million names would need much more memory.
        self._files: set[int] = set()
        self._folders: dict[int, int] = {}  # the hash of each folder's path in its first spelling, by `_key`
        self._last = ""

    def add(self, name: str, *, folder: bool = False) -> str:
        """Record a name, and return it without `.` parts, repeated slashes or a trailing slash.

        Raise a HostileInputError if the name is unsafe, too long, or in conflict with a name that was added before, or
        if the archive has too many files.
        """
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if name.startswith("/") or ".." in parts:
            raise self._refused("entry-escapes", name, "the file would be unpacked outside the target folder")
        if not parts and not folder:
            raise self._refused("entry-unnamed", name, "it is not the name of a file")
        if "\0" in name or (self._printable and ("\\" in name or not name.isprintable())):
            raise self._refused("entry-name-unsafe", name, "systems would interpret it differently")
        if _bytes(name) > LONGEST_PATH or any(_bytes(part) > LONGEST_PART for part in parts):
            why = f"file systems allow {LONGEST_PART} bytes in a name, and {LONGEST_PATH} in a path"
            raise self._refused("entry-name-too-long", name, why)
        if parts:
            self._place(name, parts, folder=folder)
        return "/".join(parts)

    def _place(self, name: str, parts: list[str], *, folder: bool) -> None:
        path = "/".join(parts)
        above = path.rpartition("/")[0]
        if above != self._last:  # most entries are in the same folder as the previous entry
            self._last = above
            while above:
                self._note_folder(name, above)
                above = above.rpartition("/")[0]
        if folder:
            self._note_folder(name, path)
            return
        key = self._key(path)
        if key in self._files:
            raise self._refused("entry-twice", name, "the archive contains this name twice")
        if key in self._folders:
            raise self._refused("entry-through-file", name, "a folder of the archive has the same name")
        self._files.add(key)
        self._check_count()

    def _note_folder(self, name: str, folder: str) -> None:
        key = self._key(folder)
        if key in self._files:
            raise self._refused(
                "entry-through-file", name, f"the archive contains {folder[:200]!r} as a file and as a folder"
            )
        if self._folders.setdefault(key, hash(folder)) != hash(folder):
            raise self._refused("entry-case", name, "the name of another folder differs from it only in case")
        self._check_count()

    def _check_count(self) -> None:
        if len(self._files) + len(self._folders) > MOST:
            raise HostileInputError(
                "archive-too-many-files", f"{self._archive} contains more than {MOST} files and folders", fix=_AGAIN
            )

    def _key(self, path: str) -> int:
        return hash(path.casefold() if self._ignore_case else path)

    def _refused(self, id: str, name: str, why: str) -> HostileInputError:
        shown = name if len(name) <= 200 else f"{name[:200]}…"
        return HostileInputError(id, f"{self._archive} contains the name {shown!r}", why=why, fix=_AGAIN)


def _bytes(name: str) -> int:
    return len(name.encode("utf-8", "surrogatepass"))
