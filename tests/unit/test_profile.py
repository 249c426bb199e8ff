"""Profiles: what makes one, what one is of, and what a build by one is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from tests.request_fixtures import PACKAGES, request_of, specs, with_base
from toolchain.core.cache import Cache
from toolchain.core.errors import BuildError, PinError, PolicyError, SourceError, UnsupportedError
from toolchain.core.recipe import root
from toolchain.pipeline.plan import plan
from toolchain.pipeline.run import build
from toolchain.pipeline.targets import stages_of
from toolchain.request.model import Request
from toolchain.sources.tree import Source
from toolchain.stages.base import write_packages
from toolchain.stages.profile import train
from toolchain.stages.profile_use import ABOUT, CLANG, DATA, about, check_profile, triton_options
from toolchain.stages.stage import Planned
from toolchain.stages.sysroot import sysroot_system

ROOT = root()
LLVM = Source(name="llvm", kind="git", where="x", version="1" * 40, digest="git:" + "1" * 40, path=None, locked=True)
TRITON = replace(LLVM, name="triton", version="2" * 40, digest="git:" + "2" * 40)


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    request = request_of(
        cache=Cache(tmp_path / "cache"),
        glibc="2.31",
        sources={"llvm": "distro:llvm-toolchain-22"},
        pythons="3.13",
    )
    with_base(tmp_path / "cache")
    system = sysroot_system(request)
    lock = {"recipe": system.digest, "packages": PACKAGES}
    write_packages(request.cache.package_list("sysroot", system.name, "amd64"), lock)
    return request


def a_profile(folder: Path, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATA).write_bytes(b"counts")
    (folder / CLANG).write_text("clang 19.1.7\n")
    (folder / ABOUT).write_text(json.dumps({**about(LLVM, TRITON, {}), **more}))
    return folder


def by_profile(request: Request, folder: Path) -> Request:
    return replace(request, sources={**request.sources, **specs({"profile": str(folder)})})


def planned(request: Request, target: str) -> dict[str, Planned]:
    return {row.planned.name: row.planned for row in plan(request, target)}


def test_a_profile_stands_on_instrumented_stages_alone(request_: Request) -> None:
    names = [stage.name for stage in stages_of("profile", request_)]
    assert names == ["base", "sysroot", "llvm-instrumented", "python", "triton-instrumented", "profile"]
    instrumented = planned(request_, "llvm-instrumented")["llvm-instrumented"]
    plain = planned(request_, "llvm")["llvm"]
    assert (plain.image, instrumented.image) == ("llvm-triton-22.1.8", "llvm-triton-22.1.8-instrumented")
    assert instrumented.inputs is not None
    assert plain.inputs is not None
    assert instrumented.inputs["instrumented"] is True
    assert "containerfiles/llvm-profile/build.sh" in instrumented.inputs["recipe"]
    assert "containerfiles/llvm-profile/build.sh" not in plain.inputs["recipe"]
    # What a program needs that links it is the compiler's, so it is not proved by linking.
    assert (plain.has_contract_check, instrumented.has_contract_check) == (True, False)


def test_a_layer_by_a_profile_is_another_with_another_name(request_: Request, tmp_path: Path) -> None:
    profiled = replace(by_profile(request_, a_profile(tmp_path / "p")), allow_binary=("profile",))
    plain, row = planned(request_, "llvm")["llvm"], planned(profiled, "llvm")["llvm"]
    assert row.image == "llvm-triton-22.1.8-pgo"
    assert row.input_digest not in {None, plain.input_digest}
    assert [source.name for source in row.sources] == ["llvm", "profile"]
    assert row.binaries == ("profile",)
    second = replace(by_profile(request_, a_profile(tmp_path / "q", more=1)), allow_binary=("profile",))
    assert planned(second, "llvm")["llvm"].input_digest != row.input_digest
    # Who names none, or lets its name in without one, gets the layer that there is.
    assert planned(replace(request_, allow_binary=("profile",)), "llvm")["llvm"].input_digest == plain.input_digest


def test_a_profile_enters_by_name_alone(request_: Request, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="needs the prebuilt profile") as caught:
        build(by_profile(request_, a_profile(tmp_path / "p")), "llvm")
    assert "--allow-binary profile" in caught.value.fix


def test_a_base_gets_none(tmp_path: Path) -> None:
    request = request_of(
        cache=with_base(tmp_path / "cache"), base="debian13", sources={"llvm": "distro:llvm-toolchain-22"}
    )
    for refused, target in ((by_profile(request, a_profile(tmp_path / "p")), "llvm"), (request, "profile")):
        with pytest.raises(UnsupportedError, match="no profile is made or used on base debian13"):
            plan(refused, target)


def test_a_wheel_gets_none(request_: Request) -> None:
    wheel = replace(request_, sources={**request_.sources, **specs({"triton": "pypi:3.7.1"})})
    with pytest.raises(UnsupportedError, match="no profile is made of a Triton that is a wheel") as caught:
        plan(wheel, "profile")
    assert "--source triton=PATH" in caught.value.fix


def test_a_profile_of_this_llvm_is_taken(tmp_path: Path) -> None:
    about = check_profile(a_profile(tmp_path), LLVM, {})
    assert about["triton"]["ref"] == TRITON.ref


@pytest.mark.parametrize(
    ("of", "patched"), [(replace(LLVM, digest="git:" + "3" * 40), False), (LLVM, True), (TRITON, False)]
)
def test_one_of_another_llvm_is_refused(tmp_path: Path, of: Source, patched: bool) -> None:
    (tmp_path / "a.patch").write_text("x")
    patches = {"llvm": (tmp_path / "a.patch",)} if patched else {}
    with pytest.raises(PinError, match="this profile is not of") as caught:
        check_profile(a_profile(tmp_path / "p"), of, patches)
    assert "toolchain build profile" in caught.value.fix


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', "\x00", '{"format": 2, "llvm": {}}', "[" * 9999])
def test_what_does_not_say_what_it_is_of_is_refused(tmp_path: Path, text: str) -> None:
    folder = a_profile(tmp_path)
    (folder / ABOUT).write_text(text)
    with pytest.raises(SourceError):
        check_profile(folder, LLVM, {})


@pytest.mark.parametrize("missing", [DATA, ABOUT, CLANG])
def test_a_folder_that_lacks_a_file_is_no_profile(tmp_path: Path, missing: str) -> None:
    (a_profile(tmp_path) / missing).unlink()
    with pytest.raises(SourceError, match=missing):
        check_profile(tmp_path, LLVM, {})


def test_triton_counts_or_is_compiled_by_what_was_counted() -> None:
    counting, by = (triton_options(where).split() for where in (None, "/x/y.profdata"))
    assert counting[0] == by[0] == "-DCMAKE_PROJECT_triton_INCLUDE=/recipe/llvm-config/profiled-triton.cmake"
    assert (counting[1:], by[1:]) == (["-DTOOLCHAIN_PROFILE=count"], ["-DTOOLCHAIN_PROFILE=/x/y.profdata"])


def configured(source: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A project as CMake, which `./test` installs, configures it; with the commands by which it would be compiled."""
    where = ["-S", str(source), "-B", str(source / "build"), "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    return subprocess.run(["cmake", *where, *options], check=False, capture_output=True, text=True)


@pytest.mark.parametrize("how", ["count", "/x/y.profdata"])
def test_the_libraries_of_the_folders_alone_have_a_profile(tmp_path: Path, how: str) -> None:
    (tmp_path / "hook.cmake").write_text(
        'set(TOOLCHAIN_PROFILED hot lacking)\nset(TOOLCHAIN_PROFILED_TOP "${CMAKE_SOURCE_DIR}")\n'
        f'include("{ROOT}/llvm-config/profiled.cmake")\n'
    )
    top = "cmake_minimum_required(VERSION 3.20)\nproject(small CXX)\nadd_executable(program main.cpp)\n"
    folders = ("hot", "hot/below", "cold")
    (tmp_path / "CMakeLists.txt").write_text(top + "".join(f"add_subdirectory({name})\n" for name in folders))
    (tmp_path / "main.cpp").touch()
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x.cpp").touch()
        (tmp_path / name / "CMakeLists.txt").write_text(f"add_library({name.replace('/', '-')} STATIC x.cpp)\n")
    done = configured(tmp_path, f"-DCMAKE_PROJECT_small_INCLUDE={tmp_path}/hook.cmake", f"-DTOOLCHAIN_PROFILE={how}")
    assert done.returncode == 0, done.stderr
    assert f"1 libraries with a profile ({how})" in done.stdout
    assert "no library in lacking" in done.stdout
    rows = json.loads((tmp_path / "build" / "compile_commands.json").read_text())
    flag = "-fprofile-generate" if how == "count" else "-fprofile-use=/x/y.profdata"
    assert {row["file"].removeprefix(f"{tmp_path}/") for row in rows if flag in row["command"]} == {"hot/x.cpp"}
    assert len(rows) == 4


def test_a_source_without_any_of_the_folders_ends_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.20)\nproject(triton CXX)\n")
    hook = f"-DCMAKE_PROJECT_triton_INCLUDE={ROOT}/llvm-config/profiled-triton.cmake"
    done = configured(tmp_path, hook)
    assert done.returncode != 0
    assert "none of the libraries" in done.stderr


