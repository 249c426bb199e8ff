"""AOTriton: upstream's library, upstream's plan of the kernels, our campaign, upstream's packers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain import recipe
from toolchain.digest import sha256_json
from toolchain.errors import ContractError, PinError, UnsupportedError
from toolchain.kernels.campaign import CampaignResult
from toolchain.pins import aotriton_release
from toolchain.recipe import Mount, Recipe, digests
from toolchain.settings import Request
from toolchain.sources.resolve import locate, parse_source_spec, require
from toolchain.sources.tree import Source
from toolchain.stages.aotriton_images import PLAN, SOURCE, KernelImages
from toolchain.stages.base import base_label
from toolchain.stages.intake import choices, names_allowed, take_in
from toolchain.stages.stage import Built, Planned, Shop, common_inputs, source_inputs
from toolchain.stages.wheels import AOTRITON, wheel_folder, wheel_sources

UPSTREAM = "https://github.com/ROCm/aotriton"
DEFAULT_GPUS = ("gfx942",)
_PARTIAL = "__partial__"
_DISK = 8_000_000_000
_WEIGHTS = {"configure": 60.0, "plan": 30.0, "compile": 1000.0, "install": 5.0}


@dataclass(frozen=True)
class AotritonStage:
    """See `Stage`."""

    name: str = "aotriton"

    def plan(self, request: Request, below: Mapping[str, Planned]) -> Planned:
        """See `Stage.plan`."""
        source = aotriton_source(request)
        if source.path is not None:
            _require(source)
        wheels = wheel_sources(AOTRITON)
        sources = source_inputs([source, *wheels], request.patches)
        base, triton = below["base"].input_digest, below["triton"].input_digest
        gpus = request.gpus or DEFAULT_GPUS
        part = [f"select {request.select}"] if request.select else []
        part += [f"limit {request.limit}"] if request.limit is not None else []
        inputs: dict[str, Any] | None = None
        if sources is not None and base is not None and triton is not None:
            inputs = {
                **common_inputs(self.name, request),
                "base": base,
                "triton": triton,
                "sources": sources,
                "recipe": digests("containerfiles/aotriton", "aotriton/worker.py", "aotriton/pack.py"),
                "gpus": list(gpus),
                "binaries": choices("aotriton", request),
                "select": request.select,
                "limit": request.limit,
                "keep_going": request.keep_going,
                "timeout": request.kernel_timeout,
            }
        stem = "aotriton-partial" if part else "aotriton"
        return Planned(
            name=self.name,
            image=f"{stem}-{_label(source)}-{base_label(request)}",
            inputs=inputs,
            sources=(source, *wheels),
            binaries=tuple(sorted({*below["triton"].binaries, *names_allowed("aotriton", request)})),
            partial=", ".join(part),
        )

    def build(self, planned: Planned, below: Mapping[str, Built], shop: Shop) -> Built:
        """See `Stage.build`."""
        request = shop.request
        gpus = request.gpus or DEFAULT_GPUS
        shop.require_disk(_DISK)
        shop.step("source")
        source = shop.fetch(planned.sources[0])
        assert source.path is not None  # noqa: S101 - fetch gives it
        _require(source)
        intake, findings = take_in("aotriton", source.path, request)
        prefix = f"/usr/lib64/aotriton-{_label(source)}"
        sha1 = commit_of(source)
        built = _library(planned, below, shop, _Library(source, prefix, sha1, intake.dropped))
        work = shop.work()
        build = work / "plan"
        _overlay(built / "plan", build)
        from toolchain.kernels.bare import read_plan  # noqa: PLC0415 - nineteen thousand rules a GPU

        plan = read_plan(build, source.path, build=PLAN, source=SOURCE)
        rules, clusters = plan.part(select=request.select, limit=request.limit)
        images = KernelImages(build, source.path, shop.image(below["triton"]), shop)
        shop.step("kernels")
        result = images.compile(rules)
        against: Mapping[str, Any] = {}
        if request.contract:
            shop.step("compare")
            against = images.against_upstream(rules, result)
        shop.step("pack")
        packs = images.pack(plan, clusters, python=built / "python", sha1=sha1, gpus=gpus)
        images.check(plan, clusters, result)
        tree = work / "tree"
        _assemble(tree, prefix, built / "prefix", build, partial=rules.partial, result=result)
        hip = (built / "hip-version").read_text(encoding="utf-8").strip()
        planned = replace(planned, partial=_partial(planned, rules.partial, result, len(plan.rules)))
        return shop.finish(
            planned,
            tree=tree,
            facts={
                "prefix": prefix,
                "hip": hip,
                "sha1": sha1,
                "gpus": list(gpus),
                "rules": len(plan.rules),
                "kernels": result.counts(),
                "known_bad": [entry.out for entry in (*result.failed, *result.timed_out)],
                "skipped": result.skipped,
                "about": result.about,
                "by_kernel": result.rows(),
                "bitcode": _bitcode(result),
                "found_binaries": intake.rows(findings),
                "packs": list(packs),
                "against_upstream": dict(against),
            },
            labels={
                "org.opencontainers.image.title": planned.image,
                "org.opencontainers.image.revision": source.ref,
                "org.opencontainers.image.licenses": "MIT",
                "toolchain.binaries": ",".join(planned.binaries),
                "toolchain.kernels": json.dumps(result.counts(), sort_keys=True),
                **({"toolchain.partial": planned.partial} if planned.partial else {}),
            },
            check=_check(prefix, shop) if request.contract else None,
            check_on=below["base"],
        )


@dataclass(frozen=True)
class _Library:
    """What upstream's own build is told."""

    source: Source
    prefix: str
    sha1: str
    dropped: tuple[str, ...]


