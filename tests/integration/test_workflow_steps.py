"""The workflows' own shell steps, in fresh containers of base debian13, against a registry on loopback.

The tests cannot use GitHub, so tests/workflow_steps.py replaces its actions, and records which ones it replaced. In
the short tests, the base and the table generators come from an existing cache, so nothing is compiled, and the
containers after the first begin with the packages that the first one installed. The `full` test starts from nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.registry_fixtures import running_registry
from tests.rooted import unpacked
from tests.workflow_expressions import Scope, holds, value_of
from tests.workflow_machine import HOME, TEMP, VOLUME, WORKSPACE, Machine, Way
from tests.workflow_steps import TOP, Event, Job, Service, read, run_workflow
from toolchain.core.cache import Cache, default_cache
from toolchain.pipeline.records import find_image
from toolchain.stages.wheels import place
from toolchain.trust.keys import new_key

pytestmark = [pytest.mark.engine, pytest.mark.registry, pytest.mark.nightly]
FLOWS = TOP / ".github" / "workflows"
TOKEN, ACTOR = "the-token", "somebody"
BASE, PART = "toolchain-base-debian13", "llvm-triton-mlir-tblgen-22.1.8"
SYSROOT = "toolchain-sysroot-glibc-2.31"
# GitHub's runner has these programs, but a container that a workflow names does not.
_RUNNER = (
    "apt-get update -qq; apt-get install -qq --yes --no-install-recommends git jq openssl python3-venv skopeo zstd"
)
_GH = """#!/bin/sh
echo "gh $*" >>{temp}/gh-calls
case "$*" in
  "release create "*) exit 1 ;;
  "release upload "*) ls dist ;;
  *environments/ghcr*) echo "required_reviewers branch_policy" ;;
  *) exit 1 ;;
esac
"""
# The script replaces `docker build` of the only Dockerfile: it unpacks the image over the container, and runs its RUN.
_DOCKER = """#!/bin/sh
set -eu
for folder; do :; done
set -- $(sed -n 's/^COPY --from=\\([^ ]*\\) .*/\\1/p' "$folder/Dockerfile")
skopeo copy --quiet "docker://$1" "dir:{temp}/pulled"
for layer in $(jq -r '.layers[].digest' {temp}/pulled/manifest.json); do
  tar -C / -xzf "{temp}/pulled/${{layer#sha256:}}"
