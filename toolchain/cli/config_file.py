"""toolchain.toml: values of options, from a file that the user names, or from one in the current folder.

A file that was only found may come from someone else, as after `git clone`. It may set only options that cannot decide
whose code, keys, paths or registries are used; any other key in it is an error.
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
_LIMIT = 1 << 20  # bytes
# The type of a value in the file, and an example.
_FORMS: dict[Kind, tuple[Any, str]] = {
    "text": (str, '"…"'), "path": (str, '"…"'), "count": (int, "4"), "seconds": (float, "900"), "flag": (bool, "true"),
    "commas": (str | tuple[str, ...], '"…,…"'), "names": (tuple[str, ...], '["…"]'),
    "pairs": (tuple[str, ...], '["NAME=…"]'),
}  # fmt: skip


@dataclass(frozen=True)
class ConfigFile:
    """A file of option values.

    Args:
        path: the path as it was named or found.
        values: the values by parameter, as on the command line; relative paths are relative to the current folder.
    """

    path: Path
    values: Mapping[str, Any]


def read_config(named: str | None) -> ConfigFile | None:
    """Read the named file, otherwise `toolchain.toml` in the current folder if there is one."""
    path = Path(named or DEFAULT)
    try:
        written = read_regular(path, _LIMIT, within=path.parent)
        content = tomllib.loads(written.decode("utf-8-sig"))
    except OSError as error:
        # A dangling link must not silently mean the defaults.
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
            raise ConfigError(
                "config-not-named",
                f"{path} sets {name} = {value!r:.200}, and nobody named this file",
                why="a file that was only found may not decide whose code, keys, paths or registries are used",
                fix=f"if you trust it, name it: toolchain --config {path} …; otherwise remove the key",
            )
    return ConfigFile(
        path, {options[name].parameter: _value(options[name], value, path.parent) for name, value in content.items()}
    )


def forms() -> Mapping[Kind, str]:
    """Return an example of a value in the file for each kind of option."""
    return {kind: form for kind, (_, form) in _FORMS.items()}


def may_be_found(option: Option, value: Any) -> bool:
    """Return whether a file that nobody named may set an option to this value.

    A version on record is harmless, but the same option may take a path or any commit.
    """
    return option.found and (option.kind != "text" or option.known is None or value in option.known())


def _check_value(path: Path, option: Option, value: Any) -> None:
    kind, form = _FORMS[option.kind]
    try:
        typed(kind, value, option.name)
    except TypedError as error:
        fix = f"write it as in: {option.name} = {form}"
        raise ConfigError("config-bad-value", f"{path}: bad value for {error.where}", why=error.why, fix=fix) from error
    if option.least is not None and value < option.least:
        why = f"it must be at least {option.least:g}"
    elif option.most is not None and value > option.most:
        why = f"it must be at most {option.most:g}"
    else:
        return
    raise ConfigError("config-bad-value", f"{path}: {option.name} is {value}", why=why, fix="correct it")


def _value(option: Option, value: Any, folder: Path) -> Any:
    """Return the value as on the command line."""
    if isinstance(value, list):
        return ",".join(value) if option.kind == "commas" else [option.below(folder, text) for text in value]
    return option.below(folder, value) if isinstance(value, str) else value
