"""The lock files contain all required packages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOP = Path(__file__).resolve().parents[2]
# The extras of the tool and of the lab that each list is for; None for a list without the lab.
EXTRAS: dict[str, tuple[list[str], list[str] | None]] = {
    "run": ([], ["emulator"]), "docs": (["docs"], None), "test": (["test"], ["emulator"])
}  # fmt: skip


def locked(name: str) -> dict[str, str]:
    """Return the versions of a lock file by package."""
    text = (TOP / "requirements" / f"{name}.lock").read_text()
    return {
        canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([^ ;]+)", text, re.MULTILINE)
    }


def asked(name: str) -> Iterator[Requirement]:
    """Yield the requirements of both pyproject.toml files and of the builds of the packages."""
    words = (TOP / "requirements" / "build.in").read_text().splitlines()
    for folder, chosen in zip((TOP, TOP / "lab"), EXTRAS[name], strict=True):
        if chosen is None:
            continue
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        words += project["dependencies"]
        for extra in chosen:
            words += extras[extra]
        own = [Requirement(word) for word in words if word.startswith("toolchain[")]
        words = [word for word in words if not word.startswith("toolchain")]
        words += [each for one in own for extra in one.extras for each in extras[extra]]
    yield from (Requirement(word) for word in words if word and not word.startswith("#"))


def lacking(wanted: Iterator[Requirement], versions: dict[str, str]) -> list[str]:
    """Return the direct and indirect requirements that `versions` does not satisfy. The packages must be installed."""
    found: list[str] = []
    seen: set[str] = set()
    waiting = list(wanted)
    while waiting:
        wish = waiting.pop()
        if str(wish) in seen:
            continue
        seen.add(str(wish))
        version = versions.get(canonicalize_name(wish.name))
        if version is None or not wish.specifier.contains(version, prereleases=True):
            found.append(f"{wish.name}{wish.specifier}: {version}")
            continue
        try:
            needs = requires(wish.name) or []
        except PackageNotFoundError:
            pytest.skip(f"{wish.name} IS NOT INSTALLED: what it needs is not checked")
        for need in map(Requirement, needs):
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in ("", *wish.extras)):
                waiting.append(need)
    return found


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_lock_contains_all_requirements(name: str) -> None:
    assert not lacking(asked(name), locked(name))
