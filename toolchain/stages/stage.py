"""Define the protocol of stages. A stage plans its inputs, is built once for these inputs, and produces one image."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

from toolchain.catalog.stages import row as stage_row
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_json
from toolchain.core.recipe import Mount, Recipe, Runner
from toolchain.oci import labels
from toolchain.request.model import Request
from toolchain.sources.tree import FetchedSource, Source

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from toolchain.kernels.result_name import Naming
    from toolchain.kernels.shared import SharedResults
    from toolchain.oci.layer import Layer

    Details = TypeVar("Details", default=Any)
else:
    from typing import TypeVar

    Details = TypeVar("Details")
_NONE: Any = None


@dataclass(frozen=True, kw_only=True)
class Planned(Generic[Details]):
    """The plan of a stage.

    Args:
        inputs: everything that determines the output, as JSON values; None if an input is not known yet.
        binaries: the prebuilt parts of the image, by their names in `--allow-binary`.
        partial: a description of the missing parts, for display; empty for a complete image.
        disk: the bytes of free disk space that the build needs.
        engine: whether the build needs the container engine.
        online: whether the build uses the network for more than fetching the sources.
        has_contract_check: whether the build checks its result, unless --no-contract is given.
        prefix: the folder of the stage's files in the image, if users or other stages copy it.
        serves: for an LLVM, the Triton for which its components were chosen; an empty string if this is unknown until
            the tree is fetched.
        details: other decisions for `build` and for the stages above; the type depends on the stage.
    """

    name: str
    image: str
    inputs: Mapping[str, Any] | None
    sources: tuple[Source, ...] = ()
    binaries: tuple[str, ...] = ()
    partial: str = ""
    disk: int = 0
    engine: bool = False
    online: bool = False
    has_contract_check: bool = False
    prefix: str = ""
    serves: str = ""
    note: str = ""
    details: Details = _NONE

    @property
    def input_digest(self) -> str | None:
        """The SHA-256 of the inputs as canonical JSON; None while an input is not known."""
        return None if self.inputs is None else sha256_json(dict(self.inputs))

    @property
    def tree_key(self) -> str:
        """The key under which the build tree of this stage is kept while its build is unfinished."""
        return str(self.input_digest).removeprefix("sha256:")[:12]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A finished stage.

    Args:
        manifest: the digest of the image's manifest in the local layout.
        layers: the descriptors of the layers from the manifest, lowest first.
        facts: results of the build, for reports and for the stages above; they are not inputs.
        reused: whether the image existed already and was not built by this invocation.
        taken_from: the reference, by digest, from which this invocation copied the image; empty if it copied none.
        binaries: the prebuilt parts of the image: the planned ones, and those that a scan found.
    """

    planned: Planned
    input_digest: str
    manifest: str
    layers: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    reused: bool = False
    taken_from: str = ""
    binaries: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerContent:
    """The content of a stage's own layer: a folder, or a layer that the stage has written itself.

    Args:
        layer: the layer, which is used instead of `tree`.
        normalise: see `oci.layer.write_layer`.
    """

    tree: Path | None = None
    layer: Layer | None = None
    normalise: bool = True
    compress: bool = True


@dataclass(frozen=True, kw_only=True)
class ImageParts:
    """The parts of a stage's image other than its own layer.

    Args:
        title: the text that is inserted into the title in the stage's `StageRow`; unused if the row has no title.
        revision: the commit or the version of the source.
        binaries: whether a label lists the prebuilt parts.
        licensed: whether a label names the licence; False if only files in the layer name it.
        under: the stage whose layers are at the bottom of the image; None for an image of one layer.
        beside: other stages, whose layers are between those of `under` and the stage's own layer.
    """

    title: str = ""
    revision: str = ""
    binaries: bool = False
    licensed: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    under: Built | None = None
    beside: Sequence[Built] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def all_labels(self, planned: Planned) -> dict[str, str]:
        """Return the labels that come from the plan and from these parts; only the title if the `StageRow` has one."""
        row = stage_row(planned.name)
        if row.title:
            return {labels.TITLE: row.title.format(self.title)}
        texts = {
            labels.TITLE: planned.image,
            labels.REVISION: self.revision,
            labels.LICENSES: row.license if self.licensed else "",
            labels.PARTIAL: planned.partial,
        }
        binaries = {labels.BINARIES: ",".join(planned.binaries)} if self.binaries else {}
        return {**{name: text for name, text in texts.items() if text}, **binaries, **self.labels}


