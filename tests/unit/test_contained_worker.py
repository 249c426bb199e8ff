"""The program in the image of a kernel worker, run without the image: it serves, closes the network, and says no."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toolchain
from tests.dask_fixtures import LAYERS, LIMITS, Hub, Machine, hub, rules_of, until
from toolchain.core.errors import ConfigError, EngineError, KernelError
from toolchain.engine.own_network import WAYS, proved, without_network
from toolchain.kernels.dask_status import ask
from toolchain.kernels.store import FolderStore
from toolchain.pipeline import contained_worker
from toolchain.pipeline.contained_worker import Kernels
from toolchain.stages.worker import MODULES

PACKAGE = Path(toolchain.__file__).parent
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::UserWarning"
    ),
]


@pytest.fixture(scope="module")
def way() -> tuple[str, ...]:
    """How a process gets a network of its own here."""
    try:
        return proved()
    except EngineError as error:
        pytest.skip(f"NO NETWORK NAMESPACE FOR A PROCESS HERE: {error.why}")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules that the image holds, and no more."""
    folder = tmp_path_factory.mktemp("image")
    for name in (*(f"{module}.py" for module in MODULES), "data/gpus.toml"):
        (folder / "toolchain" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PACKAGE / name, folder / "toolchain" / name)
    return folder


