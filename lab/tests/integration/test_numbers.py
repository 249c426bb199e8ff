"""`kernels check` on code objects with and without planted faults."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lab.tests.emulated_objects import KERNELS, compile_all, rule
from tests.evidence_fixtures import small_image
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.check_result import Object, require_right
from toolchain.core.errors import NumbersError
from toolchain.kernels.ledger import Ledger
from toolchain.oci.layout import Layout
from toolchain_lab.numbers.build_check import check_objects

SOURCE = KERNELS.parent / "flash_attn_triton_amd" / "bwd_prefill_split.py"
TYPES = {
    "O": "*fp16:16", "DO": "*fp16:16", "Delta": "*fp32:16", "stride_ob": "i32", "stride_oh": "i32:16",
    "stride_om": "i32:16", "stride_dob": "i32", "stride_doh": "i32:16", "stride_dom": "i32:16", "stride_deltab": "i32",
    "stride_deltah": "i32", "max_seqlen_q": "i32",
}  # fmt: skip
ORDER = [
    "O",
    "DO",
    "Delta",
    "stride_ob",
    "stride_oh",
    "stride_om",
    "stride_ok",
    "stride_dob",
    "stride_doh",
    "stride_dom",
    "stride_dok",
    "stride_deltab",
    "stride_deltah",
    "stride_deltam",
    "max_seqlen_q",
    "PRE_BLOCK",
    "ACTUAL_HEAD_DIM",
    "FAULT",
]


def planted(folder: Path, gpu: str, fault: str) -> dict[str, Any]:
    """Return the rule by which the worker compiles the kernel with a fault."""
    constants = {
        "stride_ok": 1, "stride_dok": 1, "stride_deltam": 1, "PRE_BLOCK": 64, "ACTUAL_HEAD_DIM": 32, "FAULT": fault,
    }  # fmt: skip
    return {
        **rule(folder, "row_sum", gpu),
        "source": str(SOURCE),
        "kernel": "_bwd_preprocess",
        "signature": {name: TYPES.get(name, "constexpr") for name in ORDER},
        "constexprs": constants,
        "out": str(folder / fault / gpu / f"{fault}.hsaco"),
    }


PACKED = KERNELS.parent / "bwd_preprocess.py"
PACKED_TYPES = {
    "Out": "*fp16:16", "DO": "*fp16:16", "Delta": "*fp32:16", "stride_oz": "u64:8", "stride_oh": "u64:8",
    "stride_om": "u64:8", "stride_on": "constexpr", "stride_doz": "u64:8", "stride_doh": "u64:8",
    "stride_dom": "u64:8", "stride_don": "constexpr", "cu_seqlens_q": "*i32:16", "max_seqlen_q": "i32",
    "seq_strides_q": "*i32:16", "hdim_vo": "i32", "BLOCK_M": "constexpr", "D_HEAD": "constexpr",
    "PADDED_HEAD": "constexpr",
}  # fmt: skip


def packed(folder: Path, gpu: str) -> dict[str, Any]:
    """Return the rule by which the worker compiles a kernel for packed sequences and a padded head, as in AOTriton."""
    constants = {"stride_on": 1, "stride_don": 1, "BLOCK_M": 32, "D_HEAD": 32, "PADDED_HEAD": True}
    return {
        **rule(folder, "row_sum", gpu),
        "source": str(PACKED),
        "kernel": "bwd_preprocess_varlen",
        "signature": PACKED_TYPES,
        "constexprs": constants,
        "out": str(folder / "packed" / gpu / "packed.hsaco"),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted")
    rules = [planted(path, gpu, "none") for gpu in ("gfx942", "gfx1100")]
    rules += [planted(path, "gfx1100", fault) for fault in ("scale", "mask", "bounds")]
    rules += [packed(path, gpu) for gpu in ("gfx942", "gfx1100")]
    compile_all([*rules, rule(path / "other", "row_sum", "gfx942")])
    return path


def check(path: Path | str, *words: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["kernels", "check", str(path), "--jobs", "1", "--json", *words])
    return done.exit_code, json.loads(done.stdout.split("\n{", 1)[0])


def test_correct_kernels_pass_the_check(folder: Path) -> None:
    code, told = check(folder / "none")
    assert code == 0, told
    assert (told["right"], told["checked"]) == (2, 2)
    assert all(0 < row["share"] < 0.5 for row in told["groups"])
    assert check(folder / "none", "--gpu", "gfx942")[1]["checked"] == 1


def test_kernel_without_inexact_instructions_is_exact_and_fast_rows_are_separate(folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    words = (str(folder / "none"), "--results", str(results))
    _, told = check(*words)
    assert [(row["exactness"], row["approximate"]) for row in told["kernels"]] == [("exact", {})] * 2
    assert (told["exactness"]["exact"], told["exactness"]["approximate"], told["exactness"]["unsupported"]) == (2, 0, 0)
    check(*words)
    assert len(results.read_text().splitlines()) == 2
    check(*words, "--fast")
    assert len(results.read_text().splitlines()) == 4


def test_image_is_checked_like_a_folder(folder: Path, tmp_path: Path) -> None:
    files = {
        f"usr/lib64/thing/{path.relative_to(folder)}": path.read_bytes()
        for path in (folder / "none").rglob("*.*")
        if path.is_file()
    }
    layout = Layout(tmp_path / "layout").ensure()
    layout.tag(small_image(layout, tmp_path / "work", files=files), "thing")
    layout.tag(small_image(layout, tmp_path / "work"), "empty")
    code, told = check(f"oci:{tmp_path}/layout:thing")
    assert code == 0, told
    assert (told["right"], told["checked"]) == (2, 2)
    assert check_code(f"oci:{tmp_path}/layout:empty") == check_code(str(tmp_path / "none")) == 3


def check_code(source: str) -> int:
    return CliRunner().invoke(app, ["kernels", "check", source]).exit_code


def test_packed_sequences_with_a_padded_head_pass(folder: Path) -> None:
    code, told = check(folder / "packed")
    assert code == 0, told
    assert told["right"] == 2
    assert "packed" in told["kernels"][0]["cases"][0]
    assert {row["exactness"] for row in told["kernels"]} == {"approximate"}
    assert all(row["approximate"] for row in told["kernels"]), told


@pytest.mark.parametrize("fault", ["scale", "mask", "bounds"])
def test_planted_fault_is_detected(folder: Path, fault: str) -> None:
    code, told = check(folder / fault)
    assert code == 24
    assert told["wrong"] == 1
    assert {"scale": "error", "mask": "must not write", "bounds": "outside"}[fault] in told["kernels"][0]["reason"]
    # A kernel that accesses memory outside of its buffers has no result, and so no error.
    assert (told["kernels"][0]["share"] is None) == (fault == "bounds")


def test_kernel_without_test_case_is_skipped(folder: Path) -> None:
    code, told = check(folder / "other")
    assert code == 28
    assert (told["right"], told["skipped"], told["checked"]) == (0, 1, 0)


def test_build_check_accepts_correct_kernel_and_refuses_wrong_kernel(folder: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")

    def checked(part: str) -> dict[str, Any]:
        paths = sorted((folder / part).rglob("*.hsaco"))
        chosen = [Object(path, path.name, "", "") for path in paths]
        return check_objects(chosen, folder / part, cache, count=0, jobs=1, note=rows.__setitem__)

    rows: dict[str, Any] = {}
    (path,) = (folder / "none" / "gfx942").rglob("*.hsaco")
    link = tmp_path / "one"
    link.mkdir()
    for file in (path, path.with_suffix(".json")):
        (link / file.name).write_bytes(file.read_bytes())
    found = check_objects([Object(link / path.name, "a", "", "")], link, cache, count=0, jobs=1)
    assert (found["right"], found["checked"], found["available"]) == (1, 1, 1)
    (kernel,) = found["kernels"]
    assert kernel["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "seconds" not in found["groups"][0], "a statement is the same for the same kernels"
    with pytest.raises(NumbersError) as raised:
        require_right(checked("scale"))
    assert raised.value.code == 24
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.note_check("rule", rows["scale.hsaco"])
        assert ledger.checks()["rule"]["status"] == "wrong"
