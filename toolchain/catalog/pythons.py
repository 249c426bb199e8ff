"""The tables of data/pythons.toml: the CPython versions that portable wheels are built for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from toolchain.core.errors import ConfigError, PinError, UnsupportedError
from toolchain.data import FOLDER, load, typed_row

_VERSION = re.compile(r"3\.(0|[1-9][0-9]?)")


@dataclass(frozen=True, kw_only=True)
class Python:
    """A table of data/pythons.toml, which documents the fields."""

    version: str
    system: str
    suite: str
    packages: tuple[str, ...]

    @property
    def tag(self) -> str:
        """Return the tag that wheel names use for this version, such as `cp313`."""
        return "cp" + self.version.replace(".", "")

    @property
    def distro(self) -> str:
        """Return the distribution, written like the name of a base, such as `debian13`."""
        return self.system.replace(" ", "").lower()

    @property
    def headers(self) -> str:
        """Return the name of the Debian package with the headers of this CPython version."""
        return f"libpython{self.version}-dev"


def load_pythons() -> dict[str, Python]:
    """Return all tables of data/pythons.toml by version, in file order."""
    source = FOLDER / "pythons.toml"
    rows = load("pythons").items()
    return {version: typed_row(Python, {**row, "version": version}, version, source) for version, row in rows}


def python_of(version: str) -> Python:
    """Return the table of a CPython version; raise an UnsupportedError if there is none.

    Raise a ConfigError if `version` does not have the form `3.13`.
    """
    known = load_pythons()
    if (row := known.get(check_version(version))) is None:
        raise UnsupportedError(
            "python-not-built",
            f"portable wheels cannot be built for Python {version}",
            why="the headers come from Debian releases, which have Python " + ", ".join(known),
            fix="use one of these versions: --python 3.11,3.13; or give a base that has this Python, for a wheel that "
            "is bound to the base",
        )
    return row


def check_version(version: str) -> str:
    """Return `version`; raise a ConfigError unless it has the form `3.13`."""
    if not _VERSION.fullmatch(version):
        raise ConfigError("not-a-python-version", f"{version!r} is not a Python version", fix="use e.g. --python 3.13")
    return version


def check_range(version: str, requires: str, *, name: str) -> None:
    """Raise an error if `requires`, the `python_requires` of a source, is invalid or excludes `version`."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 - most plans build no wheel

    try:
        supported = SpecifierSet(requires)
    except InvalidSpecifier as error:
        raise PinError(
            "python-range-unreadable",
            f"the python_requires of {name} is not a range of versions: {requires!r}",
            why="a range has a form such as >=3.8,<3.13",
            fix="correct python_requires in the source, or omit --python",
        ) from error
    if not supported.contains(version):
        raise UnsupportedError(
            "python-not-supported",
            f"{name} does not support Python {version}",
            why=f"it declares python_requires = {requires}",
            fix="remove that version from --python",
        )
