"""The parts of a campaign on a Dask scheduler: addresses, certificates, requirements, and the compiler of a worker."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributed
import pytest
from typer.testing import CliRunner

from tests.cluster_fixtures import LIMITS, Machine, Standin, rules_of
from tests.kernel_fixtures import only_hanging_ones_time_out
from tests.refusals import refused
from tests.request_fixtures import request_of
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, KernelError, LockHeldError, ResourceError
from toolchain.core.locks import alone
from toolchain.kernels import scheduler
from toolchain.kernels.cluster import requirements
from toolchain.kernels.cluster_worker import Compiler
from toolchain.kernels.ledger import DONE, FAILED, TIMEOUT
from toolchain.kernels.pool import is_answer
from toolchain.kernels.scheduler import check_address, check_version, security
from toolchain.pipeline import cluster_member
from toolchain.pipeline.plan import PlanRow
from toolchain.stages.kernel_workers import KernelProject
from toolchain.stages.stage import Built, Planned


@pytest.mark.parametrize(
    "text", ["tcp://127.0.0.1:8786", "tcp://[::1]:8786", "tcp://localhost:1", "tls://10.0.0.1:8786", "tls://host:1"]
)
def test_valid_scheduler_address_is_accepted(text: str) -> None:
    assert check_address(text) == text


@pytest.mark.parametrize(
    "text", ["tcp://10.0.0.1:8786", "tcp://scheduler:8786", "tcp://0.0.0.0:8786", "tcp://127.0.0.1.evil.example:1"]
)
def test_scheduler_without_tls_outside_of_loopback_is_refused(text: str) -> None:
    with refused("scheduler-without-tls"):
        check_address(text)


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:8786", "ucx://127.0.0.1:1", "tcp://127.0.0.1", "tls://h:8786/x", "tcp://:1", "tcp://[::1",
     "tls://u@h:1", "tls://h:1?x", "tls://h:99999"],
)  # fmt: skip
def test_malformed_scheduler_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        check_address(text)


def test_tls_needs_certificates_and_scheduler_needs_same_dask() -> None:
    assert security("tcp://127.0.0.1:1", "worker") is None
    for role in ("client", "worker"):
        with refused("scheduler-without-certificate"):
            security("tls://127.0.0.1:1", role)
    check_version("tcp://127.0.0.1:1", {"packages": {"distributed": distributed.__version__}})
    with pytest.raises(ConfigError):
        check_version("tcp://127.0.0.1:1", {"packages": {"distributed": "1.0"}})


@pytest.mark.parametrize("verb", [["run", "--scheduler"], ["worker"]])
def test_verbs_refuse_unusable_scheduler_or_stage(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code(address: str, *more: str) -> int:
        return CliRunner().invoke(app, ["kernels", *verb, address, *more, "--cache", str(tmp_path)]).exit_code

    assert code("tcp://10.0.0.1:8786") == 3
    assert code("tls://10.0.0.1:8786") == 3
    assert code("tcp://127.0.0.1:1", "llvm") == 3

    def absent(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(scheduler, "import_module", absent)
    assert code("tcp://127.0.0.1:1") == 3
    assert {path.name for path in tmp_path.iterdir()} <= {"locks"}, "nothing is built before"


def test_worker_with_another_runner_does_not_fit_a_campaign(tmp_path: Path) -> None:
    """The record and the provenance of the kernels name the campaign's runner, which decides how they are isolated."""
    setup = Machine(tmp_path).setup
    buildah, docker = (requirements(setup, LIMITS, runner) for runner in ("buildah", "docker"))
    assert [name for name in buildah if buildah[name] != docker[name]] == ["runner"]


def compiler_of(machine: Machine, **limits: Any) -> Compiler:
    return Compiler(machine.setup, slots=1, limits=replace(LIMITS, **limits))


def test_worker_returns_code_of_compiled_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_hanging_ones_time_out(monkeypatch)
    machine = Machine(tmp_path)
    rules = rules_of("one", "fails", "dies", "absent", "hangs", warps=[1])
    machine.provide(rules)
    with Standin(compiler_of(machine, timeout=2)) as compiler:
        made = compiler.compile(rules)
        again = compiler.compile(rules[:1])
    answers = made["answers"]
    assert (made["worker"], made["about"]) == ("there", {"triton": "0.0"})
    assert all(is_answer(answer, rule.id, (DONE, FAILED, TIMEOUT)) for answer, rule in zip(answers, rules, strict=True))
    assert [answer["status"] for answer in answers] == [DONE, FAILED, FAILED, FAILED, TIMEOUT]
    assert hashlib.sha256(answers[0]["code"]).hexdigest() == answers[0]["sha256"]
    assert again["answers"][0]["code"] == answers[0]["code"]
    assert ["code" in answer for answer in answers] == [True, False, False, False, False]
    assert machine.workers.alive == []
    assert list(machine.out.iterdir()) == []


def test_symlink_in_place_of_object_is_not_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (rule,) = rules_of("linked", warps=[1])
    machine.provide([rule])
    (tmp_path / "secret").write_bytes(b"secret")
    program = machine.workers.folder / "worker.py"
    text = program.read_text().replace("out.write_bytes(content)", f"out.symlink_to({str(tmp_path / 'secret')!r})")
    program.write_text(text)
    with Standin(compiler_of(machine)) as compiler:
        (answer,) = compiler.compile([rule])["answers"]
    assert answer["status"] == FAILED
    assert "code" not in answer


@pytest.mark.parametrize(("kernel", "kind"), [("starved", ResourceError), ("one", KernelError)])
def test_worker_that_cannot_compile_leaves_scheduler(tmp_path: Path, kernel: str, kind: type) -> None:
    machine = Machine(tmp_path)
    (rule,) = rules_of(kernel, warps=[1])
    machine.provide([rule])
    if kernel == "one":
        (machine.workers.folder / "broken").touch()
    compiler = compiler_of(machine)
    there = Standin(compiler)
    with there, pytest.raises(kind):
        compiler.compile([rule])
    assert isinstance(compiler.error, kind)
    assert there.reason


def test_worker_locks_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock applies even if the preceding build made the cache.

    `cache prune` would otherwise remove the folder of the worker's objects.
    """
    request = request_of(cache=Cache(tmp_path / "cache"))
    planned = Planned(name="kernels", image="kernels", inputs={})
    triton = Built(planned=replace(planned, name="triton"), input_digest="", manifest="", layers=())
    served = []

    async def serve(*_: object, **__: object) -> None:
        with pytest.raises(LockHeldError), alone(request.cache):
            pass
        served.append(list(request.cache.work.glob("kernel-worker-*")))

    monkeypatch.setattr(cluster_member, "build", lambda *_, **__: [triton])
    monkeypatch.setattr(cluster_member, "plan", lambda *_: [PlanRow(planned, None)])
    monkeypatch.setattr(KernelProject, "compile_setup", lambda *_, **__: Machine(tmp_path / "machine").setup)
    monkeypatch.setattr(cluster_member, "serve", serve)
    cluster_member.serve_kernels(request, "kernels", "tcp://127.0.0.1:1")
    assert len(served[0]) == 1
