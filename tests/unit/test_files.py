"""Tests of plain files that are published as an artifact of an image: format, verification and names."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.evidence_fixtures import FINISHED, Stand, ed25519_signer, image_facts, wrong
from tests.places import folder, gather, verify
from tests.refusals import refused
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import SourceError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.files import TYPE, PlainFile, is_plain_name, read_files, tag_of, write_files
from toolchain.oci.labels import TITLE
from toolchain.oci.layout import Layout
from toolchain.oci.layout_place import resolve
from toolchain.oci.reference import LayoutRef
from toolchain.pipeline.reuse import Reuse, reference
from toolchain.publish.artifacts import DeliveredFiles, bring_wheels, deliver_files
from toolchain.publish.attestations import attach_to_files
from toolchain.publish.consumer import use_of
from toolchain.publish.images import deliver
from toolchain.publish.plain_files import write_archives
from toolchain.request.model import Request
from toolchain.sources.store import Store
from toolchain.stages.stage import Built, Planned
from toolchain.trust.policy import Policy
from toolchain.trust.verify import Verdict

WHEEL = "triton-3.7.1-cp313-cp313-linux_x86_64.whl"
CONTENT = b"PK a wheel"
NOW = datetime.fromtimestamp(FINISHED, UTC) + timedelta(days=10)
HOSTILE = ["../evil", "a/b", "/etc/passwd", "..", ".", ".bashrc", "", "a\\b", "a\x1b[2J", "a b", "x" * 300]


class Shop:
    """A Triton that was built with its wheel, and the folder to which it is published."""

    def __init__(self, work: Path, **facts: Any) -> None:
        self.facts = {"wheels": [{"file": WHEEL, "digest": sha256_bytes(CONTENT)}], "contract": {"seconds": 7}, **facts}
        said = image_facts(stage="triton", image="triton-3.7.1", facts=self.facts)
        self.stand = Stand(Layout(work / "lay out"), work / "stand", said)
        self.request = Request(cache=Cache(work / "cache"))
        self.keep(self.request, CONTENT)
        self.planned = Planned(name="triton", image="triton-3.7.1", inputs=said.record.inputs)
        self.built = Built(
            planned=self.planned, input_digest=said.record.input_digest, manifest=self.stand.manifest.digest, layers=(),
            facts=self.facts,
        )  # fmt: skip
        self.place = folder(self.stand.layout)

    @staticmethod
    def keep(request: Request, content: bytes) -> None:
        """Put a wheel into the store."""
        request.cache.work.mkdir(parents=True, exist_ok=True)
        file = request.cache.work / WHEEL
        file.write_bytes(content)
        Store(request.cache.store).add_file(file, sha256_bytes(content), name=WHEEL)

    def publish(self, *, signed: bool = True, zstd: bool = False) -> DeliveredFiles:
        """Publish the files, as `publish --files` does after the image."""
        short = self.built.input_digest.removeprefix("sha256:")[:12]
        tags = ("zstd", f"{short}-zstd") if zstd else ("", short)
        refs = [self.stand.ref.image("triton-3.7.1", tag_of(name)) for name in tags]
        signer = self.stand.signer if signed else None
        done = deliver_files(
            self.request.cache, [self.stand.image_facts], self.stand.index, self.place, refs, signer=signer
        )
        assert done is not None
        return done

    def tagged(self, value: Any, blobs: tuple[bytes, ...] = ()) -> Descriptor:
        """Add a manifest that anyone can make under the tags of the files, and return its descriptor."""
        layout = self.stand.layout
        for blob in (b"{}", *blobs):
            layout.put_bytes(blob, media.EMPTY)
        made = replace(layout.put_json(value, media.MANIFEST), artifact_type=TYPE)
        short = self.built.input_digest.removeprefix("sha256:")[:12]
        for tag in (tag_of(), tag_of(short)):
            layout.tag(made, f"triton-3.7.1.{tag}")
        return made

    def manifest(self, *files: tuple[str, bytes]) -> dict[str, Any]:
        """Return the manifest of an artifact with these files."""
        layers = [
            {"mediaType": "application/zip", "digest": sha256_bytes(content), "size": len(content),
             "annotations": {TITLE: name}}
            for name, content in files
        ]  # fmt: skip
        config = {"mediaType": media.EMPTY, "digest": sha256_bytes(b"{}"), "size": 2}
        subject = self.stand.index.plain.as_json()
        return {"schemaVersion": 2, "mediaType": media.MANIFEST, "artifactType": TYPE, "config": config,
                "layers": layers, "subject": subject}  # fmt: skip

    def judge(self, found: Descriptor | str, *, key: bool = True, **demands: Any) -> Verdict:
        """Return the verdict of `verify`."""
        layout = self.stand.layout
        top = layout.resolve(found) if isinstance(found, str) else found
        who = self.stand.signer.public if key else None
        return verify(self.stand.ref, layout, top, key=who, demands=Policy(**demands), now=NOW)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_artifact_contains_report_and_wheel_and_refers_to_the_image(shop: Shop) -> None:
    done = shop.publish()
    layout = shop.stand.layout
    value = json.loads(layout.read(layout.resolve(done.digest)))
    assert (value["artifactType"], value["config"]["mediaType"]) == (TYPE, media.EMPTY)
    assert value["subject"]["digest"] == shop.stand.index.digest
    titles = [(one["annotations"][TITLE], one["mediaType"]) for one in value["layers"]]
    assert titles == [("triton-3.7.1-amd64.report.json", "application/json"), (WHEEL, "application/zip")]
    assert layout.blob(value["layers"][1]["digest"]).read_bytes() == CONTENT
    report = json.loads(layout.blob(value["layers"][0]["digest"]).read_bytes())
    assert report["facts"] == {"wheels": shop.facts["wheels"], "contract": {}}, "what took how long is of this machine"
    short = shop.built.input_digest.removeprefix("sha256:")[:12]
    assert done.refs == tuple(f"{shop.stand.ref}:triton-3.7.1.{tag}" for tag in ("files", f"{short}-files"))
    assert [str(layout.refs()[ref.rpartition(":")[2]].digest) for ref in done.refs] == [done.digest] * 2
    listed = [one.artifact_type for one in shop.place.referrers(shop.stand.index.digest)]
    assert listed == [TYPE], "the files lie beside the image, and are found from there"
    assert list(shop.request.cache.work.iterdir()) == []


def test_signed_files_are_trusted_if_they_satisfy_the_policy(shop: Shop) -> None:
    done = shop.publish()
    assert (done.evidence.kinds, done.evidence.signed_by) == (("provenance",), shop.stand.signer.public.id)
    good = shop.judge(done.digest, source_only=True, max_age=11, image="triton-3.7.1", allow=("libdevice",),
                      source_repos=("https://github.com/llvm/llvm-project",))  # fmt: skip
    assert (good.verdict, good.problems) == ("trusted", [])
    assert "(2)" in good.checks["provenance"]
    assert {"digests", "signature", "provenance", "source-repo", "age", "policy"} == good.checks.keys()
    for demands, told in (
        ({"max_age": 9}, "age: the build ended"),
        ({"source_repos": ("https://github.com/other/llvm",)}, "source-repo: the source llvm comes from"),
    ):
        judged = shop.judge(done.digest, **demands)
        assert (judged.verdict, told in judged.problems[0]) == ("untrusted", True)
    # The signed statement also names the wheel, for users who have only the wheel.
    (evidence,) = gather(shop.stand.ref, [done.digest], shop.stand.layout)
    subject = json.loads(evidence.envelope().payload)["subject"]
    assert {"name": WHEEL, "digest": {"sha256": sha256_bytes(CONTENT).removeprefix("sha256:")}} in subject


def test_unsigned_files_are_intact_without_a_key_and_refused_with_a_key(shop: Shop) -> None:
    done = shop.publish(signed=False)
    assert (done.evidence.kinds, done.evidence.pushed_bytes) == ((), 0)
    assert shop.judge(done.digest, key=False).verdict == "intact"
    assert shop.judge(done.digest).id == "signature-missing"


def test_files_are_trusted_only_with_a_signature_by_the_given_key(shop: Shop) -> None:
    done = shop.publish(signed=False)
    layout = shop.stand.layout
    manifest = layout.resolve(done.digest)
    made = [(shop.stand.image_facts, read_files(layout.read_json(manifest), manifest))]
    attach_to_files(made, manifest, shop.place, signer=ed25519_signer(), scratch=shop.request.cache.work)
    assert shop.judge(done.digest).id == "signature-other-key"
    attach_to_files(made, manifest, shop.place, signer=shop.stand.signer, scratch=shop.request.cache.work)
    assert shop.judge(done.digest).verdict == "trusted", "one good one is enough"


def test_file_that_no_signed_statement_names_is_refused(shop: Shop) -> None:
    """The statement is about this artifact and is signed by the key, but it does not name all files."""
    done = shop.publish(signed=False)
    layout = shop.stand.layout
    manifest = layout.resolve(done.digest)
    report, wheel = read_files(layout.read_json(manifest), manifest)
    for named in ([report], [report, PlainFile("other.whl", wheel.blob)], [report, PlainFile(WHEEL, report.blob)]):
        made = [(shop.stand.image_facts, named)]
        attach_to_files(made, manifest, shop.place, signer=shop.stand.signer, scratch=shop.request.cache.work)
        assert wrong(shop.judge(done.digest), WHEEL) == "artifact-not-named"
    # A second statement names the wheel, as in an artifact for several architectures.
    made = [(shop.stand.image_facts, [wheel])]
    attach_to_files(made, manifest, shop.place, signer=shop.stand.signer, scratch=shop.request.cache.work)
    assert shop.judge(done.digest).verdict == "trusted"


def test_changed_or_missing_file_is_reported(shop: Shop) -> None:
    done = shop.publish()
    blob = shop.stand.layout.blob(done.files[1].blob.digest)
    blob.write_bytes(CONTENT[:-1] + b"X")
    assert shop.judge(done.digest).id == "content-changed"
    blob.unlink()
    assert shop.judge(done.digest).id == "content-missing"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_name_is_refused(shop: Shop, tmp_path: Path, name: str) -> None:
    assert not is_plain_name(name)
    made = shop.tagged(shop.manifest((name, CONTENT)), (CONTENT,))
    for key in (True, False):
        assert shop.judge(made, key=key).id == "artifact-names-unusable"
    assert other_machine(shop, tmp_path) == []
    # Such a name is also refused in a signed report.
    odd = Shop(tmp_path / "odd", wheels=[{"file": name, "digest": sha256_bytes(CONTENT)}])
    with refused("wheel-name-unsafe"):
        write_archives(odd.request.cache, [odd.stand.image_facts.record], tmp_path / "out" / "deep")
    assert list((tmp_path / "out" / "deep").iterdir()) == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["deep"]


def test_duplicate_file_name_is_refused(shop: Shop, tmp_path: Path) -> None:
    made = shop.tagged(shop.manifest((WHEEL, CONTENT), (WHEEL, b"other")), (CONTENT, b"other"))
    assert f"contains {WHEEL} twice" in shop.judge(made).problems[0]
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        (tmp_path / part / WHEEL).write_text(part)
    with refused("files-same-name"):
        write_files(shop.stand.layout, shop.stand.index, [tmp_path / "a" / WHEEL, tmp_path / "b" / WHEEL], title="x")


def other_machine(shop: Shop, work: Path) -> list[str]:
    """Return the names of the wheels that are available on a machine that reused the image and did not build it."""
    request = Request(cache=Cache(work / "other cache"))
    request.cache.work.mkdir(parents=True)
    bring_wheels(request, [shop.built], Reuse(place=shop.stand.ref, key=shop.stand.signer.public))
    if not request.cache.store.exists():
        return []
    out = work / "other out"
    try:
        written = write_archives(request.cache, [shop.stand.image_facts.record], out)
        return [path.name for path in written if path.read_bytes() == CONTENT]
    except SourceError:
        return []


def test_wheels_of_a_reused_image_are_fetched(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The image contains the wheel unpacked, so `build --archive` needs the published files."""
    assert other_machine(shop, tmp_path) == []
    assert "triton: cannot fetch the wheels of triton-3.7.1" in " ".join(capsys.readouterr().err.split())
    shop.publish()
    assert other_machine(shop, tmp_path / "again") == [WHEEL]
    # The first machine has the wheel, so it does not access the place, which does not exist.
    bring_wheels(shop.request, [shop.built], Reuse(place=LayoutRef(tmp_path / "none"), key=shop.stand.signer.public))
    assert capsys.readouterr().err.count("no wheels") == 0


