"""Tests of finding the archives in apt's configuration, and the keys that sign them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
from toolchain.sources.store import Store
from toolchain.stages import mmdebstrap


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
    mmdebstrap.run_mmdebstrap(
        workspace, tmp_path / "tar", suite="sid", variant="v", packages=("p",), what="it", options=()
    )
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


@contextmanager
def private_mirror(root: Path, login: str) -> Iterator[str]:
    """Serve an unsigned archive with the package z 1.3 to who sends the login; yield `HOST:PORT`."""
    tarball = b"content"
    digest = hashlib.sha256(tarball).hexdigest()
    index = root / "dists" / "sid" / "main" / "source" / "Sources"
    index.parent.mkdir(parents=True)
    (root / "z_1.3.orig.tar.gz").write_bytes(tarball)
    index.write_text(
        "Package: z\nVersion: 1.3-1\nFormat: 3.0 (quilt)\nDirectory: .\n"
        f"Checksums-Sha256:\n {digest} {len(tarball)} z_1.3.orig.tar.gz\n"
    )
    row = f" {hashlib.sha256(index.read_bytes()).hexdigest()} {index.stat().st_size} main/source/Sources\n"
    (root / "dists" / "sid" / "Release").write_text(f"Suite: sid\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{row}")

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Authorization"] == "Basic " + b64encode(login.encode()).decode():
                super().do_GET()
            else:
                self.send_error(401)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_login_in_a_url_of_apt_reaches_the_mirror_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """apt reads the index and the file with the login, which stays in no file and in no argument of a program."""
    folder = tmp_path / "apt"
    with private_mirror(tmp_path / "archive", "me:s3cr@t") as host:
        sources = tmp_path / "a.sources"
        address = f"http://me:s3cr%40t@{host}/"
        sources.write_text(
            "Types: deb\nURIs: http://main.test\nSuites: sid\nSigned-By: /other\n\n"
            f"Types: deb\nURIs: {address}\nSuites: sid\nComponents: main\nSigned-By: /mine\n"
        )
        configured(monkeypatch, tmp_path, target(address, "sid", "main", "Debian", f"{sources}:6"), updated=True)
        (mirror,) = apt_mirrors()
        monkeypatch.undo()
        assert mirror.keyring == "/mine"
        assert f"URIs: {address.rstrip('/')}\n" in mirror.stanza("deb", login=True)
        suite = suites.Suite(folder, replace(mirror, keyring=""))
        suite.options += ["-o", "Acquire::AllowInsecureRepositories=true"]
        suite.update(bound=True)
        (package,) = suite.versions(["z"])
        assert suite.uri(package) == f"http://{host}/./z_1.3.orig.tar.gz"
        assert suite.download(package, Store(tmp_path / "store")).read_bytes() == b"content"
    assert "s3cr" not in repr(mirror)
    assert not [path for path in folder.rglob("*") if path.is_file() and b"s3cr" in path.read_bytes()]


def test_apt_names_the_url_of_a_mirror_with_its_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb [trusted=yes] https://me:s3cr%40t@mirror.test/debian/ sid main\n")
    (tmp_path / "apt.conf").write_text(f'Dir::Etc "{tmp_path}";\n')
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    run = process.run
    monkeypatch.setattr(process, "run", lambda argv, **how: run(argv, env=dict(os.environ), **how))
    monkeypatch.setattr(mirrors, "_codename", lambda: "sid")
    (mirror,) = apt_mirrors()
    assert (mirror.site, mirror.login) == ("https://mirror.test/debian", "me:s3cr%40t")
