"""Real things that several tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.registry_fixtures import running_registry


@pytest.fixture(scope="session")
def registry_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a docker-registry on loopback."""
    with running_registry(tmp_path_factory.mktemp("registry")) as host:
        yield host
