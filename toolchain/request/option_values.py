"""Convert and check the values of options that have a structure, such as lists, pairs or paths."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolchain.catalog.architectures import machine_of
from toolchain.catalog.gpus import parse_gpus
from toolchain.catalog.pythons import check_version
from toolchain.catalog.release_data import triton_releases
from toolchain.catalog.stages import source_names
from toolchain.core import strict_json, toml_text
from toolchain.core.errors import ConfigError, ToolchainError, did_you_mean
from toolchain.core.filesystem import read_regular
from toolchain.core.home import expanded

if TYPE_CHECKING:
    from toolchain.sources.spec import SourceSpec

SOURCES = source_names()
PARTS = ("tablegen", "mlir-tblgen", "support")  # the parts of LLVM that `toolchain.stages.llvm_subset` builds
_LARGEST_LIST = 16 << 20  # bytes; the limit for the file of `--calls`


def is_triton_path(text: str) -> bool:
    """Return whether the value of `--triton` is a path: any text that is neither a version nor a commit."""
    return re.fullmatch(r"[vV]?[0-9][\w.+]*|[0-9a-fA-F]{40}", text.strip()) is None


def known_tritons() -> Iterable[str]:
    """Return the versions of the Triton releases whose LLVM is known."""
    return [row.version for row in triton_releases() if row.version and row.llvm]


def arches(text: str) -> tuple[str, ...]:
    """Parse `--arch` into sorted OCI architectures; raise ToolchainError if one is unknown or the text names none."""
    names = tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
    for name in names:
        machine_of(name)
    if not names:
        raise ConfigError("option-empty", "--arch names no architecture", fix="use e.g. --arch amd64, or omit it")
    return names


def gpus(text: str) -> tuple[str, ...]:
    """Parse `--gpu` into LLVM's names for the GPUs, sorted; raise ToolchainError if one is unknown or there is none."""
    names = parse_gpus(text)
    if not names:
        raise ConfigError(
            "option-empty", f"--gpu {text!r} names no GPU", fix="use e.g. --gpu gfx942,gfx1100, or omit it"
        )
    return names


def pythons(text: str) -> tuple[str, ...]:
    """Parse `--python` into different Python versions, in the order given; raise ConfigError if one is invalid."""
    return tuple(dict.fromkeys(check_version(part.strip()) for part in text.split(",") if part.strip()))


def is_calls_file(text: str) -> bool:
    """Return whether the value of `--calls` is a path rather than the JSON list that records contain."""
    return not text.lstrip().startswith("[")


