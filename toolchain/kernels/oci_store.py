"""A kernel store in a layout folder or a repository: packs of records, each an artifact under a tag of its own.

A registry handles few large blobs better than many small ones: a blob is three requests or more, and tags are listed
one by one. So results are sent in packs, in the order in which they come. A pack's tag names its Triton and GPU, a list
beside it its results. The tag follows from the content: writers never change what another one wrote.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.core import strict_json
from toolchain.core.errors import DigestError, RegistryError, ToolchainError
from toolchain.kernels.result_store import Addition
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.manifest import children_of, parse_object
from toolchain.oci.place import Place

LOG = logging.getLogger(__name__)
PACK = "application/vnd.toolchain.kernels.v1"
LIST = "application/vnd.toolchain.kernels.list.v1+json"
NOTE = "application/vnd.toolchain.kernels.note.v1+json"
# A pack goes out when it has so many records, so many bytes, or has waited for so many seconds.
RECORDS, BYTES, SECONDS = 256, 16 << 20, 600.0
_PACK_TAG = re.compile(r"k-(?P<scope>[0-9a-f]{12})-(?P<target>gfx[0-9a-f]+)-[0-9a-f]{16}")
_LARGEST_LIST = 16 << 20


@dataclass(frozen=True)
class _Row:
    offset: int
    size: int


@dataclass(frozen=True)
class _Pack:
    blob: Descriptor
    rows: Mapping[str, _Row]


class OciStore:
    """Records in a place of images.

    Args:
        place: the folder or repository.
        scratch: a folder of this store alone.
    """

    def __init__(self, place: Place, scratch: Path) -> None:
        self.ref = str(place.ref)
        self._place = place
        self._scratch = Layout(scratch / "layout").ensure()
        self._packs: dict[str, _Pack] = {}
        self._names: set[str] = set()
        self._waiting: dict[str, list[Addition]] = {}
        self._since = time.monotonic()
        self._scope = ""

    def prepare(self, scope: str, targets: Sequence[str]) -> None:
        """Begin a campaign by its `Naming.scope` and GPUs."""
        self._scope = scope
        for tag in self._place.tags():
            match = _PACK_TAG.fullmatch(tag)
            wanted = match and match["scope"] == scope and match["target"] in targets and tag not in self._packs
            if wanted and (pack := self._list(tag)) is not None:
                self._packs[tag] = pack
                self._names.update(pack.rows)

    def _list(self, tag: str) -> _Pack | None:
        """The content of a pack; None, with a warning, if it cannot be read."""
        try:
            manifest, content = self._place.manifest(tag)
            _, listed, blob = children_of(parse_object(content, tag), manifest)
            if listed.size > _LARGEST_LIST:
                raise ValueError(f"its list has {listed.size} bytes")
            path = self._place.blob(listed, self._scratch)
            rows = {
                str(name): _Row(int(offset), int(size))
                for name, (offset, size) in strict_json.read(path.read_bytes())["results"].items()
            }
            self._scratch.forget(listed.digest)
            if any(row.offset < 0 or row.size < 0 or row.offset + row.size > blob.size for row in rows.values()):
                raise ValueError("its list points outside of it")
        except (RegistryError, DigestError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            why = error.what if isinstance(error, ToolchainError) else error
            LOG.warning("%s: the pack %s is ignored: %s", self.ref, tag, why)
            return None
        return _Pack(blob, rows)

    def holds(self, name: str) -> bool:
        """Return whether there is a record of this name."""
        return name in self._names

    def fetch(self, names: Collection[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield the records of these names that exist; None for a damaged one. A pack is fetched once and not kept."""
        for tag, pack in tuple(self._packs.items()):
            inside = [name for name in pack.rows if name in names]
            if not inside:
                continue
            try:
                path = self._place.blob(pack.blob, self._scratch)
            except DigestError as error:
                LOG.warning("%s: the pack %s is damaged: %s", self.ref, tag, error.what)
                yield from ((name, None) for name in inside)
                continue
            try:
                with path.open("rb") as stream:
                    for name in inside:
                        stream.seek(pack.rows[name].offset)
                        yield name, stream.read(pack.rows[name].size)
            finally:
                self._scratch.forget(pack.blob.digest)

    def add(self, addition: Addition, *, replace: bool = False) -> int:
        """Store a record, and return how many were stored by this call."""
        if addition.name in self._names and not replace:
            return 0
        if not self._waiting:
            self._since = time.monotonic()
        self._names.add(addition.name)
        waiting = self._waiting.setdefault(addition.target, [])
        waiting.append(addition)
        full = len(waiting) >= RECORDS or sum(len(row.record) for row in waiting) >= BYTES
        return self.flush() if full or time.monotonic() - self._since >= SECONDS else 0

    def flush(self) -> int:
        """Store what was added and is not stored, and return how many records that were."""
        count = 0
        for target in tuple(self._waiting):
            count += self._send(target, self._waiting[target])
            del self._waiting[target]
        return count

    def _send(self, target: str, additions: Sequence[Addition]) -> int:
        # In one order: the same results make the same pack, in whatever order they were compiled.
        ordered = sorted(additions, key=lambda addition: addition.name)
        rows: dict[str, Any] = {}
        content = bytearray()
        for addition in ordered:
            rows[addition.name] = [len(content), len(addition.record)]
            content += addition.record
        blob = self._scratch.put_bytes(bytes(content), PACK)
        listed = self._scratch.put_json({"results": rows}, LIST)
        manifest = self._scratch.put_artifact(PACK, [listed, blob])
        tag = f"k-{self._scope}-{target}-{blob.digest.removeprefix('sha256:')[:16]}"
        self._place.put(self._scratch, manifest, [tag])
        self._scratch.forget(blob.digest, listed.digest, manifest.digest)
        return len(ordered)

    def note(self, name: str, content: bytes) -> None:
        """Write a note."""
        blob = self._scratch.put_bytes(content, NOTE)
        self._place.put(self._scratch, self._scratch.put_artifact(NOTE, [blob]), [f"n-{name}"])

    def _read_note(self, tag: str) -> bytes:
        manifest, content = self._place.manifest(tag)
        children = children_of(parse_object(content, tag), manifest)
        if len(children) != 2 or children[1].size > _LARGEST_LIST:
            raise RegistryError(
                f"{self.ref}:{tag} is not a note of a campaign", fix="give the kernel store a repository of its own"
            )
        return self._place.blob(children[1], self._scratch).read_bytes()

    def notes(self, prefix: str) -> Mapping[str, bytes]:
        """Return the notes whose names begin with `prefix`."""
        tags = sorted(tag for tag in self._place.tags() if tag.startswith(f"n-{prefix}"))
        return {tag.removeprefix("n-"): self._read_note(tag) for tag in tags}
