"""Sources that the distribution's mirror has lost: the same bytes come from a second address, or from the user.

The mirror is a signed archive in a folder, read by the real apt; the second address is a server on loopback.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.apt_archive import Archive, archive, signed
from tests.refusals import refused
from tests.request_fixtures import specs
from toolchain.catalog.bases import base_recipe
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_file
from toolchain.core.errors import SourceError, UnreachableError
from toolchain.pipeline import locking
from toolchain.request.model import Request
from toolchain.sources import archive as downloads
from toolchain.sources import distro, resolve
from toolchain.sources import network as reach
from toolchain.sources.resolve import fetch_source, locate
from toolchain.sources.spec import parse_source_spec
from toolchain.sources.suites import Package
from toolchain.stages.llvm import LlvmStage
from toolchain.stages.stage import Planned

__all__ = ["archive", "signed"]
FILE = "thing_1.0.orig.tar.xz"


class Recording(http.server.SimpleHTTPRequestHandler):
    """A handler that serves a folder, and records the path of each request instead of a log."""

    def __init__(self, *given: Any, asked: list[str], directory: str) -> None:
        self.asked = asked
        super().__init__(*given, directory=directory)

    def log_request(self, *_args: object) -> None:
        self.asked.append(self.path)

    def log_message(self, *_args: object) -> None:
        return


@dataclass(frozen=True)
class World:
    """The archive and the second address, which have the file, and its row in the tool's data.

    Attributes:
        asked: the paths that were requested from the server of the second address, in order.
    """

    archive: Archive
    second: Path
    row: Package
    cache: Cache
    asked: list[str] = field(default_factory=list)

    @property
    def pool(self) -> Path:
        return self.archive.root / "pool"

    def fetch(self, *, offline: bool = False) -> Path:
        source = locate("llvm", parse_source_spec("distro:thing"), cache=self.cache)
        got = fetch_source(source, cache=self.cache, offline=offline)
        assert got.path is not None
        assert got.digest == f"sha256:{self.row.sha256}"
        return got.path / "llvm" / "CMakeLists.txt"

    def forget(self) -> None:
        """Remove the version from the distribution's index and pool."""
        self.archive.suite("bookworm", {"thing": "2.0"})
        (self.pool / FILE).unlink(missing_ok=True)


@pytest.fixture
def world(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    archive.suite("bookworm", {"thing": "1.0"})
    file, second = archive.root / "pool" / FILE, tmp_path / "second"
    (second / "file").mkdir(parents=True)
    shutil.copy(file, second / "file" / "copy")
    for module, name in ((reach, "RETRY_BACKOFF"), (downloads, "BACKOFF")):
        monkeypatch.setattr(module, name, 0.01)
    asked: list[str] = []
    handler = functools.partial(Recording, asked=asked, directory=str(second))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        row = Package(
            name="thing",
            version="1.0",
            file=FILE,
            sha256=sha256_file(file).removeprefix("sha256:"),
            size=file.stat().st_size,
            suites=("bookworm",),
            mirrors=(f"http://127.0.0.1:{server.server_address[1]}/file/copy",),
        )
        for module_ in (distro, resolve):
            monkeypatch.setattr(module_, "known_packages", lambda: (row,))
        yield World(archive, second, row, Cache(tmp_path / "the cache"), asked)
        server.shutdown()
        thread.join()


def second_file(world: World) -> Path:
    (found,) = (world.second / "file").iterdir()
    return found


def test_fetch_needs_no_second_address_while_the_mirror_has_the_file(world: World) -> None:
    """The second address has the file too, so a fetch that tries it first would succeed."""
    assert world.fetch().is_file()
    assert world.asked == []


@pytest.mark.parametrize("gone", ["version", "file", "archive"])
def test_file_that_the_mirror_lost_comes_from_the_second_address(world: World, gone: str) -> None:
    match gone:
        case "version":
            world.forget()
        case "file":
            (world.pool / FILE).unlink()
        case "archive":
            shutil.rmtree(world.archive.root / "dists")
    assert world.fetch().is_file()
    assert world.asked == ["/file/copy"]
    second_file(world).unlink()
    assert world.fetch(offline=True).is_file(), "it is in the store now"


def test_addresses_are_tried_in_their_order_until_one_has_the_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (address,) = world.row.mirrors
    row = replace(world.row, mirrors=(f"{address}-lost", address, f"{address}-later"))
    for module in (distro, resolve):
        monkeypatch.setattr(module, "known_packages", lambda: (row,))
    shutil.copy(second_file(world), world.second / "file" / "copy-later")
    world.forget()
    assert world.fetch().is_file()
    assert list(dict.fromkeys(world.asked)) == ["/file/copy-lost", "/file/copy"]


def test_message_about_a_lost_file_says_how_to_provide_it(world: World) -> None:
    kept = world.pool.parent / FILE
    shutil.copy(world.pool / FILE, kept)
    world.forget()
    second_file(world).unlink()
    with pytest.raises(SourceError) as caught:
        world.fetch()
    assert FILE in caught.value.what
    assert world.row.sha256 in caught.value.why
    assert f"--source llvm=PATH/{FILE}" in caught.value.fix
    with pytest.raises(UnreachableError) as offline:
        world.fetch(offline=True)
    assert f"--source llvm=PATH/{FILE}" in offline.value.fix

    # A file that the user provides as the message says is the same source, with the same input digest and names.
    def planned(text: str) -> Planned:
        base = Planned(name="base", image="base", inputs={"x": "base"}, details=base_recipe("debian13", "amd64"))
        request = Request(cache=world.cache, sources=specs({"llvm": text}), triton="3.7.1")
        return LlvmStage().plan(request, {"base": base})

    brought = planned(str(kept))
    assert brought.input_digest == planned("distro:thing").input_digest
    assert brought.image == planned("distro:thing").image
    request = Request(cache=world.cache, sources=specs({"llvm": str(kept)}), triton="3.7.1")
    assert locking.resolve(request, [brought], "llvm").request["source"] == {"llvm": "distro:thing=1.0"}
    assert replace(brought.sources[0], path=None) == planned("distro:thing").sources[0]
    got = fetch_source(brought.sources[0], cache=world.cache, offline=True)
    assert got.path is not None
    assert world.fetch(offline=True).is_relative_to(got.path), "and the name finds it from now on"


def test_other_bytes_at_the_second_address_are_refused(world: World) -> None:
    world.forget()
    file = second_file(world)
    for content in (b"x" * world.row.size, b"x" * (world.row.size + 1)):
        file.write_bytes(content)
        with pytest.raises(SourceError) as caught:
            world.fetch()
        assert caught.value.id == "nowhere-available"
        assert not [path for path in world.cache.store.rglob("*") if path.is_file() and b"xxx" in path.read_bytes()]


def test_index_with_another_digest_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distro, "known_packages", lambda: (replace(world.row, sha256="0" * 64),))
    with refused("package-digest-mismatch"):
        world.fetch()
    assert world.asked == [], "the second address could hide that the package changed"
