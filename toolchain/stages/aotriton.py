"""Build AOTriton: its library and its kernels.

Upstream's own build system makes the library and a plan of the kernels. A campaign compiles the planned kernels.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.aotriton_generations import (
    DATABASE,
    Generation,
    check_databases,
    check_given_database,
    foreign_in,
    refuse_foreign,
    refuse_gpus_not_in,
)
from toolchain.core import recipe
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_json, write_atomically
from toolchain.core.errors import ContractError
from toolchain.core.filesystem import copy_built
from toolchain.core.locks import held
from toolchain.core.recipe import COMPILER_CACHE, Mount, Runner, digests
from toolchain.kernels import launches
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.ledger import DONE, Entry, reproducible
from toolchain.oci import labels
from toolchain.request.model import Request
from toolchain.stages.aotriton_images import ENVIRONMENT, IMAGES, KernelImages, MadeImages
from toolchain.stages.aotriton_inside import OBJECTS, lay_ledger, loaded, write_json
from toolchain.stages.aotriton_library import (
    AotritonDetails,
    Library,
    aotriton_source,
    database_source,
    library_facts,
    library_of,
    library_recipe,
    name_of,
    portable_inputs,
    refuse_unbuildable,
    require_aotriton,
    require_no_link,
)
from toolchain.stages.hip import PLACE
from toolchain.stages.inputs import source_inputs, stage_inputs
from toolchain.stages.kernel_workers import (
    WORKER_FILES,
    campaign_facts,
    campaign_inputs,
    layer_digests,
    part_of_kernels,
)
from toolchain.stages.prebuilt import choices, names_allowed, take_in
from toolchain.stages.stage import Built, ContractCheck, ImageParts, LayerContent, Planned, Workspace
from toolchain.stages.wheels import AOTRITON, wheel_sources

# These are the names of two files in a pack. LEDGER lists the pack's kernels. PARTIAL is present only if kernels or
# GPUs are missing.
LEDGER, PARTIAL = "__ledger__", "__partial__"
# This is the name of upstream's signature file, which some packs lack.
SIGNATURE = "__signature__"
# The format of the files with launch values is an input, because it determines the bytes of these files.
LAUNCHES = launches.FORMAT
_DISK = 8_000_000_000


@dataclass(frozen=True)
class AotritonStage:
    name: str = "aotriton"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[AotritonDetails]:
        source, database = aotriton_source(request), database_source(request)
        details = AotritonDetails.of(request)
        if source.path is not None:
            refined(details, source.path, request, database.path if database is not None else None)
        elif database is not None and database.path is not None and (release := release_to_check(details, request)):
            check_given_database(release, database.path)
        further = (*wheel_sources(AOTRITON), *([database] if database is not None else []))
        under = {name: dependency.input_digest for name, dependency in dependencies.items()}
        part = part_of_kernels(request)
        resolved = {
            "base": under["base"],
            "triton": under["triton"],
            "sources": source_inputs([source, *further], request.patches),
            **portable_inputs(under, details.rocms, request.glibc),
        }
        more = {
            "recipe": digests(COMPILER_CACHE, "containerfiles/aotriton", *WORKER_FILES, "aotriton/pack.py"),
            "environment": ENVIRONMENT,
            "launches": LAUNCHES,
            "binaries": choices("aotriton", request),
            **({"without": list(request.without)} if request.without else {}),
            **campaign_inputs(request, details.gpus),
        }
        name = name_of(source, details.gpus)
        bound = "" if request.glibc else f"-{dependencies['base'].details.name}"
        stem = "aotriton-partial" if part else "aotriton"
        return Planned(
            name=self.name,
            image=f"{stem}-{name}{bound}",
            inputs=stage_inputs(self.name, request, resolved, more),
            sources=(source, *further),
            binaries=tuple(sorted({*dependencies["triton"].binaries, *names_allowed("aotriton", request)})),
            partial=part,
            prefix=f"/usr/lib64/aotriton-{name}",
            disk=_DISK,
            engine=True,
            has_contract_check=True,
            details=details,
        )

    def build(
        self, planned: Planned[AotritonDetails], dependencies: Mapping[str, Built], workspace: Workspace
    ) -> Built:
        request, gpus, prefix = workspace.request, planned.details.gpus, planned.prefix
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        given = next((workspace.fetch(row).path for row in planned.sources if row.name == DATABASE), None)
        generation, database = refined(planned.details, source.path, request, given)
        intake, findings = take_in("aotriton", source.path, request)
        library = library_of(
            planned, dependencies, request, source, intake.dropped, generation=generation, database=database
        )
        tree_of = workspace.cache.locks / f"aotriton-tree-{library.key.removeprefix('sha256:')[:12]}.lock"
        making = library_recipe(planned, dependencies, workspace, library)
        # The lock is needed because builds of other selections of kernels use the same build tree.
        with held(tree_of, what="the build of this AOTriton library"):
            built = workspace.build(making)
        versions = dependencies["hip"].facts["hip"] if library.rocm else {}
        # A library that contains no kernels is checked before the kernels are compiled, because compiling takes hours.
        linked = {} if generation.inside else library_facts(built, library, headers=versions, glibc=request.glibc)
        with campaign_folder(workspace.cache, sha256_json(_objects(dependencies, request, library))) as folder:
            triton = dependencies["triton"]
            image, layers = workspace.image_to_run(triton), layer_digests(triton, workspace.cache)
            images = KernelImages(folder / "plan", source.path, image, workspace, layers, generation)
            made = images.make(built, gpus=gpus, sha1=library.sha1)
            result = made.result
            if generation.inside:
                making = library_recipe(planned, dependencies, workspace, library, objects=folder / OBJECTS)
                with held(tree_of, what="the build of this AOTriton library"):
                    built = workspace.build(making)
                linked = library_facts(built, library, headers=versions, glibc=request.glibc)
            tree = workspace.work() / "tree"
            assemble(tree, prefix, built / "prefix", made, gpus=gpus, of=generation)
            text = partial_text(made, part=planned.partial, gpus=gpus, of=generation)
            planned = replace(planned, partial=text, binaries=intake.binaries(planned.binaries))
            done = workspace.finish(
                planned,
                LayerContent(tree=tree),
                ImageParts(
                    revision=source.ref,
                    binaries=True,
                    labels={labels.GPUS: ",".join(gpus), labels.KERNELS: json.dumps(result.counts(), sort_keys=True)},
                ),
                facts={
                    "prefix": prefix,
                    **linked,
                    **campaign_facts(result, request, gpus),
                    "sha1": library.sha1,
                    "rules": made.rules,
                    "known_bad_by_pack": by_pack(result.bad),
                    "failures": [
                        {"out": entry.out, "status": entry.status, "reason": entry.reason} for entry in result.bad
                    ],
                    "bitcode": _bitcode(result),
                    "found_binaries": intake.rows(findings),
                    "packs": list(made.packs),
                    "gpus_by_pack": gpus_by_pack(gpus, generation),
                    "lacking": {name: list(lacks) for name, lacks in lacking(gpus, generation).items()},
                    "against_upstream": dict(made.against),
                    **({"numbers": dict(made.numbers)} if made.numbers else {}),
                },
                check=ContractCheck(run=_check(library, dependencies, workspace, generation), on=dependencies["base"]),
            )
            whole = not made.partial and not result.bad
            if whole and not lacking(gpus, generation):
                # The objects of a partial build are kept, because the user may build the rest next.
                shutil.rmtree(folder, ignore_errors=True)
        if whole:
            with held(tree_of, what="the build of this AOTriton library"):
                workspace.drop_tree(making)
        return done


def aotriton_stage(_: str, request: Request) -> AotritonStage:
    """Return the AOTriton stage; raise an error if the request names a release that cannot be built.

    The check is made here and not in `plan`, because the stages below are planned first, and their plans may report a
    missing pin instead.
    """
    refuse_unbuildable(request)
    return AotritonStage()


def refined(
    details: AotritonDetails, tree: Path, request: Request, given: Path | None
) -> tuple[Generation, tuple[Path, str] | None]:
    """Return the generation of an AOTriton tree, and a pair of `given` and the path in the tree that it replaces.

    The pair is None if `given` is None. An error is raised if the tree cannot be built as requested, for example
    because a tuning database is missing.

    Args:
        given: the user's tuning database.
    """
    generation = require_aotriton(tree, details.release)
    refuse_foreign("this AOTriton", foreign_in(tree) or generation.foreign, request.without)
    if not details.release:
        refuse_gpus_not_in(tree, generation.generator, details.gpus)
    row = check_databases(tree, release_to_check(details, request), given)
    return generation, (given, row.path) if given is not None and row is not None else None


def release_to_check(details: AotritonDetails, request: Request) -> str:
    """Return the release whose databases a tree must contain, or an empty string.

    The string is empty if the request patches AOTriton, or if it names no known release.
    """
    return "" if request.patches.get("aotriton") else details.release


def _objects(dependencies: Mapping[str, Built], request: Request, library: Library) -> dict[str, Any]:
    """Return everything that determines the compiled objects, except the rules.

    The requested GPUs and the settings of the library's build are not included, because they change no object.
    """
    return {
        "sources": source_inputs([library.source], request.patches),
        "dropped": list(library.dropped),
        # Triton is identified by the digest of its layer, because layers with equal digests contain the same compiler.
        "triton": dependencies["triton"].layers[-1]["digest"],
        "base": dependencies["base"].input_digest,
        "recipe": digests(*WORKER_FILES),
        "environment": ENVIRONMENT,
    }


def by_pack(bad: Sequence[Entry]) -> dict[str, int]:
    """Return the number of kernels in `bad` for each pack, or for each GPU if the library contains its kernels.

    Packs and GPUs without such kernels are not listed.
    """
    return dict(sorted(Counter(entry.cluster.partition("/")[0] for entry in bad).items()))


@contextlib.contextmanager
def campaign_folder(cache: Cache, objects: str) -> Iterator[Path]:
    """Lock and yield the folder for the kernels of one AOTriton that are compiled by one Triton.

    Builds that differ only in the selection of kernels share this folder and its objects.

    Args:
        objects: the digest of everything that determines the objects, except the rules.
    """
    name = f"campaign-{objects.removeprefix('sha256:')[:12]}"
    with held(cache.locks / f"{name}.lock", what="the compilation of the same kernels"):
        yield cache.work / name


def gpus_by_pack(gpus: Sequence[str], of: Generation) -> dict[str, list[str]]:
    """Return the requested GPUs in each image pack, by the pack's name; an empty dictionary if there are no packs."""
    packs = sorted({of.pack(gpu) for gpu in gpus}) if not of.inside else []
    return {f"amd-{pack}": [gpu for gpu in gpus if of.pack(gpu) == pack] for pack in packs}


