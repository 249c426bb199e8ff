"""Real kernels, shared: their bytes are the same on one machine, by two shards and by a worker whose process is killed.

The tests need a Python that has Triton, as test_worker.py does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster_fixtures import Direct, Standin
from tests.integration.test_worker import TOP, WORKER, Source, python
from tests.kernel_fixtures import local_executor
from tests.refusals import refused
from toolchain.core.digest import sha256_file
from toolchain.kernels.bounds import Limits
from toolchain.kernels.campaign import REPORT, CampaignResult, run_campaign
from toolchain.kernels.cluster_worker import Compiler
from toolchain.kernels.ledger import DONE, Ledger, look, reproducible
from toolchain.kernels.pool import CompileSetup, Outcome
from toolchain.kernels.reached import Reach
from toolchain.kernels.result_name import Naming
from toolchain.kernels.result_store import KernelStore, Result, read_record
from toolchain.kernels.rules import Rule, RuleSet
from toolchain.kernels.shards import shard_of
from toolchain.kernels.shared import SharedResults
from toolchain.kernels.worker_process import Worker

__all__ = ["python"]  # the fixture
Files = dict[str, str]


class Machine(Source):
    """A machine with the kernels of test_worker.py, which counts the workers that it starts."""

    started = 0

    @contextlib.contextmanager
    def worker(self, _files: str = "", _out: Path = Path()) -> Iterator[subprocess.Popen[str]]:
        self.started += 1
        with super().worker(_files, _out) as child:
            yield child

    def naming(self) -> Naming:
        recipe = {"worker.py": sha256_file(WORKER)}
        return Naming(self.root, triton=["sha256:" + "a" * 64], recipe=recipe, environment={})

    def share(
        self, stores: Sequence[KernelStore], part: tuple[int, int] | None = None, **how: Any
    ) -> tuple[Files, CampaignResult]:
        """Run a campaign, and return the SHA-256 of each file that it made, by path, and its result."""
        rules = self.rules()
        shared = SharedResults(stores, self.naming(), **how) if stores else None
        shard = shard_of(RuleSet(rules, len(rules)), part, shared, {})
        out = self.root / "out"
        with Ledger(self.root / "ledger.sqlite") as ledger:
            result = run_campaign(
                shard.rules,
                local_executor(self.worker, workers=1, timeout=300),
                ledger,
                out,
                worker_tree=str(self.root),
                shared=shared,
            )
        shard.finish(shared, result.entries)
        return self.files(), result

    def files(self) -> Files:
        """Return the SHA-256 of each file that the campaign made, by path."""
        out = self.root / "out"
        files = sorted(path for path in out.rglob("*") if path.is_file())
        return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def local(python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, CampaignResult]:
    return Machine(tmp_path_factory.mktemp("local"), python).share([])


@pytest.fixture(scope="module")
def stores(python: str, tmp_path_factory: pytest.TempPathFactory) -> list[KernelStore]:
    """Return the stores of two shards, each of which was compiled on its own machine."""
    root = tmp_path_factory.mktemp("shards")
    found = [KernelStore(root / f"store-{number}") for number in (1, 2)]
    for number, store in enumerate(found, 1):
        Machine(root / f"machine-{number}", python).share([store], (number, 2))
    return found


def test_merge_of_shards_equals_one_machine_and_compiles_nothing(
    local: tuple[Files, CampaignResult], stores: list[KernelStore], python: str, tmp_path: Path
) -> None:
    merging = Machine(tmp_path / "merging", python)
    files, result = merging.share(stores, only=True)
    assert files == local[0]
    assert reproducible(result.entries) == reproducible(local[1].entries)
    assert result.about == local[1].about
    assert (result.shared["taken"], merging.started) == (4, 0)
    with refused("shards-missing", "2/2"):
        Machine(tmp_path / "half", python).share(stores[:1], only=True)


def test_dask_worker_equals_one_machine_after_a_killed_process(
    local: tuple[Files, CampaignResult], python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed while it has a kernel to compile, as the out-of-memory killer may kill it."""
    machine, desk = Machine(tmp_path / "machine", python), Machine(tmp_path / "desk", python)
    out = machine.root / "out"
    out.mkdir()
    setup = CompileSetup(start=machine.worker, naming=machine.naming(), out=out, source=str(machine.root))
    with Standin(Compiler(setup, slots=1, limits=Limits(timeout=300))) as compiler:
        kill_once(monkeypatch)
        with Ledger(desk.root / "ledger.sqlite") as ledger:
            result = run_campaign(desk.rules(), Direct(compiler), ledger, desk.root / "out", worker_tree="/")
    assert [entry.attempt for entry in result.entries] == [2, 1, 1, 1]
    assert machine.started == 2
    assert desk.files() == local[0]
    assert reproducible(result.entries) == reproducible(local[1].entries)
    assert result.about == local[1].about