def test_wheels_of_an_image_with_zstd_layers_are_fetched(shop: Shop, tmp_path: Path) -> None:
    shop.publish(zstd=True)
    assert other_machine(shop, tmp_path) == [WHEEL]


def test_wheel_is_used_only_if_it_has_the_digest_in_the_report(shop: Shop, tmp_path: Path) -> None:
    evil = CONTENT[:-1] + b"X"
    shop.tagged(shop.manifest((WHEEL, evil)), (evil,))
    assert other_machine(shop, tmp_path / "one") == []
    value = shop.manifest((WHEEL, CONTENT))
    shop.tagged(value, (CONTENT,))
    shop.stand.layout.blob(sha256_bytes(CONTENT)).write_bytes(evil)
    assert other_machine(shop, tmp_path / "two") == []
    shop.stand.layout.blob(sha256_bytes(CONTENT)).write_bytes(CONTENT)
    value["artifactType"] = "application/vnd.example"
    shop.tagged(value)
    assert other_machine(shop, tmp_path / "three") == []
    value["artifactType"] = TYPE
    shop.tagged(value)
    assert other_machine(shop, tmp_path / "four") == [WHEEL]


def test_folder_reference_resolves_to_the_image_and_not_to_its_files(shop: Shop) -> None:
    shop.publish()
    assert resolve(shop.stand.ref).digest == shop.stand.index.digest
    assert reference(shop.stand.ref, shop.planned) != shop.stand.ref
    shop.stand.layout.untag("thing")
    assert resolve(shop.stand.ref).artifact_type == TYPE, "alone it is what is meant"
    use = use_of(shop.stand.layout, resolve(shop.stand.ref), shop.stand.ref)
    assert (use.kind, "oras pull" in use.unknown[0]) == ("unknown", True)


def test_option_files_is_refused_for_a_stage_without_files(tmp_path: Path) -> None:
    records: list[Any] = [SimpleNamespace(stage="base")]
    with refused("option-not-for-stage"):
        deliver(Cache(tmp_path), records, LayoutRef(tmp_path / "to"), files=True)


def test_artifact_contains_the_files_of_two_architectures(shop: Shop, tmp_path: Path) -> None:
    """Each build names its own files; the order in which they are given does not matter."""
    paths = [tmp_path / f"llvm-{arch}.tar.gz" for arch in ("amd64", "arm64")]
    layout = shop.stand.layout
    made = []
    for order in (paths, paths[::-1]):
        for path in paths:
            path.write_text(path.name)
        made.append(write_files(layout, shop.stand.index, order, title="x"))
    first, second = made
    assert first == second
    shop.place.attach(layout, shop.stand.index.digest, [first])
    by_build = [(shop.stand.image_facts, [one]) for one in read_files(layout.read_json(first), first)]
    attach_to_files(by_build, first, shop.place, signer=shop.stand.signer, scratch=tmp_path / "scratch")
    assert "(2)" in shop.judge(first).checks["provenance"]
