"""A cache whose bundle has entries of every kind, and the changes that an attacker makes to a bundle."""

from __future__ import annotations

import dataclasses
import io
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import finished_base
from tests.request_fixtures import specs
from toolchain.bundle.export import TYPE, Exported, export
from toolchain.bundle.importer import Imported, import_bundle
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import ToolchainError
from toolchain.oci import descriptor as media
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef, RegistryRef
from toolchain.request.model import Request
from toolchain.sources.pypi import PypiFile
from toolchain.sources.store import Store
from toolchain.stages.wheels import TRITON


@dataclass
class Place:
    """A cache, a build request for it, and the bundle that is exported from it."""

    root: Path
    request: Request
    target: str = "triton"
    out: LayoutRef = field(init=False)

    def __post_init__(self) -> None:
        self.out = LayoutRef(self.root / "a 'bundle'")

    def export(self) -> Exported:
        return export(self.request, self.target, self.out)

    def import_bundle(self, name: str = "other", ref: LayoutRef | RegistryRef | None = None) -> Imported:
        return import_bundle(ref or self.out, Cache(self.root / name), self.root / name / "toolchain.lock")

    # These methods make the changes of an attacker.

    def change(self, edit: Callable[[dict[str, Any], Layout], None]) -> None:
        """Change the manifest, and give the new manifest the same name."""
        layout = Layout(self.out.path)
        found = layout.resolve(f"bundle-{self.target}")
        value = layout.read_json(found)
        edit(value, layout)
        made = dataclasses.replace(layout.put_json(value, media.MANIFEST), artifact_type=TYPE)
        layout.tag(made, f"bundle-{self.target}")

    def swap(self, kind: str, content: bytes) -> None:
        """Replace the content of the first entry of a kind, and update its digest and size."""

        def edit(value: dict[str, Any], layout: Layout) -> None:
            row = entry(value, kind)
            blob = layout.put_bytes(content, row["mediaType"])
            row["digest"], row["size"] = blob.digest, blob.size

        self.change(edit)

    def content(self, kind: str) -> bytes:
        layout = Layout(self.out.path)
        return layout.blob(
            entry(layout.read_json(layout.resolve(f"bundle-{self.target}")), kind)["digest"]
        ).read_bytes()


def entry(value: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in value["layers"] if row["annotations"]["toolchain.bundle.kind"] == kind)
    return found


def put(store: Store, content: bytes, name: str) -> str:
    store.partial.mkdir(parents=True, exist_ok=True)
    (store.partial / name).write_bytes(content)
    digest = sha256_bytes(content)
    store.add_file(store.partial / name, digest)
    return digest


def full_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a place whose cache has all inputs of Triton's build, of every kind of source and as small as possible."""
    cache = Cache(tmp_path / 'cache "one"')
    store = Store(cache.store)
    finished_base(cache, tmp_path / "work")
    rows = []
    for project in TRITON:
        content, file = project.encode(), f"{project}-1-py3-none-any.whl"
        digest = put(store, content, file).removeprefix("sha256:")
        rows.append(PypiFile(project=project, version="1", file=file, sha256=digest, size=len(content), license="MIT"))
    monkeypatch.setattr("toolchain.core.console.warn", lambda text: None)
    monkeypatch.setattr("toolchain.sources.pypi.known_files", lambda: tuple(rows))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("llvm", "mlir", "lld"):
            info = tarfile.TarInfo(f"top/{name}/CMakeLists.txt")
            info.size = 2
            tar.addfile(info, io.BytesIO(b"x\n"))
    digest = put(store, packed.getvalue(), "an archive.tar")
    checkout = tmp_path / "secret place" / "triton"
    for name in ("third_party/amd", "third_party/nvidia", "python"):
        (checkout / name).mkdir(parents=True)
    for name in ("setup.py", "CMakeLists.txt", "third_party/amd/x", "third_party/nvidia/x", "python/tool"):
        (checkout / name).write_text(f"{name}\n")
    (checkout / "python" / "tool").chmod(0o755)
    (checkout / "python" / "link").symlink_to("tool")
    (checkout / "empty").mkdir()
    patch = tmp_path / "secret place" / "my fix.patch"
    patch.write_text("--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-setup.py\n+fixed\n")
    request = Request(
        cache=cache,
        sources=specs(
            {"llvm": f"https://example.test/an%20archive.tar#{digest.replace(':', '=')}", "triton": str(checkout)}
        ),
        patches={"triton": (patch,)},
        offline=True,
    )
    return Place(tmp_path, request)


def exported_place(root: Path) -> Place:
    """Return a place below `root` whose bundle is exported, for tests that change copies of it."""
    with pytest.MonkeyPatch.context() as patch:
        found = full_place(root, patch)
        found.export()
        return found


def copied(place: Place, root: Path) -> Place:
    """Return a place below `root` with a copy of another one's bundle."""
    found = Place(root, place.request)
    shutil.copytree(place.out.path, found.out.path)
    return found


def refuses(place: Place, error: type[ToolchainError], id: str = "", *named: str) -> None:
    """Check that the import fails with this error, which has this id and names these values, and leaves nothing."""
    with pytest.raises(error) as caught:
        place.import_bundle()
    assert id in {"", caught.value.id}, caught.value
    assert [value for value in named if value not in str(caught.value)] == [], caught.value
    nothing_counts(place)


def nothing_counts(place: Place) -> None:
    """Check that an import left no record, resolved base or lock, because a plan would use them."""
    there = place.root / "other"
    assert not (there / "toolchain.lock").exists()
    assert not list((there / "records").glob("*.json"))
    assert not list((there / "locked").glob("*.json"))
    assert not list(place.root.rglob("*evil*"))
