"""Make the lines of a Containerfile that use an image."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Literal

from toolchain.catalog.codegen import codegens
from toolchain.core.console import one_line
from toolchain.core.errors import EngineError, UntrustedError
from toolchain.kernels.cache_entries import FOLDER as CACHE
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import are_files
from toolchain.oci.image import labels_of
from toolchain.oci.labels import CACHE_MOUNT, INPUT_DIGEST, PARTIAL, TITLE
from toolchain.oci.layer_files import layer_paths, read_member
from toolchain.oci.layout import Layout
from toolchain.oci.reference import TAG, Target

Kind = Literal["llvm", "llvm-part", "aotriton", "triton", "kernels", "wheels", "triton-cache", "base", "unknown"]
_NAME = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*")
# These patterns match the paths in a layer that identify the kind of an image. The group in each pattern matches the
# folder that becomes `Use.prefix`.
_PREFIX = r"((?:[A-Za-z0-9._+-]+/)*[A-Za-z0-9._+-]+)"
_SIGNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("llvm", re.compile(rf"{_PREFIX}/lib(?:64)?/cmake/(?:mlir/MLIR|llvm/LLVM)Config\.cmake")),
    ("aotriton", re.compile(rf"{_PREFIX}/lib(?:64)?/cmake/aotriton/[A-Za-z-]*[cC]onfig\.cmake")),
    ("triton", re.compile(rf"{_PREFIX}/triton-[A-Za-z0-9._+]+\.dist-info/WHEEL")),
    ("kernels", re.compile(r"(usr/lib64/flash-attn-kernels)/.*")),
    ("wheels", re.compile(r"(usr/lib/toolchain/wheels)/.*")),
    ("wheels", re.compile(r"(usr/share/toolchain)/wheels\.json")),
    ("triton-cache", re.compile(rf"({CACHE})/.*")),
)
_PART = re.compile(r"(usr/lib64/llvm-triton-[A-Za-z0-9._-]+)/.*")
# This pattern matches the prefix of an LLVM that only generates code for a GPU. Triton cannot be built with such an
# LLVM.
_FOR_GPU = re.compile("|".join(rf"(?:^|/){re.escape(codegen.llvm)}-[^/]*$" for codegen in codegens()))
_SYSTEM = re.compile(r"(usr/lib|etc)/os-release")
_RELEASE = "ENV TRITON_APPEND_CMAKE_ARGS=-DCMAKE_BUILD_TYPE=Release"


@dataclass(frozen=True)
class Use:
    """The lines of a Containerfile that use an image.

    Args:
        kind: the kind of the content, as far as the files and labels of the image show it.
        source: the image that `COPY --from` or `FROM` names; empty if the reference cannot be used in a Containerfile.
        prefix: the absolute path of the folder with the content; empty for the kinds `base` and `unknown`.
        lines: the lines of a Containerfile, including comments.
        unknown: descriptions of the facts that could not be found out, or the reason why the kind is `unknown`.
    """

    kind: Kind
    source: str
    prefix: str
    lines: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "from": self.source,
            "prefix": self.prefix,
            "lines": list(self.lines),
            "unknown": list(self.unknown),
        }

    def text(self) -> Iterator[str]:
        """Yield the lines, and a comment for each unknown fact."""
        yield from self.lines
        yield from (f"# not known: {one_line(gap)}" for gap in self.unknown)


@dataclass(frozen=True)
class _Content:
    kind: Kind
    prefix: str = ""
    wheel: str = ""
    why: str = ""
    own: bool = False
    mount: str = ""


def use_of(layout: Layout, top: Descriptor, where: Target, *, name: str = "") -> Use:
    """Return the lines of a Containerfile that use an image or index.

    The result has the kind `unknown`, and the reason in its field `unknown`, if the reference cannot be used in a
    Containerfile, if the content is not an image, if a layer cannot be read, or if no path in the image identifies a
    kind.

    Args:
        layout: the layout that contains the image or index.
        where: the reference by which consumers get the image.
        name: the name of an image in a layout folder; empty to use its title or tag.
    """
    if why := _pasteable(where):
        return Use("unknown", "", "", (), (why,))
    images = layout.images_below(top)
    if top.media_type in media.IMAGES and are_files(layout.read_json(top)):
        return Use("unknown", str(where), "", (), (f"it is not an image, but plain files; try: oras pull {where}",))
    if not images:
        return Use("unknown", str(where), "", (), ("it is not an image, but another kind of artifact",))
    config, *layers = layout.children(images[0])
    labels = labels_of(layout.read_json(config))
    own = INPUT_DIGEST in labels
    # Images of this tool have their content in the topmost layer, while other images may have it in any layer.
    content = replace(_content(layout, layers[-1:] if own else layers[::-1], own=own), own=own)
    mount = labels.get(CACHE_MOUNT, "")
    content = replace(content, mount=mount if re.fullmatch(r"(/[A-Za-z0-9._+-]+)+", mount) else "")
    if content.kind == "llvm" and labels.get(PARTIAL):  # a part of LLVM may look like a whole LLVM
        content = replace(content, kind="llvm-part")
    names = (name, labels.get(TITLE, ""), where.tag or "")  # the title of a base, such as `base debian13`, is no name
    source, before = _source(where, top, next(filter(_NAME.fullmatch, names), "image"))
    lines = {
        "llvm": _llvm, "llvm-part": _part, "aotriton": _aotriton, "triton": _triton, "wheels": _whole, "base": _whole,
        "triton-cache": _cache,
    }.get(content.kind, _copy)  # fmt: skip
    unknown = list(_unknown(content))
    if labels.get(PARTIAL):
        before = (*before, f"# Not whole: {one_line(labels[PARTIAL])}")
    own_lines = tuple(lines(source, content)) if content.kind != "unknown" else (f"# COPY --from={source} PATH PATH",)
    prefix = f"/{content.prefix}" if content.prefix else ""
    return Use(content.kind, source, prefix, (*before, *own_lines), tuple(unknown))


def _content(layout: Layout, layers: Iterable[Descriptor], *, own: bool) -> _Content:
    system, part = False, ""
    for layer in layers:
        path = layout.blob(layer.digest)
        try:
            for file in layer_paths(path, layer.media_type):
                for kind, sign in _SIGNS:
                    if match := sign.fullmatch(file):
                        wheel = _wheel(path, layer.media_type, file) if kind == "triton" else ""
                        if kind == "llvm" and _FOR_GPU.search(match[1]):
                            return _Content("llvm-part", match[1])
                        return _Content(kind, match[1], wheel)
                if _SYSTEM.fullmatch(file):
                    if own:  # the image is a base, even if a later path belongs to the distribution's LLVM
                        return _Content("base")
                    system = True
                if not part and (match := _PART.fullmatch(file)):
                    part = match[1]
        except (UntrustedError, EngineError) as error:
            return _Content("unknown", why=f"its content: {error.what} ({error.why})")
    if part:
        return _Content("llvm-part", part)
    return _Content("base") if system else _Content("unknown", why="its content: no known kind of file was found")


def _wheel(path: Path, media_type: str, file: str) -> str:
    """Return the file name of the wheel that was unpacked into the image; an empty string if it has no valid tags."""
    match = re.search(r"([^/]+)\.dist-info/WHEEL$", file)
    content = read_member(path, media_type, file) or b""
    tags = HeaderParser().parsestr(content.decode("utf-8", "replace")).get_all("Tag") or []
    parts = [tag.split("-") for tag in tags if re.fullmatch(r"[a-z0-9_]+-[a-z0-9_]+-[A-Za-z0-9_]+", tag)]
    if match is None or not parts:
        return ""
    columns = [".".join(dict.fromkeys(row[at] for row in parts)) for at in range(3)]
    return f"{match[1]}-{'-'.join(columns)}.whl"


def _pasteable(where: Target) -> str:
    """Return why a reference cannot be used in a Containerfile; an empty string if it can."""
    if where.path is None:
        return ""  # a parsed reference to a registry is always safe
    if where.tag is not None and not TAG.fullmatch(where.tag):
        return "how to name it: its tag is not valid in a reference"
    folder = str(where.path.absolute())
    if not folder.isprintable() or ":" in folder:
        return (
            "how to name it: the path of the folder contains a colon, which separates the tag, or a special character"
        )
    return ""


def _source(where: Target, image: Descriptor, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the image that `COPY --from` or `FROM` names, and the comments that explain it."""
    if where.path is None:
        return str(where.at(digest=image.digest)), ()
    local, folder = f"localhost/{name}:latest", where.path.absolute()
    lines = [
        f"# The image is in the folder {folder} with the digest {image.digest}.",
        "# BuildKit can read it from there:",
        f"#   docker buildx build --build-context {shlex.quote(f'{local}=oci-layout://{folder}@{image.digest}')} .",
    ]
    if where.tag:
        lines += [
            "# For other builders, copy it into the engine first (buildah and podman, or docker):",
            f"#   skopeo copy {shlex.quote(f'oci:{folder}:{where.tag}')} containers-storage:{local}",
            f"#   skopeo copy {shlex.quote(f'oci:{folder}:{where.tag}')} docker-daemon:{local}",
        ]
    return local, tuple(lines)


