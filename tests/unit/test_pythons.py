"""The CPythons of portable wheels: versions, the range of a tree, plans, and the check of a wheel."""

from __future__ import annotations

import platform
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.refusals import refused
from tests.request_fixtures import specs
from tests.small_triton import small_triton
from toolchain.catalog.base_ref import parse_base
from toolchain.catalog.bases import base_recipe
from toolchain.catalog.pythons import check_range, python_of
from toolchain.core.cache import Cache
from toolchain.core.errors import PinError
from toolchain.pipeline.plan import plan
from toolchain.request.model import DEFAULT_GLIBC, Request
from toolchain.stages import base, unpacked
from toolchain.stages.binary_checks import check_wheel
from toolchain.stages.triton_portable import check_pythons
from toolchain.stages.triton_tree import python_requires

pytestmark = pytest.mark.usefixtures("on_amd64")
DIGEST = "5" * 64
COMMIT = "d8da7c998c75c88691e0ec157fcfd92b49d7060a"


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    """Return a request for a small Triton on a portable LLVM, for two Pythons."""
    return Request(
        cache=Cache(tmp_path / "cache"),
        sources=specs({"llvm": "distro:llvm-toolchain-22", "triton": str(checkout(tmp_path / "triton"))}),
        glibc=DEFAULT_GLIBC,
        pythons=("3.13", "3.11"),
    )


def checkout(folder: Path, requires: str = "") -> Path:
    """Write the parts of a Triton tree that a plan reads, and return the tree."""
    tree = small_triton(folder)
    for part in ("amd", "nvidia"):
        (tree / "third_party" / part / "backend").mkdir(parents=True)
    if requires:
        (tree / "setup.py").write_text(requires)
    return tree


def resolve(request: Request) -> None:
    """Write the package lists, as if every package of the plan had been unpacked."""
    rows = [{"name": "libc6", "version": "2.41", "architecture": "amd64", "sha256": DIGEST}]
    recipe = base_recipe("debian13", "amd64")
    cache = request.cache
    lock = {"recipe": base.recipe_digest(recipe), "packages": rows}
    base.write_packages(cache.package_list("base", "debian13", "amd64"), lock)
    for arch in ("amd64", "arm64"):
        alone = replace(request, arch=(arch,))
        system, wanted = unpacked.sysroot_of(alone), unpacked.pythons_of(alone)
        lists = {("sysroot", system.name): system.digest, ("python", wanted.name): wanted.digest}
        for (stage, name), digest in lists.items():
            base.write_packages(cache.package_list(stage, name, arch), {"recipe": digest, "packages": rows})


# The data


def test_triton_with_extra_requirement_on_python_39_is_refused(tmp_path: Path) -> None:
    setup = "setup(python_requires='>=3.9', install_requires=[\"importlib-metadata; python_version < '3.10'\"])\n"
    (tmp_path / "setup.py").write_text(setup)
    check_pythons(["3.11", "3.13"], tmp_path, "3.4.0")
    with refused("python-not-built", "3.4.0", "3.9"):
        check_pythons(["3.9", "3.13"], tmp_path, "3.4.0")
    (tmp_path / "setup.py").write_text("setup(python_requires='>=3.8')\n")
    check_pythons(["3.9", "3.13"], tmp_path, "3.0.0")


@pytest.mark.parametrize("version", ["3.13.1", "\uff13.13", "3.13\n"])
def test_invalid_python_version_is_refused(version: str) -> None:
    with refused("not-a-python-version"):
        python_of(version)


def test_python_of_no_debian_release_is_refused_with_the_known_versions() -> None:
    with refused("python-not-built", "3.12") as caught:
        python_of("3.12")
    assert "3.9, 3.11, 3.13" in caught.value.why


