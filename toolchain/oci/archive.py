"""A plain archive for people without containers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain.errors import ConfigError
from toolchain.oci.deflate import GzipSink
from toolchain.oci.layer import HashedFile, write_tree


@dataclass(frozen=True)
class Archive:
    """A compressed archive: digest and size (bytes) of the file."""

    digest: str
    size: int
    path: Path


def write_tar_gz(
    tree: Path, out: Path, *, top: str, epoch: int, level: int = 9, exclude: Sequence[str] = ()
) -> Archive:
    """Write the content of `tree` as a .tar.gz in which everything lies below the folder `top`.

    Deterministic like a layer: sorted, owner 0, modes 0755 and 0644, one time, the same bytes for any number of cores.

    Raises:
        ConfigError: `top` is not the name of one folder.
        HostileInputError: the tree holds a device, pipe or socket.
    """
    if not top or "/" in top or top in {".", ".."}:
        raise ConfigError(f"{top!r} cannot be the top folder of an archive", fix="give one plain name")
    with HashedFile(out) as sink, GzipSink(sink, level) as packer:
        write_tree(tree, packer, epoch=epoch, exclude=exclude, prefix=os.fsencode(top))
    return Archive(sink.digest, sink.size, out)