def _library(planned: Planned, below: Mapping[str, Built], shop: Shop, what: _Library) -> Path:
    assert what.source.path is not None  # noqa: S101 - the caller fetched it
    # What the library and the plan rest on; another selection of kernels builds neither again.
    request = shop.request
    gpus = request.gpus or DEFAULT_GPUS
    key = sha256_json(
        {
            "base": below["base"].input_digest,
            "sources": source_inputs(planned.sources, request.patches),
            "recipe": digests("containerfiles/aotriton"),
            "gpus": list(gpus),
            "dropped": list(what.dropped),
        }
    )
    return shop.build(
        Recipe(
            name="aotriton",
            containerfile="containerfiles/aotriton/Containerfile",
            base=shop.image(below["base"]),
            args={
                "PREFIX": what.prefix,
                "GPUS": " ".join(gpus),
                "SHA1": what.sha1,
                "TREE_SHA1": what.sha1,
                "DROP": ";".join(what.dropped),
                "JOBS": str(shop.jobs("compile")),
                "INPUT_DIGEST": key,
            },
            contexts={"aotriton": what.source.path, "wheels": wheel_folder(planned.sources[1:], shop)},
            cache_key=key.removeprefix("sha256:")[:12],
            steps=_WEIGHTS,
        )
    )


def aotriton_source(request: Request) -> Source:
    """Where AOTriton comes from, without any network.

    Raises:
        PinError: nothing names a commit.
        UnsupportedError: the base's HIP cannot serve it.
    """
    from toolchain.bases import base_recipe  # noqa: PLC0415 - data of another room

    if not request.base.startswith("oci:") and not base_recipe(request.base, request.arch[0]).hip:
        raise UnsupportedError(
            f"AOTriton cannot be built on {request.base}", why="its HIP lacks hipStreamGetDevice", fix="--base debian13"
        )
    text = request.sources.get("aotriton")
    if text is None and request.aotriton:
        commit = aotriton_release(request.aotriton).commit
        if not commit:
            raise PinError(f"the commit of AOTriton {request.aotriton} is not known", fix="give --source aotriton=")
        text = f"{UPSTREAM}@{commit}"
    if text is None:
        raise PinError("no AOTriton is named", fix="give --aotriton RELEASE or --source aotriton=PATH")
    return locate("aotriton", parse_source_spec(text), cache=request.cache, offline=request.offline)


def commit_of(source: Source) -> str:
    """40 hex digits that the library says it was made of: the commit, or the start of a tree's own digest."""
    if source.kind == "git":
        return source.ref
    return (source.digest or "").removeprefix("sha256:")[:40]


def _label(source: Source) -> str:
    return commit_of(source)[:8] if source.kind == "git" else "tree" + commit_of(source)[:8]


def _require(source: Source) -> None:
    assert source.path is not None  # noqa: S101 - the callers look
    require(source.path, "CMakeLists.txt", "v3src/CMakeLists.txt", "python/generate.py", "modules")


def _overlay(plan: Path, build: Path) -> None:
    """Lay the generator's files into the folder that also holds the objects of earlier runs."""
    build.mkdir(parents=True, exist_ok=True)
    shutil.copytree(plan, build, dirs_exist_ok=True)


def _assemble(tree: Path, prefix: str, installed: Path, build: Path, *, partial: bool, result: CampaignResult) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(installed, tree, symlinks=True)
    images = tree / prefix.lstrip("/") / "lib" / "aotriton.images"
    for path in sorted((build / "aotriton.images").rglob("*")):
        if path.is_file() and path.suffix != ".nsv":
            target = images / path.relative_to(build / "aotriton.images")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    bad = [*result.failed, *result.timed_out]
    if partial or bad:
        told = {"partial": partial, **result.counts(), "known_bad": sorted(entry.out for entry in bad)}
        for pack in sorted(one for one in images.iterdir() if one.is_dir()):
            (pack / _PARTIAL).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _partial(planned: Planned, partial: bool, result: CampaignResult, total: int) -> str:
    told = [f"{len(result.entries)} of {total} kernels ({planned.partial})"] if partial else []
    bad = len(result.failed) + len(result.timed_out)
    return "; ".join([*told, *([f"{bad} kernels known bad"] if bad else [])])


def _bitcode(result: CampaignResult) -> dict[str, int]:
    """How many kernels linked which bitcode library."""
    counts: dict[str, int] = {}
    for entry in result.done:
        for name in entry.bitcode:
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _check(prefix: str, shop: Shop) -> Callable[[str], Mapping[str, Any]]:
    def check(image: str) -> Mapping[str, Any]:
        shop.step("contract")
        script = (
            "set -e; cmake -G Ninja -S /contract -B /tmp/c -DCMAKE_CXX_COMPILER=clang++ "
            f"-DCMAKE_PREFIX_PATH='{prefix};/usr' -DCMAKE_POLICY_VERSION_MINIMUM=3.5 >/tmp/log 2>&1 "
            "|| { cat /tmp/log; exit 1; }; "
            "cmake --build /tmp/c >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }; /tmp/c/version"
        )
        done = shop.runner.run(
            image,
            ["sh", "-c", script],
            mounts=[Mount(recipe.root() / "aotriton" / "contract", "/contract", read_only=True)],
            log=shop.log,
            capture=True,
            check=False,
        )
        said = done.stdout.strip().splitlines()
        if done.returncode != 0 or not said or not said[-1].startswith("aotriton "):
            raise ContractError(
                "a program cannot be built on this AOTriton", why="\n".join(said[-40:]), fix="see the log"
            )
        return {"contract": {"version": said[-1].removeprefix("aotriton ")}}

    return check