def _copy(source: str, content: _Content) -> Iterator[str]:
    yield f"COPY --from={source} /{content.prefix} /{content.prefix}"


def _llvm(source: str, content: _Content) -> Iterator[str]:
    yield from _copy(source, content)
    yield f"ENV LLVM_SYSPATH=/{content.prefix}"
    if content.own:
        yield "# This LLVM has no assertions, so Triton needs a build type without assertions too."
    else:
        yield "# If this LLVM has no assertions, Triton needs a build type without assertions too:"
    yield _RELEASE if content.own else f"# {_RELEASE}"
    yield "# Then build Triton in its source tree: RUN pip install -v ."


def _aotriton(source: str, content: _Content) -> Iterator[str]:
    yield from _copy(source, content)
    yield f"ENV AOTRITON_INSTALLED_PREFIX=/{content.prefix}"
    yield f"# For CMake: -DCMAKE_PREFIX_PATH=/{content.prefix}"


def _triton(source: str, content: _Content) -> Iterator[str]:
    if not content.wheel:
        yield from _copy(source, content)
        yield f"ENV PYTHONPATH=/{content.prefix}"
        return
    yield f"# The image contains the unpacked {content.wheel}. These lines pack and install it."
    yield f"RUN --mount=type=bind,from={source},source=/{content.prefix},target=/mnt/triton \\"
    yield f"    cd /mnt/triton && python3 -m zipfile -c /tmp/{content.wheel} * && \\"
    yield f"    python3 -m pip install --no-deps /tmp/{content.wheel} && rm /tmp/{content.wheel}"


def _whole(source: str, _: _Content) -> Iterator[str]:
    yield f"FROM {source}"


def _cache(source: str, content: _Content) -> Iterator[str]:
    if content.mount:
        yield f"COPY --from={source} /{content.prefix}/ {content.mount}/"
        yield f"ENV TRITON_CACHE_DIR={content.mount}"
        yield "# The folder must be writable. To check that Triton finds the kernels: toolchain kernels cached"
    else:
        yield f"# COPY --from={source} /{content.prefix}/ PATH/"


def _part(source: str, content: _Content) -> Iterator[str]:
    yield from _copy(source, content)
    yield "# This is a part of LLVM, with which Triton cannot be built."


def _unknown(content: _Content) -> Iterator[str]:
    if content.why:
        yield content.why
    if content.kind == "triton-cache" and not content.mount:
        yield "the path at which it must be mounted: its files contain absolute paths, and no label names the path"
    if not content.own:
        yield "how it was built: it has no label of this tool"
