"""Builds that take a finished image from a real registry, and builds that do the work instead."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import Stand, finished_base, image_facts
from tests.fault_proxy import Fault, fault_proxy
from tests.integration.conftest import Said
from tests.places import attach, publish, referrers
from tests.registry_fixtures import free_port
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_json
from toolchain.core.errors import UntrustedError
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef, RegistryRef
from toolchain.oci.registry import Registry
from toolchain.pipeline.plan import find, plan
from toolchain.pipeline.records import read_record
from toolchain.pipeline.reuse import Reuse, reference, take
from toolchain.pipeline.run import build
from toolchain.request.model import Request
from toolchain.stages.base import BaseStage
from toolchain.stages.stage import Built, LayerContent, Planned, Workspace
from toolchain.trust.keys import load_public, new_key

pytestmark = pytest.mark.registry
_NUMBERS = itertools.count()
FACTS = {"prefix": "/usr/lib64/thing"}


@pytest.fixture
def place(registry_host: str, tmp_path: Path) -> RegistryRef:
    """Return an unused namespace of the registry."""
    return RegistryRef(registry_host, f"reuse/{abs(hash(str(tmp_path))):x}-{next(_NUMBERS)}")


def call(cache: Cache, *words: str | Path) -> Said:
    """Run a verb in this process, because to start a process for each verb takes most of the time."""
    env = {"TOOLCHAIN_CACHE": str(cache.root), "COLUMNS": "200"}
    done = CliRunner().invoke(app, [str(word) for word in words], env=env)
    return Said(done.exit_code, done.stdout, done.stderr)


class Two:
    """A machine that has built a base, and one that needs the base and has only the list of its packages."""

    def __init__(self, folder: Path, place: RegistryRef) -> None:
        self.place = place
        self.one, self.other = Cache(folder / "one"), Cache(folder / "the other")
        self.key, self.stranger = folder / "key", folder / "stranger"
        for key in (self.key, self.stranger):
            new_key(key)
        self.built = finished_base(self.one, folder / "work")
        shutil.copytree(self.one.root / "locked", self.other.root / "locked")

    def publish(self, cache: Cache, *words: str | Path) -> Said:
        return call(cache, "publish", str(self.place), "toolchain-base", "--json", *words)

    def build(self, *words: str | Path, place: str = "") -> Said:
        return call(self.other, "build", "base", "--json", "--reuse-from", place or str(self.place), *words)

    def planned_as_reused(self) -> bool:
        rows = call(self.other, "plan", "base", "--json").json["stages"]
        return bool(rows[0]["reused"])


@pytest.fixture
def two(tmp_path: Path, place: RegistryRef, monkeypatch: pytest.MonkeyPatch) -> Two:
    monkeypatch.setattr("toolchain.core.web.LONGEST_BACKOFF", 0.01)
    monkeypatch.setattr("toolchain.oci.shared_tag.CALM", (0.0,))  # each repository has one publisher
    return Two(tmp_path, place)


def test_signed_base_is_taken_from_a_registry(two: Two) -> None:
    assert two.publish(two.one, "--key", two.key).code == 0
    assert not two.planned_as_reused(), "a plan asks nobody"
    said = two.build("--public-key", f"{two.key}.pub", "--reuse-only")
    assert said.code == 0, said.err
    (row,) = said.json["stages"]
    assert row["reused"] is True
    assert row["taken_from"].startswith(f"{two.place}/{two.built.planned.image}@sha256:")
    assert row["facts"] == json.loads(json.dumps(dict(two.built.facts)))
    assert two.planned_as_reused()
    # The base is in the cache now, so the tool needs no registry.
    dead = f"127.0.0.1:{free_port()}/ns"
    again = two.build("--public-key", f"{two.key}.pub", "--reuse-only", place=dead)
    assert again.code == 0, again.err
    assert "taken_from" not in again.json["stages"][0]
    # The other machine sends nothing, because the registry has the same image and the same evidence.
    (passed,) = two.publish(two.other, "--key", two.key).json["published"]
    assert (passed["pushed_bytes"], passed["evidence"]["pushed_bytes"]) == (0, 0)
    ref = f"{two.place}/{two.built.planned.image}"
    assert call(two.other, "verify", ref, "--public-key", f"{two.key}.pub").code == 0


def test_reuse_only_exits_with_a_code_for_each_failure(two: Two, registry_host: str) -> None:
    public = f"{two.key}.pub"
    none = two.build("--public-key", public, "--reuse-only")
    assert none.code == 13, none.err
    assert two.publish(two.one).code == 0
    unsigned = two.build("--public-key", public, "--reuse-only")
    assert (unsigned.code, "[signature-missing]" in unsigned.err) == (17, True)
    assert two.publish(two.one, "--key", two.stranger).code == 0
    strange = two.build("--public-key", public, "--reuse-only")
    assert (strange.code, "is signed by the key" in strange.err) == (17, True)
    assert two.publish(two.one, "--key", two.key).code == 0
    with fault_proxy(registry_host) as proxy:
        # The proxy changes one bit of each blob.
        proxy.faults.append(Fault("flip", "GET", "/blobs/", times=-1, after=5))
        flipped = two.build("--public-key", public, "--reuse-only", place=f"{proxy.host}/{two.place.repository}")
    assert flipped.code == 17, flipped.err
    dead = two.build("--public-key", public, "--reuse-only", place=f"127.0.0.1:{free_port()}/ns")
    assert dead.code == 18
    keyless = two.build("--reuse-only")
    assert (keyless.code, "--public-key" in keyless.err) == (3, True)
    lonely = call(two.other, "build", "base", "--reuse-only")
    assert (lonely.code, "--reuse-from" in lonely.err) == (3, True)
    assert not two.planned_as_reused()
    assert two.build("--public-key", public, "--reuse-only").code == 0


@pytest.fixture
def built_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the build of a base by one of a single file, and return the list of the images that it builds."""
    built: list[str] = []

    def by_hand(self: BaseStage, planned: Planned, dependencies: object, workspace: Workspace) -> Built:
        built.append(planned.image)
        tree = workspace.work() / "tree"
        (tree / "etc").mkdir(parents=True)
        (tree / "etc" / "os-release").write_text("ID=debian\n")
        return workspace.finish(planned, LayerContent(tree=tree, compress=False), facts={"packages": 1})

    monkeypatch.setattr(BaseStage, "build", by_hand)
    return built


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("unreachable", "cannot be looked up"),
        ("absent", "is not available"),
        ("unsigned", "does not verify"),
        ("signed by a stranger", "does not verify"),
        ("changed on the way", "does not verify"),
    ],
)
def test_base_is_built_if_the_registry_provides_no_verified_image(
    two: Two, built_here: list[str], capsys: pytest.CaptureFixture[str], fault: str, reason: str
) -> None:
    """The bytes of the registry's image must not be in the result, although the registry has the image."""
    place = two.place
    with contextlib.ExitStack() as stack:
        match fault:
            case "unreachable":
                place = RegistryRef(f"127.0.0.1:{free_port()}", "ns")
            case "unsigned":
                assert two.publish(two.one).code == 0
            case "signed by a stranger":
                assert two.publish(two.one, "--key", two.stranger).code == 0
            case "changed on the way":
                assert two.publish(two.one, "--key", two.key).code == 0
                proxy = stack.enter_context(fault_proxy(place.host))
                proxy.faults.append(Fault("flip", "GET", "/blobs/", times=-1, after=5))
                place = RegistryRef(proxy.host, place.repository)
        request, reuse = Request(cache=two.other), Reuse(place=place, key=load_public(Path(f"{two.key}.pub")))
        capsys.readouterr()
        (built,) = build(request, "base", reuse=reuse)
    assert (built_here, built.reused, built.taken_from) == ([two.built.planned.image], False, "")
    assert built.manifest != two.built.manifest
    told = " ".join(capsys.readouterr().err.split())
    assert f"{reason}, so it is built here" in told
    there = plan(request, "base")[0].built
    assert there is not None
    assert there.manifest == built.manifest
    assert read_record(two.other, built.input_digest).taken_from is None


