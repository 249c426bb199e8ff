"""Tests of LLVM for other architectures: plans, refusals, contract checks and published images."""

from __future__ import annotations

import io
import json
import platform
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.evidence_fixtures import ed25519_signer
from tests.places import gather, verify
from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.catalog import stages as catalog
from toolchain.catalog.architectures import MACHINES, emulator, machine_of, this_machine
from toolchain.catalog.base_ref import parse_base
from toolchain.catalog.bases import base_recipe
from toolchain.catalog.components import needs_for
from toolchain.core.cache import Cache
from toolchain.core.errors import UnsupportedError
from toolchain.core.process import Result
from toolchain.core.recipe import Mount
from toolchain.engine.progress import Progress
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef
from toolchain.pipeline.fetching import Prefetch
from toolchain.pipeline.finished_images import named_images
from toolchain.pipeline.plan import plan
from toolchain.pipeline.reuse import Reuse, take
from toolchain.pipeline.targets import stages_of
from toolchain.pipeline.workspace import BuildWorkspace
from toolchain.publish.images import deliver
from toolchain.request.model import Request
from toolchain.stages import base, contract, unpacked
from toolchain.stages.contract import CrossTarget, Expected, check_layer
from toolchain.stages.llvm_subset import SUPPORT
from toolchain.stages.stage import LayerContent, Planned

pytestmark = pytest.mark.usefixtures("on_amd64")
NEEDS = needs_for("3.7.1")
OTHERS = ["arm64", "ppc64le", "s390x"]
DIGEST = "5" * 64


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    """Return a request for the part `support` of the distribution's LLVM, with an empty cache."""
    return Request(cache=Cache(tmp_path / "a cache"), sources=specs({"llvm": "distro:llvm-toolchain-22"}), only=SUPPORT)


def lock_all(request: Request) -> Request:
    """Write package lists as if the base and the sysroots were resolved, and return the request."""
    recipe_ = base_recipe("debian13", "amd64")
    packages = [{"name": "libc6", "version": "2.41", "architecture": "amd64", "sha256": DIGEST}]
    lock = {"recipe": base.recipe_digest(recipe_), "packages": packages}
    base.write_packages(request.cache.package_list("base", "debian13", "amd64"), lock)
    for arch in OTHERS:
        system = unpacked.sysroot_of(replace(request, arch=(arch,)))
        rows = [{"name": "libc6-dev", "version": "2.41", "architecture": machine_of(arch).debian, "sha256": DIGEST}]
        lock = {"recipe": system.digest, "packages": rows}
        base.write_packages(request.cache.package_list("sysroot", "debian13", arch), lock)
    return request


def test_machine_name_is_converted_to_an_oci_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine in MACHINES.values():
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine.kernel)
        assert this_machine() == machine.arch
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert this_machine() == "riscv64"


def test_emulator_is_found_in_path_and_missing_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("qemu-missing", "qemu-ppc64le-static") as caught:
        emulator("ppc64le")
    assert "--no-contract" in caught.value.fix
    with refused("qemu-missing", "arm64") as caught:
        emulator("arm64", proof=False)
    assert "--no-contract" not in caught.value.fix
    program = tmp_path / "qemu-aarch64-static"
    program.write_text("")
    program.chmod(stat.S_IRWXU)
    assert emulator("arm64") == program


def test_llvm_for_another_architecture_is_built_in_the_native_base(request_: Request) -> None:
    rows = plan(lock_all(replace(request_, arch=("ppc64le",))), "llvm")
    assert [(row.planned.name, row.arch) for row in rows] == [
        ("base", "amd64"),
        ("sysroot", "ppc64le"),
        ("llvm", "ppc64le"),
    ]
    inputs = rows[-1].planned.inputs
    assert inputs is not None
    assert (inputs["base"], inputs["sysroot"]) == (rows[0].planned.input_digest, rows[1].planned.input_digest)
    assert {"llvm-config/cross.cmake", "llvm-config/targets/ppc64le.cmake"} < set(inputs["recipe"])
    assert rows[1].as_json()["partial"] == unpacked.PARTIAL


