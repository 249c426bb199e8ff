"""Write and read the file of `kernels check --results`, from which a stopped check can continue.

The file contains one line of JSON for each kernel with a result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from toolchain.core import strict_json
from toolchain.core.check_result import Object
from toolchain.core.errors import ConfigError
from toolchain.core.filesystem import read_regular
from toolchain_lab.numbers.check import Checked

_MOST = 1 << 30  # bytes; the limit for the size of the file


def conditions(objects: Iterable[Object], decoder: str) -> dict[str, str]:
    """Return a text for each code object by name, which changes with the decoder and with the JSON next to the object.

    A result is reused only if its text is the same. The code object's own digest is in the result.
    """
    files = ((each.name, each.path.with_suffix(".json")) for each in objects)
    launches = {name: file.read_bytes() if file.exists() else b"" for name, file in files}
    return {name: f"{decoder}; launch {hashlib.sha256(launch).hexdigest()[:16]}" for name, launch in launches.items()}


def append(path: Path, row: Checked, condition: str) -> None:
    """Append a result to the file of `--results`; raise ConfigError if the file cannot be written.

    Args:
        condition: the text for the code object; see `conditions`.
    """
    try:
        # A name that is not UTF-8 contains lone surrogates, which `read` refuses.
        line = json.dumps({"decoder": condition, "row": row.as_json()}, ensure_ascii=False).encode(errors="replace")
        with path.open("ab") as stream:
            stream.write(line + b"\n")
    except OSError as error:
        raise _unwritable(path, error) from error


def read(path: Path, known: Mapping[str, str]) -> dict[str, Checked]:
    """Return the results in the file of `--results` that were made under the `conditions` in `known`, by name.

    If the file does not exist, an empty dict is returned. If a check was killed while it wrote the last line, the
    incomplete line is removed from the file. ConfigError is raised if the file cannot be read or mended, or does not
    contain results.
    """
    try:
        content = read_regular(path, _MOST)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(
            "results-unreadable", f"--results {path} cannot be read", why=error.strerror or "", fix="name another file"
        ) from error
    lines, cut = content.split(b"\n")[:-1], content.rpartition(b"\n")[2]
    try:
        rows = [strict_json.read(line.decode("utf-8"), path.name) for line in lines]
        made = [(str(row["decoder"]), Checked.from_json(row["row"])) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            "results-malformed",
            f"{path} does not contain results of a check",
            why="a line has an unexpected form",
            fix="name another file",
        ) from error
    if cut:
        try:
            path.write_bytes(content[: len(content) - len(cut)])
        except OSError as error:
            raise _unwritable(path, error) from error
    return {row.name: row for condition, row in made if known.get(row.name) == condition}


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        "output-unwritable", f"--results {path} cannot be written", why=error.strerror or "", fix="name another file"
    )
