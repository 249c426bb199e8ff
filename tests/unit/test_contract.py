"""Tests of the contract check: how its output is read, and the checks of check.sh that need no real LLVM."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import pytest

from tests.refusals import refused
from toolchain.catalog.components import LlvmRequirements, needs_for
from toolchain.core import process, recipe
from toolchain.core.errors import ContractError
from toolchain.core.process import CommandError, Result, RunOptions
from toolchain.core.recipe import Mount
from toolchain.stages.contract import Expected, check_layer, check_names

NEEDS = needs_for("3.8")
LIBRARIES = sorted({*NEEDS.libtriton, *NEEDS.bin_tools})
ARCHIVE = b"!<arch>\n" + b"member/         0           0     0     100644  200       `\n" + b"x" * 200
TBLGEN = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo "class ContractDialect; class TwiceOp;" >"$2"; shift; done
"""
FILECHECK = """#!/bin/sh
case " $* " in *wrong*) exit 1 ;; esac
"""
CLANG = """#!/bin/sh
while [ $# -gt 0 ]; do
  [ "$1" = -o ] && printf 'target triple = "nvptx64-nvidia-cuda"\\ndefine i32 @contract_sum()\\n' >"$2"
  shift
done
"""


class Script:
    """A runner that outputs the given lines and returns the given exit code."""

    def __init__(self, lines: Sequence[str], returncode: int = 0) -> None:
        self.lines = lines
        self.returncode = returncode
        self.env: dict[str, str] = {}
        self.argv: tuple[str, ...] = ()
        self.mounts: tuple[Mount, ...] = ()

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        mounts: Sequence[Mount] = (),
        network: bool = False,
        **how: Unpack[RunOptions],
    ) -> Result:
        assert not network, image
        self.env, self.argv, self.mounts = dict(how.get("env") or {}), tuple(argv), tuple(mounts)
        if (on_line := how.get("on_line")) is not None:
            for line in self.lines:
                on_line(line)
        if how.get("check", True) and self.returncode:
            raise CommandError(argv, self.returncode, self.lines)
        return Result(self.returncode, "", tuple(self.lines))


def answers(needs: LlvmRequirements, **failing: str) -> list[str]:
    lines = ["-- noise", "@contractual noise"]
    for name in check_names(needs):
        key = name.replace("-", "_")
        lines.append(f"@contract {name} fail {failing[key]}" if key in failing else f"@contract {name} ok fine, {name}")
    return lines


def checked(runner: Script, needs: LlvmRequirements = NEEDS) -> dict[str, Any]:
    return check_layer(
        runner, "image", "/usr/lib64/llvm-triton-5f07f818", Expected.of_needs(needs), log=Path("full.log")
    )


def test_report_holds_every_check_in_order() -> None:
    runner = Script(answers(NEEDS))
    report = checked(runner)
    assert [check["name"] for check in report["checks"]] == list(check_names(NEEDS))
    assert report["checks"][0]["detail"] == "fine, libraries"
    assert report["checks"][-1] | {"seconds": 0} == {
        "name": "link", "ok": True, "detail": "fine, link", "seconds": 0,
    }  # fmt: skip
    assert runner.argv == ("sh", "/contract/check.sh", "/usr/lib64/llvm-triton-5f07f818")
    (mount,) = runner.mounts
    assert mount.read_only
    assert (mount.source / "check.sh").is_file()


def test_requirements_become_environment_variables() -> None:
    needs = needs_for("3.4.0")
    runner = Script(answers(needs))
    checked(runner, needs)
    assert (runner.env["LLD"], runner.env["FILECHECK"], runner.env["CLANG"]) == ("OFF", "ON", "OFF")
    assert set(runner.env["LIBRARIES"].split(";")) == {*needs.libtriton, *needs.bin_tools}
    assert not {"lld", "clang++"} & set(check_names(needs)), "what is not asked for is not expected"


def test_failed_checks_are_named_with_a_fix() -> None:
    lines = answers(
        NEEDS, FileCheck="it does not run", configure="see the log", build_use="not run, because configure failed"
    )
    with pytest.raises(ContractError) as caught:
        checked(Script(lines, 1))
    assert "FileCheck, configure, build-use" in caught.value.what
    assert ("LLVM_INSTALL_UTILS" in caught.value.fix, "build-use" in caught.value.fix) == (True, False)


def test_missing_result_of_a_check_is_an_error() -> None:
    lines = [line for line in answers(NEEDS) if not line.startswith("@contract link ")]
    with refused("contract-unfinished"):
        checked(Script(lines))


