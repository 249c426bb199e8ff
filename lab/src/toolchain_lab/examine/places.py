"""List the files of a place: a folder, an archive, a wheel, a file or an image."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.core.entry_names import EntryNames
from toolchain.core.errors import ConfigError, HostileInputError, SourceError, UntrustedError
from toolchain.core.filesystem import open_regular
from toolchain.core.process import CommandError
from toolchain.core.stored_file import StoredFile, on_disk
from toolchain.core.tar_headers import CheckedHeader, require
from toolchain.core.unpack_budget import UnpackBudget
from toolchain.core.zips import entry, open_wheel, open_zip
from toolchain.kernels.aks2 import MAGIC
from toolchain.oci import descriptor as media
from toolchain.oci.check import verify_layout
from toolchain.oci.compressed import DAMAGED
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import are_files, read_files
from toolchain.oci.layer_files import open_members
from toolchain.oci.layout import Layout
from toolchain.oci.layout_place import is_artifact, without_others
from toolchain.oci.places import open_place
from toolchain.oci.reference import parse
from toolchain.sources.unpack import decompressed

_FILE = re.compile(r".+\.(?:hsaco|co|aks2|zip|ptx|whl|so)")
_TAR = re.compile(r".+\.(?:tar(?:\.\w+)?|tgz|txz)")
# Triton first writes each file of its cache to a temporary folder with such a name.
_UNFINISHED = re.compile(r"(?:^|/)tmp\.pid_\d+_[^/]*/")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"  # the names of files that delete files of lower layers, or all in a folder
_LARGEST_HEADER = 1 << 20  # bytes; the limit for a header, such as a long name, that tarfile reads into memory
_AGAIN = "get it again from its publisher"


class _Member(CheckedHeader):
    """A tar header, for which an error is raised if it is damaged.

    Without this class, tarfile would take a damaged header for the end of the archive.
    """

    @classmethod
    def look(cls, block: bytes, read: Callable[[], Self]) -> Self:
        try:
            member = read()
        except tarfile.HeaderError as error:
            if any(block):
                raise tarfile.ReadError("a header is damaged") from error
            raise
        # The size is limited, because tarfile reads long names and attributes into memory.
        if member.size < 0 or (member.size > _LARGEST_HEADER and member.type not in tarfile.REGULAR_TYPES):
            raise tarfile.ReadError(f"a header has an impossible size: {member.size} bytes")
        return member


class Files:
    """The files of a place, which can be iterated several times.

    Args:
        start: a function that starts an iteration, and adds the skipped files to its argument.
        images: the digests of the images that contain the files; empty if the place is not an image.
    """

    def __init__(self, start: Callable[[Notes], Iterator[StoredFile]], images: Sequence[str] = ()) -> None:
        self._start = start
        self._notes = Notes()
        self.images = tuple(images)

    def __iter__(self) -> Iterator[StoredFile]:
        self._notes = Notes()
        return self._start(self._notes)

    def notes(self) -> list[str]:
        """Return a line for each kind of file that the last iteration skipped."""
        return self._notes.lines()


class Notes:
    """A record of the files of a place that were skipped."""

    def __init__(self) -> None:
        self._unfinished: set[str] = set()
        self._links: set[str] = set()

    def is_unfinished(self, path: str) -> bool:
        """Return whether a file is in an unfinished folder of Triton's cache; if it is, record the folder."""
        found = _UNFINISHED.search(path)
        if found is not None:
            self._unfinished.add(path[: found.end()].rstrip("/"))
        return found is not None

    def link(self, path: str) -> None:
        self._links.add(path)

    def lines(self) -> list[str]:
        """Return a line for each kind of skipped file."""
        kinds = (
            ("unfinished folder of Triton's cache was skipped", "unfinished folders of Triton's cache were skipped",
             self._unfinished),
            ("link out of the folder was not followed", "links out of the folder were not followed", self._links),
        )  # fmt: skip
        return [
            f"{len(paths)} {one if len(paths) == 1 else several}: {', '.join(sorted(paths)[:3])}"
            + (" …" if len(paths) > 3 else "")
            for one, several, paths in kinds
            if paths
        ]


