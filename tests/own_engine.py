"""An engine whose storage is a test's own."""

from __future__ import annotations

from toolchain.engine.buildah import Buildah
from toolchain.engine.storage import remove_tree


def destroy(engine: Buildah) -> None:
    """Delete its storage, images included: files of other owners, which a temporary folder's own end cannot remove."""
    for folder in (engine.root, engine.runroot, engine.live):
        remove_tree(folder)
    for name in ("containers-driver", "isolation.json"):
        (engine.cache.engine / name).unlink(missing_ok=True)
    remove_tree(engine.cache.mounts)
