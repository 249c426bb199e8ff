"""LLVM at the commit that Triton pins, as one layer below `/usr/lib64/llvm-triton-<id>`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.components import Needs, needs_for
from toolchain.errors import UnsupportedError
from toolchain.pins import LlvmPin, aotriton_release, read_pin, triton_release
from toolchain.recipe import Recipe, digests
from toolchain.settings import Request
from toolchain.sources.resolve import locate, parse_source_spec, parts, require
from toolchain.sources.tree import Source
from toolchain.stages.base import base_label
from toolchain.stages.stage import Built, Planned, Shop, common_inputs, source_inputs

DEFAULT_TRITON = "3.7.1"
# A build that ends at the table generators: for the quickstart and for trying a machine.
TABLEGEN = "tablegen"
_TABLEGEN_GOAL = "llvm-tblgen mlir-tblgen"
# The tree, the ccache and the installed copy together, measured on 22.1.8.
_DISK_FULL = 14_000_000_000
_DISK_TABLEGEN = 5_000_000_000
# What shapes the layer. The contract check does not: it may grow without a rebuild.
_RECIPE = (
    "containerfiles/llvm",
    "llvm-config/closure.py",
    "llvm-config/common.cmake",
    "llvm-config/pch.cmake",
    "llvm-config/pch-headers.cmake",
    "llvm-config/pch-launcher.sh",
    "llvm-config/pch-scan.py",
)
# Seconds of each step relative to each other on the first build.
_WEIGHTS = {"configure": 40.0, "compile": 6500.0, "install": 60.0}


@dataclass(frozen=True)
class LlvmStage:
    """See `Stage`."""

    name: str = "llvm"

    def plan(self, request: Request, below: Mapping[str, Planned]) -> Planned:
        """See `Stage.plan`."""
        _supported(request)
        source, needs = llvm_source(request), llvm_needs(request)
        if source.path is not None:  # a checkout, or fetched before: look before the base is made
            _require(source, needs)
        partial = request.only == TABLEGEN
        sources = source_inputs([source], request.patches)
        under = below["base"].input_digest
        inputs: dict[str, Any] | None = None
        if sources is not None and under is not None:
            inputs = {
                **common_inputs(self.name, request),
                "base": under,
                "sources": sources,
                "parts": list(parts()["llvm"]),
                "recipe": digests(*_RECIPE, f"llvm-config/targets/{request.arch[0]}.cmake"),
                "prefix": prefix_of(source),
                "projects": list(needs.projects),
                "components": [] if partial else list(needs.components),
                "libraries": {} if partial else {"roots": needs.roots, "keep": needs.keep, "drop": needs.drop},
                "goal": _TABLEGEN_GOAL if partial else "distribution",
            }
        stem = "llvm-triton-tablegen" if partial else "llvm-triton"
        return Planned(
            name=self.name,
            image=f"{stem}-{short_id(source)}-{base_label(request)}",
            inputs=inputs,
            sources=(source,),
            partial="table generators only" if partial else "",
        )

    def build(self, planned: Planned, below: Mapping[str, Built], shop: Shop) -> Built:
        """See `Stage.build`."""
        request, needs = shop.request, llvm_needs(shop.request)
        partial = request.only == TABLEGEN
        shop.require_disk(_DISK_TABLEGEN if partial else _DISK_FULL)
        shop.step("source")
        source = shop.fetch(planned.sources[0])
        assert source.path is not None  # noqa: S101 - fetch gives it
        _require(source, needs)
        prefix = prefix_of(source)
        tree = shop.build(
            Recipe(
                name="llvm",
                containerfile="containerfiles/llvm/Containerfile",
                base=shop.image(below["base"]),
                args={
                    "PREFIX": prefix,
                    "ARCH": request.arch[0],
                    "PROJECTS": ";".join(needs.projects),
                    "COMPONENTS": ";".join(needs.components),
                    **({} if partial else _libraries(needs)),
                    "GOAL": _TABLEGEN_GOAL if partial else "distribution",
                    "JOBS": str(shop.jobs("compile")),
                    "LINK_JOBS": str(shop.jobs("link")),
                    "INPUT_DIGEST": str(planned.input_digest),
                },
                contexts={"llvm": source.path},
                cache_key=str(planned.input_digest).removeprefix("sha256:")[:12],
                steps=_WEIGHTS,
            )
        )

        def check(image: str) -> Mapping[str, Any]:
            from toolchain.contract import check_layer  # noqa: PLC0415 - only after hours of compiling

            shop.step("contract")
            return {"contract": check_layer(shop.runner, image, prefix, needs, log=shop.log).as_json()}

        return shop.finish(
            planned,
            tree=tree,
            facts={"prefix": prefix},
            labels={
                "org.opencontainers.image.title": planned.image,
                "org.opencontainers.image.licenses": "Apache-2.0 WITH LLVM-exception",
                "org.opencontainers.image.revision": source.ref,
                **({"toolchain.partial": planned.partial} if planned.partial else {}),
            },
            check=None if partial or not request.contract else check,
            check_on=below["base"],
        )


def _libraries(needs: Needs) -> dict[str, str]:
    return {
        "ROOTS": ";".join(needs.roots),
        "KEEP_LIBRARIES": ",".join(needs.keep),
        "DROP_LIBRARIES": ",".join(needs.drop),
    }


def _require(source: Source, needs: Needs) -> None:
    assert source.path is not None  # noqa: S101 - the callers look
    require(source.path, "llvm/CMakeLists.txt", *(f"{project}/CMakeLists.txt" for project in needs.projects))


def _supported(request: Request) -> None:
    if request.arch != ("amd64",):
        raise UnsupportedError(
            f"LLVM for {', '.join(request.arch)} is not built by this version",
            why="only amd64 is; the targets file for arm64 is there, the cross recipe is not",
            fix="use --arch amd64",
        )
    if request.only not in {"distribution", TABLEGEN}:
        raise UnsupportedError(f"no such part of LLVM: {request.only!r}", fix="use --only tablegen or leave it out")


def triton_of(request: Request) -> str | None:
    """The Triton version whose needs count: asked for, or the one an AOTriton release carries; None for neither."""
    if request.triton:
        return request.triton
    if request.aotriton or "llvm" in request.sources:
        return None
    return DEFAULT_TRITON


def llvm_pin(request: Request) -> LlvmPin:
    """The commit to build when no source is named: what a Triton checkout pins, else what the data knows."""
    named = request.sources.get("triton", "")
    if named.startswith("stored:"):
        stored = locate("triton", parse_source_spec(named), cache=request.cache)
        assert stored.path is not None  # noqa: S101 - it is in the store
        return read_pin(stored.path)
    if named and "://" not in named and not named.startswith("pypi:"):
        return read_pin(Path(named).expanduser())
    if request.aotriton:
        return aotriton_release(request.aotriton).pin
    return triton_release(triton_of(request) or DEFAULT_TRITON).pin


def llvm_needs(request: Request) -> Needs:
    """Projects and components."""
    return needs_for(triton_of(request))


def llvm_source(request: Request) -> Source:
    """Where LLVM comes from, without any network."""
    text = request.sources.get("llvm")
    if text is None:
        pin = llvm_pin(request)
        text = f"https://github.com/{pin.repository}@{pin.commit}"
    return locate("llvm", parse_source_spec(text), cache=request.cache, offline=request.offline)


def short_id(source: Source) -> str:
    """The id in names: 8 characters of a commit, or the version of a release. A checkout is named by its tree."""
    if source.kind == "git":
        return source.ref[:8]
    if source.kind == "distro":
        return source.ref.rpartition("=")[2]
    digest = source.digest or ""
    return "tree" + digest.removeprefix("sha256:")[:8] if source.kind == "local" else digest.removeprefix("sha256:")[:8]


def prefix_of(source: Source) -> str:
    """Where the layer lies in every image."""
    return f"/usr/lib64/llvm-triton-{short_id(source)}"
