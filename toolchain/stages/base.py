"""Make the base: the image of an operating system with compilers.

Depending on the request, mmdebstrap installs packages from a mirror, a Containerfile extends the distribution's own
image, or the user's local image is copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from toolchain.catalog.bases import DATA, BaseRecipe, base_recipe
from toolchain.core import console, strict_json
from toolchain.core.deb822 import stanzas
from toolchain.core.digest import sha256_bytes, sha256_json, write_atomically
from toolchain.core.errors import (
    BuildError,
    DigestError,
    RegistryError,
    SourceError,
    UnreachableError,
    UnsupportedError,
)
from toolchain.core.filesystem import read_built
from toolchain.core.recipe import Recipe
from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.image import platform_of
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import children_of, parse_object
from toolchain.oci.reference import Target, parse
from toolchain.request.model import Request
from toolchain.stages.inputs import common_inputs
from toolchain.stages.mmdebstrap import content_options, write_layer
from toolchain.stages.stage import Built, ImageParts, LayerContent, Planned, Workspace

# Estimates in bytes: the root file system, its packages and its layer. A base by a Containerfile also needs the image
# that it extends, and copies in the engine.
_DISK = 3_000_000_000
_DISK_OF_CONTAINERFILE = 5_000_000_000


@dataclass(frozen=True, kw_only=True)
class LocalImage:
    """A local base image: the layout that contains it, and its manifest for the requested architecture."""

    root: Path
    digest: str
    manifest: Mapping[str, Any]
    media_type: str

    @property
    def name(self) -> str:
        """The part of image names that identifies the base."""
        return _local_name(self.digest)


@dataclass(frozen=True)
class BaseStage:
    """The stage that makes the base from packages, a Containerfile or a local image.

    The packages of a base that is made from a recipe are inputs, so the base's input digest is unknown until the
    packages are resolved.
    """

    name: str = "base"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[BaseRecipe | LocalImage]:
        if request.base.image is not None:
            image = local_image(request)
            inputs = {**common_inputs(self.name, request), "image": image.digest}
            return Planned(name=self.name, image=f"toolchain-base-{image.name}", inputs=inputs, details=image)
        recipe = base_recipe(request.base.recipe, request.arch[0])
        lock = read_packages(request.cache.package_list("base", recipe.name, recipe.arch), recipe_digest(recipe))
        return Planned(
            name=self.name,
            image=f"toolchain-base-{recipe.name}",
            inputs=None if lock is None else package_inputs("base", recipe.name, lock, request),
            disk=_DISK_OF_CONTAINERFILE if recipe.kind == "containerfile" else _DISK,
            engine=recipe.kind == "containerfile",
            online=True,
            details=recipe,
        )

    def build(
        self, planned: Planned[BaseRecipe | LocalImage], dependencies: Mapping[str, Built], workspace: Workspace
    ) -> Built:
        recipe = planned.details
        if isinstance(recipe, LocalImage):
            return _take_local(planned, recipe, workspace)
        if recipe.kind == "containerfile":
            return _from_containerfile(planned, recipe, workspace)
        work = workspace.work()
        packages = work / "packages"
        workspace.step("packages")
        layer = write_layer(recipe, packages, workspace)
        lock = {"recipe": recipe_digest(recipe), "packages": parse_packages(packages.read_text())}
        resolved = replace(planned, inputs=package_inputs("base", recipe.name, lock, workspace.request))
        built = workspace.finish(
            resolved,
            LayerContent(layer=layer, compress=False),
            ImageParts(title=recipe.name),
            facts={"packages": len(lock["packages"])},
        )
        write_packages(workspace.cache.package_list("base", recipe.name, recipe.arch), lock)
        return built


def read_packages(path: Path, recipe: str) -> dict[str, Any] | None:
    """Read the resolved packages of a recipe: `{"recipe": digest, "packages": rows}`.

    Return None if the file is missing or malformed, or if the digest in it is not `recipe`.
    """
    try:
        lock = strict_json.read(path.read_bytes(), path.name)
    except (OSError, ValueError):
        return None
    fits = isinstance(lock, dict) and lock.get("recipe") == recipe and isinstance(lock.get("packages"), list)
    return lock if fits else None


def write_packages(path: Path, lock: Mapping[str, Any]) -> None:
    """Write the resolved packages of a recipe; see `read_packages`."""
    write_atomically(path, json.dumps(lock, indent=1).encode())


def recipe_digest(recipe: BaseRecipe) -> str:
    """Return the digest of everything that determines the content of the base, except the versions of its packages."""
    inputs = recipe.as_inputs()
    if recipe.kind == "mmdebstrap":
        inputs["options"] = content_options(recipe)
    return sha256_json(inputs)


def parse_packages(text: str) -> list[dict[str, str]]:
    """Return the name, version, architecture and SHA-256 of each package in the output of apt-cache or dpkg-deb.

    The result is sorted. BuildError is raised if the output lists no package.
    """
    keys = {"package": "name", "version": "version", "architecture": "architecture", "sha256": "sha256"}
    named = ({keys[key]: value for key, value in stanza.items() if key in keys} for stanza in stanzas(text))
    rows = [row for row in named if row]
    if not rows:
        raise BuildError(
            "base-packages-empty",
            "the list of the installed or unpacked packages is empty",
            why="apt-cache or dpkg-deb listed no package",
            fix="run the command again; if the error persists, check that the mirror has complete package lists",
        )
    return sorted(rows, key=lambda row: (row["name"], row.get("architecture", "")))


def package_inputs(stage: str, name: str, lock: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """Return the inputs of a stage that is made from packages.

    Args:
        name: the name of the base; for a stage in `stages.unpacked`, the name of its content.
        lock: the resolved packages; see `read_packages`.
    """
    return {**common_inputs(stage, request), "base": name, "packages": sha256_json(dict(lock))}


def _from_containerfile(planned: Planned, recipe: BaseRecipe, workspace: Workspace) -> Built:
    if workspace.request.offline:
        raise UnreachableError(
            "offline-missing",
            f"base {recipe.name} is not in the cache, and --offline forbids the download of its parts",
            why=f"it starts from the image {recipe.image} and installs packages",
            fix="run the command once without --offline, or import a bundle",
        )
    start = pull_start(recipe, workspace)
    tree = workspace.build(
        Recipe(
            name=f"base-{recipe.name}", containerfile=recipe.containerfile, base=workspace.image(start), network=True
        )
    )
    listing = tree / "toolchain-packages"
    lock = {"recipe": recipe_digest(recipe), "packages": sorted(read_built(tree, listing.name).split())}
    listing.unlink()
    resolved = replace(planned, inputs=package_inputs("base", recipe.name, lock, workspace.request))
    facts = {"packages": len(lock["packages"]), "start": {"image": recipe.image, "manifest": start.manifest}}
    content = LayerContent(tree=tree, normalise=False, compress=False)
    built = workspace.finish(resolved, content, ImageParts(title=recipe.name), facts=facts)
    write_packages(workspace.cache.package_list("base", recipe.name, recipe.arch), lock)
    return built


def local_image(request: Request) -> LocalImage:
    """Return the local base image that the request names, for the architecture of the request.

    RegistryError is raised if the layout lacks the named image, or if the request gives neither a tag nor a digest and
    the layout does not contain exactly one image. UnsupportedError is raised if there is no image for the
    architecture.
    """
    from toolchain.oci.layout_place import resolve  # noqa: PLC0415 - most bases are recipes

    assert request.base.image is not None  # noqa: S101 - the caller has checked it
    layout = Layout(request.base.image.path)
    top = resolve(request.base.image)
    for image in layout.images_below(top):
        config = layout.read_json(layout.children(image)[0])
        if config.get("architecture") == request.arch[0]:
            manifest = layout.read_json(image)
            return LocalImage(root=layout.root, digest=image.digest, manifest=manifest, media_type=image.media_type)
    raise UnsupportedError(
        "base-not-for-architecture",
        f"{request.base} contains no image for {request.arch[0]}",
        fix=f"name an image for {request.arch[0]}, or choose another --arch",
    )


def label_of(inputs: Mapping[str, Any]) -> str:
    """Return the part of image names that identifies a base, from the inputs of the base."""
    return str(inputs.get("base") or _local_name(str(inputs["image"])))


def _local_name(digest: str) -> str:
    return f"local-{digest.removeprefix('sha256:')[:8]}"


def _take_local(planned: Planned, image: LocalImage, workspace: Workspace) -> Built:
    """Copy the user's image into the layout in the cache, and return the finished stage."""
    layout, own = Layout(image.root), Layout(workspace.cache.images).ensure()
    for part in (image.manifest["config"], *image.manifest["layers"]):
        # Blobs that were copied earlier are not read again, because every build on the image calls this function.
        if not own.has(part["digest"]) or own.blob(part["digest"]).stat().st_size != part["size"]:
            own.put_file(layout.blob(part["digest"]), digest=part["digest"])
    content = layout.blob(image.digest).read_bytes()
    if sha256_bytes(content) != image.digest:
        raise SourceError(
            "base-image-damaged",
            f"{workspace.request.base} is damaged",
            why=f"the digest of its manifest is not {image.digest}",
            fix="make or copy that image again",
        )
    own.put_bytes(content, media_type=image.media_type)
    digest = planned.input_digest
    assert digest is not None  # noqa: S101 - the digest of a local image is known
    return Built(planned=planned, input_digest=digest, manifest=image.digest, layers=tuple(image.manifest["layers"]))


