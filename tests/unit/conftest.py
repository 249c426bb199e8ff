"""Fixtures that several unit tests share."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.evidence_fixtures import Stand
from toolchain.oci.layout import Layout


@pytest.fixture
def on_amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report an amd64 machine, whatever machine runs the tests."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    """Return an image in an empty layout, with a key to sign its evidence."""
    return Stand(Layout(tmp_path / "lay out"), tmp_path / "work")
