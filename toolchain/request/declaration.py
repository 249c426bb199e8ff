"""Declarations of options.

The command line, the environment variables, toolchain.toml, records, locks and the documentation are derived from them.

An option of a build is a field of `request.model.Request` that is made by `option(...)`. `declared` returns all options
of a class.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from toolchain.core.errors import UnsupportedError, did_you_mean
from toolchain.core.home import expanded

Kind = Literal["text", "count", "seconds", "flag", "commas", "names", "pairs", "path"]
Keep = Literal["never", "changed", "always"]
Panel = Literal["What", "Versions and sources", "Kernels", "Trust", "Machine"]
PANELS: tuple[Panel, ...] = get_args(Panel)
"""The panels, in the order in which `--help` shows them."""
# Typer converts each kind of value to this Python type.
GIVEN: dict[Kind, Any] = {
    "text": str, "count": int, "seconds": float, "flag": bool, "commas": str, "names": list[str], "pairs": list[str],
    "path": Path,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Option:
    """The declaration of an option.

    Args:
        name: the name without the two dashes, which is also the key in toolchain.toml.
        kind: the kind of its value. A `commas` option takes one comma-separated string; `names` and `pairs` options can
            be repeated.
        short: the letter of its short form; empty if it has none.
        explicit: whether giving the default value requests something other than giving no value.
        negated: whether the command line also accepts the form `--no-NAME`.
        of: the valid names in `NAME=VALUE` pairs; empty if all names are valid.
        place: which part of a value in a file is a path: all of it except a prefix `oci:` (`path`), the text after
            `NAME=` (`pair`), or the text after `oci:` (`oci`); empty for none.
        is_path: a function that returns whether that part is a path; None if it always is.
        environment: whether an environment variable can set the option.
        file: whether toolchain.toml can set the option.
        found: whether a toolchain.toml in the current folder can set the option without `--config`. Such an option must
            not decide whose code, keys, paths or registries are used; a text option with `known` values can be set only
            to one of them.
        never_empty: whether an empty environment variable is an error.
        campaign: whether the option is for kernel campaigns. `build` does not accept it, but `kernels run` does.
        is_input: whether records and provenance contain its value.
        lock: when a lock file contains the value: never, always, or only if it differs from the default.
        known: a function that returns the values that shell completion offers.
        closed: whether only the known values are accepted.
        read: a function that checks a value from the command line and converts it to the value of the field.
        field: the field of the request that the option sets; empty for an option of a single verb.
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
        """Return the name of the option's parameter in the function of a verb."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return f"TOOLCHAIN_{self.parameter.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def given_default(self) -> Any:
        """Return the default in the form in which the command line gives a value.

        The result is None for an empty default of a `commas` option, and for `names`, `pairs` and `path` options. It is
        also None for an `explicit` option, because giving its default differs from giving no value.
        """
        if self.kind == "commas":
            return ",".join(self.default) if self.default else None
        return None if self.explicit or self.kind in {"names", "pairs", "path"} else self.default

    def value(self, given: Any) -> Any:
        """Convert a value from the command line to the field's value; raise ToolchainError if it is not accepted.

        None, which means that the option is not given, becomes the default.
        """
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
                    fix = f"use {self.flag} with one of {', '.join(known)}"
                    raise UnsupportedError("unknown-value", f"{self.flag} has no value {name!r}{near}", fix=fix)
            parts.sort(key=known.index)
        if self.kind == "commas":
            return tuple(dict.fromkeys(parts))
        return tuple(given) if self.kind == "names" else given

    def words(self, value: Any) -> list[str]:
        """Return the command-line words that set the option to a value from a lock or record."""
        if self.kind == "flag":
            if not value:
                return [f"--no-{self.name}"] if self.negated else []
            return [self.flag]
        if isinstance(value, Mapping):
            texts = [f"{name}={text}" for name, several in sorted(value.items()) for text in as_list(several)]
        elif self.kind == "names":
            texts = [str(row) for row in as_list(value)]
        else:
            rows = as_list(value)
            texts = [",".join(f"{row:g}" if isinstance(row, float) else str(row) for row in rows)] if rows else []
        return [word for text in texts for word in (self.flag, text)]

    def below(self, folder: Path, text: str) -> str:
        """Return `text`, an option's value from a file in `folder`, with a relative path in it joined to `folder`.

        `~` at the beginning of the path stands for the user's home folder.
        """
        before, rest = "", text
        if self.place == "pair":
            name, sign, rest = text.partition("=")
            before = name + sign
        elif text.startswith("oci:") and self.place in {"oci", "path"}:
            before, rest = "oci:", text.removeprefix("oci:")
        elif self.place != "path":
            return text
        if not rest or rest.startswith("/") or (self.is_path is not None and not self.is_path(rest)):
            return text
        if rest.startswith("~"):
            return before + expanded(rest)
        # Unlike `Path`, `os.path.join` keeps a trailing slash.
        return text if folder == Path() else before + os.path.join(folder, rest)  # noqa: PTH118


def as_list(value: Any) -> list[Any]:
    """Return a list or tuple as a list, and any other value as a list of one item."""
    return list(value) if isinstance(value, list | tuple) else [value]


def option(name: str, *, default: Any = MISSING, factory: Any = MISSING, **facts: Any) -> Any:
    """Return a dataclass field that declares an option; `facts` are further arguments of `Option`."""
    metadata = {"option": Option(name=name, **facts)}
    if factory is not MISSING:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(kind: Any) -> tuple[Option, ...]:
    """Return the options that the fields of a dataclass declare, in the order of the fields."""
    rows = []
    for one in fields(kind):
        if "option" in one.metadata:
            default = one.default if one.default_factory is MISSING else one.default_factory()
            rows.append(
                replace(one.metadata["option"], field=one.name, default=None if default is MISSING else default)
            )
    return tuple(rows)


def plain(value: Any) -> Any:
    """Convert the value of a field to types that JSON supports; values of other types become text."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value if value is None or isinstance(value, str | int | float) else str(value)
