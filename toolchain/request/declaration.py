"""Options, each declared once; command line, environment, file, record, lock and documentation are derived from it.

An option of builds is a field of `request.model.Request` that `option(...)` makes; `declared` returns all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from toolchain.core.errors import UnsupportedError, did_you_mean

Kind = Literal["text", "count", "seconds", "flag", "commas", "names", "pairs", "path"]
Keep = Literal["never", "changed", "always"]
Panel = Literal["What", "Versions and sources", "Kernels", "Trust", "Machine"]
PANELS: tuple[Panel, ...] = get_args(Panel)
"""The panels in the order of the help."""
# The Python type of a value on the command line.
GIVEN: dict[Kind, Any] = {
    "text": str, "count": int, "seconds": float, "flag": bool, "commas": str, "names": list[str], "pairs": list[str],
    "path": Path,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option.

    Args:
        name: without the two dashes, and the key in toolchain.toml; TOOLCHAIN_NAME in the environment.
        kind: `commas` is one comma-separated text, `names` and `pairs` are repeatable.
        help: one or two sentences.
        panel: the panel of the help that lists it.
        short: one letter.
        least, most: the smallest and the largest number.
        explicit: whether giving the default differs from giving nothing.
        negated: whether it is given as `--no-NAME`.
        of: the names that a pair may have; empty for any.
        place: which part of the value is relative to its file: a path, or the text after `NAME=` or `oci:`.
        is_path: whether the text after `NAME=` is a path, if it can be something else.
        environment, file: whether it may be given there.
        found: whether a toolchain.toml that nobody named may set it. It must not decide whose code, keys, paths or
            registries are used. A text that has `known` values must then be one of them.
        never_empty: whether an empty environment variable is an error, because it decides which signatures are accepted
            or made.
        campaign: whether only verbs of kernel campaigns have it.
        is_input: whether the content that is built depends on it; its value is in records and provenance.
        lock: when a lock keeps it: never, always, or when it is not the default.
        known: the values for shell completion.
        closed: whether values other than the known ones are refused.
        read: makes the field's value from a given one.
        field: the field of the request that it sets; empty for an option of a single verb.
        default: the value of that field when nothing is given.
    """

    name: str
    help: str
    panel: Panel = "What"
    kind: Kind = "text"
    metavar: str | None = None
    short: str = ""
    least: float | None = None
    most: float | None = None
    explicit: bool = False
    negated: bool = False
    of: tuple[str, ...] = ()
    place: Literal["", "path", "pair", "oci"] = ""
    is_path: Callable[[str], bool] | None = None
    environment: bool = True
    file: bool = True
    found: bool = False
    never_empty: bool = False
    campaign: bool = False
    is_input: bool = False
    lock: Keep = "never"
    known: Callable[[], Iterable[str]] | None = None
    closed: bool = False
    read: Callable[[Any], Any] | None = None
    field: str = ""
    default: Any = None

    @property
    def parameter(self) -> str:
        """The name of the verb's parameter."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"TOOLCHAIN_{self.parameter.upper()}"

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--{self.name}"

    @property
    def given_default(self) -> Any:
        """The default as on the command line."""
        if self.kind == "commas":
            return ",".join(self.default) if self.default else None
        return None if self.explicit or self.kind in {"names", "pairs", "path"} else self.default

    def value(self, given: Any) -> Any:
        """Return the field's value for a given one; a closed option refuses unknown values."""
        if given is None:
            return self.default
        if self.read is not None:
            return self.read(given)
        parts = [part.strip() for part in given.split(",") if part.strip()] if self.kind == "commas" else []
        if self.closed and self.known is not None:
            known = list(self.known())
            for name in parts if self.kind == "commas" else [given]:
                if name not in known:
                    near = did_you_mean(name, known)
                    fix = f"{self.flag} with one of {', '.join(known)}"
                    raise UnsupportedError("unknown-value", f"{self.flag} has no value {name!r}{near}", fix=fix)
            parts.sort(key=known.index)
        if self.kind == "commas":
            return tuple(dict.fromkeys(parts))
        return tuple(given) if self.kind == "names" else given

    def words(self, value: Any) -> list[str]:
        """Return the option as words of a command line, for a value from a lock or record."""
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

    def below(self, folder: Path, text: str) -> str:
        """Return a text of the option with its relative path taken as relative to `folder`."""
        before, rest = "", text
        if self.place == "pair":
            name, sign, rest = text.partition("=")
            before = name + sign
        elif text.startswith("oci:") and self.place in {"oci", "path"}:
            before, rest = "oci:", text.removeprefix("oci:")
        elif self.place != "path":
            return text
        if not rest or rest.startswith(("/", "~")) or (self.is_path is not None and not self.is_path(rest)):
            return text
        # `os.path.join` keeps a trailing slash.
        return text if folder == Path() else before + os.path.join(folder, rest)  # noqa: PTH118


def as_list(value: Any) -> list[Any]:
    """Return one or several values as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


def option(name: str, *, default: Any = MISSING, factory: Any = MISSING, **facts: Any) -> Any:
    """Return the field of a dataclass that an option sets; see `Option` for the facts."""
    metadata = {"option": Option(name=name, **facts)}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(kind: Any) -> tuple[Option, ...]:
    """Return the options that the fields of a dataclass declare, in their order."""
    rows = []
    for one in fields(kind):
        if "option" in one.metadata:
            default = one.default if one.default_factory is MISSING else one.default_factory()
            rows.append(
                replace(one.metadata["option"], field=one.name, default=None if default is MISSING else default)
            )
    return tuple(rows)


def plain(value: Any) -> Any:
    """Return a field's value for JSON and TOML, with other types as text."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value if value is None or isinstance(value, str | int | float) else str(value)
