"""The way to a Dask scheduler: addresses, TLS, the library, the text of an order; and the cache of a worker."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest
from typer.testing import CliRunner

from tests.dask_fixtures import Machine, hub, rules_of
from tests.request_fixtures import request_of
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, LockHeldError, UnreachableError
from toolchain.core.locks import alone
from toolchain.kernels import dask_link, dask_worker
from toolchain.kernels.dask_board import Board
from toolchain.kernels.dask_link import check_address, order_of, rule_of
from toolchain.kernels.store import FolderStore
from toolchain.pipeline import kernel_worker
from toolchain.pipeline.plan import PlanRow
from toolchain.stages.stage import Built, Planned

pytestmark = [
    pytest.mark.timeout(300),
    # Dask leaves sockets to the garbage collector when a scheduler goes, and warns of slow machines.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::UserWarning"
    ),
]


def certificates(folder: Path, name: str) -> dict[str, str]:
    """An authority and one certificate of it, as Dask's settings name them."""
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", f"/CN={name}")
    openssl("req", *new, "-keyout", "one.key", "-out", "one.csr", "-subj", "/CN=one")
    openssl("x509", "-req", "-in", "one.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-out", "one.pem")  # fmt: skip
    roles = {f"{role}.{part}": str(folder / f"one.{end}") for role in ("client", "worker", "scheduler")
             for part, end in (("cert", "pem"), ("key", "key"))}  # fmt: skip
    return {f"distributed.comm.tls.{role}": path for role, path in {"ca-file": str(folder / "ca.pem"), **roles}.items()}


def test_tls_with_certificates_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path / "store")
    rules = rules_of("one", warps=[1])
    desk, worker = Machine(tmp_path / "desk"), Machine(tmp_path / "worker")
    worker.provide(rules)
    with dask.config.set(certificates(tmp_path / "ours", "ours")):
        trust = distributed.Security(require_encryption=True)
        with hub(trust) as scheduler, worker.serving(store) as serving:
            scheduler.serve(serving)
            assert scheduler.address.startswith("tls://")
            assert desk.campaign(rules, store, scheduler.address).counts()["done"] == 1
            monkeypatch.setattr("toolchain.kernels.dask_board._CONNECTS", 2.0)
            with dask.config.set(certificates(tmp_path / "theirs", "theirs")), pytest.raises(UnreachableError):
                Board(scheduler.address)


def test_tls_without_certificates_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match="the worker's certificate") as refusal:
        dask_link.security("tls://127.0.0.1:8786", "worker")
    assert "DASK_DISTRIBUTED__COMM__TLS__WORKER__CERT" in refusal.value.fix


@pytest.mark.parametrize(
    "text", ["tcp://127.0.0.1:8786", "tcp://[::1]:8786", "tcp://localhost:1", "tls://10.0.0.1:8786"]
)
def test_an_address_of_a_scheduler(text: str) -> None:
    assert check_address(text) == text


@pytest.mark.parametrize(
    "text", ["tcp://10.0.0.1:8786", "tcp://scheduler:8786", "tcp://0.0.0.0:8786", "tcp://127.0.0.1.evil.example:1"]
)
def test_a_scheduler_that_anybody_could_speak_to_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not on this machine, and without TLS") as refusal:
        check_address(text)
    assert "any code" in refusal.value.why
    assert "tls://" in refusal.value.fix


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1:8786", "ucx://127.0.0.1:1", "tcp://127.0.0.1", "tls://h:8786/x", "tcp://:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an address of a scheduler"):
        check_address(text)


def test_without_dask_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(dask_link, "import_module", absent)
    words = ["kernels", "run", "--cache", str(tmp_path), "--scheduler", "tcp://127.0.0.1:1"]
    done = CliRunner().invoke(app, [*words, "--kernel-store", str(tmp_path / "store")])
    assert done.exit_code == 3
    assert "-m pip install '.[dask]'" in done.output.replace("\n", "")
    lacking = CliRunner().invoke(app, words)
    assert lacking.exit_code == 3
    assert "needs --kernel-store" in lacking.output


def test_the_verb_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    for words, text in (
        (["tcp://10.0.0.1:8786"], "without TLS"),
        (["tcp://127.0.0.1:1"], "a worker needs --kernel-store"),
        (["tcp://127.0.0.1:1", "llvm"], "'llvm' has no kernels"),
    ):
        done = CliRunner().invoke(app, ["kernels", "worker", *words, "--cache", str(tmp_path)])
        assert done.exit_code == 3, done.output
        assert text in done.output


def test_nobody_there_is_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["kernels", "status", "--scheduler", "tcp://127.0.0.1:9", "--json"])
    assert done.exit_code == 18
    assert json.loads(done.stdout)["what"] == "no scheduler answers at tcp://127.0.0.1:9"


def test_an_order_travels_as_text() -> None:
    for rule in rules_of("one"):
        order = json.loads(json.dumps(order_of(rule, "name", recompile=False)))
        assert rule_of(order["rule"]) == rule
        assert rule_of(order["rule"]).id == rule.id


def test_the_cache_of_a_worker_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is made by the build before: `cache prune` would remove the folder of its objects."""
    request = request_of(cache=Cache(tmp_path / "cache"), kernel_store=str(tmp_path / "store"))
    planned = Planned(name="kernels", image="kernels", inputs={})
    triton = Built(planned=replace(planned, name="triton"), input_digest="", manifest="", layers=())
    served = []

    def serve(*_: object) -> None:
        with pytest.raises(LockHeldError), alone(request.cache):
            pass
        served.append(list(request.cache.work.glob("kernel-worker-*")))

    monkeypatch.setattr(kernel_worker, "build", lambda *_, **__: [triton])
    monkeypatch.setattr(kernel_worker, "plan", lambda *_: [PlanRow(planned, None)])
    monkeypatch.setattr(kernel_worker, "_setup", lambda *_: None)
    monkeypatch.setattr(dask_worker, "serve", serve)
    kernel_worker.serve_kernels(request, "kernels", "tcp://127.0.0.1:1")
    assert len(served[0]) == 1
