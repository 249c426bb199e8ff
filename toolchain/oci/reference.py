"""Parse references to images in layout folders and registries."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeAlias
from urllib.parse import urlsplit

from toolchain.core.errors import ConfigError
from toolchain.core.home import expanded

TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?")
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# These are the schemes of local images that `skopeo copy` can copy into a layout folder.
_UNPACKED = ("oci-archive:", "docker-archive:", "docker-daemon:", "dir:")
OTHER_SCHEMES = ("docker://", "https://", "http://", *_UNPACKED)
_FORMS = "oci:DIR[:TAG] or REGISTRY[:PORT]/NS[/NAME][:TAG|@DIGEST]"


@dataclass(frozen=True)
class LayoutRef:
    """A layout folder or an image in it: `oci:DIR`, `oci:DIR:TAG` or `oci:DIR@sha256:…`."""

    path: Path
    tag: str | None = None
    digest: str | None = None
    remote: ClassVar[bool] = False

    def __str__(self) -> str:
        # Records and JSON need valid UTF-8, but a path may contain other bytes.
        path = os.fsencode(self.path).decode("utf-8", "backslashreplace")
        return f"oci:{path}{_suffix(self.tag, self.digest)}"

    def at(self, *, tag: str | None = None, digest: str | None = None) -> LayoutRef:
        """Return a reference to the same folder, with only the tag and digest that are given."""
        return replace(self, tag=tag, digest=digest)

    def image(self, name: str, tag: str = "") -> LayoutRef:
        """Return a reference to the image `name` in this folder; its tag is `NAME.TAG`, or `NAME` if `tag` is empty."""
        return self.at(tag=f"{name}.{tag}" if tag else name)


@dataclass(frozen=True)
class RegistryRef:
    """An image in a registry, or a namespace with several images."""

    host: str
    repository: str
    tag: str | None = None
    digest: str | None = None
    remote: ClassVar[bool] = True
    path: ClassVar[None] = None  # a repository has no folder

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}{_suffix(self.tag, self.digest)}"

    def at(self, *, tag: str | None = None, digest: str | None = None) -> RegistryRef:
        """Return a reference to the same repository, with only the tag and digest that are given."""
        return replace(self, tag=tag, digest=digest)

    def image(self, name: str, tag: str = "") -> RegistryRef:
        """Return a reference to the image `name`, a repository in this namespace; an empty `tag` means `latest`.

        ConfigError is raised if the name of the repository or the tag is not valid.
        """
        check_tag(tag or "latest")
        return RegistryRef(self.host, _repository(f"{self.repository}/{name}", f"{self}/{name}"), tag or "latest")


Target: TypeAlias = LayoutRef | RegistryRef


def _suffix(tag: str | None, digest: str | None) -> str:
    return (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")


def _repository(text: str, whole: str) -> str:
    for part in text.split("/"):
        if not _COMPONENT.fullmatch(part):
            fix = "use lower-case letters and digits, with single . _ - between them"
            if _COMPONENT.fullmatch(part.lower()):
                fix = f"write it in lower case: {whole.lower()}"
            raise _no_reference(whole, f"{part!r} cannot be part of a repository's name", fix)
    if len(text) > 255:
        raise ConfigError(
            "reference-too-long",
            f"the reference {whole[:60]!r}… is too long",
            why=f"the name of the repository has {len(text)} characters, and at most 255 are allowed",
            fix="shorten the name",
        )
    return text


def check_tag(tag: str) -> None:
    """Raise ConfigError if `tag` is not a valid tag in a registry."""
    if not TAG.fullmatch(tag):
        raise ConfigError(
            "not-a-tag",
            f"{tag!r} is not a valid tag",
            why="a tag has at most 128 letters, digits, . _ and -, and does not begin with . or -",
            fix="name another tag",
        )


def _no_reference(text: str, why: str, fix: str) -> ConfigError:
    return ConfigError("not-a-reference", f"{text!r} is not a valid reference", why=why, fix=fix)


def _digest(text: str, whole: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise _no_reference(whole, f"{text!r} is not a valid digest", "give sha256: and 64 hexadecimal digits")
    return text


def parse(text: str) -> Target:
    """Parse a reference to an image, a layout folder or a namespace; raise ConfigError if it is not valid.

    In `oci:DIR:TAG`, the text after the last colon is the tag if it contains no slash. So a folder with a colon in its
    last component needs a slash at its end (`oci:/a:b/`).
    """
    if text.startswith("oci:"):
        return _layout(text)
    for scheme in OTHER_SCHEMES:
        if text.startswith(scheme):
            fix = f"use {_FORMS}"
            if scheme in _UNPACKED:
                fix = f"copy it into a folder with `skopeo copy {shlex.quote(text)} oci:DIR`, and give oci:DIR"
            raise _no_reference(text, f"{scheme} is not supported", fix)
    host, slash, rest = text.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost") or not _is_host(host):
        fix = f"for this folder use oci:{text}" if os.path.isfile(f"{text}/oci-layout") else f"use {_FORMS}"  # noqa: PTH113
        raise _no_reference(text, "it does not begin with the host of a registry", fix)
    name, at, digest = rest.partition("@")
    name, colon, tag = name.partition(":")
    if colon and not TAG.fullmatch(tag):
        raise _no_reference(text, f"{tag!r} is not a valid tag", "use letters, digits, . _ -")
    return RegistryRef(
        host, _repository(name.removesuffix("/"), text), tag if colon else None, _digest(digest, text) if at else None
    )


def parse_place(text: str, what: str) -> Target:
    """Parse a reference to a namespace of a registry or to a layout folder, where several images can be stored.

    ConfigError is raised if the reference is not valid, or if it names a single image by a tag or digest.
    """
    place = parse(text)
    if place.tag or place.digest:
        raise ConfigError(
            "place-names-image",
            f"{what} {text} names a single image",
            why="several images are stored there under their own names",
            fix="leave out the tag or digest: REGISTRY/NS or oci:DIR (oci:DIR/ if its name has a colon)",
        )
    return place


def _is_host(text: str) -> bool:
    try:
        return _HOST.fullmatch(text) is not None and urlsplit(f"//{text}").port != 0
    except ValueError:  # an invalid address in brackets, or a port over 65535
        return False


def _layout(text: str) -> LayoutRef:
    place = text.removeprefix("oci:")
    digest: str | None = None
    if match := re.search(r"@(sha256:[^/]*)$", place):
        digest = _digest(match[1], text)
        place = place[: match.start()]
    head, colon, tail = place.rpartition(":")
    tag: str | None = None
    if colon and "/" not in tail:
        if not TAG.fullmatch(tail):
            raise _no_reference(
                text, f"{tail!r} is not a valid tag", "if it is part of the folder's name, append a slash"
            )
        place, tag = head, tail
    if not place or "\0" in place:
        raise _no_reference(text, "it does not name a folder", "use oci:DIR or oci:DIR:TAG")
    return LayoutRef(Path(expanded(place)), tag, digest)
