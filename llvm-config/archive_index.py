#!/usr/bin/env python3
"""Make the symbol indexes of an LLVM's archives smaller.

    archive_index.py FOLDER

An archive's index names every symbol that its objects define, so that a linker can find the object that defines an
undefined symbol. Most of these symbols are inline functions. They are weak and hidden, and the compiler emits them in
every object that uses them, so a linker never needs them from another object. The program removes them from the index.
It keeps every symbol that an object of the folder leaves undefined, and explicit instantiations of templates, because
they are not hidden. Nothing but the index changes.

The program replaces each `*.a` below FOLDER that is a GNU archive of 64-bit ELF objects. It prints the total size of
the archives before and after, in bytes.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"!<arch>\n"
HEADER = 60
SYMTAB, WEAK, LOCAL, HIDDEN = 2, 2, 0, 2


class ArchiveError(ValueError):
    """The file is not a GNU archive, or it is damaged."""


@dataclass(frozen=True)
class Symbol:
    """A symbol that is not local."""

    name: bytes
    defined: bool
    inline: bool


def members(data: bytes) -> Iterator[tuple[int, bytes, int, int]]:
    """Yield each member of an archive: the offset of its header, its name, and the offset and size of its content.

    Raises:
        ArchiveError: the archive is thin or damaged.
    """
    if not data.startswith(MAGIC):
        raise ArchiveError("no archive, or a thin one")
    at = len(MAGIC)
    while at < len(data):
        header = data[at : at + HEADER]
        if len(header) < HEADER or header[58:] != b"`\n" or not header[48:58].strip().isdigit():
            raise ArchiveError(f"no member header at {at}")
        size = int(header[48:58])
        if at + HEADER + size > len(data):
            raise ArchiveError(f"the member at {at} is cut off")
        yield at, header[:16].rstrip(), at + HEADER, size
        at += HEADER + size + (size & 1)


def symbols(data: bytes, start: int, size: int) -> Iterator[Symbol]:
    """Yield the symbols of an ELF object that are not local. A file that is not an ELF object has none.

    Raises:
        ArchiveError: the object is damaged, or it is not a 64-bit object.
    """
    if size < 64 or data[start : start + 4] != b"\x7fELF":
        return
    if data[start + 4] != 2:
        raise ArchiveError("not a 64-bit object")
    order = "<" if data[start + 5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", data, start + 0x28)
    (count,) = struct.unpack_from(f"{order}H", data, start + 0x3C)
    section = struct.Struct(f"{order}IIQQQQIIQQ")
    try:
        if count == 0:  # the field is too small for the number of sections, so the first header has it
            count = section.unpack_from(data, start + table)[5]
        headers = [section.unpack_from(data, start + table + i * section.size) for i in range(count)]
        entry = struct.Struct(f"{order}IBBHQQ")
        for header in headers:
            if header[1] != SYMTAB:
                continue
            names = headers[header[6]]
            strings = data[start + names[4] : start + names[4] + names[5]]
            # sh_info is the index of the first symbol that is not local.
            for at in range(start + header[4] + header[7] * entry.size, start + header[4] + header[5], entry.size):
                name, info, other, where, _, _ = entry.unpack_from(data, at)
                if info >> 4 != LOCAL:
                    inline = info >> 4 == WEAK and other & 3 == HIDDEN
                    yield Symbol(strings[name : strings.index(b"\0", name)], where != 0, inline)
    except (struct.error, IndexError, ValueError) as error:
        raise ArchiveError(f"a broken object: {error}") from error


def undefined(data: bytes) -> set[bytes]:
    """Return the names of the symbols that at least one object of an archive uses but does not define itself."""
    return {
        symbol.name
        for _, _, start, size in members(data)
        for symbol in symbols(data, start, size)
        if not symbol.defined
    }


def with_short_index(data: bytes, wanted: set[bytes]) -> bytes:
    """Remove the inline functions that are not in `wanted` from an archive's index, and return the archive.

    An archive without an index, or with a 64-bit index, is returned unchanged.

    Raises:
        ArchiveError: the archive or one of its objects is damaged or of an unknown kind.
    """
    listed = list(members(data))
    if not listed or listed[0][1] != b"/":
        return data  # no index, or the 64-bit index of an archive above 4 GB
    _, _, start, size = listed[0]
    (count,) = struct.unpack_from(">I", data, start)
    offsets = struct.unpack_from(f">{count}I", data, start + 4)
    names = data[start + 4 + 4 * count : start + size].split(b"\0")[:count]
    inline: dict[int, set[bytes]] = {
        header: {one.name for one in symbols(data, content, length) if one.inline and one.name not in wanted}
        for header, _, content, length in listed[1:]
    }
    if len(names) != count or not set(offsets) <= set(inline):
        raise ArchiveError("the index names members that are not there")
    kept = [(at, name) for at, name in zip(offsets, names, strict=True) if name not in inline[at]]
    strings = b"".join(name + b"\0" for _, name in kept)
    length = 4 + 4 * len(kept) + len(strings)
    length += length & 1
    shift = length - (size + (size & 1))
    body = struct.pack(f">{1 + len(kept)}I", len(kept), *(at + shift for at, _ in kept)) + strings
    header = data[len(MAGIC) : len(MAGIC) + 48] + b"%-10d" % length + b"`\n"
    return MAGIC + header + body.ljust(length, b"\0") + data[start + size + (size & 1) :]


def main(folder: Path) -> int:
    """Rewrite the archives below `folder` and return the exit code."""
    archives = [path for path in sorted(folder.rglob("*.a")) if not path.is_symlink()]
    wanted: set[bytes] = set()
    before = after = 0
    current = folder
    try:
        for current in archives:
            wanted |= undefined(current.read_bytes())
        for current in archives:
            data = current.read_bytes()
            short = with_short_index(data, wanted)
            before, after = before + len(data), after + len(short)
            if short != data:
                partial = current.with_name(f".{current.name}.partial")
                partial.write_bytes(short)
                partial.chmod(current.stat().st_mode & 0o7777)
                partial.replace(current)
    except (ArchiveError, struct.error) as error:
        print(f"toolchain: {current.name}: {error}", file=sys.stderr)
        return 1
    print(f"archives: {before} bytes, {after} with short indexes")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit((__doc__ or "").strip())
    sys.exit(main(Path(sys.argv[1])))
