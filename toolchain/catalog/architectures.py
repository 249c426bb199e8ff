"""Machines: the names of each in OCI, the kernel, Debian and qemu, and the emulator for its programs."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from toolchain.core import process
from toolchain.core.errors import EngineError, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Machine:
    """An architecture by its names.

    Args:
        arch: the name in OCI.
        kernel: the name in `uname -m` and qemu.
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
    """Return the OCI architecture of this machine."""
    kernel = platform.machine()
    return next((machine.arch for machine in MACHINES.values() if machine.kernel == kernel), kernel)


def machine_of(arch: str) -> Machine:
    """Return the machine of an OCI architecture."""
    if arch not in MACHINES:
        raise UnsupportedError(
            "unknown-architecture", f"unknown architecture {arch!r}", fix=f"one of {', '.join(MACHINES)}"
        )
    return MACHINES[arch]


def emulator_name(arch: str) -> str:
    """Return the name of the program that `emulator` looks for."""
    return f"qemu-{machine_of(arch).kernel}-static"


def emulator(arch: str, *, proof: bool = True) -> Path:
    """Return a qemu that runs single programs of `arch`.

    It needs no file of this machine and no registration in the kernel, so that it works in any container.

    Args:
        proof: whether it is for the contract check, which can be left out; otherwise the build itself needs it.
    """
    name = emulator_name(arch)
    program = process.find(name)
    if program is None:
        use = f"a layer for {arch} is proved by running" if proof else f"Triton for {arch} is built by running"
        raise EngineError(
            "qemu-missing",
            f"{name} is not installed, and {use} what is in it",
            fix="apt-get install qemu-user-static" + ("; or --no-contract, and prove it elsewhere" if proof else ""),
        )
    return Path(program)
