"""From `publish --key` to `verify --public-key`, through a real registry, which has no referrers API."""

from __future__ import annotations

import base64
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import Stand, finished_base
from tests.fake_registry import fake_registry
from tests.fault_proxy import Fault, fault_proxy
from tests.integration.conftest import Said, toolchain
from tests.places import attach, publish, referrers
from tests.registry_fixtures import running_registry
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.core.digest import sha256_json
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.place import Attached
from toolchain.oci.reference import RegistryRef
from toolchain.oci.referrers import write_artifact
from toolchain.oci.registry import Registry
from toolchain.trust.keys import new_key

pytestmark = pytest.mark.registry
_NUMBERS = itertools.count()
IMAGE = "toolchain-base-debian13"
PASSWORD = "hunter2-geheim-91"
SECRETS = (PASSWORD, base64.b64encode(f"robot:{PASSWORD}".encode()).decode(), "token-number-", "ghs_notToBeSeen42")


@pytest.fixture
def namespace(tmp_path: Path) -> str:
    """Return an unused namespace, because the registry lives as long as the whole run."""
    return f"trust/{abs(hash(str(tmp_path))):x}-{next(_NUMBERS)}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr("toolchain.oci.shared_tag.CALM", (0.0,))  # each repository has one publisher
    return Home(tmp_path)


class Home:
    """A cache with a finished image, and keys."""

    def __init__(self, folder: Path) -> None:
        self.cache = Cache(folder / "cache with 'quotes'")
        self.built = finished_base(self.cache, folder / "work")
        self.key, self.other = folder / "my key", folder / "other"
        for key in (self.key, self.other):
            new_key(key)
        self.env = {"TOOLCHAIN_CACHE": str(self.cache.root), "DOCKER_CONFIG": str(folder / "docker")}

    def publish(self, dest: str, *words: str | Path, env: dict[str, str] | None = None) -> Said:
        return toolchain(
            "-v", "-v", "publish", dest, "toolchain-base", "--json", *words, env={**self.env, **(env or {})}
        )

    def call(self, *words: str | Path) -> Said:
        """Run a verb in this process, which is faster; tests of its whole output start a new process."""
        done = CliRunner().invoke(app, [str(word) for word in words], env={**self.env, "COLUMNS": "200"})
        return Said(done.exit_code, done.stdout, done.stderr)


def test_published_image_is_verified_with_its_key(registry_host: str, namespace: str, home: Home) -> None:
    words = ("publish", f"{registry_host}/{namespace}", "toolchain-base", "--json", "--key")
    done = home.call(*words, home.key)
    assert done.code == 0, done.err
    (row,) = done.json["published"]
    assert row["evidence"]["kinds"] == ["sbom", "cyclonedx", "provenance"]
    assert row["evidence"]["how"] == "tag", "docker-registry has no referrers API"
    ref = f"{registry_host}/{namespace}/{IMAGE}"
    good = home.call("verify", ref, "--public-key", f"{home.key}.pub", "--policy", "source-only", "--json")
    assert good.code == 0, good.err
    (verdict,) = good.json["images"]
    assert verdict["verdict"] == "trusted"
    assert verdict["digest"] == row["digest"]
    assert home.call("verify", ref).out.endswith("intact, not authenticated (no --public-key)\n")
    by_digest = f"{ref}@{row['digest']}"
    assert home.call("verify", by_digest, "--public-key", f"{home.key}.pub").out.endswith(f"\ttrusted\t{IMAGE}\n")
    bad = home.call("verify", ref, "--public-key", f"{home.other}.pub")
    assert bad.code == 17
    assert "[signature-other-key]" in bad.err
    # The second publish sends nothing, because the registry has everything.
    again = home.call(*words, home.key)
    assert again.json["published"][0]["pushed_bytes"] == 0
    assert again.json["published"][0]["evidence"]["pushed_bytes"] == 0
    # A second signature is added to the first.
    assert home.call(*words, home.other).code == 0
    for key in (home.key, home.other):
        assert home.call("verify", ref, "--public-key", f"{key}.pub").code == 0


def test_unsigned_image_is_not_trusted(registry_host: str, namespace: str, home: Home) -> None:
    done = home.call("publish", f"{registry_host}/{namespace}", "toolchain-base", "--json")
    assert done.json["published"][0]["evidence"] | {"pushed_bytes": 0} == {
        "kinds": ["sbom", "cyclonedx"], "signed_by": "", "how": "tag", "pushed_bytes": 0,
    }  # fmt: skip
    ref = f"{registry_host}/{namespace}/{IMAGE}"
    assert "every file (1) is as an SBOM lists it" in home.call("verify", ref, "--json").out
    bad = home.call("verify", ref, "--public-key", f"{home.key}.pub")
    assert (bad.code, "[signature-missing]" in bad.err) == (17, True)


