"""Small images with records, for which true and false evidence can be made, attached and verified in seconds."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from rich.console import Console

from tests.places import attach, verify
from toolchain.catalog.bases import base_recipe
from toolchain.core.cache import Cache
from toolchain.core.digest import EPOCH, sha256_json
from toolchain.core.record import LOCAL_BUILDER, VERSION, Record
from toolchain.engine.progress import Progress
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import ImageSpec, add_layer, standard_annotations, write_image, write_index
from toolchain.oci.labels import PARTIAL
from toolchain.oci.layer import Compression, compress, write_layer
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef
from toolchain.oci.referrers import write_artifact
from toolchain.pipeline.fetching import Prefetch
from toolchain.pipeline.workspace import BuildWorkspace
from toolchain.publish.attestations import sboms
from toolchain.request.model import Request
from toolchain.stages.base import BaseStage, recipe_digest, write_packages
from toolchain.stages.llvm import LlvmStage
from toolchain.stages.stage import Built, LayerContent, Stage
from toolchain.stages.unpacked import UnpackedStage, sysroot_of, torch_of
from toolchain.trust import attest, dsse
from toolchain.trust.image_facts import ImageFacts, Package
from toolchain.trust.keys import Signer
from toolchain.trust.policy import Policy
from toolchain.trust.sbom import CYCLONEDX, SPDX, Format
from toolchain.trust.verify import Verdict

LLVM = "https://github.com/llvm/llvm-project"
COMMIT = "10dc3a8e916d73291269e5e2b82dd22681489aa1"
FILES = {"usr/lib64/thing/bin/tool": b"program", "usr/lib64/thing/share/text": b"words\n", "usr/lib64/thing/empty": b""}
FINISHED = float(EPOCH + 3600)


def record(**changes: Any) -> Record:
    """Return the record that a build of LLVM from git with one patch writes."""
    inputs = {
        "stage": "llvm",
        "arch": "amd64",
        "base": f"sha256:{'b' * 64}",
        "sources": [{"name": "llvm", "digest": f"git:{COMMIT}@{LLVM}", "patches": [f"sha256:{'c' * 64}"]}],
        "recipe": {"containerfiles/llvm/build.sh": f"sha256:{'d' * 64}"},
    }
    value: dict[str, Any] = {
        "stage": "llvm",
        "image": "llvm-triton-10dc3a8e-debian13",
        "inputs": inputs,
        "sources": [
            {
                "name": "llvm",
                "ref": COMMIT,
                "repository": LLVM,
                "digest": f"git:{COMMIT}@{LLVM}",
                "kind": "git",
                "license": "Apache-2.0 WITH LLVM-exception",
                "locked": True,
                "patches": [{"name": "fix it.patch", "digest": f"sha256:{'c' * 64}"}],
            }
        ],
        "binaries": [],
        "partial": "",
        "arch": "amd64",
        "manifest": f"sha256:{'a' * 64}",
        "layers": [],
        "compressor": "gzip/zlib-1/9",
        "version": VERSION,
        "request": {"stage": "llvm", "base": "debian13", "arch": ["amd64"]},
        "started": FINISHED - 60,
        "finished": FINISHED,
        "isolation": {
            "mode": "chroot",
            "interfaces": 0,
            "buildah": "1.28.2",
            "measures": f"sha256:{'4' * 64}",
            "held": ["mount"],
        },
        "tool": {"version": "0.1.0", "builder": LOCAL_BUILDER},
        "facts": {},
        **changes,
    }
    value.setdefault("input_digest", sha256_json(value["inputs"]))
    return Record.parse(value)


BASE = Record(
    stage="base",
    image="toolchain-base-debian13",
    input_digest=f"sha256:{'b' * 64}",
    inputs={"base": "debian13", "arch": "amd64"},
    manifest=f"sha256:{'e' * 64}",
    arch="amd64",
    layers=({"digest": f"sha256:{'9' * 64}"},),
)
PACKAGES = (Package("apt", "3.0.3", "amd64", "deb", "5" * 64), Package("libc6", "2.41-12+deb13u1", "amd64"))


def image_facts(**changes: Any) -> ImageFacts:
    """Return the facts of an image: its record, its base and its packages."""
    return ImageFacts(record=record(**changes), dependencies=(BASE,), packages=PACKAGES)


def ed25519_signer() -> Signer:
    """Return a signer with a new Ed25519 key."""
    return Signer(ed25519.Ed25519PrivateKey.generate())


def p256_signer() -> Signer:
    """Return a signer with a new P-256 key."""
    return Signer(ec.generate_private_key(ec.SECP256R1()))


def small_image(
    layout: Layout,
    work: Path,
    *,
    files: Mapping[str, bytes] = FILES,
    label: str | None = None,
    how: Compression = "gzip",
    arch: str = "amd64",
    partial: str = "",
) -> Descriptor:
    """Write an image of one layer with the given files and a link, and return its descriptor."""
    tree = work / f"tree {len(list(work.iterdir())) if work.exists() else 0}"
    for name, content in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tree / "usr/lib64/thing/link").symlink_to("bin/tool")
    layer = write_layer(tree, work / f"{tree.name}.tar")
    blob = compress(layer, work / f"{tree.name}.blob", how)
    spec = ImageSpec(
        arch=arch,
        layers=(add_layer(layout, blob, created_by="test"),),
        labels={"toolchain.input-digest": label, **({PARTIAL: partial} if partial else {})} if label else {},
        annotations=standard_annotations("thing"),
    )
    return write_image(layout, spec)


def bill(facts: ImageFacts, layout: Layout, manifest: Descriptor, format_: Format = SPDX) -> dict[str, Any]:
    """Return the SBOM of an image in one format."""
    return dict(sboms(facts, layout, manifest))[format_]


@dataclass
class Stand:
    """An image in a layout folder, with the record and the key to make true and false statements about it."""

    layout: Layout
    work: Path
    image_facts: ImageFacts = field(default_factory=image_facts)
    signer: Signer = field(default_factory=ed25519_signer)

    def __post_init__(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        self.layout.ensure()
        self.manifest = small_image(self.layout, self.work, label=self.image_facts.record.input_digest)
        self.index = write_index(self.layout, [self.manifest])
        self.layout.tag(self.index, "thing")

    @property
    def ref(self) -> LayoutRef:
        """The reference to the layout."""
        return LayoutRef(self.layout.root)

    def subjects(self) -> list[attest.Resource]:
        """Return the subjects of the image's statements."""
        return attest.subjects(self.image_facts.record.image, [self.manifest.digest, self.index.digest])

    def sbom(self) -> dict[str, Any]:
        """Return a true SBOM, which the caller may change."""
        return copy.deepcopy(bill(self.image_facts, self.layout, self.manifest))

    def cyclonedx(self) -> dict[str, Any]:
        """Return a true SBOM in CycloneDX, which the caller may change."""
        return bill(self.image_facts, self.layout, self.manifest, CYCLONEDX)

    def provenance(self) -> dict[str, Any]:
        """Return a true provenance, which the caller may change."""
        return copy.deepcopy(dict(attest.provenance(self.image_facts, self.subjects())))

    def sbom_statement(self, document: Mapping[str, Any] | None = None) -> attest.Statement:
        """Return the statement of a true SBOM, or of the given document."""
        return attest.statement(self.subjects(), SPDX.predicate, document or self.sbom())

    def attach(self, content: bytes, media_type: str = dsse.MEDIA_TYPE, *, to: Descriptor | None = None) -> Descriptor:
        """Attach bytes to the image or to `to`, and return the descriptor of their blob."""
        blob = self.layout.put_bytes(content, media_type)
        made = write_artifact(self.layout, to or self.manifest, blob, artifact_type=media_type)
        attach(self.layout, [made], self.ref)
        return blob

    def say(self, statement: Any, signer: Signer | None = None) -> None:
        """Sign a statement and attach it."""
        self.attach(dsse.sign(statement, signer or self.signer).as_bytes())

    def say_all(self, *, sbom: Mapping[str, Any] | None = None, provenance: Any = None) -> None:
        """Sign and attach an SBOM and a provenance, which are true unless they are given."""
        self.say(self.sbom_statement(sbom))
        self.say(provenance or self.provenance())


