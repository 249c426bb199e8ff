"""The output of `pins --distro`: Debian's LLVM source packages with known digests, and the Tritons nearest to each."""

from __future__ import annotations

import contextlib
from typing import Any

from toolchain.catalog.components import fitting_llvms, needs_for, newest_triton_on
from toolchain.catalog.release_data import triton_releases
from toolchain.cli.listing import Listing
from toolchain.core import console
from toolchain.core.errors import UnsupportedError
from toolchain.sources.distro import known_packages
from toolchain.sources.spec import ref_of
from toolchain.sources.suites import Package
from toolchain.sources.tree import Source
from toolchain.stages.llvm_version import major_of


def show(*, as_json: bool) -> None:
    """Print the LLVM packages of data/distro.toml, oldest LLVM first."""
    rows = [_row(package) for package in known_packages() if package.name.startswith("llvm-toolchain-")]
    rows.sort(key=lambda row: (row["llvm"] or 0, row["ref"]))
    if as_json:
        console.data({"distro": rows})
        return
    cells = [
        (row["ref"], ", ".join(row["suites"]), row["parts"] or "none", ", ".join(row["tritons"]) or "none")
        for row in rows
    ]
    columns = ("source", "suites", "components for", "nearest Tritons")
    console.show(Listing(columns=columns, rows=cells, head=("source", "components for")))


def _row(package: Package) -> dict[str, Any]:
    source = Source(
        name="llvm", kind="distro", where=package.name, version=package.version, digest=None, path=None, locked=False,
    )  # fmt: skip
    llvm = major_of(source)
    parts = ""
    if llvm is not None:
        with contextlib.suppress(UnsupportedError):
            parts = newest_triton_on(llvm)
    plain = [row.version for row in triton_releases() if row.version and "+" not in row.version]
    return {
        "ref": ref_of("distro", package.name, package.version),
        "suites": list(package.suites),
        "sha256": package.sha256,
        "llvm": llvm,
        "parts": parts or None,
        "tritons": [version for version in plain if llvm in fitting_llvms(needs_for(version))],
    }
