"""Run the contract check, which tests in a container whether an LLVM layer contains everything that its Triton needs.

The check itself is the script `llvm-config/contract/check.sh`, which also runs without the tool.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolchain.catalog.components import LlvmRequirements
from toolchain.core import recipe
from toolchain.core.errors import ContractError
from toolchain.core.process import CommandError
from toolchain.core.recipe import Mount, Runner

_LINE = re.compile(r"@contract (?P<name>\S+) (?P<verdict>ok|fail)(?: (?P<detail>.*))?")
_INSIDE = "/contract"
_TIMEOUT = 3600.0
_TARGETS = "add NVPTX and AMDGPU to the file of this architecture in llvm-config/targets/, and build again"
# This is the advice for each check that fails. The checks of a whole LLVM run in the order of this table.
_FIXES = {
    "libraries": "build the layer with the components llvm-libraries, mlir-libraries and, for lld, lld-libraries; "
    "if this LLVM no longer has such a library, correct llvm-config/components.toml",
    "static": "build with LLVM_LINK_LLVM_DYLIB=OFF and BUILD_SHARED_LIBS=OFF, as llvm-config/common.cmake says",
    "mlir-tblgen": "build the layer with the component mlir-tblgen, on the base that will use it",
    "FileCheck": "build the layer with the component FileCheck, LLVM_BUILD_UTILS=ON and LLVM_INSTALL_UTILS=ON",
    "clang++": "build the layer with the project clang and the components clang and clang-resource-headers",
    "paths": "build with the prefix maps in containerfiles/llvm/build.sh, and remove the paths of build folders from "
    "the files that CMake configures",
    "symbols": "a library needs a symbol that the oldest supported system lacks: build the layer against that system "
    "(--glibc); if the layer was checked against your own system, that system is too old for the layer",
    "layouts": "read the log: a type whose size depends on NDEBUG does not compile from the layer's headers",
    "configure": "the CMake exports and the installed files must come from one install-distribution; the base needs "
    "CMake 3.20 or newer and a C++ compiler",
    "build-use": "read the log: the headers and libraries of the layer do not match, or LLVM's API has changed",
    "use": "read the log: a program that lowers MLIR and compiles it with this LLVM does not run",
    "gnu-ld": "the indexes of the archives lack symbols: build without llvm-config/archive_index.py to confirm this",
    "amdgpu": _TARGETS,
    "lld": "build the layer with the project lld and its libraries",
    "ptx": _TARGETS,
    "build-link": "read the log for undefined or duplicate symbols: a library is incomplete",
    "llvm-tblgen": "read the log: the table generator does not run, or its output is wrong",
    "headers": "add the headers that the installed ones include, in toolchain/stages/llvm_subset.py",
    "support": "read the log: a program that uses LLVMSupport does not configure, link or run",
    "link": "an option or a pass is registered twice or a target is missing: read the log",
}


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Args:
        seconds: the time since the previous result; for the first check, the time since the container was started.
    """

    name: str
    ok: bool
    detail: str
    seconds: float


# These are the checks of each part of LLVM, in the order in which they run.
_OF_PART = {
    "tablegen": ("llvm-tblgen", "mlir-tblgen", "paths", "symbols"),
    "mlir-tblgen": ("mlir-tblgen", "paths", "symbols"),
    "support": ("libraries", "headers", "paths", "symbols", "support"),
    "codegen": ("libraries", "static", "paths", "symbols", "support"),
}
_PARTS_ONLY = {"llvm-tblgen", "headers", "support"}


@dataclass(frozen=True)
class CrossTarget:
    """The target machine of a layer that is not for this machine.

    The check builds its programs against the system of the target machine, and runs them with an emulator.

    Args:
        emulator: a statically linked qemu.
        system: the folder with the headers and libraries of the target machine.
    """

    arch: str
    emulator: Path
    system: Path

    def mounts(self) -> list[Mount]:
        toolchain = recipe.root() / "llvm-config" / "cross.cmake"
        return [Mount(self.emulator, "/emulator"), Mount(self.system, "/sysroot"), Mount(toolchain, "/cross.cmake")]

    def settings(self) -> dict[str, str]:
        """Return the environment variables that check.sh needs for the target machine."""
        return {"CROSS": self.arch, "EMULATOR": "/emulator -L /sysroot"}