@pytest.mark.parametrize("false", ["another compiler", "another kernel", "another GPU", "changed bytes"])
def test_false_result_in_a_store_is_compiled_again(
    local: tuple[Files, CampaignResult], stores: list[KernelStore], python: str, tmp_path: Path, false: str
) -> None:
    copies = [KernelStore(shutil.copytree(store.root, tmp_path / store.root.name)) for store in stores]
    machine, merging = Machine(tmp_path / "machine", python), Machine(tmp_path / "merging", python)
    shared = SharedResults(copies, machine.naming())
    results = {(rule.kernel, rule.target): found(shared, rule) for rule in machine.rules()}
    rule = next(rule for rule in machine.rules() if (rule.kernel, rule.target) == ("vector_add", "gfx942"))
    store, result = results["vector_add", "gfx942"]
    other, foreign = results["error_function", "gfx942"][1], results["vector_add", "gfx1100"][1]
    records = {
        "another compiler": replace(result, inputs={**result.inputs, "triton": ["sha256:" + "b" * 64]}).record(),
        "another kernel": replace(result, code=other.code).record(),
        "another GPU": replace(result, code=foreign.code).record(),
        "changed bytes": result.record()[:-1] + b"!",
    }
    store.add(shared.name(rule), records[false], replace=True)

    with refused("kernels-missing"):
        Machine(tmp_path / "only", python).share(copies, only=True)
    files, campaign = machine.share(copies)
    assert files == local[0]
    assert reproducible(campaign.entries) == reproducible(local[1].entries)
    assert (campaign.shared["taken"], campaign.shared["damaged"], machine.started) == (3, 1, 1)
    # The second store still has the false result if it was there, but the first store has the new one.
    assert merging.share(copies, only=True)[0] == local[0]


def found(shared: SharedResults, rule: Rule) -> tuple[KernelStore, Result]:
    """Return the result of a rule and the store that has it."""
    name = shared.name(rule)
    ((store, record),) = [(store, record) for store in shared.stores for _, record in store.fetch([name])]
    return store, read_record(record or b"", shared.naming.inputs(rule))


@pytest.fixture(scope="module")
def answered(python: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what a Dask worker returns for the rules."""
    machine = Machine(tmp_path_factory.mktemp("answered"), python)
    out = machine.root / "out"
    out.mkdir()
    setup = CompileSetup(start=machine.worker, naming=machine.naming(), out=out, source=str(machine.root))
    with Standin(Compiler(setup, slots=1, limits=Limits(timeout=300))) as compiler:
        return compiler.compile(machine.rules())


class FalseAnswers(Direct):
    """An executor whose worker answers the first rule falsely, with the second rule's object or a changed object."""

    def __init__(self, answered: Any, false: str) -> None:
        compiler: Any = SimpleNamespace(compile=lambda _: answered)
        super().__init__(compiler)
        self.false = false

    def run(self, rules: Sequence[Rule], tree: str, out: str, /) -> Generator[Outcome, None, None]:
        first, second, *others = super().run(rules, tree, out)
        code = {"another object": second["code"], "changed bytes": first["code"][:-1] + b"!", "no object": b""}[
            self.false
        ]
        # Only the digest shows that bytes were changed on the way, so the worker states the digest of the true object.
        digest = first["sha256"] if self.false == "changed bytes" else hashlib.sha256(code).hexdigest()
        yield {**first, "code": code, "sha256": digest}
        yield from (second, *others)


@pytest.mark.parametrize("false", ["another object", "changed bytes", "no object"])
def test_false_answer_of_a_dask_worker_fails_only_its_kernel(
    local: tuple[Files, CampaignResult], answered: Any, python: str, tmp_path: Path, false: str
) -> None:
    desk, store = Machine(tmp_path / "desk", python), KernelStore(tmp_path / "store")
    shared = SharedResults([store], desk.naming())
    with Ledger(desk.root / "ledger.sqlite") as ledger, refused("kernels-failed"):
        run_campaign(
            desk.rules(), FalseAnswers(answered, false), ledger, desk.root / "out", worker_tree="/", shared=shared
        )
    failed, *done = [entry.out for entry in look(desk.root / "ledger.sqlite").entries if entry.status != DONE]
    assert done == []
    lost = {failed, str(Path(failed).with_suffix(".json"))}
    assert desk.files() == {path: digest for path, digest in local[0].items() if path not in {*lost, REPORT}}
    lacking = shared.lacking(desk.rules())
    assert [rule.out for rule in lacking] == [failed], "a false result must not be shared"


def kill_once(patch: pytest.MonkeyPatch) -> None:
    """Kill the first process that has a kernel, before its answer is read; another thread might be too late."""
    answer, killed = Worker.answer, list[int]()

    def late(worker: Worker, timeout: float | None) -> dict[str, Any]:
        if worker.task is not None and not killed:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        return answer(worker, timeout)

    patch.setattr(Worker, "answer", late)


def test_scan_finds_every_module_that_python_loads(python: str, tmp_path: Path) -> None:
    source = Source(tmp_path, python)
    program = (
        "import json, sys; sys.path[:0] = sys.argv[1:3]\n"
        "import worker; compiler = worker.Compiler()\n"
        "compiler.function(sys.argv[2], sys.argv[2] + '/pack/kernels.py', 'vector_add')\n"
        "print(json.dumps([str(getattr(one, '__file__', '')) for one in list(sys.modules.values())]))"
    )
    root = tmp_path / "src"
    done = subprocess.run(
        [python, "-c", program, str(TOP / "aotriton"), str(root)],
        capture_output=True, text=True, check=True, env=source.clean(),
    )  # fmt: skip
    loaded = {Path(file) for file in json.loads(done.stdout.splitlines()[-1]) if file.startswith(f"{root}/")}
    found = Reach(tmp_path).digests("src", "src/pack/kernels.py")
    assert {root / "pack/__init__.py", root / "pack/helper.py", root / "pack/kernels.py"} <= loaded
    assert {str(path.relative_to(tmp_path)) for path in loaded} <= found.keys()
