"""The contract check as the tool reads it, and what of check.sh needs no LLVM: run on a prefix of stand-ins."""

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
    """A runner that says what it is told to say."""

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


def test_needs_become_settings() -> None:
    needs = needs_for("3.4.0")
    runner = Script(answers(needs))
    checked(runner, needs)
    assert (runner.env["LLD"], runner.env["FILECHECK"], runner.env["CLANG"]) == ("OFF", "ON", "OFF")
    assert set(runner.env["LIBRARIES"].split(";")) == {*needs.libtriton, *needs.bin_tools}
    assert not {"lld", "clang++"} & set(check_names(needs)), "what is not asked for is not expected"


def test_each_failure_is_named_with_what_to_do() -> None:
    lines = answers(
        NEEDS, FileCheck="it does not run", configure="see the log", build_use="not run, because configure failed"
    )
    with pytest.raises(ContractError) as caught:
        checked(Script(lines, 1))
    assert "FileCheck, configure, build-use" in caught.value.what
    assert ("LLVM_INSTALL_UTILS" in caught.value.fix, "build-use" in caught.value.fix) == (True, False)


def test_a_check_that_says_nothing_is_no_pass() -> None:
    lines = [line for line in answers(NEEDS) if not line.startswith("@contract link ")]
    with refused("contract-unfinished"):
        checked(Script(lines))


def test_an_early_end_is_no_pass() -> None:
    with refused("contract-unfinished", "127") as caught:
        checked(Script(["sh: 0: cannot open"], 127))
    assert "cannot open" in caught.value.why
    with refused("contract-unfinished"):
        checked(Script(answers(NEEDS), 1))


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A prefix that passes the checks before `configure`, at a path with a space and a quote."""
    top = tmp_path / "it's a prefix"
    for folder in ("bin", "lib/cmake/llvm", "include"):
        (top / folder).mkdir(parents=True)
    for name in LIBRARIES:
        (top / "lib" / f"lib{name}.a").write_bytes(ARCHIVE)
    for name, text in (("mlir-tblgen", TBLGEN), ("FileCheck", FILECHECK), ("clang++", CLANG)):
        (top / "bin" / name).write_text(text)
        (top / "bin" / name).chmod(0o755)
    (top / "lib/cmake/llvm/LLVMConfig.cmake").write_text("set(LLVM_LINK_LLVM_DYLIB OFF)\n")
    # Words that only look like the build folder.
    (top / "include" / "Text.h").write_text("// see utils/build/x, </root>/build/x, /building and /src/llvmish\n")
    return top


def cheap(prefix: Path, *options: str, **env: str) -> tuple[int, dict[str, str]]:
    """Run the checks before `configure`; the exit code and each line's rest by name."""
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


def test_stand_ins_pass(prefix: Path) -> None:
    code, rows = cheap(prefix)
    assert code == 0, rows
    assert list(rows) == ["libraries", "static", "mlir-tblgen", "FileCheck", "clang++", "paths"]
    assert not list(prefix.parent.glob("contract.*"))


def test_a_library_that_is_missing_or_has_no_members_of_its_own_fails(prefix: Path) -> None:
    for content in (b"", b"!<arch>\n", b"!<thin>\n" + ARCHIVE):
        (prefix / "lib" / "libMLIROptLib.a").write_bytes(content)
        code, rows = cheap(prefix, "--quick")
        assert (code, rows["libraries"].endswith("MLIROptLib")) == (1, True)
    (prefix / "lib" / f"lib{LIBRARIES[-1]}.a").unlink()
    code, rows = cheap(prefix, "--quick")
    assert (code, list(rows)) == (1, ["libraries"])
    assert f"missing: {LIBRARIES[-1]}" in rows["libraries"]


@pytest.mark.parametrize("name", NEEDS.tools)
def test_a_tool_that_does_nothing_fails(prefix: Path, name: str) -> None:
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
def test_a_build_folder_in_any_file_fails(prefix: Path, where: str, content: bytes) -> None:
    (prefix / where).parent.mkdir(exist_ok=True)
    (prefix / where).write_bytes(content)
    code, rows = cheap(prefix)
    assert code == 1
    assert rows["paths"].startswith("fail 1 files")
    assert where in rows["paths"]
    assert cheap(prefix, FORBIDDEN="/elsewhere/b.ild:/x")[0] == 0


def test_a_dynamic_llvm_fails(prefix: Path) -> None:
    (prefix / "lib" / "libMLIR.so.22.1").touch()
    code, rows = cheap(prefix)
    assert code == 1
    assert rows["static"].startswith("fail")
    assert cheap(prefix, DYLIB="allow")[0] == 0


def test_wrong_words_are_usage() -> None:
    script = recipe.root() / "llvm-config" / "contract" / "check.sh"
    for words in ([], ["--slow", "/usr"], ["--until"], [""]):
        result = subprocess.run(["sh", script, *words], capture_output=True, text=True, check=False)
        assert (result.returncode, "usage" in result.stderr) == (2, True), words
