"""AOTriton's kernel images: the generator's plan compiled by our campaign, packed by upstream's packers, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen
from typing import Any

from toolchain import recipe
from toolchain.errors import ContractError
from toolchain.kernels.aks2 import read_archive
from toolchain.kernels.bare import Archive, BarePlan, Cluster
from toolchain.kernels.campaign import CampaignResult, run_campaign
from toolchain.kernels.executors import LocalExecutor
from toolchain.kernels.ledger import Ledger
from toolchain.kernels.rules import RuleSet
from toolchain.recipe import Mount
from toolchain.stages.stage import Shop
from toolchain.stages.triton import SITE

# Where the recipe's build keeps these; the generator writes the paths into its plan.
PLAN, SOURCE = "/build/plan", "/build/src"
# Settings of upstream's own kernel command lines.
ENVIRONMENT = {"TRITON_F32_DEFAULT": "ieee"}


@dataclass(frozen=True)
class KernelImages:
    """The kernels of one AOTriton.

    Args:
        build: the generator's folder; objects and archives come to lie in it.
        source: the AOTriton tree.
        image: the Triton image, as the engine knows it.
    """

    build: Path
    source: Path
    image: str
    shop: Shop

    def compile(self, rules: RuleSet) -> CampaignResult:
        """Compile what is not there yet.

        Raises:
            KernelError: rules failed, and the request does not say to keep going.
        """
        request, top = self.shop.request, recipe.root()
        mounts = [
            Mount(self.source, SOURCE, read_only=True),
            Mount(top / "aotriton", "/recipe/aotriton", read_only=True),
            Mount(self.build, PLAN, read_only=False),
        ]
        env = {"PYTHONPATH": SITE, "HOME": "/tmp", **ENVIRONMENT}  # noqa: S108 - in the container

        def start() -> AbstractContextManager[Popen[str]]:
            return self.shop.worker(self.image, ["python3", "/recipe/aotriton/worker.py"], mounts=mounts, env=env)

        with Ledger(self.shop.work() / "ledger.sqlite") as ledger:
            return run_campaign(
                rules,
                LocalExecutor(start, workers=self.shop.jobs("kernel"), timeout=request.kernel_timeout),
                ledger,
                self.build,
                worker_tree=SOURCE,
                worker_out=PLAN,
                keep_going=request.keep_going,
                on_count=lambda done, total, label: self.shop.on_line(f"@count {done}/{total} {label}"),
            )

    def pack(
        self, plan: BarePlan, clusters: Sequence[Cluster], *, python: Path, sha1: str, gpus: Sequence[str]
    ) -> tuple[str, ...]:
        """Pack whole clusters by upstream's own modules.

        Args:
            python: folder with those modules and all they import.

        Returns:
            The packs that came out, as `amd-gfx942`, sorted.
        """
        archives = packed(plan, clusters)
        job = {
            "clusters": [{"path": one.path, "manifest": one.manifest} for one in clusters],
            "archives": [{"path": one.path, "members": one.members} for one in archives],
            "arches": list(gpus),
            "sha1": sha1,
            "tree_sha1": sha1,
        }
        path = self.shop.work() / "pack.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        self.shop.runner.run(
            self.image,
            ["python3", "/recipe/aotriton/pack.py", PLAN, SOURCE, "/job.json"],
            mounts=[
                Mount(self.build, PLAN, read_only=False),
                Mount(self.source, SOURCE, read_only=True),
                Mount(python, "/python", read_only=True),
                Mount(recipe.root() / "aotriton", "/recipe/aotriton", read_only=True),
                Mount(path, "/job.json", read_only=True),
            ],
            env={"PYTHONPATH": f"/python:{SITE}", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"},  # noqa: S108
            log=self.shop.log,
            on_line=self.shop.on_line,
        )
        return tuple(sorted({one.path.split("/")[1] for one in archives}))

    def check(self, plan: BarePlan, clusters: Sequence[Cluster], result: CampaignResult) -> None:
        """See `check_images`."""
        check_images(self.build, clusters, packed(plan, clusters), result.objects)


def packed(plan: BarePlan, clusters: Sequence[Cluster]) -> list[Archive]:
    """The archives with those members alone that are packed; an archive without any is left out."""
    here = {one.path for one in clusters}
    found = [replace(one, members=tuple(m for m in one.members if m[0] in here)) for one in plan.archives]
    return [one for one in found if one.members]


def check_images(
    build: Path, clusters: Sequence[Cluster], archives: Sequence[Archive], good: Mapping[str, str]
) -> None:
    """Read the archives back: every kernel that was compiled is in them, byte for byte, and nothing else is.

    Args:
        good: the objects that were compiled, by path below `build`; the others must be empty.

    Raises:
        ContractError: with the first difference.
    """
    by_path = {one.path: one for one in clusters}
    for archive in archives:
        names = {name: member for member, name in archive.members}
        found = dict(read_archive(build / archive.path))
        if set(found) != set(names):
            raise ContractError(f"{archive.path} holds other clusters than were packed")
        for name, kernels in found.items():
            wanted: dict[str, Any] = {inside: path for path, inside in by_path[names[name]].objects}
            if [one.name for one in kernels] != list(wanted):
                raise ContractError(f"{archive.path}: {name} holds other kernels than were compiled")
            for one in kernels:
                content = (build / wanted[one.name]).read_bytes()
                if one.content != content or bool(content) != (wanted[one.name] in good):
                    raise ContractError(f"{archive.path}: {one.name} is not what was compiled")
