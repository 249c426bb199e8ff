"""The image that a base's recipe starts from: pulled by digest from its registry once, and kept in the cache."""

from __future__ import annotations

from toolchain.catalog.bases import DATA, BaseRecipe
from toolchain.core import console
from toolchain.core.errors import DigestError, RegistryError, UnreachableError, UnsupportedError
from toolchain.oci.descriptor import Descriptor, Platform
from toolchain.oci.image import platform_of
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import children_of, parse_object
from toolchain.oci.reference import Target, parse
from toolchain.stages.stage import Built, Planned, Workspace


def pull_start(recipe: BaseRecipe, workspace: Workspace) -> Built:
    """Return the image that `recipe` starts from, for its architecture. No registry is asked if it is in the cache."""
    ref = parse(recipe.image)
    assert ref.digest is not None  # noqa: S101 - bases.py accepts no other form
    layout = Layout(workspace.cache.images).ensure()
    tag = f"start-{recipe.name}-{recipe.arch}.{ref.digest.removeprefix('sha256:')[:12]}"
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
    from toolchain.oci.places import open_place  # noqa: PLC0415 - the HTTP library, and most bases are here

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
            f"the image that base {recipe.name} starts from is for {platform}",
            why=f"{recipe.image} is what {DATA} names for {recipe.arch}",
            fix=f"name the image for {recipe.arch} there",
        )