def calls(text: str) -> str:
    """Return the list of calls as JSON, so that records, locks and `reproduce` do not need the user's file.

    ConfigError is raised if the file cannot be read or the list is invalid.

    Args:
        text: the path of a TOML file with `[[call]]` tables, or JSON that this function returned earlier.
    """
    fix = 'write [[call]] tables, as in data/calls.toml: dtype = ["bf16"]'
    try:
        tables = (
            toml_text.read(read_regular(Path(os.path.realpath(text)), _LARGEST_LIST).decode())
            if is_calls_file(text)
            else {"call": strict_json.read(text)}
        )
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else toml_text.why_not(error)
        raise ConfigError("calls-unreadable", f"--calls {text[:200]} cannot be read", why=why or "", fix=fix) from error
    rows = tables.get("call")
    if set(tables) != {"call"} or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        why = f"it contains {', '.join(map(repr, tables)) or 'nothing'} instead of only [[call]] tables"
        raise ConfigError("calls-invalid", f"--calls {text[:200]} is not a list of calls", why=why, fix=fix)
    try:
        return json.dumps(rows, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:  # JSON has no dates, NaN or infinity
        why = "a value is a date, a time, or a number that is not finite"
        raise ConfigError("calls-invalid", f"--calls {text[:200]} has an invalid value", why=why, fix=fix) from error


def kernel_store(given: Path) -> Path:
    """Return the folder of a kernel store; raise ConfigError if the value is an `oci:` reference."""
    if str(given).startswith("oci:"):
        raise ConfigError(
            "not-a-folder", f"{given} is not a folder", why="a kernel store is a plain folder", fix="name a folder"
        )
    return given


def scheduler(text: str) -> str:
    """Return the address of a Dask scheduler; raise ConfigError if `check_address` does not accept it."""
    from toolchain.kernels.scheduler import check_address  # noqa: PLC0415 - few commands use a scheduler

    return check_address(text.strip())


def shard(text: str) -> tuple[int, int]:
    """Parse `--shard` into the number of a part and the number of parts: `2/4` becomes (2, 4).

    ConfigError is raised if the text is not of this form, if the first number is 0 or larger than the second, or if a
    number has more than 5 digits.
    """
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(
            "not-a-shard", f"--shard {text!r} is not K/N", why="K goes from 1 to N", fix="use e.g. --shard 2/4"
        )
    return int(match[1]), int(match[2])


def is_path(text: str) -> bool:
    """Return whether the text after `NAME=` in `--source` is a path; False for invalid text, which is refused later."""
    from toolchain.sources.spec import parse_source_spec  # noqa: PLC0415 - many commands use no sources

    try:
        return parse_source_spec(text).path is not None
    except ToolchainError:
        return False


def sources(values: Sequence[str]) -> dict[str, SourceSpec]:
    """Parse the values of `--source` into sources by name; raise ToolchainError for a wrong value or repeated name."""
    from toolchain.sources.local import check_local  # noqa: PLC0415 - many commands use no sources
    from toolchain.sources.spec import parse_source_spec  # noqa: PLC0415

    named = _pairs(values, "--source")
    by_name = dict(named)
    if len(named) > len(by_name):
        twice = sorted({name for name, _ in named if sum(name == later for later, _ in named) > 1})
        raise ConfigError("option-twice", f"--source names {', '.join(twice)} more than once", fix="keep one of them")
    specs = {name: parse_source_spec(text, project=name) for name, text in by_name.items()}
    for name, spec in specs.items():
        check_local(name, spec)
    return specs


def patches(values: Sequence[str]) -> dict[str, tuple[Path, ...]]:
    """Parse the values of `--patch` into absolute paths by source name, in the order in which the user gave them.

    ConfigError is raised if a value is invalid, or if its path is not that of a file.
    """
    by_source: dict[str, tuple[Path, ...]] = {}
    for name, file in _pairs(values, "--patch"):
        path = Path(expanded(file))
        if not path.is_file():
            raise ConfigError("patch-missing", f"--patch {name}={file} is not a file", fix="check the path")
        by_source[name] = (*by_source.get(name, ()), path.absolute())
    return by_source


def _pairs(values: Sequence[str], flag: str) -> list[tuple[str, str]]:
    pairs = []
    for value in values:
        name, sep, rest = value.partition("=")
        if not sep or not name or not rest:
            raise ConfigError(
                "not-name-value",
                f"{flag} {value!r} is not NAME=VALUE",
                fix=f"use e.g. {flag} llvm=/path/to/llvm-project",
            )
        if name not in SOURCES:
            near = did_you_mean(name, SOURCES)
            raise ConfigError(
                "unknown-source", f"unknown source {name!r}{near}", fix=f"use one of {', '.join(SOURCES)}"
            )
        pairs.append((name, rest))
    return pairs


def mirrors(values: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse the values of `--mirror` as `parse_mirrors` does."""
    from toolchain.sources.network import parse_mirrors  # noqa: PLC0415 - many commands use no network

    return parse_mirrors(values)


def check(text: str, flag: str = "--check") -> int:
    """Parse `--check`: return a positive number of kernels, or 0 for `all`.

    ConfigError is raised for any other text, and for a number of more than 9 digits, not counting leading zeros.
    """
    if text != "all" and not re.fullmatch(r"0*[1-9][0-9]{,8}", text):
        raise ConfigError(
            "not-a-number", f"{flag} {text!r} is not a number of kernels", fix=f"use {flag} 300 or {flag} all"
        )
    return 0 if text == "all" else int(text)
