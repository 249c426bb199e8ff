"""Compile the kernels of AOTriton's plan, pack them with upstream's packers, and check the packs."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.aotriton_generations import Generation, generation_of
from toolchain.core import recipe, strict_json
from toolchain.core.digest import sha256_bytes, write_atomically
from toolchain.core.errors import ContractError, UnsupportedError
from toolchain.core.filesystem import read_regular, remove_links
from toolchain.core.process import Result
from toolchain.core.recipe import Mount
from toolchain.kernels.aks2 import read_archive
from toolchain.kernels.aotriton_plan import Archive, BarePlan, Cluster, read_plan
from toolchain.kernels.bounds import patience
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.launches import launch_files
from toolchain.kernels.ledger import TIMEOUT, Ledger
from toolchain.kernels.pool import CompileSetup
from toolchain.kernels.result_name import Naming
from toolchain.kernels.result_store import LARGEST_METADATA, LARGEST_OBJECT
from toolchain.kernels.rules import Rule, RuleSet, cut
from toolchain.kernels.shards import shard_of
from toolchain.kernels.shared import SharedResults
from toolchain.stages import kernel_workers
from toolchain.stages.aotriton_comparison import compare, read_answers
from toolchain.stages.aotriton_inside import OBJECTS, lay_copies, lay_objects
from toolchain.stages.kernel_check import check_numbers
from toolchain.stages.kernel_workers import RECIPE, SCRATCH, WORKER_FILES, KernelProject, compiling, limits
from toolchain.stages.stage import Workspace
from toolchain.stages.triton_wheel import SITE

# These are the paths of the plan and of the source tree in containers. Upstream's generator writes both into the plan.
PLAN, SOURCE = "/build/plan", "/build/src"
IMAGES = "aotriton.images"
# Upstream sets this environment variable when it compiles kernels.
ENVIRONMENT = {"TRITON_F32_DEFAULT": "ieee"}
PROJECT = KernelProject(source=SOURCE, path=(SITE,), environment=ENVIRONMENT, recipe=WORKER_FILES)
# This is the default size of the sample in `KernelImages.against_upstream`.
SAMPLE = 20


@dataclass(frozen=True, kw_only=True)
class MadeImages:
    """The compiled kernels of an AOTriton, and their packs.

    Args:
        folder: the folder that contains a folder for each pack.
        archives: the files with the packed kernels, each below its pack's folder.
        packs: the names of the packs, such as `amd-gfx942`, sorted; empty if the library contains its kernels.
        rules: the number of kernels in the whole plan.
        partial: whether only some kernels of the plan were requested.
        against: the result of `KernelImages.against_upstream`; empty if there was no comparison.
        launches: the content of each pack's file with launch values, by the pack's name; see `kernels.launches`.
        numbers: the result of `check_numbers`; empty without `--check`.
    """

    result: CampaignResult
    folder: Path
    archives: tuple[Path, ...]
    packs: tuple[str, ...]
    rules: int
    partial: bool
    against: Mapping[str, Any]
    launches: Mapping[str, bytes] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelImages:
    """The compilation, comparison and packing of the kernels of one AOTriton.

    Args:
        build: the folder for the generator's plan, the objects and the archives. The ledger is next to this folder.
        image: the runner's name for the Triton image.
        layers: the result of `layer_digests`.
    """

    build: Path
    source: Path
    image: str
    workspace: Workspace
    layers: Sequence[str] = ()
    generation: Generation = field(default_factory=lambda: generation_of("0.13b"))

    def make(self, built: Path, *, gpus: Sequence[str], sha1: str) -> MadeImages:
        """Compile the requested kernels, pack them, and check the packs.

        Unless --no-contract is given, `against_upstream` compares results with those of upstream's script. If the
        library contains its kernels, they are not packed but laid out for its build.

        Args:
            built: the output of the library's recipe, which contains the generator's plan and modules.
            sha1: the result of `aotriton_library.commit_of`, which upstream's packers record.
        """
        request = self.workspace.request
        # The folder may already contain objects of earlier runs, which need not be compiled again.
        self.build.mkdir(parents=True, exist_ok=True)
        # Upstream's packer, which an earlier run gave this folder, may have left links that lead out of it.
        remove_links(self.build)
        shutil.copytree(built / "plan", self.build, dirs_exist_ok=True, symlinks=True)
        plan = read_plan(self.build, self.source, build=PLAN, source=SOURCE, of=self.generation)
        require_gpus(gpus, {rule.target for rule in plan.rules})
        rules = cut(plan.rules, select=request.select, limit=request.limit)
        self.workspace.step("kernels")
        shared = self.workspace.shared_results(self.naming())
        shard = shard_of(rules, request.shard, shared, limits(request))
        rules, clusters = shard.rules, plan.whole(shard.rules)
        result = self.compile(rules, shared)
        shard.finish(shared, result.entries)
        with Ledger(self.build.with_name("ledger.sqlite")) as ledger:
            numbers = check_numbers(result, rules.rules, self.build, ledger, self.workspace)
        against: Mapping[str, Any] = {}
        if request.contract:
            self.workspace.step("compare")
            against = self.against_upstream(rules, result)
        packs, archives = self._packed(plan, clusters, result, python=built / "python", sha1=sha1, gpus=gpus)
        return MadeImages(
            result=result,
            folder=self.build / IMAGES,
            archives=tuple(self.build / archive.path for archive in archives),
            packs=packs,
            rules=len(plan.rules),
            partial=rules.partial,
            against=against,
            launches=launch_files(
                plan.with_copies(rules.rules), clusters, archives, lambda out: _scratch(self.build / out)
            ),
            numbers=numbers,
        )

    def _packed(
        self,
        plan: BarePlan,
        clusters: Sequence[Cluster],
        result: CampaignResult,
        *,
        python: Path,
        sha1: str,
        gpus: Sequence[str],
    ) -> tuple[tuple[str, ...], list[Archive]]:
        """Pack the kernels and check the packs; return the names of the packs, and the archives.

        If the library contains its kernels, lay them out for the library's build and return no names and no archives.
        """
        if self.generation.inside:
            lay_objects(plan, result, self.build, self.build.with_name(OBJECTS))
            return (), []
        self.workspace.step("pack")
        good = lay_copies(plan, result, self.build)
        packs = self.pack(plan, clusters, python=python, sha1=sha1, gpus=gpus)
        archives = packed(plan, clusters)
        check_images(self.build, clusters, archives, good)
        return packs, archives

    def compile(self, rules: RuleSet, shared: SharedResults | None = None) -> CampaignResult:
        """Compile the rules that have no object yet, and return the result for all rules.

        KernelError is raised if rules fail, unless --keep-going is given.
        """
        about, known = self.build.with_name("about.json"), self.build.with_name("ledger.sqlite")
        if not about.is_file():
            # A ledger without about.json cannot be used, because its campaign ended before the workers reported their
            # facts.
            known.unlink(missing_ok=True)

        with Ledger(known) as ledger, compiling(self.compile_setup(), self.workspace, shared) as workers:

            def count(done: int, total: int, label: str) -> None:
                if not about.is_file():
                    # The workers that filled the kernel store ran in the same image, so their facts apply here too.
                    facts = workers.executor.about() or (shared.about if shared is not None else {})
                    if facts:
                        write_atomically(about, json.dumps(dict(facts), sort_keys=True).encode())
                self.workspace.count(done, total, label)

            result = workers.run(rules, ledger, count)
        # The facts are read from the file, because a run that compiles nothing has no workers to report them.
        return replace(result, about=strict_json.read(about.read_bytes())) if about.is_file() else result

    def compile_setup(self) -> CompileSetup:
        return kernel_workers.compile_setup(
            self.naming(),
            self.image,
            self.workspace,
            source=SOURCE,
            out=self.build,
            scratch=self.build.with_name(SCRATCH),
        )

    def naming(self) -> Naming:
        """Return the `Naming` of the results."""
        return PROJECT.naming(self.source, self.layers, self.workspace.request)

    def pack(
        self, plan: BarePlan, clusters: Sequence[Cluster], *, python: Path, sha1: str, gpus: Sequence[str]
    ) -> tuple[str, ...]:
        """Pack complete clusters of kernels with upstream's own modules; return the sorted names of the packs.

        Args:
            python: the folder with upstream's modules and the packages that they import.
        """
        archives = packed(plan, clusters)
        job = {
            "package": self.generation.generator,
            "loose": self.generation.layout == "aks2",
            "clusters": [
                {"path": cluster.path, "manifest": cluster.manifest, "objects": [path for path, _ in cluster.objects]}
                for cluster in clusters
            ],
            "archives": [{"path": archive.path, "members": archive.members} for archive in archives],
            "arches": list(gpus),
            "sha1": sha1,
            "tree_sha1": sha1,
        }
        mounts = [Mount(self.build, PLAN, read_only=False), Mount(python, "/python")]
        self._run("pack.py", [PLAN, SOURCE], job, mounts, path=f"/python:{SITE}")
        return tuple(sorted({archive.path.split("/")[1] for archive in archives}))

    def against_upstream(self, rules: RuleSet, result: CampaignResult, *, sample: int = SAMPLE) -> dict[str, Any]:
        """Compile some rules again with upstream's own script, and compare the results with the campaign's.

        The rules are a random sample of those that compiled, and all those that failed for a reason other than the
        memory limit.

        Args:
            sample: the size of the sample. If fewer rules compiled, all of them are in the sample.

        Returns:
            the result of `compare`, which raises ContractError if the results differ.
        """
        by_id = {rule.id: rule for rule in rules.rules}
        # The digest of the rules is the seed, so repeated checks of the same campaign choose the same kernels.
        chosen = random.Random(rules.digest).sample(result.done, min(sample, len(result.done)))  # noqa: S311
        # Kernels that exceeded the memory limit are not compiled again, because upstream's script has no such limit.
        bad = tuple(entry for entry in result.bad if not entry.over_memory)
        minutes = patience(self.workspace.request.kernel_timeout) / 60
        job = {
            "script": f"{SOURCE}/{self.generation.script}",
            "jobs": self.workspace.jobs("kernel"),
            "rules": [
                {
                    "id": entry.id,
                    "arguments": upstream_arguments(by_id[entry.id], *self.generation.words_of([entry.target])),
                    "timeout": minutes if entry.status == TIMEOUT else 0,
                }
                for entry in (*chosen, *bad)
            ],
        }
        done = self._run("upstream.py", [], job, [], path=SITE)
        return compare(chosen, bad, read_answers(done.stdout))

    def _run(
        self, script: str, words: Sequence[str], job: Mapping[str, Any], mounts: Sequence[Mount], *, path: str
    ) -> Result:
        """Run a script from `aotriton/` with a job file, in a container of the Triton image."""
        file = self.workspace.work() / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8")
        shared = [Mount(self.source, SOURCE), Mount(recipe.root() / "aotriton", f"{RECIPE}/aotriton")]
        return self.workspace.runner.run(
            self.image,
            ["python3", f"{RECIPE}/aotriton/{script}", *words, "/job.json"],
            mounts=[*shared, *mounts, Mount(file, "/job.json")],
            env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"},  # noqa: S108
            log=self.workspace.log,
            on_line=self.workspace.on_line,
            capture=True,
        )


def require_gpus(gpus: Sequence[str], planned: AbstractSet[str]) -> None:
    """Raise UnsupportedError if the plan contains no kernels for one of the GPUs.

    Upstream's generator does not report unknown GPUs; it silently plans no kernels for them.
    """
    if missing := sorted(set(gpus) - planned):
        raise UnsupportedError(
            "gpu-not-in-aotriton",
            f"this AOTriton plans no kernel for {', '.join(missing)}",
            why=f"its plan is for {', '.join(sorted(planned)) or 'nothing'}",
            fix="leave these GPUs out of --gpu, or use an AOTriton that supports them",
        )


def upstream_arguments(rule: Rule, word: str = "") -> list[str]:
    """Return the arguments with which upstream's compile.py compiles a rule, except `-o` and `--timeout`.

    Args:
        word: the script's name for the GPU; empty to use LLVM's name.
    """
    constants = dict(rule.constexprs)
    signature = ", ".join(str(constants[name]) if kind == "constexpr" else kind for name, kind in rule.signature)
    return [
        f"{SOURCE}/{rule.source}", "--kernel_name", rule.kernel, "-g", "1,1,1",
        "--num_warps", str(rule.num_warps), "--num_stages", str(rule.num_stages),
        "--waves_per_eu", str(rule.waves_per_eu), "--target", word or rule.target, "--signature", signature,
    ]  # fmt: skip


def packed(plan: BarePlan, clusters: Sequence[Cluster]) -> list[Archive]:
    """Return the archives of a plan, each with only those members that are in `clusters`.

    Archives that have no such member are not returned.
    """
    here = {cluster.path for cluster in clusters}
    archives = [
        replace(archive, members=tuple(m for m in archive.members if m[0] in here)) for archive in plan.archives
    ]
    return [archive for archive in archives if archive.members]


def check_images(
    build: Path, clusters: Sequence[Cluster], archives: Sequence[Archive], good: Mapping[str, str]
) -> None:
    """Raise ContractError unless the archives contain exactly the compiled kernels and their launch values.

    Args:
        good: the SHA-256 (64 hex digits) of each compiled object, by its path below `build`. All other objects must be
            empty.
    """
    by_path = {cluster.path: cluster for cluster in clusters}
    for archive in archives:
        names = {name: member for member, name in archive.members}
        seen: set[str] = set()
        # Objects are read one at a time, because an archive contains thousands of them.
        for name, kernels in read_archive(build / archive.path):
            seen.add(name)
            if name not in names:
                raise _differs(f"{archive.path} contains a cluster that was not packed", name)
            wanted: dict[str, Any] = {inside: path for path, inside in by_path[names[name]].objects}
            if [kernel.name for kernel in kernels] != list(wanted):
                raise _differs(f"{archive.path}: {name} does not contain the kernels that were compiled")
            for kernel in kernels:
                path = wanted[kernel.name]
                content = read_regular(build / path, LARGEST_OBJECT, within=build)
                if kernel.read() != content or bool(content) != (path in good):
                    raise _differs(f"{archive.path}: {kernel.name} is not what was compiled")
                if content and f"sha256:{good[path]}" != sha256_bytes(content):
                    raise _differs(f"{path} has changed since it was compiled")
                launch = _launch(build / path) if content else (0, 0)
                if (kernel.shared, kernel.threads) != launch:
                    raise _differs(
                        f"{archive.path}: {kernel.name} would be launched with values that it was not compiled for",
                        f"shared memory and threads {(kernel.shared, kernel.threads)} instead of {launch}",
                    )
        if missing := names.keys() - seen:
            raise _differs(f"{archive.path} lacks a cluster that was packed", f"{min(missing)} is missing")


def _differs(what: str, why: str = "") -> ContractError:
    return ContractError(
        "aotriton-images-wrong", what, why=why, fix="build the stage again; if the error persists, report it"
    )


def _launch(path: Path) -> tuple[int, int]:
    """Return a block's shared memory in bytes and its number of threads, from the JSON next to an object."""
    metadata = strict_json.read(read_regular(path.with_suffix(".json"), LARGEST_METADATA))
    return int(metadata["shared"]), int(metadata["num_warps"]) * int(metadata["warp_size"])


def _scratch(path: Path) -> int | None:
    """Return how many bytes of Triton's own scratch memory an object needs, from the JSON next to it.

    Return None if the object is missing or empty.
    """
    if not path.is_file() or not path.stat().st_size:
        return None
    metadata = strict_json.read(read_regular(path.with_suffix(".json"), LARGEST_METADATA))
    return int(metadata.get("global_scratch_size", 0))
