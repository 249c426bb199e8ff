"""AOTriton: upstream's library, upstream's plan of the kernels, our campaign, upstream's packers."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from toolchain import console, recipe
from toolchain.digest import sha256_json
from toolchain.errors import ContractError, PinError, UnsupportedError
from toolchain.gpus import known_gpus, pack
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.ledger import DONE, reproducible
from toolchain.pins import aotriton_release
from toolchain.recipe import Mount, Recipe, Runner, digests
from toolchain.settings import Cache, Request
from toolchain.sources.resolve import locate, parse_source_spec, require
from toolchain.sources.tree import Source
from toolchain.stages.aotriton_images import KernelImages, MadeImages
from toolchain.stages.base import base_label
from toolchain.stages.intake import choices, names_allowed, take_in
from toolchain.stages.stage import Built, Planned, Shop, common_inputs, source_inputs
from toolchain.stages.wheels import AOTRITON, wheel_folder, wheel_sources

UPSTREAM = "https://github.com/ROCm/aotriton"
DEFAULT_GPUS = ("gfx942",)
# Beside upstream's own `__signature__` in each pack: which kernels are in it, and where some are missing, that.
LEDGER, PARTIAL = "__ledger__", "__partial__"
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
            disk=_DISK,
            engine=True,
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
        library = _Library(source, prefix, sha1, intake.dropped)
        key = _library_key(planned, below, request, library)
        making = _library(planned, below, shop, library, key)
        built = shop.build(making)
        objects = {"library": key, "triton": below["triton"].input_digest, "recipe": digests("aotriton/worker.py")}
        with campaign_folder(shop.cache, sha256_json(objects)) as folder:
            images = KernelImages(folder / "plan", source.path, shop.image(below["triton"]), shop)
            made = images.make(built, gpus=gpus, sha1=sha1)
            result = made.result
            tree = shop.work() / "tree"
            assemble(tree, prefix, built / "prefix", made, gpus=gpus)
            told = partial_text(made, asked=planned.partial, gpus=gpus)
            planned = replace(planned, partial=told, binaries=intake.binaries(planned.binaries))
            done = shop.finish(
                planned,
                tree=tree,
                facts={
                    "prefix": prefix,
                    "hip": (built / "hip-version").read_text(encoding="utf-8").strip(),
                    "sha1": sha1,
                    "gpus": list(gpus),
                    "rules": made.rules,
                    "kernels": result.counts(),
                    "known_bad": [entry.out for entry in result.bad],
                    "failures": [
                        {"out": entry.out, "status": entry.status, "reason": entry.reason} for entry in result.bad
                    ],
                    "skipped": result.skipped,
                    "about": result.about,
                    "by_kernel": result.rows(),
                    "bitcode": _bitcode(result),
                    "found_binaries": intake.rows(findings),
                    "packs": list(made.packs),
                    "lacking": {name: list(lacks) for name, lacks in lacking(gpus).items()},
                    "against_upstream": dict(made.against),
                },
                labels={
                    "org.opencontainers.image.title": planned.image,
                    "org.opencontainers.image.revision": source.ref,
                    "org.opencontainers.image.licenses": "MIT",
                    "toolchain.binaries": ",".join(planned.binaries),
                    "toolchain.gpus": ",".join(gpus),
                    "toolchain.kernels": json.dumps(result.counts(), sort_keys=True),
                    **({"toolchain.partial": planned.partial} if planned.partial else {}),
                },
                check=_check(prefix, shop) if request.contract else None,
                check_on=below["base"],
            )
            if not made.partial and not result.bad:
                # Otherwise the rest may be asked for next, and need not compile these again.
                shutil.rmtree(folder, ignore_errors=True)
                shop.drop_tree(making)
        return done


@dataclass(frozen=True)
class _Library:
    """What upstream's own build is told."""

    source: Source
    prefix: str
    sha1: str
    dropped: tuple[str, ...]


def _library_key(planned: Planned, below: Mapping[str, Built], request: Request, what: _Library) -> str:
    """Of what the library and the plan rest on; another selection of kernels builds neither again."""
    return sha256_json(
        {
            "base": below["base"].input_digest,
            "sources": source_inputs(planned.sources, request.patches),
            "recipe": digests("containerfiles/aotriton"),
            "gpus": list(request.gpus or DEFAULT_GPUS),
            "dropped": list(what.dropped),
        }
    )


