"""Compile single kernels again by a Triton that the user names, with the worker that also compiles campaigns."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain import process, recipe, strict_json
from toolchain.cache import Cache
from toolchain.digest import sha256_file
from toolchain.errors import ConfigError, KernelError, ResourceError, SourceError
from toolchain.filesystem import read_regular
from toolchain.kernels.store import LARGEST_METADATA
from toolchain.stages.wheel_archive import open_wheel
from toolchain.stages.wheel_llvm import wheel_named

_TAG = re.compile(r".*-cp3(\d+)-(cp\d+|abi3)-[^-]+\.whl")
_NEWEST = 20  # minor version of a CPython that is looked for
_VERSION = re.compile(r"\d+(?:\.\d+)+\S*")


@dataclass(frozen=True)
class Triton:
    """A Python that imports a Triton: the interpreter, and what goes on its module path."""

    python: str
    path: str = ""


def triton_of_wheel(text: str, cache: Cache) -> Triton:
    """The Triton of a wheel, unpacked in the cache.

    Args:
        text: a file, a version of the index, or `pypi:…`.

    Raises:
        SourceError, HostileInputError: there is none of that name, or it is not a whole wheel.
        ConfigError: this machine has no CPython that it is for.
    """
    named = f"pypi:triton=={text}" if _VERSION.fullmatch(text) and not Path(text).exists() else text
    with wheel_named(named, cache) as wheel:
        match = _TAG.fullmatch(wheel.name)
        oldest = int(match[1]) if match else sys.version_info[1]
        python = _python(range(oldest, _NEWEST if match and match[2] == "abi3" else oldest + 1))
        if python is None:
            raise ConfigError(
                f"there is no CPython 3.{oldest} here",
                why=f"{wheel.name} is for it",
                fix="install it, or give a wheel for another one",
            )
        folder = cache.work / f"triton-{sha256_file(wheel).removeprefix('sha256:')[:16]}"
        if not folder.is_dir():
            _unpack(wheel, folder)
        return Triton(python, str(folder))


def _python(minors: Sequence[int]) -> str | None:
    """A CPython of one of these minor versions."""
    if sys.version_info[1] in minors:
        return sys.executable
    for python in filter(None, (shutil.which(f"python3.{minor}") for minor in minors)):
        # A shim of a version manager may be there without the Python behind it.
        if process.run([python, "-c", ""], check=False).returncode == 0:
            return python
    return None


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpack a wheel; the folder is there whole or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="wheel-") as partial:
            with open_wheel(wheel) as archive:
                for row in archive.infolist():
                    place = Path(archive.extract(row, partial))
                    if place.is_file():
                        place.chmod((row.external_attr >> 16) & 0o755 | 0o600)
            try:
                Path(partial).chmod(0o755)
                Path(partial).rename(folder)
            except OSError:
                if not folder.is_dir():  # somebody else was first
                    raise
            Path(partial).mkdir(exist_ok=True)  # what the block removes
    except OSError as error:
        raise ResourceError(f"cannot unpack {wheel.name}", why=str(error), fix="free room, or --cache DIR") from error


def rule_of(path: Path, source: Path) -> dict[str, Any]:
    """What the worker compiles, from the JSON beside a code object; `out` is left to the caller.

    Args:
        path: the object's, or the JSON's.
        source: the folder with the kernels' source: its root, or one above it.

    Raises:
        ConfigError: there is no such JSON, or it does not say what the kernel was compiled from.
        SourceError: the source does not have the file.
    """
    beside = path.with_suffix(".json")
    try:
        told = strict_json.read(read_regular(beside, LARGEST_METADATA, within=beside.parent))
        constants = dict(told["constexprs"])
        rule = {
            "id": path.stem,
            "kernel": str(told["name"]),
            "signature": {str(name): str(kind) for name, kind in told["signature"]},
            "constexprs": constants,
            "target": str(told["arch"]),
            **{name: int(told[name]) for name in ("num_warps", "num_stages", "waves_per_eu")},
        }
        file, precision = str(told["source"]), str(told.get("default_dot_input_precision", ""))
    except OSError as error:
        raise ConfigError(
            f"{path.name} has no JSON beside it", why=f"{beside}: {error.strerror}", fix="name a kernel of a campaign"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{beside} does not say what the kernel was compiled from",
            why=f"{type(error).__name__}: {error}",
            fix="name a kernel that a campaign of this tool compiled",
        ) from error
    if file.startswith("/") or ".." in Path(file).parts:
        raise ConfigError(f"{beside} names the source {file}", fix="name a kernel of a campaign")
    roots = (
        [source] if (source / file).is_file() else [at.parents[len(Path(file).parts) - 1] for at in source.rglob(file)]
    )
    if len(roots) != 1:
        raise SourceError(
            f"{source} has {len(roots)} files {file}",
            why="; ".join(map(str, roots[:3])),
            fix="give the folder that it is below: --source",
        )
    root = roots[0].resolve()
    return {**rule, "root": str(root), "source": str(root / file), "precision": precision}


def compile_rules(rules: Sequence[Mapping[str, Any]], triton: Triton, *, timeout: float) -> list[dict[str, Any]]:
    """Compile rules, one after the other; an answer each, see aotriton/worker.py.

    Args:
        timeout: seconds for all of them.

    Raises:
        KernelError: the worker does not start, or died.
    """
    home = tempfile.mkdtemp(prefix="toolchain-try-")
    precisions = {str(rule.get("precision", "")) for rule in rules} - {""}
    environment = {
        "HOME": home,
        "PYTHONPATH": triton.path,
        # Triton's default for dots of float32, which a campaign sets by this variable.
        **({"TRITON_F32_DEFAULT": next(iter(precisions))} if len(precisions) == 1 else {}),
    }
    told = [json.dumps({name: value for name, value in rule.items() if name != "precision"}) for rule in rules]
    try:
        done = process.run(
            [triton.python, recipe.root() / "aotriton" / "worker.py"],
            env=environment, stdin="".join(f"{line}\n" for line in told), capture=True, timeout=timeout,
        )  # fmt: skip
        answers = [strict_json.read(line) for line in done.stdout.splitlines()][1:]
    except process.CommandError as error:
        raise KernelError("the kernel did not compile", why=error.why, fix="see what Triton says of it") from error
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if len(answers) != len(rules):
        raise KernelError("the kernel did not compile", why="the compiler died", fix="try another Triton")
    return answers