class Image:
    """A container of the image, as far as its program can tell; compiled by the fake worker of a machine."""

    def __init__(self, program: Path, machine: Machine) -> None:
        self.program = program
        self.machine = machine
        self.store = machine.root / "store"
        self.log = machine.root / "log"
        (machine.root / "kernels.json").write_text(json.dumps(self.kernels_json()))

    def kernels_json(self) -> dict[str, Any]:
        folder = self.machine.workers.folder
        return {
            "format": 1,
            "name": "kernel-worker-test",
            "stage": "kernels",
            "source": str(self.machine.tree),
            "command": [sys.executable, "-u", str(folder / "worker.py"), str(folder)],
            "variables": {"HOME": "/nowhere", "PATH": os.defpath},
            "triton": list(LAYERS),
            "recipe": {"worker.py": "1"},
            "environment": {},
            "search": [],
        }

    def words(self, *more: str) -> list[str]:
        kernels = str(self.machine.root / "kernels.json")
        own = ["--kernels", kernels, "--store", str(self.store), "--name", self.machine.root.name]
        return [sys.executable, "-m", "toolchain.pipeline.contained_worker", *more, *own]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DASK_", "TOOLCHAIN_"))}
        return {**kept, "PYTHONPATH": str(self.program), "SECRET_OF_THE_STATION": "s", **(more or {})}

    def call(self, *more: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Run it to its end: exit code, and what it said."""
        done = subprocess.run(
            self.words(*more), capture_output=True, text=True, check=False, timeout=120,
            env=self.environment(env), cwd=self.machine.root,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    @contextlib.contextmanager
    def running(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        with self.log.open("wb") as log:
            child = subprocess.Popen(
                self.words(*more), stdout=log, stderr=log, env=self.environment(), cwd=self.machine.root
            )
            try:
                yield child
            finally:
                child.kill()
                child.wait(30)


@pytest.fixture
def image(program: Path, tmp_path: Path) -> Image:
    machine = Machine(tmp_path / "container")
    worker = Image(program, machine)
    worker.store.mkdir()
    return worker


@pytest.fixture
def scheduler() -> Iterator[Hub]:
    with hub() as made:
        yield made


def interfaces(pid: int) -> list[str]:
    """What a process sees, as in /proc."""
    rows = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return [row.partition(":")[0].strip() for row in rows]


def test_it_imports_no_more_than_the_image_holds(program: Path) -> None:
    code = (
        "import json, sys, toolchain.pipeline.contained_worker, toolchain.catalog.gpus as gpus; gpus.known_gpus();"
        "print(json.dumps({n: m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'toolchain'}))"
    )
    env = {**os.environ, "PYTHONPATH": str(program)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, cwd="/")
    loaded = json.loads(done.stdout)
    assert {Path(file).relative_to(program / "toolchain").with_suffix("").as_posix() for file in loaded.values()} == {
        *MODULES
    }


def test_a_compile_process_sees_no_interface_and_the_station_does(
    image: Image, scheduler: Hub, tmp_path: Path, way: tuple[str, ...]
) -> None:
    desk, machine = Machine(tmp_path / "desk"), image.machine
    rules = rules_of("one", "waits", "fails", warps=(1,))
    machine.provide(rules)
    with image.running(scheduler.address, "--jobs", "1", "--kernel-timeout", "60", "--log", "all.log") as child:
        until(lambda: ask(scheduler.address)["machines"] or child.poll() is not None, "worker")
        (row,) = ask(scheduler.address)["machines"]
        assert (row["name"], row["slots"]) == ("container", 1)

        def look() -> tuple[list[str], list[str], bytes]:
            until((machine.workers.folder / "waiting").exists, "compile process")
            (pid,) = machine.workers.alive
            seen = interfaces(pid), interfaces(child.pid), Path(f"/proc/{pid}/environ").read_bytes()
            (machine.workers.folder / "go").touch()
            return seen

        with ThreadPoolExecutor(1) as beside:
            looking = beside.submit(look)
            made = desk.campaign(rules, FolderStore(image.store), scheduler.address)
        compiles, worker, environment = looking.result()
        assert compiles == ["lo"]
        assert worker == interfaces(os.getpid())
        assert set(worker) != {"lo"} or len(interfaces(os.getpid())) == 1
        assert b"SECRET_OF_THE_STATION" not in environment
        assert {entry.origin for entry in made.entries} == {"worker container"}
        assert made.counts()["done"] == 2
        assert [(kernel, worker) for kernel, worker, _ in desk.logs] == [("fails", "container")]

        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 128 + signal.SIGTERM, image.log.read_text()
        until(lambda: not machine.workers.alive, "end of the compile processes", 10)
    log = image.log.read_text()
    assert f"for {scheduler.address}" in log
    assert "Traceback" not in log, log
    assert "because of that" not in log
    assert "a compiler's chatter" in (machine.root / "all.log").read_text()

    local = Machine(tmp_path / "local")
    local.provide(rules)
    (local.workers.folder / "go").touch()
    local.campaign(rules, None)
    assert desk.files() == local.files()


def test_it_ends_in_the_middle_of_a_kernel(image: Image, scheduler: Hub, tmp_path: Path, way: tuple[str, ...]) -> None:
    """What it had compiled is in the store; another worker compiles the rest."""
    desk, second, machine = Machine(tmp_path / "desk"), Machine(tmp_path / "other"), image.machine
    rules = rules_of("one", "waits", warps=(1,))
    machine.provide(rules)
    second.provide(rules)
    (second.workers.folder / "go").touch()
    store = FolderStore(image.store)
    with (
        ThreadPoolExecutor(1) as beside,
        image.running(scheduler.address, "--jobs", "1", "--kernel-timeout", "60") as child,
    ):
        until(lambda: ask(scheduler.address)["machines"], "worker")
        made = beside.submit(desk.campaign, rules, store, scheduler.address)
        until((machine.workers.folder / "waiting").exists, "compile process")
        child.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert child.wait(60) == 128 + signal.SIGTERM, image.log.read_text()
        assert time.monotonic() - began < 8, "an engine waits ten seconds, and kills it"
        assert machine.workers.alive == []
        with second.serving(store) as serving:
            scheduler.serve(serving)
            assert made.result(120).counts()["done"] == 2
    assert second.workers.tries == ["waits"]


def test_another_triton_or_limit_is_refused_by_the_campaign(
    image: Image, scheduler: Hub, tmp_path: Path, way: tuple[str, ...]
) -> None:
    rules = rules_of("one", warps=(1,))
    image.machine.provide(rules)
    store = FolderStore(image.store)
    with image.running(scheduler.address, "--kernel-timeout", "60", "--kernel-memory", "500"):
        until(lambda: ask(scheduler.address)["machines"], "worker")
        desk = Machine(tmp_path / "desk", limits=replace(LIMITS, memory=500 * 10**6), layers=("sha256:" + "b" * 64,))
        with pytest.raises(KernelError, match="no worker") as caught:
            desk.campaign(rules, store, scheduler.address, patience=1)
        assert "container: it was made by another Triton" in caught.value.why
        desk = Machine(tmp_path / "other desk")
        with pytest.raises(KernelError, match="no worker") as caught:
            desk.campaign(rules, store, scheduler.address, patience=1)
        assert "'memory': 500000000" in caught.value.why


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["http://127.0.0.1:1"], 3, "is not an address of a scheduler"),
        (["tcp://192.0.2.1:8786"], 3, "not on this machine, and without TLS"),
        (["tls://127.0.0.1:8786"], 3, "needs the worker's certificate"),
        (["tcp://127.0.0.1:9", "--patience", "0"], 18, "no scheduler answers at tcp://127.0.0.1:9"),
        (["tcp://127.0.0.1:9", "--log", "no/such/folder"], 3, "cannot write the log"),
        ([], 2, "the address of a scheduler is missing"),
        (["tcp://127.0.0.1:9", "--jobs", "-1"], 2, "'-1' is not a whole number of 0 or more"),
        (["tcp://127.0.0.1:9", "--kernel-memory", "abc"], 2, "'abc' is not a whole number of 0 or more"),
        (["tcp://127.0.0.1:9", "--kernel-memory", "-5"], 2, "'-5' is not a whole number of 0 or more"),
        (["tcp://127.0.0.1:9", "--patience", "nan"], 2, "'nan' is not a number of seconds of 0 or more"),
        (["tcp://127.0.0.1:9", "--patience", "soon"], 2, "'soon' is not a number of seconds of 0 or more"),
        (["tcp://127.0.0.1:9", "--kernel-timeout", "-1"], 2, "'-1' is not a number of seconds of 0 or more"),
        (["tcp://127.0.0.1:9", "--kernel-timeout", "inf"], 2, "'inf' is not a number of seconds of 0 or more"),
    ],
)
def test_what_it_refuses(image: Image, words: list[str], code: int, said: str, way: tuple[str, ...]) -> None:
    status, text = image.call(*words)
    assert (status, said in text, "Traceback" in text) == (code, True, False), text


def test_a_certificate_that_is_not_there(image: Image) -> None:
    names = ("CA_FILE", "WORKER__CERT", "WORKER__KEY")
    env = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": "/no/such.pem" for name in names}
    code, text = image.call("tls://127.0.0.1:8786", env=env)
    assert (code, "certificates for tls://127.0.0.1:8786 cannot be used" in text) == (3, True), text


def test_without_a_store_nothing_is_served(image: Image) -> None:
    image.store.rmdir()
    code, text = image.call("tcp://127.0.0.1:9")
    assert (code, f"there is no kernel store at {image.store}" in text) == (3, True), text
    assert "-v FOLDER:/store" in text
    assert not image.store.exists()
    image.store.mkdir()
    (image.store / "somebody's").touch()
    code, text = image.call("tcp://127.0.0.1:9")
    assert (code, "is not a kernel store" in text) == (3, True), text


def test_without_a_place_for_objects_nothing_is_served(
    image: Image, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: tuple[str, ...]
) -> None:
    """As in a container whose root is read-only, and that has no /tmp."""

    def full(*_: object, **__: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    monkeypatch.setattr(contained_worker, "_log_to", lambda _: None)
    monkeypatch.setattr(contained_worker, "proved", lambda: way)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGHUP)]
    try:
        code = contained_worker.main(image.words("tcp://127.0.0.1:9")[3:])
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    errors = capsys.readouterr().err
    assert (code, "no place for objects" in errors, "--tmpfs /tmp" in errors) == (9, True, True), errors


def test_where_the_kernel_gives_no_namespace_nothing_is_compiled() -> None:
    with pytest.raises(EngineError, match="nothing is compiled here") as caught:
        proved([("false", "--"), ("unshare", "--no-such-option", "--")])
    assert "false: exited with 1" in caught.value.why
    assert "--no-such-option" in caught.value.why
    assert "--cap-add SYS_ADMIN" in caught.value.fix


def test_a_namespace_that_is_none_is_found_out() -> None:
    if interfaces(os.getpid()) == ["lo"]:
        pytest.skip("this machine has no interface that a process could see")
    with pytest.raises(EngineError) as caught:
        proved([("env", "--")])
    assert "env: it sees " in caught.value.why
    done = subprocess.run(
        without_network(["echo", "compiled"], ("env", "--")), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "must see no network, and sees" in done.stderr


def test_the_second_way_serves_who_is_not_root(way: tuple[str, ...]) -> None:
    assert way in WAYS
    done = subprocess.run(
        without_network(["sh", "-c", "cat /proc/net/dev; id -u"], WAYS[1]), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"NO USER NAMESPACE HERE: {done.stderr}")
    *rows, user = done.stdout.splitlines()
    assert [row.partition(":")[0].strip() for row in rows[2:]] == ["lo"]
    assert user == str(os.geteuid())


@pytest.mark.parametrize(("name", "value"), [("source", 5), ("command", "abc"), ("command", []), ("variables", [])])
def test_a_file_whose_values_are_of_another_kind(image: Image, tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / "kernels.json").write_text(json.dumps(image.kernels_json() | {name: value}))
    with pytest.raises(ConfigError, match="does not say which kernels to compile") as caught:
        Kernels.read(tmp_path / "kernels.json")
    assert name in caught.value.why


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "command": 1}'])
def test_a_file_of_no_image(tmp_path: Path, text: str) -> None:
    (tmp_path / "kernels.json").write_text(text)
    with pytest.raises(ConfigError, match="does not say which kernels to compile"):
        Kernels.read(tmp_path / "kernels.json")