def test_input_digest_depends_on_the_package_list_of_the_sysroot(request_: Request) -> None:
    request = lock_all(replace(request_, arch=("arm64",)))
    before = plan(request, "llvm")[-1].planned.input_digest
    path = request.cache.package_list("sysroot", "debian13", "arm64")
    path.write_text(path.read_text().replace("2.41", "2.42"))
    assert plan(request, "llvm")[-1].planned.input_digest != before
    path.write_text(path.read_text().replace('"recipe": "sha256:', '"recipe": "sha256:0'))
    assert plan(request, "llvm")[-1].planned.input_digest is None, "a list of another recipe counts"
    path.unlink()
    assert [row.planned.input_digest is None for row in plan(request, "llvm")] == [False, True, True]


@pytest.mark.parametrize(("target", "arch"), [("triton", "arm64"), ("aotriton", "ppc64le"), ("all", "s390x")])
def test_target_that_does_not_support_an_architecture_is_refused(request_: Request, target: str, arch: str) -> None:
    with refused("stage-not-for-architecture", target, arch):
        plan(replace(request_, arch=("amd64", arch)), target)


def test_amd64_is_cross_compiled_on_an_arm64_machine(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert [stage.name for stage in stages_of("llvm", request_)] == ["base", "sysroot", "llvm"]
    with refused("stage-not-for-architecture", "amd64"):
        stages_of("triton", request_)


@pytest.mark.parametrize(("base", "says"), [("ubi9", "ubi9"), ("oci:somewhere", "oci:somewhere")])
def test_base_without_sysroot_packages_is_refused_for_other_architectures(
    request_: Request, base: str, says: str
) -> None:
    with pytest.raises(UnsupportedError, match=says):
        plan(replace(request_, arch=("arm64",), base=parse_base(base)), "base")


class Runner:
    """A runner that records its arguments and outputs the given lines."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines
        self.called: dict[str, Any] = {}

    def run(self, image: str, argv: Any, **given: Any) -> Result:
        """Record the arguments, and pass each line to `on_line`."""
        self.called = {"image": image, "argv": argv, **given}
        for line in self.lines:
            given["on_line"](line)
        return Result(0, "", ())


@pytest.mark.parametrize("part", ["tablegen", "support"])
def test_part_for_another_architecture_is_checked_with_an_emulator(tmp_path: Path, part: str) -> None:
    names = [name for name in contract._OF_PART[part] if name != "symbols"]
    runner = Runner(*(f"@contract {name} ok" for name in names))
    where = CrossTarget("arm64", tmp_path / "qemu", tmp_path / "system")
    expected = Expected.of_part(part, ("LLVMSupport",))
    report = check_layer(runner, "image", "/usr/lib64/x", expected, log=tmp_path / "log", on=where)
    assert [check["name"] for check in report["checks"]] == names
    settings = runner.called["env"]
    assert (settings["PART"], settings["CROSS"]) == (part, "arm64")
    assert settings["EMULATOR"] == "/emulator -L /sysroot"
    mounts = {mount.target: mount for mount in runner.called["mounts"]}
    assert mounts["/emulator"] == Mount(tmp_path / "qemu", "/emulator")
    assert mounts["/sysroot"].source == tmp_path / "system"
    assert mounts["/cross.cmake"].source.is_file()
    assert all(mount.read_only for mount in mounts.values())


def finish(request: Request, arch: str, work: Path) -> None:
    """Leave a finished LLVM for one architecture in the cache, as a build does."""
    alone = replace(request, arch=(arch,))
    for row in plan(alone, "llvm"):
        finish_stage(alone, row.planned, arch, work)


def finish_stage(request: Request, planned: Planned, arch: str, work: Path, *, partial: str = "") -> None:
    """Leave a finished stage in the cache, as a build does."""
    tree = work / f"tree {arch}"
    if not tree.exists():
        tree.mkdir(parents=True)
        (tree / "for").write_text(arch)
    prefetch = Prefetch(request, [])
    if planned.name == "base":
        request = replace(request, arch=("amd64",))
    with Progress("llvm", 1, 1, Console(file=io.StringIO())) as progress:
        workspace = BuildWorkspace(
            request=request, log=work / "log", progress=progress, stage=f"t-{arch}", prefetch=prefetch
        )
        workspace.finish(
            replace(planned, partial=partial or planned.partial), LayerContent(tree=tree), facts={"prefix": "/usr"}
        )


def planned_name(request: Request) -> str:
    """Return the name of the LLVM image, which is the same for each architecture."""
    return plan(replace(request, arch=request.arch[:1]), "llvm")[-1].planned.image


def test_index_does_not_depend_on_the_build_order(tmp_path: Path) -> None:
    indexes = set()
    for number, order in enumerate((["amd64", "arm64"], ["arm64", "amd64"])):
        cache = Cache(tmp_path / f"cache {number}")
        request = lock_all(Request(cache=cache, sources=specs({"llvm": "distro:llvm-toolchain-22"}), only=SUPPORT))
        for arch in order:
            finish(request, arch, tmp_path / f"work {number}")
        out = LayoutRef(tmp_path / f"out {number}")
        (done,) = deliver(cache, named_images(cache, [planned_name(request)]), out)
        indexes.add((done.digest, done.refs[0].rpartition(":")[2], done.refs[1].rpartition(":")[2]))
        layout = Layout(out.path)
        manifests = layout.read_json(layout.resolve(done.digest))["manifests"]
        assert [each["platform"]["architecture"] for each in manifests] == ["amd64", "arm64"]
        assert verify(out, layout, layout.resolve(done.digest)).checks.keys() == {"digests", "sbom"}
        bills = [json.loads(each.content) for each in gather(out, [manifests[1]["digest"]], layout)]
        named = {(package["name"], package["versionInfo"]) for bill in bills for package in bill.get("packages", ())}
        assert ("libc6-dev", "2.41") in named, "the other system's packages are not in its SBOM"
    assert len(indexes) == 1


def test_image_for_one_architecture_is_reused_from_a_joint_index(tmp_path: Path) -> None:
    """The image is found by the digest of its own inputs, because a plan for one architecture knows no others."""
    request = lock_all(
        Request(cache=Cache(tmp_path / "one"), sources=specs({"llvm": "distro:llvm-toolchain-22"}), only=SUPPORT)
    )
    for machine in ("amd64", "arm64"):
        finish(request, machine, tmp_path / "work")
    out, signer = LayoutRef(tmp_path / "out"), ed25519_signer()
    # The images have no contract check, so the request that reuses them must allow that.
    request = replace(request, arch=("amd64", "arm64"), contract=False)
    (done,) = deliver(request.cache, named_images(request.cache, [planned_name(request)]), out, signer=signer)
    wanted = lock_all(replace(request, cache=Cache(tmp_path / "other"), arch=("arm64",)))
    planned = plan(wanted, "llvm")[-1].planned
    short = str(planned.input_digest)[7:19]
    assert f"oci:{out.path}:{planned.image}.{short}" in done.refs
    built = take(wanted, planned, Reuse(place=out, key=signer.public, only=True))
    assert built is not None
    layout = Layout(wanted.cache.images)
    config = layout.read_json(layout.children(layout.resolve(built.manifest))[0])
    assert config["architecture"] == "arm64"


def test_targets_for_amd64_have_the_expected_stages(request_: Request) -> None:
    # These targets are compiled against the floor, and are refused with a base.
    codegen = {"llvm-amdgpu", "codegen-amdgpu", "hip"}
    targets = [target for target in catalog.targets() if target not in {"sysroot", "python", *codegen}]
    stages = {target: [stage.name for stage in stages_of(target, request_)] for target in targets}
    wheels, below = ["flash-attn", "aiter", "vllm"], ["base", "torch", "llvm", "triton"]
    assert stages == {
        "base": ["base"],
        "llvm": ["base", "llvm"],
        "triton": ["base", "llvm", "triton"],
        "kernels": ["base", "llvm", "triton", "kernels"],
        "aotriton": ["base", "llvm", "triton", "aotriton"],
        "torch": ["torch"],
        **{name: [*below, name] for name in wheels},
        "triton-cache": ["base", "torch", "llvm", "triton", "flash-attn", "triton-cache"],
        "wheels": [*below, *wheels, "wheels"],
        "all": ["base", "llvm", "triton", "kernels"],
    }
