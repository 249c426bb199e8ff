"""Checks of a library for a GPU, alone and in a wheel, and of a build that uses the network."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.codegen_tree import AMD, CORE
from tests.refusals import refused
from toolchain.core.errors import ContractError
from toolchain.core.recipe import root
from toolchain.stages.binary_checks import check_carried, check_codegen, check_wheel
from toolchain.stages.codegen_library import exported_by
from toolchain.stages.triton_source import for_python

REVISION = f"{AMD}-1"
EXPORTS = ("triton_amdgpu_free", "triton_amdgpu_revision")
SCRIPT = "{\n  global:\n    triton_amdgpu_revision;\n    triton_amdgpu_free;\n  local:\n    *;\n};\n"
INSIDE = "triton/backends/amd/lib/libtriton_amd_codegen.so"
NAME = "libtriton_amd_codegen.so"
native = pytest.mark.skipif(
    shutil.which("cc") is None or platform.machine() != "x86_64",
    reason="NO COMPILER FOR x86_64: libraries are made here",
)


def library(folder: Path, *words: str, more: str = "", revision: str = REVISION, script: str = SCRIPT) -> Path:
    """Compile a library with a version script; `words` are options of the linker."""
    (folder / "small.c").write_text(
        f'const char *triton_amdgpu_revision(void) {{ return "{revision}"; }}\n'
        f"void triton_amdgpu_free(void) {{}}\n{more}"
    )
    (folder / "exports").write_text(script)
    out = folder / NAME
    command = ["cc", "-shared", "-fPIC", f"-Wl,--version-script,{folder}/exports"]
    subprocess.run([*command, "-o", out, folder / "small.c", *words], check=True, capture_output=True)
    return out


def check(file: Path, *, arch: str = "amd64", glibc: str = "2.99") -> dict[str, object]:
    return check_codegen(file, revision=REVISION, exports=EXPORTS, arch=arch, glibc=glibc)


@native
def test_correct_library_is_accepted(tmp_path: Path) -> None:
    made = library(tmp_path, "-lpthread", "-lm")
    facts = check(made)
    assert facts["sha256"] == hashlib.sha256(made.read_bytes()).hexdigest()
    assert facts["symbols"] == sorted(EXPORTS)
    assert facts["revision"] == REVISION
    assert exported_by(tmp_path / "exports") == EXPORTS


def refusal(file: Path, *, arch: str = "amd64", glibc: str = "2.99") -> str:
    """Return why a library is refused."""
    with pytest.raises(ContractError) as caught:
        check(file, arch=arch, glibc=glibc)
    return caught.value.why


@native
def test_library_with_other_or_two_revisions_is_refused(tmp_path: Path) -> None:
    for revision in (f"{CORE}-1", f"{AMD}-10"):
        assert REVISION in refusal(library(tmp_path, revision=revision))
    both = f'__attribute__((used)) static const char *other(void) {{ return "{CORE}-1"; }}\n'
    assert CORE in refusal(library(tmp_path, more=both))


@native
def test_library_with_unexpected_or_missing_symbols_is_refused(tmp_path: Path) -> None:
    script = SCRIPT.replace("global:", "global:\n    llvm_*;")
    more = "int llvm_more(void) { return 1; }\nint llvm_other;\n"
    assert "does not name llvm_more, llvm_other" in refusal(library(tmp_path, more=more, script=script))
    assert "does not export triton_amdgpu_free" in refusal(
        library(tmp_path, script=SCRIPT.replace("    triton_amdgpu_free;\n", ""))
    )


@native
def test_library_that_needs_shared_llvm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "llvm.c").write_text("int llvm(void) { return 1; }\n")
    needed = tmp_path / "libLLVM.so.22"
    words = ["cc", "-shared", "-fPIC", "-o", str(needed), str(tmp_path / "llvm.c"), "-Wl,-soname,libLLVM.so.22"]
    subprocess.run(words, check=True)
    assert "libLLVM.so.22" in refusal(library(tmp_path, "-Wl,--no-as-needed", str(needed)))


@native
def test_library_for_another_system_is_refused(tmp_path: Path) -> None:
    made = library(tmp_path, more="#include <stdio.h>\nvoid *used(void) { return (void *)&fflush; }\n")
    assert "not arm64" in refusal(made, arch="arm64")
    assert "glibc" in refusal(made, glibc="2.1")
    for content in (b"MZ", b"\x7fELF\2\1"):
        made.write_bytes(content)
        with refused("not-an-elf"):
            check(made)


@pytest.mark.parametrize(
    "text",
    ["", "{ local: *; };", "{ global: a*; local: *; };", "{ global: a; };", "V1 { global: a; local: *; };", "\xff\xfe"],
)
def test_malformed_or_missing_version_script_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "exports").write_bytes(text.encode("latin-1"))
    with refused("codegen-version-script"):
        exported_by(tmp_path / "exports")
    with refused("codegen-version-script"):
        exported_by(tmp_path / "gone")


# --- wheels ---


def wheel(folder: Path, name: str, files: dict[str, bytes], tag: str = "") -> Path:
    path = folder / f"triton-1-{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("triton-1.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag or name}\n")
        for inside, content in files.items():
            archive.writestr(inside, content)
    return path


def test_wheel_must_contain_built_library(tmp_path: Path) -> None:
    wanted = {INSIDE: hashlib.sha256(b"built").hexdigest()}
    check_carried(wheel(tmp_path, "a", {INSIDE: b"built"}), wanted)
    check_carried(wheel(tmp_path, "b", {}), {})
    for number, files in enumerate(({}, {INSIDE: b"fetched"})):
        with pytest.raises(ContractError) as caught:
            check_carried(wheel(tmp_path, str(number), files), wanted)
        assert wanted[INSIDE] in caught.value.why


STABLE = "cp312-abi3-manylinux_2_31_x86_64"


@native
def test_stable_abi_wheel_is_accepted_for_later_versions_of_python(tmp_path: Path) -> None:
    shell = Path("/bin/sh").read_bytes()
    old = wheel(tmp_path, "cp311-cp311-manylinux_2_31_x86_64", {"a.so": shell})
    stable = wheel(tmp_path, STABLE, {"triton/_C/libtriton.so": shell})
    for version in ("3.12", "3.13", "3.15"):
        assert for_python([old, stable], version) == stable
        check_wheel(stable, python=version, arch="amd64", glibc="2.99")
    assert for_python([old, stable], "3.11") == old
    with refused("wheel-not-built", "3.10"):
        for_python([old, stable], "3.10")
    with refused("wheel-contents-wrong"):
        check_wheel(stable, python="3.11", arch="amd64", glibc="2.99")
    bound = wheel(tmp_path, STABLE, {"triton/_C/libtriton.cpython-312-x86_64-linux-gnu.so": shell})
    with refused("wheel-contents-wrong"):
        check_wheel(bound, python="3.12", arch="amd64", glibc="2.99")


# --- a build that uses the network ---

OFFLINE = root() / "containerfiles/triton-portable/offline"
FETCHES = [
    (
        "import urllib.request as u; u.urlopen('http://127.0.0.1:9/amd-codegen.tar.gz')",
        "127.0.0.1:9/amd-codegen.tar.gz",
    ),
    ("import socket; socket.create_connection(('llvm.example.test', 443), 1)", "llvm.example.test"),
    ("import subprocess as s; s.run(['curl', '--url', 'http://127.0.0.1:9/x'])", "curl --url http://127.0.0.1:9/x"),
    ("import subprocess as s; s.run(['/usr/bin/git', 'clone', 'http://127.0.0.1:9/x'])", "git clone"),
]
LOCAL = [
    "import urllib.request as u; u.urlopen('file:///etc/hostname')",
    "import subprocess as s; s.run(['git', 'rev-parse', '--show-toplevel'])",
    "import subprocess as s; s.run('true', shell=True, check=True)",
    "import socket; socket.getaddrinfo('localhost', 1)",
]


def python(code: str, note: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(OFFLINE), "TOOLCHAIN_REACHED": str(note), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize(("code", "wanted"), FETCHES)
def test_network_access_of_build_is_stopped_and_noted(code: str, wanted: str, tmp_path: Path) -> None:
    done = python(code, tmp_path / "note")
    assert done.returncode == 1
    assert "this build downloads nothing itself" in done.stderr
    assert wanted in (tmp_path / "note").read_text()


@pytest.mark.parametrize("code", LOCAL)
def test_local_access_of_build_is_allowed(code: str, tmp_path: Path) -> None:
    done = python(code, tmp_path / "note")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "note").exists()
