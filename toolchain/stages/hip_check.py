"""Checks of ELF files that link HIP: a stub library against its rows, AOTriton's against its ROCm and systems."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolchain.catalog.floors import Floor
from toolchain.catalog.release_data import numbers
from toolchain.catalog.rocm import Stub
from toolchain.core.errors import ContractError
from toolchain.stages.elf import Linked, read_linked


def check_stub(path: Path, stub: Stub) -> None:
    """Check that a library to link with has the soname, functions and version nodes of its rows, and no others."""
    library = read_linked(path)
    faults = [] if library.soname == stub.soname else [f"its soname is {library.soname or 'none'}"]
    faults += [f"it asks for {', '.join(library.needed)}"] if library.needed else []
    faults += [
        f"{name} is at {', '.join(library.exports.get(name, ())) or 'no node'}, not {node}"
        for name, node in stub.symbols.items()
        if library.exports.get(name) != (node,)
    ]
    nodes = {node for node, _ in stub.nodes}
    faults += [f"{name} is no row's" for name in sorted(library.exports.keys() - stub.symbols.keys() - nodes)]
    if faults:
        raise ContractError(
            f"the library to link with {stub.soname} is not what toolchain/data/hip.toml says",
            why="; ".join(faults[:10]),
            fix="see the log, and build it again; report it if it stays",
        )


def holds_on(library: Linked, floor: Floor) -> bool:
    """Whether a system as old as a floor has every version of glibc and libstdc++ that a library asks for."""
    glibc, glibcxx = library.newest("GLIBC_"), library.newest("GLIBCXX_")
    return glibc <= numbers(floor.glibc) and glibcxx <= numbers(floor.glibcxx)


def check_linked(path: Path, stubs: Mapping[str, Stub], *, soname: str, floor: Floor) -> dict[str, Any]:
    """Check that a library asks for the HIP that it was linked for, and for no newer system than its floor.

    Args:
        stubs: what it was linked with, by soname.
        soname: of the HIP that it is for.

    Returns:
        `{"soname", "needed", "glibc", "glibcxx", "functions"}`: what it asks for, the newest of each, and of HIP all.
    """
    library = read_linked(path)
    hip = [name for name in library.needed if name.startswith("libamdhip64.so")]
    faults = [] if hip == [soname] else [f"it asks for {', '.join(hip) or 'no HIP'}, not {soname}"]
    for name, node in library.asks_of(soname).items():
        if stubs[soname].symbols.get(name) != node:
            faults.append(f"it asks for {name} at {node}, which no row names")
    faults += [
        f"{name} is asked of no library"
        for name in library.imports
        if name.startswith("hip") and not library.imports[name][0]
    ]
    glibc, glibcxx = (".".join(map(str, library.newest(prefix))) for prefix in ("GLIBC_", "GLIBCXX_"))
    if not holds_on(library, floor):
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
        "needed": sorted(library.needed),
        "glibc": glibc,
        "glibcxx": glibcxx,
        "functions": sorted(library.asks_of(soname)),
    }
