"""Make an image with the base and Triton's wheel from the package index.

The wheel is prebuilt, so the user must allow it: `--allow-binary triton-wheel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain.catalog.release_data import numbers
from toolchain.core.errors import ConfigError, UnsupportedError
from toolchain.core.zips import open_wheel
from toolchain.request.model import Request
from toolchain.sources.pypi import pypi_row, python_of_wheel
from toolchain.sources.tree import Source
from toolchain.stages.inputs import source_inputs, stage_inputs
from toolchain.stages.stage import Built, ImageParts, LayerContent, Planned, Workspace
from toolchain.stages.unpacked import own_python

BINARY = "triton-wheel"
# This is Triton's folder in images. Programs find it by PYTHONPATH, because it is not a site-packages folder.
SITE = "/usr/lib/toolchain/triton"


@dataclass(frozen=True)
class TritonWheelStage:
    """The stage that unpacks Triton's wheel from the package index."""

    name: str = "triton"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:
        source = wheel_source(request)
        if patches := request.patches.get("triton"):
            raise ConfigError(
                "patch-without-source",
                f"--patch triton={patches[0]} has nothing to patch",
                why="Triton is taken from the index as a wheel, and only a source can be patched",
                fix="name a source too: --source triton=PATH or URL@COMMIT",
            )
        _check_python(request, source)
        resolved = {"base": dependencies["base"].input_digest, "sources": source_inputs([source], {})}
        return Planned(
            name=self.name,
            image=f"triton-wheel-{source.short_id}-{dependencies['base'].details.name}",
            inputs=stage_inputs(self.name, request, resolved, {"site": SITE}),
            sources=(source,),
            binaries=(BINARY,),
        )

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        workspace.step("source")
        wheel = workspace.fetch(planned.sources[0])
        tree = workspace.work() / "tree"
        unzip(wheel.path, tree / SITE.lstrip("/"))
        workspace.step("layer")
        return workspace.finish(
            planned,
            LayerContent(tree=tree, compress=False),
            ImageParts(binaries=True, licensed=False, under=dependencies["base"]),
            facts={"wheel_bytes": wheel.path.stat().st_size},
        )


def wheel_source(request: Request) -> Source:
    """Return the wheel that the request names, without using the network.

    SourceError is raised if data/pypi.toml does not list the requested version, and UnsupportedError if it does not
    list the requested file.
    """
    spec = request.sources["triton"]  # `triton_stage` chooses this stage only if the request names a wheel
    source = request.locate("triton", spec)
    if source.kind != "pypi":
        raise UnsupportedError(
            "not-a-wheel-of-index",
            f"--source triton={spec} is not a wheel of the package index",
            why="no row of toolchain/data/pypi.toml has its digest" if spec.wheel else "",
            fix="name one: --source triton=pypi:VERSION",
        )
    return source


def _check_python(request: Request, source: Source) -> None:
    """Raise UnsupportedError if the base's Python cannot import the wheel.

    A local image is not checked, because its Python is unknown before it runs.
    """
    if request.base.image is not None:
        return
    file, has = pypi_row(source.where, source.version).file, own_python(request)
    wanted, later = python_of_wheel(file)
    if numbers(has) == numbers(wanted) or (later and numbers(has) > numbers(wanted)):
        return
    raise UnsupportedError(
        "wheel-other-python",
        f"{file} is for CPython {wanted}{' and later' if later else ''}, and base {request.base} has {has}",
        fix="use another base, or build Triton from source: --triton VERSION",
    )


def unzip(wheel: Path, into: Path) -> None:
    """Unpack a wheel into a folder; raise SourceError or HostileInputError if `open_wheel` refuses it."""
    into.mkdir(parents=True, exist_ok=True)
    with open_wheel(wheel) as archive:
        for member in archive.infolist():
            path = Path(archive.extract(member, into))
            # The upper half of the attributes is the file mode, which zipfile does not restore.
            if not member.is_dir() and (member.external_attr >> 16) & 0o111:
                path.chmod(0o755)
