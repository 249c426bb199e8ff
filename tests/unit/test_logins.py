"""Tests of finding the user's login for a registry, in login files and with credential helpers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from toolchain.oci import auth, logins
from toolchain.oci.registry import Registry

LOGIN = base64.b64encode(b"user:pass-word").decode()
OTHER = base64.b64encode(b"other:word").decode()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home folder, so that there is no login."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def written(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def logged_in(home: Path, *names: str, login: str = LOGIN) -> None:
    written(home / ".docker" / "config.json", {"auths": {name: {"auth": login} for name in names}})


HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("docker.io", "https://index.docker.io/v1/"),
        ("index.docker.io", "docker.io"),
        ("registry-1.docker.io", "INDEX.docker.io"),
        ("Docker.IO", "http://registry-1.docker.io/v2/"),
    ],
)
def test_docker_hub_is_one_registry_under_all_its_names(home: Path, host: str, name: str) -> None:
    logged_in(home, name)
    assert logins.credentials(host) == LOGIN
    assert logins.credentials("docker.io.example") is None


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("reg.example", "https://reg.example"),
        ("Reg.Example", "http://REG.example/v2/"),
        ("reg.example", "reg.example/"),
    ],
)
def test_login_is_found_for_each_spelling_of_the_registry(home: Path, host: str, name: str) -> None:
    logged_in(home, name)
    assert logins.credentials(host) == LOGIN


@pytest.mark.parametrize(
    "name", ["reg.example:5000", "my.reg.example", "reg.example.org", "reg.example/ns", "https://x/reg.example", "reg"]
)
def test_login_of_another_registry_is_not_used(home: Path, name: str) -> None:
    logged_in(home, name)
    assert logins.credentials("reg.example") is None


def test_exact_name_of_the_registry_takes_precedence(home: Path) -> None:
    written(
        home / ".docker" / "config.json",
        {"auths": {"https://REG.example/": {"auth": OTHER}, "reg.example": {"auth": LOGIN}}},
    )
    assert logins.credentials("reg.example") == LOGIN


def helper(home: Path, monkeypatch: pytest.MonkeyPatch, script: str, name: str = "test") -> None:
    """Write a credential helper, and put its folder first in PATH."""
    program = home / "bin" / f"docker-credential-{name}"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\nread key\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


GIVES = 'echo "{\\"ServerURL\\": \\"$key\\", \\"Username\\": \\"user\\", \\"Secret\\": \\"pass-word\\"}"'


@pytest.mark.parametrize("kind", ["credHelpers", "credsStore"])
def test_login_is_read_from_a_credential_helper(home: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A helper serves one registry or all, and may need variables such as AWS_PROFILE."""
    helper(home, monkeypatch, f'[ "$1 $key $AWS_PROFILE" = "get reg.example yes" ] || exit 1\n{GIVES}')
    monkeypatch.setenv("AWS_PROFILE", "yes")
    value = {"credHelpers": {"reg.example": "test"}} if kind == "credHelpers" else {"credsStore": "test"}
    written(home / ".docker" / "config.json", {"auths": {"reg.example": {}}, **value})
    assert logins.credentials("reg.example") == LOGIN


def test_login_in_the_file_is_used_without_calling_a_helper(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper(home, monkeypatch, f"touch {home}/asked\n{GIVES}")
    value = {"auths": {"reg.example": {"auth": OTHER}}, "credsStore": "test"}
    written(home / ".docker" / "config.json", value)
    assert logins.credentials("reg.example") == OTHER
    assert not (home / "asked").exists()


def test_helper_for_a_registry_takes_precedence_over_the_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper(home, monkeypatch, "echo credentials not found in native keychain; exit 1", "store")
    helper(home, monkeypatch, GIVES, "own")
    value = {"credHelpers": {"reg.example": "own"}, "credsStore": "store"}
    written(home / ".docker" / "config.json", value)
    assert logins.credentials("reg.example") == LOGIN
    assert logins.credentials("other.example") is None


def test_identity_token_is_read_from_a_helper(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper(home, monkeypatch, 'echo \'{"Username": "<token>", "Secret": "somebody"}\'')
    written(home / ".docker" / "config.json", {"credsStore": "test"})
    assert auth.user_and_password(logins.credentials("reg.example")) == (logins.IDENTITY, "somebody")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo credentials not found in native keychain; exit 1", ""),
        ("echo no bus; echo se-cret >&2; exit 3", "docker-credential-test failed for reg.example (exit code 3)"),
        (None, "docker-credential-test, which docker's login file names, is not installed"),
    ],
    ids=["none", "fails", "missing"],
)
def test_failed_or_missing_helper_gives_a_warning(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, script: str | None, told: str
) -> None:
    if script is not None:
        helper(home, monkeypatch, script)
    written(home / ".docker" / "config.json", {"credHelpers": {"reg.example": "test"}})
    assert logins.credentials("reg.example") is None
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(warned) == bool(told)
    assert told in "".join(warned)
    assert "se-cret" not in caplog.text


