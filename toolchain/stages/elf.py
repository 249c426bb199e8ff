"""Read the dynamic linking information of ELF files: the names of libraries, symbols and versions."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection, GNUVerSymSection, Version, VersionAuxiliary
from elftools.elf.sections import SymbolTableSection

from toolchain.catalog.release_data import numbers
from toolchain.core.errors import ContractError
from toolchain.core.filesystem import read_regular

_HIDDEN, _GLOBAL = 0x8000, 1


@dataclass(frozen=True, kw_only=True)
class Linked:
    """The dynamic linking information of a program or a shared library.

    Args:
        soname: the library's own name; empty if it has none.
        exports: the version nodes of each symbol that it defines; an empty string for a symbol without a version.
        imports: for each symbol that it needs, the library and the version node; two empty strings for a symbol without
            a version.
        machine: ELF's name for the architecture, such as `EM_X86_64`.
        dynamic: whether the file has a dynamic section and a dynamic symbol table.
    """

    soname: str
    needed: tuple[str, ...]
    exports: Mapping[str, tuple[str, ...]]
    imports: Mapping[str, tuple[str, str]]
    machine: str = ""
    dynamic: bool = True

    def asks_of(self, soname: str) -> dict[str, str]:
        """Return the symbols that this file needs from the library `soname`, with their version nodes."""
        return {name: node for name, (library, node) in self.imports.items() if library == soname}

    def newest(self, prefix: str) -> tuple[int, ...]:
        """Return the newest version of the needed version nodes with the prefix; an empty tuple if there are none.

        Nodes without a number are ignored, such as `GLIBC_PRIVATE` for the prefix `GLIBC_`.
        """
        nodes = {node.removeprefix(prefix) for _, node in self.imports.values() if node.startswith(prefix)}
        return max((numbers(node) for node in nodes if node[:1].isdigit()), default=())


LARGEST = 4 << 30
"""The limit in bytes for a library that a build made, because it is read into memory."""


def read_linked(path: Path) -> Linked:
    """Return the dynamic linking information of a library; raise ContractError if it has none or cannot be read."""
    try:
        content = read_regular(Path(os.path.realpath(path)), LARGEST)
    except OSError as error:
        raise _damaged(path.name, "it cannot be read") from error
    linked = linked_of(path.name, content)
    if not linked.dynamic:
        raise ContractError("not-an-elf", f"{path.name} is not a shared library", fix="see the log, and build it again")
    return linked


def linked_of(name: str, content: bytes) -> Linked:
    """Return the dynamic linking information of an ELF file; raise ContractError if `content` is not a valid one."""
    try:
        elf = ELFFile(io.BytesIO(content))
        dynamic = next((section for section in elf.iter_sections() if isinstance(section, DynamicSection)), None)
        symbols = elf.get_section_by_name(".dynsym")
        exports: dict[str, tuple[str, ...]] = {}
        imports = {}
        for symbol, defined, version in _symbols(elf, symbols) if isinstance(symbols, SymbolTableSection) else ():
            if defined:
                exports[symbol] = (*exports.get(symbol, ()), version[1])
            else:
                imports[symbol] = version
        # pyelftools defines `soname` only for tags of the type DT_SONAME, and `needed` only for DT_NEEDED.
        tags = [] if dynamic is None else list(dynamic.iter_tags())
        return Linked(
            machine=str(elf["e_machine"]),
            dynamic=dynamic is not None and isinstance(symbols, SymbolTableSection),
            soname=next((str(tag.soname) for tag in tags if tag.entry.d_tag == "DT_SONAME"), ""),  # type: ignore[attr-defined]
            needed=tuple(str(tag.needed) for tag in tags if tag.entry.d_tag == "DT_NEEDED"),  # type: ignore[attr-defined]
            exports=exports,
            imports=imports,
        )
    except (ELFError, AssertionError, OverflowError) as error:  # pyelftools raises all of them for damaged files
        raise _damaged(name, "its headers or tables are truncated or contradict each other") from error


def _damaged(name: str, why: str) -> ContractError:
    return ContractError(
        "not-an-elf", f"{name} is not a complete ELF file", why=why, fix="see the log, and build it again"
    )


def _versions(
    section: GNUVerNeedSection | GNUVerDefSection, count: str
) -> Iterator[tuple[Version, Iterator[VersionAuxiliary]]]:
    """Yield the entries of a version section; raise ELFError if it claims more entries than it has room for.

    A hostile file can claim billions of entries, because an entry can point to itself.
    """
    room = section["sh_size"] // 8  # the smallest entry has 8 bytes
    if section.num_versions() <= room:
        for entry, auxiliaries in section.iter_versions():
            room -= 1 + entry[count]
            if room < 0:
                break
            yield entry, auxiliaries
        else:
            return
    raise ELFError("a version section claims more entries than it has room for")


def _symbols(elf: ELFFile, symbols: SymbolTableSection) -> Iterator[tuple[str, bool, tuple[str, str]]]:
    """Yield the name of each non-local symbol, whether the file defines it, and its library and version node."""
    nodes: dict[int, tuple[str, str]] = {}
    of_symbol: GNUVerSymSection | None = None
    for section in elf.iter_sections():
        if isinstance(section, GNUVerSymSection):
            of_symbol = section
        elif isinstance(section, GNUVerNeedSection):
            for library, versions in _versions(section, "vn_cnt"):
                for row in versions:
                    nodes[int(row["vna_other"])] = (str(library.name), str(row.name))
        elif isinstance(section, GNUVerDefSection):
            for definition, names in _versions(section, "vd_cnt"):
                nodes[int(definition["vd_ndx"])] = ("", str(next(iter(names)).name))
    for number, symbol in enumerate(symbols.iter_symbols()):
        if not symbol.name or symbol["st_info"]["bind"] == "STB_LOCAL":
            continue
        index = of_symbol.get_symbol(number)["ndx"] if of_symbol is not None else _GLOBAL
        plain = index & ~_HIDDEN if isinstance(index, int) else _GLOBAL
        version = nodes.get(plain, ("", "")) if plain > _GLOBAL else ("", "")
        yield symbol.name, symbol["st_shndx"] != "SHN_UNDEF", version