def finished_base(cache: Cache, work: Path, version: str = "3.0.3") -> Built:
    """Put a base into the cache as a build does, but with one small file, so that it can be published."""
    recipe = base_recipe("debian13", "amd64")
    rows = [{"name": "apt", "version": version, "architecture": "amd64", "sha256": "5" * 64}]
    write_packages(
        cache.package_list("base", recipe.name, "amd64"), {"recipe": recipe_digest(recipe), "packages": rows}
    )
    return _finished(BaseStage(), Request(cache=cache), work)


def finished_sysroot(cache: Cache, work: Path, arch: str, version: str = "2.41", glibc: str = "") -> Built:
    """Put the sysroot of an architecture into the cache as a build does; with `glibc`, that of an old system."""
    request = Request(cache=cache, arch=(arch,), glibc=glibc)
    system = sysroot_of(request)
    rows = [{"name": "libc6-dev", "version": version, "architecture": arch, "sha256": "6" * 64}]
    write_packages(cache.package_list("sysroot", system.name, arch), {"recipe": system.digest, "packages": rows})
    return _finished(UnpackedStage("sysroot"), request, work)


def finished_torch(cache: Cache, work: Path) -> Built:
    """Put the PyTorch of the base's distribution into the cache as a build does."""
    request = Request(cache=cache)
    rows = [{"name": "python3-torch", "version": "2.6.0+dfsg-7", "architecture": "amd64", "sha256": "8" * 64}]
    lock = {"recipe": torch_of(request).digest, "packages": rows}
    write_packages(cache.package_list("torch", torch_of(request).name, "amd64"), lock)
    return _finished(UnpackedStage("torch"), request, work)


