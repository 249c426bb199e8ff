"""Tests of finding the archives in apt's configuration, and the keys that sign them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.refusals import refused
from toolchain.core import process
from toolchain.core.cache import Cache
from toolchain.core.deb822 import stanzas
from toolchain.request.model import Request
from toolchain.sources import mirrors, suites
from toolchain.sources.mirrors import apt_mirrors
from toolchain.stages import base


def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listing: str, *, updated: bool) -> None:
    """Make apt-get list these targets; before an update, only if it is called with ReleaseInfo=false."""
    program = tmp_path / "bin" / "apt-get"
    program.parent.mkdir()
    (tmp_path / "listing").write_text(listing)
    test = "true" if updated else 'case "$*" in *ReleaseInfo=false*) ;; *) false ;; esac'
    program.write_text(f"#!/bin/sh\nif {test}; then cat '{tmp_path}/listing'; fi\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(mirrors, "_codename", lambda: "trixie")


def target(site: str, suite: str, component: str, origin: str, entry: str) -> str:
    return "\t".join(("Packages", site, suite, component, origin, entry)) + "\n"


def test_mirrors_are_found_before_the_first_apt_update(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Container images have no lists of packages, so the mirrors are chosen by the names of their suites."""
    listing = tmp_path / "a.list"
    listing.write_text(
        "deb [signed-by=/docker.asc] https://docker.test/debian trixie stable\n\n"
        "deb [arch=amd64 signed-by=/debian.gpg] http://main.test/debian/ trixie main\n"
        "deb http://main.test/debian trixie-updates main\n"
    )
    origin = "$(ORIGIN)"
    text = target("https://docker.test/debian", "trixie", "stable", origin, f"{listing}:1")
    text += target("http://pgdg.test/apt", "trixie-pgdg", "main", origin, f"{listing}:9")
    text += target("http://main.test/debian", "trixie-updates", "main", origin, f"{listing}:4")
    text += target("http://main.test/debian", "trixie", "main", origin, f"{listing}:3")
    configured(monkeypatch, tmp_path, text, updated=False)
    found = [(mirror.site, mirror.suite, mirror.keyring) for mirror in apt_mirrors()]
    assert found == [
        ("http://main.test/debian", "trixie", "/debian.gpg"),
        ("http://main.test/debian", "trixie-updates", ""),
    ]


def test_key_of_a_mirror_is_read_from_the_entry_of_the_mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "a.sources"
    sources.write_text(
        "Types: deb\nURIs: http://other.test/\nSuites: trixie-pgdg\nSigned-By: /pgdg\n\n"
        "Types: deb\nURIs: http://main.test/debian/\nSuites: trixie trixie-updates\nSigned-By: /debian.gpg\n"
    )
    text = target("http://main.test/debian", "trixie", "main", "Debian", f"{sources}:2")
    configured(monkeypatch, tmp_path, text, updated=True)
    assert [mirror.keyring for mirror in apt_mirrors()] == ["/debian.gpg"]


def test_inline_key_is_passed_to_apt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEZm\n =abcd\n -----END PGP PUBLIC KEY BLOCK-----"
    (tmp_path / "a.sources").write_text(
        f"Types: deb\nURIs: http://main.test/debian\nSuites: trixie\nComponents: main\nSigned-By:{key}\n"
    )
    listing = target("http://main.test/debian", "trixie", "main", "Debian", f"{tmp_path}/a.sources:1")
    configured(monkeypatch, tmp_path, listing, updated=True)
    (mirror,) = apt_mirrors()
    monkeypatch.undo()
    files: list[Path] = []

    def called(argv: list[str], **_: object) -> None:
        (tmp_path / "parts").mkdir()
        files.append(Path(shutil.copy(argv[-1], tmp_path / "parts")))

    monkeypatch.setattr(mirrors, "apt_mirrors", lambda: [mirror])
    monkeypatch.setattr(process, "which", str)
    monkeypatch.setattr(process, "run", called)
    request = Request(cache=Cache(tmp_path / "cache"))
    workspace: Any = SimpleNamespace(
        request=request, cache=request.cache, work=lambda: tmp_path / "work", log=None, on_line=None
    )
    base.run_mmdebstrap(workspace, tmp_path / "tar", suite="sid", variant="v", packages=("p",), what="it", options=())
    asked = ["-o", f"Dir::Etc::sourceparts={tmp_path}/parts", "-o", "Dir::Etc::sourcelist=/dev/null"]
    asked += ["-o", "APT::Get::IndexTargets::ReleaseInfo=false", "--format", "$(SITE) $(RELEASE)"]
    shown = subprocess.run(["apt-get", "indextargets", *asked], capture_output=True, text=True, check=True)
    assert "http://main.test/debian sid" in shown.stdout.splitlines()
    (stanza,) = stanzas(files[0].read_text())
    assert stanza["signed-by"] == key


def test_missing_mirrors_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configured(monkeypatch, tmp_path, "", updated=True)
    with refused("mirrors-unknown"):
        apt_mirrors()


def test_signature_of_a_tarball_is_not_taken_for_the_tarball(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = "".join(f" {number * 64} {number} z_1.3.orig.tar.gz{end}\n" for number, end in (("1", ""), ("2", ".asc")))
    text = f"Package: z\nVersion: 1.3-1\nChecksums-Sha256:\n{rows}"
    monkeypatch.setattr(suites.Suite, "_run", lambda *_: text)
    mirror = mirrors.Mirror(site="http://mirror.test/debian", suite="sid", components=("main",), keyring="")
    (package,) = suites.Suite(tmp_path, mirror).versions(["z"])
    assert package.file == "z_1.3.orig.tar.gz"
