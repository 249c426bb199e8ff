"""Jobs by cores, memory and control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolchain.core.errors import ResourceError
from toolchain.engine import resources
from toolchain.engine.resources import GIB


class Machine:
    """A fake /proc and /sys/fs/cgroup."""

    def __init__(self, top: Path) -> None:
        self.proc, self.cgroup = top / "proc", top / "cgroup"

    def write(self, path: Path, content: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def memory(self, available: int) -> None:
        self.write(self.proc / "meminfo", f"MemTotal: 99999999 kB\nMemAvailable:   {available // 1024} kB\n")

    def groups(self, content: str) -> None:
        self.write(self.proc / "self" / "cgroup", content)

    def jobs(self, kind: resources.Kind, asked: int = 0) -> int:
        return resources.jobs_for(kind, asked)

    def available(self) -> int:
        return resources.memory_available()

    def cores(self) -> int:
        return resources.cores()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    made = Machine(tmp_path)
    monkeypatch.setattr(resources, "_PROC", made.proc)
    monkeypatch.setattr(resources, "_CGROUP", made.cgroup)
    made.memory(64 * GIB)
    made.groups("0::/\n")
    return made


def test_cores_limit_jobs_if_memory_suffices(machine: Machine) -> None:
    assert machine.jobs("compile") == 16
    assert machine.jobs("link") == 12, "64 GiB carry twelve linkers of 5"


def test_memory_limits_requested_jobs(machine: Machine) -> None:
    machine.memory(12 * GIB)
    assert (machine.jobs("compile"), machine.jobs("link"), machine.jobs("kernel")) == (8, 2, 8)
    assert machine.jobs("compile", 100) == 8
    assert machine.jobs("compile", 3) == 3


def test_cgroup_v2_limits_of_a_parent_apply(machine: Machine) -> None:
    machine.groups("0::/user/job\n")
    machine.write(machine.cgroup / "user" / "memory.max", f"{8 * GIB}\n")
    machine.write(machine.cgroup / "user" / "memory.current", f"{4 * GIB}\n")
    machine.write(machine.cgroup / "user" / "memory.stat", f"anon 1\ninactive_file {GIB}\n")
    machine.write(machine.cgroup / "user" / "job" / "memory.max", "max\n")
    machine.write(machine.cgroup / "user" / "job" / "memory.current", "1\n")
    machine.write(machine.cgroup / "user" / "job" / "cpu.max", "250000 100000\n")
    assert machine.available() == 5 * GIB
    assert machine.cores() == 3


def test_cgroup_v1_limits_apply(machine: Machine) -> None:
    machine.groups("4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n")
    machine.write(machine.cgroup / "memory" / "job" / "memory.limit_in_bytes", f"{3 * GIB}\n")
    machine.write(machine.cgroup / "memory" / "job" / "memory.usage_in_bytes", f"{GIB}\n")
    machine.write(machine.cgroup / "memory" / "memory.limit_in_bytes", "9223372036854771712\n")
    machine.write(machine.cgroup / "memory" / "memory.usage_in_bytes", f"{99 * GIB}\n")
    machine.write(machine.cgroup / "cpu,cpuacct" / "job" / "cpu.cfs_quota_us", "200000\n")
    machine.write(machine.cgroup / "cpu,cpuacct" / "job" / "cpu.cfs_period_us", "100000\n")
    assert machine.available() == 2 * GIB
    assert machine.cores() == 2


def test_group_path_of_the_host_falls_back_to_the_mount_root(machine: Machine) -> None:
    machine.groups("0::/docker/0123\n")
    machine.write(machine.cgroup / "memory.max", f"{2 * GIB}\n")
    machine.write(machine.cgroup / "memory.current", "0\n")
    assert machine.available() == 2 * GIB


def test_too_little_disk_names_path_free_and_needed(tmp_path: Path) -> None:
    place = tmp_path / "not" / "there yet"
    resources.require_disk(place, 1)
    with pytest.raises(ResourceError) as raised:
        resources.require_disk(place, 10**18)
    assert str(place) in raised.value.what
    assert "1000000000.0 GB are needed, and " in raised.value.why
    assert raised.value.why.endswith(" GB are free")
    assert raised.value.code == 9
