"""Machines: how OCI, the kernel, Debian and qemu call each, which one this is, and what runs another one's programs."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from toolchain.core import process
from toolchain.core.errors import EngineError, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One architecture by its names.

    Args:
        arch: OCI's.
        kernel: as `uname -m` and qemu say it.
        debian: of packages.
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
    """The OCI architecture of the machine that builds."""
    kernel = platform.machine()
    return next((machine.arch for machine in MACHINES.values() if machine.kernel == kernel), kernel)


def machine_of(arch: str) -> Machine:
    """The machine of an OCI architecture."""
    if arch not in MACHINES:
        raise UnsupportedError(f"unknown architecture {arch!r}", fix=f"one of {', '.join(MACHINES)}")
    return MACHINES[arch]


def emulator_name(arch: str) -> str:
    """The program that `emulator` looks for."""
    return f"qemu-{machine_of(arch).kernel}-static"


def emulator(arch: str, *, proof: bool = True) -> Path:
    """A qemu that runs single programs of `arch` and needs no file of this machine, so that it works in any container.

    Nothing is registered with the kernel for it: it is called by name.

    Args:
        proof: it is for the contract check, which can be left out; otherwise the build itself runs programs by it.
    """
    name = emulator_name(arch)
    program = process.find(name)
    if program is None:
        use = f"a layer for {arch} is proved by running" if proof else f"Triton for {arch} is built by running"
        raise EngineError(
            f"{name} is not installed, and {use} what is in it",
            fix="apt-get install qemu-user-static" + ("; or --no-contract, and prove it elsewhere" if proof else ""),
        )
    return Path(program)
