"""Compile single kernels again with any installed or given Triton, using the worker that compiles campaigns."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.catalog.gpus import check_gpu
from toolchain.core import process, recipe, strict_json
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_file
from toolchain.core.errors import ConfigError, KernelError, ResourceError, SourceError
from toolchain.core.filesystem import read_regular
from toolchain.core.locks import in_use
from toolchain.core.recipe import Mount
from toolchain.engine import namespace, view
from toolchain.kernels.ledger import DONE, FAILED
from toolchain.kernels.pool import is_answer
from toolchain.kernels.result_store import LARGEST_METADATA, LARGEST_OBJECT
from toolchain.stages.triton_wheel import unzip
from toolchain_lab.examine.interpreter import Interpreter, interpreter_at, triton_of
from toolchain_lab.examine.wheel_llvm import wheel_named

_TAG = re.compile(r".*-cp3(\d+)-(cp\d+|abi3)-[^-]+\.whl")
_NEWEST = 20  # the search for a CPython 3.N ends before this N

# These are the paths in the namespaces for compiled kernels, Triton's modules and the recipes.
_MADE, _MODULES, _RECIPES = "/made", "/modules", "/recipes"
_VERSION = re.compile(r"\d+(?:\.\d+)+\S*")
_MINOR = re.compile(r"\d+\.\d+")
_SECONDS = 60.0  # seconds; the time limit for an interpreter to report its version


@dataclass(frozen=True)
class Triton:
    """A Triton, and the Python interpreter that imports it.

    Args:
        wheel: the folder with Triton's unpacked wheel; None if Triton is installed for the interpreter.
    """

    python: str
    wheel: Path | None = None


def triton_of_wheel(text: str, cache: Cache) -> Triton:
    """Unpack a wheel of Triton into the cache, and return this Triton with a Python that can import it.

    Args:
        text: the wheel: a file, a version in the package index, or `pypi:…`.

    ConfigError is raised if no CPython for which the wheel was built is installed.
    """
    named = f"pypi:triton=={text}" if _VERSION.fullmatch(text) and not Path(text).exists() else text
    with wheel_named(named, cache) as wheel, in_use(cache, make=True):
        match = _TAG.fullmatch(wheel.name)
        oldest = int(match[1]) if match else sys.version_info[1]
        python = _python(range(oldest, _NEWEST if match and match[2] == "abi3" else oldest + 1))
        if python is None:
            raise ConfigError(
                "python-missing",
                f"CPython 3.{oldest} is not installed",
                why=f"{wheel.name} needs it",
                fix="install it, or give a wheel for another CPython, or a Python with Triton: --with-python PATH",
            )
        folder = cache.work / f"triton-{sha256_file(wheel).removeprefix('sha256:')[:16]}"
        if not folder.is_dir():
            _unpack(wheel, folder)
        return Triton(python, folder)


def _python(minors: Sequence[int]) -> str | None:
    """Return the path of a CPython 3 with one of the given minor versions; None if there is no such interpreter.

    Shims, which lack a standard library, are skipped.
    """
    if sys.version_info[1] in minors:
        return sys.executable
    for python in filter(None, (process.find(f"python3.{minor}") for minor in minors)):
        with contextlib.suppress(KernelError):
            interpreter_at(python)
            return python
    return None


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpack a wheel to a folder, which appears only when it is complete."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="wheel-") as partial:
            unzip(wheel, Path(partial))
            try:
                Path(partial).chmod(0o755)
                Path(partial).rename(folder)
            except OSError:
                if not folder.is_dir():  # if the folder exists, another process has unpacked the wheel
                    raise
    except OSError as error:
        raise ResourceError(
            "wheel-not-unpacked",
            f"cannot unpack {wheel.name}",
            why=error.strerror or "it cannot be written",
            fix="free disk space, or give another --cache DIR",
        ) from error


def rule_of(path: Path, source: Path) -> dict[str, Any]:
    """Return the rule for the worker from the JSON file next to a code object, without the key `out`.

    Args:
        path: the path of the code object or of its JSON file.
        source: the root of the kernels' source, or a folder that contains it.

    ConfigError is raised if the JSON file cannot be read, lacks the compilation inputs, or names a source file outside
    of the root, and SourceError if the source does not contain the kernel's file in exactly one folder.
    """
    beside = path.with_suffix(".json")
    try:
        metadata = strict_json.read(read_regular(beside, LARGEST_METADATA, within=beside.parent))
        constants = dict(metadata["constexprs"])
        rule = {
            "id": path.stem,
            "kernel": str(metadata["name"]),
            "signature": {str(name): str(kind) for name, kind in metadata["signature"]},
            "constexprs": constants,
            "target": check_gpu(str(metadata["arch"])),
            **{name: int(metadata[name]) for name in ("num_warps", "num_stages", "waves_per_eu")},
        }
        file, precision = str(metadata["source"]), str(metadata.get("default_dot_input_precision", ""))
    except OSError as error:
        raise ConfigError(
            "kernel-json-missing",
            f"there is no JSON file next to {path.name}",
            why=f"{beside}: {error.strerror}",
            fix="give the code object of a campaign",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            "kernel-json-malformed",
            f"{beside} lacks the compilation inputs of the kernel",
            why="a value is missing, or has an unexpected type",
            fix="give a code object that a campaign of this tool compiled",
        ) from error
    if file.startswith("/") or ".." in Path(file).parts or not {*"*?[\0"}.isdisjoint(file):
        raise ConfigError(
            "kernel-json-malformed",
            f"{beside} names a source outside of its root: {file}",
            fix="give the code object of a campaign",
        )
    roots = (
        [source] if (source / file).is_file() else [at.parents[len(Path(file).parts) - 1] for at in source.rglob(file)]
    )
    if len(roots) != 1:
        raise SourceError(
            "kernel-source-ambiguous",
            f"{source} contains {len(roots)} files {file}",
            why="; ".join(map(str, roots[:3])),
            fix="give the root of the kernels' source: --source",
        )
    root = roots[0].resolve()
    return {**rule, "root": str(root), "source": str(root / file), "precision": precision}


def compile_rules(
    rules: Sequence[Mapping[str, Any]], triton: Triton, cache: Cache, *, timeout: float
) -> list[dict[str, Any]]:
    """Compile rules one after the other, and return the `status`, `reason`, `seconds` and, if done, `sha256` of each.

    The code object of each compiled kernel is written to the path `out` of the kernel's rule, and the JSON file is
    written next to it.

    Triton and the kernels' source are untrusted code. They run in namespaces, without access to a network or to other
    files of the user.

    Args:
        timeout: the time limit for all rules together in seconds.

    KernelError is raised if the interpreter is not a Python, or if the worker fails, exceeds the time limit, or gives
    an invalid answer.
    """
    namespace.enter()
    precisions = {str(rule.get("precision", "")) for rule in rules} - {""}
    with in_use(cache, make=True), tempfile.TemporaryDirectory(prefix="toolchain-try-") as scratch:
        made, copies = Path(scratch, "made"), Path(scratch, "copies")
        view.own(made)
        settings = cache.engine / "settings"
        python = interpreter_at(triton.python)
        installed = [Mount(view.visible(path, copies), str(path)) for path in python.files()]
        version = _version(python, installed, settings)
        parts = triton_of(python, version) if triton.wheel is None else [(triton.wheel, "")]
        show = [Mount(made, _MADE, read_only=False), *installed]
        show += [Mount(view.visible(path, copies), f"{_MODULES}/{name}".rstrip("/")) for path, name in parts]
        show.append(Mount(view.visible(recipe.root() / "aotriton", copies), _RECIPES))
        roots = {root: f"/source/{number}" for number, root in enumerate(sorted({str(rule["root"]) for rule in rules}))}
        show += [Mount(view.visible(Path(root), copies), inside) for root, inside in roots.items()]
        tasks = [_task(rule, roots, number) for number, rule in enumerate(rules)]
        # Some kernels import PyTorch, for which the same stub is used as in campaigns.
        environment = ["HOME=/tmp", "TMPDIR=/tmp", f"PYTHONPATH={_MODULES}:{_RECIPES}/standin"]
        # As in campaigns, this variable sets Triton's default precision for dot products of float32.
        environment += [f"TRITON_F32_DEFAULT={name}" for name in precisions if len(precisions) == 1]
        words = ["env", *environment, str(python.file), f"{_RECIPES}/worker.py"]
        try:
            done = process.run(
                view.command(words, settings, show=show),
                stdin="".join(f"{json.dumps(task)}\n" for task in tasks), capture=True, timeout=timeout,
            )  # fmt: skip
        except process.CommandError as error:
            raise _not_compiled(error.why, fix="see the message of Triton") from error
        answers = _answers(done.stdout, rules)
        return [
            _collected(answer, made / str(number), Path(rule["out"])) if answer["status"] == DONE else answer
            for number, (rule, answer) in enumerate(zip(rules, answers, strict=True))
        ]


def _answers(printed: str, rules: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the worker's answers. They are checked, because untrusted code in the worker can print anything."""
    lines = printed.splitlines()[1:]
    if len(lines) != len(rules):
        raise _not_compiled("the compiler ended early")
    answers = []
    for line, rule in zip(lines, rules, strict=True):
        try:
            answer = strict_json.read(line)
        except ValueError:
            answer = None
        if not is_answer(answer, rule["id"], (DONE, FAILED)):
            raise _not_compiled(f"the compiler's answer is invalid: {line[:500]}")
        answers.append({"reason": "", "seconds": 0.0, **answer})
    return answers


