"""Triton from source on the LLVM layer: the wheel as a file, and an image base + wheel."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain import recipe
from toolchain.catalog.components import check_files
from toolchain.catalog.releases import aotriton_release, is_commit, newest_patch
from toolchain.digest import sha256_file
from toolchain.errors import BuildError, ContractError, PinError, SourceError
from toolchain.oci.image import read_layers
from toolchain.oci.layer_files import layer_files
from toolchain.oci.layout import Layout
from toolchain.recipe import Mount, Recipe, digests
from toolchain.request import Request
from toolchain.sources.resolve import locate
from toolchain.sources.spec import SourceSpec
from toolchain.sources.store import Store
from toolchain.sources.tree import Source, require
from toolchain.stages.base import base_label
from toolchain.stages.llvm import DEFAULT_TRITON, llvm_needs
from toolchain.stages.prebuilt import choices, names_allowed, take_in
from toolchain.stages.stage import Built, Planned, Workspace, common_inputs, image_labels, source_inputs
from toolchain.stages.triton_tree import check_tree
from toolchain.stages.triton_wheel import SITE, unzip
from toolchain.stages.wheels import TRITON, wheel_folder, wheel_sources

UPSTREAM = "https://github.com/triton-lang/triton"
AMD_FORK = "https://github.com/ROCm/triton"
# Of each family of AMD's one; a Triton that compiles for these compiles for their siblings.
CONTRACT_GPUS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151")
# The copy of the source, its build tree and the wheel unpacked, measured.
_DISK = 6_000_000_000
_WEIGHTS = {"configure": 30.0, "compile": 1800.0, "lit": 200.0}
_PYTHON = re.compile(r"3\.\d{1,2}")


@dataclass(frozen=True)
class TritonSourceStage:
    name: str = "triton"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:
        for version in request.pythons:
            if not _PYTHON.fullmatch(version):
                raise PinError(f"{version!r} is no Python version", fix="give e.g. --python 3.13")
        source = triton_source(request)
        if source.path is not None:
            _require(source.path, source)
        # What is here already is looked at now, before hours of LLVM.
        if (tree := _in_store(source, request)) is not None and dependencies["llvm"].sources:
            _require(tree, source)
            check_tree(tree, request, dependencies["llvm"].sources[0])
        if dependencies["llvm"].partial:
            raise ContractError(
                f"Triton cannot be built on {dependencies['llvm'].image}",
                why=f"that layer holds {dependencies['llvm'].partial}",
                fix="leave out --only, or take a wheel of the index: --source triton=pypi:VERSION",
            )
        wheels = wheel_sources(TRITON)
        sources = source_inputs([source, *wheels], request.patches)
        base, llvm = dependencies["base"].input_digest, dependencies["llvm"].input_digest
        inputs: dict[str, Any] | None = None
        if sources is not None and base is not None and llvm is not None:
            inputs = {
                **common_inputs(self.name, request),
                "base": base,
                "llvm": llvm,
                "sources": sources,
                "recipe": digests("containerfiles/triton"),
                "pythons": list(request.pythons),
                "binaries": choices("triton", request),
                "site": SITE,
            }
        return Planned(
            name=self.name,
            image=f"triton-{source.short_id}-{base_label(request)}",
            inputs=inputs,
            sources=(source, *wheels),
            binaries=names_allowed("triton", request),
            disk=_DISK,
            engine=True,
            has_contract_check=True,
        )

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        request, prefix = workspace.request, str(dependencies["llvm"].facts["prefix"])
        workspace.require_disk(_DISK)
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        _require(source.path, source)
        check_tree(source.path, request, dependencies["llvm"].planned.sources[0])
        check_llvm(workspace, dependencies["llvm"])
        intake, findings = take_in("triton", source.path, request)
        planned = replace(planned, binaries=intake.binaries(planned.binaries))
        llvm = workspace.image(dependencies["llvm"])
        out = workspace.build(
            Recipe(
                name="triton",
                containerfile="containerfiles/triton/Containerfile",
                base=workspace.image(dependencies["base"]),
                images={"LLVM": llvm},
                args={
                    "PREFIX": prefix,
                    "PYTHONS": " ".join(request.pythons),
                    "DROP": ";".join(intake.dropped),
                    "REPLACE": ";".join(f"{path}={glob}" for path, glob in sorted(intake.replaced.items())),
                    "LIT": "ON" if request.contract else "OFF",
                    "JOBS": str(workspace.jobs("compile")),
                    "LINK_JOBS": str(workspace.jobs("link")),
                    "INPUT_DIGEST": str(planned.input_digest),
                },
                contexts={"triton": source.path, "wheels": wheel_folder(planned.sources[1:], workspace)},
                cache_key=str(planned.input_digest).removeprefix("sha256:")[:12],
                steps=_WEIGHTS,
            )
        )
        wheels = sorted((out / "wheel").glob("*.whl"))
        if not wheels:
            raise BuildError("Triton's build left no wheel", fix="see the log")
        facts = {
            "wheels": [_keep(wheel, workspace) for wheel in wheels],
            "auditwheel": (out / "auditwheel.txt").read_text(encoding="utf-8"),
            "lit": lit(out, asked=request.contract),
            "found_binaries": intake.rows(findings),
            "seconds_by_kind": {path.stem: ninja_seconds(path) for path in sorted(out.glob("ninja-*.log"))},
        }
        workspace.step("layer")
        tree = workspace.work() / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        unzip(for_python(wheels, (out / "python").read_text(encoding="utf-8").strip()), tree / SITE.lstrip("/"))
        return workspace.finish(
            planned,
            tree=tree,
            under=dependencies["base"],
            compress=False,
            facts=facts,
            labels=image_labels(planned, revision=source.ref, binaries=planned.binaries),
            check=(lambda image: {"contract": check_compiles(workspace, image)}) if request.contract else None,
            check_on=dependencies["base"],
        )


def check_compiles(workspace: Workspace, image: str) -> dict[str, Any]:
    """Compile a kernel for every GPU in a fresh container of the image, without a GPU.

    Raises:
        ContractError: a GPU has no code object, or sm_90 no PTX although libdevice is there.
    """
    workspace.step("contract")
    done = workspace.runner.run(
        image,
        ["python3", "/recipe/aotriton/triton_contract.py", *CONTRACT_GPUS],
        mounts=[Mount(recipe.root() / "aotriton", "/recipe/aotriton", read_only=True)],
        env={"PYTHONPATH": SITE, "HOME": "/tmp"},  # noqa: S108 - in the container
        log=workspace.log,
        capture=True,
        check=False,
    )
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        found: dict[str, Any] = json.loads(last)
    except ValueError:
        raise ContractError("Triton does not start in its image", why="\n".join(done.tail[-40:])) from None
    if done.returncode != 0 or found["failed"]:
        raise ContractError(
            "this Triton does not compile for " + ", ".join(sorted(found["failed"])),
            why="\n".join(f"{gpu}: {why}" for gpu, why in sorted(found["failed"].items())),
            fix="see the log; it may not fit the LLVM it was built with",
        )
    return found


def from_source(request: Request) -> bool:
    """Whether Triton is built from source: always, but where a wheel of the index is named."""
    spec = request.sources.get("triton")
    return spec is None or not spec.wheel


def triton_source(request: Request) -> Source:
    """Where Triton's source comes from, without any network.

    Raises:
        PinError: nobody knows where the version that was asked for lies.
        UnsupportedError: nobody knows that version.
    """
    return locate("triton", _spec(request), cache=request.cache, offline=request.offline)


def _spec(request: Request) -> SourceSpec:
    """The source that is named, AOTriton's Triton, or upstream's at the commit or tag of a version."""
    if (spec := request.sources.get("triton")) is not None:
        return spec
    if request.aotriton:
        commit = aotriton_release(request.aotriton, allow_unknown=True).triton
        if not commit:
            raise PinError(
                f"which Triton AOTriton {request.aotriton} carries is not known", fix="give --source triton="
            )
        return SourceSpec(kind="git", where=AMD_FORK, version=commit)
    named = (request.triton or DEFAULT_TRITON).strip()
    if is_commit(named.lower()):
        return SourceSpec(kind="git", where=UPSTREAM, version=named.lower())
    row = newest_patch(named)
    if not row.commit and not row.tag:
        raise PinError(
            f"where the source of Triton {row.version} lies is not known",
            why="upstream has no such release; only its LLVM is on record",
            fix="give --source triton=PATH or URL@COMMIT",
        )
    tag = "" if row.commit else row.tag
    return SourceSpec(kind="git", where=UPSTREAM, version=row.commit or _locked_commit(request, tag), tag=tag)


def _locked_commit(request: Request, tag: str) -> str:
    """The commit that the lock has for a tag of upstream; empty where it has none."""
    held = request.lock.source("triton") if request.lock is not None else None
    return held.ref if held is not None and (held.tag, held.repository) == (tag, UPSTREAM) else ""


def _in_store(source: Source, request: Request) -> Path | None:
    """The tree of a commit that is here already, not looked into."""
    known = source.kind == "git" and source.digest is not None
    return Store(request.cache.store).stored_tree(str(source.digest)) if known else None


def for_python(wheels: Sequence[Path], version: str) -> Path:
    """The wheel that the image gets: the one for the base's own Python, `3.13`, for that is what runs in it.

    Raises:
        BuildError: none is.
    """
    tag = f"-cp{version.replace('.', '')}-"
    for wheel in wheels:
        if tag in wheel.name:
            return wheel
    raise BuildError(
        f"no wheel was built for the base's own Python {version}",
        why="the image of base and wheel runs that one; there are " + ", ".join(wheel.name for wheel in wheels),
        fix=f"add {version} to --python",
    )


def check_llvm(workspace: Workspace, llvm: Built) -> None:
    """Refuse an LLVM layer that lacks what this Triton needs.

    Raises:
        ContractError: with what is missing.
    """
    layout, prefix = Layout(workspace.cache.images), str(llvm.facts["prefix"]).strip("/") + "/"
    top = read_layers(layout, layout.resolve(llvm.manifest))[-1].descriptor
    files = {one.path.removeprefix(prefix) for one in layer_files(layout.blob(top.digest), top.media_type)}
    check_files(files, llvm_needs(workspace.request), where=llvm.planned.image, consumer="this Triton")


def _require(tree: Path, source: Source) -> None:
    if tree.is_file():
        raise SourceError(f"{source.ref} is no source tree of Triton", fix="give a folder, a .tar archive or a commit")
    require(tree, "setup.py", "CMakeLists.txt", "third_party/amd", "third_party/nvidia")


def _keep(wheel: Path, workspace: Workspace) -> dict[str, Any]:
    """Put a wheel into the store, where `--archive` and later stages find it."""
    digest, size = sha256_file(wheel), wheel.stat().st_size
    store = Store(workspace.cache.store)
    if store.file(digest, verify=True) is None:
        copy = wheel.with_name(f".{wheel.name}.kept")
        shutil.copyfile(wheel, copy)
        store.partial.mkdir(parents=True, exist_ok=True)
        store.add_file(copy, digest, name=wheel.name)
    return {"file": wheel.name, "digest": digest, "bytes": size}


def lit_totals(path: Path) -> dict[str, Any]:
    """What a lit run's JUnit file says: `{"tests", "passed", "failed", "skipped", "failures": {name: why}, "skips"}`.

    Raises:
        BuildError: it is no such file, or has no test in it.
    """
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))  # noqa: S314 - written by our own build
    except ET.ParseError as error:
        raise BuildError(f"{path.name} is no JUnit file", why=str(error)) from error
    if not cases:
        raise BuildError(f"{path.name} has no test: lit ran none", fix="see the log; --no-contract leaves them out")
    failures, skipped = {}, {}
    for case in cases:
        name = f"{case.get('classname', '')}/{case.get('name', '')}"
        failure = next((found for found in map(case.find, ("failure", "error")) if found is not None), None)
        left = case.find("skipped")
        if failure is not None:
            failures[name] = _why(failure.text or failure.get("message") or "")
        elif left is not None:
            skipped[name] = (left.get("message") or left.text or "").strip()
    return {
        "tests": len(cases),
        "passed": len(cases) - len(failures) - len(skipped),
        "failed": len(failures),
        "skipped": len(skipped),
        "failures": dict(sorted(failures.items())),
        "skips": dict(sorted(skipped.items())),
    }


def _why(said: str) -> str:
    """Of what a failed lit test said, the lines that name an error; its last ones where none does."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\b(?:error|Assertion|command not found|No such file)\b", line)]
    return "\n".join(named[:3] or lines[-3:])[:1000]


def lit(out: Path, *, asked: bool) -> dict[str, Any]:
    """Totals by Python version.

    Raises:
        BuildError: they were asked for and did not run. That nothing failed would say nothing.
    """
    found = {path.stem.removeprefix("lit-"): lit_totals(path) for path in sorted(out.glob("lit-*.xml"))}
    if asked and not found:
        raise BuildError("upstream's lit tests left no report", fix="see the log; --no-contract leaves them out")
    return found


def ninja_seconds(path: Path) -> dict[str, float]:
    """Seconds of ninja's own log by kind of output: objects, libraries and programs, the rest; summed over jobs."""
    sums = {"compile": 0.0, "link": 0.0, "other": 0.0}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split("\t")
        if len(fields) < 4 or not fields[0].isdigit():
            continue
        name = fields[3]
        linked = name.startswith("bin/") or name.endswith((".so", ".a"))
        kind = "compile" if name.endswith(".o") else "link" if linked else "other"
        sums[kind] += (int(fields[1]) - int(fields[0])) / 1000
    return {kind: round(value, 1) for kind, value in sums.items()}
