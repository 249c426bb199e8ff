"""The user's logins: under which names they are found, and which file counts."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from toolchain.errors import RegistryError
from toolchain.oci import auth
from toolchain.oci.registry import Registry

LOGIN = base64.b64encode(b"user:pass-word").decode()
OTHER = base64.b64encode(b"other:word").decode()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without any login."""
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


@pytest.mark.parametrize("host", [*HUB, "Docker.IO"])
@pytest.mark.parametrize(
    "name",
    [*HUB, "https://index.docker.io/v1/", "https://index.docker.io/v1", "https://docker.io", "https://docker.io/",
     "http://registry-1.docker.io/v2/", "INDEX.docker.io"],
)  # fmt: skip
def test_docker_hub_is_one_registry_under_all_its_names(home: Path, host: str, name: str) -> None:
    logged_in(home, name)
    assert auth.credentials(host) == LOGIN
    assert auth.credentials("docker.io.example") is None


@pytest.mark.parametrize("host", ["reg.example", "Reg.Example"])
@pytest.mark.parametrize(
    "name",
    [
        "reg.example",
        "https://reg.example",
        "https://reg.example/",
        "http://REG.example/v2/",
        "REG.EXAMPLE",
        "reg.example/",
    ],
)
def test_a_login_is_found_however_its_registry_is_written(home: Path, host: str, name: str) -> None:
    logged_in(home, name)
    assert auth.credentials(host) == LOGIN


@pytest.mark.parametrize(
    "name", ["reg.example:5000", "my.reg.example", "reg.example.org", "reg.example/ns", "https://x/reg.example", "reg"]
)
def test_the_login_of_another_registry_is_not_taken(home: Path, name: str) -> None:
    logged_in(home, name)
    assert auth.credentials("reg.example") is None


def test_the_name_as_it_is_asked_for_counts_first(home: Path) -> None:
    written(
        home / ".docker" / "config.json",
        {"auths": {"https://REG.example/": {"auth": OTHER}, "reg.example": {"auth": LOGIN}}},
    )
    assert auth.credentials("reg.example") == LOGIN


def test_an_identity_token_under_another_name(home: Path) -> None:
    entry = {"auth": base64.b64encode(b"0000:").decode(), "identitytoken": "somebody"}
    written(home / ".docker" / "config.json", {"auths": {"https://Reg.example/": entry}})
    assert auth.identity_of(auth.credentials("reg.example")) == "somebody"


def test_a_helper_under_another_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = home / "bin" / "docker-credential-test"
    helper.parent.mkdir()
    helper.write_text('#!/bin/sh\nread name\n[ "$name" = https://reg.example/ ] || exit 1\n'
                      'echo \'{"Username": "user", "Secret": "pass-word"}\'\n')  # fmt: skip
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:/usr/bin:/bin")
    written(home / ".docker" / "config.json", {"credHelpers": {"https://reg.example/": "test"}})
    assert auth.credentials("reg.example") == LOGIN


def test_of_two_files_the_first_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one it was depended on how Python orders a set of names."""
    named = [written(home / str(number) / "config.json", {"auths": {"reg.example": {"auth": login}}})
             for number, login in enumerate((LOGIN, OTHER))]  # fmt: skip
    logged_in(home, "reg.example", "only.example", login=base64.b64encode(b"third:word").decode())
    monkeypatch.setenv("DOCKER_CONFIG", str(named[1].parent))
    assert auth.credentials("reg.example") == OTHER
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(named[0]))
    assert auth.credentials("reg.example") == LOGIN
    assert auth.credentials("only.example") == base64.b64encode(b"third:word").decode()


@pytest.mark.parametrize(
    "content",
    ["{", "[]",
     '{"auths": [7]}', '{"auths": {"reg.example": 7}}', '{"auths": {"reg.example": {"auth": "ü"}}}', "[" * 10**5],
    ids=["broken", "a list", "auths", "a number", "no login", "deep"],
)  # fmt: skip
def test_a_login_file_that_cannot_be_read_is_told(home: Path, content: str) -> None:
    written(home / ".docker" / "config.json", {})
    (home / ".docker" / "config.json").write_text(content)
    with pytest.raises(RegistryError, match="login file") as caught:
        auth.credentials("reg.example")
    assert "log in" in caught.value.fix


@pytest.mark.parametrize("host", [*HUB, "DOCKER.io"])
def test_docker_hub_is_asked_at_one_address(host: str) -> None:
    with Registry(host, login="") as registry:
        assert registry.url("/v2/x") == "https://registry-1.docker.io/v2/x"


def test_a_host_in_upper_case_is_the_same_host() -> None:
    """Else its own addresses would count as another's, which gets no login."""
    with Registry("Reg.Example", login="") as registry:
        assert registry.url("/v2/x") == "https://reg.example/v2/x"
        assert registry.url("http://reg.example/v2/x") == "https://reg.example/v2/x"