# The range of a tree


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('from x import y\nsetup(python_requires=">=3.10")\n', ">=3.10"),
        (f"setup(python_requires={'+'.join(['1'] * 2000)})\n", ""),
        ("A = '1234567890'\n" + "A = f'{A}{A}'\n" * 40 + "setup(python_requires=A)\n", ""),
        ('R = ">=3.9,<3.14"\nsetup(name="a", python_requires=R)\n', ">=3.9,<3.14"),
        (
            'A = (3, 10)\nB = (3, 14)\nR = f">={A[0]}.{A[1]},<{B[0]}.{B[1] + 1}"\nsetup(python_requires=R)\n',
            ">=3.10,<3.15",
        ),
        ("setup(python_requires=open('x').read())\n", ""),
        ('A = None\nsetup(python_requires=f">={A}")\n', ""),
        ("x" + "(" * 5000, ""),
        ("A = (1, 1)\n" + "A = (A, A)\n" * 40 + "setup(python_requires=f'{A}')\n", ""),
        ("A = 9\n" + "A = A + A\n" * 20_000 + "setup(python_requires=f'{A}')\n", ""),
        ("not " * 100_000 + "1\nsetup(python_requires='>=3.9')\n", ""),
    ],
)
def test_python_requires_is_read_without_running_setup_py(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "setup.py").write_text(text)
    assert python_requires(tmp_path) == says


def test_a_python_outside_of_the_range_is_refused() -> None:
    check_range("3.13", ">=3.10,<3.15", name="Triton x")
    check_range("3.13", "", name="Triton x")
    with refused("python-not-supported", "3.9") as caught:
        check_range("3.9", ">=3.10,<3.15", name="Triton x")
    assert ">=3.10,<3.15" in caught.value.why
    with refused("python-range-unreadable"):
        check_range("3.9", "three", name="Triton x")


# Plans


def at_a_commit(request: Request) -> Request:
    """Pin Triton to a commit, because the plan of a folder has no digest before the folder is read."""
    return replace(request, sources={**request.sources, **specs({"triton": f"https://e.example/t@{COMMIT}"})})


def test_portable_wheel_inputs_name_sysroot_pythons_and_llvm(request_: Request) -> None:
    resolve(request_)
    rows = plan(request_, "triton")
    assert [row.planned.name for row in rows] == ["base", "sysroot", "python", "llvm", "triton"]
    assert rows[2].planned.image == "toolchain-python-3.11-3.13"
    inputs = plan(at_a_commit(request_), "triton")[-1].planned.inputs
    assert inputs is not None
    assert inputs["pythons"] == ["3.11", "3.13"]
    assert inputs["glibc"] == DEFAULT_GLIBC
    for name, row in zip(("base", "sysroot", "python", "llvm"), rows, strict=False):
        assert inputs[name] == row.planned.input_digest is not None
    assert {"containerfiles/triton-portable/build.sh", "llvm-config/portable.cmake"} <= set(inputs["recipe"])
    assert "containerfiles/triton/build.sh" not in inputs["recipe"]


def test_wheel_for_other_architecture_is_cross_compiled(request_: Request) -> None:
    resolve(request_)
    request = at_a_commit(replace(request_, arch=("arm64",), pythons=("3.11",)))
    resolve(request)
    rows = plan(request, "triton")
    assert [(row.planned.name, row.arch) for row in rows][1:] == [
        ("sysroot", "arm64"), ("python", "arm64"), ("llvm", "arm64"), ("triton", "arm64"),
    ]  # fmt: skip
    inputs = rows[-1].planned.inputs
    assert inputs is not None
    assert inputs["base"]  # its digest identifies the architecture that compiles
    assert "llvm-config/cross.cmake" in inputs["recipe"]


def test_custom_base_requires_python_option(request_: Request) -> None:
    own = replace(request_, base=parse_base("oci:/nowhere"), pythons=())
    with pytest.raises(PinError) as caught:
        unpacked.versions_of(own)
    assert "--python" in caught.value.fix
    assert unpacked.versions_of(replace(own, pythons=("3.13", "3.9", "3.13"))) == ("3.9", "3.13")


