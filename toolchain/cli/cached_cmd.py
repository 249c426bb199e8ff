"""`kernels cached`: whether a cache of compiled kernels serves an image, before anything is called."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain import console
from toolchain.cli import options as o
from toolchain.cli.images_cmd import cache_of, is_image_name
from toolchain.errors import ConfigError, ContractError

if TYPE_CHECKING:
    from toolchain.cache import Cache
    from toolchain.oci.descriptor import Descriptor
    from toolchain.oci.layout import Layout

CacheArg = Annotated[str, typer.Argument(metavar="CACHE", help="A finished image's name, oci:DIR[:TAG], or REGISTRY/…")]
InOpt = Annotated[str | None, typer.Option("--in", metavar="IMAGE", help="Where the kernels are wanted, alike.")]
EnvOpt = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Set there besides; again for each.")
]
CallOpt = Annotated[
    list[str] | None,
    typer.Option("--call", metavar="NAME=VALUE,…", help="Arguments that must be in its list; again for each call."),
]


def kernels_cached(
    cached: CacheArg,
    in_: InOpt = None,
    env: EnvOpt = None,
    call: CallOpt = None,
    cache: o.CacheOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Check a cache of compiled kernels, and say whether Triton in an image would find them.

    Ends with 4 for another Triton and 11 for one at another path. A variable that counts, or another folder of the
    cache, makes it 3, and a call that is not in the list 7.
    """
    from toolchain.examine.triton_cache import read_cache, require_call, require_hit  # noqa: PLC0415

    if env and in_ is None:
        raise ConfigError("--env is for a container of --in", fix="--in IMAGE")
    home, calls = cache_of(cache), [_pairs(text.split(","), "--call") for text in call or ()]
    with tempfile.TemporaryDirectory(prefix="toolchain-cached-") as scratch, contextlib.ExitStack() as stack:
        found = read_cache(*stack.enter_context(_image(cached, home, Path(scratch, "cache"))))
        if in_ is not None:
            layout, image = stack.enter_context(_image(in_, home, Path(scratch, "image")))
            require_hit(found, _asked(home, layout, image, _pairs(env or (), "--env")))
        served = [len(require_call(found, wanted)) for wanted in calls]
    if json_:
        console.data({**found.as_json(), "in": in_, "found": served})
        return
    where = f", found by Triton in {in_}" if in_ is not None else ""
    console.text(f"{found.entries} kernels for {', '.join(found.targets)}, {console.size(found.size)}{where}")
    console.text(f"for {len(found.calls)} calls; others are compiled when they come")


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [name for name, between, _ in pairs if not name or not between]:
        raise ConfigError(f"{option} has no NAME=VALUE in {wrong[0]!r}", fix=f"{option} NAME=VALUE")
    return {name: value for name, _, value in pairs}


@contextlib.contextmanager
def _image(text: str, cache: Cache, scratch: Path) -> Iterator[tuple[Layout, Descriptor]]:
    """The one image that a name or reference means, and a layout that holds it."""
    from toolchain.build.images import one_image  # noqa: PLC0415 - brings cryptography in
    from toolchain.oci import descriptor as media  # noqa: PLC0415
    from toolchain.oci.layout import Layout  # noqa: PLC0415
    from toolchain.oci.place import open_place  # noqa: PLC0415
    from toolchain.oci.reference import parse  # noqa: PLC0415

    if is_image_name(text):
        layout = Layout(cache.images)
        yield layout, layout.resolve(one_image(cache, text).manifest)
        return
    with open_place(parse(text)) as place:
        layout, named = place.images(scratch)
        images = {
            one.digest: one for row in named for one in layout.walk(row.image)
            if one.media_type in media.IMAGES and layout.children(one)[0].media_type != media.EMPTY
        }  # fmt: skip
        if len(images) != 1:
            raise ConfigError(f"{text} names {len(images)} images", fix="name one by its tag or digest")
        yield layout, next(iter(images.values()))


def _asked(cache: Cache, layout: Layout, image: Descriptor, env: dict[str, str]) -> dict[str, Any]:
    """What Triton says of itself in a fresh container."""
    from toolchain import recipe, strict_json  # noqa: PLC0415
    from toolchain.engine.buildah import Buildah  # noqa: PLC0415
    from toolchain.stages.triton_cache import RECIPE  # noqa: PLC0415

    engine = Buildah(cache)
    name = engine.ensure_image("cached-check", layout.root, image.digest)
    try:
        mounts = [recipe.Mount(recipe.root() / RECIPE, "/recipe")]
        # A GPU and a module are not asked for where there is no call.
        argv = ["python3", "/recipe/calls.py", "gfx942", "65536", "-", "/dev/null"]
        home = {"PYTHONDONTWRITEBYTECODE": "1"}
        done = engine.run(name, argv, mounts=mounts, env={**home, **env}, capture=True, check=False)
    finally:
        engine.forget_image(name)
    try:
        found: dict[str, Any] = strict_json.read(done.stdout.splitlines()[0])
    except (ValueError, IndexError):
        raise ContractError(
            "no Triton can be imported in the image", why="\n".join(done.tail), fix="name an image that has one"
        ) from None
    return found
