"""Kernels that Triton compiles for AMD GPUs are emulated, also by `emulate`, and compared with float64."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from lab.tests.emulated_objects import KERNELS, compile_all, rule
from toolchain.cli.app import app
from toolchain_lab.bridge import disassembler, load, read_metadata
from toolchain_lab.emulator.bits import round_bf16, widen_bf16
from toolchain_lab.emulator.launch import Launch, Launched, run
from toolchain_lab.emulator.metadata import check_metadata
from toolchain_lab.emulator.program import Program
from toolchain_lab.numbers import campaign
from toolchain_lab.numbers.check import Checked

# The GPUs cover the generations and the layouts of matrix instructions.
GPUS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
ROWS = 70  # not a multiple of the block size


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return code objects by GPU and name."""
    folder = tmp_path_factory.mktemp("emulated")
    rules = [
        made
        for gpu in GPUS
        for made in (
            rule(folder, "add", gpu),
            rule(folder, "row_sum", gpu),
            rule(folder, "matmul", gpu),
            rule(folder, "attention", gpu),
            rule(folder, "attention", gpu, element="bf16", CAUSAL=False),
        )
    ]
    return {f"{path.parent.name}/{path.stem}": path for path in compile_all(rules)}


def launched(path: Path, values: Mapping[str, Any], grid: tuple[int, int, int]) -> Launched:
    """Launch an object twice, with another order of waves and other garbage, and require the same bytes."""
    metadata, code = read_metadata(path), load(path)
    check_metadata(code, metadata)
    program = Program.of(code, disassembler())
    assert program.unknown() == []
    launch = Launch(metadata.parameters, values, grid, metadata.waves, metadata.lds)
    one = run(program, launch)
    other = run(program, launch, reverse=True, seed=1)
    assert {name: one.buffers[name].tobytes() for name in one.buffers} == {
        name: other.buffers[name].tobytes() for name in other.buffers
    }
    return one


@pytest.mark.parametrize("gpu", GPUS)
def test_masked_sum_is_exact_and_writes_nothing_else(objects: Mapping[str, Path], gpu: str) -> None:
    random = np.random.default_rng(1)
    x, y = (random.standard_normal(300).astype(np.float32) for _ in range(2))
    done = launched(
        objects[f"{gpu}/add-fp16"], {"x": x, "y": y, "out": np.full(512, 7, np.float32), "n": 300}, (2, 1, 1)
    )
    assert np.array_equal(done.buffers["out"][:300], x + y)
    assert (done.buffers["out"][300:] == 7).all()


@pytest.mark.parametrize("gpu", GPUS)
def test_row_sum_matches_float64(objects: Mapping[str, Path], gpu: str) -> None:
    x = np.random.default_rng(2).standard_normal((3, 512)).astype(np.float32)
    done = launched(objects[f"{gpu}/row_sum-fp16"], {"x": x, "out": np.zeros(3, np.float32)}, (3, 1, 1))
    assert np.abs(done.buffers["out"] - x.astype(np.float64).sum(1)).max() < 1e-4


