"""Tests of repeated requests, and of the errors of connections."""

from __future__ import annotations

import socket

import pytest

from toolchain.core.errors import ConfigError, RegistryError, UnreachableError
from toolchain.core.web import LONGEST_ASKED, LONGEST_BACKOFF, PROGRESS, Retries, TryAgainError, is_loopback, session
from toolchain.oci.registry import Registry

PROBLEM = RegistryError("test-error", "it fails")


def test_waits_grow_and_follow_the_request_of_the_server() -> None:
    waits: list[float] = []
    answers: list[str | None] = [None, None, "7", "999999", "Wed, 21 Oct 2026 07:28:00 GMT", None, None]
    left = iter(answers)

    def once() -> str:
        for asked in left:
            raise TryAgainError(PROBLEM, asked)
        return "done"

    assert Retries(len(answers), 2.0, pause=waits.append).run(once) == "done"
    assert waits == [2.0, 4.0, 7.0, LONGEST_ASKED, LONGEST_BACKOFF, LONGEST_BACKOFF, LONGEST_BACKOFF]


def test_retries_end_with_the_last_error() -> None:
    waits: list[float] = []

    def once() -> None:
        raise TryAgainError(RegistryError("test-error", f"failure {len(waits)}"))

    with pytest.raises(RegistryError, match="failure 2") as caught:
        Retries(2, 1.0, pause=waits.append).run(once)
    assert waits == [1.0, 2.0]
    assert caught.value.__suppress_context__, "what HTTP libraries raise holds tokens"


def test_retries_are_reset_only_by_a_new_highest_position() -> None:
    waits: list[float] = []
    positions = iter(
        PROGRESS * place + more for place, more in ((1, 0), (2, 0), (3, 0), (3, PROGRESS - 1), (2, 0), (3, 0))
    )
    retries = Retries(2, 1.0, pause=waits.append)

    def once() -> None:
        retries.reached(next(positions))
        raise TryAgainError(PROBLEM)

    with pytest.raises(RegistryError):
        retries.run(once)
    assert waits == [1.0, 1.0, 1.0, 2.0]
    assert list(positions) == [3 * PROGRESS], "three failures in a row at the same place"


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("127.0.0.9", True), ("::1", True), ("10.0.0.1", False), ("x", False), (None, False)],
)
def test_is_loopback_recognises_local_hosts(host: str | None, here: bool) -> None:
    assert is_loopback(host) is here


def test_refused_connection_is_reported_without_class_names(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with Registry(address, attempts=2, backoff=0.01) as registry, pytest.raises(UnreachableError) as refused:
        registry.get_manifest("ns/thing", "latest")
    assert f"{address}: " in refused.value.why
    said = f"{caplog.text}{refused.value.why}"
    assert "Connection(" not in said
    assert "Bounded" not in said


def test_socks_proxy_is_reported_as_an_unreachable_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5h://127.0.0.1:1")
    with Registry("registry.test", attempts=0) as registry, pytest.raises(UnreachableError) as caught:
        registry.get_manifest("ns/thing", "latest")
    assert caught.value.id == "registry-unreachable"


def test_a_missing_file_of_certificate_authorities_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/ca.pem")
    with session(0, 0.0) as client, pytest.raises(ConfigError) as caught:
        client.get("https://127.0.0.1:1/")
    assert "/nowhere/ca.pem" in caught.value.why