def test_keygen_replaces_no_key(home: Home, tmp_path: Path) -> None:
    made = toolchain("keygen", tmp_path / "new key")
    assert made.code == 0
    assert "PRIVATE" not in made.out + made.err
    assert toolchain("keygen", tmp_path / "new key").code == 3
    # A broken key is reported before anything is sent.
    (tmp_path / "broken").write_text("x")
    with fake_registry() as server:
        assert home.publish(f"{server.host}/ns", "--key", tmp_path / "broken").code == 3
        assert server.seen == []


def test_no_secret_is_written_anywhere(tmp_path: Path, home: Home) -> None:
    """Output, logs, records, SBOMs, provenance and images have no password, token or passphrase, even after errors."""
    secret = "open-sesame-17"
    with (
        running_registry(tmp_path / "registry") as upstream,
        fault_proxy(upstream, login=f"robot:{PASSWORD}", uses=7) as proxy,
    ):
        docker = Path(home.env["DOCKER_CONFIG"])
        docker.mkdir()
        login = {"auths": {proxy.host: {"auth": SECRETS[1]}}}
        (docker / "config.json").write_text(json.dumps(login))
        env = {
            "GITHUB_TOKEN": SECRETS[3], "ACTIONS_ID_TOKEN_REQUEST_TOKEN": SECRETS[3], "GITHUB_ACTIONS": "true",
            "REGISTRY_PASSWORD": PASSWORD, "TOOLCHAIN_KEY_PASSPHRASE": secret,
        }  # fmt: skip
        made = toolchain("keygen", tmp_path / "locked", env=env)
        outputs = [made, home.publish(f"{proxy.host}/ns", "--key", tmp_path / "locked", env=env)]
        assert outputs[-1].code == 0, outputs[-1].err
        assert len(proxy.tokens) > 1, "the registry asked for logins"
        ref = f"{proxy.host}/ns/{IMAGE}"
        outputs.append(
            toolchain("-v", "-v", "verify", ref, "--public-key", tmp_path / "locked.pub", env={**home.env, **env})
        )
        assert outputs[-1].code == 0, outputs[-1].err
        # The registry's error repeats the request.
        proxy.faults.append(Fault("status", "GET", "/manifests/", times=-1, status=403))
        outputs.append(toolchain("-v", "-v", "verify", ref, "--json", env={**home.env, **env}))
        assert outputs[-1].code == 13
        (docker / "config.json").unlink()
        outputs.append(home.publish(f"{proxy.host}/other", "--key", tmp_path / "locked", env=env))
        assert outputs[-1].code == 13
    written = [path for top in ("registry", home.cache.root.name) for path in (tmp_path / top).rglob("*")]
    contents = {str(path): path.read_bytes() for path in written if path.is_file()}
    assert len(contents) > 20
    assert any(b"in-toto" in content for content in contents.values()), "the search looks at the wrong place"
    said = {f"output {number}": (one.out + one.err).encode() for number, one in enumerate(outputs)}
    for where, content in {**contents, **said}.items():
        for one in (*SECRETS, secret):
            assert one.encode() not in content, f"{one} stands in {where}"
    for content in contents.values():
        if b"payloadType" in content:
            payload = base64.b64decode(json.loads(content)["payload"])
            assert not [one for one in (*SECRETS, secret, str(tmp_path)) if one.encode() in payload]


def test_concurrent_publishers_list_all_artifacts(registry_host: str, namespace: str, tmp_path: Path) -> None:
    """Each publisher attaches an artifact to one image. The list is an index under a tag, which all of them rewrite."""
    count = 4
    stand = Stand(Layout(tmp_path / "lay out"), tmp_path / "work")
    ref = RegistryRef(registry_host, namespace)
    publish(stand.layout, stand.index, ref, ["t"])
    listed: set[str] = set()
    for number in range(2):
        made = []
        for one in range(count):
            blob = stand.layout.put_bytes(sha256_json([number, one]).encode(), "text/plain")
            made.append(write_artifact(stand.layout, stand.manifest, blob, artifact_type="application/x-test"))
        start = threading.Barrier(count)

        def run(artifact: Descriptor, start: threading.Barrier = start) -> Attached:
            with Registry(registry_host, login="") as registry:
                start.wait(60)
                return attach(stand.layout, [artifact], ref, registry=registry)

        with ThreadPoolExecutor(count) as pool:
            assert {done.how for done in pool.map(run, made)} == {"tag"}
        with Registry(registry_host, login="") as registry:
            listed = {one.digest for one in referrers(ref, stand.manifest.digest, registry=registry)}
        assert {one.digest for one in made} <= listed
    assert len(listed) == 2 * count
