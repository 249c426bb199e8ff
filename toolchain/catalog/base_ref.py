"""The values of `--base`: a recipe, or a local image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolchain.oci.reference import LayoutRef

_LOCAL = "oci:"


@dataclass(frozen=True)
class BaseRef:
    """The base image that builds run in, as given by `--base`.

    Args:
        recipe: the name of a recipe, even if no such recipe exists; empty for a local image.
        image: the reference to a local image; None for a recipe.
        text: the value of `--base` for a local image; otherwise empty.
    """

    recipe: str = ""
    image: LayoutRef | None = None
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text or (self.recipe if self.image is None else str(self.image))


def parse_base(text: str) -> BaseRef:
    """Parse `--base`: a recipe, or `oci:DIR[:TAG|@DIGEST]`; raise a ConfigError if a reference is malformed."""
    if not text.startswith(_LOCAL):
        return BaseRef(recipe=text)
    from toolchain.oci.reference import LayoutRef, parse  # noqa: PLC0415 - most bases are recipes

    image = parse(text)
    return BaseRef(image=image if isinstance(image, LayoutRef) else None, text=text)
