"""Uploads to registries of many kinds, each imitated in front of a real one: an image is published and fetched."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.places import attach, fetch_image, publish, referrers
from tests.refusals import refused
from tests.registry_fixtures import small_index
from tests.registry_manners import DOCKER_HUB, GITLAB, HARBOR, QUAY, Manners
from tests.second_registry import running_crane
from toolchain.core.errors import RegistryError, ToolchainError
from toolchain.oci import descriptor as media
from toolchain.oci.check import verify_layout
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.reference import RegistryRef
from toolchain.oci.referrers import write_artifact
from toolchain.oci.registry import Registry
from toolchain.oci.registry_rules import for_host

pytestmark = pytest.mark.registry
MIB = 1 << 20
LARGE, MEDIUM, SMALL = 66 * MIB, 5 * MIB, 300_000
ECR, ACR = "1.dkr.ecr.eu-west-1.amazonaws.com", "name.azurecr.io"
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Image:
    layout: Layout
    index: Descriptor

    @property
    def layer(self) -> Descriptor:
        return max(self.layout.walk(self.index), key=lambda item: item.size)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Image]:
    """Return an image whose layer is over the 64 MiB of a chunk, and smaller ones, by the size of the layer."""
    made = {}
    for size in (LARGE, MEDIUM, SMALL):
        folder = tmp_path_factory.mktemp("image")
        layout = Layout(folder / "layout").ensure()
        made[size] = Image(layout, small_index(layout, folder, size=size, arches="amd64", how="none"))
    return made


def uploads(proxy: FaultProxy) -> str:
    """Return the methods of all upload requests, with the status of refusals and a count of repetitions."""
    said = [
        seen.method + (f":{seen.status}" if seen.status >= 400 else "")
        for seen in proxy.seen
        if "/blobs/uploads/" in seen.path
    ]
    rows = [(verb, len(list(group))) for verb, group in itertools.groupby(said)]
    return " ".join(verb if count == 1 else f"{verb}*{count}" for verb, count in rows)


def arrived(proxy: FaultProxy) -> int:
    """Return the number of bytes that the proxy received in upload requests."""
    return sum(seen.body for seen in proxy.seen if "/blobs/uploads/" in seen.path)


def blobs(image: Image) -> int:
    """Return the number of bytes in the image's blobs."""
    return sum(item.size for item in image.layout.walk(image.index) if item.media_type not in media.MANIFESTS)


def repository(registry: Registry) -> str:
    """Return an unused name of a repository, which has three parts unless the registry allows only two."""
    return f"ns/{'' if registry.rules.most_parts == 2 else 'more/'}way-{next(_NUMBERS)}"


def login_of(proxy: FaultProxy) -> str:
    """Return the login that the proxy requires, or an empty string."""
    return base64.b64encode(proxy.guard.login.encode()).decode() if proxy.guard is not None else ""


def there_and_back(image: Image, registry: Registry, folder: Path) -> None:
    dest = RegistryRef(registry.host, repository(registry))
    publish(image.layout, image.index, dest, ["t"], registry=registry)
    assert publish(image.layout, image.index, dest, ["t"], registry=registry).pushed_bytes == 0
    fresh = Layout(folder / "fresh").ensure()
    assert fetch_image(dest.at(tag="t"), fresh, registry=registry) == image.index
    assert verify_layout(fresh, image.index) == []


# The config, the first blob, is small. The rows list the requests for the layer; none repeats bytes that were accepted.
_CONFIG = "POST PUT "
_WAYS = {
    "GHCR": (LARGE, Manners(patch_limit=4 * MIB), "ghcr.io", None, "POST PUT"),
    "PATCH of at most 4 MiB at an unknown host": (
        LARGE,
        Manners(patch_limit=4 * MIB, code="REQUESTED_RANGE_NOT_SATISFIABLE", marked=True),
        "",
        None,
        "POST PATCH:416 " * 2 + "POST PATCH*17 PUT",
    ),
    "ECR": (LARGE, Manners(stuck=True, no_empty_end=500, taken=201), ECR, None, "POST PUT"),
    "ECR, in chunks": (MEDIUM, Manners(stuck=True, no_empty_end=500, taken=201), ECR, MIB, "POST PATCH*5 PUT"),
    "Artifact Registry": (LARGE, Manners(no_chunks=404), "x-docker.pkg.dev", None, "POST PUT"),
    "ACR": (LARGE, Manners(whole_limit=20 * MIB), ACR, None, "POST PATCH*7 PUT"),
    "one piece of at most 2 MiB at an unknown host": (
        MEDIUM,
        Manners(whole_limit=2 * MIB),
        "",
        None,
        "POST PUT:413 POST PATCH*4 PUT",
    ),
    "Artifactory": (MEDIUM, Manners(no_whole=405), "", None, "POST PATCH PUT"),
    "a limit of 1 MiB": (MEDIUM, Manners(limit=MIB), "", None, "POST PUT:413 POST PATCH:413 POST PATCH*16 PUT"),
    "OCI-Chunk-Min-Length": (MEDIUM, Manners(least=2 * MIB), "", MIB, "POST PATCH*3 PUT"),
    "OCI-Chunk-Max-Length": (MEDIUM, Manners(most=2 * MIB), "", None, "POST PATCH*3 PUT"),
    "Quay": (SMALL, QUAY, "quay.io", None, "POST PUT"),
    "Docker Hub": (LARGE, DOCKER_HUB, "docker.io", None, "POST PATCH*2 PUT"),
    "GitLab": (SMALL, GITLAB, "registry.gitlab.com", 200_000, "POST PATCH*2 PUT"),
    "Harbor": (SMALL, HARBOR, "", 200_000, "POST PATCH*2 PUT"),
    "pulp's 204": (SMALL, Manners(taken=204), "", 64_000, "POST PATCH*5 PUT"),
}