def lacking(gpus: Sequence[str], of: Generation) -> dict[str, tuple[str, ...]]:
    """Return the GPUs that each image pack lacks because they were not requested, by the pack's name.

    Complete packs are not listed. The result is empty if the library contains its kernels.
    """
    packs = {of.pack(gpu) for gpu in gpus} if not of.inside else set()
    # The release determines which GPUs a pack should contain, so adding a GPU to the tool does not change the result.
    missing = {f"amd-{pack}": tuple(gpu for gpu in of.packs.get(pack, ()) if gpu not in gpus) for pack in packs}
    return {name: lacks for name, lacks in sorted(missing.items()) if lacks}


def assemble(
    tree: Path, prefix: str, installed: Path, made: MadeImages, *, gpus: Sequence[str], of: Generation
) -> None:
    """Empty `tree`, copy the library and the image packs to it, and write lists of the kernels.

    Each pack gets a list. If the library contains its kernels, there are no packs, and `lay_ledger` writes one list.

    Args:
        installed: the root of the files that the library's build installed.
    """
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(installed, tree, symlinks=True)
    if of.inside:
        bad = [entry.out for entry in made.result.bad]
        lay_ledger(
            tree, prefix, made.result,
            {
                "partial": made.partial, "gpus": list(gpus), "done": len(made.result.done), "known_bad": bad,
                "triton": made.result.about.get("triton", ""), "bitcode": made.result.about.get("bitcode", {}),
            },
        )  # fmt: skip
        return
    for folder in sorted((tree / prefix.lstrip("/")).glob("rocm*/lib")):
        # Each library looks for the folder of packs next to itself. All libraries share one folder through links.
        require_no_link(folder, tree)
        (folder / IMAGES).symlink_to(f"../../lib/{IMAGES}")
    images, result = tree / prefix.lstrip("/") / "lib" / IMAGES, made.result
    for name in made.packs:
        source = made.folder / name
        # Only checked archives are copied, because earlier builds may have left archives that this build did not pack.
        signature = [source / SIGNATURE] if (source / SIGNATURE).is_file() else []
        for file in (*(archive for archive in made.archives if archive.is_relative_to(source)), *signature):
            target = images / file.relative_to(made.folder)
            require_no_link(target, tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            copy_built(made.folder, file.relative_to(made.folder).as_posix(), target)
        lacks = lacking(gpus, of).get(name, ())
        entries = [entry for entry in result.entries if entry.cluster.startswith(f"{name}/")]
        bad = sorted(entry.out for entry in entries if entry.status != DONE)
        facts = {
            "partial": made.partial,
            "gpus": [gpu for gpu in gpus if f"amd-{of.pack(gpu)}" == name],
            "without_gpus": list(lacks),
            "done": len(entries) - len(bad),
            "known_bad": len(bad),
            "triton": result.about.get("triton", ""),
            "bitcode": result.about.get("bitcode", {}),
        }
        write_json(images / name / LEDGER, {**facts, "kernels": reproducible(entries)})
        if name in made.launches:
            write_atomically(images / name / launches.NAME, made.launches[name])
        if made.partial or lacks or bad:
            write_json(images / name / PARTIAL, {**facts, "known_bad": bad})


def partial_text(made: MadeImages, *, part: str, gpus: Sequence[str], of: Generation) -> str:
    """Return a description of the kernels and GPUs that the images lack; an empty string if they lack none."""
    parts = [f"{len(made.result.entries)} of {made.rules} kernels ({part})"] if made.partial else []
    parts += [f"{name} without {', '.join(lacks)}" for name, lacks in lacking(gpus, of).items()]
    bad = len(made.result.bad)
    return "; ".join([*parts, *([f"{bad} kernels known bad"] if bad else [])])


def _bitcode(result: CampaignResult) -> dict[str, int]:
    """Return the number of compiled kernels that contain code of each bitcode library, by the library's name."""
    return dict(sorted(Counter(name for entry in result.done for name in entry.bitcode).items()))


def _check(
    library: Library, dependencies: Mapping[str, Built], workspace: Workspace, generation: Generation
) -> Callable[[str], Mapping[str, Any]]:
    def check(image: str) -> Mapping[str, Any]:
        workspace.step("contract")
        runner, log = workspace.runner, workspace.log
        if generation.generator == "v2python":
            # The contract check's program calls functions that this old library lacks, so the library is only loaded.
            name = f"{library.prefix}/{{}}lib/libaotriton_v2.so"
            files = {rocm: name.format(f"rocm{rocm}/") for rocm in library.rocm} or {"": name.format("")}
            loaded(runner, image, files, workspace, dependencies["hip"] if library.rocm else None)
            return {"contract": {"loads": list(files.values()), "rocm": list(library.rocm)}}
        if not library.rocm:
            return {"contract": {"version": consumed(runner, image, library.prefix, log=log)}}
        here = workspace.unpack(dependencies["hip"]) / PLACE.lstrip("/")
        versions = {
            rocm: consumed(
                runner, image, library.prefix, log=log, mounts=[Mount(here, PLACE)], hip=f"{PLACE}/rocm{rocm}"
            )
            for rocm in library.rocm
        }
        return {"contract": {"version": next(iter(versions.values())), "rocm": list(versions)}}

    return check


def consumed(
    runner: Runner, image: str, prefix: str, *, log: Path, mounts: Sequence[Mount] = (), hip: str = "/usr"
) -> str:
    """Build and run a C++ program that uses the AOTriton in an image, and return the version that it prints.

    ContractError is raised if the program cannot be built or run.

    Args:
        hip: the prefix of the HIP with which the program is built and run.
    """
    # The program is built with a copy of the prefix, made of links, because the CMake package must work in any folder.
    script = (
        'set -e; cp -rs "$1" /tmp/aotriton; '
        "cmake -G Ninja -S /contract -B /tmp/c -DCMAKE_CXX_COMPILER=clang++ "
        '"-DCMAKE_PREFIX_PATH=/tmp/aotriton;$2;/usr" >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }; '
        "cmake --build /tmp/c >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }; "
        'LD_LIBRARY_PATH="$2/lib" /tmp/c/version'
    )
    places = [Mount(recipe.root() / "aotriton" / "contract", "/contract"), *mounts]
    done = runner.run(image, ["sh", "-c", script, "sh", prefix, hip], mounts=places, log=log, capture=True, check=False)
    printed = done.stdout.strip().splitlines()
    if done.returncode != 0 or not printed or not printed[-1].startswith("aotriton "):
        raise ContractError(
            "program-not-buildable",
            "a program that uses this AOTriton cannot be built or does not run",
            why="\n".join(printed[-40:]),
            fix=f"see the log: {log}",
        )
    return printed[-1].removeprefix("aotriton ")