@contextlib.contextmanager
def opened(what: str, cache: Cache) -> Iterator[Files]:
    """Yield the files of a place, as a context manager. The bytes of images are checked first.

    Args:
        what: a folder, a file, the name of an image in the cache, or the reference of an image.

    ConfigError or SourceError is raised if there is no such place, UntrustedError if the content of an image does not
    match its digests, and SourceError or HostileInputError if the place cannot be read or is malicious.
    """
    path = Path(what)
    if os.path.lexists(path):
        real = Path(os.path.realpath(path))
        if (real / "oci-layout").is_file():
            raise ConfigError(
                "nothing-compiled",
                f"{what} is an OCI layout",
                why="its files are the layers and manifests of images",
                fix=f"name its images: oci:{what}",
            )
        with reading(what):
            yield Files(lambda notes: local_files(real, path.name, notes))
        return
    if what.startswith((".", "/", "~")) or _FILE.fullmatch(what) or _TAR.fullmatch(what):
        raise ConfigError("path-missing", f"{what} does not exist", fix="check the path")
    with tempfile.TemporaryDirectory(prefix="toolchain-kernels-") as scratch, reading(what):
        try:
            layout, images = images_of(what, cache, Path(scratch))
        except (ConfigError, SourceError) as error:
            if error.id in {"image-not-found", "not-a-reference"}:
                error.what = f"there is no file or folder {what}, and {error.what}"
            raise
        for image in images:
            if faults := verify_layout(layout, image):
                why = "\n".join(fault.text for fault in faults[:5])
                raise UntrustedError(faults[0].id, f"the bytes of {what} do not match its digests", why=why)
        digests = [image.digest for image in images]
        yield Files(lambda notes: (file for image in images for file in _image_files(layout, image, notes)), digests)


def advice(what: str, kinds: str) -> str:
    """Return the advice for a place without compiled code; `kinds` names the places that may contain such code."""
    saved = f"; if it is a saved image: skopeo copy docker-archive:{shlex.quote(what)} oci:DIR"
    return f"name {kinds}" + (saved if _TAR.fullmatch(what) else "")


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Convert errors that damaged or unreadable files cause in the block to SourceError."""
    try:
        yield
    except (OSError, EOFError, tarfile.TarError, UnicodeDecodeError, RecursionError, *DAMAGED) as error:
        why = "it is damaged"
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        elif isinstance(error, tarfile.TarError | EOFError):
            why = "it is truncated, or is not an archive"
        elif isinstance(error, CommandError):
            why = str(error)
        raise SourceError(
            "archive-unreadable", f"{what} cannot be read", why=why, fix=f"check its permissions, or {_AGAIN}"
        ) from error


def local_files(path: Path, name: str, notes: Notes | None = None) -> Iterator[StoredFile]:
    """Yield the files in a folder, a wheel, or an archive that is not a pack; for any other file, yield only the file.

    Args:
        name: the name of the path, whose suffix determines what kind of file it is.
    """
    notes = notes or Notes()
    if path.is_dir():
        yield from _folder_files(path, notes)
    elif name.endswith(".whl"):
        with open_wheel(path) as archive:
            yield from _zip_files(archive, notes)
    elif name.endswith(".zip") and not _is_pack(path, name):
        with open_zip(path, name) as archive:
            yield from _zip_files(archive, notes)
    elif _TAR.fullmatch(name):
        # The file is read without a buffer, because a decompressor may get it as its standard input, and would
        # start at the offset to which the buffer has read.
        with open_regular(path) as regular, decompressed(cast("Any", regular).raw) as stream:
            packed = os.fstat(regular.fileno()).st_size
            yield from _tar_files(_Budgeted(stream, UnpackBudget(packed), name), name, notes)
    else:
        yield on_disk(path, name, path.parent)


def _is_pack(path: Path, name: str) -> bool:
    """Return whether a .zip contains an .aks2 file, or no file at all."""
    with open_zip(path, name) as archive:
        rows = [row for row in archive.infolist() if not row.is_dir()]
        return not rows or any(
            row.filename.endswith(".aks2") or entry(archive, row).head(len(MAGIC)) == MAGIC for row in rows
        )


def _zip_files(archive: zipfile.ZipFile, notes: Notes) -> Iterator[StoredFile]:
    for row in archive.infolist():
        if not row.is_dir() and not notes.is_unfinished(row.filename):
            yield entry(archive, row)


def _folder_files(root: Path, notes: Notes) -> Iterator[StoredFile]:
    """Yield the files in a folder.

    Links to files inside the folder are followed. Other links and unfinished folders are skipped.
    """
    real = root.resolve()
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted((*folders, *names)):
            path = Path(folder, name)
            within = str(path.relative_to(root))
            link = path.is_symlink()
            if link and not (path.exists() and path.resolve().is_relative_to(real)):
                notes.link(within)
            elif path.is_file() and not notes.is_unfinished(within):  # `is_file` skips pipes and devices
                file = on_disk(path, within, root)
                yield replace(file, target=str(path.resolve().relative_to(real))) if link else file


class _Budgeted:
    """A stream of a decompressed archive that raises an error if the budget is exceeded."""

    def __init__(self, stream: Any, budget: UnpackBudget, name: str) -> None:
        self._stream, self._budget, self._name = stream, budget, name

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes; raise HostileInputError if the archive unpacks to too many bytes."""
        content: bytes = self._stream.read(size)
        if not self._budget.takes(len(content)):
            raise HostileInputError("archive-bomb", f"{self._name} unpacks to more than 200 times its size", fix=_AGAIN)
        return content


