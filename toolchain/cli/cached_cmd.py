"""The verb `kernels cached`, which checks whether Triton in an image would use a cache of compiled kernels."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain.cli import options as o
from toolchain.cli.images_cmd import is_image_name
from toolchain.core import console
from toolchain.core.cache import cache_of
from toolchain.core.errors import ConfigError, ContractError
from toolchain.core.locks import in_use
from toolchain.stages.triton_wheel import SITE

if TYPE_CHECKING:
    from toolchain.core.cache import Cache
    from toolchain.oci.descriptor import Descriptor
    from toolchain.oci.layout import Layout

CacheArg = Annotated[
    str,
    typer.Argument(
        metavar="CACHE", help="Image with the cache: name of a finished image, oci:DIR[:TAG], or REGISTRY/…"
    ),
]
InOpt = Annotated[
    str | None, typer.Option("--in", metavar="IMAGE", help="Image whose Triton would use the cache, in the same forms.")
]
EnvOpt = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="Environment variable to set in IMAGE. Repeatable."),
]


def kernels_cached(
    cached: CacheArg,
    in_: InOpt = None,
    env: EnvOpt = None,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Check a cache of compiled kernels, and whether Triton in an image would find them.

    The exit code is 4 if the cache was made with a Triton that differs from the image's, 11 if that Triton had a path
    that differs from the path in the image, and 3 if Triton in the image looks for its cache in a folder for which the
    cache was not made, or if an environment variable that is part of a kernel's key is set.
    """
    from toolchain.kernels.cache_image import read_cache, require_hit  # noqa: PLC0415

    if env and in_ is None:
        raise ConfigError("option-needs-option", "--env needs --in", fix="add --in IMAGE")
    home = cache_of(cache)
    with tempfile.TemporaryDirectory(prefix="toolchain-cached-") as scratch, contextlib.ExitStack() as stack:
        stack.enter_context(in_use(home, make=in_ is not None))
        kernels = read_cache(*stack.enter_context(_image(cached, home, Path(scratch, "cache"))))
        if in_ is not None:
            layout, image = stack.enter_context(_image(in_, home, Path(scratch, "image")))
            require_hit(kernels, _triton_in(home, layout, image, _variables(env or ())))
    if json_:
        console.data({**kernels.as_json(), "in": in_})
        return
    where = f", found by Triton in {in_}" if in_ is not None else ""
    console.text(f"{kernels.entries} kernels for {', '.join(kernels.targets)}, {console.size(kernels.size)}{where}")
    console.text(f"for {len(kernels.calls)} calls; kernels of other calls are compiled at run time")


def _variables(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [name for name, between, _ in pairs if not name or not between]:
        raise ConfigError("not-name-value", f"--env {wrong[0]!r} is not NAME=VALUE", fix="use --env NAME=VALUE")
    names = [name for name, _, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError("option-twice", f"--env gives {twice[0]} twice", fix="remove one of them")
    return {name: value for name, _, value in pairs}


@contextlib.contextmanager
def _image(text: str, cache: Cache, scratch: Path) -> Iterator[tuple[Layout, Descriptor]]:
    """Yield the layout and the descriptor of the image that a name or reference identifies."""
    from toolchain.oci.layout import Layout  # noqa: PLC0415
    from toolchain.oci.places import open_place  # noqa: PLC0415
    from toolchain.oci.reference import parse  # noqa: PLC0415
    from toolchain.pipeline.finished_images import one_image  # noqa: PLC0415 - `--help` does not need it

    if is_image_name(text):
        layout = Layout(cache.images)
        yield layout, layout.resolve(one_image(cache, text).manifest)
        return
    with open_place(parse(text)) as place:
        layout, named = place.images(scratch)
        images = {image.digest: image for row in named for image in layout.images_below(row.image)}
        if len(images) != 1:
            raise ConfigError(
                "several-images", f"{text} names {len(images)} images", fix="choose one image by tag or digest"
            )
        yield layout, next(iter(images.values()))


def _triton_in(cache: Cache, layout: Layout, image: Descriptor, env: dict[str, str]) -> dict[str, Any]:
    """Return facts about the Triton in an image, such as its path, read in a new container.

    Raise a ContractError if Triton cannot be imported there.
    """
    from toolchain.core import recipe, strict_json  # noqa: PLC0415
    from toolchain.engine.buildah import Buildah  # noqa: PLC0415
    from toolchain.stages.triton_cache import RECIPE  # noqa: PLC0415

    engine = Buildah(cache)
    # Another invocation may check a cache in the same image.
    name = engine.ensure_image(f"cached-check-{os.getpid()}", layout.root, image.digest)
    try:
        mounts = [recipe.Mount(recipe.root() / RECIPE, "/recipe")]
        # The first line of the output does not depend on the GPU, the memory limit or the module's name.
        argv = ["python3", "/recipe/calls.py", "gfx942", "65536", "-", "/dev/null"]
        home = {"PYTHONDONTWRITEBYTECODE": "1"}
        done = engine.run(name, argv, mounts=mounts, env={**home, **env}, capture=True, check=False)
    finally:
        engine.forget_image(name)
    try:
        facts: dict[str, Any] = strict_json.read(done.stdout.splitlines()[0])
    except (ValueError, IndexError):
        raise ContractError(
            "triton-not-importable",
            "Triton cannot be imported in the image",
            why="\n".join(done.tail),
            fix=f"use an image with a Triton wheel, or give the path of its Triton: --env PYTHONPATH={SITE}",
        ) from None
    return facts
