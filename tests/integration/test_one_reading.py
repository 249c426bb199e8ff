"""Layouts that programs could read differently: none takes a stranger's image out of a layout that `verify` trusts."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from oras.client import OrasClient
from oras.layout import NewLayout

from tests.ambiguous_layouts import CASES, NAME, Shelf, make_shelf
from tests.containerd_fixture import containerd
from tests.dockerd_fixture import dockerd
from tests.evidence_fixtures import Stand
from tests.plain_buildah import Engine, engine
from toolchain.oci.layout import Layout
from toolchain.oci.registry import Registry

__all__ = ["engine"]
pytestmark = pytest.mark.registry
Taken: TypeAlias = Literal["good", "evil", "refused"]
Take: TypeAlias = Callable[[Shelf], Taken]
TRUSTED = [name for name, (_, trusted) in CASES.items() if trusted]
# Each program takes the stranger's image in these cases, which `verify` refuses, so the test can detect a wrong image.
TAKEN = {
    "skopeo": ("Manifests too", "Digest too", "Annotations too", "two images of one name", "a blob of other bytes"),
    "buildah": ("Manifests too", "Digest too"),
    "oras_py": ("two images of one name",),
    "ctr": ("Manifests too", "Digest too", "a name for containerd"),
    "docker": ("docker's manifest.json",),
}
_REPOSITORY = "localhost/x"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    folder = tmp_path_factory.mktemp("shelf")
    return make_shelf(Stand(Layout(folder / "layout"), folder / "work"))


def _run(*words: str | Path) -> str | None:
    """Run a program, and return its output, or None if it fails."""
    argv = [os.fspath(word) for word in words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    return done.stdout if done.returncode == 0 else None


def _which(shelf: Shelf, digest: str) -> Taken:
    return "good" if digest in {shelf.good.digest, shelf.good_image.digest} else "evil"


def _packed(shelf: Shelf) -> Path:
    """Pack the layout into an archive, and return its path."""
    path = shelf.folder.with_name("layout.tar")
    with tarfile.open(path, "w") as archive:
        for one in sorted(shelf.folder.rglob("*")):
            archive.add(one, one.relative_to(shelf.folder).as_posix(), recursive=False)
    return path


@pytest.fixture(scope="module")
def skopeo() -> Take:
    """Return a function that runs `skopeo copy` and judges by the copied blobs."""

    def take(shelf: Shelf) -> Taken:
        out = shelf.folder.with_name("copied")
        if _run("skopeo", "copy", "--quiet", f"oci:{shelf.folder}:{NAME}", f"dir:{out}") is None:
            return "refused"
        blobs = {f"sha256:{path.name}" for path in out.iterdir() if path.name not in {"manifest.json", "version"}}
        return "good" if blobs and blobs <= shelf.good_blobs else "evil"

    return take


@pytest.fixture(scope="module")
def buildah(engine: Engine) -> Take:
    """Return a function that runs `buildah pull` and judges by the manifest of the image in its storage."""

    def take(shelf: Shelf) -> Taken:
        done = engine("pull", "--quiet", f"oci:{shelf.folder}:{NAME}", check=False)
        if done.returncode != 0:
            return "refused"
        image = done.stdout.strip()
        said = engine("inspect", "--type", "image", "--format", "{{.FromImageDigest}}", image).stdout.strip()
        engine("rmi", "--force", image)
        return _which(shelf, said)

    return take


@pytest.fixture(scope="module")
def oras_py(registry_host: str) -> Take:
    """Return a function that pushes by oras-py and judges by the manifest in the registry."""
    taken: list[str] = []

    def take(shelf: Shelf) -> Taken:
        repository = f"one-reading/{len(taken)}"
        taken.append(repository)
        try:
            layout = NewLayout(str(shelf.folder))
            layout.push_to_registry(OrasClient(insecure=True), f"{registry_host}/{repository}:x", NAME)
        except (ValueError, KeyError, AttributeError, TypeError, OSError):
            return "refused"
        with Registry(registry_host) as registry:
            return _which(shelf, str(registry.manifest_digest(repository, "x")))

    return take


@pytest.fixture(scope="module")
def ctr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Take]:
    """Yield a function that runs `ctr images import` and judges by the digest that containerd has for the name."""
    with containerd(tmp_path_factory.mktemp("containerd")) as address:
        taken: list[str] = []

        def take(shelf: Shelf) -> Taken:
            call = ("ctr", "--address", address, "--namespace", f"case-{len(taken)}", "images")
            taken.append(address)
            if _run(*call, "import", "--no-unpack", "--base-name", _REPOSITORY, _packed(shelf)) is None:
                return "refused"
            rows = [line.split() for line in (_run(*call, "ls") or "").splitlines()]
            found = [row[2] for row in rows if row[0] == f"{_REPOSITORY}:{NAME}"]
            return _which(shelf, found[0]) if found else "refused"

        yield take


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Take]:
    """Yield a function that runs `docker load` and judges by the image's id.

    The id is the config's digest or, with containerd, the index's.
    """
    with dockerd(tmp_path_factory.mktemp("dockerd")) as address:

        def take(shelf: Shelf) -> Taken:
            if _run("docker", "--host", address, "load", "--input", _packed(shelf)) is None:
                return "refused"
            name = f"{_REPOSITORY}:{NAME}"
            said = (_run("docker", "--host", address, "image", "inspect", "--format", "{{.Id}}", name) or "").strip()
            _run("docker", "--host", address, "image", "rm", "--force", name)
            config = Layout(shelf.folder).children(shelf.good_image)[0].digest
            return "refused" if not said else "good" if said == config else _which(shelf, said)

        yield take


@pytest.mark.parametrize("program", TAKEN)
def test_program_takes_no_other_image_from_a_trusted_layout(
    shelf: Shelf, program: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    take: Take = request.getfixturevalue(program)
    taken: dict[str, Taken] = {}
    for number, case in enumerate((*TRUSTED, *TAKEN[program])):
        (tmp_path / str(number)).mkdir()
        copy = shelf.copy(tmp_path / str(number) / "layout")
        CASES[case][0](copy)
        taken[case] = take(copy)
    assert [case for case in TRUSTED if taken[case] == "evil"] == []
    # The program reads the unchanged layout. Docker's daemon before version 25 reads no layouts at all.
    assert taken["as it was"] == "good" or program == "docker"
    assert [case for case in TAKEN[program] if taken[case] != "evil"] == []
