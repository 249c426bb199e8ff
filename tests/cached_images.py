"""Finished images of a cache, and the content of their last layers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from toolchain.core.cache import Cache
from toolchain.core.record import Record
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import find_image


def the_record(cache: Cache, name: str) -> Record:
    """Return the record of a finished image for amd64, or skip the test if the cache does not contain one."""
    # The cache may hold a sysroot for each of several architectures.
    found = [one for one in find_image(cache, name) if one.arch == "amd64"]
    if not found:
        pytest.skip(f"NO IMAGE {name} IN {cache.root}: build it first")
    return found[0]


def laid(cache: Cache, record: Record, folder: Path) -> Path:
    """Unpack the last layer of an image unless that is done, and return the folder."""
    if not folder.exists():
        layout = Layout(cache.images)
        folder.mkdir(parents=True)
        # tar unpacks the layer because names of Linux's headers differ only in case, which the tool refuses.
        blob = layout.blob(layout.children(layout.resolve(record.manifest))[-1].digest)
        subprocess.run(["tar", "--extract", "--file", blob, "--directory", folder], check=True)
    return folder
