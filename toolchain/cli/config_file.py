"""Read option values from a configuration file that the user names, or from toolchain.toml in the current folder.

A file that the user did not name may come from someone else, for example after `git clone`. Such a file must not decide
whose code, keys, paths or registries are used, so it can set only options that do not affect those.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.cli.options import file_options
from toolchain.core import toml_text
from toolchain.core.errors import ConfigError, did_you_mean
from toolchain.core.filesystem import read_regular
from toolchain.core.typed import TypedError, typed
from toolchain.request.declaration import Kind, Option

DEFAULT = "toolchain.toml"
_LIMIT = 1 << 20  # bytes; the maximum size of a configuration file

# Each kind of option is mapped to the type of its value in a configuration file, and to an example.
_FORMS: dict[Kind, tuple[Any, str]] = {
    "text": (str, '"…"'), "path": (str, '"…"'), "count": (int, "4"), "seconds": (float, "900"), "flag": (bool, "true"),
    "commas": (str | tuple[str, ...], '"…,…"'), "names": (tuple[str, ...], '["…"]'),
    "pairs": (tuple[str, ...], '["NAME=…"]'),
}  # fmt: skip


@dataclass(frozen=True)
class ConfigFile:
    """The content of a configuration file.

    Args:
        values: the values by parameter, in the form of the command line; relative paths have been joined to the file's
            folder.
    """

    path: Path
    values: Mapping[str, Any]


def read_config(named: str | None) -> ConfigFile | None:
    """Return the content of the named file, or of ./toolchain.toml if no file is named.

    None is returned if no file is named and ./toolchain.toml does not exist. ConfigError is raised for a file that is
    unreadable or invalid, and for a value that requires a named file (see `may_be_found`).
    """
    path = Path(named or DEFAULT)
    try:
        written = read_regular(path, _LIMIT, within=path.parent)
        content = toml_text.read(written.decode("utf-8-sig"))
    except OSError as error:
        # A dangling link is an error, because the user expects the file to be used.
        if named is None and not os.path.lexists(path):
            return None
        raise ConfigError(
            "config-unreadable",
            f"cannot read {path}",
            why=error.strerror or str(error),
            fix="correct the file, or use another one: --config FILE",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            "config-not-toml", f"{path} is not TOML", why=toml_text.why_not(error), fix="correct the file"
        ) from error
    options = {option.name: option for option in file_options()}
    for name, value in content.items():
        if name not in options:
            raise ConfigError(
                "config-unknown-key",
                f"{path}: unknown key {name!r}{did_you_mean(name, options)}",
                why=f"known keys: {', '.join(sorted(options))}",
                fix="correct or remove the key",
            )
        _check_value(path, options[name], value)
        if named is None and not may_be_found(options[name], value):
            known = options[name].known if options[name].found else None
            near = did_you_mean(str(value), known()) if known is not None else ""
            raise ConfigError(
                "config-not-named",
                f"{path} sets {name} = {value!r:.200}, which requires --config{near}",
                why="a file that you did not name must not decide whose code, keys, paths or registries are used",
                fix=f"if you trust the file, run: toolchain --config {path} …; otherwise remove the key",
            )
    return ConfigFile(
        path, {options[name].parameter: _value(options[name], value, path.parent) for name, value in content.items()}
    )


def forms() -> Mapping[Kind, str]:
    """Return an example value for each kind of option, as a configuration file would contain it."""
    return {kind: form for kind, (_, form) in _FORMS.items()}


def may_be_found(option: Option, value: Any) -> bool:
    """Return whether a file that the user did not name may set an option to this value.

    If a text option has known values, only those are allowed, because the option may also accept a path or a commit.
    """
    return option.found and (option.kind != "text" or option.known is None or value in option.known())


def _check_value(path: Path, option: Option, value: Any) -> None:
    kind, form = _FORMS[option.kind]
    try:
        typed(kind, value, option.name)
    except TypedError as error:
        fix = f"use the form {option.name} = {form}"
        raise ConfigError("config-bad-value", f"{path}: bad value for {error.where}", why=error.why, fix=fix) from error
    if option.least is not None and value < option.least:
        why = f"it must be at least {option.least:g}"
    elif option.most is not None and value > option.most:
        why = f"it must be at most {option.most:g}"
    else:
        return
    raise ConfigError("config-bad-value", f"{path}: {option.name} is {value}", why=why, fix="correct the value")


def _value(option: Option, value: Any, folder: Path) -> Any:
    """Return a value in the form of the command line, with relative paths joined to `folder`."""
    if isinstance(value, list):
        return ",".join(value) if option.kind == "commas" else [option.below(folder, text) for text in value]
    return option.below(folder, value) if isinstance(value, str) else value
