"""A stage that the tool does not contain: it copies a text from its source into a layer on the base."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_file
from toolchain.core.errors import SourceError
from toolchain.core.recipe import Recipe
from toolchain.core.record import Record
from toolchain.oci.layout import Layout
from toolchain.request.model import Request
from toolchain.sources.unpack import unpack_tar
from toolchain.stages.inputs import common_inputs, source_inputs
from toolchain.stages.stage import Built, ImageParts, LayerContent, Planned, Workspace

HERE = Path(__file__).parent
FILE = "usr/share/report/report.txt"


@dataclass(frozen=True)
class ReportStage:
    """See `Stage`.

    Args:
        contained: whether the container engine builds the layer, from a Containerfile and a script.
    """

    contained: bool
    name: str = "report"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:
        """See `Stage.plan`."""
        if (spec := request.sources.get("notes")) is None:
            raise SourceError("test-error", "the report has no source", fix="name one: --source notes=PATH")
        source = request.locate("notes", spec)
        sources, base = source_inputs([source], request.patches), dependencies["base"].input_digest
        inputs = None
        if sources is not None and base is not None:
            # The files of the recipe are inputs, because another recipe makes another image.
            recipe = {path.name: sha256_file(path) for path in sorted((HERE / "report").iterdir())}
            own = {"base": base, "sources": sources, "how": self.contained, "recipe": recipe}
            inputs = {**common_inputs(self.name, request), **own}
        image = f"report-{source.short_id}"
        return Planned(name=self.name, image=image, inputs=inputs, sources=(source,), engine=self.contained)

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        """See `Stage.build`."""
        source = workspace.fetch(planned.sources[0])
        if self.contained:
            tree = workspace.build(
                Recipe(
                    name="report",
                    containerfile=str(HERE / "report" / "Containerfile"),
                    base=workspace.image(dependencies["base"]),
                    contexts={"notes": source.path, "report": HERE / "report"},
                )
            )
        else:
            tree = workspace.work() / "tree"
            (tree / FILE).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path / "report.txt", tree / FILE)
        return workspace.finish(planned, LayerContent(tree=tree), ImageParts(revision=source.ref), facts={})


def copied(_: str, __: Request) -> ReportStage:
    """Return the stage that copies without a container."""
    return ReportStage(contained=False)


def contained(_: str, __: Request) -> ReportStage:
    """Return the stage that copies in a container."""
    return ReportStage(contained=True)


def text(cache: Cache, record: Record, folder: Path) -> list[Path]:
    """Unpack the report of a finished stage into `folder`, and return its path."""
    layout, out = Layout(cache.images), folder / "report.txt"
    layer = layout.children(layout.resolve(record.manifest))[-1]
    unpack_tar(layout.blob(layer.digest), folder / "unpacked", strip=0)
    shutil.move(folder / "unpacked" / FILE, out)
    shutil.rmtree(folder / "unpacked")
    return [out]
