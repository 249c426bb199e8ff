"""containerfiles/base: its data, refusals, and the agreement of Containerfiles with the data."""

from __future__ import annotations

import dataclasses
import io
import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.evidence_fixtures import FILES, Stand, small_image
from tests.refusals import refused
from toolchain.catalog import bases
from toolchain.catalog.base_ref import parse_base
from toolchain.catalog.bases import DATA, base_recipe, load_bases
from toolchain.core.cache import Cache
from toolchain.core.errors import (
    BuildError,
    DigestError,
    UnreachableError,
)
from toolchain.core.process import CommandError
from toolchain.core.recipe import root
from toolchain.oci.check import verify_layout
from toolchain.oci.layer import Layer
from toolchain.oci.layout import Layout
from toolchain.pipeline import run as pipeline
from toolchain.pipeline.workspace import BuildWorkspace
from toolchain.request.model import Request
from toolchain.stages import mmdebstrap as stage
from toolchain.stages.base import BaseStage, local_image, read_packages, recipe_digest
from toolchain.stages.inputs import common_inputs
from toolchain.stages.mmdebstrap import _bootstrap_error

NAMES = ["debian13", "debian12", "ubi9", "almalinux8", "manylinux_2_28"]
BY_IMAGE = ["ubi9", "almalinux8", "manylinux_2_28"]


@pytest.mark.parametrize("name", NAMES)
def test_each_base_has_fields_of_its_kind(name: str) -> None:
    base = base_recipe(name, "arm64")
    if base.kind == "mmdebstrap":
        assert base.suite
        assert {"clang", "lld", "cmake", "ninja-build", "git", "python3-dev"} <= set(base.packages)
        assert list(base.packages) == sorted(set(base.packages))
    else:
        assert re.search(r"@sha256:[0-9a-f]{64}$", base.image)
        assert (root() / base.containerfile).is_file()
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", base.seen)


def test_data_with_base_without_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / DATA
    file.parent.mkdir(parents=True)
    file.write_text((root() / DATA).read_text(encoding="utf-8").replace('python = "3.12"', 'perl = "5"'))
    monkeypatch.setattr(bases, "root", lambda: tmp_path)
    with refused("base-without-python", "ubi9"):
        load_bases()


def test_local_image_is_chosen_by_tag_digest_or_as_only_image(tmp_path: Path) -> None:
    stand = Stand(Layout(tmp_path / "images"), tmp_path / "work")
    stand.say_all()

    def chosen(suffix: str) -> str:
        request = Request(cache=Cache(tmp_path / "cache"), base=parse_base(f"oci:{stand.layout.root}{suffix}"))
        digest = local_image(request).digest
        assert BaseStage().plan(request, {}).inputs == {**common_inputs("base", request), "image": digest}
        assert local_image(request).name == f"local-{digest[7:15]}"
        return digest

    first = stand.manifest
    assert {chosen(""), chosen(":thing"), chosen(f"@{first.digest}")} == {first.digest}
    second = small_image(stand.layout, stand.work, files={**FILES, "more": b"x"})
    stand.layout.tag(second, "latest")
    with refused("place-ambiguous") as caught:
        chosen("")
    assert "latest, thing" in caught.value.why
    assert (chosen(":latest"), chosen(f"@{second.digest}")) == (second.digest, second.digest)
    assert chosen(f"@{first.digest}") == first.digest, "a digest decides, whatever is called latest"
    with refused("blob-missing", "sha256:1111"):
        chosen(f"@sha256:{'1' * 64}")


def test_local_image_without_name_is_found_by_its_index(tmp_path: Path) -> None:
    """skopeo writes an image without a name, and the manifests that are attached to the image have no names either."""
    stand = Stand(Layout(tmp_path / "images"), tmp_path / "work")
    stand.say_all()
    stand.layout.untag("thing")
    request = Request(cache=Cache(tmp_path / "cache"), base=parse_base(f"oci:{stand.layout.root}"))
    with refused("place-ambiguous"):
        local_image(request)
    stand.layout.add(stand.index)
    assert local_image(request).digest == stand.manifest.digest


def test_local_image_is_copied_whole_and_damaged_one_is_refused(tmp_path: Path) -> None:
    stand = Stand(Layout(tmp_path / "images"), tmp_path / "work")
    request = Request(cache=Cache(tmp_path / "one"), base=parse_base(f"oci:{stand.layout.root}"))
    (built,) = pipeline.build(request, "base")
    own = Layout(request.cache.images)
    assert verify_layout(own, own.resolve(built.manifest)) == []
    blob = stand.layout.blob(stand.layout.children(stand.manifest)[1].digest)
    blob.write_bytes(b"x" * blob.stat().st_size)
    with pytest.raises(DigestError):
        pipeline.build(dataclasses.replace(request, cache=Cache(tmp_path / "two")), "base")


