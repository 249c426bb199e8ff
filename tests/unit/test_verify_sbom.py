"""Tests of `verify` on SBOMs that differ from the layer or from the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import (
    NOW,
    TOOL,
    Stand,
    drop_file,
    image_facts,
    lie,
    look,
    wrong,
)
from tests.places import verify
from toolchain.core.digest import canonical
from toolchain.oci import descriptor as media
from toolchain.oci.layout import Layout
from toolchain.trust import attest, sbom


def _add(files: list[dict[str, Any]]) -> None:
    files.append({**files[0], "fileName": "./usr/lib64/thing/more", "SPDXID": "SPDXRef-File-more"})


def _change(files: list[dict[str, Any]]) -> None:
    one = next(one for one in files if TOOL in one["fileName"])
    one["checksums"][1]["checksumValue"] = "0" * 64


def _twice(files: list[dict[str, Any]]) -> None:
    files.append(files[0])


def _broken(files: list[dict[str, Any]]) -> None:
    del files[0]["checksums"]


@pytest.mark.parametrize(
    ("change", "file", "id"),
    [
        (drop_file, TOOL, "sbom-lacks-file"),
        (_add, "/usr/lib64/thing/more", "sbom-extra-file"),
        (_change, TOOL, "sbom-other-content"),
        (_twice, "", "sbom-file-twice"),
        (_broken, "", "sbom-malformed"),
    ],
)
@pytest.mark.parametrize("signed", [True, False])
def test_sbom_that_differs_from_the_layer_is_refused(
    stand: Stand, change: Any, file: str, id: str, signed: bool
) -> None:
    document = lie(stand, change)
    if signed:
        stand.say_all(sbom=document)
    else:
        stand.attach(canonical(document), sbom.SPDX.media_type)
    assert wrong(look(stand) if signed else look(stand, None), file) == id


@pytest.mark.parametrize("signed", [True, False])
def test_false_cyclonedx_is_refused_despite_a_true_spdx(stand: Stand, signed: bool) -> None:
    """Scanners read the CycloneDX document, so it must list every file of the layer."""
    document = stand.cyclonedx()
    files = document["metadata"]["component"]["components"]
    files[:] = [row for row in files if row["name"] != TOOL]
    if signed:
        stand.say_all()
        stand.say(attest.statement(stand.subjects(), sbom.CYCLONEDX.predicate, document))
    else:
        stand.attach(canonical(document), sbom.CYCLONEDX.media_type)
    assert wrong(look(stand) if signed else look(stand, None), TOOL) == "sbom-lacks-file"
    # One true document is enough, because a false one may come from anyone.
    true = canonical(stand.cyclonedx())
    if signed:
        stand.say(attest.statement(stand.subjects(), sbom.CYCLONEDX.predicate, stand.cyclonedx()))
    else:
        stand.attach(true, sbom.CYCLONEDX.media_type)
    assert (look(stand) if signed else look(stand, None)).problems == []


def test_a_cyclonedx_that_hides_a_prebuilt_input_is_refused(tmp_path: Path) -> None:
    stand = Stand(Layout(tmp_path / "l"), tmp_path / "w", image_facts(binaries=["triton-wheel"]))
    stand.say_all()
    document = stand.cyclonedx()
    for row in document["components"]:
        row.pop("properties", None)
    stand.say(attest.statement(stand.subjects(), sbom.CYCLONEDX.predicate, document))
    assert wrong(look(stand)) == "prebuilt-lists-differ"


def test_sbom_of_another_image_is_refused(stand: Stand) -> None:
    document = stand.sbom()
    document["packages"][0]["checksums"][0]["checksumValue"] = "3" * 64
    stand.say_all(sbom=document)
    assert wrong(look(stand), f"sha256:{'3' * 64}", stand.manifest.digest) == "sbom-other-image"


def test_sbom_of_another_layer_is_refused(stand: Stand) -> None:
    document = stand.sbom()
    document["packages"][0]["sourceInfo"] = f"files are those of the layer with diff_id sha256:{'3' * 64}"
    stand.say_all(sbom=document)
    assert wrong(look(stand)) == "sbom-other-layer"


def test_sbom_of_an_image_without_layers_is_refused(stand: Stand) -> None:
    value = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
    config = stand.layout.put_json(value, media.CONFIG)
    manifest = {"schemaVersion": 2, "mediaType": media.MANIFEST, "config": config.as_json(), "layers": []}
    empty = stand.layout.put_json(manifest, media.MANIFEST)
    checksum = {"algorithm": "SHA256", "checksumValue": empty.digest.removeprefix("sha256:")}
    document = {"packages": [{"SPDXID": "SPDXRef-Image", "checksums": [checksum], "sourceInfo": ""}], "files": []}
    stand.attach(canonical(document), sbom.SPDX.media_type, to=empty)
    assert wrong(verify(stand.ref, stand.layout, empty, now=NOW)) == "sbom-without-layer"
