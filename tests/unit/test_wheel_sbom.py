"""The SBOM inside a wheel (PEP 770)."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from toolchain.core.digest import sha256_bytes
from toolchain.core.errors import BuildError, SourceError
from toolchain.core.record import Patch, RecordedSource
from toolchain.stages.wheels import SBOM_WRITER
from toolchain.trust.wheel_sbom import Contents, add_sbom, document_of

INFO = "demo-1.0.dist-info"
SBOM = f"{INFO}/sboms/toolchain.cdx.json"
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


def wheel_at(path: Path, *, left_out: str = "", more: tuple[str, ...] = ()) -> Path:
    """Write a wheel whose RECORD is in the middle, as setuptools leaves it where a licence follows."""
    files = {
        "demo/__init__.py": b"x = 1\n" * 500,
        f"{INFO}/METADATA": b"Metadata-Version: 2.4\nName: Demo\nVersion: 1.0\n",
        f"{INFO}/RECORD": f"demo/__init__.py,sha256=abc,3000\n{INFO}/RECORD,,\n".encode(),
        f"{INFO}/licenses/LICENSE": b"licence\n" * 200,
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\n",
        **dict.fromkeys(more, b"{}"),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            if name != left_out:
                archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return path


def test_a_wheel_gets_an_sbom_and_keeps_its_other_files(tmp_path: Path) -> None:
    wheel = wheel_at(tmp_path / "demo-1.0-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        before = {name: (archive.read(name), archive.getinfo(name).compress_size) for name in archive.namelist()}
    add_sbom(wheel, CONTENTS)
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted([*before, SBOM])
        for name in before.keys() - {f"{INFO}/RECORD"}:
            assert (archive.read(name), archive.getinfo(name).compress_size) == before[name]
        sbom, rows = archive.read(SBOM), list(csv.reader(io.StringIO(archive.read(f"{INFO}/RECORD").decode())))
    digest = base64.urlsafe_b64encode(hashlib.sha256(sbom).digest()).rstrip(b"=").decode()
    assert rows[:2] == [["demo/__init__.py", "sha256=abc", "3000"], [f"{INFO}/RECORD", "", ""]]
    assert rows[2:] == [[SBOM, f"sha256={digest}", str(len(sbom))]]
    document = json.loads(sbom)
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/demo@1.0"
    assert [row["name"] for row in document["components"]] == ["llvm", "triton"]
    assert "tools" not in document["metadata"]


def test_equal_wheels_get_equal_bytes(tmp_path: Path) -> None:
    wheels = [wheel_at(tmp_path / name) for name in ("a.whl", "b.whl")]
    for wheel in wheels:
        add_sbom(wheel, CONTENTS)
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


def test_the_document_is_valid_and_its_bytes_belong_to_this_version_of_the_writer() -> None:
    document = document_of("demo", "1.0", CONTENTS)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.decode()) is None
    recorded = (1, "sha256:2b5df2001820f327c7aa05dba8bda7fc30af815bdf76c50c8b0872b4a4816f70")
    assert (SBOM_WRITER, sha256_bytes(document)) == recorded, "other bytes need another SBOM_WRITER"


@pytest.mark.parametrize(
    ("left_out", "more"),
    [(f"{INFO}/RECORD", ()), (f"{INFO}/METADATA", ()), ("", (SBOM,))],
    ids=["record", "name", "own"],
)
def test_a_wheel_that_cannot_take_one_stays_as_it_is(tmp_path: Path, left_out: str, more: tuple[str, ...]) -> None:
    wheel = wheel_at(tmp_path / "demo.whl", left_out=left_out, more=more)
    before = wheel.read_bytes()
    with pytest.raises(BuildError):
        add_sbom(wheel, CONTENTS)
    assert wheel.read_bytes() == before


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "demo.whl"
    wheel.write_bytes(b"PK\3\4 nothing")
    with pytest.raises(SourceError):
        add_sbom(wheel, CONTENTS)
