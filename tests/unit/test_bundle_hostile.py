"""Bundles that someone made: what their lock does not name does not get in, and no name becomes a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bundle_fixtures import Place, entry, full_place, nothing_counts
from toolchain.core.errors import HostileInputError, RegistryError, ToolchainError
from toolchain.oci.layout import Layout


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return full_place(tmp_path, monkeypatch)


def first_file(value: dict[str, Any]) -> dict[str, Any]:
    return entry(value, "file")


def _dots(value: dict[str, Any], _: Layout) -> None:
    first_file(value)["annotations"]["org.opencontainers.image.title"] = "../../../evil"


def _absolute(value: dict[str, Any], _: Layout) -> None:
    entry(value, "base")["annotations"]["org.opencontainers.image.title"] = "/etc/evil"


def _owner(value: dict[str, Any], _: Layout) -> None:
    first_file(value)["annotations"]["toolchain.bundle.name"] = ".."


def _kind(value: dict[str, Any], _: Layout) -> None:
    first_file(value)["annotations"]["toolchain.bundle.kind"] = "program"


def _no_notes(value: dict[str, Any], _: Layout) -> None:
    del first_file(value)["annotations"]


def _media(value: dict[str, Any], _: Layout) -> None:
    entry(value, "blob")["annotations"]["toolchain.bundle.media-type"] = "x\n/y"


def _extra(value: dict[str, Any], layout: Layout) -> None:
    blob = layout.put_bytes(b"extra", "x")
    notes = {**first_file(value)["annotations"], "toolchain.bundle.name": "stranger"}
    value["layers"].append({**blob.as_json(), "annotations": notes})


def _extra_version(value: dict[str, Any], layout: Layout) -> None:
    blob = layout.put_bytes(b"extra", "x")
    value["layers"].append({**first_file(value), "digest": blob.digest, "size": blob.size})


def _stowaway(value: dict[str, Any], layout: Layout) -> None:
    """A blob in the name of the base's image, which its manifest does not name."""
    blob = layout.put_bytes(b"stowaway", "x")
    value["layers"].append({**entry(value, "blob"), "digest": blob.digest, "size": blob.size})


def _missing_file(value: dict[str, Any], _: Layout) -> None:
    value["layers"].remove(first_file(value))


def _missing_blob(value: dict[str, Any], _: Layout) -> None:
    rows = [row for row in value["layers"] if row["annotations"]["toolchain.bundle.kind"] == "blob"]
    value["layers"].remove(next(r for r in rows if "layer" in r["annotations"]["toolchain.bundle.media-type"]))


def _missing_record(value: dict[str, Any], _: Layout) -> None:
    value["layers"].remove(entry(value, "record"))


def _no_lock(value: dict[str, Any], _: Layout) -> None:
    value["layers"].remove(entry(value, "lock"))


def _two_locks(value: dict[str, Any], _: Layout) -> None:
    value["layers"].append(entry(value, "lock"))


def _huge_lock(value: dict[str, Any], _: Layout) -> None:
    entry(value, "lock")["size"] = 1 << 40


def _other_type(value: dict[str, Any], _: Layout) -> None:
    value["artifactType"] = "application/x-picture"


@pytest.mark.parametrize(
    ("edit", "error", "says"),
    [
        (_dots, HostileInputError, "../../../evil"),
        (_absolute, HostileInputError, "/etc/evil"),
        (_owner, HostileInputError, "'..'"),
        (_kind, HostileInputError, "program"),
        (_no_notes, HostileInputError, "kind"),
        (_media, HostileInputError, "media type"),
        (_extra, HostileInputError, "does not name: stranger"),
        (_extra_version, HostileInputError, "does not name"),
        (_stowaway, HostileInputError, "no image in its lock names"),
        (_missing_file, HostileInputError, "lacks the file"),
        (_missing_blob, HostileInputError, "lacks a part of the image of base debian13"),
        (_missing_record, HostileInputError, "lacks the record"),
        (_no_lock, HostileInputError, "0 locks"),
        (_two_locks, HostileInputError, "2 locks"),
        (_huge_lock, HostileInputError, "too large"),
        (_other_type, RegistryError, "is not a bundle"),
    ],
)
def test_what_does_not_belong_is_refused(
    place: Place, edit: Callable[[dict[str, Any], Layout], None], error: type[ToolchainError], says: str
) -> None:
    place.export()
    place.change(edit)
    with pytest.raises(error) as caught:
        place.import_bundle()
    assert says in str(caught.value)
    nothing_counts(place)


@pytest.mark.parametrize("what", ["index.json", "blobs/sha256", "a blob"])
def test_links_in_the_folder_of_a_bundle_are_not_followed(place: Place, tmp_path: Path, what: str) -> None:
    """A folder that someone else fills may name any file of this machine."""
    place.export()
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
