"""Removal of an engine whose storage belongs to a test."""

from __future__ import annotations

from toolchain.engine.buildah import Buildah
from toolchain.engine.storage import remove_tree


def destroy(engine: Buildah) -> None:
    """Delete the storage with its images, because a temporary folder cannot remove files of other owners."""
    for folder in (engine.root, engine.runroot, engine.live):
        remove_tree(folder)
    for name in ("containers-driver", "isolation.json"):
        (engine.cache.engine / name).unlink(missing_ok=True)
    remove_tree(engine.cache.mounts)
