"""Logins of hosted registries, which give tokens for scopes, imitated in front of a real registry."""

from __future__ import annotations

import base64
import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault_proxy import FaultProxy, fault_proxy
from tests.scoped_login import ScopedLogin
from toolchain.core.errors import RegistryError
from toolchain.oci import descriptor as media
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.oci.registry import Registry

pytestmark = pytest.mark.registry
SIZE = 300_000
LOGIN = base64.b64encode(b"user:pass-word").decode()
_NUMBERS = itertools.count()


@pytest.fixture
def blob(tmp_path: Path) -> tuple[Descriptor, Path]:
    layout = Layout(tmp_path / "layout").ensure()
    made = layout.put_bytes(random.Random(SIZE).randbytes(SIZE), media.LAYER)
    return made, layout.blob(made.digest)


@pytest.fixture
def proxy(registry_host: str) -> Iterator[FaultProxy]:
    with fault_proxy(registry_host) as running:
        running.guard = ScopedLogin()
        yield running


@pytest.fixture
def repository() -> str:
    return f"login/{next(_NUMBERS)}"


def guard_of(proxy: FaultProxy) -> ScopedLogin:
    assert proxy.guard is not None
    return proxy.guard


def test_token_is_requested_with_the_scope_of_the_request(
    proxy: FaultProxy, repository: str, blob: tuple[Descriptor, Path]
) -> None:
    with Registry(proxy.host, login=LOGIN) as registry:
        assert registry.push_blob(repository, *blob) == SIZE
    guard = guard_of(proxy)
    # The registry refuses only the first request, because its answer names the token service.
    assert len(guard.refused) == 1
    assert guard.refused[0].startswith("HEAD ")
    assert guard.asked == [(f"repository:{repository}:pull",), (f"repository:{repository}:pull,push",)]


def test_public_image_is_pulled_without_a_login(
    proxy: FaultProxy, repository: str, blob: tuple[Descriptor, Path], tmp_path: Path
) -> None:
    with Registry(proxy.host, login=LOGIN) as registry:
        registry.push_blob(repository, *blob)
    fresh = Layout(tmp_path / "fresh").ensure()
    with Registry(proxy.host, login="") as stranger:
        assert stranger.pull_blob(repository, blob[0], fresh) == SIZE
        with pytest.raises(RegistryError):
            stranger.push_blob(f"{repository}-stranger", *blob)
    assert all(seen.body == 0 for seen in proxy.seen if "stranger" in seen.path), "nothing was sent in vain"


def test_identity_token_of_a_login_is_used(
    proxy: FaultProxy,
    repository: str,
    blob: tuple[Descriptor, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """docker stores a login to ACR as an empty password and an identity token."""
    guard_of(proxy).identity = "identity-of-a-user"
    nobody = base64.b64encode(b"00000000-0000-0000-0000-000000000000:").decode()
    entry = {"auth": nobody, "identitytoken": "identity-of-a-user"}
    (tmp_path / "config.json").write_text(json.dumps({"auths": {proxy.host: entry}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with Registry(proxy.host) as registry:
        assert registry.push_blob(repository, *blob) == SIZE
        problem = registry.unreachable(OSError("it said identity-of-a-user"))
    assert "identity-of-a-user" not in str(problem)


@pytest.mark.parametrize("says", [True, False], ids=["told", "as specified"])
def test_expired_token_is_renewed_before_the_next_request(
    proxy: FaultProxy,
    repository: str,
    blob: tuple[Descriptor, Path],
    monkeypatch: pytest.MonkeyPatch,
    *,
    says: bool,
) -> None:
    guard = guard_of(proxy)
    guard.lasts, guard.says = 60.0, says
    shift = 0.0
    real = time.monotonic
    monkeypatch.setattr("toolchain.oci.auth.time.monotonic", lambda: real() + shift)
    with Registry(proxy.host, login=LOGIN) as registry:
        registry.push_blob(repository, *blob)
        shift = 61.0
        registry.push_blob(f"{repository}-more", *blob)
        registry.blob_size(repository, blob[0].digest)
    assert len(guard.refused) == 1, "a stale token was never sent"


@pytest.mark.parametrize(
    "challenge",
    [
        'Bearer realm="{realm}",service="here",scope="{scope}", Basic realm="somewhere"',
        'Basic realm="somewhere", Bearer realm="{realm}",service="here",scope="{scope}"',
        "bearer realm={realm},service=here",
        'Bearer scope="{scope} repository:another:pull" , realm="{realm}"',
    ],
)
def test_challenge_is_parsed_in_each_form(
    proxy: FaultProxy, repository: str, blob: tuple[Descriptor, Path], challenge: str
) -> None:
    guard_of(proxy).challenge = challenge
    with Registry(proxy.host, login=LOGIN) as registry:
        assert registry.push_blob(repository, *blob) == SIZE
