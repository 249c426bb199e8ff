"""The CPythons that a portable wheel is built for, from data/pythons.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolchain.core.errors import ConfigError, PinError, UnsupportedError
from toolchain.data import FOLDER, load, typed_row

_VERSION = re.compile(r"3\.(0|[1-9][0-9]?)")


@dataclass(frozen=True, kw_only=True)
class Python:
    """A row of data/pythons.toml, which describes the fields."""

    version: str
    system: str
    suite: str
    packages: tuple[str, ...]

    @property
    def tag(self) -> str:
        """The name in tags of wheels: `cp313`."""
        return "cp" + self.version.replace(".", "")

    @property
    def distro(self) -> str:
        """The distribution in the form of base names: `debian13`."""
        return self.system.replace(" ", "").lower()

    @property
    def headers(self) -> str:
        """The package with its headers."""
        return f"libpython{self.version}-dev"


def load_pythons() -> dict[str, Python]:
    """Return every row by its version, in the order of the data."""
    source = FOLDER / "pythons.toml"
    rows = load("pythons").items()
    return {version: typed_row(Python, {**row, "version": version}, version, source) for version, row in rows}


def python_of(version: str) -> Python:
    """Return the CPython of a version."""
    known = load_pythons()
    if (row := known.get(check_version(version))) is None:
        raise UnsupportedError(
            "python-not-built",
            f"no portable wheel is built for Python {version}",
            why="its headers come from a released Debian, which has " + ", ".join(known),
            fix="name one of these: --python 3.11,3.13; or a base that has it, for a wheel of that base",
        )
    return row


def check_version(version: str) -> str:
    """Return the version if it is one of Python, such as `3.13`."""
    if not _VERSION.fullmatch(version):
        raise ConfigError("not-a-python-version", f"{version!r} is not a Python version", fix="give e.g. --python 3.13")
    return version


def check_range(version: str, requires: str, *, name: str) -> None:
    """Check that a source supports a Python.

    Args:
        version: `3.13`.
        requires: the source's `python_requires`; empty if it has none.
        name: the source, for messages.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 - most plans build no wheel

    try:
        supported = SpecifierSet(requires)
    except InvalidSpecifier as error:
        raise PinError(
            "python-range-unreadable",
            f"{name} supports no range of Pythons that can be read: {requires!r}",
            why="a range reads like >=3.8,<3.13",
            fix="correct python_requires in its source, or leave --python out",
        ) from error
    if not supported.contains(version):
        raise UnsupportedError(
            "python-not-supported",
            f"{name} does not support Python {version}",
            why=f"it says python_requires = {requires}",
            fix="leave that version out of --python",
        )