class Shelf:
    """An image and the evidence about it, in a registry."""

    def __init__(self, folder: Path, place: RegistryRef) -> None:
        self.place = place
        self.stand = Stand(Layout(folder / "lay out"), folder / "stand", image_facts(facts=FACTS))
        made = self.stand.image_facts.record
        self.planned = Planned(name=made.stage, image=made.image, inputs=made.inputs)
        self.request = Request(cache=Cache(folder / "cache"))

    def push(self) -> None:
        target = reference(self.place, self.planned)
        assert isinstance(target, RegistryRef)
        publish(self.stand.layout, self.stand.index, target.at(), [str(target.tag)])
        with Registry(target.host, login="") as registry:
            for subject in (self.stand.manifest, self.stand.index):
                found = list(referrers(LayoutRef(self.stand.layout.root), subject.digest))
                if found:
                    attach(self.stand.layout, found, target, registry=registry)

    def take(self) -> Built | None:
        return take(self.request, self.planned, Reuse(place=self.place, key=self.stand.signer.public, only=True))


@pytest.fixture
def shelf(tmp_path: Path, place: RegistryRef) -> Shelf:
    return Shelf(tmp_path, place)


def test_layer_replaced_in_the_registry_is_untrusted(shelf: Shelf) -> None:
    """The name has another layer, with its own manifest and index; the signatures are about the first."""
    shelf.stand.say_all()
    shelf.push()
    stand = shelf.stand
    config, layer = stand.layout.children(stand.manifest)
    evil = stand.layout.put_bytes(b"not the layer", layer.media_type)
    value = json.loads(stand.layout.read(stand.manifest))
    value["layers"] = [evil.as_json()]
    assert sha256_json(value) != stand.manifest.digest
    manifest = stand.layout.put_json(value, stand.manifest.media_type)
    index = json.loads(stand.layout.read(stand.index))
    index["manifests"][0].update(digest=manifest.digest, size=manifest.size)
    stand.index = stand.layout.put_json(index, stand.index.media_type)
    target = reference(shelf.place, shelf.planned)
    assert isinstance(target, RegistryRef)
    publish(stand.layout, stand.index, target.at(), [str(target.tag)])
    with pytest.raises(UntrustedError) as caught:
        shelf.take()
    assert "digests:" in str(caught.value)
    assert find(shelf.request.cache, shelf.planned) is None
    assert config.digest != evil.digest
