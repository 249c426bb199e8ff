"""Tests of `verify` on layouts and registries that programs could read differently (see `ambiguous_layouts`)."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.ambiguous_layouts import CASES, NAME, Shelf, make_shelf
from tests.evidence_fixtures import Stand
from tests.fake_registry import FakeRegistry, fake_registry
from toolchain.cli.app import app
from toolchain.core.digest import sha256_bytes
from toolchain.oci import descriptor as media
from toolchain.oci.layout import Layout


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Stand:
    folder = tmp_path_factory.mktemp("stand")
    stand = Stand(Layout(folder / "layout"), folder / "work")
    (folder / "key.pub").write_bytes(stand.signer.public.pem())
    return stand


@pytest.fixture(scope="module")
def shelf(stand: Stand) -> Shelf:
    return make_shelf(stand)


@pytest.fixture
def patience() -> Iterator[None]:
    """Fail the test if it takes longer than 300 seconds."""

    def over(signal: int, frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def verify(ref: str, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", ref, *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("case", CASES)
def test_layout_is_trusted_only_if_it_is_unambiguous(shelf: Shelf, stand: Stand, case: str, tmp_path: Path) -> None:
    change, trusted = CASES[case]
    copy = shelf.copy(tmp_path / "layout")
    change(copy)
    code, said = verify(f"oci:{copy.folder}:{NAME}", "--public-key", str(stand.work.parent / "key.pub"))
    assert (code == 0) is trusted, said
    assert ("\ttrusted" in said) is trusted
    assert code in {0, 13, 17, 22}
    assert (shelf.good.digest in said) or not trusted


# These documents are not signed. Without a key, the verdict `intact` means that all digests match.

_TWICE: dict[str, tuple[str, str]] = {
    "layers twice": ("manifest", '"layers":[],"layers":'),
    "Layers too": ("manifest", '"Layers":[],"layers":'),
    "Config too": ("manifest", '"Config":{},"config":'),
    "manifests too": ("manifest", '"manifests":[],"layers":'),
    "another type": ("manifest", f'"mediaType":"{media.INDEX}","x":'),
    "rootfs twice": ("config", '"rootfs":{"type":"layers","diff_ids":[]},"rootfs":'),
    "Diff_IDs too": ("config", '"Diff_IDs":[],"diff_ids":'),
    "Labels twice": ("config", '"Labels":{},"Labels":'),
    "Manifests too": ("index", '"Manifests":[],"manifests":'),
    "layers of an index": ("index", '"layers":[],"manifests":'),
}
_KEY = {"Diff_IDs too": '"diff_ids":', "Labels twice": '"Labels":', "another type": f'"mediaType":"{media.MANIFEST}",'}


def ambiguous(stand: Stand, case: str) -> dict[str, tuple[str, bytes]]:
    """Return the media type and content of each blob of an image with a changed document, by its digest."""
    where, text = _TWICE[case]
    layout, manifest = stand.layout, stand.manifest
    config, *layers = layout.children(manifest)
    blobs: dict[str, tuple[str, bytes]] = {one.digest: (one.media_type, layout.read(one)) for one in layers}
    content = {"config": layout.read(config), "manifest": layout.read(manifest), "index": layout.read(stand.index)}
    old = {"config": config, "manifest": manifest, "index": stand.index}
    for name, above in (("config", "manifest"), ("manifest", "index"), ("index", "")):
        if name == where:
            key = _KEY.get(case) or f'"{text.rstrip(":").rpartition(",")[2].strip(chr(34))}":'
            assert content[name].count(key.encode()) == 1
            changed = text if case != "another type" else f'"mediaType":"{media.INDEX}",'
            content[name] = content[name].replace(key.encode(), changed.encode())
        digest = sha256_bytes(content[name])
        blobs[digest] = (old[name].media_type, content[name])
        if above:
            said = content[above].replace(old[name].digest.encode(), digest.encode())
            sizes = (f'"size":{old[name].size}', f'"size":{len(content[name])}')
            at = said.index(digest.encode())
            content[above] = said[:at] + said[at:].replace(sizes[0].encode(), sizes[1].encode(), 1)
    blobs["top"] = (media.INDEX, content["index"])
    return blobs


def _folder(folder: Path, blobs: dict[str, tuple[str, bytes]]) -> str:
    (folder / "blobs" / "sha256").mkdir(parents=True)
    for _, content in blobs.values():
        (folder / "blobs" / sha256_bytes(content).replace(":", "/")).write_bytes(content)
    top = blobs["top"][1]
    entry: dict[str, Any] = {"mediaType": media.INDEX, "digest": sha256_bytes(top), "size": len(top)}
    entry["annotations"] = {media.REF_NAME: NAME}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return f"oci:{folder}:{NAME}"


def _registry(registry: FakeRegistry, blobs: dict[str, tuple[str, bytes]]) -> str:
    for digest, (kind, content) in blobs.items():
        if kind in media.MANIFESTS:
            registry.manifests[NAME if digest == "top" else digest] = (kind, content)
        registry.blobs[sha256_bytes(content)] = content
    return f"{registry.host}/x:{NAME}"


@pytest.mark.parametrize("case", _TWICE)
def test_an_ambiguous_document_is_not_intact(stand: Stand, case: str, tmp_path: Path) -> None:
    blobs = ambiguous(stand, case)
    with fake_registry() as registry:
        for ref in (_folder(tmp_path / "layout", blobs), _registry(registry, blobs)):
            code, said = verify(ref)
            assert code in {13, 17, 22}, said
            assert "\tintact" not in said


def test_document_without_the_change_is_intact(stand: Stand, tmp_path: Path) -> None:
    """The test shows that the documents above are refused because of the change."""
    content = stand.layout.read(stand.index)
    with fake_registry() as registry:
        blobs = {one.digest: (one.media_type, stand.layout.read(one)) for one in stand.layout.walk(stand.index)}
        blobs["top"] = (media.INDEX, content)
        for ref in (_folder(tmp_path / "layout", blobs), _registry(registry, blobs)):
            assert verify(ref)[0] == 0


@pytest.mark.parametrize("kind", [media.MANIFEST, media.DOCKER_INDEX, media.DOCKER_MANIFEST])
def test_index_that_a_registry_serves_with_another_type_is_refused(stand: Stand, kind: str) -> None:
    """Some programs use the media type in the header, and others that in the document."""
    blobs = {one.digest: (one.media_type, stand.layout.read(one)) for one in stand.layout.walk(stand.index)}
    blobs["top"] = (kind, stand.layout.read(stand.index))
    with fake_registry() as registry:
        assert verify(_registry(registry, blobs))[0] in {13, 17}
