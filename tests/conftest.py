"""Which tests may run at once: what builds shares the cache and all cores, so one process runs it in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# A test with one of these waits for, or works on, what the quickstart builds in the user's cache.
_BUILDING = {"quickstart", "base", "base_layout"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part`, for two processes beside each other."""
    parser.addoption("--part", choices=("building", "rest"), help="only the tests that build, or only the others")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other part out."""
    part = config.getoption("--part")
    if part is None:
        return
    left = [item for item in items if builds(item) != (part == "building")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if builds(item) == (part == "building")]


@pytest.fixture(scope="session", autouse=True)
def no_flush_to_disk() -> Iterator[None]:
    """Leave out flushes to the disk, which take milliseconds each, because no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        patch.setattr("toolchain.kernels.ledger.DURABILITY", "OFF")
        yield


def builds(item: pytest.Item) -> bool:
    """Whether a test works with containers on the cache that all share."""
    fixtures = set(getattr(item, "fixturenames", ()))
    shares = item.get_closest_marker("engine") is not None and item.get_closest_marker("beside") is None
    return shares or bool(fixtures & _BUILDING)
