"""toolchain.toml: values for the options, from a file."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolchain.catalog import stages
from toolchain.core import toml_text
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import ConfigError
from toolchain.core.filesystem import NewFile, read_regular
from toolchain.core.typed import TypedError, typed
from toolchain.request import model as request_module
from toolchain.request.options import Kind, Option, into, moved, out_of, plain

DEST = Option(
    name="dest", place="oci", example="oci:out", help="Destination of `publish`: oci:DIR or REGISTRY/NS.",
)  # fmt: skip
COMPRESSION = Option(
    name="compression", panel="Machine", known=lambda: ("gzip", "zstd"), example="zstd",
    help="Layer compression of `publish`: gzip, which every engine reads, or zstd, about a third smaller.",
)  # fmt: skip
KEY = Option(
    name="key", panel="Trust", kind="path", place="path", example="release-key",
    help="Private key (PEM) that `publish` signs SBOM and provenance with.",
)  # fmt: skip
PUBLIC_KEY = Option(
    name="public-key", panel="Trust", kind="path", place="path", example="release-key.pub",
    help="Public key (PEM) that signatures must match, for `build --reuse-from`; `verify` reads it from the environment"
    " only.",
)  # fmt: skip
SOURCE_REPO = Option(
    name="source-repo", panel="Trust", kind="names", metavar="OWNER/NAME|URL", example=["llvm/llvm-project"],
    help="For `verify`: every source must come from one of these repositories. Repeatable.",
)  # fmt: skip
REUSE_FROM = Option(
    name="reuse-from", panel="Trust", place="oci", metavar="WHERE", example="registry.example/ns",
    help="Reuse finished images from REGISTRY/NS or oci:DIR after verifying each. Needs --public-key.",
)  # fmt: skip
STAGE = Option(
    name="stage", environment=False, example="llvm", known=stages.targets,
    help=f"Stage for verbs that are called without one: {stages.choice()}",
)  # fmt: skip
# Beside the options of a request, those of single verbs.
OF_VERBS = (STAGE, DEST, COMPRESSION, KEY, PUBLIC_KEY, SOURCE_REPO, REUSE_FROM)


def file_options() -> tuple[Option, ...]:
    """The options that the file may hold, in the order in which it is written."""
    return (*(declared.option for declared in request_module.options() if declared.option.file), *OF_VERBS)


_LIMIT = 1 << 20  # bytes


def read_content(path: Path) -> bytes:
    """The bytes of a file of option values.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return read_regular(path, _LIMIT, within=path.parent)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"cannot read {path}", why=why, fix="correct the file, or use another one: --config FILE"
        ) from error


def read_values(path: Path, written: bytes) -> dict[str, Any]:
    """Option values from a TOML file, by parameter name. Relative paths in it are relative to its folder.

    Args:
        path: for the messages, and for its folder.
        written: the file's bytes.

    Raises:
        ConfigError: not TOML, an unknown key or a value of the wrong type.
    """
    try:
        content = tomllib.loads(written.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML", why=str(error), fix="`toolchain init` writes a valid file") from error
    known = {option.name: option for option in file_options()}
    for name, value in content.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"{path}: unknown key {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
                why=f"known keys: {', '.join(sorted(known))}",
                fix="correct or remove the key",
            )
        _check_value(path, known[name], value)
    move = into(path.parent)
    return {known[name].parameter: _value(known[name], value, move) for name, value in content.items()}


_TYPES: dict[Kind, Any] = {
    "text": str, "path": str, "count": int, "seconds": float, "flag": bool, "commas": str | tuple[str, ...],
    "names": tuple[str, ...], "pairs": tuple[str, ...],
}  # fmt: skip


def _check_value(path: Path, option: Option, value: Any) -> None:
    """Check the type of an option's value, and its minimum.

    Raises:
        ConfigError: another type; the message names the key, the expected and the actual type.
    """
    try:
        typed(_TYPES[option.kind], value, option.name)
    except TypedError as error:
        raise ConfigError(
            f"{path}: bad value for {error.where}",
            why=error.why,
            fix=f"write it as in: {option.name} = {toml_text.value(_shown(option))}",
        ) from error
    if option.least is not None and value < option.least:
        raise ConfigError(
            f"{path}: {option.name} is {value}", why=f"it must be at least {option.least:g}", fix="correct it"
        )


def _value(option: Option, value: Any, move: Callable[[str], str]) -> Any:
    """The value as on the command line."""
    if option.kind == "commas" and isinstance(value, list):
        return ",".join(value)
    if isinstance(value, list):
        return [moved(option, text, move) for text in value]
    return moved(option, value, move) if isinstance(value, str) else value


# Writing

_HEAD = """\
# Option values for `toolchain`, written by `toolchain init`. Commented lines show the default, or an example where
# there is no default. Relative paths are relative to the folder of this file.
# The command line overrides the environment (TOOLCHAIN_GPU for gpu), which overrides this file.
# Options that have the same name and mean something else are not set, such as `lock --check` and `audit --key`.
# `verify` ignores `public-key` and `allow-binary` in this file, and `pins` ignores all of it.
# After a change run `toolchain trust`: options that affect trust are ignored in a file that is not approved, unless
# it is named with `--config`.
"""


def render(given: Mapping[str, Any], folder: Path) -> str:
    """A file with the options that are given, and all others as comments.

    Args:
        given: by parameter, as the command line has them: relative paths are relative to the current folder.
        folder: where the file will be.
    """
    parts = [_HEAD]
    for option in file_options():
        active = option.parameter in given
        value = _text(option, given[option.parameter], out_of(folder)) if active else _shown(option)
        told = option.help.replace("\\[", "[")
        parts.append(f"# {told}\n{'' if active else '# '}{option.name} = {toml_text.value(value)}\n")
    return "\n".join(parts)


def _shown(option: Option) -> Any:
    """The default of an option; an example where it has none."""
    default = plain(next((row.default for row in request_module.options() if row.option.name == option.name), None))
    shown = option.example if default in (None, "", [], {}) else default
    return ",".join(shown) if option.kind == "commas" and isinstance(shown, list) else shown


def _text(option: Option, value: Any, move: Callable[[str], str]) -> Any:
    written = _value(option, str(value) if isinstance(value, Path) else value, move)
    try:
        "".join(written if isinstance(written, list) else [str(written)]).encode()
    except UnicodeEncodeError as error:
        why = "the file is UTF-8, and the path is not"
        what = f"{option.flag} {str(written)!r} cannot be written"
        raise ConfigError(what, why=why, fix="rename it, or use a symlink") from error
    return written


def write_new(path: Path, content: str) -> None:
    """Write a file that is not there yet, whole or not at all.

    Raises:
        ConfigError: it is there, or it cannot be written.
    """
    try:
        with NewFile(path) as new:
            new.stream.write(content.encode())
            written = new.finish(sha256_bytes(content.encode()), replace=False)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}", why=str(error.strerror), fix="use another file: --config FILE"
        ) from error
    if not written:
        raise ConfigError(
            f"{path} already exists",
            fix="edit it, move it away, or use another file: toolchain --config FILE init",
        )