done
sed -n 's/^RUN //p' "$folder/Dockerfile" | sh -eu
"""


@dataclass
class Ground:
    """The files of the base, a registry with a login and the keys, which the tests of this file share."""

    base: tuple[Path, ...]
    cache: Cache
    way: Way
    registry: str
    folder: Path
    prepared: tuple[Path, ...] = ()
    environment: Path | None = None

    def pair(self, name: str) -> tuple[str, str]:
        """Return a private key and its public key, in PEM."""
        path = self.folder / name
        if not path.exists():
            new_key(path)
        return path.read_text(), Path(f"{path}.pub").read_text()

    def event(self, **more: Any) -> Event:
        """Return an event in a repository whose variables and secrets are set."""
        private, public = self.pair("key")
        given: dict[str, Any] = {
            "variables": {"TOOLCHAIN_PUBLIC_KEY": public, "TOOLCHAIN_REGISTRY": self.registry},
            "secrets": {"ghcr": {"TOOLCHAIN_SIGNING_KEY": private}},
            "actor": ACTOR,
            "token": TOKEN,
        }
        return Event(**given | more)

    def service(self, folder: Path, *, fresh: bool = False) -> Service:
        """Return an empty replacement of GitHub's services."""

        def machine(job: str, yaml_: Mapping[str, Any], home: Path) -> Machine:
            runner = "container" not in yaml_
            made = Machine(self.base if fresh else self.prepared or self.base, self.way, home)
            self._programs(made)
            if runner and (fresh or not self.prepared):
                assert made.run(["bash", "-e", "{0}"], _RUNNER, {"HOME": HOME}, log=folder / "runner.log") == 0
            if not fresh:
                self._seed(made)
            return made

        def kept(job: str, made: Machine) -> None:
            if not fresh and not self.prepared and made.outside(".venv").is_dir():
                self.prepared = made.commit()
                self.environment = shutil.copytree(made.outside(".venv"), self.folder / "venv", symlinks=True)
                service.environment = self.environment

        folder.mkdir(parents=True, exist_ok=True)
        service = Service(folder=folder, machine=machine, kept=kept, environment=None if fresh else self.environment)
        return service

    def _programs(self, made: Machine) -> None:
        for name, text in (("gh", _GH), ("docker", _DOCKER)):
            (made.programs / name).write_text(text.format(temp=TEMP))
            (made.programs / name).chmod(0o755)

    def _seed(self, made: Machine) -> None:
        """Put the base and the table generators into a container's cache, as links to the blobs of the tests' cache."""
        where = Cache(made.outside(VOLUME))
        for folder in (where.images / "blobs" / "sha256", where.root / "records", where.root / "locked"):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.cache.images / "oci-layout", where.images)
        shutil.copy(self.cache.images / "index.json", where.images)
        for resolved in (("base", "debian13"), ("sysroot", "glibc-2.31")):
            shutil.copy(self.cache.package_list(*resolved, "amd64"), where.root / "locked")
        for name in (BASE, SYSROOT, PART):
            record = find_image(self.cache, name)[0]
            source = self.cache.record(record.input_digest)
            shutil.copy(source, where.record(record.input_digest))
            manifest = self.cache.images / "blobs" / record.manifest.replace(":", "/")
            digests = [record.manifest, json.loads(manifest.read_text())["config"]["digest"]]
            for digest in (*digests, *(layer["digest"] for layer in record.layers)):
                target = where.images / "blobs" / digest.replace(":", "/")
                if not target.exists():
                    place(self.cache.images / "blobs" / digest.replace(":", "/"), target)