@pytest.mark.parametrize(("size", "manners", "host", "chunk", "way"), _WAYS.values(), ids=_WAYS)
def test_blobs_are_uploaded_by_requests_that_the_registry_accepts(
    registry_host: str,
    images: dict[int, Image],
    tmp_path: Path,
    size: int,
    manners: Manners,
    host: str,
    chunk: int | None,
    way: str,
) -> None:
    with (
        fault_proxy(registry_host, manners=manners) as proxy,
        Registry(proxy.host, login=login_of(proxy), backoff=0.01, chunk=chunk) as registry,
    ):
        if host:
            registry.rules = for_host(host)
            assert registry.rules.hosts
        there_and_back(images[size], registry, tmp_path)
        first = "POST PUT:405 POST PATCH PUT " if manners.no_whole else _CONFIG
        assert uploads(proxy) == first + way
        # Another kind of request costs no attempt and no wait; only Docker Hub, which answers 429, requires waits.
        assert registry.traffic.repeated == manners.too_many
        if proxy.guard is not None:
            assert len(proxy.guard.refused) == 1, "the first question alone goes without a token"
            assert {f"repository:{dest}:pull,push" for dest in _written(proxy)} <= {
                scope for scopes in proxy.guard.asked for scope in scopes
            }


def _written(proxy: FaultProxy) -> set[str]:
    return {seen.path.removeprefix("/v2/").partition("/blobs/")[0] for seen in proxy.seen if seen.method == "POST"}


def test_token_service_gets_the_login_and_the_registry_gets_the_token(
    registry_host: str, images: dict[int, Image]
) -> None:
    """GitLab's token service is on another host than its registry."""
    image = images[SMALL]
    with (
        fault_proxy(registry_host, manners=GITLAB) as proxy,
        Registry(proxy.host, login=login_of(proxy)) as registry,
    ):
        registry.push_blob(repository(registry), image.layer, image.layout.blob(image.layer.digest))
        to = {(seen.headers["Host"].partition(":")[0], seen.headers.get("Authorization", "").partition(" ")[0])
              for seen in proxy.seen}  # fmt: skip
        assert to == {("127.0.0.1", ""), ("localhost", "Basic"), ("127.0.0.1", "Bearer")}


@pytest.mark.parametrize("hangs_up", [False, True])
def test_upload_over_the_limit_without_chunks_fails(
    registry_host: str, images: dict[int, Image], *, hangs_up: bool
) -> None:
    image = images[SMALL]
    manners = Manners(limit=1000, no_chunks=501, hangs_up=hangs_up)
    with (
        fault_proxy(registry_host, manners=manners) as proxy,
        Registry(proxy.host, login="", attempts=2, backoff=0.01) as registry,
        # The client may not read the answer of a registry that closes the connection.
        pytest.raises(ToolchainError if hangs_up else RegistryError) as caught,
    ):
        registry.push_blob("ns/never", image.layer, image.layout.blob(image.layer.digest))
    assert hangs_up or "HTTP" in caught.value.why
    assert uploads(proxy).count("P") < 16


def test_server_that_closes_on_large_requests_gets_small_ones(
    registry_host: str, images: dict[int, Image], tmp_path: Path
) -> None:
    """The server answers 413 and closes before it reads the body, so clients often see only a broken connection."""
    manners = Manners(limit=MIB, hangs_up=True)
    with (
        fault_proxy(registry_host, manners=manners) as proxy,
        Registry(proxy.host, login="", backoff=0.01) as registry,
    ):
        there_and_back(images[MEDIUM], registry, tmp_path)
        assert arrived(proxy) == blobs(images[MEDIUM]), "what it took, it took once"


