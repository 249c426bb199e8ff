"""PyTorch of the base's distribution, unpacked: wheels above Triton are built and imported with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolchain.catalog.wheel_rows import torch_row
from toolchain.core.digest import sha256_json
from toolchain.core.errors import UnsupportedError
from toolchain.request.model import Request
from toolchain.stages.stage import Built, Planned, Workspace
from toolchain.stages.sysroot import System, Unpacked, finish_packages, plan_packages, unpack_system

# The base has links in their place; and what neither runs nor is imported.
_LEFT_OUT = (
    "./bin", "./lib", "./lib32", "./lib64", "./libx32", "./sbin", "*.a", "./usr/include/*", "./usr/share/doc/*",
    "./usr/share/locale/*", "./usr/share/man/*",
)  # fmt: skip


@dataclass(frozen=True)
class TorchStage:
    """Installs the distribution's PyTorch in a layer above a base of the same suite, some of whose files it repeats."""

    name: str = "torch"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[Unpacked]:
        return plan_packages(self.name, torch_of(request), request)

    def build(self, planned: Planned[Unpacked], dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        (system,), tree = planned.details.systems.values(), workspace.work() / "tree"
        workspace.step("packages")
        packages = unpack_system(system, tree, workspace, leave_out=_LEFT_OUT)
        for link, target in planned.details.links.items():
            (tree / link).unlink(missing_ok=True)
            (tree / link).symlink_to(target)
        version = next((package["version"] for package in packages if package["name"] == "python3-torch"), "")
        return finish_packages(planned, tree, packages, workspace, facts={"torch": version})


def torch_of(request: Request) -> Unpacked:
    """The PyTorch for the request's base."""
    if request.base.image is not None:
        raise UnsupportedError(
            f"no PyTorch is known for the local image {request.base}",
            why="it is unpacked from the packages of the suite that a base is made of",
            fix="use --base debian13",
        )
    row = torch_row(request.base.recipe)
    system = System(name=f"torch-{row.name}", arch=request.arch[0], suite=row.suite, packages=row.packages)
    asked = {**system.as_inputs(), "kind": "torch", "beside": list(_LEFT_OUT), "links": dict(row.links)}
    return Unpacked(
        name=row.name, suite=row.suite, systems={row.name: system}, digest=sha256_json(asked), links=row.links
    )
