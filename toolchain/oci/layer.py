"""Write a tree or a tar as a layer with deterministic content, and compress it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Literal

from toolchain.core import process
from toolchain.core.amounts import tell
from toolchain.core.digest import CHUNK, EPOCH
from toolchain.core.errors import ConfigError, HostileInputError, SourceError
from toolchain.core.filesystem import NewFile
from toolchain.oci import descriptor as media
from toolchain.oci import tar
from toolchain.oci.deflate import GzipSink

Compression = Literal["none", "gzip", "zstd"]
LEVELS: dict[str, int] = {"none": 0, "gzip": 9, "zstd": 19}
MEDIA_TYPES: dict[str, str] = {"none": media.LAYER, "gzip": media.LAYER_GZIP, "zstd": media.LAYER_ZSTD}

_WHITEOUT = b".wh."


@dataclass(frozen=True)
class Layer:
    """An uncompressed layer: the digest, size in bytes and path of its tar."""

    diff_id: str
    size: int
    path: Path


@dataclass(frozen=True)
class Blob:
    """The blob of a layer: its digest, size in bytes, media type and path, and the digest of the layer's tar."""

    digest: str
    size: int
    media_type: str
    path: Path
    diff_id: str


class HashedFile(NewFile):
    """A new file whose bytes are hashed and counted while they are written.

    It is a context manager; the file gets its name when the block ends without an error.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path)
        self._hasher = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        """Return the digest `sha256:<hex>` of the content that has been written so far."""
        return f"sha256:{self._hasher.hexdigest()}"

    def write(self, data: bytes, /) -> None:
        self._hasher.update(data)
        self.size += len(data)
        self.stream.write(data)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self.finish(self.digest)
        finally:
            super().__exit__(kind, value, at)


def write_layer(tree: Path, out: Path, *, normalise: bool = True, first_id: int = 0, whiteouts: bool = False) -> Layer:
    """Write the content of the folder `tree` as a layer.

    Members are sorted by the bytes of their path and have the time `EPOCH`. Hard links point to the first of their
    names. All folders are members. A folder must not have the path of a symlink in a lower layer, such as `/lib64`,
    because container engines would replace the symlink with the folder. HostileInputError is raised for a file that the
    arguments forbid, and SourceError if `tree` is not a folder.

    Args:
        normalise: whether to use the owner 0:0, the modes 0755 and 0644 and no extended attributes, and to refuse
            device nodes, pipes and sockets. Otherwise, owners, modes, file capabilities, device nodes and pipes are
            kept, and sockets are skipped.
        first_id: the first user and group id of the user namespace in which `tree` was written. It is subtracted from
            all ids that are kept.
        whiteouts: whether to allow names that start with `.wh.`, which delete files of lower layers in an image.
    """
    with HashedFile(out) as sink:
        _write_tree(tree, sink, normalise=normalise, first_id=first_id, whiteouts=whiteouts)
    return Layer(sink.digest, sink.size, out)


def write_tar_gz(tree: Path, out: Path, *, top: str, exclude: Sequence[str] = ()) -> str:
    """Write the content of `tree` as a .tar.gz with a single top folder, and return its digest.

    The archive is deterministic like a layer: its members are sorted, and have normalised owners, modes and times.
    ConfigError is raised if `top` is not a plain name, HostileInputError if a member would be a device node, pipe
    or socket, and SourceError if `tree` is not a folder.

    Args:
        exclude: shell patterns of paths relative to `tree`. A matching folder is skipped with its content.
    """
    if not top or "/" in top or top in {".", ".."}:
        raise ConfigError(
            "top-folder-invalid", f"{top!r} cannot be the top folder of an archive", fix="give a name without slashes"
        )
    with HashedFile(out) as sink, GzipSink(sink) as packer:
        _write_tree(tree, packer, exclude=exclude, prefix=os.fsencode(top))
    return sink.digest


def _write_tree(
    tree: Path,
    sink: tar.Sink,
    *,
    normalise: bool = True,
    exclude: Sequence[str] = (),
    prefix: bytes = b"",
    first_id: int = 0,
    whiteouts: bool = True,
) -> None:
    if not tree.is_dir():
        raise SourceError(
            "layer-tree-missing", f"{tree} is not a folder", fix="give the folder whose content becomes the layer"
        )
    first: dict[tuple[int, int], bytes] = {}
    root = os.fsencode(tree)
    if prefix:
        sink.write(tar.Member(name=prefix, kind=tar.DIRECTORY, mode=0o755, mtime=EPOCH).header())
    for name in sorted(_names(root, b"", tuple(os.fsencode(pattern) for pattern in exclude))):
        path = os.path.join(root, name)  # noqa: PTH118 - names are bytes, because they need not be UTF-8
        if not whiteouts and name.rpartition(b"/")[2].startswith(_WHITEOUT):
            raise HostileInputError(
                "whiteout-in-tree",
                f"{os.fsdecode(path)} would delete a file of the lower layers",
                why="a name that starts with .wh. is a whiteout in OCI images, so the file would not be unpacked",
                fix="rename the file, or do not install it",
            )
        status = os.lstat(path)
        full = prefix + b"/" + name if prefix else name
        member = _member(path, full, status, normalise=normalise, first_id=first_id)
        if member is None:
            continue
        if member.kind == tar.REGULAR and status.st_nlink > 1:
            earlier = first.setdefault((status.st_dev, status.st_ino), member.name)
            if earlier != member.name:
                member = replace(member, kind=tar.HARDLINK, link=earlier, xattrs={})
        sink.write(member.header())
        if member.kind == tar.REGULAR and member.size:
            with open(path, "rb", buffering=0) as source:  # noqa: PTH123 - the path is bytes
                tar.copy_content(source, sink, member.size, name=os.fsdecode(path))
    sink.write(tar.END)


def _names(root: bytes, below: bytes, exclude: tuple[bytes, ...]) -> Iterator[bytes]:
    with os.scandir(os.path.join(root, below) if below else root) as entries:  # noqa: PTH118
        for entry in entries:
            name = below + b"/" + entry.name if below else entry.name
            if any(fnmatchcase(name, pattern) for pattern in exclude):
                continue
            yield name
            if entry.is_dir(follow_symlinks=False):
                yield from _names(root, name, exclude)


def _member(path: bytes, name: bytes, status: os.stat_result, *, normalise: bool, first_id: int) -> tar.Member | None:
    mode = stat.S_IMODE(status.st_mode)
    kind = {
        stat.S_IFREG: tar.REGULAR,
        stat.S_IFDIR: tar.DIRECTORY,
        stat.S_IFLNK: tar.SYMLINK,
        stat.S_IFCHR: tar.CHARACTER,
        stat.S_IFBLK: tar.BLOCK_DEVICE,
        stat.S_IFIFO: tar.FIFO,
    }.get(stat.S_IFMT(status.st_mode))
    link = os.readlink(path) if kind == tar.SYMLINK else b""  # noqa: PTH115 - the path is bytes
    size = status.st_size if kind == tar.REGULAR else 0
    if normalise:
        if kind not in {tar.REGULAR, tar.DIRECTORY, tar.SYMLINK}:
            raise HostileInputError(
                "special-file-in-tree",
                f"{os.fsdecode(path)} is not a file, link or folder",
                fix="remove it, or exclude it from the layer",
            )
        plain = 0o777 if kind == tar.SYMLINK else 0o755 if kind == tar.DIRECTORY or mode & 0o100 else 0o644
        return tar.Member(name=name, kind=kind, mode=plain, mtime=EPOCH, size=size, link=link)
    if kind is None:
        return None
    of_device = kind in {tar.CHARACTER, tar.BLOCK_DEVICE}
    xattrs = {}
    if kind == tar.REGULAR:
        with contextlib.suppress(OSError):
            xattrs[tar.CAPABILITY] = plain_capability(os.getxattr(path, tar.CAPABILITY, follow_symlinks=False))
    uid, gid = status.st_uid - first_id, status.st_gid - first_id
    if min(uid, gid) < 0:
        raise HostileInputError(
            "owner-outside-image",
            f"{os.fsdecode(path)} has an owner outside of the image's ids",
            fix="build the tree again",
        )
    return tar.Member(
        name=name, kind=kind, mode=0o777 if kind == tar.SYMLINK else mode, mtime=EPOCH, uid=uid, gid=gid, size=size,
        link=link, device=(os.major(status.st_rdev), os.minor(status.st_rdev)) if of_device else (0, 0), xattrs=xattrs,
    )  # fmt: skip


def plain_capability(value: bytes) -> bytes:
    """Return the value of a file's capability attribute without the root id of its user namespace.

    Revision 3 of the attribute, which contains this id, becomes revision 2; other values are unchanged.
    """
    magic = int.from_bytes(value[:4], "little")
    if magic >> 24 != 3 or len(value) != 24:
        return value
    return ((magic & 0xFFFFFF) | 2 << 24).to_bytes(4, "little") + value[4:20]


_KINDS = {
    tarfile.REGTYPE: tar.REGULAR,
    tarfile.AREGTYPE: tar.REGULAR,
    tarfile.CONTTYPE: tar.REGULAR,
    tarfile.GNUTYPE_SPARSE: tar.REGULAR,
    tarfile.LNKTYPE: tar.HARDLINK,
    tarfile.SYMTYPE: tar.SYMLINK,
    tarfile.DIRTYPE: tar.DIRECTORY,
    tarfile.CHRTYPE: tar.CHARACTER,
    tarfile.BLKTYPE: tar.BLOCK_DEVICE,
    tarfile.FIFOTYPE: tar.FIFO,
}


# These folders belong to `_apt` if apt ran as root, and to another user otherwise. Root becomes their owner, so that
# the layer is the same in both cases.
_APTS_OWN = {b"var/cache/apt/archives/partial", b"var/lib/apt/lists/partial"}


def normalise_tar(tar_in: Path, out: Path) -> Layer:
    """Rewrite the tar of a root file system, a file or a named pipe, as a layer with its members in the same order.

    Times after `EPOCH` become `EPOCH`. Names of owners, a leading `./`, the member of the root folder itself, and all
    extended attributes except file capabilities are removed. Ids, modes, links and device nodes are kept, but the owner
    of the folders in `_APTS_OWN` becomes root. SourceError is raised if the tar is damaged or has a member of unknown
    type or an impossible device, and HostileInputError if a name or a hard link leads out of the tar.
    """
    try:
        with (
            tar_in.open("rb", buffering=0) as archive,
            tarfile.open(
                fileobj=archive, mode="r|", bufsize=CHUNK, encoding="utf-8", errors="surrogateescape"
            ) as source,
            HashedFile(out) as sink,
        ):
            for info in source:
                _rewrite(source, info, sink)
            # The process that fills a pipe would fail if nobody read the rest.
            while archive.read(CHUNK):
                pass
            sink.write(tar.END)
    except (tarfile.TarError, RecursionError) as error:
        raise SourceError("tar-incomplete", f"{tar_in} is not a complete tar", fix="create it again") from error
    return Layer(sink.digest, sink.size, out)


def _rewrite(source: tarfile.TarFile, info: tarfile.TarInfo, sink: HashedFile) -> None:
    name = _inside(info.name)
    if name == b"":
        return
    if (kind := _KINDS.get(info.type)) is None:
        raise SourceError(
            "tar-member-unknown", f"{info.name} in a tar has the unknown type {info.type!r}", fix="create the tar again"
        )
    device = (info.devmajor, info.devminor) if kind in {tar.CHARACTER, tar.BLOCK_DEVICE} else (0, 0)
    if not 0 <= min(device) <= max(device) < tar.DEVICES:
        raise SourceError(
            "tar-member-unknown",
            f"{info.name} in a tar is the device {device[0]}:{device[1]}",
            why=f"the numbers of a device in a layer are below {tar.DEVICES}",
            fix="create the tar again",
        )
    capability = info.pax_headers.get(f"SCHILY.xattr.{tar.CAPABILITY}")
    member = tar.Member(
        name=name,
        kind=kind,
        mode=info.mode,
        mtime=min(int(info.mtime), EPOCH),
        uid=0 if name in _APTS_OWN else info.uid,
        gid=0 if name in _APTS_OWN else info.gid,
        size=info.size if kind == tar.REGULAR else 0,
        link=_inside(info.linkname) if kind == tar.HARDLINK else _raw(info.linkname) if kind == tar.SYMLINK else b"",
        device=device,
        xattrs={tar.CAPABILITY: _raw(capability)} if capability is not None else {},
    )
    sink.write(member.header())
    if member.size:
        content = source.extractfile(info)
        assert content is not None  # noqa: S101 - only regular files have a size
        with content:
            tar.copy_content(content, sink, member.size, name=info.name)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _inside(name: str) -> bytes:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if name.startswith("/") or ".." in parts:
        raise HostileInputError("tar-name-escapes", f"{name!r} points out of the tar", fix="use another archive")
    return _raw("/".join(parts))


def compress(layer: Layer, out: Path, how: Compression = "gzip", level: int | None = None) -> Blob:
    """Compress a layer and return its blob, whose bytes do not depend on the number of cores.

    Args:
        out: the path of the blob. Nothing is written if `how` is `none`, because the layer's tar is the blob then.
        level: the level of the compression; None for the level in `LEVELS`.
    """
    used = LEVELS[how] if level is None else level
    if how == "none":
        return Blob(layer.diff_id, layer.size, MEDIA_TYPES[how], layer.path, layer.diff_id)
    with HashedFile(out) as sink:
        if how == "gzip":
            with layer.path.open("rb", buffering=0) as source, GzipSink(sink, used) as packer:
                while piece := source.read(CHUNK):
                    packer.write(piece)
                    if layer.size > CHUNK:
                        tell("compressing a layer", source.tell(), layer.size)
        else:
            # With -T, zstd cuts the input into the same jobs for any number of threads, so the output is the same. With
            # --single-thread, the output would differ, because zstd would not cut the input.
            threads = f"-T{len(os.sched_getaffinity(0))}"
            words: list[str | Path] = ["zstd", "-q", "-c", f"-{used}", threads, "--", layer.path.absolute()]
            with process.output(words) as packed:
                while piece := packed.read(CHUNK):
                    sink.write(piece)
                    if layer.size > CHUNK:
                        tell("compressing a layer", sink.size, 0)
    return Blob(sink.digest, sink.size, MEDIA_TYPES[how], out, layer.diff_id)


def compressor_id(how: Compression) -> str:
    """Return the name, version and level of a compressor, e.g. `gzip/zlib-1.2.13/9`; `none` for no compression."""
    if how == "none":
        return "none"
    library = f"zlib-{zlib.ZLIB_RUNTIME_VERSION}" if how == "gzip" else f"zstd-{_zstd_version()}"
    return f"{how}/{library}/{LEVELS[how]}"


@functools.cache
def _zstd_version() -> str:
    output = process.run(["zstd", "--version"], capture=True).stdout
    match = re.search(r"v(\d+(?:\.\d+)+)", output)
    return match[1] if match else output.strip()
