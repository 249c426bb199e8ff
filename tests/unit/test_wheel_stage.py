"""Tests of the stages of wheels that use Triton, and of the checks of a wheel and its build."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bundle_fixtures import put
from tests.evidence_fixtures import finished_base, finished_torch
from tests.refusals import refused
from tests.request_fixtures import PACKAGES, request_of, with_base
from toolchain.bundle.export import export
from toolchain.bundle.importer import import_bundle
from toolchain.catalog.wheel_rows import WheelRow, torch_row, wheel_row
from toolchain.core import recipe
from toolchain.core.cache import Cache
from toolchain.core.errors import BuildError, ContractError, UnsupportedError
from toolchain.core.filesystem import read_built_json
from toolchain.oci.reference import LayoutRef
from toolchain.pipeline.plan import plan
from toolchain.sources.pypi import known_files
from toolchain.sources.scan import scan
from toolchain.sources.store import Store
from toolchain.stages.base import write_packages
from toolchain.stages.prebuilt import Intake
from toolchain.stages.stage import Planned
from toolchain.stages.unpacked import torch_of
from toolchain.stages.wheel import _failure, _Result, check_content, elsewhere, environment

TRITON = {"triton": "pypi:triton==3.7.1"}
FLASH = wheel_row("flash-attn")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = with_base(tmp_path / "cache")
    request = request_of(cache=made, base="debian13")
    write_packages(
        made.package_list("torch", "debian13", "amd64"), {"recipe": torch_of(request).digest, "packages": PACKAGES}
    )
    return made


def planned(cache: Cache, **options: Any) -> list[Planned]:
    request = request_of(cache=cache, **{"base": "debian13", "sources": TRITON, **options})
    return [row.planned for row in plan(request, "flash-attn")]


def test_wheel_stage_needs_torch_triton_and_pinned_requirements(cache: Cache) -> None:
    base, torch, triton, wheel = planned(cache)
    assert (base.name, torch.name, triton.name, wheel.name) == ("base", "torch", "triton", "flash-attn")
    assert wheel.image == "flash-attn-2.8.3.post2-triton-3.7.1-debian13"
    assert wheel.inputs is not None
    below = {each.name: each.input_digest for each in (base, torch, triton)}
    assert {name: wheel.inputs[name] for name in below} == below
    assert [each.name for each in wheel.sources] == [
        "flash-attn", "wheel-packaging", "wheel-setuptools", "wheel-wheel",
    ]  # fmt: skip
    assert all((each.digest or "").startswith("sha256:") for each in wheel.sources)
    assert "hopper" in wheel.note


def test_row_of_a_wheel_is_an_input(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    before = planned(cache)[-1].input_digest
    monkeypatch.setattr("toolchain.stages.wheel.wheel_row", lambda _: replace(FLASH, tests=1))
    assert planned(cache)[-1].input_digest not in {before, None}


def test_several_wheels_share_an_image_with_the_needs_of_each(cache: Cache) -> None:
    request = request_of(cache=cache, base="debian13", sources=TRITON, wheels=("flash-attn", "vllm"))
    rows = {row.planned.name: row.planned for row in plan(request, "wheels")}
    assert list(rows) == ["base", "torch", "triton", "flash-attn", "vllm", "wheels"]
    image = rows["wheels"]
    assert image.image == "wheels-flash-attn-vllm-triton-3.7.1-debian13"
    assert image.inputs is not None
    assert image.inputs["vllm"] == rows["vllm"].input_digest
    assert "vllm-rs" in image.partial
    assert environment([wheel_row("aiter"), FLASH]) == {
        "AITER_TRITON_ONLY": "1",
        "FLASH_ATTENTION_TRITON_AMD_ENABLE": "TRUE",
        "PYTHONPATH": "/usr/lib/toolchain/triton:/usr/lib/toolchain/wheels",
    }


def test_all_stage_includes_requested_wheels_and_a_needed_llvm(cache: Cache) -> None:
    def all_of(**options: Any) -> list[str]:
        given = {"base": "debian13", "sources": TRITON, "wheels": ("flash-attn",), **options}
        return [row.planned.name for row in plan(request_of(cache=cache, **given), "all")]

    assert all_of() == ["base", "triton", "kernels", "torch", "flash-attn", "wheels"]
    assert all_of(wheels=()) == ["base", "triton", "kernels"]
    own = {**TRITON, "llvm": "distro:llvm-toolchain-22"}
    each: list[dict[str, Any]] = [{"sources": own}, {"only": "mlir-tblgen"}, {"sources": {}}]
    for named in each:
        assert "llvm" in all_of(**named)


@pytest.mark.parametrize("target", ["aiter", "triton-cache"])
def test_bundle_contains_torch_and_all_sources(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.core.console.warn", lambda text: None)
    here, there = Cache(tmp_path / "here"), Cache(tmp_path / "there")
    finished_base(here, tmp_path / "base")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("top/setup.py"))
    files = []
    for row in known_files():
        content = packed.getvalue() if row.file.endswith(".tar.gz") else row.file.encode()
        digest = put(Store(here.store), content, row.file)
        files.append(replace(row, sha256=digest.removeprefix("sha256:")))
    monkeypatch.setattr("toolchain.sources.pypi.known_files", lambda: tuple(files))
    (tmp_path / "aiter" / "aiter" / "ops" / "triton").mkdir(parents=True)
    (tmp_path / "aiter" / "aiter" / "ops" / "triton" / "__init__.py").touch()
    (tmp_path / "aiter" / "setup.py").touch()
    sources = TRITON | ({"aiter": str(tmp_path / "aiter")} if target == "aiter" else {})
    request = request_of(cache=here, sources=sources, allow_binary=("triton-wheel",), offline=True)
    with refused("base-not-built"):
        export(request, target, LayoutRef(tmp_path / "bundle"))
    finished_torch(here, tmp_path / "torch")
    export(request, target, LayoutRef(tmp_path / "bundle"))
    came = import_bundle(LayoutRef(tmp_path / "bundle"), there, tmp_path / "a lock")
    if target == "aiter":
        (stored,) = [word for word in came.command if word.startswith("aiter=stored:")]
        sources["aiter"] = stored.removeprefix("aiter=")
    before = [row.planned.input_digest for row in plan(request, target)]
    after = request_of(cache=there, sources=sources, allow_binary=("triton-wheel",), offline=True)
    assert [row.planned.input_digest for row in plan(after, target)] == before
    assert None not in before


def test_a_base_without_a_torch_is_refused(cache: Cache) -> None:
    with pytest.raises(UnsupportedError) as caught:
        torch_row("debian12")
    assert "debian13" in caught.value.fix


def wheel(folder: Path, *files: str, tag: str = "py3-none-any") -> Path:
    path = folder / f"flash_attn-2.8.3-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("flash_attn/__init__.py", "hopper/x.py", "flash_attn-2.8.3.dist-info/WHEEL", *files):
            archive.writestr(name, "")
    return path


def test_check_content_describes_a_wheel_that_matches_its_row(tmp_path: Path) -> None:
    assert check_content(FLASH, wheel(tmp_path)) == {
        "tag": "py3-none-any", "files": 3, "packages": ["flash_attn", "hopper"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "file", "tag", "reason"),
    [
        (FLASH, "x", "cp313-cp313-linux_x86_64", "not py3-none-any"),
        (FLASH, "flash_attn/lib.so", "py3-none-any", "flash_attn/lib.so"),
        (FLASH, "other/x.py", "py3-none-any", "other"),
        (replace(FLASH, lacks={"*/rust*": "no cargo"}), "flash_attn/rust.py", "py3-none-any", "*/rust*"),
    ],
)
def test_wheel_that_contradicts_its_row_is_refused(
    tmp_path: Path, row: WheelRow, file: str, tag: str, reason: str
) -> None:
    with pytest.raises(ContractError) as caught:
        check_content(row, wheel(tmp_path, file, tag=tag))
    assert reason in caught.value.why


def test_malformed_build_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"torch": "2", "triton": {}, "network": [], "failed": ["odd"]}')
    result = read_built_json(tmp_path, "result.json", _Result)
    assert isinstance(_failure("x", result.failed), BuildError)
    for text in ("{", "[]", '{"torch": 2, "triton": {}, "network": []}', '{"failed": ["a"]}'):
        (tmp_path / "result.json").write_text(text)
        with refused("build-left-unreadable"):
            read_built_json(tmp_path, "result.json", _Result)


def test_watch_records_the_line_that_connects_to_the_network(tmp_path: Path) -> None:
    program = tmp_path / "setup.py"
    program.write_text(
        "import socket\nimport urllib.request\ntry:\n    urllib.request.urlopen('http://127.0.0.1:9/x')\n"
        "except OSError:\n    pass\n"
    )
    watch = recipe.root() / "containerfiles" / "wheel" / "watch"
    env = {**os.environ, "PYTHONPATH": str(watch), "WATCH_REACHED": str(tmp_path / "reached"), "no_proxy": "*"}
    subprocess.run([sys.executable, str(program)], env=env, check=True)
    rows = [json.loads(line) for line in (tmp_path / "reached").read_text().splitlines()]
    assert [f"{program}:4", "127.0.0.1:9"] in rows


def test_imports_script_lists_imported_and_failed_modules(tmp_path: Path) -> None:
    (tmp_path / "pack" / "inner").mkdir(parents=True)
    for name, text in {
        "pack/__init__": "", "pack/good": "import atexit; print('noise'); atexit.register(print, 1)",
        "pack/bad": "import nowhere_at_all",
        "pack/inner/__init__": "raise SystemExit(3)", "pack/inner/x": "",
    }.items():  # fmt: skip
        (tmp_path / f"{name}.py").write_text(text)
    program = recipe.root() / "containerfiles" / "wheel" / "imports.py"
    done = subprocess.run(
        [sys.executable, str(program), "pack.good", "--", "pack"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == {
        "imported": ["pack.good", "pack"],
        "failed": {
            "pack.bad": "ModuleNotFoundError: No module named 'nowhere_at_all'",
            "pack.inner": "SystemExit: 3",
        },
    }


def test_prebuilt_files_in_excluded_folders_are_not_reported(tmp_path: Path) -> None:
    for name in ("hsa/gfx942/a.co", "csrc/b.co", "hsakmt/c.co"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\x7fELF" + bytes(60))
    findings = elsewhere(scan(tmp_path), ["hsa"])
    assert sorted(row["path"] for row in Intake(replaced={}).rows(findings)) == ["csrc/b.co", "hsakmt/c.co"]


def test_source_folder_without_the_files_of_the_recipe_is_refused(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    sources = {"triton": "pypi:triton==3.7.1", "flash-attn": f"{tmp_path}/source"}
    with refused("source-incomplete"):
        plan(request_of(cache=cache, base="debian13", sources=sources), "flash-attn")
