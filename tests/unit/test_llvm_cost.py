"""scripts/llvm_cost.py: what ninja would do, counted by kind, and a list's cost from a sample of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import llvm_cost


def test_steps_by_kind() -> None:
    found = llvm_cost.kinds(
        [
            "Building CXX object lib/IR/CMakeFiles/LLVMCore.dir/Value.cpp.o",
            "Building C object lib/Support/CMakeFiles/LLVMSupport.dir/regcomp.c.o",
            "Linking CXX static library lib/libLLVMCore.a",
            "Linking CXX executable bin/opt",
            "Building AMDGPUGenAsmWriter.inc...",
            "Install the project...",
        ]
    )
    assert {kind: len(made) for kind, made in found.items()} == {
        "objects": 2,
        "archives": 1,
        "links": 1,
        "generated": 2,
    }
    assert found["links"] == ["bin/opt"]


def test_a_list_costs_what_its_sample_says_part_by_part() -> None:
    llvm = [f"lib/IR/CMakeFiles/LLVMCore.dir/{one}.cpp.o" for one in range(10)]
    mlir = [f"tools/mlir/lib/IR/CMakeFiles/obj.MLIRIR.dir/{one}.cpp.o" for one in range(4)]
    # The other recipe's folder has no `obj.`; what was not compiled counts as not drawn.
    costs = {llvm[0]: 2.0, llvm[1]: 4.0, llvm_cost.same(mlir[0]): 10.0}
    found = llvm_cost.estimate([*llvm, *mlir], costs, [*llvm[:3], llvm_cost.same(mlir[0])])
    assert found["seconds"] == 10 * 3 + 4 * 10
    assert found["parts"]["llvm"] == {"objects": 10, "sampled": 2, "mean": 3.0}
    assert found["parts"]["mlir"] == {"objects": 4, "sampled": 1, "mean": 10.0}
    # Variance of the mean 2 / 2, eight of ten unseen, ten objects.
    assert found["error"] == round((100 * 2 / 2 * 0.8) ** 0.5)


def test_a_whole_sample_has_no_error() -> None:
    names = [f"lib/IR/{one}.cpp.o" for one in range(3)]
    found = llvm_cost.estimate(names, {one: float(at) for at, one in enumerate(names)}, names)
    assert (found["seconds"], found["error"]) == (3, 0)


def test_a_compiler_is_launched_and_noted(tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out.o"
    work = f"sum(range(3000000)); open({str(out)!r}, 'w')"
    assert llvm_cost.main(["--launch", str(log), "--", sys.executable, "-c", work, "-o", str(out)]) == 0
    assert llvm_cost.main(["--launch", str(log), "--", sys.executable, "-c", "raise SystemExit(3)"]) == 3
    good, bad = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert good["out"] == str(out)
    assert good["code"] == 0
    assert good["cpu"] > 0
    assert bad["code"] == 3
    tree = llvm_cost.Tree(tmp_path, "install")
    tree.log = log
    assert set(tree.costs()) == {str(out)}


def test_what_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        llvm_cost.main(["--source", "llvm=/nowhere"])
    assert ended.value.code == 2
    assert "--base" in capsys.readouterr().err
