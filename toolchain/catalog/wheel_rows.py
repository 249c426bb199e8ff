"""The tables of data/wheels.toml: the wheels that are built on Triton, and the PyTorch that they are built with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache as memoize

from toolchain.core.errors import UnsupportedError
from toolchain.data import FOLDER, load, typed_row

_FILE = FOLDER / "wheels.toml"


@dataclass(frozen=True, kw_only=True)
class WheelEdit:
    """An edit of a source file: `text` replaces `anchor`, which must occur exactly once in `file`."""

    file: str
    anchor: str
    text: str


@dataclass(frozen=True, kw_only=True)
class WheelRow:
    """A `[wheels.NAME]` table of data/wheels.toml, which documents the fields."""

    name: str = ""
    project: str = ""
    repository: str = ""
    commit: str = ""
    license: str
    needs: tuple[str, ...]
    leave_out: tuple[str, ...] = ()
    build: Mapping[str, str]
    run: Mapping[str, str]
    requires: tuple[str, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    edits: tuple[WheelEdit, ...] = ()
    tag: str
    why: str = ""
    without: tuple[str, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...]
    stray: tuple[str, ...] = ()
    imports: tuple[str, ...]
    walks: tuple[str, ...] = ()
    tests: int


@dataclass(frozen=True, kw_only=True)
class TorchRow:
    """A `[torch.BASE]` table of data/wheels.toml: the PyTorch packages in the distribution of a base."""

    name: str = ""
    suite: str
    packages: tuple[str, ...]
    links: Mapping[str, str]


@memoize
def wheel_rows() -> tuple[WheelRow, ...]:
    """Return the tables of all wheels, in the order of data/wheels.toml."""
    return tuple(
        typed_row(WheelRow, {**row, "name": name}, name, _FILE) for name, row in load("wheels")["wheels"].items()
    )


def wheel_row(name: str) -> WheelRow:
    return {row.name: row for row in wheel_rows()}[name]


def torch_row(base: str) -> TorchRow:
    """Return the PyTorch packages for the base with this name; raise an UnsupportedError if there are none."""
    rows = load("wheels")["torch"]
    if base not in rows:
        raise UnsupportedError("base-without-pytorch",
            f"no PyTorch is known for the base {base}", why=f"{_FILE.name} lists one only for {', '.join(rows)}",
            fix=f"use --base {next(iter(rows))}",
        )  # fmt: skip
    return typed_row(TorchRow, {**rows[base], "name": base}, base, _FILE)