def finished_llvm(
    request: Request, work: Path, files: Mapping[str, bytes], facts: Mapping[str, Any] | None = None
) -> Built:
    """Put an LLVM into the cache as a build does, but with the given small files, so that it can be published."""
    planned = LlvmStage().plan(request, {"base": BaseStage().plan(request, {})})
    tree = work / "llvm tree"
    for name, content in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    prefetch = Prefetch(request, [])
    with Progress("llvm", 1, 1, Console(file=io.StringIO())) as progress:
        workspace = BuildWorkspace(
            request=request, log=work / "log", progress=progress, stage="a-test", prefetch=prefetch
        )
        return workspace.finish(planned, LayerContent(tree=tree), facts=dict(facts or {}))


def _finished(stage: Stage, request: Request, work: Path) -> Built:
    planned = stage.plan(request, {})
    tree = work / "root fs"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc" / "os-release").write_text(f"ID=debian for {request.arch[0]}\n")
    prefetch = Prefetch(request, [])
    with Progress(stage.name, 1, 1, Console(file=io.StringIO())) as progress:
        workspace = BuildWorkspace(
            request=request, log=work / "log", progress=progress, stage="a-test", prefetch=prefetch
        )
        return workspace.finish(planned, LayerContent(tree=tree, compress=False), facts={"packages": 1})


TOOL = "usr/lib64/thing/bin/tool"
NOW = datetime.fromtimestamp(FINISHED, UTC) + timedelta(days=10)


def look(stand: Stand, key: Any = "own", **demands: Any) -> Verdict:
    """Return the verdict of `verify` on the image of a stand, ten days after the build."""
    public = stand.signer.public if key == "own" else key
    return verify(stand.ref, stand.layout, stand.index, key=public, demands=Policy(**demands), now=NOW)


def wrong(verdict: Verdict, *named: str) -> str:
    """Return the id of the only problem, after a check that the problem names these values."""
    assert verdict.verdict == "untrusted"
    (problem,) = verdict.problems
    assert [value for value in named if value not in problem] == [], problem
    return verdict.id


def lie(stand: Stand, change: Callable[[list[dict[str, Any]]], None]) -> dict[str, Any]:
    document = stand.sbom()
    change(document["files"])
    return document


def drop_file(files: list[dict[str, Any]]) -> None:
    files[:] = [one for one in files if TOOL not in one["fileName"]]
