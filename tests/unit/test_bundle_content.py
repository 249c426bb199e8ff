"""Bundles with wrong blobs, records or locks: the import refuses them, or ignores the wrong part."""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bundle_fixtures import Place, copied, entry, exported_place, nothing_counts, refuses
from tests.refusals import refused
from toolchain.bundle.importer import import_bundle
from toolchain.core.cache import Cache
from toolchain.core.digest import canonical, sha256_bytes, sha256_json
from toolchain.core.errors import (
    ConfigError,
    DigestError,
    DocumentError,
    HostileInputError,
    RegistryError,
    ToolchainError,
    UnsupportedError,
)
from toolchain.oci import descriptor as media
from toolchain.oci.layout import Layout
from toolchain.pipeline import lockfile
from toolchain.pipeline.lockfile import Lock
from toolchain.sources.tree import tree_digest


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return exported_place(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def place(exported: Place, tmp_path: Path) -> Place:
    return copied(exported, tmp_path)


@pytest.mark.parametrize(
    ("kind", "harm"),
    [*((kind, "flip") for kind in ("lock", "base", "record", "patch", "file", "tree", "blob")),
     ("lock", "cut"), ("tree", "cut"), ("file", "gone"), ("blob", "gone")],
)  # fmt: skip
def test_damaged_or_missing_blob_is_refused(place: Place, kind: str, harm: str) -> None:
    layout = Layout(place.out.path)
    path = layout.blob(entry(layout.read_json(layout.resolve("bundle-triton")), kind)["digest"])
    content = bytearray(path.read_bytes())
    match harm:
        case "flip":
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        case "cut":
            path.write_bytes(content[:-1])
        case _:
            path.unlink()
    refuses(place, RegistryError if harm == "gone" else DigestError)


def _packed(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def _other_tree() -> bytes:
    return _packed("setup.py", b"evil")


def _climbing_tree() -> bytes:
    return _packed("../../evil", b"")


@pytest.mark.parametrize(
    ("kind", "change", "error", "says"),
    [
        ("tree", lambda _: _other_tree(), DigestError, "stored-tree-digest"),
        ("tree", lambda _: _climbing_tree(), HostileInputError, "entry-escapes"),
        ("file", lambda _: b"evil", HostileInputError, "bundle-entry-unlocked"),
        # The lock has the right digest of the package list, but shows other packages.
        ("lock", lambda content: content.replace(b'"apt"', b'"apx"'), HostileInputError, "bundle-packages-mismatch"),
        (
            "base",
            lambda content: content.replace(b'"3.0.3"', b'"6.6.6"'),
            HostileInputError,
            "bundle-packages-mismatch",
        ),
    ],
)
def test_blob_with_other_content_is_refused(
    place: Place, kind: str, change: Callable[[bytes], bytes], error: type[ToolchainError], says: str
) -> None:
    before = place.content(kind)
    assert change(before) != before
    place.swap(kind, change(before))
    refuses(place, error, says)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": [1]},
        {"manifest": "sha256:" + "0" * 64},
        {"stage": "llvm"},
        {"input_digest": "sha256:" + "0" * 64},
        {"inputs": {"stage": "base", "base": "debian13"}},
        {"layers": [{"digest": "sha256:" + "0" * 64}]},
        {"sources": [{"name": "llvm", "ref": "x", "repository": "elsewhere", "digest": None}]},
        {"binaries": ["ptxas"]},
        {"partial": "tablegen"},
        {"image": "llvm-triton-22.1.8-debian13"},
        {"arch": "arm64"},
        {"facts": None},
        {"started": 10**400},
        {"tool": "mine"},
        {"and": "more"},
    ],
)
def test_record_with_wrong_field_is_refused(place: Place, change: dict[str, Any]) -> None:
    record = {**json.loads(place.content("record")), **change}
    if isinstance(change.get("inputs"), dict):
        record["input_digest"] = sha256_json(record["inputs"])
    place.swap("record", canonical(record))
    refuses(place, HostileInputError)


@pytest.mark.parametrize("fact", [{"diff_id": "sha256:" + "0" * 64}, {"blob_bytes": 10**400}])
def test_record_with_wrong_fact_of_layer_is_refused(place: Place, fact: dict[str, Any]) -> None:
    """Signed provenance of the images on the base repeats the digest, and `build` shows the size."""
    record = json.loads(place.content("record"))
    place.swap("record", canonical({**record, "facts": {**record["facts"], **fact}}))
    refuses(place, HostileInputError, "bundle-record-mismatch")


