"""HIP for the compilation and linking of AOTriton's library, from data/hip.toml."""

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
    """A row `rocm`; the data describes the fields."""

    major: str
    soname: str
    headers: str


@dataclass(frozen=True, kw_only=True)
class Headers:
    """A row `headers`."""

    name: str
    hip: tuple[int, ...]
    package: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Functions:
    """A row `function`."""

    names: tuple[str, ...]
    node: str
    headers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Library:
    """A row `library`."""

    name: str
    soname: str
    node: str
    functions: tuple[str, ...]
    package: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Stub:
    """A library to link with.

    Args:
        name: the name of its folder: `rocm6`.
        soname: the name that linked programs require.
        nodes: the functions of each version node.
    """

    name: str
    soname: str
    nodes: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def symbols(self) -> dict[str, str]:
        """The version node of each function."""
        return {name: node for node, names in self.nodes for name in names}

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {"soname": self.soname, "nodes": {node: list(names) for node, names in self.nodes}}


@memoize
def _rows(kind: str, row_type: type[Any]) -> tuple[Any, ...]:
    return tuple(typed_row(row_type, row, kind, _FILE) for row in load("hip")[kind])


def rocms() -> tuple[Rocm, ...]:
    """Return every ROCm, in the order of the data."""
    return _rows("rocm", Rocm)


def headers() -> tuple[Headers, ...]:
    """Return every set of headers, in the order of the data."""
    return _rows("headers", Headers)


def libraries() -> tuple[Library, ...]:
    """Return the libraries other than HIP that are linked by a stub."""
    return _rows("library", Library)


def rocm_of(text: str) -> Rocm:
    """Return the ROCm of a version: `7`, or `7.2`, whose library has the same name."""
    major = text.strip().removeprefix("rocm").partition(".")[0]
    for row in rocms():
        if row.major == major:
            return row
    raise UnsupportedError(
        "unknown-rocm",
        f"no library is linked for ROCm {text.strip()[:40]!r}",
        why=f"known are {', '.join(row.major for row in rocms())}: the libamdhip64 of each has another name",
        fix="name one of these: --rocm 6,7; for another, your own base with its HIP: --base oci:DIR",
    )


def parse_rocms(text: str) -> tuple[str, ...]:
    """Return major versions from an option's text, in the order of the data."""
    majors = {rocm_of(part).major for part in text.split(",") if part.strip()}
    if not majors:
        raise ConfigError("option-empty", f"--rocm {text!r} names no ROCm", fix="e.g. --rocm 6,7, or leave it out")
    return tuple(row.major for row in rocms() if row.major in majors)


def headers_of(majors: Sequence[str]) -> tuple[Headers, ...]:
    """Return the headers for the objects of these ROCms, in the order of the data."""
    wanted = {rocm_of(major).headers for major in majors}
    return tuple(row for row in headers() if row.name in wanted)


def stubs_of(majors: Sequence[str]) -> tuple[Stub, ...]:
    """Return the libraries to link with for these ROCms, HIP's first."""
    functions = _rows("function", Functions)
    hip = [
        (rocm, tuple((row.node, row.names) for row in functions if rocm.headers in row.headers))
        for rocm in map(rocm_of, majors)
    ]
    return (
        *(Stub(name=f"rocm{row.major}", soname=row.soname, nodes=nodes) for row, nodes in hip),
        *(Stub(name=row.name, soname=row.soname, nodes=((row.node, row.functions),)) for row in libraries()),
    )