def pull_start(recipe: BaseRecipe, workspace: Workspace) -> Built:
    """Return the image that a recipe's Containerfile extends; pull it if it is not complete in the cache."""
    ref = parse(recipe.image)
    layout = Layout(workspace.cache.images).ensure()
    tag = f"start-{recipe.name}-{recipe.arch}.{str(ref.digest).removeprefix('sha256:')[:12]}"
    manifest = layout.refs().get(tag)
    if manifest is None or not _whole(layout, manifest):
        workspace.step("pull")
        manifest = _pull(recipe, ref, layout)
        layout.tag(manifest, tag)
    image = Planned(name="base", image=f"start-{recipe.name}", inputs={"image": recipe.image})
    return Built(planned=image, input_digest=str(image.input_digest), manifest=manifest.digest, layers=())


def _whole(layout: Layout, manifest: Descriptor) -> bool:
    if not layout.has(manifest.digest):
        return False
    return all(layout.has(part.digest) for part in layout.children(layout.resolve(manifest.digest)))


def _pull(recipe: BaseRecipe, ref: Target, layout: Layout) -> Descriptor:
    from toolchain.oci.places import open_place  # noqa: PLC0415 - most builds need no HTTP library

    try:
        with open_place(ref) as place:
            image, content = place.find(Platform("linux", recipe.arch))
            parts = children_of(parse_object(content, image.digest), image)
            console.note(f"base {recipe.name}: pulling {ref} ({console.size(sum(part.size for part in parts))})")
            place.fetch_below(image, content, layout)
    except (RegistryError, DigestError, UnreachableError) as error:
        error.what = f"base {recipe.name} cannot be pulled: {error.what}"
        error.fix = "\n".join(filter(None, (error.fix, _advice(recipe, error))))
        raise
    _require_arch(recipe, layout, image)
    return image


def _advice(recipe: BaseRecipe, error: Exception) -> str:
    alternative = "or name another base: --base debian13, or --base oci:DIR with your own image"
    if isinstance(error, UnreachableError):
        return f"check the network, and a proxy if there is one; {alternative}"
    return f"compare {recipe.image} in {DATA} with the registry (it was {recipe.tag} on {recipe.seen}); {alternative}"


def _require_arch(recipe: BaseRecipe, layout: Layout, manifest: Descriptor) -> None:
    config = layout.children(layout.resolve(manifest.digest))[0]
    platform = platform_of(layout.read_json(config))
    if platform.arch != recipe.arch:
        raise UnsupportedError(
            "base-image-platform",
            f"the image that base {recipe.name} starts from is for {platform}",
            why=f"{DATA} names {recipe.image} for {recipe.arch}",
            fix=f"correct {DATA}: name the image for {recipe.arch}",
        )
