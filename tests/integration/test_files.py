"""Tests of plain files in a real registry, which another client pulls and which the tool verifies."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from oras.client import OrasClient
from typer.testing import CliRunner

from tests.evidence_fixtures import finished_base, finished_llvm
from tests.fault_proxy import Fault, fault_proxy
from tests.places import publish, referrers
from tests.request_fixtures import specs
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.oci.files import TYPE, write_files
from toolchain.oci.layout import Layout
from toolchain.oci.reference import RegistryRef
from toolchain.pipeline.plan import find
from toolchain.pipeline.records import read_record
from toolchain.publish.plain_files import write_archives
from toolchain.request.model import Request
from toolchain.stages.stage import Built
from toolchain.trust.keys import new_key

pytestmark = pytest.mark.registry
_NUMBERS = itertools.count()
PREFIX = "usr/lib64/llvm-triton-22.1.8"
LLVM = {f"{PREFIX}/bin/mlir-tblgen": b"x" * 5000, f"{PREFIX}/lib/cmake/mlir/MLIRConfig.cmake": b"x"}
IMAGE = "llvm-triton-22.1.8-debian13"
ASKED = ("--source", "llvm=distro:llvm-toolchain-22", "--base", "debian13")


class Home:
    """A machine with a small LLVM, a key, and a place to publish to."""

    def __init__(self, folder: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.place = folder, place
        self.cache = Cache(folder / "cache")
        finished_base(self.cache, folder / "base")
        self.request = Request(cache=self.cache, sources=specs({"llvm": "distro:llvm-toolchain-22"}))
        self.llvm = finished_llvm(self.request, folder / "llvm", LLVM, {"prefix": f"/{PREFIX}", "total_seconds": 7})
        self.key, self.stranger = folder / "key", folder / "stranger"
        for key in (self.key, self.stranger):
            new_key(key)
        monkeypatch.setenv("TOOLCHAIN_CACHE", str(self.cache.root))
        monkeypatch.chdir(folder)

    @property
    def ref(self) -> str:
        """The reference to the published files."""
        return f"{self.place}/{IMAGE}:files"

    def call(self, *words: str | Path, code: int = 0) -> str:
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == code, done.output
        return done.output if code else done.stdout

    def publish(self, *words: str | Path) -> Any:
        told = self.call("publish", self.place, "llvm", "--files", "--json", *words)
        return json.loads(told)["published"][0]

    def archives(self, into: str) -> dict[str, bytes]:
        """Return the archives that `build --archive` writes, by name."""
        found: Built | None = find(self.cache, self.llvm.planned)
        assert found is not None
        record = read_record(self.cache, found.input_digest)
        return {path.name: path.read_bytes() for path in write_archives(self.cache, [record], self.folder / into)}


@pytest.fixture
def home(registry_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr("toolchain.oci.shared_tag.CALM", (0.0,))  # each repository has one publisher
    place = f"{registry_host}/files/{abs(hash(str(tmp_path))):x}-{next(_NUMBERS)}"
    return Home(tmp_path, place, monkeypatch)


def pulled(ref: str, into: Path) -> dict[str, bytes]:
    """Pull into an empty folder with oras-py, and return the files by name."""
    into.mkdir()
    names = OrasClient(insecure=True).pull(target=ref, outdir=str(into))
    found = {path.name: path.read_bytes() for path in into.iterdir()}
    assert sorted(Path(name).name for name in names) == sorted(found)
    return found


def test_published_files_are_pulled_unchanged_and_verified(home: Home) -> None:
    row = home.publish("--key", home.key)
    files = row["files"]
    assert [one["media_type"] for one in files["files"]] == ["application/gzip", "application/json"]
    expected = home.archives("archives")
    assert list(expected) == ["llvm-22.1.8-debian13-x64.tar.gz"]
    found = pulled(home.ref, home.folder / "pulled")
    report = found.pop(f"{IMAGE}-amd64.report.json")
    assert found == expected, "byte for byte"
    assert json.loads(report)["facts"]["prefix"] == f"/{PREFIX}"
    (by_digest,) = [ref for ref in files["refs"] if ref != home.ref]
    assert pulled(by_digest, home.folder / "pulled by digest") == {**found, f"{IMAGE}-amd64.report.json": report}

    said = json.loads(
        home.call("verify", home.ref, "--public-key", f"{home.key}.pub", "--policy", "source-only", "--json")
    )
    assert [(one["verdict"], one["digest"]) for one in said["images"]] == [("trusted", files["digest"])]
    assert home.call("verify", home.ref).endswith("intact, not authenticated (no --public-key)\n")
    assert "[signature-other-key]" in home.call("verify", home.ref, "--public-key", f"{home.stranger}.pub", code=17)
    assert json.loads(home.call("inspect", home.ref, "--json"))["images"][0]["files"] == files["files"]
    # The files are a referrer of the image, which is unchanged.
    image = RegistryRef(*home.place.split("/", 1)).image(IMAGE).at()
    assert TYPE in {one.artifact_type for one in referrers(image, row["digest"])}
    assert home.call("verify", f"{home.place}/{IMAGE}", "--public-key", f"{home.key}.pub").endswith(
        f"\ttrusted\t{IMAGE}\n"
    )

    again = home.publish("--key", home.key)
    sent = (again["pushed_bytes"], again["evidence"]["pushed_bytes"], again["files"]["pushed_bytes"])
    assert (again["files"]["digest"], *sent) == (files["digest"], 0, 0, 0)
    assert again["files"]["evidence"]["pushed_bytes"] == 0


def test_damaged_and_unsigned_files_are_refused(home: Home, registry_host: str) -> None:
    files = home.publish("--key", home.key)["files"]
    with fault_proxy(registry_host) as proxy:
        proxy.faults.append(Fault("flip", "GET", f"/blobs/{files['files'][0]['digest']}", times=-1))
        assert "digests:" in home.call(
            "verify", home.ref.replace(registry_host, proxy.host), "--public-key", f"{home.key}.pub", code=17
        )
    # Someone who can push to the registry puts another archive under the tag.
    layout = Layout(home.folder / "evil").ensure()
    evil = home.folder / "llvm-22.1.8-debian13-x64.tar.gz"
    evil.write_bytes(b"not it")
    image = RegistryRef(*home.place.split("/", 1)).image(IMAGE).at()
    subject = layout.put_bytes(b"{}", "application/vnd.oci.image.index.v1+json")
    publish(layout, write_files(layout, subject, [evil], title="x"), image.at(tag="files"))
    assert "[signature-missing]" in home.call("verify", home.ref, "--public-key", f"{home.key}.pub", code=17)
    (by_digest,) = [ref for ref in files["refs"] if ref != home.ref]
    assert home.call("verify", by_digest, "--public-key", f"{home.key}.pub").endswith(f"\ttrusted\t{IMAGE}\n")


def test_archive_of_a_reused_image_equals_that_of_the_publisher(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.publish("--key", home.key)
    expected = home.archives("archives")
    other = Cache(home.folder / "other")
    (other.root / "locked").parent.mkdir(parents=True)
    (home.cache.root / "locked").rename(other.root / "locked")
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(other.root))
    finished_base(other, home.folder / "other base")
    done = home.call(
        "build", "llvm", *ASKED, "--reuse-from", home.place, "--public-key", f"{home.key}.pub", "--reuse-only",
        "--json", "--archive", "out",
    )  # fmt: skip
    assert json.loads(done)["stages"][-1]["taken_from"].startswith(f"{home.place}/{IMAGE}@sha256:")
    assert {path.name: path.read_bytes() for path in (home.folder / "out").iterdir()} == expected
