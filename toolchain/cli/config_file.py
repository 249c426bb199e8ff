"""toolchain.toml: values for the options, from a file."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from toolchain import request as request_module
from toolchain import toml_text
from toolchain.catalog import stages
from toolchain.errors import ConfigError
from toolchain.options import IN_FILE, Option, into, moved, out_of, plain

DEST = Option(
    name="dest", place="oci", example="oci:out", help="Where `publish` sends images: oci:DIR or REGISTRY/NS.",
)  # fmt: skip
KEY = Option(
    name="key", kind="path", place="path", example="release-key.pem",
    help="Key in PEM: `publish` signs with the private one, `build --reuse-from` trusts the public one.",
)  # fmt: skip
SOURCE_REPO = Option(
    name="source-repo", kind="names", metavar="OWNER/NAME|URL", example=["llvm/llvm-project"],
    help="For `verify`: every source must come from here; again for each.",
)  # fmt: skip
REUSE_FROM = Option(
    name="reuse-from", place="oci", metavar="WHERE", example="registry.example/ns",
    help="REGISTRY/NS or oci:DIR: take finished images from there, each only once it is verified. Needs --key.",
)  # fmt: skip
STAGE = Option(
    name="stage", environment=False, example="llvm",
    help=f"The stage for verbs that are given none: {stages.choice()}",
)  # fmt: skip
# Beside the options of a request, those of single verbs.
OF_VERBS = (STAGE, DEST, KEY, SOURCE_REPO, REUSE_FROM)


def file_options() -> tuple[Option, ...]:
    """The options that the file may hold, in the order in which it is written."""
    return (*(one.option for one in request_module.options() if one.option.file), *OF_VERBS)


def _model() -> type[BaseModel]:
    """The same names as the options, without the dashes in front."""
    keys: dict[str, Any] = {
        one.parameter: (IN_FILE[one.kind] | None, Field(None, alias=one.name)) for one in file_options()
    }
    return create_model(
        "toolchain.toml", __config__=ConfigDict(extra="forbid", frozen=True, populate_by_name=True), **keys
    )


def read_file(path: Path) -> dict[str, Any]:
    """Option values from a TOML file, by parameter name. Relative paths in it are relative to its folder.

    Raises:
        ConfigError: not there, not TOML, an unknown key or a value of the wrong type.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=str(error.strerror), fix="check --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML", why=str(error)) from error
    try:
        model = _model().model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][0])
        known = ", ".join(sorted(one.name for one in file_options()))
        unknown = first["type"] == "extra_forbidden"
        raise ConfigError(
            f"{path}: unknown key {where!r}" if unknown else f"{path}: bad value for {where!r}",
            why=f"known keys: {known}" if unknown else first["msg"],
            fix="correct or remove the key",
        ) from error
    move = into(path.parent)
    given = ((one, getattr(model, one.parameter)) for one in file_options())
    return {one.parameter: _value(one, value, move) for one, value in given if value is not None}


def _value(one: Option, value: Any, move: Callable[[str], str]) -> Any:
    """As the command line gives it."""
    if one.kind == "commas" and isinstance(value, list):
        return ",".join(value)
    if isinstance(value, list):
        return [moved(one, text, move) for text in value]
    return moved(one, value, move) if isinstance(value, str) else value


# Writing

_HEAD = """\
# Values for the options of `toolchain`, by `toolchain init`. A line that begins with # is not in force: it shows the
# default, or an example where there is none. Relative paths are relative to the folder of this file.
# The command line wins over the environment (TOOLCHAIN_GPU for gpu), that over this file, this over the default.
# `verify` takes neither a key nor an exception from here, and `pins` nothing.
"""


def render(given: Mapping[str, Any], folder: Path) -> str:
    """A file with the options that are given, and all others as comments.

    Args:
        given: by parameter, as the command line has them: relative paths are relative to the current folder.
        folder: where the file will lie.
    """
    defaults = {one.option.name: one.default for one in request_module.options()}
    parts = [_HEAD]
    for one in file_options():
        default = plain(defaults.get(one.name))
        shown = one.example if default in (None, [], {}) else default
        shown = ",".join(shown) if one.kind == "commas" and isinstance(shown, list) else shown
        active = one.parameter in given
        value = _text(one, given[one.parameter], out_of(folder)) if active else shown
        parts.append(f"# {_told(one)}\n{'' if active else '# '}{one.name} = {toml_text.value(value)}\n")
    return "\n".join(parts)


def _text(one: Option, value: Any, move: Callable[[str], str]) -> Any:
    value = str(value) if isinstance(value, Path) else value
    return _value(one, value, move)


def _told(one: Option) -> str:
    return one.help.replace("\\[", "[")


def write_new(path: Path, content: str) -> None:
    """Write a file that is not there yet, whole or not at all.

    Raises:
        ConfigError: it is there, or it cannot be written.
    """
    partial = ""
    try:
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        Path(partial).chmod(0o644)
        os.link(partial, path)  # unlike a renaming it fails where a file is
    except FileExistsError as error:
        raise ConfigError(
            f"{path} is already there, and is left as it is",
            fix="edit it, move it away, or name another file: toolchain --config FILE init",
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}", why=str(error.strerror), fix="name another: --config FILE") from error
    finally:
        if partial:
            Path(partial).unlink(missing_ok=True)
