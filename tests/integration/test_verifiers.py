"""Other programs verify images published with a key: cosign, skopeo (as podman does) and npm's @sigstore/verify.

They run with an empty home, in a network of their own that contains only the registry.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import Stand, ed25519_signer, p256_signer, small_image
from tests.places import attach, attach_evidence, attach_layers, publish, referrers
from tests.registry_fixtures import running_registry
from tests.verifier_programs import Island, island, npm_modules, unpacked
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.image import write_index
from toolchain.oci.layout import Layout
from toolchain.oci.reference import RegistryRef
from toolchain.oci.referrers import write_artifact
from toolchain.oci.registry import Registry
from toolchain.oci.tagged import Tagged, about_tag
from toolchain.trust import attest, cosign, keyless, sbom

pytestmark = pytest.mark.registry
KEYS = {"ed25519": ed25519_signer, "p256": p256_signer}
FORMS = ("tags", "tags and bundles")
SUBJECTS = ("manifest", "index")
# These messages are about missing evidence, another key or another image, and not about a network that fails.
_REFUSED = re.compile(
    r"no matching (signatures|attestations)|no signatures found|invalid signature|failed to verify signature"
    r"|could not verify|does not match|no valid|cryptographic signature verification failed"
)


@dataclass(frozen=True)
class Published:
    """An image with evidence of one key, and another image to which a stranger attached that evidence."""

    ref: RegistryRef
    digests: dict[str, str]
    strangers: dict[str, str]
    key: Path
    bundles: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Shelf:
    """All published images, and the network in which the registry serves them."""

    island: Island
    published: dict[tuple[str, str], Published]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    folder = tmp_path_factory.mktemp("verifiers")
    wanted = list(itertools.product(KEYS, FORMS))
    with (
        pytest.MonkeyPatch.context() as patch,
        running_registry(folder / "registry") as host,
        ThreadPoolExecutor(len(wanted)) as pool,
    ):
        patch.setattr("toolchain.oci.shared_tag.CALM", (0.0,))  # each repository has one publisher
        made = dict(zip(wanted, pool.map(lambda one: _publish(folder, host, *one), wanted), strict=True))
    config = folder / "registry" / "config.yml"
    with island(folder / "home", "docker-registry", "serve", config, port=int(host.rpartition(":")[2])) as alone:
        yield Shelf(alone, made)


def _publish(folder: Path, host: str, key: str, form: str) -> Published:
    name = f"{key}-{FORMS.index(form)}"
    signer = replace(KEYS[key](), bundles=form != "tags")
    stand = Stand(Layout(folder / f"layout {name}"), folder / f"work {name}", signer=signer)
    with Registry(host, login="") as registry:
        return _publish_one(folder, registry, stand, RegistryRef(host, f"ns/{name}"))


def _publish_one(folder: Path, registry: Registry, stand: Stand, ref: RegistryRef) -> Published:
    layout = stand.layout
    other = small_image(layout, stand.work, files={"usr/lib64/thing/bin/tool": b"another"})
    others = {"manifest": other, "index": write_index(layout, [other])}
    mine = {"manifest": stand.manifest, "index": stand.index}
    for index in (stand.index, others["index"]):
        publish(layout, index, ref, ["latest"], registry=registry)
    once, again = (
        attach_evidence(
            stand.image_facts, layout, stand.manifest, stand.index, ref,
            signer=stand.signer, registry=registry, scratch=stand.work / "scratch",
        )
        for _ in range(2)
    )  # fmt: skip
    assert once.pushed_bytes > 0
    assert again.pushed_bytes == 0, "published twice"
    for what, subject in mine.items():
        _plant(layout, registry, ref, subject, others[what])
    path = folder / f"{ref.repository.rpartition('/')[2]}.pub"
    path.write_bytes(stand.signer.public.pem())
    return Published(
        ref,
        {what: one.digest for what, one in mine.items()},
        {what: one.digest for what, one in others.items()},
        path,
        tuple(_bundles(layout, registry, ref, stand.manifest)),
    )


def _bundles(layout: Layout, registry: Registry, ref: RegistryRef, subject: Descriptor) -> Iterator[dict[str, Any]]:
    for one in referrers(ref, subject.digest, registry=registry):
        if one.artifact_type == keyless.MEDIA_TYPE:
            content = registry.get_manifest(ref.repository, one.digest)[1]
            blob = Descriptor.from_json(json.loads(content)["layers"][0])
            registry.pull_blob(ref.repository, blob, layout)
            yield layout.read_json(blob)


def _plant(layout: Layout, registry: Registry, ref: RegistryRef, mine: Descriptor, other: Descriptor) -> None:
    """Attach all evidence about one image to another, as everyone who may push can."""
    said = []
    kinds: tuple[Any, ...] = ("sig", "att")
    for kind in kinds:
        content = json.loads(registry.get_manifest(ref.repository, about_tag(mine.digest, kind))[1])
        layers = [Descriptor.from_json(one) for one in content["layers"]]
        for layer in layers:
            registry.pull_blob(ref.repository, layer, layout)
        said.append(Tagged(other.digest, kind, tuple(layers)))
    attach_layers(layout, said, ref, registry=registry)
    found = [json.dumps(one, sort_keys=True) for one in _bundles(layout, registry, ref, mine)]
    artifacts = [
        write_artifact(
            layout, other, layout.put_bytes(one.encode(), keyless.MEDIA_TYPE), artifact_type=keyless.MEDIA_TYPE,
            annotations=cosign.bundle_notes(attest.PREDICATE),
        )
        for one in found
    ]  # fmt: skip
    if artifacts:
        attach(layout, artifacts, ref, registry=registry)


def _cosign(shelf: Shelf, program: Path, verb: str, ref: str, key: Path) -> subprocess.CompletedProcess[str]:
    what, _, kind = verb.partition(" ")
    typed = ["--type", kind] if kind else []
    options = ["--insecure-ignore-tlog=true", "--allow-http-registry", "--key", str(key)]
    return shelf.island.run(program, what, *typed, *options, ref)


VERBS = {
    "verify": None,
    "verify-attestation slsaprovenance1": attest.PREDICATE,
    "verify-attestation spdxjson": sbom.SPDX.predicate,
    "verify-attestation cyclonedx": sbom.CYCLONEDX.predicate,
}


def pairwise(*values: Iterable[str], often: Set[tuple[str, ...]]) -> list[Any]:
    """Return all combinations as parameters; those that are not in `often` are left to the nightly run."""
    combinations = list(itertools.product(*values))
    assert often <= set(combinations)
    return [pytest.param(*one, marks=[] if one in often else pytest.mark.nightly) for one in combinations]


# These cases combine each value of a parameter with each value of every other one.
COSIGNS = {
    ("2.5.0", "tags", "ed25519", "manifest"),
    ("2.5.0", "tags and bundles", "p256", "index"),
    ("3.1.1", "tags", "p256", "index"),
    ("3.1.1", "tags and bundles", "ed25519", "index"),
    ("3.1.1", "tags and bundles", "p256", "manifest"),
}


@pytest.mark.parametrize(
    ("version", "form", "key", "subject"), pairwise(["2.5.0", "3.1.1"], FORMS, KEYS, SUBJECTS, often=COSIGNS)
)
def test_cosign_accepts_only_the_right_key_and_image(
    shelf: Shelf, version: str, form: str, key: str, subject: str
) -> None:
    program = unpacked(f"cosign-{version}") / "usr" / "bin" / "cosign"
    one = shelf.published[key, form]
    wrong = shelf.published[key, next(other for other in FORMS if other != form)].key
    mine, stranger = one.ref.at(digest=one.digests[subject]), one.ref.at(digest=one.strangers[subject])
    cases = [(verb, *case) for verb in VERBS for case in ((mine, one.key), (mine, wrong), (stranger, one.key))]
    with ThreadPoolExecutor(9) as pool:
        said = list(pool.map(lambda case: _cosign(shelf, program, case[0], str(case[1]), case[2]), cases))
    for (verb, ref, by), done in zip(cases, said, strict=True):
        if (ref, by) == (mine, one.key):
            assert done.returncode == 0, f"{verb} {ref}: {done.stderr}"
            if kind := VERBS[verb]:
                statement = json.loads(base64.b64decode(json.loads(done.stdout.splitlines()[0])["payload"]))
                assert statement["predicateType"] == kind
        else:
            assert done.returncode != 0, f"{verb} {ref} with {by.name} was accepted"
            assert _REFUSED.search(done.stderr), f"{verb} {ref}: {done.stderr}"


@dataclass(frozen=True)
class Skopeo:
    """skopeo with the libc that it was built for, in the network of the registry."""

    island: Island
    folder: Path

    def __call__(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        root, libraries = unpacked("skopeo-1.18.0"), "usr/lib/x86_64-linux-gnu"
        loader = root / "usr/lib64/ld-linux-x86-64.so.2"
        path = f"{root / libraries}:/{libraries}"
        done = self.island.run(loader, "--library-path", path, root / "usr/bin/skopeo", *words)
        if "error while loading shared libraries" in done.stderr or "not found (required by" in done.stderr:
            pytest.skip(f"skopeo 1.18.0 does NOT RUN here: its policy is not tried ({done.stderr.strip()[:200]})")
        return done

    def look(self, name: str, ref: RegistryRef, key: Path, **identity: str) -> subprocess.CompletedProcess[str]:
        """Copy an image under a policy that demands a signature."""
        folder = self.folder / name
        (folder / "registries.d").mkdir(parents=True)
        (folder / "registries.d" / "all.yaml").write_text("default-docker:\n  use-sigstore-attachments: true\n")
        named = identity or {"type": "matchRepository"}
        demand = {"type": "sigstoreSigned", "keyPath": str(key), "signedIdentity": named}
        policy = {"default": [{"type": "reject"}], "transports": {"docker": {ref.host: [demand]}}}
        (folder / "policy.json").write_text(json.dumps(policy))
        return self(
            "copy", "--all", "--policy", folder / "policy.json", "--registries.d", folder / "registries.d",
            "--src-tls-verify=false", f"docker://{ref}", f"dir:{folder / 'out'}",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "subject"), pairwise(KEYS, SUBJECTS, often={("ed25519", "index"), ("p256", "manifest")})
)
def test_skopeo_accepts_only_the_right_key_and_image(shelf: Shelf, tmp_path: Path, key: str, subject: str) -> None:
    """podman, CRI-O and skopeo share this kind of policy."""
    skopeo = Skopeo(shelf.island, tmp_path)
    one, wrong = (shelf.published[key, form] for form in FORMS)
    mine, stranger = one.ref.at(digest=one.digests[subject]), one.ref.at(digest=one.strangers[subject])
    good = skopeo.look("good", mine, one.key)
    assert good.returncode == 0, good.stderr
    for name, ref, by in (("key", mine, wrong.key), ("digest", stranger, one.key)):
        done = skopeo.look(name, ref, by)
        assert done.returncode != 0, f"{ref} with {by.name} was accepted"
        assert "rejected" in done.stderr


def test_copied_layout_is_verified_by_the_name_of_its_image(shelf: Shelf, tmp_path: Path) -> None:
    """skopeo copies a layout's tags to a registry. The signature names the image, and not a place."""
    stand = Stand(Layout(tmp_path / "folder"), tmp_path / "work")
    done = attach_evidence(
        stand.image_facts,
        stand.layout,
        stand.manifest,
        stand.index,
        stand.ref,
        signer=stand.signer,
        scratch=tmp_path / "s",
    )
    key = tmp_path / "key.pub"
    key.write_bytes(stand.signer.public.pem())
    skopeo = Skopeo(shelf.island, tmp_path)
    host = next(iter(shelf.published.values())).ref.host
    for tag in ("thing", *done.tags):
        words = ("copy", "--all", "--insecure-policy", "--dest-tls-verify=false")
        copied = skopeo(*words, f"oci:{stand.layout.root}:{tag}", f"docker://{host}/ns/copied:{tag}")
        assert copied.returncode == 0, copied.stderr
    ref = RegistryRef(host, "ns/copied", digest=stand.index.digest)
    exact = {"type": "exactRepository", "dockerRepository": stand.image_facts.record.image}
    assert skopeo.look("exact", ref, key, **exact).returncode == 0
    assert "is not accepted" in skopeo.look("place", ref, key).stderr
    program = unpacked("cosign-2.5.0") / "usr" / "bin" / "cosign"
    assert _cosign(shelf, program, "verify", str(ref), key).returncode == 0


def test_npm_sigstore_verify_accepts_only_the_right_key_and_image(shelf: Shelf) -> None:
    """Each bundle is verified with its key, with another key, and for another image."""
    folder = npm_modules()
    cases, wanted = [], []
    for key in KEYS:
        wrong, one = (shelf.published[key, form] for form in FORMS)
        assert len(one.bundles) == 4
        for bundle, what in itertools.product(one.bundles, SUBJECTS):
            statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
            for by, digest, says in (
                (one, one.digests[what], statement["predicateType"]),
                (wrong, one.digests[what], "SIGNATURE_ERROR"),
                (one, one.strangers[what], "about another image"),
            ):
                cases.append({"bundle": bundle, "key": by.key.read_text(), "digest": digest})
                wanted.append(says)
    done = subprocess.run(
        ["node", "check.js"], cwd=folder, input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == wanted