def test_refused_name_is_reported_without_another_upload(registry_host: str, images: dict[int, Image]) -> None:
    image = images[SMALL]
    manners = Manners(no_chunks=400, code="NAME_INVALID")
    with (
        fault_proxy(registry_host, manners=manners) as proxy,
        Registry(proxy.host, login="", chunk=64_000) as registry,
        refused("registry-refused") as caught,
    ):
        registry.push_blob("ns/never", image.layer, image.layout.blob(image.layer.digest))
    assert "NAME_INVALID" in caught.value.why
    assert uploads(proxy) == "POST PATCH:400"


@pytest.fixture
def broken(registry_host: str) -> Iterator[FaultProxy]:
    """Yield an unknown registry at which the first upload of a layer in one request breaks after 3 MiB."""
    with fault_proxy(registry_host, manners=Manners(keeps=True)) as proxy:
        proxy.faults.append(Fault("reset", "PUT", "/uploads/", skip=1, after=3 * MIB))
        yield proxy


def test_broken_upload_resumes_where_it_stopped(broken: FaultProxy, images: dict[int, Image], tmp_path: Path) -> None:
    with Registry(broken.host, login="", backoff=0.01) as registry:
        there_and_back(images[MEDIUM], registry, tmp_path)
    assert broken.faults[0].hits == 1
    assert uploads(broken) == "POST PUT POST PUT GET PATCH PUT"
    assert arrived(broken) == blobs(images[MEDIUM]), "nothing arrived twice"


def test_broken_upload_restarts_if_the_registry_kept_nothing(
    broken: FaultProxy, images: dict[int, Image], tmp_path: Path
) -> None:
    assert broken.desk is not None
    broken.desk.manners = Manners(no_status=404)
    with Registry(broken.host, login="", backoff=0.01) as registry:
        there_and_back(images[MEDIUM], registry, tmp_path)
    assert uploads(broken) == "POST PUT POST PUT GET:404 POST PUT"


def test_upload_that_breaks_twice_is_sent_in_chunks(
    registry_host: str, images: dict[int, Image], tmp_path: Path
) -> None:
    with fault_proxy(registry_host, manners=Manners(no_status=404)) as proxy:
        proxy.faults.append(Fault("reset", "PUT", "/uploads/", skip=1, after=3 * MIB, times=2))
        with Registry(proxy.host, login="", backoff=0.01) as registry:
            there_and_back(images[MEDIUM], registry, tmp_path)
        assert uploads(proxy) == "POST PUT POST PUT GET:404 POST PUT GET:404 POST PATCH*4 PUT"


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_crane(tmp_path_factory.mktemp("crane")) as host:
        yield host


@pytest.mark.parametrize(
    ("size", "chunk", "way"), [(LARGE, None, "POST PUT"), (MEDIUM, MIB, "POST PATCH*6 PUT")], ids=["one", "chunks"]
)
def test_crane_registry_stores_a_published_image(
    second: str, images: dict[int, Image], tmp_path: Path, size: int, chunk: int | None, way: str
) -> None:
    with fault_proxy(second) as proxy, Registry(proxy.host, login="", chunk=chunk) as registry:
        there_and_back(images[size], registry, tmp_path)
        assert uploads(proxy) == _CONFIG + way


def test_crane_registry_cannot_resume_and_gets_the_blob_again(second: str, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout").ensure()
    # The image is the test's own, because this registry shares blobs between repositories.
    image = Image(layout, small_index(layout, tmp_path, size=SMALL, seed=7, arches="amd64", how="none"))
    with fault_proxy(second) as proxy, Registry(proxy.host, login="", backoff=0.01) as registry:
        proxy.faults.append(Fault("reset", "PUT", "/uploads/", skip=1, after=100_000))
        there_and_back(image, registry, tmp_path)
        assert uploads(proxy) == "POST PUT POST PUT GET:400 POST PUT"


def test_crane_registry_has_referrers_under_a_tag(second: str, images: dict[int, Image], tmp_path: Path) -> None:
    image = images[SMALL]
    dest = RegistryRef(second, f"ns/referrers-{next(_NUMBERS)}")
    content = image.layout.put_bytes(b"{}", "application/json")
    said = write_artifact(image.layout, image.index, content, artifact_type="test/x")
    with Registry(second, login="") as registry:
        publish(image.layout, image.index, dest, ["t"], registry=registry)
        assert attach(image.layout, [said], dest, registry=registry).how == "tag"
        assert [one.digest for one in referrers(dest, image.index.digest, registry=registry)] == [said.digest]