@pytest.mark.parametrize("kind", ["record", "base", "tree"])
def test_duplicate_entry_is_refused(place: Place, kind: str) -> None:

    def edit(value: dict[str, Any], layout: Layout) -> None:
        row = entry(value, kind)
        content = layout.blob(row["digest"]).read_bytes() + b" "
        blob = layout.put_bytes(content, row["mediaType"])
        value["layers"].append({**row, "digest": blob.digest, "size": blob.size})

    place.change(edit)
    refuses(place, HostileInputError, "bundle-entry-twice")


def test_import_keeps_known_record_of_base(place: Place) -> None:
    """Later signed statements repeat the builder and the facts in the record."""
    place.import_bundle()
    (path,) = (place.root / "other" / "records").glob("*.json")
    before = path.read_bytes()
    record = json.loads(place.content("record"))
    place.swap("record", canonical(record | {"tool": {"version": "6", "builder": "https://evil.test/"}}))
    (place.root / "other" / "toolchain.lock").unlink()
    place.import_bundle()
    assert path.read_bytes() == before
    path.write_bytes(canonical(record | {"manifest": "sha256:" + "0" * 64}))
    with refused("lock-differs"):
        place.import_bundle()
    path.write_bytes(b"{")
    place.import_bundle()
    assert json.loads(path.read_bytes()) == json.loads(before), "a damaged one is replaced, without the claims"


@pytest.mark.parametrize("rows", [None, 5, [{"x": 1}], ["no row"], [[]], [{"name": ["x"], "version": "1"}]])
def test_malformed_package_list_is_refused(place: Place, rows: Any) -> None:
    value = json.loads(place.content("base")) | {"packages": rows}
    digest, record = sha256_json(value), json.loads(place.content("record"))
    record["inputs"]["packages"] = digest
    record["input_digest"] = sha256_json(record["inputs"])
    _relock(place, bases=(dataclasses.replace(_lock(place).bases[0], packages_digest=digest),))
    place.swap("base", canonical(value))
    place.swap("record", canonical(record))
    refuses(place, HostileInputError, f"bundle-packages-{'malformed' if isinstance(rows, list) else 'mismatch'}")


def test_index_instead_of_image_of_base_is_refused(place: Place) -> None:
    content = canonical({"schemaVersion": 2, "mediaType": media.INDEX, "manifests": []})

    def edit(value: dict[str, Any], layout: Layout) -> None:
        row = entry(value, "blob")
        value["layers"] = [kept for kept in value["layers"] if kept is row or kept["mediaType"] != row["mediaType"]]
        row["annotations"]["toolchain.bundle.media-type"] = media.INDEX
        row |= {"digest": layout.put_bytes(content, "x").digest, "size": len(content)}

    place.change(edit)
    _relock(place, bases=(dataclasses.replace(_lock(place).bases[0], image=sha256_bytes(content)),))
    refuses(place, HostileInputError, "bundle-entry-media-type")


@pytest.mark.parametrize(
    "request_",
    [{"cache": "/tmp/x"}, {"key": "/tmp/evil"}, {"stage": "--help"}, {"stage": ["llvm"]}, {"limit": "1"}, {"gpu": "x"},
     {"arch": [1]}, {"source": {"llvm": {"a": "b"}}}, {"patch": ["x"]}, {"select": 3}],
)  # fmt: skip
def test_invalid_request_in_lock_is_refused(place: Place, request_: dict[str, Any]) -> None:
    """The command that is printed after an import is made from the request."""
    _relock(place, request=request_)
    refuses(place, ConfigError, "lock-malformed")


def test_import_command_is_one_line_and_other_request_is_refused(place: Place) -> None:
    _relock(place, request={"select": "x\n\x1b[2Jnow: evil", "allow-binary": ["triton-wheel"]})
    told = place.import_bundle()
    assert not any(set(word) & set("\n\x1b") for word in told.command)
    own = place.root / "another" / "toolchain.lock"
    lockfile.write(dataclasses.replace(told.lock, request={"select": "x"}), own)
    with refused("lock-differs"):
        place.import_bundle("another")
    words = shlex.split(" ".join(told.command))
    assert words[words.index("--cache") + 1] == str(place.root / "other")


def test_cache_with_other_package_list_is_unchanged(place: Place) -> None:
    there = place.root / "other" / "locked"
    there.mkdir(parents=True)
    (there / "base-debian13-amd64.json").write_text('{"recipe": "x", "packages": []}')
    with refused("lock-differs"):
        place.import_bundle()
    assert json.loads((there / "base-debian13-amd64.json").read_text())["recipe"] == "x"


def _locked(place: Place, **changes: Any) -> None:
    """Change the row for Triton in the bundle's own lock."""
    sources = [dataclasses.replace(one, **changes) if one.name == "triton" else one for one in _lock(place).sources]
    _relock(place, sources=tuple(sources))


def _lock(place: Place) -> Lock:
    return lockfile.parse(place.content("lock"), "it")


