"""Which tests may run at once: what builds shares the cache and all cores, so one process runs it in turn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

# A test with one of these waits for, or works on, what the quickstart builds in the user's cache.
_BUILDING = {"quickstart", "base", "base_layout"}


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Groups for `--dist loadgroup`: all that builds is one, and of the other integration tests each file."""
    for item in items:
        if item.path.parent.name != "integration":
            continue
        fixtures = set(getattr(item, "fixturenames", ()))
        builds = item.get_closest_marker("engine") is not None or bool(fixtures & _BUILDING)
        item.add_marker(pytest.mark.xdist_group("engine" if builds else item.path.stem))