def _bcrypt(password: str) -> str:
    script = "print crypt($ARGV[0], q($2b$04$abcdefghijklmnopqrstuu))"
    return subprocess.run(["perl", "-e", script, password], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Yield the shared ground.

    TOOLCHAIN_TEST_WORKFLOW_CACHE names a cache with base and table generators, which replaces the quickstart's.
    """
    named = os.environ.get("TOOLCHAIN_TEST_WORKFLOW_CACHE")
    if named is None:
        request.getfixturevalue("quickstart")
    cache = Cache(Path(named) if named else default_cache())
    folder = tmp_path_factory.mktemp("workflows")
    found = find_image(cache, BASE)
    assert found, "there is no base"
    base = unpacked(cache.images, found[0].manifest, folder / "base")
    users = folder / "htpasswd"
    users.write_text(f"{ACTOR}:{_bcrypt(TOKEN)}\n")
    with running_registry(folder / "registry", users=users) as registry:
        way = Way(folder=folder / "way", registry=registry)
        yield Ground(base, cache, way, registry, folder)
    # pytest could not remove this folder, because of the modes that the distribution gave its files.
    shutil.rmtree(folder / "base")


def published(ground: Ground, owner: str = "somebody/toolchain") -> str:
    """Return the part's reference by digest, which is now in the registry."""
    where = f"docker://{ground.registry}/{owner}/{PART}:latest"
    words = ["skopeo", "inspect", "--tls-verify=false", "--creds", f"{ACTOR}:{TOKEN}", "--raw", where]
    raw = subprocess.run(words, capture_output=True, check=True).stdout
    return f"{ground.registry}/{owner}/{PART}@sha256:{hashlib.sha256(raw).hexdigest()}"


def told(service: Service) -> str:
    """Return the ends of all logs, for messages of failed tests."""
    return "\n".join(f"### {path.name}\n{path.read_text()[-3000:]}" for path in sorted(service.folder.glob("*.log")))


TAG = {"name": "workflow_dispatch", "ref": "refs/tags/v1.0"}
TRIAL = {"stages": '["llvm"]', "only": "mlir-tblgen"}


@pytest.fixture(scope="module")
def trial(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> tuple[Service, dict[str, str]]:
    """Run publish.yml, started by hand on a tag, with mlir-tblgen alone: base, LLVM, publish, verify."""
    service = ground.service(tmp_path_factory.mktemp("trial"))
    results = run_workflow(FLOWS / "publish.yml", ground.event(**TAG, inputs=TRIAL), service)
    return service, results


def test_publish_workflow_builds_publishes_and_verifies(ground: Ground, trial: tuple[Service, dict[str, str]]) -> None:
    service, results = trial
    assert set(results.values()) == {"success"}, told(service)
    (attested,) = service.attested
    ref = published(ground)
    assert f"{attested['name']}@{attested['digest']}" == ref
    assert service.approvals == ["keys", "publish(portable,llvm)"]
    verify = f"verify({ref})/verify"
    assert "Copy from the image in a Dockerfile" in service.steps(verify, "success")
    assert "Verify the sources" in service.steps(verify, "success")
    stood_in = {one.stood_in for one in service.ran if one.stood_in}
    assert stood_in == {
        *("actions/checkout", "actions/setup-python", "actions/cache/restore", "actions/cache/save"),
        *("actions/upload-artifact", "actions/download-artifact", "actions/attest"),
    }
    assert {path.name for path in (service.folder / "artifacts").iterdir()} == {
        "state-base-portable-amd64", "state-llvm-portable-amd64", "published-llvm-portable",
    }  # fmt: skip


def test_publish_workflow_leaves_no_key_or_login(trial: tuple[Service, dict[str, str]]) -> None:
    service, _ = trial
    assert not list(service.folder.glob("jobs/*/temp/key"))
    jobs = {path.parents[2].name for path in service.folder.glob("jobs/*/home/.docker/config.json")}
    # The login of a build's job can only read, and is lost with the job's machine.
    assert jobs <= {path.parents[1].name for path in service.folder.glob("jobs/*/volume/records")}


@pytest.mark.parametrize(
    ("public", "passes", "fails"),
    [
        ("key", "Verify the sources", ""),
        ("", "Install the tool", "Require a digest"),
        ("other", "Log in", "Verify bytes, signature, provenance and SBOM"),
    ],
    ids=["key", "no-key", "wrong-key"],
)
def test_verify(
    ground: Ground, trial: tuple[Service, dict[str, str]], tmp_path: Path, public: str, passes: str, fails: str
) -> None:
    event = ground.event(inputs={"ref": published(ground)})
    event.variables["TOOLCHAIN_PUBLIC_KEY"] = ground.pair(public)[1] if public else ""
    service = ground.service(tmp_path / "github")
    results = run_workflow(FLOWS / "verify.yml", event, service)
    assert passes in service.steps("verify", "success"), told(service)
    assert service.steps("verify", "failure") == ([fails] if fails else []), told(service)
    assert results == {"verify": "failure" if fails else "success"}
    assert "Log out" in service.steps("verify", "success")


@pytest.mark.parametrize(
    ("private", "public", "message"),
    [
        ("", "key", "the secret TOOLCHAIN_SIGNING_KEY is not set"),
        ("key", "other", "does not belong"),
    ],
    ids=["fork-without-secrets", "another-public-key"],
)
def test_keys_are_compared_before_anything_is_built(
    ground: Ground, trial: tuple[Service, dict[str, str]], tmp_path: Path, private: str, public: str, message: str
) -> None:
    event = ground.event(name="push", ref="refs/tags/v2.0", fork=not private)
    event.variables["TOOLCHAIN_PUBLIC_KEY"] = ground.pair(public)[1] if public else ""
    event.secrets = {"ghcr": {"TOOLCHAIN_SIGNING_KEY": ground.pair(private)[0]}} if private else {}
    service = ground.service(tmp_path / "github")
    results = run_workflow(FLOWS / "publish.yml", event, service)
    assert results == {
        "asked": "success", "keys": "failure", "build": "skipped", "publish": "skipped", "refs": "skipped",
        "verify": "skipped",
    }, told(service)  # fmt: skip
    assert message in service.log("keys").read_text()
    assert not (service.folder / "artifacts").exists()


def test_branch_is_not_published(ground: Ground, trial: tuple[Service, dict[str, str]], tmp_path: Path) -> None:
    service = ground.service(tmp_path / "github")
    results = run_workflow(FLOWS / "publish.yml", ground.event(inputs=TRIAL), service)
    assert results["asked"] == "failure"
    assert set(results.values()) == {"failure", "skipped"}, told(service)
    assert "only a tag v* is published" in service.log("asked").read_text()


def lend(trial: tuple[Service, dict[str, str]], service: Service) -> Service:
    """Give a service the artifacts of the trial's build, for a later job."""
    for path in (trial[0].folder / "artifacts").glob("state-*"):
        shutil.copytree(path, service.folder / "artifacts" / path.name, copy_function=os.link)
    return service


def test_fork_builds_without_reuse_or_login(
    ground: Ground, trial: tuple[Service, dict[str, str]], tmp_path: Path
) -> None:
    event = ground.event(fork=True, secrets={})
    del event.variables["TOOLCHAIN_PUBLIC_KEY"]
    service = lend(trial, ground.service(tmp_path / "github"))
    shutil.rmtree(service.folder / "artifacts" / "state-llvm-portable-amd64")
    inputs = {"stage": "llvm", "below": "base", "only": "mlir-tblgen", "base": "portable", "arch": "amd64"}
    assert run_workflow(FLOWS / "stage.yml", event, service, inputs=inputs) == {"build": "success"}, told(service)
    assert "so nothing is taken from" in service.log("build").read_text()
    assert not list(service.folder.glob("jobs/*/home/.docker/config.json"))


def test_unknown_base_fails_before_any_build(
    ground: Ground, trial: tuple[Service, dict[str, str]], tmp_path: Path
) -> None:
    event = ground.event(inputs={"stage": "llvm", "bases": '["debian99"]'})
    service = ground.service(tmp_path / "github")
    results = run_workflow(FLOWS / "build.yml", event, service)
    assert results == {"asked": "failure", "base": "skipped", "llvm": "skipped", "triton": "skipped"}, told(service)
    assert "debian99" in service.log("asked").read_text()


def _began(file: str) -> Callable[[Machine], bool]:
    return lambda machine: machine.outside(file).exists()


def test_cancelled_build_stores_no_cache_or_artifact(
    ground: Ground, trial: tuple[Service, dict[str, str]], tmp_path: Path
) -> None:
    event = ground.event(
        inputs={"stage": "base"}, cancels={"Reuse or build the stage": _began(f"{TEMP}/publisher.pub")}
    )
    service = ground.service(tmp_path / "github")
    results = run_workflow(FLOWS / "build.yml", event, service)
    job = "base(portable,amd64)/build"
    assert (results["base"], results["llvm"]) == ("cancelled", "skipped"), told(service)
    assert service.steps(job, "cancelled") == ["Reuse or build the stage"]
    after = {one.step: one.result for one in service.ran if one.job == job}
    assert {
        after[step]
        for step in ("Save the lists of the base's packages", "Pack the stage for later jobs", "Upload the full logs")
    } == {"skipped"}
    assert not list(service.folder.glob("caches/*"))
    assert not list(service.folder.glob("artifacts/*"))


def test_cancelled_publication_leaves_no_key_or_login(
    ground: Ground, trial: tuple[Service, dict[str, str]], tmp_path: Path
) -> None:
    event = ground.event(**TAG, cancels={"Publish and sign": _began(f"{TEMP}/key")})
    service = lend(trial, ground.service(tmp_path / "github"))
    flow = read(FLOWS / "publish.yml")
    contexts = {
        "github": event.github("publish", "publish"),
        "inputs": TRIAL,
        "vars": event.variables,
        "secrets": event.secrets["ghcr"],
        "needs": {"asked": {"result": "success", "outputs": {"arches": '["amd64"]'}}},
        "matrix": {"base": "portable", "stage": "llvm"},
    }
    result, _ = Job("publish", flow["jobs"]["publish"], contexts, event=event, service=service).run()
    assert result == "cancelled", told(service)
    assert service.steps("publish", "cancelled") == ["Publish and sign"]
    assert "Leave no key and no login" in service.steps("publish", "success")
    assert service.attested == []
    assert not list(service.folder.glob("jobs/*/temp/key"))
    assert not list(service.folder.glob("jobs/*/home/.docker/config.json"))
    assert not (service.folder / "artifacts" / "published-llvm-portable").exists()
    over = Scope({"needs": {"publish": {"result": "cancelled"}}}, "cancelled")
    assert not holds(flow["jobs"]["refs"]["if"], over)


def test_the_action_builds_publishes_and_signs(
    ground: Ground, trial: tuple[Service, dict[str, str]], tmp_path: Path
) -> None:
    """The steps of action.yml run in another repository, after a checkout."""
    action = yaml.safe_load((TOP / "action.yml").read_text())
    private, _ = ground.pair("key")
    event, service = ground.event(), ground.service(tmp_path / "github")
    github = event.github("layer", "layer")
    where = f"{ground.registry}/Their/Own"
    given = {"only": "mlir-tblgen", "publish-to": where, "key": private, "cache": VOLUME}
    contexts = {"github": github, "vars": {}, "needs": {}, "secrets": {}}
    filled = {
        name: given.get(name, value_of(one.get("default", ""), Scope(contexts)))
        for name, one in action["inputs"].items()
    }
    checkout = {"uses": "actions/checkout@0", "with": {"persist-credentials": False}}
    job = {
        "container": {},
        "env": {"GITHUB_ACTION_PATH": WORKSPACE},
        "steps": [checkout, *action["runs"]["steps"]],
        "outputs": {name: one["value"] for name, one in action["outputs"].items()},
    }
    result, outputs = Job("action", job, contexts | {"inputs": filled}, event=event, service=service).run()
    assert result == "success", told(service)
    assert outputs["name"] == f"{where.lower()}/{PART}"
    assert f"{outputs['name']}@{outputs['digest']}" == published(ground, "their/own")
    assert not list(service.folder.glob("jobs/*/home/.docker/config.json"))
    assert not list(service.folder.glob("jobs/*/temp/toolchain-*"))


@pytest.mark.parametrize("tag", ["v0.1.0", "v9.9.9"])
def test_tool_workflow_releases_only_a_tag_of_its_version(
    ground: Ground, trial: tuple[Service, dict[str, str]], tmp_path: Path, tag: str
) -> None:
    """A tag that is not the version releases nothing; a release that exists already gets the wheels."""
    service = ground.service(tmp_path / "github")
    results = run_workflow(FLOWS / "tool.yml", ground.event(name="push", ref=f"refs/tags/{tag}"), service)
    if tag == "v9.9.9":
        assert results == {"wheel": "failure", "release": "skipped"}, told(service)
        assert "is not the version 0.1.0" in service.log("wheel").read_text()
        return
    assert results == {"wheel": "success", "release": "success"}, told(service)
    assert "Copy from the image in a Dockerfile" in service.log("wheel").read_text()  # the installed wheel's plan
    names = {wheel["name"] for wheel in service.attested}
    assert names == {"toolchain-0.1.0-py3-none-any.whl", "toolchain_lab-0.1.0-py3-none-any.whl"}
    assert {"SHA256SUMS", *names} <= set(service.log("release").read_text().split())


@pytest.mark.full
@pytest.mark.timeout(0)
def test_publish_workflow_succeeds_with_an_empty_cache(ground: Ground, tmp_path: Path) -> None:
    """Each job runs in a bare container, with an empty cache and the container's own zlib, and makes base and LLVM."""
    # The limit is six hours, as on GitHub, because one step compiles LLVM's generators, even on a busy machine.
    way = Way(folder=tmp_path / "way", registry=ground.registry, limit=21_600)
    bare = replace(ground, way=way, prepared=(), environment=None)
    service = bare.service(tmp_path / "github", fresh=True)
    event = ground.event(**TAG, repository="Other/Nothing", inputs={"only": "mlir-tblgen"})
    results = run_workflow(FLOWS / "publish.yml", event, service)
    assert set(results.values()) == {"success"}, told(service)
    assert sorted(one["name"].rpartition("/")[2] for one in service.attested) == [PART, BASE]
    assert "Publish the base as a bundle" in service.steps("publish(portable,base)", "success")