def test_base_keeps_no_configuration_of_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a mirror may contain a password."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(stage, "run_mmdebstrap", lambda *_, **more: given.update(more))
    stage._mmdebstrap(base_recipe("debian13"), tmp_path / "tar", tmp_path / "list", None)  # type: ignore[arg-type]
    top = tmp_path / "a root"
    for name in ("apt/sources.list", "apt/sources.list.d/x.sources", "hostname", "resolv.conf", "machine-id"):
        (top / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (top / "etc" / name).write_text("http://user:secret@mirror.invalid")
    (top / "usr").mkdir()
    for option in given["options"][1:]:  # The first hook lists packages in a chroot.
        subprocess.run(["sh", "-c", option.partition("=")[2], "sh", top], check=True)
    (top / "etc/dpkg/dpkg.cfg.d/exclude").unlink()
    assert [path for path in top.rglob("*") if path.is_file() and path.read_text()] == []


@pytest.mark.parametrize("name", ["debian12", "debian13"])
def test_base_excludes_files_of_packages_but_no_copyright(tmp_path: Path, name: str) -> None:
    exclude = base_recipe(name).exclude
    assert all(pattern.startswith("/usr/") for pattern in exclude)
    setup, remove = stage._exclusion(exclude)
    share = tmp_path / "a root [1]" / "usr/share"
    kept = ["doc/git/copyright", "python/man.py", "cmake-3.31/Modules/a"]
    gone = ["doc/git/changelog.gz", "doc/git/a/b", "man/man1/git.1", "locale/de/a.mo", "cmake-3.31/Help/a/b"]
    for path in (*kept, *gone):
        (share / path).parent.mkdir(parents=True, exist_ok=True)
        (share / path).write_text("")
    (share / "doc/git-man").symlink_to("git")
    (share / "doc/git/link").symlink_to("copyright")
    for option, when in ((setup, "--setup-hook="), (remove, "--customize-hook=")):
        subprocess.run(["sh", "-c", option.removeprefix(when), "sh", share.parents[1]], check=True)
    left = [str(path.relative_to(share)) for path in share.rglob("*") if not path.is_dir()]
    assert sorted(left) == sorted(kept)
    assert (share / "doc/git-man/copyright").is_file()
    # dpkg reads one rule from each line, and the last one that matches a file decides.
    rules = (share.parents[1] / "etc/dpkg/dpkg.cfg.d/exclude").read_text().splitlines()
    assert "path-exclude=/usr/share/man/*" in rules
    assert rules[-1] == "path-include=/usr/share/doc/*/copyright"
    assert stage._exclusion(()) == []


@pytest.mark.parametrize("name", BY_IMAGE)
def test_containerfile_uses_pinned_image_and_no_new_syntax(name: str) -> None:
    base = base_recipe(name)
    text = (root() / base.containerfile).read_text(encoding="utf-8")
    lines = text.splitlines()
    assert f"ARG BASE={base.image}" in lines
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM scratch AS recipe", "FROM ${BASE} AS base"]
    assert "<<" not in text  # buildah supports here-documents since 1.33.
    assert "--checksum" not in text
    copied = next(line for line in lines if line.startswith("COPY ")).split()[1:-1]
    assert copied == ["containerfiles/base/install.sh", f"containerfiles/base/{name}/packages"]


def test_an_unknown_base_is_refused() -> None:
    with refused("unknown-base"):
        base_recipe("UBI9")


def test_an_architecture_without_an_image_is_refused() -> None:
    assert load_bases("s390x")["ubi9"].image == ""
    with refused("base-without-image", "s390x"):
        base_recipe("ubi9", "s390x")


def test_an_image_that_is_named_by_a_tag_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / DATA
    file.parent.mkdir(parents=True)
    text = (root() / DATA).read_text(encoding="utf-8")
    file.write_text(text.replace(base_recipe("ubi9").image, "registry.example/ubi9:9.6"))
    monkeypatch.setattr(bases, "root", lambda: tmp_path)
    with refused("base-without-image", "ubi9"):
        base_recipe("ubi9")


def test_inputs_depend_on_installed_content_and_not_on_notes() -> None:
    plain = base_recipe("debian13")
    assert dataclasses.replace(plain, note="other", tested=False, tools={}).as_inputs() == plain.as_inputs()
    changes: list[dict[str, Any]] = [{"packages": plain.packages[1:]}, {"suite": "sid"}]
    for change in changes:
        assert dataclasses.replace(plain, **change).as_inputs() != plain.as_inputs()
    base = base_recipe("ubi9")
    inputs = base.as_inputs()
    assert dataclasses.replace(base, image=base.image[:-1] + "0").as_inputs() != inputs
    assert dataclasses.replace(base, tag="other", seen="2027-01-01").as_inputs() == inputs
    assert set(inputs["files"]) == {
        "containerfiles/base/install.sh",
        "containerfiles/base/ubi9/Containerfile",
        "containerfiles/base/ubi9/packages",
    }
    assert DATA not in inputs["files"]  # The row of another base must not change these inputs.


def test_a_changed_command_of_mmdebstrap_makes_another_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a base that an earlier version made would be used."""
    names = ("debian13", "ubi9")
    before = [recipe_digest(base_recipe(name)) for name in names]
    monkeypatch.setattr(stage, "_exclusion", lambda _patterns: ["--customize-hook=true"])
    changed = [recipe_digest(base_recipe(name)) != digest for name, digest in zip(names, before, strict=True)]
    assert changed == [True, False]


@pytest.mark.parametrize(
    ("line", "kind", "host"),
    [
        ("  Temporary failure resolving 'h.invalid'", UnreachableError, "h.invalid"),
        ("  Could not connect to 127.0.0.1:9 (127.0.0.1). - connect (111)", UnreachableError, "127.0.0.1:9"),
        ("  Unable to connect to proxy.example:3128:", UnreachableError, "proxy.example:3128"),
        ("E: Unable to locate package nosuch", BuildError, ""),
    ],
)
def test_unreachable_mirror_is_no_build_error(line: str, kind: type[Exception], host: str) -> None:
    """The lines are messages of apt, as mmdebstrap prints them."""
    error = _bootstrap_error("base debian13", CommandError(["mmdebstrap"], 1, [line, "E: mmdebstrap failed to run"]))
    assert isinstance(error, kind)
    assert host in error.what


@pytest.mark.parametrize(
    "text", ["", "[]", '{"recipe":"x"}', '{"recipe":"x","packages":{}}', '{"recipe":"y","packages":[]}']
)
def test_malformed_or_outdated_package_list_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "list").write_text(text)
    assert read_packages(tmp_path / "list", "x") is None
    (tmp_path / "list").write_text('{"recipe":"x","packages":[]}')
    assert read_packages(tmp_path / "list", "x") == {"recipe": "x", "packages": []}


class _Work:
    """The part of a workspace that is used to write the layer of a base."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def work(self) -> Path:
        return self.folder


def _layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mmdebstrap: Callable[[Path], None]) -> Layer:
    monkeypatch.setattr(stage, "_mmdebstrap", lambda _recipe, pipe, _packages, _workspace: mmdebstrap(pipe))
    workspace = cast("BuildWorkspace", _Work(tmp_path))
    return stage.write_layer(base_recipe("debian13", "amd64"), tmp_path / "packages", workspace)


