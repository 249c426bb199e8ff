"""`publish --builder-id`: the signer names the builder in the provenance of its own builds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evidence_fixtures import finished_base, record
from tests.places import verify
from toolchain.cli.app import app
from toolchain.cli.publish_cmd import _built_by
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError
from toolchain.core.record import LOCAL_BUILDER, OTHER_BUILDER, TakenFrom
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef
from toolchain.trust.keys import load_public, new_key

BUILDER = "https://ci.example.org/builder"


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    finished_base(Cache(tmp_path / "cache"), tmp_path / "work")
    new_key(tmp_path / "key")
    return tmp_path


def test_the_provenance_names_the_given_builder(ready: Path) -> None:
    words = ["publish", f"oci:{ready / 'out'}", "toolchain-base", "--key", str(ready / "key"), "--builder-id", BUILDER]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    layout = Layout(ready / "out")
    top = next(iter(layout.images().values()))
    verdict = verify(LayoutRef(layout.root), layout, top, key=load_public(ready / "key.pub"))
    assert verdict.provenance is not None, verdict.problems
    assert verdict.provenance["predicate"]["runDetails"]["builder"]["id"] == BUILDER


@pytest.mark.parametrize(("uri", "signed"), [(BUILDER, False), ("no uri", True), ("https://a b", True)])
def test_a_builder_needs_a_uri_and_a_signature(ready: Path, uri: str, signed: bool) -> None:
    key = ["--key", str(ready / "key")] if signed else []
    done = CliRunner().invoke(app, ["publish", f"oci:{ready / 'out'}", "toolchain-base", "--builder-id", uri, *key])
    assert done.exit_code == ConfigError.code
    assert not (ready / "out").exists()


def test_an_image_that_another_builder_made_keeps_its_builder() -> None:
    theirs = record(tool={"version": "0.1.0", "builder": "https://github.com/a/b"})
    assert _built_by(theirs, BUILDER, "sha256:2") == theirs


@pytest.mark.parametrize("builder", [None, BUILDER])
def test_an_image_that_was_not_built_here_is_not_claimed(builder: str | None) -> None:
    """`verify --rebuilders` would otherwise count whoever takes an image and publishes it as another builder of it."""
    own = record(tool={"version": "0.1.0", "builder": LOCAL_BUILDER})
    taken = replace(own, taken_from=TakenFrom("registry.example/ns/llvm@sha256:1", "sha256:1"))
    rows = ((own, builder or LOCAL_BUILDER), (taken, OTHER_BUILDER), (own.without_claims(), OTHER_BUILDER))
    for made, named in rows:
        assert _built_by(made, builder, "sha256:2").tool["builder"] == named
    assert _built_by(taken, builder, "sha256:1").tool["builder"] == LOCAL_BUILDER, "its signer publishes it again"