PLAIN = ImageParts()


@dataclass(frozen=True, kw_only=True)
class ContractCheck:
    """A check that runs on a stage's candidate image before the final image gets its name.

    Args:
        run: a function that takes the runner's name for the candidate image and returns facts for the record.
        on: the stage whose layers are below the own layer in the candidate; None to use the final image's lower layers.
    """

    run: Callable[[str], Mapping[str, Any]]
    on: Built | None = None


class Workspace(Protocol):
    """The services that the pipeline provides to a stage during its build."""

    @property
    def request(self) -> Request:
        """The request that is built."""

    @property
    def cache(self) -> Cache:
        """The tool's cache folder."""

    @property
    def log(self) -> Path:
        """The file with the full log of this stage."""

    def work(self) -> Path:
        """Return the folder for this stage's unfinished work.

        If a build is killed, the next build with the same inputs gets the same folder and the files in it.
        """

    def fetch(self, source: Source) -> FetchedSource:
        """Return a source, with its patches applied, from the store; fetch it if the store does not contain it."""

    def build(self, recipe: Recipe) -> Path:
        """Run a recipe in a container, and return the folder with its output tree."""

    def drop_tree(self, recipe: Recipe) -> None:
        """Delete the build tree that `build` keeps for a recipe.

        Stages call this only for recipes whose cache key differs from the stage's own, because `finish` deletes the
        tree with the stage's own key.
        """

    def unpack(self, built: Built) -> Path:
        """Unpack the top layer of a finished stage's image, and return the folder.

        The folder is deleted together with this stage's unfinished work.
        """

    def image(self, built: Built) -> str:
        """Return the engine's name for a finished stage's image, for use in a recipe."""

    def image_to_run(self, built: Built) -> str:
        """Return the name by which `runner` and `worker` use a finished stage's image."""

    @property
    def runner(self) -> Runner:
        """The engine that `--runner` names, which runs commands in fresh containers."""

    def worker(
        self, image: str, argv: Sequence[str], *, mounts: Sequence[Mount], env: Mapping[str, str]
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """Return a context manager for a long-lived process in a container, with pipes to its standard streams."""

    def jobs(self, kind: Literal["compile", "link", "kernel"]) -> int:
        """Return the number of parallel jobs: the user's option, or else a number that fits the available resources."""

    def memory(self) -> int:
        """Return the bytes of memory that are available to new processes."""

    def shared_results(self, naming: Naming) -> SharedResults | None:
        """Return the kernel stores of the request; None if the request names none."""

    def step(self, name: str) -> None:
        """Report that a step begins."""

    def count(self, done: int, total: int, label: str = "") -> None:
        """Report the progress of the current step."""

    def on_line(self, line: str) -> None:
        """Display the progress, if any, that a line of a container's output reports."""

    def finish(
        self,
        planned: Planned,
        content: LayerContent,
        image: ImageParts = PLAIN,
        *,
        facts: Mapping[str, Any],
        check: ContractCheck | None = None,
    ) -> Built:
        """Write the layer, the image and its record, and return the finished stage.

        The contract check, which --no-contract skips, runs before the image gets its name.
        """


class Stage(Protocol):
    """A stage of the build, which makes one image."""

    @property
    def name(self) -> str:
        """The name of the stage."""

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:
        """Decide what `build` would build, without using the network or the container engine."""

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        """Build the planned stage, and make the decisions that need a fetched tree."""
