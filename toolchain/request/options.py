"""Options, each declared once: command line, environment, file, record, lock and the table in the docs derive from it.

An option of builds is a field of `request.Request` with `option(...)` as its metadata; `declared` gives all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

Kind = Literal["text", "count", "seconds", "flag", "commas", "names", "pairs", "path"]
Keep = Literal["never", "changed", "always"]
Panel = Literal["What", "Versions and sources", "Kernels", "Trust", "Machine"]
PANELS: tuple[Panel, ...] = get_args(Panel)
"""In the order in which the help of a verb has them."""
# What is given on the command line.
GIVEN: dict[Kind, Any] = {
    "text": str, "count": int, "seconds": float, "flag": bool, "commas": str, "names": list[str], "pairs": list[str],
    "path": Path,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option.

    Args:
        name: after the two dashes, and the key in toolchain.toml; TOOLCHAIN_NAME in the environment.
        kind: `commas` is one comma-separated text, `names` and `pairs` are repeatable.
        help: for display, one or two sentences.
        panel: under which the help of a verb lists it.
        example: a value for a file in which it has none.
        short: one letter.
        least: the smallest number.
        explicit: whether giving the default differs from giving nothing.
        negated: whether it is given as `--no-NAME`.
        of: the names that a pair may have; empty for any.
        place: which part of the value is relative to its file: a path, what follows `NAME=` or `oci:`.
        is_path: whether what follows `NAME=` is a path, where it can be something else.
        environment, file: whether it may be given there.
        is_input: whether what is built depends on it; its value is in records and provenance.
        lock: when a lock keeps it: never, always, or when it is not the default.
        known: the values that a shell completes; other values may do as well.
        read: what makes the field's value of what was given; not called where nothing was.
    """

    name: str
    help: str
    panel: Panel = "What"
    kind: Kind = "text"
    metavar: str | None = None
    example: Any = None
    short: str = ""
    least: float | None = None
    explicit: bool = False
    negated: bool = False
    of: tuple[str, ...] = ()
    place: Literal["", "path", "pair", "oci"] = ""
    is_path: Callable[[str], bool] | None = None
    environment: bool = True
    file: bool = True
    is_input: bool = False
    lock: Keep = "never"
    known: Callable[[], Iterable[str]] | None = None
    read: Callable[[Any], Any] | None = None

    @property
    def parameter(self) -> str:
        """The name of the verb's parameter."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """In the environment."""
        return f"TOOLCHAIN_{self.parameter.upper()}"

    @property
    def flag(self) -> str:
        """On the command line."""
        return f"--{self.name}"

    def words(self, value: Any) -> list[str]:
        """The option on a command line, with a value as locks and records hold it."""
        if self.kind == "flag":
            return [self.flag if value else f"--no-{self.name}"]
        if isinstance(value, Mapping):
            texts = [f"{name}={text}" for name, several in sorted(value.items()) for text in as_list(several)]
        elif self.kind == "names":
            texts = [str(row) for row in as_list(value)]
        else:
            rows = as_list(value)
            texts = [",".join(f"{row:g}" if isinstance(row, float) else str(row) for row in rows)] if rows else []
        return [word for text in texts for word in (self.flag, text)]


def as_list(value: Any) -> list[Any]:
    """One value, or several, as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


@dataclass(frozen=True)
class Declared:
    """An option and the field that declares it, with the value that the field has when nothing is given."""

    field: str
    option: Option
    default: Any

    @property
    def given_default(self) -> Any:
        """The default as in the command line."""
        if self.option.kind == "commas":
            return ",".join(self.default) if self.default else None
        return None if self.option.explicit or self.option.kind in {"names", "pairs", "path"} else self.default

    def value(self, given: Any) -> Any:
        """The field's value of what was given.

        Raises:
            ToolchainError: as `Option.read`.
        """
        if given is None:
            return self.default
        if self.option.read is not None:
            return self.option.read(given)
        if self.option.kind == "commas":
            return tuple(part.strip() for part in given.split(",") if part.strip())
        return tuple(given) if self.option.kind == "names" else given


def option(name: str, **facts: Any) -> Mapping[str, Option]:
    """The metadata of a field that an option sets; see `Option` for the arguments."""
    return {"option": Option(name=name, **facts)}


def declared(kind: Any) -> tuple[Declared, ...]:
    """The options that the fields of a dataclass declare, in their order."""
    return tuple(
        Declared(field.name, field.metadata["option"], _default(field))
        for field in fields(kind)
        if "option" in field.metadata
    )


def _default(declaring: Field[Any]) -> Any:
    if declaring.default_factory is not MISSING:
        return declaring.default_factory()
    return None if declaring.default is MISSING else declaring.default


def plain(value: Any) -> Any:
    """A field's value as in JSON and TOML; other types become their text."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value if value is None or isinstance(value, str | int | float) else str(value)


def moved(option: Option, text: str, move: Callable[[str], str]) -> str:
    """An option's text with the relative path in it moved.

    Args:
        move: returns the replacement of a relative path.
    """
    before, rest = "", text
    if option.place == "pair":
        name, sign, rest = text.partition("=")
        before = name + sign
    elif option.place == "oci" or (option.place == "path" and text.startswith("oci:")):
        if not text.startswith("oci:"):
            return text
        before, rest = "oci:", text.removeprefix("oci:")
    if (
        not option.place
        or not rest
        or rest.startswith(("/", "~"))
        or (option.is_path is not None and not option.is_path(rest))
    ):
        return text
    return before + move(rest)


def into(folder: Path) -> Callable[[str], str]:
    """For `moved`: paths relative to `folder` become relative to the current folder."""
    place = os.fspath(folder)
    return lambda path: path if place in {"", "."} else os.path.join(place, path)  # noqa: PTH118 - keeps a slash at the end


def out_of(folder: Path) -> Callable[[str], str]:
    """For `moved`: paths relative to the current folder become relative to `folder`."""

    def move(path: str) -> str:
        if folder.absolute() == Path.cwd():
            return path
        return os.path.relpath(path, folder) + ("/" if path.endswith("/") else "")

    return move