def check_names(needs: LlvmRequirements, *, portable: bool = False) -> tuple[str, ...]:
    """Return the names of the checks that a layer for these needs must pass, in order.

    Args:
        portable: whether the layer is for an old system, so that its undefined symbols are checked too.
    """
    conditions = {"FileCheck": needs.filecheck, "clang++": needs.clang, "lld": needs.lld, "symbols": portable}
    return tuple(name for name in _FIXES if name not in _PARTS_ONLY and conditions.get(name, True))


@dataclass(frozen=True)
class Expected:
    """The environment variables that describe a layer to check.sh, and the checks that the layer must pass, in order.

    The check `symbols` is only made if the layer is for an old system.
    """

    settings: Mapping[str, str]
    names: tuple[str, ...]

    @classmethod
    def of_needs(cls, needs: LlvmRequirements) -> Expected:
        """Return what is expected of an LLVM with all parts that a Triton needs."""
        settings = {
            "LIBRARIES": ";".join(dict.fromkeys([*needs.libtriton, *needs.bin_tools])),
            "LLD": "ON" if needs.lld else "OFF",
            "FILECHECK": "ON" if needs.filecheck else "OFF",
            "CLANG": "ON" if needs.clang else "OFF",
        }
        return cls(settings, check_names(needs, portable=True))

    @classmethod
    def of_part(cls, part: str, libraries: Sequence[str]) -> Expected:
        """Return what is expected of a layer that contains only a part of LLVM, such as `support`."""
        return cls({"PART": part, "LIBRARIES": ";".join(libraries)}, _OF_PART[part])


def check_layer(
    runner: Runner,
    image: str,
    prefix: str,
    expected: Expected,
    *,
    log: Path,
    on: CrossTarget | None = None,
    floor: Path | None = None,
) -> dict[str, Any]:
    """Check the LLVM at `prefix` in `image`; raise ContractError if a check fails or does not finish.

    Args:
        image: an image that contains the base, with a C++ compiler and CMake, and the layer.
        on: the target machine of the layer; None for this machine.
        floor: the folder of the oldest system that may link the layer. Its C and C++ libraries must define every symbol
            that the layer leaves undefined. If it is None, these symbols are not checked.

    Returns:
        `{"seconds", "checks": [{"name", "ok", "detail", "seconds"}]}`, in the order in which the checks ran.
    """
    names = [name for name in expected.names if name != "symbols" or floor is not None]
    checks: list[Check] = []
    last = time.monotonic()

    def on_line(line: str) -> None:
        nonlocal last
        if match := _LINE.fullmatch(line.rstrip()):
            now = time.monotonic()
            checks.append(Check(match["name"], match["verdict"] == "ok", match["detail"] or "", now - last))
            last = now

    source = recipe.root() / "llvm-config" / "contract"
    try:
        result = runner.run(
            image,
            ["sh", f"{_INSIDE}/check.sh", prefix],
            mounts=[Mount(source, _INSIDE), *(on.mounts() if on else ()), *([Mount(floor, "/floor")] if floor else ())],
            env={**expected.settings, **(on.settings() if on else {}), **({"SYSTEM": "/floor"} if floor else {})},
            log=log,
            on_line=on_line,
            check=False,
            timeout=_TIMEOUT,
        )
    except CommandError as error:
        raise _unfinished(prefix, error.returncode, error.tail, log) from error
    if failed := [check for check in checks if not check.ok]:
        raise _failed(prefix, failed, log)
    if result.returncode != 0 or [check.name for check in checks] != names:
        raise _unfinished(prefix, result.returncode, result.tail, log)
    rows = [{**asdict(check), "seconds": round(check.seconds, 1)} for check in checks]
    return {"seconds": round(sum(check.seconds for check in checks), 1), "checks": rows}


def _failed(prefix: str, failed: Sequence[Check], log: Path) -> ContractError:
    # A check that did not run because another check failed gets no advice.
    causes = [check for check in failed if not check.detail.startswith("not run")]
    names = ", ".join(check.name for check in failed)
    advice = [f"{check.name}: {_FIXES.get(check.name, 'read the log')}" for check in causes]
    return ContractError(
        "llvm-contract-failed",
        f"the LLVM in {prefix} fails the contract check: {names}",
        why="\n".join(f"{check.name}: {check.detail}" for check in causes),
        fix="\n".join([*dict.fromkeys(advice), f"full log: {log}"]),
    )


def _unfinished(prefix: str, returncode: int, tail: Sequence[str], log: Path) -> ContractError:
    return ContractError(
        "contract-unfinished",
        f"the contract check of {prefix} did not finish (exit code {returncode})",
        why="\n".join(tail[-10:]),
        fix=f"check that the image contains a shell, CMake and a compiler; full log: {log}",
    )
