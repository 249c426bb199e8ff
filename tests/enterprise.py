"""A stand-in for an Enterprise Linux image: programs of the host, and fakes of dnf and rpm."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from toolchain.core import process


def with_programs(tree: Path, *programs: str) -> Path:
    """Copy programs of the host to usr/bin below `tree`, and the libraries that they need to their paths below it."""
    for program in programs:
        found = shutil.which(program)
        if found is None:
            pytest.skip(f"NO STAND-IN FOR A BASE: {program} is not installed")
        listed = process.run(["ldd", found], capture=True, check=False).stdout
        copy(Path(found), tree / "usr/bin" / program)
        for library in re.findall(r"(?:^|\s)(/\S+)(?= \()", listed):
            copy(Path(library), tree / library.lstrip("/"))
    (tree / "bin").mkdir(exist_ok=True)
    if not (tree / "bin/sh").exists():
        copy(tree / "usr/bin/sh", tree / "bin/sh")
    return tree


def copy(source: Path, target: Path) -> None:
    """Copy a file, following links, and make its folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source.resolve(), target)


def script(path: Path, body: str) -> None:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


def enterprise_tree(tree: Path) -> Path:
    """Write the files of the image; its dnf appends its arguments to /dnf-calls and creates empty programs."""
    with_programs(tree, "sh", "sed", "sort", "ln", "rm", "mkdir", "cat", "chmod")
    script(
        tree / "usr/bin/dnf",
        'echo "$*" >>/dnf-calls\n'
        'case "$*" in *" install "*) ;; *) exit 0 ;; esac\n'
        'make() { mkdir -p "${1%/*}"; echo "#!/bin/sh" >"$1"; chmod 0755 "$1"; }\n'
        "for word in $*; do case $word in\n"
        "  gcc-toolset-14-gcc-c++)\n"
        "    for tool in gcc g++ as ld sudo; do make /opt/rh/gcc-toolset-14/root/usr/bin/$tool; done ;;\n"
        "  clang) make /usr/bin/clang; make /usr/bin/clang++ ;;\n"
        "  lld) make /usr/bin/ld.lld ;;\n"
        "  ninja-build) make /usr/bin/ninja-build ;;\n"
        "  cmake | git | python3.12) make /usr/bin/$word ;;\n"
        "esac; done",
    )
    script(tree / "usr/bin/rpm", "echo zlib:x86_64=0:1-1,bb\necho bash:x86_64=0:5-1,aa")
    script(tree / "usr/bin/ldconfig", ":")
    script(tree / "opt/python/cp312-cp312/bin/python3", ":")
    release = tree / "etc/os-release"
    release.parent.mkdir(exist_ok=True)
    release.write_text('ID="rhel"\nVERSION_ID="9.8"\n')
    return tree
