"""The old systems that a portable LLVM layer is compiled against, from llvm-config/floors.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolchain.core.errors import UnsupportedError
from toolchain.core.recipe import root
from toolchain.data import read_toml, typed_row

DATA = "llvm-config/floors.toml"


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A system that a portable layer supports at least: a table of `DATA`, which describes the fields."""

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
        """The distribution in the form of base names: `debian11`."""
        return self.system.replace(" ", "").lower()

    @property
    def name(self) -> str:
        """The name in its images and lists."""
        return f"glibc-{self.glibc}"


def load_floors() -> dict[str, Floor]:
    """Return every floor of the data by its glibc, in its order."""
    source = root() / DATA
    rows = read_toml(source).items()
    return {name: typed_row(Floor, {**row, "glibc": name}, name, source) for name, row in rows}


def floor_of(glibc: str) -> Floor:
    """Return the floor of a glibc; it is refused if its row has no packages."""
    floors = load_floors()
    floor = floors.get(glibc)
    usable = ", ".join(name for name, floor in floors.items() if floor.packages)
    if floor is None:
        raise UnsupportedError(
            "unknown-glibc",
            f"no floor is known for glibc {glibc}",
            why=f"{DATA} has {', '.join(floors)}",
            fix=f"--glibc with one of {usable}; or name a base for a layer that is bound to it: --base debian13",
        )
    if not floor.packages:
        raise UnsupportedError(
            "glibc-not-buildable",
            f"no LLVM is built against glibc {glibc} ({floor.system}) yet",
            why=f"its headers and libraries are in {(floor.images or {}).get('amd64', 'an image')}, and this version"
            f" only unpacks Debian packages; {floor.note}",
            fix=f"--glibc with one of {usable}",
        )
    return floor
