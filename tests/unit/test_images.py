"""Tests of the names of finished images, which verbs accept."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import finished_base, finished_llvm
from tests.request_fixtures import specs
from tests.tiny_image import make
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, SourceError
from toolchain.core.record import Record
from toolchain.oci import labels
from toolchain.oci.layout import Layout
from toolchain.pipeline.finished_images import (
    Publication,
    finished_images,
    full_name,
    named_images,
    note_publication,
    one_image,
    publications,
)
from toolchain.pipeline.records import find_image, read_record, write_record
from toolchain.request.model import Request
from toolchain.stages.stage import Built

LLVM = "llvm-triton-22.1.8-debian13"
FILES = {"usr/lib64/llvm-triton-22.1.8/lib/libLLVMSupport.a": b"archive " * 900}


@dataclass
class Home:
    """A cache in which base and LLVM are finished."""

    cache: Cache
    llvm: Built

    def call(self, *words: str, code: int = 0) -> dict[str, Any]:
        done = CliRunner().invoke(app, [*words, "--cache", str(self.cache.root), "--json"])
        assert done.exit_code == code, done.output
        value: dict[str, Any] = json.loads(done.stdout)
        return value

    @property
    def record(self) -> Record:
        return read_record(self.cache, self.llvm.input_digest)

    def another(self, **changes: Any) -> Record:
        """Write another record of the same image, and return it."""
        value = {**self.record.as_json(), "input_digest": f"sha256:{'7' * 64}", **changes}
        record = Record.parse(value)
        write_record(self.cache, record)
        return record


@pytest.fixture
def home(tmp_path: Path) -> Home:
    request = Request(cache=Cache(tmp_path / "cache"), sources=specs({"llvm": "distro:llvm-toolchain-22"}))
    request.cache.make()
    finished_base(request.cache, tmp_path / "base")
    return Home(request.cache, finished_llvm(request, tmp_path / "llvm", FILES))


def test_image_is_found_by_name_prefix_and_digest(home: Home) -> None:
    digits = home.llvm.input_digest.removeprefix("sha256:")
    for text in (LLVM, "llvm", full_name(home.record), digits[:6], f"sha256:{digits[:8]}"):
        assert named_images(home.cache, [text]) == [home.record], text
    assert [record.stage for record in named_images(home.cache, ["llvm", "toolchain-base", digits])] == ["llvm", "base"]
    for text in ("aotriton", "", "0" * 12, "../x"):
        with pytest.raises((SourceError, ConfigError)):
            named_images(home.cache, [text])


def test_ambiguous_name_is_refused_with_the_full_names(home: Home) -> None:
    second = home.another()
    with pytest.raises(ConfigError) as error:
        named_images(home.cache, [LLVM])
    assert {full_name(home.record), full_name(second)} <= set(error.value.why.split())
    assert named_images(home.cache, [full_name(second)]) == [second]


def test_name_selects_the_images_of_all_architectures(home: Home) -> None:
    second = home.another(arch="arm64")
    assert named_images(home.cache, [LLVM]) == [home.record, second]
    assert one_image(home.cache, LLVM, "arm64") == second
    with pytest.raises(ConfigError):
        one_image(home.cache, LLVM)
    assert one_image(home.cache, "7777") == second


def test_image_with_a_missing_layer_is_not_finished(home: Home) -> None:
    layout = Layout(home.cache.images)
    layout.blob(home.record.layer_digests[-1]).unlink()
    assert [record.stage for record in finished_images(home.cache)] == ["base"]


def test_images_lists_finished_images_and_their_publications(home: Home) -> None:
    publication = Publication("registry.example/ns/llvm:latest", f"sha256:{'1' * 64}", 1e9)
    note_publication(home.cache, home.record, publication)
    note_publication(home.cache, home.record, publication)
    assert publications(home.cache, home.record) == (publication,)
    llvm, base = home.call("images")["images"]
    assert (llvm["name"], llvm["stage"], llvm["arch"]) == (full_name(home.record), "llvm", "amd64")
    assert llvm["llvm"] == {"version": "22.1.8", "commit": None, "tree": None}
    assert llvm["bytes"] == sum(layer["size"] for layer in home.record.layers)
    assert [place["ref"] for place in llvm["published"]] == ["registry.example/ns/llvm:latest"]
    assert base["published"] == []
    table = CliRunner().invoke(app, ["images", "--cache", str(home.cache.root)], env={"COLUMNS": "200"}).stdout
    assert (LLVM in table, "22.1.8" in table) == (True, True)


def test_inspect_accepts_the_name_of_an_image(home: Home) -> None:
    (row,) = home.call("inspect", "llvm")["images"]
    assert row["digest"] == home.llvm.manifest
    assert row["build"]["llvm"]["version"] == "22.1.8"
    assert row["images"][0]["labels"][labels.INPUT_DIGEST] == home.llvm.input_digest
    assert home.call("inspect", "nothing-such", code=5)["exit_code"] == 5
    (used,) = home.call("inspect", "llvm", "--use")["images"]
    assert used["use"]["prefix"] == "/usr/lib64/llvm-triton-22.1.8"


def test_inspect_refuses_an_oci_archive(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["inspect", "oci-archive:x y.tar", "--cache", str(tmp_path)])
    assert (done.exit_code, "[not-a-reference]" in done.stderr) == (3, True)


def test_an_image_with_two_tags_is_listed_once(tmp_path: Path) -> None:
    layout, digest = make(tmp_path)
    index = json.loads((layout / "index.json").read_text())
    (image,) = index["manifests"]
    tagged = [{**image, "annotations": {"org.opencontainers.image.ref.name": tag}} for tag in ("one", "two")]
    (layout / "index.json").write_text(json.dumps({**index, "manifests": tagged}))
    done = CliRunner().invoke(app, ["inspect", f"oci:{layout}"])
    assert done.exit_code == 0, done.output
    heads = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert heads == [f"one, two  {digest}"]
    (row,) = json.loads(CliRunner().invoke(app, ["inspect", f"oci:{layout}", "--json"]).stdout)["images"]
    assert (row["ref"], row["also"]) == ("one", ["two"])


def test_prune_removes_an_image_by_name(home: Home) -> None:
    base = find_image(home.cache, "toolchain-base-debian13")[0]
    refused = home.call("cache", "prune", "toolchain-base", code=3)
    assert full_name(home.record) in refused["why"]
    blob = home.record.layer_digests[-1]
    note_publication(home.cache, home.record, Publication("x", "y", 1.0))
    assert [row["name"] for row in home.call("cache", "prune", LLVM, "-n")["items"]] == [
        f"{LLVM} {full_name(home.record)[-12:]}"
    ]
    home.call("cache", "prune", LLVM)
    assert finished_images(home.cache) == [base]
    assert not Layout(home.cache.images).has(blob)
    assert {path.stem for path in home.cache.records.iterdir()} == {base.input_digest.removeprefix("sha256:")}
    home.call("cache", "prune", "toolchain-base")
    assert finished_images(home.cache) == []


def test_bundle_export_accepts_the_name_of_an_image(home: Home, tmp_path: Path) -> None:
    by_name = home.call("bundle", "export", f"oci:{tmp_path / 'one'}", "toolchain-base")
    by_stage = home.call("bundle", "export", f"oci:{tmp_path / 'two'}", "base", "--base", "debian13")
    assert by_name["entries"] == by_stage["entries"]
    assert home.call("bundle", "export", f"oci:{tmp_path / 'x'}", "no-such", code=5)["exit_code"] == 5


def test_publication_to_a_folder_whose_name_is_not_utf8_is_recorded(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    home.call("publish", f"oci:{folder}", "toolchain-base")
    known = home.call("images")["images"]
    (place,) = next(row["published"] for row in known if row["stage"] == "base")
    assert place["ref"] == f"oci:{tmp_path}/\\xff:toolchain-base-debian13"
    assert home.call("publish", f"oci:{folder}", "toolchain-base")["published"][0]["pushed_bytes"] == 0