def _collected(answer: Mapping[str, Any], made: Path, out: Path) -> dict[str, Any]:
    """Copy the code object and the JSON file that an answer reports, and return the answer with the object's digest."""
    out.parent.mkdir(parents=True, exist_ok=True)
    digests = {}
    for suffix, limit in ((".hsaco", LARGEST_OBJECT), (".json", LARGEST_METADATA)):
        try:
            content = read_regular(made / f"kernel{suffix}", limit, within=made.parent)
        except OSError as error:
            why = f"the compiler wrote no readable kernel{suffix}: {error.strerror or error}"
            raise _not_compiled(why) from error
        out.with_suffix(suffix).write_bytes(content)
        digests[suffix] = hashlib.sha256(content).hexdigest()
    return {**answer, "sha256": digests[".hsaco"]}


def _not_compiled(why: str, fix: str = "try another Triton") -> KernelError:
    return KernelError("kernel-not-compiled", "the kernel did not compile", why=why, fix=fix)


def _version(python: Interpreter, installed: Sequence[Mount], settings: Path) -> str:
    """Run an interpreter in namespaces, and return its version, such as `3.12`."""
    words = ["env", str(python.file), "-I", "-S", "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
    done = process.run(view.command(words, settings, show=installed), capture=True, check=False, timeout=_SECONDS)
    if done.returncode != 0 or not _MINOR.fullmatch(done.stdout.strip()):
        why = "\n".join(done.tail[-3:])
        raise KernelError(
            "not-a-python",
            f"{python.named} is not a Python interpreter",
            why=why,
            fix="give a Python interpreter: --with-python PATH",
        )
    return done.stdout.strip()


def _task(rule: Mapping[str, Any], roots: Mapping[str, str], number: int) -> dict[str, Any]:
    """Return the task for a rule, with the paths that the worker sees in the namespaces."""
    root = str(rule["root"])
    inside = {"root": roots[root], "source": f"{roots[root]}/{Path(rule['source']).relative_to(root)}"}
    plain = {name: value for name, value in rule.items() if name != "precision"}
    return {**plain, **inside, "out": f"{_MADE}/{number}/kernel.hsaco"}
