"""The section "Mirror" of docs/tasks/publish-verify.md, with two registries."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.evidence_fixtures import finished_base, finished_llvm
from tests.registry_fixtures import running_registry
from tests.request_fixtures import specs
from toolchain.cli.app import app
from toolchain.core.cache import Cache
from toolchain.request.model import Request

pytestmark = pytest.mark.registry


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[str, str]]:
    with running_registry(tmp_path / "one") as first, running_registry(tmp_path / "two") as second:
        yield first, second


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_publish_keeps_signatures_that_skopeo_loses(
    hosts: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = hosts
    monkeypatch.setattr("toolchain.oci.shared_tag.CALM", (0.0,))  # each repository has one publisher
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    cache = Cache(tmp_path / "cache")
    finished_base(cache, tmp_path / "base")
    request = Request(cache=cache, sources=specs({"llvm": f"https://github.com/llvm/llvm-project@{'1' * 40}"}))
    built = finished_llvm(request, tmp_path / "tree", {"usr/lib64/x/lib/libx.a": b"x"}, {"prefix": "/usr/lib64/x"})
    name = built.planned.image
    assert run("keygen", "key").exit_code == 0
    assert run("publish", f"{first}/ns", name, "--key", "key", "--files").exit_code == 0
    trusted = ("--public-key", "key.pub")

    skopeo = shutil.which("skopeo")
    assert skopeo is not None
    words = [skopeo, "copy", "--all", "--src-tls-verify=false", "--dest-tls-verify=false", "--quiet"]
    subprocess.run([*words, f"docker://{first}/ns/{name}", f"docker://{second}/by-skopeo/{name}"], check=True)
    lost = run("verify", f"{second}/by-skopeo/{name}", *trusted)
    assert lost.exit_code == 17
    assert "publish-verify.md" in lost.output

    assert run("publish", f"{second}/by-skopeo", f"{first}/ns/{name}").exit_code == 0
    assert run("verify", f"{second}/by-skopeo/{name}", *trusted).exit_code == 0
    assert run("publish", "oci:carried", f"{first}/ns/{name}:latest").exit_code == 0
    assert run("verify", "oci:carried", *trusted).exit_code == 0
    assert run("publish", f"{second}/inside", "oci:carried").exit_code == 0
    assert run("verify", f"{second}/inside/{name}", *trusted).exit_code == 0
    assert run("inspect", f"{second}/inside/{name}:files").exit_code == 0
