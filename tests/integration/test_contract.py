"""Test of the contract check on the real LLVM of the distribution.

All runs are in one container. The whole check must pass. Then each library and each tool is removed in turn, and the
check must fail and name the missing file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import pytest

from toolchain.catalog.components import LlvmRequirements, needs_for
from toolchain.core.process import Result, RunOptions
from toolchain.core.recipe import Mount
from toolchain.engine.buildah import Buildah
from toolchain.engine.docker import DockerRunner
from toolchain.sources.mirrors import apt_mirrors
from toolchain.stages.contract import Expected, check_layer, check_names

UNPREPARED = 90
PACKAGES = "libmlir-19-dev mlir-19-tools liblld-19-dev llvm-19-dev llvm-19-tools"
INSTALL = f"""
{{ apt-get update && apt-get install -y --no-install-recommends {PACKAGES}; }} >/tmp/apt 2>&1 || {{
  tail -n 3 /tmp/apt
  exit {UNPREPARED}
}}
"""
# "$@" is the check as the tool starts it, and its last word is the prefix. The cases change a tree of symbolic links.
CASES = """
"$@" || exit $?
for prefix; do :; done
say() { echo "@case $1 $2 $(tail -n 1 /tmp/said)"; }
run() { name=$1; shift; sh /contract/check.sh --quick "$@" >/tmp/said 2>/tmp/errors; say "$name" $?; }
cp -rs "$prefix" /tmp/farm
run untouched --until paths /tmp/farm
for file in $TAKEN; do
  mv "/tmp/farm/$file" /tmp/taken
  run "$file" --until configure /tmp/farm
  mv /tmp/taken "/tmp/farm/$file"
done
run restored --until paths /tmp/farm
"""
# These cases need other settings, or remove a file of the installed packages.
BREAK = """
FORBIDDEN=/build run leak --until paths "$prefix"
DYLIB=forbid run dynamic --until static "$prefix"
LIBRARIES='MLIRIR;MLIRNoSuchThing' LLD=OFF run unknown --until configure "$prefix"
mv "$prefix/lib/libMLIRReduceLib.a" /tmp/taken
LIBRARIES= run cmake --until configure "$prefix"
"""


class Prepared:
    """A runner that runs the scripts `before` and `after` in the check's container; `after` starts the check."""

    def __init__(
        self, engine: Buildah | DockerRunner, *, before: str = "", after: str, mounts: Sequence[Mount] = ()
    ) -> None:
        self.engine = engine
        self.script = before + after
        self.mounts = tuple(mounts)
        self.network = bool(before)
        self.cases: dict[str, tuple[int, str]] = {}

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        mounts: Sequence[Mount] = (),
        network: bool = False,
        **how: Unpack[RunOptions],
    ) -> Result:
        on_line = how.get("on_line")

        def each(line: str) -> None:
            if line.startswith("@case "):
                _, name, code, last = line.split(" ", 3)
                self.cases[name] = (int(code), last.removeprefix("@contract "))
            elif on_line is not None:
                on_line(line)

        how["on_line"] = each
        words, shown = ["sh", "-c", self.script, "sh", *argv], [*mounts, *self.mounts]
        result = self.engine.run(image, words, mounts=shown, network=network or self.network, **how)
        if result.returncode == UNPREPARED:
            pytest.skip(f"NO LLVM PACKAGES TO CHECK: apt-get install {PACKAGES} failed: {result.tail[-3:]}")
        return result


def taken(needs: LlvmRequirements) -> dict[str, str]:
    """Return the name of the check that must fail, by the file that is removed."""
    libraries = {f"lib/lib{name}.a": "libraries" for name in sorted({*needs.libtriton, *needs.bin_tools})}
    return libraries | {f"bin/{tool}": tool for tool in needs.tools}


def show_each_missing_part_is_found(runner: Prepared, needs: LlvmRequirements) -> None:
    assert runner.cases["untouched"][0] == 0, "without this the others prove nothing"
    assert runner.cases["restored"][0] == 0
    for file, check in taken(needs).items():
        code, last = runner.cases[file]
        assert code == 1, file
        assert last.startswith(f"{check} fail"), (file, last)
        assert Path(file).name.removeprefix("lib").removesuffix(".a") in last


@pytest.mark.engine
def test_contract_passes_for_the_distributions_llvm_and_finds_each_missing_part(
    base: tuple[Buildah, str], tmp_path: Path
) -> None:
    engine, image = base
    needs = dataclasses.replace(
        needs_for("3.2"), lld=True, filecheck=True, clang=True, tools=("mlir-tblgen", "FileCheck", "clang++")
    )
    # The distribution does not build for this contract: its LLVM has a dylib, and files that name their build folder.
    env = {"DYLIB": "allow", "FORBIDDEN": "/no/such/folder", "TAKEN": " ".join(taken(needs))}
    # The base names no mirror, so the packages come from the host's mirror.
    mirror = next((mirror for mirror in apt_mirrors() if not mirror.security), None)
    if mirror is None:
        pytest.skip("NO MIRROR: apt has none configured")
    (tmp_path / "mirror.list").write_text(f"deb {mirror.site} trixie main\n")
    mounts = [Mount(tmp_path / "mirror.list", "/etc/apt/sources.list")]
    expected = Expected.of_needs(needs)
    runner = Prepared(engine, before=INSTALL, after=CASES + BREAK, mounts=mounts)
    expected = dataclasses.replace(expected, settings={**expected.settings, **env})
    report = check_layer(runner, image, "/usr/lib/llvm-19", expected, log=tmp_path / "log")
    assert [check["name"] for check in report["checks"]] == list(check_names(needs))
    details = {check["name"]: check["detail"] for check in report["checks"]}
    assert details["configure"].startswith("LLVM 19.")
    assert "machine 224 0, processor 76" in details["amdgpu"]
    assert "type 3 0" in details["lld"]
    assert details["ptx"] == ".target sm_90"
    show_each_missing_part_is_found(runner, needs)
    for name, check in (("leak", "paths"), ("dynamic", "static"), ("unknown", "libraries"), ("cmake", "configure")):
        code, last = runner.cases[name]
        assert (code, last.split(" ")[:2]) == (1, [check, "fail"]), (name, last)
