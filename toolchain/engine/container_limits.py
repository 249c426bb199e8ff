"""Read the limits for containers from `data/limits.toml`, and make the error for a container that reached a limit."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain.core import strict_json
from toolchain.core.errors import ConfigError, LimitError
from toolchain.core.filesystem import read_regular
from toolchain.data import FOLDER, load, typed_row
from toolchain.engine.limit_watch import Limits, most_processes
from toolchain.engine.resources import cores

_VARIABLE = "TOOLCHAIN_LIMITS"
_NOTE = "limit.json"
_LARGEST_NOTE = 1 << 20
_LARGEST = 1 << 62  # the kernel takes numbers below 2^63, and some limits are increased before they are set
# These limits protect the disk. If a build reaches one of them, its caches are usually removed (see
# `Buildah._free_disk`).
OF_DISK = ("written-bytes", "written-files", "free-bytes", "free-files")


@dataclass(frozen=True)
class Limit:
    """A row of `data/limits.toml`; the comments in that file describe the fields."""

    name: str
    value: int
    what: str
    per_core: int = 0
    most: float = 0
    source: str = ""


@dataclass(frozen=True)
class Reached:
    """A limit that a container reached.

    Args:
        layers: the ids of the layers that were mounted for the container; empty if the launcher wrote no note, or if
            the storage driver mounts no layers.
    """

    name: str
    layers: tuple[str, ...]


def rows() -> list[Limit]:
    """Return all limits in the order of `data/limits.toml`."""
    plain = [{name.replace("-", "_"): value for name, value in row.items()} for row in load("limits")["limit"]]
    return [typed_row(Limit, row, row["name"], FOLDER / "limits.toml") for row in plain]


def values() -> dict[str, float]:
    """Return the value of each limit by name.

    The environment variable `TOOLCHAIN_LIMITS` overrides the values from `data/limits.toml`. Raise a ConfigError if the
    variable contains an unknown name, or a value that is not positive or too large for the kernel.
    """
    found: dict[str, float] = {row.name: max(row.value, row.per_core * cores()) for row in rows()}
    for pair in filter(None, os.environ.get(_VARIABLE, "").split(",")):
        name, _, text = pair.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = 0
        if name not in found or not 0 < value < _LARGEST:
            raise ConfigError(
                "limit-invalid",
                f"{_VARIABLE}: {pair!r} is not a limit",
                why=f"a limit is NAME=NUMBER, and the names are {', '.join(found)}",
                fix=f"set it as in this example: {_VARIABLE}=hours=96,written-bytes=200000000000",
            )
        found[name] = value
    return found


def limits_for(folder: Path, places: Sequence[Path], *, log: Path | None = None, timed: bool = True) -> Limits:
    """Return the limits for one container.

    Args:
        folder: the folder of the invocation, to which the launcher writes a note if a limit is reached.
        places: the folders that the container writes to.
        log: the file that gets the container's output; None for no limit on it.
        timed: whether the limit `hours` applies.
    """
    found = values()
    return {
        "processes": int(found["processes"]),
        "file_bytes": int(found["file-bytes"]),
        "written_bytes": int(found["written-bytes"]),
        "written_files": int(found["written-files"]),
        "free_bytes": int(found["free-bytes"]),
        "free_files": int(found["free-files"]),
        "log_bytes": int(found["log-bytes"]),
        "seconds": found["hours"] * 3600 if timed else 0,
        "places": [os.fspath(place.absolute()) for place in places],
        "log": "" if log is None else os.fspath(log.absolute()),
        "note": os.fspath((folder / _NOTE).absolute()),
    }


def ulimits() -> dict[str, int]:
    """Return the resource limits for a container, by the names that the option `--ulimit` uses."""
    found = values()
    return {"nproc": most_processes(int(found["processes"])), "fsize": int(found["file-bytes"])}


def reached(folder: Path, error: Exception | None = None) -> Reached | None:
    """Return the limit that an invocation's container reached; None if it reached none.

    Args:
        folder: the invocation's folder, to which the launcher may have written a note.
        error: the error that the invocation raised. If the launcher wrote no note, but this is an OSError for a full
            disk or an exceeded quota, the limit is `free-bytes`.
    """
    try:
        note = strict_json.read(read_regular(folder / _NOTE, _LARGEST_NOTE))
    except FileNotFoundError:
        full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
        return Reached("free-bytes", ()) if full else None
    except ValueError:  # the disk was too full for the note
        return Reached("free-bytes", ())
    return Reached(str(note["limit"]), tuple(map(str, note["layers"])))


def limit_error(name: str, what: str) -> LimitError:
    """Return the error for `what`, e.g. `the build of llvm`, whose container was ended at the limit `name`."""
    row = next(row for row in rows() if row.name == name)
    value = values()[name]
    if name.startswith("free-"):
        why = f"the minimum is {value:,.0f} {row.what}, or a twentieth of a small disk"
        fix = "free disk space (`toolchain cache prune`), or choose another folder with --cache"
    else:
        why = f"the limit is {value:,.10g} {row.what.partition(';')[0]}"
        if name.startswith("written-"):
            why += "; builds that run at the same time with the same cache count together"
        fix = f"check what its sources do; if they need more, raise the limit: {_VARIABLE}={name}=NUMBER"
    return LimitError("container-limit", f"{what} was ended, because it reached the limit {name}", why=why, fix=fix)