def test_early_end_or_unexplained_exit_code_is_an_error() -> None:
    with refused("contract-unfinished", "127") as caught:
        checked(Script(["sh: 0: cannot open"], 127))
    assert "cannot open" in caught.value.why
    with refused("contract-unfinished"):
        checked(Script(answers(NEEDS), 1))


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Create a prefix that passes the checks before `configure`; its path contains spaces and a quote."""
    top = tmp_path / "it's a prefix"
    for folder in ("bin", "lib/cmake/llvm", "include"):
        (top / folder).mkdir(parents=True)
    for name in LIBRARIES:
        (top / "lib" / f"lib{name}.a").write_bytes(ARCHIVE)
    for name, text in (("mlir-tblgen", TBLGEN), ("FileCheck", FILECHECK), ("clang++", CLANG)):
        (top / "bin" / name).write_text(text)
        (top / "bin" / name).chmod(0o755)
    (top / "lib/cmake/llvm/LLVMConfig.cmake").write_text("set(LLVM_LINK_LLVM_DYLIB OFF)\n")
    # These words only resemble the build folder, so the check `paths` must accept them.
    (top / "include" / "Text.h").write_text("// see utils/build/x, </root>/build/x, /building and /src/llvmish\n")
    return top


def cheap(prefix: Path, *options: str, **env: str) -> tuple[int, dict[str, str]]:
    """Run the checks before `configure`; return the exit code and the result of each check by name."""
    script = recipe.root() / "llvm-config" / "contract" / "check.sh"
    libraries = ";".join(LIBRARIES)
    result = process.run(
        ["sh", script, *options, "--until", "paths", prefix],
        env={"LIBRARIES": libraries, "LLD": "ON", "CLANG": "ON", "TMPDIR": os.fspath(prefix.parent), **env},
        check=False,
        capture=True,
        timeout=300,
    )
    rows = [line.split(" ", 2) for line in result.stdout.splitlines()]
    assert all(row[0] == "@contract" for row in rows)
    return result.returncode, {row[1]: row[2] for row in rows}


def test_prefix_of_stand_ins_passes_the_checks_before_configure(prefix: Path) -> None:
    code, rows = cheap(prefix)
    assert code == 0, rows
    assert list(rows) == ["libraries", "static", "mlir-tblgen", "FileCheck", "clang++", "paths"]
    assert not list(prefix.parent.glob("contract.*"))


def test_missing_empty_or_thin_library_fails_the_check(prefix: Path) -> None:
    for content in (b"", b"!<arch>\n", b"!<thin>\n" + ARCHIVE):
        (prefix / "lib" / "libMLIROptLib.a").write_bytes(content)
        code, rows = cheap(prefix, "--quick")
        assert (code, rows["libraries"].endswith("MLIROptLib")) == (1, True)
    (prefix / "lib" / f"lib{LIBRARIES[-1]}.a").unlink()
    code, rows = cheap(prefix, "--quick")
    assert (code, list(rows)) == (1, ["libraries"])
    assert f"missing: {LIBRARIES[-1]}" in rows["libraries"]


@pytest.mark.parametrize("name", NEEDS.tools)
def test_tool_that_does_nothing_fails_its_check(prefix: Path, name: str) -> None:
    (prefix / "bin" / name).write_text("#!/bin/sh\n")
    code, rows = cheap(prefix)
    assert code == 1
    assert rows[name].startswith("fail")


@pytest.mark.parametrize(
    ("where", "content"),
    [
        ("lib/cmake/llvm/LLVMExports.cmake", b'INTERFACE_INCLUDE_DIRECTORIES "/src/llvm/llvm/utils"\n'),
        ("lib/libLLVMCore.a", ARCHIVE + b"\0/build/lib/IR/Core.cpp\0"),
    ],
)
def test_path_of_the_build_folder_in_a_file_fails_the_check(prefix: Path, where: str, content: bytes) -> None:
    (prefix / where).parent.mkdir(exist_ok=True)
    (prefix / where).write_bytes(content)
    code, rows = cheap(prefix)
    assert code == 1
    assert rows["paths"].startswith("fail 1 files")
    assert where in rows["paths"]
    assert cheap(prefix, FORBIDDEN="/elsewhere/b.ild:/x")[0] == 0


def test_dynamic_llvm_fails_the_check_unless_allowed(prefix: Path) -> None:
    (prefix / "lib" / "libMLIR.so.22.1").touch()
    code, rows = cheap(prefix)
    assert code == 1
    assert rows["static"].startswith("fail")
    assert cheap(prefix, DYLIB="allow")[0] == 0


def test_wrong_arguments_print_the_usage() -> None:
    script = recipe.root() / "llvm-config" / "contract" / "check.sh"
    for words in ([], ["--slow", "/usr"], ["--until"], [""]):
        result = subprocess.run(["sh", script, *words], capture_output=True, text=True, check=False)
        assert (result.returncode, "usage" in result.stderr) == (2, True), words
