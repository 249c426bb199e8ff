"""The kernel worker with a real Triton, without a GPU.

The tests need a Python that has Triton: TOOLCHAIN_TEST_PYTHON names it, and the running interpreter is the default.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kernel_fixtures import local_executor
from toolchain.kernels.campaign import run_campaign
from toolchain.kernels.codeobject import check_object
from toolchain.kernels.ledger import Ledger, counts, look
from toolchain.kernels.rules import Rule, load_rules

TOP = Path(__file__).parents[2]
WORKER = TOP / "aotriton" / "worker.py"
KERNELS = '''
"""Kernels of the test; torch is only imported."""
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice
from .helper import twice

print("a module that prints when it is imported")
DEVICE = torch.device("cuda")


@triton.autotune(configs=[triton.Config({"BLOCK": 256})], key=["n"])
@triton.jit
def vector_add(X, Y, Z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Z + at, tl.load(X + at, at < n) + twice(tl.load(Y + at, at < n)), at < n)


@triton.jit
def error_function(X, n, BLOCK: tl.constexpr, BIAS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = libdevice.erf(tl.load(X + at, at < n))
    if BIAS is not None:
        value += BIAS
    tl.store(X + at, value, at < n)


@triton.jit
def broken(X, BLOCK: tl.constexpr):
    tl.store(X + tl.arange(0, BLOCK), no_such_name)
'''
LAUNCHES = """
import triton
import triton.language as tl

@triton.jit
def product(A, B, C, n, SIDE: tl.constexpr):
    tl.static_print("the syntax tree")
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    sum = tl.zeros((SIDE, SIDE), dtype=tl.float32)
    for step in range(0, n):
        a = tl.load(A + step * SIDE * SIDE + row * SIDE + column)
        b = tl.load(B + step * SIDE * SIDE + row * SIDE + column)
        sum += tl.dot(a, b)
    tl.store(C + row * SIDE + column, tl.exp(sum))
"""
HELPER = """
import triton

@triton.jit
def twice(value):
    return value + value
"""
DATA = """
[source]
root = "src"

[[kernel]]
source = "pack/kernels.py"
function = "vector_add"
direction = "forward"
num_warps = 4
num_stages = 1
waves_per_eu = 1
[kernel.arguments]
"[XYZ]" = "*fp32:16"
n = "i32:16"
BLOCK = 256