def _failure() -> BuildError:
    return BuildError("base-not-made", "mmdebstrap failed")


@pytest.mark.timeout(60)
def test_layer_of_a_base_is_written_while_mmdebstrap_writes_the_tar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mmdebstrap(pipe: Path) -> None:
        with pipe.open("wb") as out, tarfile.open(fileobj=out, mode="w|") as tar:
            member = tarfile.TarInfo("./file")
            member.size = 1 << 20  # more than a pipe holds
            tar.addfile(member, io.BytesIO(bytes(member.size)))

    layer = _layer(tmp_path, monkeypatch, mmdebstrap)
    assert layer.path == tmp_path / "layer.tar"
    with tarfile.open(layer.path) as tar:
        assert [(member.name, member.size) for member in tar] == [("file", 1 << 20)]


@pytest.mark.timeout(60)
def test_refused_member_is_reported_instead_of_the_broken_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mmdebstrap(pipe: Path) -> None:
        try:
            with pipe.open("wb") as out, tarfile.open(fileobj=out, mode="w|") as tar:
                tar.addfile(tarfile.TarInfo("../outside"))
                member = tarfile.TarInfo("./file")
                member.size = 1 << 24
                tar.addfile(member, io.BytesIO(bytes(member.size)))
        except BrokenPipeError:
            raise _failure() from None

    with refused("tar-name-escapes", "../outside"):
        _layer(tmp_path, monkeypatch, mmdebstrap)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("written", [None, b"", b"cut off"])
def test_failure_of_mmdebstrap_is_reported_instead_of_the_cut_off_tar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bytes | None
) -> None:
    def mmdebstrap(pipe: Path) -> None:
        if written is not None:
            pipe.write_bytes(written)
        raise _failure()

    with refused("base-not-made"):
        _layer(tmp_path, monkeypatch, mmdebstrap)
