"""Files of any place that may hold compiled kernels: folders, archives, wheels, single files, images."""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Self, cast

from toolchain.core import strict_json
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, HostileInputError, SourceError
from toolchain.core.filesystem import read_regular
from toolchain.core.tar_headers import CheckedHeader, require
from toolchain.kernels import oci_store
from toolchain.oci import descriptor as media
from toolchain.oci.compressed import DAMAGED, unpacked
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import are_files, read_files
from toolchain.oci.layout import Layout
from toolchain.oci.places import open_place
from toolchain.oci.reference import parse
from toolchain.sources.unpack import decompressed
from toolchain.stages.wheel_archive import open_wheel

# The path of a file in its place, and its content when it is requested: files of a tar come in its order, once.
File = tuple[str, Callable[[], bytes]]
LARGEST = 8 << 30  # bytes of a file that is read
_FILE = re.compile(r".+\.(?:hsaco|co|aks2|zip|ptx|whl|so)")
_TAR = re.compile(r".+\.(?:tar(?:\.\w+)?|tgz|txz)")
_AGAIN = "get it again from whoever made it"


class _Member(CheckedHeader):
    """tarfile takes a damaged header for the end; the rest would be silently missing."""

    @classmethod
    def look(cls, block: bytes, read: Callable[[], Self]) -> Self:
        try:
            return read()
        except tarfile.HeaderError as error:
            if any(block):
                raise tarfile.ReadError(f"a header is damaged: {error}") from error
            raise


class _Files:
    """Files that can be read more than once."""

    def __init__(self, start: Callable[[], Iterator[File]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[File]:
        return self._start()


@contextlib.contextmanager
def opened(what: str, cache: Cache) -> Iterator[Iterable[File]]:
    """The files of a place, which can be read more than once.

    Args:
        what: a folder, a file, the name of an image in the cache, or a reference.

    Raises:
        ConfigError: there is nothing of that name.
        SourceError, UntrustedError, HostileInputError: it cannot be read.
    """
    path = Path(what)
    if os.path.lexists(path):
        with reading(what):
            yield _Files(lambda: local_files(path, path.name))
        return
    if what.startswith((".", "/", "~")) or _FILE.fullmatch(what) or _TAR.fullmatch(what):
        raise ConfigError(f"there is no {what}", fix="check the path")
    with tempfile.TemporaryDirectory(prefix="toolchain-kernels-") as scratch, reading(what):
        layout, images = images_of(what, cache, Path(scratch))
        yield _Files(lambda: (file for image in images for file in _image_files(layout, image)))


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn errors of reading a damaged file into a SourceError."""
    try:
        yield
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, *DAMAGED) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise SourceError(f"{what} cannot be read", why=why, fix=_AGAIN) from error


def local_files(path: Path, name: str) -> Iterator[File]:
    """The files of a folder, an archive or a wheel; any other file is the only one.

    Args:
        name: by which its kind is known.
    """
    if path.is_dir():
        yield from _folder_files(path)
    elif name.endswith(".whl"):
        with open_wheel(path) as archive:
            for row in archive.infolist():
                if not row.is_dir():
                    yield row.filename, _member(archive, row)
    elif _TAR.fullmatch(name):
        with path.open("rb", buffering=0) as packed, decompressed(path, packed) as stream:
            yield from _tar_files(stream, name)
    else:
        yield name, _regular(path, path.parent)


def _member(archive: zipfile.ZipFile, row: zipfile.ZipInfo) -> Callable[[], bytes]:
    return lambda: archive.read(row)


def _regular(path: Path, within: Path) -> Callable[[], bytes]:
    return lambda: read_regular(path, LARGEST, within=within)


def _folder_files(root: Path) -> Iterator[File]:
    real = root.resolve()
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            # Links out of the folder and pipes are skipped.
            if path.is_file() and path.resolve().is_relative_to(real):
                yield str(path.relative_to(root)), _regular(path, root)


def _tar_files(stream: Any, where: str) -> Iterator[File]:
    require()
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as tar:
        for member in tar:
            cast("Any", tar).members = []  # tarfile keeps every member for a look-up that a stream never makes
            if ".." in PurePosixPath(member.name).parts:
                raise HostileInputError(f"{where} holds the name {member.name!r}", fix=_AGAIN)
            if member.isreg() and (content := tar.extractfile(member)) is not None:
                yield member.name.removeprefix("./"), content.read


def images_of(what: str, cache: Cache, scratch: Path) -> tuple[Layout, Sequence[Descriptor]]:
    """The images of a name in the cache or of a reference, one for each architecture, and the layout that holds them.

    Raises:
        SourceError, ConfigError: there is none.
    """
    if "/" not in what and not what.startswith("oci:"):
        from toolchain.pipeline.images import named_images  # noqa: PLC0415 - brings the plan in

        layout = Layout(cache.images)
        return layout, [layout.resolve(record.manifest) for record in named_images(cache, [what])]
    with open_place(parse(what)) as place:
        layout, named = place.images(scratch)
    images = [image for row in named for image in layout.walk(row.image) if image.media_type in media.IMAGES]
    # An image may have several tags.
    return layout, list({image.digest: image for image in images}.values())


def _image_files(layout: Layout, image: Descriptor) -> Iterator[File]:
    if are_files(value := layout.read_json(image)):
        for file in read_files(value, image):
            yield from local_files(layout.blob(file.blob.digest), file.name)
        return
    layers = layout.children(image)[1:]
    if any(layer.media_type == oci_store.PACK for layer in layers):
        yield from _store_files(layout, layers)
        return
    for layer in layers:
        with unpacked(layout.blob(layer.digest), layer.media_type) as stream:
            yield from _tar_files(stream, layer.digest)


def _store_files(layout: Layout, layers: Sequence[Descriptor]) -> Iterator[File]:
    """A pack of a kernel store: results one after the other, and a list of their offsets."""
    listed, blob = layers
    rows = strict_json.read(layout.blob(listed.digest).read_bytes())["results"]
    with layout.blob(blob.digest).open("rb") as stream:
        for name, (offset, size, _, _) in rows.items():
            stream.seek(offset)
            content = stream.read(size)
            yield f"results/{name}", lambda content=content: content  # type: ignore[misc]
