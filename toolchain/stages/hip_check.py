"""What links HIP, by its ELF file: a library to link with against its rows, AOTriton's against its ROCm and systems."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from toolchain.catalog.floors import Floor
from toolchain.catalog.hip import Stub
from toolchain.errors import ContractError

_HIDDEN, _GLOBAL = 0x8000, 1


@dataclass(frozen=True, kw_only=True)
class Linked:
    """A shared library as the dynamic linker sees it.

    Args:
        soname: its own name.
        needed: the names of what it asks for.
        exports: the version node of each symbol that it gives; empty for none.
        imports: `(library, node)` of each symbol that it asks for; two empty texts for one without a version.
    """

    soname: str
    needed: tuple[str, ...]
    exports: Mapping[str, tuple[str, ...]]
    imports: Mapping[str, tuple[str, str]]

    def asks_of(self, soname: str) -> dict[str, str]:
        """The node of each symbol that it asks of one library."""
        return {name: node for name, (library, node) in self.imports.items() if library == soname}

    def newest(self, prefix: str) -> tuple[int, ...]:
        """The newest version of a family of nodes (`GLIBC_`) that it asks for; empty where it asks for none."""
        nodes = {node.removeprefix(prefix) for _, node in self.imports.values() if node.startswith(prefix)}
        return max((_version(node) for node in nodes if node[:1].isdigit()), default=())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def read_linked(path: Path) -> Linked:
    """Read a shared library.

    Raises:
        ContractError: it is none.
    """
    try:
        elf = ELFFile(io.BytesIO(path.read_bytes()))
        dynamic = next((section for section in elf.iter_sections() if isinstance(section, DynamicSection)), None)
        symbols = elf.get_section_by_name(".dynsym")
        if dynamic is None or not isinstance(symbols, SymbolTableSection):
            raise ContractError(f"{path.name} is no shared library", fix="see the log, and build it again")
        exports: dict[str, tuple[str, ...]] = {}
        imports = {}
        for name, defined, version in _symbols(elf, symbols):
            if defined:
                exports[name] = (*exports.get(name, ()), version[1])
            else:
                imports[name] = version
        # pyelftools sets these on tags of their kind alone.
        return Linked(
            soname=next((str(tag.soname) for tag in dynamic.iter_tags("DT_SONAME")), ""),  # type: ignore[attr-defined]
            needed=tuple(str(tag.needed) for tag in dynamic.iter_tags("DT_NEEDED")),  # type: ignore[attr-defined]
            exports=exports,
            imports=imports,
        )
    except (ELFError, OSError) as error:
        raise ContractError(
            f"{path.name} is no whole ELF file", why=str(error), fix="see the log, and build it again"
        ) from error


def _symbols(elf: ELFFile, symbols: SymbolTableSection) -> Iterator[tuple[str, bool, tuple[str, str]]]:
    """Name, whether it is defined here, and library and node, of each symbol that others can see."""
    nodes: dict[int, tuple[str, str]] = {}
    of_symbol: GNUVerSymSection | None = None
    for section in elf.iter_sections():
        if isinstance(section, GNUVerSymSection):
            of_symbol = section
        elif isinstance(section, GNUVerNeedSection):
            for library, versions in section.iter_versions():
                for one in versions:
                    nodes[int(one["vna_other"])] = (str(library.name), str(one.name))
        elif isinstance(section, GNUVerDefSection):
            for definition, names in section.iter_versions():
                nodes[int(definition["vd_ndx"])] = ("", str(next(iter(names)).name))
    for number, symbol in enumerate(symbols.iter_symbols()):
        if not symbol.name or symbol["st_info"]["bind"] == "STB_LOCAL":
            continue
        index = of_symbol.get_symbol(number)["ndx"] if of_symbol is not None else _GLOBAL
        plain = index & ~_HIDDEN if isinstance(index, int) else _GLOBAL
        version = nodes.get(plain, ("", "")) if plain > _GLOBAL else ("", "")
        yield symbol.name, symbol["st_shndx"] != "SHN_UNDEF", version


def check_stub(path: Path, stub: Stub) -> None:
    """Insist that a library to link with is what its rows say: its soname, its functions and their nodes, and no more.

    Raises:
        ContractError: with the first difference.
    """
    found = read_linked(path)
    faults = [] if found.soname == stub.soname else [f"its soname is {found.soname or 'none'}"]
    faults += [f"it asks for {', '.join(found.needed)}"] if found.needed else []
    faults += [
        f"{name} is at {', '.join(found.exports.get(name, ())) or 'no node'}, not {node}"
        for name, node in stub.symbols.items()
        if found.exports.get(name) != (node,)
    ]
    nodes = {node for node, _ in stub.nodes}
    faults += [f"{name} is no row's" for name in sorted(found.exports.keys() - stub.symbols.keys() - nodes)]
    if faults:
        raise ContractError(
            f"the library to link with {stub.soname} is not what toolchain/data/hip.toml says",
            why="; ".join(faults[:10]),
            fix="see the log, and build it again; report it if it stays",
        )


def holds_on(library: Linked, floor: Floor) -> bool:
    """Whether a system as old as a floor has every version of glibc and libstdc++ that a library asks for."""
    newest = (library.newest("GLIBC_"), _version(floor.glibc)), (library.newest("GLIBCXX_"), _version(floor.glibcxx))
    return all(asked <= has for asked, has in newest)


def check_linked(path: Path, stubs: Mapping[str, Stub], *, soname: str, floor: Floor) -> dict[str, Any]:
    """Insist that a library asks for the HIP that it was linked for, and for no newer system than its floor.

    Args:
        stubs: what it was linked with, by soname.
        soname: of the HIP that it is for.

    Returns:
        `{"soname", "needed", "glibc", "glibcxx", "functions"}`: what it asks for, the newest of each, and of HIP all.

    Raises:
        ContractError: with all that is not so.
    """
    found = read_linked(path)
    hip = [one for one in found.needed if one.startswith("libamdhip64.so")]
    faults = [] if hip == [soname] else [f"it asks for {', '.join(hip) or 'no HIP'}, not {soname}"]
    for name, node in found.asks_of(soname).items():
        if stubs[soname].symbols.get(name) != node:
            faults.append(f"it asks for {name} at {node}, which no row names")
    faults += [
        f"{name} is asked of no library"
        for name in found.imports
        if name.startswith("hip") and not found.imports[name][0]
    ]
    glibc, glibcxx = (".".join(map(str, found.newest(prefix))) for prefix in ("GLIBC_", "GLIBCXX_"))
    if not holds_on(found, floor):
        faults.append(
            f"it asks for GLIBC_{glibc} and GLIBCXX_{glibcxx}; {floor.system} has {floor.glibc} and {floor.glibcxx}"
        )
    if faults:
        raise ContractError(
            f"{path.name} does not serve {floor.system} with {soname}",
            why="; ".join(faults[:10]),
            fix="see in the log what of the base was linked; a new HIP function needs a row in toolchain/data/hip.toml",
        )
    return {
        "soname": soname,
        "needed": sorted(found.needed),
        "glibc": glibc,
        "glibcxx": glibcxx,
        "functions": sorted(found.asks_of(soname)),
    }