def _relock(place: Place, **changes: Any) -> None:
    place.swap("lock", lockfile.render(dataclasses.replace(_lock(place), **changes)))


def _digest_of(tree: bytes, folder: Path) -> str:
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(tree)) as tar:
        tar.extractall(folder, filter="data")
    return tree_digest(folder)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"kind": "distro", "ref": "distro:../../../../evil=1"}, ConfigError, "lock-malformed"),
        ({"kind": "distro", "ref": 'distro:x=1"\n[build]\nevil = "'}, ConfigError, "lock-malformed"),
        ({"kind": "git", "ref": "a" * 40}, ConfigError, "lock-malformed"),
        (
            {"kind": "archive", "ref": f"https://h.example/x.tar#sha256={'a' * 64}"},
            HostileInputError,
            "bundle-lock-incomplete",
        ),
        ({"kind": "distro", "ref": "distro:xy=1"}, HostileInputError, "bundle-lock-incomplete"),
    ],
)
def test_lock_with_unsafe_or_unverifiable_source_is_refused(
    place: Place, changes: dict[str, Any], error: type[ToolchainError], says: str
) -> None:
    """Such names would become paths, and a tree cannot be compared with the digest of a file."""
    _locked(place, **changes)
    refuses(place, error, says)


def test_tree_that_differs_from_its_locked_digest_is_refused(place: Place) -> None:
    """The first import uses the user's lock, which names the tree; the second one has only the lock of the bundle."""
    own = _lock(place)
    triton = own.source("triton")
    assert triton is not None
    git = dataclasses.replace(triton, kind="git", ref="a" * 40, digest=f"git:{'a' * 40}@https://h.example/t")
    sources = tuple(git if one.name == "triton" else one for one in own.sources)
    lockfile.write(dataclasses.replace(own, sources=sources), place.root / "own.lock")
    place.swap("tree", _other_tree())
    _locked(place, tree=_digest_of(_other_tree(), place.root / "x"))
    with refused("lock-differs"):
        import_bundle(place.out, Cache(place.root / "other"), place.root / "own.lock")
    refuses(place, HostileInputError, "bundle-lock-contradictory", "triton")


def test_bundle_with_tree_is_refused_by_a_lock_without_tree(place: Place) -> None:
    """A commit cannot be compared with a tree, so a lock without the tree cannot confirm that of the bundle."""
    own = _lock(place)
    url, commit = "https://h.example/t", "a" * 40
    git = {"kind": "git", "ref": commit, "digest": f"git:{commit}@{url}", "repository": url}
    place.swap("tree", _other_tree())
    _locked(place, **git, tree=_digest_of(_other_tree(), place.root / "x"))
    sources = tuple(
        dataclasses.replace(one, **git, tree="") if one.name == "triton" else one  # type: ignore[arg-type]
        for one in own.sources
    )
    lockfile.write(dataclasses.replace(own, sources=sources), place.root / "own.lock")
    with refused("lock-differs"):
        import_bundle(place.out, Cache(place.root / "other"), place.root / "own.lock")
    nothing_counts(place)


def test_renamed_file_is_refused(place: Place) -> None:
    """The name of a file decides whether a source is unpacked and how an installer treats a wheel."""

    def rename(value: dict[str, Any], _: Layout) -> None:
        entry(value, "file")["annotations"]["org.opencontainers.image.title"] = "readme.txt"

    place.change(rename)
    refuses(place, HostileInputError, "bundle-entry-renamed", "readme.txt")


@pytest.mark.parametrize("harm", [{"inputs": {"a": "\ud800"}}, {"Manifest": "sha256:" + "0" * 64}])
def test_record_with_ambiguous_json_is_refused(place: Place, harm: dict[str, Any]) -> None:
    record = {**json.loads(place.content("record")), **harm}
    place.swap("record", json.dumps(record).encode())
    refuses(place, DocumentError)


@pytest.mark.parametrize("step", [-1, 1])
def test_a_record_of_another_format_is_refused(place: Place, step: int) -> None:
    record = json.loads(place.content("record"))
    place.swap("record", canonical({**record, "version": record["version"] + step}))
    with pytest.raises(UnsupportedError):
        place.import_bundle()
    assert not list((place.root / "other").glob("records/*.json"))


@pytest.mark.parametrize("fact", [{"weather": "fine"}, {"start": {"image": "x@sha256:1"}}])
def test_unknown_facts_of_record_are_dropped(place: Place, fact: dict[str, Any]) -> None:
    record = json.loads(place.content("record"))
    place.swap("record", canonical({**record, "facts": {**record["facts"], **fact}}))
    place.import_bundle()
    (path,) = (place.root / "other" / "records").glob("*.json")
    assert json.loads(path.read_bytes()) == record
