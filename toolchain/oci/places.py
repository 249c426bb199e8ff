"""Open the folder or repository that a reference names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from toolchain.oci.layout_place import LayoutPlace
from toolchain.oci.place import Place
from toolchain.oci.reference import LayoutRef, Target
from toolchain.oci.registry import Registry
from toolchain.oci.repository_place import RepositoryPlace


@contextlib.contextmanager
def open_place(ref: Target) -> Iterator[Place]:
    """Yield the folder or repository that a reference names; no request is sent to the registry yet."""
    if isinstance(ref, LayoutRef):
        yield LayoutPlace(ref)
        return
    with Registry(ref.host, repository=ref.repository) as registry:
        yield RepositoryPlace(ref, registry)