# A worker that reports whether it ended normally.
_WORKER = """
import json, sys
from pathlib import Path
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    task = json.loads(line)
    if task["kernel"] == "dies":
        sys.exit(3)
    done = task["kernel"] != "fails"
    print(json.dumps({"id": task["id"], "status": "done" if done else "failed", "reason": "no"}), flush=True)
Path(sys.argv[1]).write_text("in peace")
"""


class Workers:
    def __init__(self, folder: Path) -> None:
        self.folder, self.number = folder, 0

    @contextmanager
    def make(self) -> Iterator[Popen[str]]:
        self.number += 1
        command = [sys.executable, "-c", _WORKER, str(self.folder / f"{self.number}.ended")]
        with Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as child:
            yield child


def tasks(*names: str) -> list[dict[str, Any]]:
    return [{"id": str(number), "kernel": name, "out": name} for number, name in enumerate(names)]


def test_each_process_of_a_training_ends_in_peace(tmp_path: Path) -> None:
    counts: list[tuple[int, int, str]] = []
    workers = Workers(tmp_path)
    failed = train(workers.make, tasks("a", "fails", "b", "c"), workers=2, on_count=lambda *now: counts.append(now))
    assert failed == ["fails: no"]
    assert len(list(tmp_path.glob("*.ended"))) == workers.number == 2
    assert counts[-1] == (4, 4, "kernels")


def test_one_that_ends_by_itself_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="an instrumented worker exited"):
        train(Workers(tmp_path).make, tasks("a", "dies", "b"), workers=1, on_count=lambda *_: None)
