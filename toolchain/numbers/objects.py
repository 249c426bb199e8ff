"""Code objects in a folder or an image, and a sample of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain.emulator.metadata import read_metadata
from toolchain.errors import ConfigError, EmulationError
from toolchain.oci.image import read_layers
from toolchain.oci.layer_files import read_members
from toolchain.oci.layout import Layout
from toolchain.oci.place import open_place
from toolchain.oci.reference import parse

SUFFIX = ".hsaco"


@dataclass(frozen=True)
class Object:
    """A code object, its name below its folder, and what its JSON says; empty where that cannot be read."""

    path: Path
    name: str
    gpu: str
    kernel: str


def objects_in(folder: Path, gpus: Sequence[str] = (), *, label: str = "") -> list[Object]:
    """The code objects of a folder, sorted by name. Empty ones, which mark kernels as known bad, are left out.

    Args:
        gpus: only those for these; all by default.
        label: what messages call the folder.

    Raises:
        ConfigError: there is none.
    """
    found = []
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        if path.is_symlink() or not path.is_file() or not path.stat().st_size:
            continue
        try:
            metadata = read_metadata(path)
            gpu, kernel = metadata.gpu, f"{metadata.source}:{metadata.kernel}"
        except EmulationError:
            gpu = kernel = ""  # the check says what is wrong with it
        if not gpus or gpu in gpus:
            found.append(Object(path, str(path.relative_to(folder)), gpu, kernel))
    if not found:
        wanted = f" for {', '.join(gpus)}" if gpus else ""
        raise ConfigError(
            f"{label or folder} holds no code objects{wanted}",
            why=f"none ends in {SUFFIX}",
            fix="name a folder or an image that holds them; AOTriton's images hold archives, which are not read",
        )
    return found


def unpack_image(ref: str, folder: Path) -> None:
    """Bring the code objects of an image, and what lies beside them as JSON, into a folder.

    Args:
        ref: an image in a registry or a layout, as `publish` and `verify` take it.

    Raises:
        ConfigError: it is no reference.
        RegistryError: there is no such image, or it is an index of several.
    """
    layout = Layout(folder / "layout").ensure()
    with open_place(parse(ref)) as place:
        manifest = place.fetch(layout)
    for layer in read_layers(layout, manifest):
        blob = layout.blob(layer.descriptor.digest)
        for name, content in read_members(blob, layer.descriptor.media_type, (SUFFIX, ".json")):
            target = folder / "objects" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def sample(objects: Sequence[Object], count: int | None, seed: int) -> list[Object]:
    """A random sample, in the order of the objects.

    Each GPU and function is taken in turn, so that a small sample shows something of all.

    Args:
        count: how many; None for all.
    """
    if count is None or count >= len(objects):
        return list(objects)
    draw = random.Random(seed)  # noqa: S311 - a sample that can be drawn again
    queues: dict[tuple[str, str], list[Object]] = {}
    for each in objects:
        queues.setdefault((each.gpu, each.kernel), []).append(each)
    for queue in queues.values():
        draw.shuffle(queue)
    chosen: set[Path] = set()
    while len(chosen) < count:
        for queue in queues.values():
            if queue and len(chosen) < count:
                chosen.add(queue.pop().path)
    return [each for each in objects if each.path in chosen]