def test_python_range_of_tree_is_checked_by_the_plan(request_: Request, tmp_path: Path) -> None:
    tree = checkout(tmp_path / "other", 'setup(python_requires=">=3.12")\n')
    request = replace(request_, sources={**request_.sources, **specs({"triton": str(tree)})})
    with refused("python-not-supported", "3.11"):
        plan(request, "triton")
    # The plan accepts a patched tree, because the patch may change the range and is applied only after a fetch.
    patch = tmp_path / "a.patch"
    patch.write_text("--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-x\n+y\n")
    assert plan(replace(request, patches={"triton": (patch,)}), "triton")[-1].planned.details.pythons == (
        "3.11",
        "3.13",
    )


def test_python_of_the_base_is_required(request_: Request) -> None:
    with refused("python-left-out", "3.13") as caught:
        plan(replace(request_, pythons=("3.11",)), "triton")
    assert "--python 3.11,3.13" in caught.value.fix


# The check of a wheel


def a_wheel(folder: Path, name: str, tag: str, *, elf: bytes = b"", inside: str = "triton/_C/libtriton.so") -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("triton-1.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(inside, elf or Path("/bin/sh").read_bytes())
    return path


@pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT CHECKED: /bin/sh serves as an x86_64 program")
@pytest.mark.parametrize(
    ("name", "tag", "inside", "says"),
    [
        ("cp313-cp313-manylinux_2_99_x86_64", "", "a.so", "glibc"),
        ("cp311-cp311-manylinux_2_31_x86_64", "", "a.so", "not for cp313"),
        ("cp313-cp313-manylinux_2_31_x86_64", "cp313-cp313-linux_x86_64", "a.so", "not for cp313"),
        ("cp313-cp313-linux_x86_64", "", "a.so", "glibc"),
        ("cp313-cp313-manylinux_2_31_x86_64", "", "a/b.cpython-311-x86_64-linux-gnu.so", "suffix"),
    ],
)
def test_wheel_for_other_python_or_glibc_is_refused(
    tmp_path: Path, name: str, tag: str, inside: str, says: str
) -> None:
    wheel = a_wheel(tmp_path, f"triton-1-{name}.whl", tag or name, inside=inside)
    with refused("wheel-contents-wrong") as caught:
        check_wheel(wheel, python="3.13", arch="amd64", glibc="2.31")
    assert says in caught.value.why


@pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT CHECKED: /bin/sh serves as an x86_64 program")
@pytest.mark.parametrize("line", [b"Tag: py3-none-any\n", b"\xff\n"], ids=["vendored", "no text"])
def test_wheel_tag_is_read_from_its_own_metadata(tmp_path: Path, line: bytes) -> None:
    tag = "cp313-cp313-manylinux_2_31_x86_64"
    wheel = tmp_path / f"triton-1-{tag}.whl"
    vendored = "triton/vendored-1.dist-info/WHEEL" if line.startswith(b"Tag") else "triton-1.dist-info/WHEEL"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(vendored, line + f"Tag: {tag}\n".encode())
        if vendored.startswith("triton/"):
            archive.writestr("triton-1.dist-info/WHEEL", f"Tag: {tag}\n")
        archive.writestr("a.so", Path("/bin/sh").read_bytes())
    assert check_wheel(wheel, python="3.13", arch="amd64", glibc="2.99")["tag"] == "manylinux_2_31_x86_64"


def test_wheel_with_missing_or_truncated_elf_is_refused(tmp_path: Path) -> None:
    tag = "cp313-cp313-manylinux_2_31_x86_64"
    wheel = a_wheel(tmp_path, f"triton-1-{tag}.whl", tag, elf=b"no program")
    with refused("wheel-contents-wrong"):
        check_wheel(wheel, python="3.13", arch="amd64", glibc="2.31")
    wheel = a_wheel(tmp_path, f"triton-1-{tag}.whl", tag, elf=b"\x7fELF\2")
    with refused("not-an-elf"):
        check_wheel(wheel, python="3.13", arch="amd64", glibc="2.31")
