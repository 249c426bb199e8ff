"""Tests of the recipe of a codegen library, and of a wheel with the library, on a real portable LLVM."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.codegen_tree import AMD, PROJECT, codegen_tree
from tests.integration.test_triton_portable import PREFIX, build, engine, image, recipe_of
from toolchain.catalog.codegen import codegens
from toolchain.core.errors import BuildError, ContractError
from toolchain.core.recipe import Mount, Recipe
from toolchain.engine.buildah import Buildah
from toolchain.stages.binary_checks import check_carried, check_codegen
from toolchain.stages.codegen_library import exported_by, library_recipe, take_files

__all__ = ["engine"]
pytestmark = pytest.mark.engine
(RULE,) = codegens()
REVISION = f"{AMD}-3"
# Like Triton's setup.py, this packages the library at its place, and downloads one if no variable names it.
PACKAGE = """\
import urllib.request

if not os.environ.get("TRITON_AMD_CODEGEN_PATH"):
    urllib.request.urlopen("http://127.0.0.1:9/amd-codegen.tar.gz")
assert os.environ["TRITON_OFFLINE_BUILD"] and "OAIARTIFACTS_BASE_URL" not in os.environ
backend = Path(__file__).parent / "python/triton/backends/amd/lib"
shutil.copytree(Path(__file__).parent / "third_party/amd/backend/lib", backend, dirs_exist_ok=True)
setup(
    package_data={"triton": ["backends/amd/lib/*"]},
"""


@dataclass(frozen=True)
class Made:
    """The folder with the library, the recipe of the library, and the recipe of the wheels."""

    out: Path
    recipe: Recipe
    wheels: Recipe


@pytest.fixture(scope="module")
def made(engine: Buildah, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Build the library of a small project that links LLVMSupport, for an old system."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("NO DEBIAN MACHINE AS ROOT: the base is made from apt's mirrors")
    folder = tmp_path_factory.mktemp("codegen")
    wheels = recipe_of(engine, folder, "amd64")
    recipe = library_recipe(
        RULE,
        base=wheels.base,
        llvm=wheels.images["LLVM"],
        prefix=PREFIX,
        revision=REVISION,
        files=take_files(codegen_tree(folder / "whole"), RULE, folder / "files"),
        sysroot=wheels.contexts["sysroot"],
        cache_key=wheels.cache_key,
    )
    build(engine, recipe, folder / "out")
    return Made(folder / "out", recipe, wheels)


def again(engine: Buildah, recipe: Recipe, out: Path) -> None:
    """Build a recipe after another build, because the engine may have dropped the images of the base and of LLVM."""
    for stage in ("base", "llvm"):
        image(engine, stage, "amd64")
    build(engine, recipe, out)


def facts(made: Made, revision: str = REVISION) -> Mapping[str, object]:
    exports = exported_by(made.out / RULE.exports)
    return check_codegen(made.out / RULE.library, revision=revision, exports=exports, arch="amd64", glibc="2.31")


def test_library_exports_the_symbols_of_its_version_script_and_needs_no_llvm(made: Made, engine: Buildah) -> None:
    found = facts(made)
    assert found["symbols"] == ["triton_amdgpu_name", "triton_amdgpu_revision"]
    assert "libstdc++.so.6" in found["libraries"]  # type: ignore[operator]
    ask = (
        "import ctypes; found = ctypes.CDLL('/made/libtriton_amd_codegen.so');"
        "found.triton_amdgpu_revision.restype = found.triton_amdgpu_name.restype = ctypes.c_char_p;"
        "print(found.triton_amdgpu_revision().decode(), found.triton_amdgpu_name().decode())"
    )
    done = engine.run(made.recipe.base, ["python3", "-c", ask], mounts=[Mount(made.out, "/made")], capture=True)
    assert done.stdout.split() == [REVISION, "amdgpu"]
    assert b"/src/triton" not in (made.out / RULE.library).read_bytes()
    with pytest.raises(ContractError, match="revision"):
        facts(made, f"{AMD}-4")


def test_build_cannot_read_files_that_the_rule_does_not_name(made: Made, engine: Buildah, tmp_path: Path) -> None:
    shutil.copytree(made.recipe.contexts["triton"], tmp_path / "files")
    source = tmp_path / "files" / PROJECT / "small.cpp"
    source.write_text('#include "triton/Other.h"\n' + source.read_text())
    other = replace(made.recipe, contexts={**made.recipe.contexts, "triton": tmp_path / "files"})
    with pytest.raises(BuildError) as caught:
        again(engine, other, tmp_path / "out")
    assert "triton/Other.h" in (tmp_path / "out.log").read_text() + caught.value.why


def test_wheel_contains_the_given_library_and_cannot_download_one(made: Made, engine: Buildah, tmp_path: Path) -> None:
    tree = tmp_path / "triton"
    shutil.copytree(made.wheels.contexts["triton"], tree)
    setup = tree / "setup.py"
    setup.write_text(
        setup.read_text().replace("import shlex\n", "import shlex\nimport shutil\n").replace("setup(\n", PACKAGE)
    )
    given = tmp_path / "codegen"
    place = given / "tree" / RULE.place / RULE.library
    place.parent.mkdir(parents=True)
    shutil.copy(made.out / RULE.library, place)
    (given / "variables").write_text(f"{RULE.variable}={RULE.place}/{RULE.library}\n")
    contexts = {**made.wheels.contexts, "triton": tree}
    args = {**made.wheels.args, "PYTHONS": "3.11 3.13", "STABLE_ABI": "ON", "INPUT_DIGEST": f"{tmp_path} with"}
    again(engine, replace(made.wheels, contexts={**contexts, "codegen": given}, args=args), tmp_path / "out")
    wheels = sorted((tmp_path / "out/wheel").iterdir())
    assert [wheel.name.split("-")[2:4] for wheel in wheels] == [["cp311", "cp311"], ["cp312", "abi3"]]
    for wheel in wheels:
        check_carried(wheel, {RULE.installed: str(facts(made)["sha256"])})
    # Without the library, the same tree would download one.
    (tree / RULE.place).mkdir(parents=True)
    without = replace(made.wheels, contexts=contexts, args={**args, "INPUT_DIGEST": f"{tmp_path} without"})
    with pytest.raises(BuildError):
        again(engine, without, tmp_path / "none")
    told = "toolchain: Triton's build would download: http://127.0.0.1:9/amd-codegen.tar.gz"
    assert told in (tmp_path / "none.log").read_text()
    assert not (tmp_path / "none/wheel").exists()
