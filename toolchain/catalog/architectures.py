"""The architectures that images are built for, and the qemu programs that emulate an architecture."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from toolchain.core import process
from toolchain.core.errors import EngineError, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The names of an architecture.

    Args:
        arch: the name in OCI images.
        kernel: the name that `uname -m` prints, which is part of the names of qemu's programs.
        debian: the name in Debian's packages.
    """

    arch: str
    kernel: str
    debian: str


MACHINES = {
    machine.arch: machine
    for machine in (
        Machine(arch="amd64", kernel="x86_64", debian="amd64"),
        Machine(arch="arm64", kernel="aarch64", debian="arm64"),
        Machine(arch="ppc64le", kernel="ppc64le", debian="ppc64el"),
        Machine(arch="s390x", kernel="s390x", debian="s390x"),
    )
}


def this_machine() -> str:
    """Return the OCI architecture of the machine that runs this tool, or the output of `uname -m` if it is unknown."""
    kernel = platform.machine()
    return next((machine.arch for machine in MACHINES.values() if machine.kernel == kernel), kernel)


def machine_of(arch: str) -> Machine:
    """Return the names of an OCI architecture; raise an UnsupportedError if it is unknown."""
    if arch not in MACHINES:
        raise UnsupportedError(
            "unknown-architecture", f"unknown architecture {arch!r}", fix=f"use one of {', '.join(MACHINES)}"
        )
    return MACHINES[arch]


def emulator_name(arch: str) -> str:
    """Return the name of the qemu program that runs programs for `arch`, an OCI architecture in `MACHINES`."""
    return f"qemu-{machine_of(arch).kernel}-static"


def emulator(arch: str, *, proof: bool = True) -> Path:
    """Return the path of the qemu program that runs programs for `arch`; raise an EngineError if it is not installed.

    Raise an UnsupportedError if the architecture is unknown.

    Args:
        proof: whether the contract check needs the program; otherwise the build of Triton needs it.
    """
    name = emulator_name(arch)
    program = process.find(name)
    if program is None:
        user = "the contract check" if proof else "the build of Triton"
        other = "; or skip the check with --no-contract, and run it on another machine" if proof else ""
        raise EngineError(
            "qemu-missing",
            f"{name} is not installed",
            why=f"{user} runs programs for {arch} with it",
            fix=f"apt-get install qemu-user-static{other}",
        )
    return Path(program)
