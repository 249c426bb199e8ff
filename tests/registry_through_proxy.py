"""Fixtures and blobs for tests of a registry behind a proxy that fails on demand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault_proxy import FaultProxy, fault_proxy
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.registry import Registry

_NUMBERS = itertools.count()
SIZE = 300_000
CHUNK = 64_000


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "lay out").ensure()


@pytest.fixture
def fresh(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "fresh").ensure()


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """Return a name that no other test used, because the registry serves the whole test run."""
    return f"test/{abs(hash(str(tmp_path))):x}-{next(_NUMBERS)}"


@pytest.fixture
def proxy(registry_host: str) -> Iterator[FaultProxy]:
    with fault_proxy(registry_host) as running:
        yield running


Connect = Callable[..., Registry]


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Connect]:
    """Yield a function that connects through the proxy with small chunks and short waits."""
    made: list[Registry] = []

    def connection(**options: object) -> Registry:
        values = {"chunk": CHUNK, "backoff": 0.01, "timeout": (60.0, 120.0), "login": "", **options}
        made.append(Registry(proxy.host, **values))  # type: ignore[arg-type]
        return made[-1]

    yield connection
    for registry in made:
        registry.close()


def some_blob(layout: Layout, size: int = SIZE) -> tuple[Descriptor, Path]:
    blob = layout.put_bytes(random.Random(size).randbytes(size), media.LAYER)
    return blob, layout.blob(blob.digest)


def leftovers(layout: Layout) -> list[str]:
    return [path.name for path in (layout.root / "blobs" / "sha256").iterdir()]
