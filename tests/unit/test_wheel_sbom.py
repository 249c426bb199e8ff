"""The SBOM inside a wheel (PEP 770)."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.refusals import refused
from toolchain.core.digest import sha256_bytes
from toolchain.core.record import Patch, RecordedSource
from toolchain.stages.wheels import SBOM_WRITER
from toolchain.trust.wheel_sbom import Contents, add_sbom, document_of

INFO = "demo-1.0.dist-info"
SBOM, RECORD = f"{INFO}/sboms/toolchain.cdx.json", f"{INFO}/RECORD"
NAME = "demo-1.0-py3-none-any.whl"
COMMIT = "d8da7c998c75c88691e0ec157fcfd92b49d7060a"
CONTENTS = Contents(
    input_digest=f"sha256:{'1' * 64}",
    sources=[
        RecordedSource(
            name="triton", ref=COMMIT, repository="https://github.com/triton-lang/triton", kind="git", locked=True,
            digest=f"git:{COMMIT}@https://github.com/triton-lang/triton",
            patches=(Patch("a.patch", f"sha256:{'2' * 64}"),),
        ),
        RecordedSource(
            name="llvm", ref="distro:llvm-toolchain-22=22.1.8", repository="debian", kind="distro", locked=True,
            digest=f"sha256:{'3' * 64}",
        ),
        RecordedSource(name="wheel-lit", ref="pypi:lit==18.1.8", repository="pypi", kind="pypi", locked=True),
    ],
)  # fmt: skip


def hashed(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def wheel_at(folder: Path, *, changed: dict[str, bytes | None] | None = None, name: str = NAME) -> Path:
    """Write a wheel whose RECORD is followed by other files, as setuptools does if there is a licence.

    Args:
        changed: additional or changed content by name; None omits a file. RECORD lists the resulting files, unless it
            is changed itself.
    """
    files: dict[str, bytes | None] = {
        "demo/__init__.py": b"x = 1\n" * 500,
        "demo/vendored-2.0.dist-info/RECORD": b"",
        "demo/vendored-2.0.dist-info/METADATA": b"Name: vendored\nVersion: 2.0\n",
        f"{INFO}/METADATA": b"Metadata-Version: 2.4\nName: Demo\nVersion: 1.0\n",
        RECORD: b"",
        f"{INFO}/licenses/LICENSE": b"licence\n" * 200,
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(changed or {}),
    }
    if files[RECORD] == b"":
        rows = [
            f"{file},{hashed(text)},{len(text)}" for file, text in files.items() if text is not None and file != RECORD
        ]
        files[RECORD] = "\n".join([*rows, f"{RECORD},,", ""]).encode()
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text in files.items():
            if text is not None:
                archive.writestr(zipfile.ZipInfo(file, (2026, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED)
    return folder / name


def test_a_wheel_gets_an_sbom_and_keeps_its_other_files(tmp_path: Path) -> None:
    wheel = wheel_at(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        before = {name: (archive.read(name), archive.getinfo(name).compress_size) for name in archive.namelist()}
    listed = before[RECORD][0].decode()
    add_sbom(wheel, CONTENTS)
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted([*before, SBOM])
        for name in before.keys() - {RECORD}:
            assert (archive.read(name), archive.getinfo(name).compress_size) == before[name]
        sbom, record = archive.read(SBOM), archive.read(RECORD).decode()
    assert record == f"{listed}{SBOM},{hashed(sbom)},{len(sbom)}\n"
    document = json.loads(sbom)
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/demo@1.0"
    assert [row["name"] for row in document["components"]] == ["llvm", "triton"]
    assert "tools" not in document["metadata"]


def test_equal_wheels_get_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = [wheel_at(tmp_path / name) for name in ("a", "b")]
    for wheel in wheels:
        add_sbom(wheel, CONTENTS)
        monkeypatch.setattr("toolchain.trust.wheel_sbom.CHUNK", 7)
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


def test_document_is_valid_and_has_the_recorded_bytes_of_the_writer() -> None:
    document = document_of("demo", "1.0", CONTENTS)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.decode()) is None
    recorded = (1, "sha256:c4f2cb5fc9a855f84b8b25a16b2e4e151a83c937408a26cc017a20b53d649380")
    assert (SBOM_WRITER, sha256_bytes(document)) == recorded, "other bytes need another SBOM_WRITER"


def test_pip_installs_the_wheel_and_finds_the_sbom(tmp_path: Path) -> None:
    wheel = wheel_at(tmp_path)
    add_sbom(wheel, CONTENTS)
    words = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, cwd=tmp_path)
    (installed,) = importlib.metadata.distributions(name="demo", path=[str(tmp_path / "site")])
    found = {str(file): (file.hash and file.hash.value, file.read_binary()) for file in installed.files or ()}
    assert f"sha256={found[SBOM][0]}" == hashed(found[SBOM][1])


def test_sbom_does_not_depend_on_names_of_patches_or_address_of_an_archive() -> None:
    """An input digest does not cover the names of patch files and folders, nor the mirror of an archive."""
    patch, digest = Patch("a.patch", f"sha256:{'2' * 64}"), f"sha256:{'3' * 64}"
    one = RecordedSource(name="triton", ref="local:a", repository="local", kind="local", locked=False, digest=digest,
                         patches=(patch,))  # fmt: skip
    other = replace(one, ref="local:b", patches=(replace(patch, name="b.patch"),))
    archive = replace(one, kind="archive", ref="", repository="https://one.example/t.tar.gz")
    mirrored = replace(archive, repository="https://two.example/t.tar.gz")
    for row, again in ((one, other), (archive, mirrored)):
        documents = {document_of("demo", "1.0", replace(CONTENTS, sources=[source])) for source in (row, again)}
        assert len(documents) == 1


METADATA = f"{INFO}/METADATA"


@pytest.mark.parametrize(
    ("id", "changed"),
    [
        ("wheel-without-record", {RECORD: None}),
        ("wheel-without-record", {METADATA: None}),
        ("wheel-without-record", {METADATA: b"Name: demo\nVersion: 1.0\n" + b"x" * (8 << 20)}),
        ("wheel-without-record", {RECORD: b"demo/\xff,,\n"}),
        ("wheel-without-name", {"other-1.0.dist-info/RECORD": b""}),
        ("wheel-without-name", {METADATA: b"Name: other\nVersion: 1.0\n"}),
        ("wheel-without-name", {METADATA: b"Name: demo\nVersion: " + b"1" * 5000}),
        ("wheel-without-name", {METADATA: b"Name: demo\nName: other\nVersion: 1.0\n"}),
        ("wheel-sbom-name-taken", {SBOM: b"{}"}),
        ("wheel-sbom-name-taken", {SBOM.replace("sboms", "SBOMs"): b"{}"}),
        ("wheel-sbom-name-taken", {f"{INFO}/sboms": b""}),
        ("wheel-record-mismatch", {RECORD: f"{RECORD},,\n".encode()}),
        ("wheel-record-mismatch", {RECORD: b"a" * 200_000}),
        ("wheel-record-mismatch", {RECORD: b'"demo'}),
    ],
)  # fmt: skip
def test_wheel_that_cannot_get_an_sbom_is_unchanged(tmp_path: Path, id: str, changed: dict[str, bytes | None]) -> None:
    wheel = wheel_at(tmp_path, changed=changed)
    before = wheel.read_bytes()
    with refused(id):
        add_sbom(wheel, CONTENTS)
    assert wheel.read_bytes() == before


@pytest.mark.parametrize("row", ["{0},sha256=abc,3000", "{0},md5={1},3000", "{0},{1},3001", "{0},,", "{0},{1}",
                                 "{0},{1},3000\n{0},{1},3000"])  # fmt: skip
def test_wheel_with_a_wrong_row_in_its_record_is_refused(tmp_path: Path, row: str) -> None:
    whole = wheel_at(tmp_path / "whole")
    with zipfile.ZipFile(whole) as archive:
        first, _, rest = archive.read(RECORD).decode().partition("\n")
    name, digest, size = first.split(",")
    assert size == "3000"
    wheel = wheel_at(tmp_path, changed={RECORD: f"{row.format(name, digest)}\n{rest}".encode()})
    with refused("wheel-record-mismatch"):
        add_sbom(wheel, CONTENTS)


@pytest.mark.parametrize("name", ["demo.whl", "demo-2.0-py3-none-any.whl", "other-1.0-py3-none-any.whl"])
def test_a_wheel_with_the_name_of_another_is_refused(tmp_path: Path, name: str) -> None:
    with refused("wheel-without-name"):
        add_sbom(wheel_at(tmp_path, name=name), CONTENTS)


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = wheel_at(tmp_path)
    content = bytearray(wheel.read_bytes())
    content[content.index(b"PK\1\2") + 16] ^= 1  # the CRC of the first file
    for damaged in (content, b"PK\3\4 nothing"):
        wheel.write_bytes(damaged)
        with refused("archive-incomplete"):
            add_sbom(wheel, CONTENTS)