def _library(planned: Planned, below: Mapping[str, Built], shop: Shop, what: _Library, key: str) -> Recipe:
    assert what.source.path is not None  # noqa: S101 - the caller fetched it
    gpus = shop.request.gpus or DEFAULT_GPUS
    return Recipe(
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


@contextlib.contextmanager
def campaign_folder(cache: Cache, objects: str) -> Iterator[Path]:
    """The folder for all kernels of one plan and one Triton, whichever part of them is asked for and however patiently.

    A part, a part that is larger, and the whole with --keep-going have other input digests, but the same objects.

    Args:
        objects: digest of all that decides them.
    """
    name = f"campaign-{objects.removeprefix('sha256:')[:12]}"
    cache.locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache.locks / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        console.note(f"aotriton: waiting for another campaign over the same kernels ({name})")
        lock.acquire()
    try:
        yield cache.work / name
    finally:
        lock.release()


def lacking(gpus: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """By image pack, the GPUs that it is for and that were not asked for; packs that lack none are left out."""
    packs = {pack(gpu) for gpu in gpus}
    missing = {
        f"amd-{one}": tuple(gpu for gpu in known_gpus() if pack(gpu) == one and gpu not in gpus) for one in packs
    }
    return {name: lacks for name, lacks in sorted(missing.items()) if lacks}


def assemble(tree: Path, prefix: str, installed: Path, made: MadeImages, *, gpus: Sequence[str]) -> None:
    """Lay library and images into `tree`, and beside each pack's signature what is in it and what is not."""
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(installed, tree, symlinks=True)
    images, result = tree / prefix.lstrip("/") / "lib" / "aotriton.images", made.result
    for name in made.packs:
        source = made.folder / name
        # An earlier part may have left other archives there; these are the ones that were checked.
        for file in (*(one for one in made.archives if one.is_relative_to(source)), source / "__signature__"):
            target = images / file.relative_to(made.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        lacks = lacking(gpus).get(name, ())
        entries = [entry for entry in result.entries if entry.cluster.startswith(f"{name}/")]
        bad = sorted(entry.out for entry in entries if entry.status != DONE)
        told = {
            "partial": made.partial,
            "gpus": [gpu for gpu in gpus if f"amd-{pack(gpu)}" == name],
            "without_gpus": list(lacks),
            "done": len(entries) - len(bad),
            "known_bad": len(bad),
            "triton": result.about.get("triton", ""),
            "bitcode": result.about.get("bitcode", {}),
        }
        # Only the first line of a reason: what follows may hold addresses and temporary names.
        kernels = [{**row, "reason": row["reason"].partition("\n")[0]} for row in reproducible(entries)]
        _write_json(images / name / LEDGER, {**told, "kernels": kernels})
        if made.partial or lacks or bad:
            _write_json(images / name / PARTIAL, {**told, "known_bad": bad})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def partial_text(made: MadeImages, *, asked: str, gpus: Sequence[str]) -> str:
    """What is not there, for people; empty when nothing is missing.

    Args:
        asked: how the request cut it, as `limit 300`.
    """
    told = [f"{len(made.result.entries)} of {made.rules} kernels ({asked})"] if made.partial else []
    told += [f"{name} without {', '.join(lacks)}" for name, lacks in lacking(gpus).items()]
    bad = len(made.result.bad)
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
        return {"contract": {"version": consumed(shop.runner, image, prefix, log=shop.log)}}

    return check


def consumed(runner: Runner, image: str, prefix: str, *, log: Path, mounts: Sequence[Mount] = ()) -> str:
    """The version that a C++ program prints which found the AOTriton at `prefix` by find_package, and linked it.

    Args:
        mounts: what lies in the container beside the image's own files.

    Raises:
        ContractError: it was not found, does not link or does not run.
    """
    script = (
        'set -e; cmake -G Ninja -S /contract -B /tmp/c -DCMAKE_CXX_COMPILER=clang++ "-DCMAKE_PREFIX_PATH=$1;/usr" '
        ">/tmp/log 2>&1 || { cat /tmp/log; exit 1; }; "
        "cmake --build /tmp/c >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }; /tmp/c/version"
    )
    places = [Mount(recipe.root() / "aotriton" / "contract", "/contract", read_only=True), *mounts]
    done = runner.run(image, ["sh", "-c", script, "sh", prefix], mounts=places, log=log, capture=True, check=False)
    said = done.stdout.strip().splitlines()
    if done.returncode != 0 or not said or not said[-1].startswith("aotriton "):
        raise ContractError(
            "a program cannot be built on this AOTriton", why="\n".join(said[-40:]), fix=f"see the log: {log}"
        )
    return said[-1].removeprefix("aotriton ")
