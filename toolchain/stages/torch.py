"""PyTorch as the base's distribution has it, unpacked: wheels above Triton are built and imported with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolchain.catalog.wheels import TorchRow, torch_row
from toolchain.digest import sha256_json
from toolchain.errors import UnsupportedError
from toolchain.request import Request
from toolchain.stages.stage import Built, Planned, Workspace
from toolchain.stages.sysroot import System, finish_packages, plan_packages, unpack_system

# The base has links in their place; and what neither runs nor is imported.
_LEFT_OUT = (
    "./bin", "./lib", "./lib32", "./lib64", "./libx32", "./sbin", "*.a", "./usr/include/*", "./usr/share/doc/*",
    "./usr/share/locale/*", "./usr/share/man/*",
)  # fmt: skip


@dataclass(frozen=True)
class TorchStage:
    """See `Stage`. Its layer goes above a base of the same suite, whose own files it may hold again."""

    name: str = "torch"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:
        return plan_packages(self.name, torch_of(request).name, torch_digest(request), request)

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        request = workspace.request
        row = torch_of(request)
        tree = workspace.work() / "tree"
        workspace.step("packages")
        packages = unpack_system(_system(row, request.arch[0]), tree, workspace, leave_out=_LEFT_OUT)
        for link, target in row.links.items():
            (tree / link).unlink(missing_ok=True)
            (tree / link).symlink_to(target)
        version = next((package["version"] for package in packages if package["name"] == "python3-torch"), "")
        facts = {"torch": version}
        return finish_packages(planned, torch_digest(request), tree, packages, workspace, name=row.name, facts=facts)


def torch_of(request: Request) -> TorchRow:
    """The PyTorch for the request's base.

    Raises:
        UnsupportedError: none is known for it.
    """
    if request.base.image is not None:
        raise UnsupportedError(
            f"no PyTorch is known for the local image {request.base}",
            why="it is unpacked from the packages of the suite that a base is made of",
            fix="use --base debian13",
        )
    return torch_row(request.base.recipe)


def torch_digest(request: Request) -> str:
    """Of all that decides what is asked for; what it then holds is in its package list."""
    row = torch_of(request)
    inputs = {**_system(row, request.arch[0]).as_inputs(), "kind": "torch", "beside": list(_LEFT_OUT)}
    return sha256_json({**inputs, "links": dict(row.links)})


def _system(row: TorchRow, arch: str) -> System:
    return System(name=f"torch-{row.name}", arch=arch, suite=row.suite, packages=row.packages)
