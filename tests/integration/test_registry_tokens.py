"""Logins and tokens at a real registry, through a proxy that asks for them."""

from __future__ import annotations

import base64
import logging
from pathlib import Path

import pytest

from tests.fault_proxy import Fault, fault_proxy
from tests.places import fetch_image, publish
from tests.refusals import refused
from tests.registry_fixtures import small_index
from tests.registry_through_proxy import (
    CHUNK,
    SIZE,
    some_blob,
)
from toolchain.core.errors import ToolchainError
from toolchain.oci.check import verify_layout
from toolchain.oci.layout import Layout
from toolchain.oci.reference import RegistryRef
from toolchain.oci.registry import Registry

pytestmark = pytest.mark.registry


def test_token_that_expires_during_an_upload_is_renewed(
    registry_host: str, repository: str, layout: Layout, fresh: Layout, tmp_path: Path
) -> None:
    index = small_index(layout, tmp_path, size=SIZE)
    with fault_proxy(registry_host, login="user:pass-word", uses=3) as proxy:
        login = base64.b64encode(b"user:pass-word").decode()
        with Registry(proxy.host, chunk=CHUNK, backoff=0.01, login=login) as registry:
            publish(layout, index, RegistryRef(proxy.host, repository), ["t"], registry=registry)
            assert fetch_image(RegistryRef(proxy.host, repository, "t"), fresh, registry=registry) == index
        assert len(proxy.tokens) > 5
        patches = [seen.status for seen in proxy.seen if seen.method == "PATCH"]
        assert 401 in patches
    assert verify_layout(fresh, index) == []


def docker_login(folder: Path, host: str, login: str) -> None:
    from oras.client import OrasClient  # noqa: PLC0415

    name, _, word = login.partition(":")
    OrasClient(hostname=host).login(
        username=name, password=word, hostname=host, config_path=str(folder / "config.json")
    )


@pytest.mark.parametrize("uses", [0, 1000], ids=["basic", "bearer"])
def test_login_made_with_oras_is_used(
    registry_host: str, repository: str, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: int
) -> None:
    blob, path = some_blob(layout)
    with fault_proxy(registry_host, login="user:pass-word", uses=uses) as proxy:
        (tmp_path / "docker").mkdir()
        (tmp_path / "docker" / "config.json").write_text('{"auths":{}}')
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
        monkeypatch.setenv("HOME", str(tmp_path))
        with Registry(proxy.host) as registry, refused("login-refused") as caught:
            registry.push_blob(repository, blob, path)
        assert "~/.docker/config.json" in caught.value.fix
        docker_login(tmp_path / "docker", proxy.host, "user:pass-word")
        with Registry(proxy.host) as registry:
            assert registry.push_blob(repository, blob, path) == SIZE
        monkeypatch.delenv("DOCKER_CONFIG")
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "docker" / "config.json"))
        with Registry(proxy.host) as registry:
            assert registry.push_blob(repository, blob, path) == 0


@pytest.mark.parametrize("uses", [0, 2], ids=["basic", "bearer"])
def test_no_secret_is_logged_or_reported(
    registry_host: str, repository: str, layout: Layout, caplog: pytest.LogCaptureFixture, uses: int
) -> None:
    blob, path = some_blob(layout)
    # The levels are set, because verbs that ran in this process before may have silenced these loggers.
    for name in ("", "toolchain", "urllib3"):
        caplog.set_level(logging.DEBUG, logger=name or None)
    texts = []
    login = base64.b64encode(b"user:pass-word").decode()
    wrong = base64.b64encode(b"user:other-word").decode()
    with fault_proxy(registry_host, login="user:pass-word", uses=uses) as proxy:
        for known, fault in (
            (wrong, None),
            (login, Fault("status", "PATCH", status=403, times=-1)),
            (login, Fault("reset", "PATCH", times=-1)),
            (login, Fault("reset", "HEAD", times=-1)),
            (login, Fault("status", "HEAD", times=-1, status=503)),
        ):
            proxy.faults[:] = [fault] if fault else []
            with (
                Registry(proxy.host, chunk=CHUNK, attempts=2, backoff=0.01, login=known) as registry,
                pytest.raises(ToolchainError) as caught,
            ):
                registry.push_blob(repository, blob, path)
            texts.append(str(caught.value) + caught.getrepr(style="short", chain=True).reprcrash.message)  # type: ignore[union-attr]
        secrets = [login, wrong, "pass-word", "other-word", *proxy.tokens]
        said = "\n".join([*texts, caplog.text])
    assert "HEAD" in caplog.text
    assert [secret for secret in secrets if secret in said] == []
    assert "_state=" not in caplog.text.replace("_state=[…]", "")