def _tar_files(stream: Any, where: str, notes: Notes) -> Iterator[StoredFile]:
    require()
    names = EntryNames(where, printable=False)
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as tar:
        for member in tar:
            cast("Any", tar).members = []  # tarfile would otherwise keep every member in memory
            name = names.add(member.name, folder=member.isdir())
            if member.isreg() and not notes.is_unfinished(name):
                yield StoredFile(name, member.size, partial(_content, tar, member))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> BinaryIO:
    return cast("BinaryIO", tar.extractfile(member))


def images_of(what: str, cache: Cache, scratch: Path) -> tuple[Layout, Sequence[Descriptor]]:
    """Return a layout, and the images in it that are named by `what`, a name in the cache or a reference."""
    if "/" not in what and not what.startswith("oci:"):
        from toolchain.pipeline.finished_images import named_images  # noqa: PLC0415 - only names of images need it

        layout = Layout(cache.images)
        return layout, [layout.resolve(record.manifest) for record in named_images(cache, [what])]
    with open_place(parse(what)) as place:
        layout, content = place.images(scratch)
    named, others = without_others(layout, content)
    for other in others:
        console.note(f"not read, because it is not an image: {other.ref}")
    below = [image for row in named for image in layout.walk(row.image) if image.media_type in media.IMAGES]
    images = [image for image in below if not _is_attestation(layout, image)]
    # Duplicates are removed, because several tags may name the same image.
    return layout, list({image.digest: image for image in images}.values())


def _is_attestation(layout: Layout, image: Descriptor) -> bool:
    """Return whether a manifest is an attestation, which docker buildx lists in the index of its images."""
    return is_artifact(layout, image) and layout.children(image)[0].media_type != media.EMPTY


def _image_files(layout: Layout, image: Descriptor, notes: Notes) -> Iterator[StoredFile]:
    if are_files(value := layout.read_json(image)):
        for file in read_files(value, image):
            yield from local_files(layout.blob(file.blob.digest), file.name, notes)
        return
    hidden: set[int] = set()  # hashes, which need less memory, of the paths that the layers above replace or delete
    for layer in reversed(layout.children(image)[1:]):
        here: set[int] = set()
        for name, size, start in open_members(layout.blob(layer.digest), layer.media_type):
            folder, _, last = name.rpartition("/")
            if last.startswith(_WHITEOUT):
                gone = folder if last == _OPAQUE else f"{folder}/{last.removeprefix(_WHITEOUT)}".lstrip("/")
                here.add(hash(gone))
                continue
            here.add(hash(name))
            if hidden.isdisjoint(map(hash, _with_folders(name))) and not notes.is_unfinished(name):
                yield StoredFile(name, size, start)
        hidden |= here


def _with_folders(path: str) -> Iterator[str]:
    """Yield a path, the folders above it, and the empty path of the top folder."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield ""
