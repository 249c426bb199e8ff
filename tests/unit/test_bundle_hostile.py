"""Manipulated bundles: entries that their lock does not name are refused, and no name becomes a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bundle_fixtures import Place, copied, entry, exported_place, nothing_counts, refuses
from toolchain.core.errors import HostileInputError, RegistryError, ToolchainError
from toolchain.oci.layout import Layout


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return exported_place(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def place(exported: Place, tmp_path: Path) -> Place:
    return copied(exported, tmp_path)


Edit = Callable[[dict[str, Any], Layout], None]
TITLE, OWNER = "org.opencontainers.image.title", "toolchain.bundle.name"


def first_file(value: dict[str, Any]) -> dict[str, Any]:
    return entry(value, "file")


def noted(kind: str, key: str, text: str) -> Edit:
    """Give the first entry of a kind another annotation."""
    return lambda value, _: entry(value, kind)["annotations"].update({key: text})


def without(kind: str) -> Edit:
    """Remove the first entry of a kind."""
    return lambda value, _: value["layers"].remove(entry(value, kind))


def _no_notes(value: dict[str, Any], _: Layout) -> None:
    del first_file(value)["annotations"]


def _extra(value: dict[str, Any], layout: Layout) -> None:
    blob = layout.put_bytes(b"extra", "x")
    notes = {**first_file(value)["annotations"], OWNER: "stranger"}
    value["layers"].append({**blob.as_json(), "annotations": notes})


def _extra_version(value: dict[str, Any], layout: Layout) -> None:
    blob = layout.put_bytes(b"extra", "x")
    value["layers"].append({**first_file(value), "digest": blob.digest, "size": blob.size})


def _stowaway(value: dict[str, Any], layout: Layout) -> None:
    """Add a blob that claims to belong to the base's image, but is not in the image's manifest."""
    blob = layout.put_bytes(b"stowaway", "x")
    value["layers"].append({**entry(value, "blob"), "digest": blob.digest, "size": blob.size})


def _missing_blob(value: dict[str, Any], _: Layout) -> None:
    rows = [row for row in value["layers"] if row["annotations"]["toolchain.bundle.kind"] == "blob"]
    value["layers"].remove(next(r for r in rows if "layer" in r["annotations"]["toolchain.bundle.media-type"]))


@pytest.mark.parametrize(
    ("edit", "error", "id"),
    [
        (noted("file", TITLE, "../../../evil"), HostileInputError, "bundle-entry-name"),
        (noted("base", TITLE, "/etc/evil"), HostileInputError, "bundle-entry-name"),
        (noted("file", OWNER, ".."), HostileInputError, "bundle-entry-name"),
        (noted("file", "toolchain.bundle.kind", "program"), HostileInputError, "bundle-entry-kind"),
        (_no_notes, HostileInputError, "bundle-entry-kind"),
        (noted("blob", "toolchain.bundle.media-type", "x\n/y"), HostileInputError, "bundle-entry-media-type"),
        (_extra, HostileInputError, "bundle-entry-unlocked"),
        (_extra_version, HostileInputError, "bundle-entry-unlocked"),
        (_stowaway, HostileInputError, "bundle-part-unlocked"),
        (without("file"), HostileInputError, "bundle-entry-missing"),
        (_missing_blob, HostileInputError, "bundle-part-missing"),
        (without("record"), HostileInputError, "bundle-entry-missing"),
        (without("lock"), HostileInputError, "bundle-lock-count"),
        (lambda value, _: value["layers"].append(entry(value, "lock")), HostileInputError, "bundle-lock-count"),
        (lambda value, _: entry(value, "lock").update(size=1 << 40), HostileInputError, "bundle-entry-size"),
        (lambda value, _: value.update(artifactType="application/x-picture"), RegistryError, "not-a-bundle"),
    ],
)
def test_bundle_with_invalid_missing_or_unlocked_entries_is_refused(
    place: Place, edit: Edit, error: type[ToolchainError], id: str
) -> None:
    place.change(edit)
    refuses(place, error, id)


def test_image_without_an_artifact_type_is_refused_in_words(place: Place) -> None:
    place.change(lambda value, _: value.pop("artifactType"))
    with pytest.raises(RegistryError) as refused:
        place.import_bundle()
    assert (refused.value.id, "None" in refused.value.why) == ("not-a-bundle", False)


@pytest.mark.parametrize("what", ["index.json", "blobs/sha256", "a blob"])
def test_links_in_the_folder_of_a_bundle_are_not_followed(place: Place, tmp_path: Path, what: str) -> None:
    """A link in a folder from someone else may lead to any file of the host."""
    layout = Layout(place.out.path)
    value = layout.read_json(layout.resolve(f"bundle-{place.target}"))
    link = layout.blob(first_file(value)["digest"]) if what == "a blob" else layout.root / what
    away = tmp_path / "away"
    link.rename(away)
    link.symlink_to(away)
    with pytest.raises(ToolchainError) as refused:
        place.import_bundle()
    assert refused.value.code in {13, 17, 5, 18, 3}, refused.value.code
    nothing_counts(place)