@pytest.mark.parametrize(
    "said", ["", "se-cret", '{"Username": "se-cret"}', '{"Username": 7, "Secret": "se-cret"}', "[]"]
)
def test_malformed_answer_of_a_helper_is_reported_but_not_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    caplog.set_level("DEBUG")
    helper(home, monkeypatch, f"echo '{said}'")
    written(home / ".docker" / "config.json", {"credHelpers": {"reg.example": "test"}})
    with refused("credential-helper-failed") as caught:
        logins.credentials("reg.example")
    assert "se-cret" not in f"{caught.value} {caught.value.why} {caught.value.fix} {caplog.text}"


@pytest.mark.parametrize(("name", "host"), [("localhost:5000", "127.0.0.1:5000"), ("127.0.0.1:5000", "localhost:5000")])
def test_localhost_and_its_address_are_one_registry(home: Path, name: str, host: str) -> None:
    logged_in(home, name)
    assert logins.credentials(host) == LOGIN
    assert logins.credentials("127.0.0.1:5001") is None
    logged_in(home, "localhost.example", "my.127.0.0.1")
    assert (logins.credentials("127.0.0.1.example"), logins.credentials("my.localhost")) == (None, None)


def test_first_login_file_takes_precedence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier, the order of a Python set decided which file was used."""
    named = [written(home / str(number) / "config.json", {"auths": {"reg.example": {"auth": login}}})
             for number, login in enumerate((LOGIN, OTHER))]  # fmt: skip
    logged_in(home, "reg.example", "only.example", login=base64.b64encode(b"third:word").decode())
    monkeypatch.setenv("DOCKER_CONFIG", str(named[1].parent))
    assert logins.credentials("reg.example") == OTHER
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(named[0]))
    assert logins.credentials("reg.example") == LOGIN
    assert logins.credentials("only.example") == base64.b64encode(b"third:word").decode()


@pytest.mark.parametrize(
    "content",
    ["{", "[]",
     '{"auths": [7]}', '{"auths": {"reg.example": 7}}', '{"auths": {"reg.example": {"auth": "ü"}}}', "[" * 10**5],
    ids=["broken", "a list", "auths", "a number", "no login", "deep"],
)  # fmt: skip
def test_malformed_login_file_is_reported(home: Path, content: str) -> None:
    written(home / ".docker" / "config.json", {})
    (home / ".docker" / "config.json").write_text(content)
    with refused("login-file-unreadable") as caught:
        logins.credentials("reg.example")
    assert str(home) in caught.value.what


@pytest.mark.parametrize(
    "entry",
    [{"username": "user", "password": "pass-word"}, {"auth": f"{LOGIN[:8]}\n{LOGIN[8:]}"}],
    ids=["plain", "a line break"],
)
def test_login_is_read_in_each_form_that_docker_accepts(home: Path, entry: dict[str, str]) -> None:
    written(home / ".docker" / "config.json", {"auths": {"reg.example": entry}})
    assert logins.credentials("reg.example") == LOGIN


def test_login_of_a_namespace_takes_precedence_over_that_of_the_registry(home: Path) -> None:
    auths = {"reg.example": {"auth": OTHER}, "reg.example/ns": {"auth": LOGIN}}
    written(home / ".docker" / "config.json", {"auths": auths})
    assert logins.credentials("reg.example", "ns/thing") == LOGIN
    assert logins.credentials("reg.example", "ns") == LOGIN
    assert logins.credentials("reg.example", "nsx/thing") == OTHER
    assert logins.credentials("reg.example") == OTHER


def test_login_file_may_begin_with_a_byte_order_mark(home: Path) -> None:
    path = written(home / ".docker" / "config.json", {"auths": {"reg.example": {"auth": LOGIN}}})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert logins.credentials("reg.example") == LOGIN


@pytest.mark.parametrize("host", [*HUB, "DOCKER.io"])
def test_docker_hub_has_one_address_for_requests(host: str) -> None:
    with Registry(host, login="") as registry:
        assert registry.url("/v2/x") == "https://registry-1.docker.io/v2/x"


def test_host_in_upper_case_is_the_same_host() -> None:
    """Otherwise, the registry's own addresses would be treated as another host, which gets no login."""
    with Registry("Reg.Example", login="") as registry:
        assert registry.url("/v2/x") == "https://reg.example/v2/x"
        assert registry.url("http://reg.example/v2/x") == "https://reg.example/v2/x"
