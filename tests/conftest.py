"""Divide the tests into the three parts of `--part`, which can run at the same time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# A test with one of these fixtures works on the images that ./quickstart builds.
_OF_QUICKSTART = {"quickstart", "base", "base_layout"}
# A test with one of these fixtures builds the real LLVMSupport.
_OF_SUPPORT = {"made", "part", "real"}
_PARTS = ("quickstart", "recipes", "rest")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--part`, so that several processes can share the tests."""
    parser.addoption("--part", choices=_PARTS, help="run only the tests of this part")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of the other parts, and run those of the real LLVMSupport last.

    If the cache is empty, ./quickstart compiles LLVMSupport at the same time, and the last tests find its objects in
    the compiler cache.
    """
    part = config.getoption("--part")
    if part is None:
        return
    config.hook.pytest_deselected(items=[item for item in items if part_of(item) != part])
    items[:] = [item for item in items if part_of(item) == part]
    if part == "recipes":
        items.sort(key=lambda item: bool(_OF_SUPPORT & set(getattr(item, "fixturenames", ()))))


@pytest.fixture(scope="session", autouse=True)
def no_flush_to_disk() -> Iterator[None]:
    """Omit flushes to the disk, because each takes milliseconds and no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)
        patch.setattr("toolchain.kernels.ledger.DURABILITY", "OFF")
        yield


def part_of(item: pytest.Item) -> str:
    """Return the part of a test: it uses images of ./quickstart, builds others in the user's cache, or does neither."""
    if set(getattr(item, "fixturenames", ())) & _OF_QUICKSTART:
        return "quickstart"
    shares = item.get_closest_marker("engine") is not None and item.get_closest_marker("beside") is None
    return "recipes" if shares else "rest"
