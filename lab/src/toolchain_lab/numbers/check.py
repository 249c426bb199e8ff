"""Check a kernel: run each case twice, with different wave orders, addresses and initial contents, and compare."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from toolchain.core.check_result import REFUSED, RIGHT, SKIPPED, WRONG
from toolchain.core.digest import sha256_file
from toolchain_lab.bridge import load, read_metadata
from toolchain_lab.emulator.disassembly import Disassembler
from toolchain_lab.emulator.errors import CodeObjectError, EmulatorError, FaultyKernelError, NotEmulatedError
from toolchain_lab.emulator.exactness import APPROXIMATE, EXACT, UNSUPPORTED
from toolchain_lab.emulator.launch import Launch, Launched, run
from toolchain_lab.emulator.metadata import Metadata, check_metadata
from toolchain_lab.emulator.placement import UPPER
from toolchain_lab.emulator.program import Program
from toolchain_lab.numbers import aotriton, flash_attn
from toolchain_lab.numbers.case import Case, NoCaseError
from toolchain_lab.numbers.objects import SUFFIX

Cases = Callable[[Metadata, int], Iterator[Case]]
CASES: Mapping[tuple[str, str], Cases] = {**flash_attn.CASES, **aotriton.CASES}
SEED = 20261124


@dataclass(frozen=True)
class Checked:
    """The result of checking a kernel.

    Args:
        status: `right`, `wrong`, `skipped` (there is no test case) or `refused` (the emulator cannot run it).
        reason: why the kernel is not right; empty if it is right.
        share: the largest ratio of an error to the allowed error; infinite if a fault stopped the kernel.
        errors: the error and the allowed error of each result, by label, from the case in which their ratio is
            largest.
        unknown: the instructions in the kernel that the emulator does not support and that were not executed.
        seconds: the CPU time of the check in seconds.
        exactness: `exact`, `approximate` or `unsupported`, see `emulator.exactness`; empty if the kernel was skipped or
            stopped by a fault.
        approximate: the executed instructions that are not exact, each with the bound on its error.
    """

    name: str
    gpu: str
    kernel: str
    status: str
    reason: str = ""
    share: float = 0.0
    errors: Mapping[str, tuple[float, float]] | None = None
    cases: tuple[str, ...] = ()
    workgroups: int = 0
    instructions: int = 0
    unknown: tuple[str, ...] = ()
    seconds: float = 0.0
    sha256: str = ""
    exactness: str = ""
    approximate: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values; an infinite error or share is null."""
        errors = {name: [finite(error), bound] for name, (error, bound) in (self.errors or {}).items()}
        return {**asdict(self), "errors": errors, "share": finite(self.share)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Checked:
        errors = {name: (_number(error), float(bound)) for name, (error, bound) in row["errors"].items()}
        more = {"share": _number(row["share"]), "cases": tuple(row["cases"]), "unknown": tuple(row["unknown"])}
        return cls(**{**row, **more, "errors": errors})


def finite(value: float) -> float | None:
    """Return a number for use in JSON; None if it is infinite or NaN."""
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.inf if value is None else float(value)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a code object, in hex."""
    return sha256_file(path).removeprefix("sha256:")


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable cyclic garbage collection in a block, because visiting all decoded instructions would slow a check."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_collection()
def check_object(path: Path, name: str, disassembler: Disassembler, *, seed: int = SEED, exact: bool = True) -> Checked:
    """Check a code object that has a JSON file next to it, and return the result.

    A sound code object is skipped if no JSON file records how its kernel is launched.

    Args:
        exact: whether matrix instructions follow the published rounding rules for the GPU.
    """
    gpu = kernel = ""
    began = time.process_time()
    digest = digest_of(path)
    try:
        try:
            metadata = read_metadata(path)
        except NotEmulatedError as error:
            if error.id != "metadata-missing":
                raise
            code = load(path, first=True)
            gpu, kernel = code.gpu, code.kernel
            raise NoCaseError(_reason(error)) from error
        gpu, kernel = metadata.gpu, metadata.kernel
        code = load(path, kernel)
        check_metadata(code, metadata)
        done = check_program(Program.of(code, disassembler, exact=exact), metadata, name, seed=seed, began=began)
        return replace(done, sha256=digest)
    except NoCaseError as error:
        reason = _named(str(error), path, name)
        return Checked(name, gpu, kernel, SKIPPED, reason, seconds=_since(began), sha256=digest)
    except (NotEmulatedError, CodeObjectError, FaultyKernelError) as error:
        reason = _named(_reason(error), path, name)
        if isinstance(error, FaultyKernelError):
            return Checked(name, gpu, kernel, WRONG, reason, math.inf, seconds=_since(began), sha256=digest)
        return Checked(name, gpu, kernel, REFUSED, reason, seconds=_since(began), sha256=digest, exactness=UNSUPPORTED)


def _cases(make: Cases, metadata: Metadata, seed: int) -> Iterator[Case]:
    try:
        yield from make(metadata, seed)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise NoCaseError(f"the test case does not fit the constants of {metadata.kernel}") from error


def check_program(
    program: Program,
    metadata: Metadata,
    name: str,
    *,
    seed: int = SEED,
    began: float | None = None,
    make: Cases | None = None,
) -> Checked:
    """Run a decoded kernel on its cases, compare the results with the references, and return the verdict.

    Args:
        began: the process's CPU time in seconds at the beginning of the check; by default, the time of this call.
        make: a function that returns the cases; by default, the known cases for the kernel.

    NoCaseError is raised if there is no test case for the kernel.
    """
    began = time.process_time() if began is None else began
    make = make or CASES.get((metadata.source, metadata.kernel))
    if make is None:
        raise NoCaseError(f"there is no test case for {metadata.kernel} of {metadata.source}")
    errors: dict[str, tuple[float, float]] = {}
    labels, faults, instructions, workgroups = [], [], 0, 0
    for case in _cases(make, metadata, seed):
        labels.append(case.label)
        launch = Launch(metadata.parameters, case.values, case.grid, metadata.waves, metadata.lds, case.only)
        done = run(program, launch, seed=seed)
        again = run(program, launch, reverse=True, seed=seed + 1, placement=UPPER)
        instructions += done.instructions
        workgroups += len(case.only)
        differences = [*_compare(case, done, errors)]
        if differing := _differing(done, again):
            differences.append(f"{', '.join(differing)} depends on {_cause(program, launch, done, seed)}")
        faults += [f"{case.label}: {fault}" for fault in differences]
    approximate = program.approximate()
    share = max((error / bound if bound else float(error > 0) for error, bound in errors.values()), default=0.0)
    return Checked(
        name,
        metadata.gpu,
        metadata.kernel,
        WRONG if faults else RIGHT,
        "\n".join(faults),
        share,
        errors,
        tuple(labels),
        workgroups,
        instructions,
        tuple(sorted({error.what for error in program.unknown()})),
        _since(began),
        exactness=APPROXIMATE if approximate else EXACT,
        approximate=approximate,
    )


def _cause(program: Program, launch: Launch, done: Launched, seed: int) -> str:
    """Return which difference between the two runs of a case changes the results.

    The order of the waves and the addresses are each changed alone. If neither changes the results, the cause is taken
    to be the initial content of registers or LDS.
    """
    if _differing(done, run(program, launch, reverse=True, seed=seed)):
        return "the order of the waves"
    if _differing(done, run(program, launch, seed=seed, placement=UPPER)):
        return "the addresses of the buffers, or scalar registers that were never written"
    return "registers or LDS that were never written"


def _differing(first: Launched, second: Launched) -> list[str]:
    return [name for name in first.buffers if first.buffers[name].tobytes() != second.buffers[name].tobytes()]


def _compare(case: Case, done: Launched, errors: dict[str, tuple[float, float]]) -> Iterator[str]:
    """Compare the buffers with the expected values; yield the faults, and update `errors` as in `Checked.errors`."""
    touched: dict[str, list[Any]] = {name: [places] for name, places in case.free.items()}
    for expected in case.expected:
        error, bound = expected.error(done.buffers[expected.argument]), expected.bound
        known = errors.get(expected.label)
        if known is None or error * known[1] >= known[0] * bound:
            errors[expected.label] = (error, bound)
        if not error <= bound:
            yield f"{expected.label}: the error {error:.2e} is larger than {bound:.2e}"
        touched.setdefault(expected.argument, []).append(np.ravel(expected.places))
    for name, buffer in done.buffers.items():
        before = case.values[name]
        if not isinstance(before, np.ndarray):
            raise AssertionError(name)
        rest = np.ones(buffer.size, np.bool_)
        for places in touched.get(name, ()):
            rest[places] = False
        raw = np.uint8 if buffer.itemsize == 1 else f"u{buffer.itemsize}"
        changed = np.ravel(buffer).view(raw)[rest] != np.ravel(before).view(raw)[rest]
        if changed.any():
            yield f"{name}: {int(changed.sum())} elements changed that this launch must not write"


def _since(began: float) -> float:
    return round(time.process_time() - began, 3)


def _named(reason: str, path: Path, name: str) -> str:
    """Replace the name of a code object's file, which may be a copy, with the original name."""
    return reason.replace(str(path.with_suffix("")), name.removesuffix(SUFFIX)).replace(path.name, name)


def _reason(error: EmulatorError) -> str:
    return f"{error.what}: {error.why}" if error.why else error.what