[[kernel]]
source = "pack/kernels.py"
function = "error_function"
direction = "forward"
num_warps = 4
num_stages = 1
waves_per_eu = 0
[kernel.arguments]
X = "*fp32:16"
n = "i32"
BLOCK = 256
BIAS = "none"
"""
BROKEN = """
[[kernel]]
source = "pack/kernels.py"
function = "broken"
direction = "forward"
num_warps = 4
num_stages = 1
waves_per_eu = 0
[kernel.arguments]
X = "*fp32"
BLOCK = 64
"""


@pytest.fixture(scope="session")
def python() -> str:
    """Return the path of a Python that has Triton."""
    named = os.environ.get("TOOLCHAIN_TEST_PYTHON", sys.executable)
    probe = subprocess.run([named, "-c", "import triton"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(
            f"MISSING: {named} has no Triton; install the extra [triton] or name a Python in TOOLCHAIN_TEST_PYTHON"
        )
    return named


class Source:
    """A folder with the kernels, and a worker that gets only the environment variables that it needs."""

    def __init__(self, root: Path, python: str, data: str = DATA, **environment: str) -> None:
        self.root = root
        self.python = python
        self.environment = environment
        pack = root / "src" / "pack"
        pack.mkdir(parents=True)
        (pack / "__init__.py").touch()
        (pack / "kernels.py").write_text(KERNELS, encoding="utf-8")
        (pack / "helper.py").write_text(HELPER, encoding="utf-8")
        (root / "data.toml").write_text(data, encoding="utf-8")

    def rules(self) -> tuple[Rule, ...]:
        return load_rules(self.root / "data.toml", self.root, ("gfx942", "gfx1100")).rules

    @contextlib.contextmanager
    def worker(self, _files: str = "", _out: Path = Path()) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [self.python, str(WORKER.with_name("start.py")), str(WORKER.with_name("standin")), ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=self.clean(),
        ) as child:
            yield child

    def clean(self) -> Mapping[str, str]:
        home = self.root / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": os.defpath,
            "PYTHONPATH": str(TOP / "aotriton" / "standin"),
            "HOME": str(home),
            **self.environment,
        }

    def compile(self, rules: tuple[Rule, ...], *, keep_going: bool = False) -> dict[str, str]:
        """Run a campaign, and return the SHA-256 of each file that it makes, by path."""
        out = self.root / "out"
        with Ledger(self.root / "ledger.sqlite") as ledger:
            run_campaign(
                rules,
                local_executor(self.worker, workers=1, timeout=300),
                ledger,
                out,
                worker_tree=str(self.root),
                keep_going=keep_going,
            )
        files = sorted(path for path in out.rglob("*") if path.is_file())
        return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="session")
def compiled(python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, dict[str, str]]:
    source = Source(tmp_path_factory.mktemp("one"), python)
    return source, source.compile(source.rules())


def test_worker_compiles_for_two_generations_without_a_gpu(compiled: tuple[Source, dict[str, str]]) -> None:
    source, files = compiled

    assert len(files) == 2 * 2 * 2 + 1
    for rule in source.rules():
        path = source.root / "out" / rule.out
        check_object(path, rule.target, rule.kernel)
        metadata = json.loads(path.with_suffix(".json").read_text())
        assert metadata["compile_status"] == "Complete"
        assert metadata["warp_size"] == {"gfx942": 64, "gfx1100": 32}[rule.target]
        assert metadata["num_warps"] == 4
        assert metadata["shared"] == 0
        assert metadata["name"] == rule.kernel
        assert metadata["waves_per_eu"] == rule.waves_per_eu
        assert metadata["source"] == rule.source.removeprefix(f"{rule.root}/")
        assert metadata["signature"] == [list(pair) for pair in rule.signature]
        assert metadata["constexprs"] == dict(rule.constexprs)
    assert not list((source.root / "home").rglob("*")), "the worker left something in its home"
    assert not list((source.root / "src").rglob("*.pyc")), "the worker wrote into the source"


def test_bytes_are_the_same_in_another_process_folder_and_order(
    compiled: tuple[Source, dict[str, str]], python: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    other = Source(tmp_path / 'it\'s another "place"', python, PYTHONHASHSEED="77", TZ="Asia/Tokyo", TMPDIR=str(cache))

    assert other.compile(other.rules()[::-1]) == compiled[1]
    assert not list(cache.iterdir()), "a cache was left behind"


def test_linked_bitcode_is_recorded(compiled: tuple[Source, dict[str, str]]) -> None:
    with Ledger(compiled[0].root / "ledger.sqlite") as ledger:
        by_kernel = {entry.kernel: entry.bitcode for entry in look(ledger.path).entries}

    assert by_kernel["vector_add"] == ()
    assert by_kernel["error_function"] == ("ocml",)


def test_failed_kernel_has_its_reason_in_the_ledger(python: str, tmp_path: Path) -> None:
    source = Source(tmp_path, python, DATA + BROKEN)
    source.compile(source.rules(), keep_going=True)

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert counts(look(ledger.path).entries) == {"done": 4, "failed": 2, "timed_out": 0}
        reasons = {entry.reason for entry in look(ledger.path).entries if entry.kernel == "broken"}
    assert len(reasons) == 1
    assert "no_such_name is not defined" in reasons.pop()


def test_rule_that_does_not_fit_the_function_is_refused(python: str, tmp_path: Path) -> None:
    source = Source(tmp_path, python)
    task = source.rules()[0].task(str(tmp_path), str(tmp_path / "out"))
    wrong: list[dict[str, Any]] = [
        {**task, "kernel": "missing"},
        {**task, "signature": {**task["signature"], "more": "i32"}},
        {**task, "constexprs": {}},
        {**task, "source": str(tmp_path / "elsewhere.py"), "root": str(tmp_path / "src")},
    ]
    with source.worker() as child:
        output, _ = child.communicate("\n".join(map(json.dumps, wrong)))
    hello, *answers = [json.loads(line) for line in output.splitlines()]

    assert hello["ready"] is True
    assert [answer["status"] for answer in answers] == ["failed"] * 4
    for answer, words in zip(
        answers,
        ("no jit function missing", "['more']", "constexpr without a value", "not a Python file below"),
        strict=True,
    ):
        assert words in answer["reason"]
    assert not (tmp_path / "out").exists()


def launches(folder: Path) -> list[dict[str, Any]]:
    """Return tasks for two GPUs, which otherwise differ only in warps, stages and waves."""
    (folder / "launches.py").write_text(LAUNCHES, encoding="utf-8")
    pointers = dict.fromkeys("ABC", "*fp16:16")
    common = {
        "root": str(folder), "source": str(folder / "launches.py"), "kernel": "product",
        "signature": {**pointers, "n": "i32", "SIDE": "constexpr"}, "constexprs": {"SIDE": 32},
    }  # fmt: skip
    values = [(4, 1, 0), (4, 2, 0), (4, 2, 3), (2, 2, 3), (2, 2, 0)]
    return [
        {**common, "id": f"{gpu}-{warps}-{stages}-{waves}", "target": gpu, "num_warps": warps,
         "num_stages": stages, "waves_per_eu": waves, "out": str(folder / f"{gpu}-{warps}-{stages}-{waves}.hsaco")}
        for gpu in ("gfx1100", "gfx942") for warps, stages, waves in values
    ]  # fmt: skip


@pytest.fixture(scope="module")
def all_levers(python: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, tuple[str, str]], str]:
    return with_levers(python, tmp_path_factory.mktemp("all"))


def with_levers(
    python: str, folder: Path, without: str = "", *, backwards: bool = False
) -> tuple[dict[str, tuple[str, str]], str]:
    """Compile the launches, and return the SHA-256 of object and JSON by rule, and the worker's standard error."""
    source = Source(folder, python, KERNEL_WORKER_WITHOUT=without)
    tasks = launches(folder)[:: -1 if backwards else 1]
    with source.worker() as child:
        output, said = child.communicate("\n".join(map(json.dumps, tasks)))
    _, *answers = [json.loads(line) for line in output.splitlines()]
    assert [answer["status"] for answer in answers] == ["done"] * len(tasks), said

    def digest(path: str) -> str:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()

    return {answer["id"]: (digest(answer["object"]), digest(answer["json"])) for answer in answers}, said


@pytest.mark.parametrize("without", ["shared,direct,parses", "shared", "direct", "parses"])
def test_optimisations_of_the_worker_change_no_byte(
    all_levers: tuple[dict[str, tuple[str, str]], str], python: str, tmp_path: Path, without: str
) -> None:
    assert with_levers(python, tmp_path, without)[0] == all_levers[0]


def test_order_of_rules_changes_no_byte(
    all_levers: tuple[dict[str, tuple[str, str]], str], python: str, tmp_path: Path
) -> None:
    assert with_levers(python, tmp_path, backwards=True)[0] == all_levers[0]


def test_rules_of_a_group_share_the_syntax_tree(
    all_levers: tuple[dict[str, tuple[str, str]], str], python: str, tmp_path: Path
) -> None:
    """The first rule of a worker is compiled alone, and the others of its group share the syntax tree."""
    assert all_levers[1].count("the syntax tree") == 1 + 1 + 1
    assert len({made for made, _ in all_levers[0].values()}) > len(all_levers[0]) // 2
    assert with_levers(python, tmp_path, "shared")[1].count("the syntax tree") == len(all_levers[0])
