"""Reuse of published images: a verified image is taken as if it had been built locally; others are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import FILES, Stand, ed25519_signer, image_facts, small_image
from tests.fake_registry import fake_registry
from tests.places import attach, publish, referrers
from tests.refusals import refused
from toolchain.catalog.base_ref import parse_base
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, EngineError
from toolchain.oci import descriptor as media
from toolchain.oci.image import write_index
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef, RegistryRef, parse
from toolchain.pipeline.plan import find
from toolchain.pipeline.records import read_record
from toolchain.pipeline.reuse import Reuse, make_reuse, reference, take
from toolchain.request.model import Request
from toolchain.stages.prebuilt import known_files
from toolchain.stages.stage import Built, Planned
from toolchain.trust.keys import PublicKey, new_key
from toolchain.trust.statements import gather

FACTS = {"prefix": "/usr/lib64/llvm-triton-10dc3a8e", "blob_bytes": 7, "contract": {"checks": ["mlir"]}}


class Shelf:
    """A layout folder with an image that a key has signed, and an empty cache with a plan for that image."""

    def __init__(self, folder: Path, *, speak: bool = True, **changes: Any) -> None:
        self.stand = Stand(
            Layout(folder / "else where"), folder / "work", image_facts(**{"facts": FACTS, **changes}), ed25519_signer()
        )
        made = self.stand.image_facts.record
        self.planned = Planned(name=made.stage, image=made.image, inputs=made.inputs, has_contract_check=True)
        self.request = Request(cache=Cache(folder / "cache with 'quotes'"))
        self.put()
        if speak:
            self.stand.say_all()

    def put(self) -> None:
        """Tag the image as `publish` does."""
        tag = reference(LayoutRef(self.stand.layout.root), self.planned)
        self.stand.layout.tag(self.stand.index, str(tag.tag))

    def take(self, *, only: bool = True, key: PublicKey | None = None) -> Built | None:
        place = LayoutRef(self.stand.layout.root)
        return take(self.request, self.planned, Reuse(place=place, key=key or self.stand.signer.public, only=only))

    def nothing_came(self) -> None:
        """Check that the cache contains neither a record nor a blob, nor unfinished work."""
        assert find(self.request.cache, self.planned) is None
        assert not list(self.request.cache.root.glob("records/*"))
        assert not list(self.request.cache.root.glob("images/blobs/sha256/*"))
        assert not list(self.request.cache.work.iterdir()), "something is left over"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_verified_image_is_taken_as_if_built(shelf: Shelf) -> None:
    built = shelf.take()
    assert built is not None
    assert built.reused
    assert built.manifest == shelf.stand.manifest.digest
    assert built.taken_from.endswith(f"@{built.manifest}")
    taken = find(shelf.request.cache, shelf.planned)
    assert taken is not None
    assert taken.facts == FACTS, "later stages need them"
    assert taken.layers == built.layers
    Layout(shelf.request.cache.images).verify(taken.layers[-1]["digest"])
    record = read_record(shelf.request.cache, str(shelf.planned.input_digest))
    original = shelf.stand.image_facts.record
    assert record.tool == original.tool
    assert record.finished == original.finished
    assert original.isolation is not None
    assert record.isolation == original.isolation
    assert record.taken_from is not None
    assert record.taken_from.key == shelf.stand.signer.public.id
    assert not list(shelf.request.cache.work.iterdir())


def test_corrupt_blobs_in_the_cache_are_replaced(shelf: Shelf) -> None:
    own = Layout(shelf.request.cache.images).ensure()
    items = (*shelf.stand.layout.children(shelf.stand.manifest), shelf.stand.manifest)
    for item in items:
        own.blob(own.put_file(shelf.stand.layout.blob(item.digest)).digest).write_bytes(b"x" * item.size)
    shelf.take()
    for item in items:
        own.verify(item.digest)


def test_prebuilt_binary_needs_permission_by_its_path(tmp_path: Path) -> None:
    known = known_files()[0]
    shelf = Shelf(tmp_path, binaries=[known.name])
    with refused("prebuilt-forbidden", known.name):
        shelf.take()
    shelf.request = replace(shelf.request, allow_binary=(known.path,))
    assert shelf.take() is not None


def of_another_key(shelf: Shelf) -> None:
    shelf.stand.signer, before = ed25519_signer(), shelf.stand.signer
    shelf.stand.say_all()
    shelf.stand.signer = before


def of_other_inputs(shelf: Shelf) -> None:
    """Put an image of other inputs under the same name, with true and signed statements."""
    facts = image_facts(facts=FACTS, inputs={**shelf.stand.image_facts.record.inputs, "arch": "arm64"})
    shelf.stand.image_facts = facts
    shelf.stand.manifest = small_image(shelf.stand.layout, shelf.stand.work, label=facts.record.input_digest)
    shelf.stand.index = write_index(shelf.stand.layout, [shelf.stand.manifest])
    shelf.put()
    shelf.stand.say_all()


def with_a_lying_label(shelf: Shelf) -> None:
    """Label an image of other inputs with the wanted digest; its provenance names the true inputs."""
    wanted = shelf.stand.image_facts.record.input_digest
    shelf.stand.image_facts = image_facts(
        facts=FACTS, inputs={**shelf.stand.image_facts.record.inputs, "arch": "arm64"}
    )
    shelf.stand.manifest = small_image(shelf.stand.layout, shelf.stand.work, label=wanted)
    shelf.stand.index = write_index(shelf.stand.layout, [shelf.stand.manifest])
    shelf.put()
    shelf.stand.say_all()


def without_a_label(shelf: Shelf) -> None:
    with_a_lying_label(shelf)
    shelf.stand.manifest = small_image(shelf.stand.layout, shelf.stand.work)
    shelf.stand.index = write_index(shelf.stand.layout, [shelf.stand.manifest])
    shelf.put()
    shelf.stand.say_all()


def with_another_layer(shelf: Shelf) -> None:
    shelf.stand.say_all()
    (_, layer) = shelf.stand.layout.children(shelf.stand.manifest)
    path = shelf.stand.layout.blob(layer.digest)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def with_files_unlisted(shelf: Shelf) -> None:
    document = shelf.stand.sbom()
    document["files"] = document["files"][1:]
    shelf.stand.say_all(sbom=document)


def with_a_binary(shelf: Shelf) -> None:
    shelf.stand.image_facts = image_facts(facts=FACTS, binaries=["ptxas"])
    shelf.stand.say_all()


def without_a_report(shelf: Shelf) -> None:
    shelf.stand.image_facts = image_facts(facts={})
    shelf.stand.say_all()


def unchecked(shelf: Shelf) -> None:
    shelf.stand.image_facts = image_facts(facts=FACTS, request={"stage": "llvm", "contract": False})
    shelf.stand.say_all()


def of_another_name(shelf: Shelf) -> None:
    shelf.stand.image_facts = image_facts(facts=FACTS, image="llvm-triton-00000000-debian13")
    shelf.stand.say_all()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda _: None, "signature-missing"),
        (of_another_key, "signature-other-key"),
        (of_other_inputs, "provenance-other-inputs"),
        (with_a_lying_label, "provenance-label-mismatch"),
        (without_a_label, "provenance-other-inputs"),
        (with_another_layer, "blob-digest-mismatch"),
        (with_files_unlisted, "sbom-lacks-file"),
        (with_a_binary, "prebuilt-forbidden"),
        (without_a_report, "provenance-without-report"),
        (unchecked, "provenance-without-contract"),
        (of_another_name, "provenance-other-stage"),
    ],
)
def test_unverified_image_is_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Shelf], None], reason: str
) -> None:
    shelf = Shelf(tmp_path, speak=False)
    damage(shelf)
    with refused(reason):
        shelf.take()
    shelf.nothing_came()
    assert shelf.take(only=False) is None
    errors = " ".join(capsys.readouterr().err.split())
    assert shelf.planned.name in errors, "the reason is told"
    shelf.nothing_came()


def test_binaries_found_by_a_scan_are_recorded(tmp_path: Path) -> None:
    """A plan does not know these binaries, so a later publication would attest that the image has none."""
    shelf = Shelf(tmp_path, speak=False)
    with_a_binary(shelf)
    shelf.request = replace(shelf.request, allow_binary=("ptxas",))
    built = shelf.take()
    assert built is not None
    assert built.binaries == ("ptxas",)
    assert read_record(shelf.request.cache, str(shelf.planned.input_digest)).binaries == ("ptxas",)


def test_missing_compressor_prevents_reuse_but_not_the_build(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(*_: object, **__: object) -> None:
        raise EngineError("test-error", "zstd is not installed")

    monkeypatch.setattr("toolchain.pipeline.reuse.verify", unpack)
    assert shelf.take(only=False) is None
    with pytest.raises(EngineError):
        shelf.take()


def test_unchecked_image_is_taken_if_the_contract_is_disabled(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, speak=False)
    unchecked(shelf)
    shelf.request = replace(shelf.request, contract=False)
    assert shelf.take() is not None


def test_one_valid_statement_among_invalid_ones_suffices(tmp_path: Path) -> None:
    """Each user who may push can add statements, so invalid ones must not prevent the reuse."""
    shelf = Shelf(tmp_path, speak=False)
    of_another_key(shelf)
    with_files_unlisted(shelf)
    shelf.stand.say_all()
    assert shelf.take() is not None


@pytest.mark.parametrize("damage", [unchecked, without_a_report])
@pytest.mark.parametrize("reverse", [False, True])
def test_one_complete_provenance_among_those_of_the_key_suffices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Shelf], None], reverse: bool
) -> None:
    """If the same bytes are built again with a check and a report, the first provenance remains attached."""
    monkeypatch.setattr("toolchain.trust.verify.gather", lambda *given: sorted(
        gather(*given), key=lambda found: found.content, reverse=reverse
    ))  # fmt: skip
    shelf = Shelf(tmp_path)
    damage(shelf)
    built = shelf.take()
    assert built is not None
    assert built.facts == FACTS


def test_missing_image_is_reported(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    shelf.planned = replace(shelf.planned, inputs={**(shelf.planned.inputs or {}), "arch": "arm64"})
    with refused("layout-image-missing"):
        shelf.take()
    assert shelf.take(only=False) is None
    assert "is not available" in capsys.readouterr().err


def test_image_for_other_architecture_is_refused(shelf: Shelf) -> None:
    shelf.request = replace(shelf.request, arch=("arm64",))
    with refused("platform-missing", "linux/arm64"):
        shelf.take()


def test_stage_without_input_digest_is_not_requested(shelf: Shelf) -> None:
    shelf.planned = replace(shelf.planned, inputs=None)
    assert shelf.take(only=False) is None
    with refused("reuse-digest-unknown") as caught:
        shelf.take()
    assert caught.value.code == 5


def test_local_base_is_never_requested(shelf: Shelf) -> None:
    shelf.planned = replace(shelf.planned, name="base")
    shelf.request = replace(shelf.request, base=parse_base(f"oci:{shelf.stand.layout.root}"))
    assert shelf.take() is None


def test_only_the_image_of_the_architecture_is_fetched(tmp_path: Path) -> None:
    """Blobs of the other architectures of an index may be missing."""
    shelf = Shelf(tmp_path, speak=False)
    layout = shelf.stand.layout
    second = small_image(layout, shelf.stand.work, files={**FILES, "more": b"x"}, arch="arm64")
    shelf.stand.index = write_index(layout, [shelf.stand.manifest, second])
    shelf.put()
    shelf.stand.say_all()
    layout.blob(layout.children(second)[1].digest).unlink()
    built = shelf.take()
    assert built is not None
    assert built.manifest == shelf.stand.manifest.digest
    manifest = json.loads(Layout(shelf.request.cache.images).blob(built.manifest).read_bytes())
    assert manifest["mediaType"] == media.MANIFEST


def test_invalid_reuse_options_are_refused(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    public = tmp_path / "key.pub"
    made = make_reuse("oci:/some where", public, only=True, offline=True)
    assert (made.place, made.only) == (parse("oci:/some where"), True)
    for where, key, offline, reason in [
        ("ghcr.io/ns", None, False, "needs --public-key"),
        ("ghcr.io/ns:tag", public, False, "names a single image"),
        ("ghcr.io/ns", public, True, "--offline"),
        ("nonsense", public, False, "not a valid reference"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            make_reuse(where, key, offline=offline)


@pytest.mark.parametrize("good_first", [True, False])
def test_tag_that_changes_between_reads_is_resolved_once(tmp_path: Path, good_first: bool) -> None:
    """The first answer decides, and the record names the digest of those bytes."""
    shelf = Shelf(tmp_path)
    stand = shelf.stand
    older = write_index(stand.layout, [small_image(stand.layout, stand.work, files={"usr/lib64/thing/x": b"old"})])
    with fake_registry() as server:
        tag = str(reference(RegistryRef(server.host, "ns"), shelf.planned).tag)
        ref = RegistryRef(server.host, f"ns/{shelf.planned.image}")
        publish(stand.layout, older, ref.at(tag="older"))
        publish(stand.layout, stand.index, ref.at(tag=tag))
        attach(stand.layout, referrers(stand.ref, stand.manifest.digest), ref)
        good, bad = (server.manifests[name][1] for name in (tag, "older"))
        server.instead[f"GET {tag}"] = [good, *[bad] * 9] if good_first else [bad, *[good] * 9]
        reuse = Reuse(place=RegistryRef(server.host, "ns"), key=stand.signer.public, only=True)
        if good_first:
            built = take(shelf.request, shelf.planned, reuse)
            assert built is not None
            assert built.taken_from.endswith(f"@{stand.manifest.digest}")
        else:
            with refused("signature-missing"):
                take(shelf.request, shelf.planned, reuse)
            shelf.nothing_came()
