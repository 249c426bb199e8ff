"""The tables of llvm-config/floors.toml: the oldest systems that portable LLVM layers support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolchain.core.errors import UnsupportedError
from toolchain.core.recipe import root
from toolchain.data import read_toml, typed_row

DATA = "llvm-config/floors.toml"


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The oldest system that a portable layer supports. The file `DATA` documents the fields."""

    glibc: str
    system: str
    libstdcxx: str
    glibcxx: str
    suite: str = ""
    packages: tuple[str, ...] = ()
    images: Mapping[str, str] | None = None
    tested: bool
    note: str

    @property
    def distro(self) -> str:
        """Return the distribution, written like the name of a base, such as `debian11`."""
        return self.system.replace(" ", "").lower()

    @property
    def name(self) -> str:
        """Return the name that images and records use for this floor, such as `glibc-2.31`."""
        return f"glibc-{self.glibc}"


def load_floors() -> dict[str, Floor]:
    """Return all floors by their glibc version, in the order of `DATA`."""
    source = root() / DATA
    rows = read_toml(source).items()
    return {name: typed_row(Floor, {**row, "glibc": name}, name, source) for name, row in rows}


def floor_of(glibc: str) -> Floor:
    """Return the floor for a glibc version; raise an UnsupportedError if LLVM cannot be built for that glibc."""
    floors = load_floors()
    floor = floors.get(glibc)
    usable = ", ".join(name for name, floor in floors.items() if floor.packages)
    if floor is None:
        raise UnsupportedError(
            "unknown-glibc",
            f"glibc {glibc} is not supported",
            why=f"{DATA} lists only {', '.join(floors)}",
            fix=f"use --glibc with one of {usable}; or bind the layer to a base, e.g. with --base debian13",
        )
    if not floor.packages:
        raise UnsupportedError(
            "glibc-not-buildable",
            f"LLVM cannot be built for glibc {glibc} ({floor.system}) yet",
            why=f"its headers and libraries are in {(floor.images or {}).get('amd64', 'an image')}, but this version"
            f" can unpack only Debian packages; {floor.note}",
            fix=f"use --glibc with one of {usable}",
        )
    return floor
