"""The rows of data/hip.toml: the HIP headers and the stub libraries that AOTriton's library is built with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as memoize
from typing import Any

from toolchain.core.errors import ConfigError, UnsupportedError
from toolchain.data import FOLDER, load, typed_row

_FILE = FOLDER / "hip.toml"
DEFAULT_ROCM = ("6", "7")


@dataclass(frozen=True, kw_only=True)
class Rocm:
    """A `[[rocm]]` row of data/hip.toml, which documents the fields."""

    major: str
    soname: str
    headers: str


@dataclass(frozen=True, kw_only=True)
class Headers:
    """A `[[headers]]` row of data/hip.toml, which documents the fields."""

    name: str
    hip: tuple[int, ...]
    package: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Functions:
    """A `[[function]]` row of data/hip.toml: functions of HIP with the same symbol version and headers."""

    names: tuple[str, ...]
    node: str
    headers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Library:
    """A `[[library]]` row of data/hip.toml, which documents the fields."""

    name: str
    soname: str
    node: str
    functions: tuple[str, ...]
    package: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Stub:
    """A stub library, which AOTriton's library is linked with in place of the real one.

    Args:
        name: the name of its folder, such as `rocm6`.
        soname: the soname of the real library.
        nodes: the version nodes of the symbol table, each with its functions.
    """

    name: str
    soname: str
    nodes: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def symbols(self) -> dict[str, str]:
        """Return a mapping from each function to its version node."""
        return {name: node for node, names in self.nodes for name in names}

    def as_json(self) -> dict[str, Any]:
        return {"soname": self.soname, "nodes": {node: list(names) for node, names in self.nodes}}


@memoize
def _rows(kind: str, row_type: type[Any]) -> tuple[Any, ...]:
    return tuple(typed_row(row_type, row, kind, _FILE) for row in load("hip")[kind])


def rocms() -> tuple[Rocm, ...]:
    """Return the rows of the known major versions of ROCm, in the order of data/hip.toml."""
    return _rows("rocm", Rocm)


def headers() -> tuple[Headers, ...]:
    """Return all sets of headers, in the order of data/hip.toml."""
    return _rows("headers", Headers)


def libraries() -> tuple[Library, ...]:
    """Return the libraries other than HIP that stub libraries replace, in the order of data/hip.toml."""
    return _rows("library", Library)


def rocm_of(text: str) -> Rocm:
    """Return the row for the major number of a ROCm version such as `7.2`; raise UnsupportedError if it is unknown."""
    major = text.strip().removeprefix("rocm").partition(".")[0]
    for row in rocms():
        if row.major == major:
            return row
    raise UnsupportedError(
        "unknown-rocm",
        f"AOTriton's library cannot be linked for ROCm {text.strip()[:40]!r}",
        why=f"the soname of libamdhip64 is known only for ROCm {', '.join(row.major for row in rocms())}",
        fix="use one of these, e.g. --rocm 6,7; for another version give a base with its HIP: --base oci:DIR",
    )


def parse_rocms(text: str) -> tuple[str, ...]:
    """Parse the text of `--rocm` into major versions, in the order of data/hip.toml.

    Raise an error if the text names no version, or an unknown one.
    """
    majors = {rocm_of(part).major for part in text.split(",") if part.strip()}
    if not majors:
        raise ConfigError("option-empty", f"--rocm {text!r} names no ROCm", fix="use e.g. --rocm 6,7, or omit it")
    return tuple(row.major for row in rocms() if row.major in majors)


def headers_of(majors: Sequence[str]) -> tuple[Headers, ...]:
    """Return the headers that objects for the given ROCm versions are compiled with, in the order of data/hip.toml.

    Raise an UnsupportedError if a version is unknown.
    """
    wanted = {rocm_of(major).headers for major in majors}
    return tuple(row for row in headers() if row.name in wanted)


def stubs_of(majors: Sequence[str]) -> tuple[Stub, ...]:
    """Return the stub libraries to link with for the given ROCm versions: first those for HIP, then all others.

    Raise an UnsupportedError if a version is unknown.
    """
    functions = _rows("function", Functions)
    hip = [
        (rocm, tuple((row.node, row.names) for row in functions if rocm.headers in row.headers))
        for rocm in map(rocm_of, majors)
    ]
    return (
        *(Stub(name=f"rocm{row.major}", soname=row.soname, nodes=nodes) for row, nodes in hip),
        *(Stub(name=row.name, soname=row.soname, nodes=((row.node, row.functions),)) for row in libraries()),
    )