@pytest.mark.parametrize("gpu", GPUS)
def test_matrix_product_matches_float64(objects: Mapping[str, Path], gpu: str) -> None:
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((32, 32)).astype(np.float16) for _ in range(2))
    done = launched(objects[f"{gpu}/matmul-fp16"], {"a": a, "b": b, "c": np.zeros((32, 32), np.float32)}, (1, 1, 1))
    assert np.abs(done.buffers["c"] - a.astype(np.float64) @ b.astype(np.float64)).max() < 1e-5


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    ("name", "causal", "bound"), [("attention-fp16", True, 2e-3), ("attention-bf16-CAUSALFalse", False, 2e-2)]
)
def test_attention_matches_float64(
    objects: Mapping[str, Path], gpu: str, name: str, causal: bool, bound: float
) -> None:
    random = np.random.default_rng(4)
    scale = 32**-0.5
    plain = [random.standard_normal((ROWS, 32)).astype(np.float32) for _ in range(3)]
    half = "bf16" not in name
    given = [a.astype(np.float16) if half else round_bf16(a) for a in plain]
    q, k, v = ((a if half else widen_bf16(a)).astype(np.float64) for a in given)
    values = {
        **dict(zip("qkv", given, strict=True)),
        "out": np.zeros_like(given[0]), "lse": np.zeros(ROWS, np.float32), "scale": scale, "n": ROWS,
    }  # fmt: skip
    done = launched(objects[f"{gpu}/{name}"], values, (-(-ROWS // 32), 1, 1))
    s = q @ k.T * scale
    if causal:
        s = np.where(np.tri(ROWS, dtype=bool), s, -np.inf)
    weights = np.exp(s - s.max(1, keepdims=True))
    wanted = weights @ v / weights.sum(1, keepdims=True)
    out = done.buffers["out"].astype(np.float64) if half else widen_bf16(done.buffers["out"]).astype(np.float64)
    assert np.abs(out - wanted).max() < bound
    lse = (s.max(1) + np.log(weights.sum(1))) / np.log(2)
    assert np.abs(done.buffers["lse"] - lse).max() < 1e-5


# -------------------------------------------------------------------- emulate


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["emulate", *words])


ARGUMENTS = ("--grid", "2", "--arg", "x=normal:300", "--arg", "y=normal:300", "--arg", "out=zeros:300")


def test_emulate_runs_kernel_and_writes_its_buffers(objects: Mapping[str, Path], tmp_path: Path) -> None:
    path = str(objects["gfx942/add-fp16"])
    done = call(path, *ARGUMENTS, "--arg", "n=300", "--out", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["changed"] == {"x": 0, "y": 0, "out": 300}
    assert told["executed"]["v_add_f32"] > 0
    assert (told["exactness"], told["approximate"]) == ("exact", {})
    x, y, out = (np.load(tmp_path / f"{name}.npy") for name in ("x", "y", "out"))
    assert np.array_equal(out, x + y)


@pytest.mark.parametrize(
    ("gpu", "words", "exact"), [("gfx942", (), True), ("gfx942", ("--fast",), False), ("gfx1100", (), False)]
)
def test_emulate_labels_result_exact_or_approximate_with_a_bound(
    objects: Mapping[str, Path], gpu: str, words: tuple[str, ...], exact: bool
) -> None:
    buffers = [f"--arg={name}=normal:1024" for name in "ab"]
    done = call(str(objects[f"{gpu}/matmul-fp16"]), "--grid", "1", *buffers, "--arg=c=zeros:1024", *words, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["exactness"] == ("exact" if exact else "approximate")
    bounds = [float(text.rpartition(" ")[2]) for text in told["approximate"].values()]
    assert bounds == [] if exact else 0 < max(bounds) < 1e-2


def test_emulate_lists_instructions_of_many_objects(objects: Mapping[str, Path]) -> None:
    done = call(*(str(path) for path in objects.values()), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert len(told["objects"]) == len(objects)
    assert told["unknown"] == []
    assert {"v_mfma_f32_32x32x16_f16", "v_wmma_f32_16x16x16_bf16", "s_endpgm"} <= told["instructions"].keys()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--arg", "n=301"), 27),  # the kernel reads beyond its buffers
        ((), 3),
        (("--arg", "n=x"), 3),
        (("--arg", "n=1", "--arg", "m=1"), 3),
        (("--arg", "n=1", "--workgroup", "2"), 3),
        (("--arg", "n=1", "--objdump", "/bin/true"), 8),
    ],
)
def test_emulate_exits_with_the_code_of_the_error(
    objects: Mapping[str, Path], words: tuple[str, ...], code: int
) -> None:
    assert call(str(objects["gfx942/add-fp16"]), *ARGUMENTS, *words).exit_code == code


def test_json_of_another_object_is_refused(objects: Mapping[str, Path], tmp_path: Path) -> None:
    path = Path(shutil.copy(objects["gfx942/add-fp16"], tmp_path / "k.hsaco"))
    words = (str(path), *ARGUMENTS, "--arg", "n=300")
    for other, differs in (("gfx1100/add-fp16", "the GPU: gfx1100"), ("gfx942/row_sum-fp16", "the kernel: row_sum")):
        shutil.copy(objects[other].with_suffix(".json"), path.with_suffix(".json"))
        done = call(*words)
        assert done.exit_code == 23
        assert "[metadata-other-object]" in done.stderr
        assert differs in done.stderr
    beside = json.loads(objects["gfx942/add-fp16"].with_suffix(".json").read_text())
    beside["signature"] = beside["signature"][1:]
    path.with_suffix(".json").write_text(json.dumps(beside))
    assert call(*words[:-2]).exit_code == 23


def test_malformed_object_or_unknown_gpu_is_refused(objects: Mapping[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "k.hsaco"
    content = objects["gfx942/add-fp16"].read_bytes()
    shutil.copy(objects["gfx942/add-fp16"].with_suffix(".json"), path.with_suffix(".json"))
    for broken, code in ((b"", 12), (content[:1000], 12), (b"\x7fELF" + b"\0" * 60, 12)):
        path.write_bytes(broken)
        assert call(str(path)).exit_code == code
    flags = bytearray(content)
    flags[48] = 0xFE  # e_flags: no GPU has this number
    path.write_bytes(flags)
    done = call(str(path), "--json")
    assert done.exit_code == 23
    assert "0xfe" in json.loads(done.stdout)["why"]


def test_kernel_whose_source_imports_pytorch_is_recompiled(objects: Mapping[str, Path], tmp_path: Path) -> None:
    source = KERNELS.read_text(encoding="utf-8").replace("import triton\n", "import torch\nimport triton\n", 1)
    assert "import torch" in source
    (tmp_path / KERNELS.name).write_text(source)
    words = ["kernels", "try", str(objects["gfx942/add-fp16"]), "--source", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


def test_check_continues_from_its_results_file(objects: Mapping[str, Path], tmp_path: Path) -> None:
    for name in ("add-fp16", "row_sum-fp16"):
        for suffix in (".hsaco", ".json"):
            shutil.copy(objects[f"gfx942/{name}"].with_suffix(suffix), tmp_path)
    results = tmp_path.with_suffix(".jsonl")
    words = ["kernels", "check", str(tmp_path), "--jobs", "1", "--results", str(results), "--json"]
    assert CliRunner().invoke(app, words).exit_code == 28
    one, other = results.read_text().splitlines()
    # A check that was killed while it wrote its second result keeps the first one and checks the second kernel again.
    results.write_text(one.replace("there is no test case", "kept") + "\n" + other[:40])
    done = CliRunner().invoke(app, [*words, "--allow-skipped"])
    assert done.exit_code == 0, done.output
    reasons = [row["reason"] for row in json.loads(done.stdout)["kernels"]]
    assert ["kept" in reason for reason in reasons] == [True, False], reasons
    assert len(results.read_text().splitlines()) == 2
    results.write_text("no results\n")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 3
    assert "[results-malformed]" in done.stderr


def test_check_skips_kernels_without_the_json_of_the_worker(objects: Mapping[str, Path], tmp_path: Path) -> None:
    path = objects["gfx942/add-fp16"]
    written = json.loads(path.with_suffix(".json").read_text())
    triton = {name: written[name] for name in ("name", "arch", "num_warps", "shared")}
    for folder, content in {"alone": None, "cached": json.dumps({"hash": "ab" * 32, **triton})}.items():
        (tmp_path / folder).mkdir()
        shutil.copy(path, tmp_path / folder / "add.hsaco")
        if content is not None:
            (tmp_path / folder / "add.json").write_text(content)
    words = ["kernels", "check", str(tmp_path), "--jobs", "1", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 28, done.output
    rows = json.loads(done.stdout.partition("\n}\n")[0] + "\n}")["kernels"]
    assert [(row["status"], row["gpu"], row["kernel"]) for row in rows] == [("skipped", "gfx942", "add")] * 2
    assert CliRunner().invoke(app, [*words, "--allow-skipped"]).exit_code == 0


def test_interrupted_check_prints_its_results(objects: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> Iterator[Checked]:
        yield Checked("one", "gfx942", "add", "right")
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "results", stopped)
    done = CliRunner().invoke(app, ["kernels", "check", str(objects["gfx942/add-fp16"].parent), "--json"])
    assert done.exit_code != 0
    assert json.loads(done.stdout.partition("\n}\n")[0] + "\n}")["right"] == 1
