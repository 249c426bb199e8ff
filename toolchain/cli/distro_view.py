"""`toolchain pins --distro`: LLVM source packages of the distribution's suites, with the Tritons close to each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from toolchain.catalog.components import is_near, needs_for, newest_triton_on
from toolchain.catalog.release_data import triton_releases
from toolchain.cli.listing import Listing
from toolchain.core import console
from toolchain.core.cache import cache_of
from toolchain.core.errors import UnsupportedError
from toolchain.sources import distro
from toolchain.sources.distro import Listed, known_packages
from toolchain.sources.spec import ref_of
from toolchain.sources.tree import Source
from toolchain.stages.llvm_version import major_of

_NAMES = (*(f"llvm-toolchain-{number}" for number in range(16, 41)), "llvm-toolchain-snapshot")
_FILE = {True: "available", False: "missing", None: "unknown"}


def show(*, as_json: bool) -> None:
    """Query every suite and print its LLVM packages.

    Raises:
        SourceError: apt has no mirror here.
    """
    listed, readings = distro.survey(_NAMES, cache_of())
    rows = _rows(listed)
    unread = [error.what for error in readings.failed]
    if as_json:
        console.data({"distro": rows, "unread": unread})
        return
    cells = [
        (
            row["ref"],
            ", ".join(row["suites"]),
            _FILE[row["file"]],
            "yes" if row["recorded"] else "no",
            row["parts"] or "none",
            ", ".join(row["tritons"]) or "none",
        )
        for row in rows
    ]
    columns = ("source", "suites", "file", "digest known", "components for", "nearest Tritons")
    console.show(Listing(columns=columns, rows=cells, head=("source", "file", "components for")))
    for line in unread:
        console.warn(line)


def _rows(packages: Sequence[Listed]) -> list[dict[str, Any]]:
    """A row for each tarball, in the order of the suites."""
    recorded = {row.sha256 for row in known_packages()}
    rows: dict[str, dict[str, Any]] = {}
    for listed in packages:
        package = listed.package
        row = rows.setdefault(
            package.sha256,
            {
                "ref": ref_of("distro", package.name, package.version),
                "suites": [],
                "sha256": package.sha256,
                "file": listed.here,
                "recorded": package.sha256 in recorded,
                **_serves(package.name, package.version),
            },
        )
        if listed.suite not in row["suites"]:
            row["suites"].append(listed.suite)
        # One tarball may be in several pools.
        row["file"] = listed.here if row["file"] is None else row["file"] or listed.here
    return sorted(rows.values(), key=lambda row: (row["llvm"] or 0, row["ref"]))


def _serves(package: str, version: str) -> dict[str, Any]:
    source = Source(
        name="llvm", kind="distro", where=package, version=version, digest=None, path=None, locked=False,
    )  # fmt: skip
    llvm = major_of(source)
    parts = ""
    if llvm is not None:
        with contextlib.suppress(UnsupportedError):
            parts = newest_triton_on(llvm)
    plain = [row.version for row in triton_releases() if row.version and "+" not in row.version]
    near = [version for version in plain if llvm is not None and is_near(needs_for(version), llvm)]
    return {"llvm": llvm, "parts": parts or None, "tritons": near}
