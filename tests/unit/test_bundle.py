"""Bundles: what goes in comes out, in another cache; and what somebody put into one does not get in."""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.at_once import failures
from tests.evidence_fixtures import finished_base
from tests.fake_registry import fake_registry
from toolchain import lockfile
from toolchain.bundle import TYPE, Exported, export
from toolchain.digest import canonical, sha256_bytes, sha256_file, sha256_json
from toolchain.errors import (
    ConfigError,
    DigestError,
    HostileInputError,
    LockedError,
    RegistryError,
    SourceError,
    ToolchainError,
)
from toolchain.oci import descriptor as media
from toolchain.oci.layout import Layout
from toolchain.oci.reference import LayoutRef, RegistryRef
from toolchain.pipeline import plan
from toolchain.settings import Cache, Request
from toolchain.sources.pypi import PypiFile
from toolchain.sources.resolve import fetch_source, locate, parse_source_spec
from toolchain.sources.store import Store
from toolchain.sources.tree import tree_digest
from toolchain.stages.wheels import TRITON
from toolchain.unbundle import Imported, bring


@dataclass
class Place:
    """A cache with all that Triton's build takes in, every kind of source among it, each as small as can be."""

    root: Path
    request: Request
    wheels: tuple[PypiFile, ...]
    out: LayoutRef = field(init=False)

    def __post_init__(self) -> None:
        self.out = LayoutRef(self.root / "a 'bundle'")

    def export(self) -> Exported:
        return export(self.request, "triton", self.out)

    def bring(self, name: str = "other", ref: LayoutRef | RegistryRef | None = None) -> Imported:
        return bring(ref or self.out, Cache(self.root / name), self.root / name / "toolchain.lock")

    # What an enemy does

    def change(self, edit: Callable[[dict[str, Any], Layout], None]) -> None:
        """Another manifest under the same name."""
        layout = Layout(self.out.path)
        found = layout.resolve("bundle-triton")
        value = layout.read_json(found)
        edit(value, layout)
        made = dataclasses.replace(layout.put_json(value, media.MANIFEST), artifact_type=TYPE)
        layout.tag(made, "bundle-triton")

    def swap(self, kind: str, content: bytes) -> None:
        """Other content for the first thing of a kind, its digest put right."""

        def edit(value: dict[str, Any], layout: Layout) -> None:
            row = entry(value, kind)
            blob = layout.put_bytes(content, row["mediaType"])
            row["digest"], row["size"] = blob.digest, blob.size

        self.change(edit)

    def content(self, kind: str) -> bytes:
        layout = Layout(self.out.path)
        return layout.blob(entry(layout.read_json(layout.resolve("bundle-triton")), kind)["digest"]).read_bytes()


def entry(value: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in value["layers"] if row["annotations"]["toolchain.bundle.kind"] == kind)
    return found


def put(store: Store, content: bytes, name: str) -> str:
    store.partial.mkdir(parents=True, exist_ok=True)
    (store.partial / name).write_bytes(content)
    digest = sha256_bytes(content)
    store.add_file(store.partial / name, digest)
    return digest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    cache = Cache(tmp_path / 'cache "one"')
    store = Store(cache.store)
    finished_base(cache, tmp_path / "work")
    rows = []
    for project in TRITON:
        content, file = project.encode(), f"{project}-1-py3-none-any.whl"
        digest = put(store, content, file).removeprefix("sha256:")
        rows.append(PypiFile(project=project, version="1", file=file, sha256=digest, size=len(content), license="MIT"))
    monkeypatch.setattr("toolchain.sources.pypi.known_files", lambda: tuple(rows))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("llvm", "mlir", "lld"):
            info = tarfile.TarInfo(f"top/{name}/CMakeLists.txt")
            info.size = 2
            tar.addfile(info, io.BytesIO(b"x\n"))
    digest = put(store, packed.getvalue(), "an archive.tar")
    checkout = tmp_path / "secret place" / "triton"
    for name in ("third_party/amd", "third_party/nvidia", "python"):
        (checkout / name).mkdir(parents=True)
    for name in ("setup.py", "CMakeLists.txt", "third_party/amd/x", "third_party/nvidia/x", "python/tool"):
        (checkout / name).write_text(f"{name}\n")
    (checkout / "python" / "tool").chmod(0o755)
    (checkout / "python" / "link").symlink_to("tool")
    (checkout / "empty").mkdir()
    patch = tmp_path / "secret place" / "my fix.patch"
    patch.write_text("--- a/setup.py\n+++ b/setup.py\n@@ -1 +1 @@\n-setup.py\n+fixed\n")
    request = Request(
        cache=cache,
        sources={
            "llvm": f"https://example.test/an%20archive.tar#{digest.replace(':', '=')}",
            "triton": str(checkout),
        },
        patches={"triton": (patch,)},
        offline=True,
    )
    return Place(tmp_path, request, tuple(rows))


def test_what_goes_in_comes_out(place: Place) -> None:
    done = place.export()
    kinds = [one.kind for one in done.entries]
    assert kinds == ["lock", "base", "record", "patch", *["file"] * 8, "tree", *["blob"] * 3]
    brought = place.bring()
    assert [one.new for one in brought.taken] == [True] * len(kinds)
    there = Cache(place.root / "other")
    lock = lockfile.read(there.root / "toolchain.lock")
    assert lock.complete
    assert lockfile.render(lock) == lockfile.render(done.lock)

    # As the command that is told says it.
    words = list(brought.command)
    assert words[:5] == ["toolchain", "build", "triton", "--offline", "--locked"]
    triton = next(word for word in words if "triton=stored:" in word)
    patch = next(word for word in words if "triton=/" in word).strip("'")
    request = dataclasses.replace(
        place.request,
        cache=there,
        lock=lock,
        sources={**place.request.sources, "triton": triton.partition("=")[2]},
        patches={"triton": (Path(patch.partition("=")[2]),)},
    )
    shutil.rmtree(place.root / "secret place")
    rows = plan(request, "triton")
    before = {"base": rows[0].planned.input_digest}
    assert before["base"] is not None
    assert rows[0].built is not None
    assert rows[0].built.manifest == lock.bases[0].image
    assert all(row.planned.input_digest for row in rows)
    for row in rows:
        for source in row.planned.sources:
            got = fetch_source(source, cache=there, offline=True, patches=request.patches.get(source.name, ()))
            assert got.path is not None
            assert got.path.is_relative_to(there.root)
            if source.name == "triton":
                assert (got.path / "setup.py").read_text() == "fixed\n"
                assert (got.path / "python" / "link").readlink() == Path("tool")
                assert (got.path / "python" / "tool").stat().st_mode & 0o111
                assert (got.path / "empty").is_dir()


def test_the_command_builds_the_same_kernels(place: Place) -> None:
    place.request = dataclasses.replace(place.request, gpus=("gfx1100", "gfx942"), select="attn fwd*", limit=3)
    place.export()
    words = [shlex.split(word)[0] for word in place.bring().command]
    given = [tuple(words[at : at + 2]) for at in range(len(words) - 1)]
    assert {("--gpu", "gfx1100,gfx942"), ("--select", "attn fwd*"), ("--limit", "3")} <= set(given)
    assert ("--lock-file", str(place.root / "other" / "toolchain.lock")) in given
    lock = lockfile.read(place.root / "other" / "toolchain.lock")
    assert (lock.request["gpu"], lock.request["limit"]) == (["gfx1100", "gfx942"], 3)


def test_the_stages_have_the_same_inputs_there(place: Place) -> None:
    before = [row.planned.input_digest for row in plan(place.request, "triton")]
    images = [row.planned.image for row in plan(place.request, "triton")]
    place.export()
    place.bring()
    there = Cache(place.root / "other")
    lock = lockfile.read(there.root / "toolchain.lock")
    triton = lock.source("triton")
    assert triton is not None
    sources = {**place.request.sources, "triton": f"stored:triton@{triton.digest}"}
    rows = plan(dataclasses.replace(place.request, cache=there, sources=sources, lock=lock), "triton")
    assert [row.planned.input_digest for row in rows] == before
    assert [row.planned.image for row in rows] == images
    assert rows[-1].planned.sources[0].ref == "local:triton"


def test_nothing_goes_twice_and_the_bytes_are_the_same(place: Place) -> None:
    first = place.export()
    assert first.published.pushed_bytes > 0
    again = place.export()
    assert again.published.pushed_bytes == 0
    elsewhere = export(place.request, "triton", LayoutRef(place.root / "elsewhere", "x"))
    assert first.published.digest == again.published.digest == elsewhere.published.digest
    place.bring()
    second = place.bring()
    assert [one.entry.kind for one in second.taken if one.new] == ["lock"]
    assert not list(place.request.cache.work.glob("bundle*"))
    assert not list((place.root / "other" / "work").glob("bundle*"))


def test_what_a_bundle_says_of_itself(place: Place) -> None:
    place.export()
    layout = Layout(place.out.path)
    value = layout.read_json(layout.resolve("bundle-triton"))
    assert value["artifactType"] == "application/vnd.toolchain.bundle.v1"
    assert value["config"]["mediaType"] == media.EMPTY
    text = json.dumps(value) + place.content("lock").decode() + place.content("record").decode()
    assert "secret" not in text
    assert str(place.root) not in text
    for row in value["layers"]:
        assert sha256_file(layout.blob(row["digest"])) == row["digest"]
        assert row["annotations"]["org.opencontainers.image.title"]


def test_through_a_registry(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(place.root / "no login"))
    with fake_registry() as registry:
        ref = RegistryRef(registry.host, "some/ns/bundle", "v1")
        done = export(place.request, "triton", ref)
        assert done.published.pushed_bytes > 0
        assert export(place.request, "triton", ref).published.pushed_bytes == 0
        brought = place.bring(ref=ref)
        assert brought.digest == done.published.digest
        assert all(one.new for one in brought.taken)


def test_a_source_that_is_not_there_or_a_base_that_is_not_built(place: Place) -> None:
    shutil.rmtree(place.request.cache.records)
    with pytest.raises(SourceError, match="not built yet"):
        place.export()
    assert not place.out.path.exists()


# Hostile bundles


def first_file(value: dict[str, Any]) -> dict[str, Any]:
    return entry(value, "file")


def _dots(value: dict[str, Any], _: Layout) -> None:
    first_file(value)["annotations"]["org.opencontainers.image.title"] = "../../../evil"


def _absolute(value: dict[str, Any], _: Layout) -> None:
    entry(value, "base")["annotations"]["org.opencontainers.image.title"] = "/etc/evil"


def _owner(value: dict[str, Any], _: Layout) -> None:
    first_file(value)["annotations"]["toolchain.bundle.name"] = ".."


def _kind(value: dict[str, Any], _: Layout) -> None:
    first_file(value)["annotations"]["toolchain.bundle.kind"] = "program"


def _no_notes(value: dict[str, Any], _: Layout) -> None:
    del first_file(value)["annotations"]


def _media(value: dict[str, Any], _: Layout) -> None:
    entry(value, "blob")["annotations"]["toolchain.bundle.media-type"] = "x\n/y"


def _extra(value: dict[str, Any], layout: Layout) -> None:
    blob = layout.put_bytes(b"extra", "x")
    notes = {**first_file(value)["annotations"], "toolchain.bundle.name": "stranger"}
    value["layers"].append({**blob.as_json(), "annotations": notes})


def _extra_version(value: dict[str, Any], layout: Layout) -> None:
    blob = layout.put_bytes(b"extra", "x")
    value["layers"].append({**first_file(value), "digest": blob.digest, "size": blob.size})


def _stowaway(value: dict[str, Any], layout: Layout) -> None:
    """A blob in the name of the base's image, which its manifest does not name."""
    blob = layout.put_bytes(b"stowaway", "x")
    value["layers"].append({**entry(value, "blob"), "digest": blob.digest, "size": blob.size})


def _missing_file(value: dict[str, Any], _: Layout) -> None:
    value["layers"].remove(first_file(value))


def _missing_blob(value: dict[str, Any], _: Layout) -> None:
    rows = [row for row in value["layers"] if row["annotations"]["toolchain.bundle.kind"] == "blob"]
    value["layers"].remove(next(r for r in rows if "layer" in r["annotations"]["toolchain.bundle.media-type"]))


def _missing_record(value: dict[str, Any], _: Layout) -> None:
    value["layers"].remove(entry(value, "record"))


def _no_lock(value: dict[str, Any], _: Layout) -> None:
    value["layers"].remove(entry(value, "lock"))


def _two_locks(value: dict[str, Any], _: Layout) -> None:
    value["layers"].append(entry(value, "lock"))


def _huge_lock(value: dict[str, Any], _: Layout) -> None:
    entry(value, "lock")["size"] = 1 << 40


def _other_type(value: dict[str, Any], _: Layout) -> None:
    value["artifactType"] = "application/x-picture"


@pytest.mark.parametrize(
    ("edit", "error", "says"),
    [
        (_dots, HostileInputError, "../../../evil"),
        (_absolute, HostileInputError, "/etc/evil"),
        (_owner, HostileInputError, "'..'"),
        (_kind, HostileInputError, "program"),
        (_no_notes, HostileInputError, "kind"),
        (_media, HostileInputError, "media type"),
        (_extra, HostileInputError, "does not name: stranger"),
        (_extra_version, HostileInputError, "does not name"),
        (_stowaway, HostileInputError, "no image in its lock names"),
        (_missing_file, HostileInputError, "lacks the file"),
        (_missing_blob, HostileInputError, "lacks a part of the image of base debian13"),
        (_missing_record, HostileInputError, "lacks the record"),
        (_no_lock, HostileInputError, "0 locks"),
        (_two_locks, HostileInputError, "2 locks"),
        (_huge_lock, HostileInputError, "too large"),
        (_other_type, RegistryError, "is no bundle"),
    ],
)
def test_what_does_not_belong_is_refused(
    place: Place, edit: Callable[[dict[str, Any], Layout], None], error: type[ToolchainError], says: str
) -> None:
    place.export()
    place.change(edit)
    with pytest.raises(error) as caught:
        place.bring()
    assert says in str(caught.value)
    _nothing_counts(place)


def _nothing_counts(place: Place) -> None:
    """Neither a record, a resolved base nor a lock: a plan there knows nothing of what was in the bundle."""
    there = place.root / "other"
    assert not (there / "toolchain.lock").exists()
    assert not list((there / "records").glob("*.json"))
    assert not list((there / "locked").glob("*.json"))
    assert not list(place.root.rglob("*evil*"))


@pytest.mark.parametrize("harm", ["flip", "cut", "gone"])
@pytest.mark.parametrize("kind", ["lock", "base", "record", "patch", "file", "tree", "blob"])
def test_a_blob_that_is_not_what_it_must_be(place: Place, kind: str, harm: str) -> None:
    place.export()
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
    with pytest.raises(RegistryError if harm == "gone" else DigestError):
        place.bring()
    _nothing_counts(place)
    # Whole again, it comes in.
    shutil.rmtree(place.out.path)
    place.export()
    assert place.bring().lock.complete


def _other_tree() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        info = tarfile.TarInfo("setup.py")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    return packed.getvalue()


def _climbing_tree() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../../evil"), io.BytesIO())
    return packed.getvalue()


def test_a_tree_with_other_content(place: Place) -> None:
    place.export()
    place.swap("tree", _other_tree())
    with pytest.raises(DigestError, match="tree of triton in the bundle is another one"):
        place.bring()
    _nothing_counts(place)


def test_a_tree_that_climbs_out(place: Place) -> None:
    place.export()
    place.swap("tree", _climbing_tree())
    with pytest.raises(HostileInputError):
        place.bring()
    _nothing_counts(place)


@pytest.mark.parametrize(
    "change",
    [
        {"manifest": "sha256:" + "0" * 64},
        {"stage": "llvm"},
        {"input_digest": "sha256:" + "0" * 64},
        {"inputs": {"stage": "base", "base": "debian13"}},
        {"inputs": "text"},
        {"layers": [{"digest": "sha256:" + "0" * 64}]},
        {"layers": []},
        {"sources": [{"name": "llvm", "ref": "x", "repository": "elsewhere", "digest": None}]},
        {"binaries": ["ptxas"]},
        {"partial": "tablegen"},
    ],
)
def test_a_record_of_something_else(place: Place, change: dict[str, Any]) -> None:
    place.export()
    record = {**json.loads(place.content("record")), **change}
    if isinstance(change.get("inputs"), dict):
        record["input_digest"] = sha256_json(record["inputs"])
    place.swap("record", canonical(record))
    with pytest.raises(HostileInputError):
        place.bring()
    _nothing_counts(place)


def test_other_packages(place: Place) -> None:
    place.export()
    value = json.loads(place.content("base"))
    value["packages"][0]["version"] = "6.6.6"
    place.swap("base", canonical(value))
    with pytest.raises(HostileInputError, match="list of packages"):
        place.bring()
    _nothing_counts(place)


def test_a_file_in_the_place_of_another(place: Place) -> None:
    place.export()
    place.swap("file", b"evil")
    with pytest.raises(HostileInputError, match="does not name"):
        place.bring()
    _nothing_counts(place)


def test_a_lock_that_is_here_decides(place: Place) -> None:
    done = place.export()
    there = place.root / "other"
    there.mkdir()
    own = there / "toolchain.lock"
    wheel = next(one for one in done.lock.sources if one.wheel)
    rest = tuple(one for one in done.lock.sources if one is not wheel)
    for sources, says in (
        (rest, f"the wheel {wheel.name} is not in the lock"),
        ((*rest, dataclasses.replace(wheel, digest="sha256:" + "0" * 64)), f"the wheel {wheel.name}: digest"),
    ):
        lockfile.write(dataclasses.replace(done.lock, sources=sources), own)
        before = own.read_bytes()
        with pytest.raises(LockedError) as caught:
            place.bring()
        assert says in str(caught.value)
        assert own.read_bytes() == before
        assert not (there / "store" / "files").exists()
    # One that leaves the base open, and holds more, is content; and it stays.
    bases = (dataclasses.replace(done.lock.bases[0], state="open", image="", packages_digest="", packages=()),)
    more = (*done.lock.sources, dataclasses.replace(wheel, name="more"))
    lockfile.write(dataclasses.replace(done.lock, sources=more, bases=bases), own)
    before = own.read_bytes()
    place.bring()
    assert own.read_bytes() == before


def test_a_cache_with_another_base_is_left_alone(place: Place) -> None:
    place.export()
    there = place.root / "other" / "locked"
    there.mkdir(parents=True)
    (there / "base-debian13-amd64.json").write_text('{"recipe": "x", "packages": []}')
    with pytest.raises(LockedError, match="another base"):
        place.bring()
    assert json.loads((there / "base-debian13-amd64.json").read_text())["recipe"] == "x"


def test_what_is_here_and_damaged_is_brought_again(place: Place) -> None:
    place.export()
    place.bring()
    there = place.root / "other"
    harmed = [next((there / "store" / "files").rglob("*.whl")), next((there / "store" / "trees").rglob("setup.py"))]
    harmed.append(max((there / "images" / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size))
    before = [path.read_bytes() for path in harmed]
    for path in harmed:
        path.write_bytes(b"harmed")
    again = place.bring()
    assert sorted(one.entry.kind for one in again.taken if one.new) == ["blob", "file", "lock", "tree"]
    assert [path.read_bytes() for path in harmed] == before


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.console.warn", lambda text: None)


def _locked(place: Place, **changes: Any) -> None:
    """Another row for Triton in the bundle's own lock."""
    lock = lockfile.parse(place.content("lock"), "it")
    sources = [dataclasses.replace(one, **changes) if one.name == "triton" else one for one in lock.sources]
    place.swap("lock", lockfile.render(dataclasses.replace(lock, sources=tuple(sources))))


def _digest_of(tree: bytes, folder: Path) -> str:
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(tree)) as tar:
        tar.extractall(folder, filter="data")
    return tree_digest(folder)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"kind": "distro", "ref": "distro:../../../../evil=1"}, ConfigError, "no distro source"),
        ({"kind": "distro", "ref": 'distro:x=1"\n[build]\nevil = "'}, ConfigError, "no distro source"),
        ({"kind": "git", "ref": "a" * 40}, ConfigError, "of another kind"),
        ({"kind": "archive", "ref": f"https://h.example/x.tar#sha256={'a' * 64}"}, HostileInputError, "no file of"),
        ({"kind": "distro", "ref": "distro:xy=1"}, HostileInputError, "no file of triton"),
    ],
)
def test_a_lock_of_other_things(place: Place, changes: dict[str, Any], error: type[ToolchainError], says: str) -> None:
    """Names that would become paths; and trees where only a file could be compared with its digest."""
    place.export()
    _locked(place, **changes)
    with pytest.raises(error, match=says):
        place.bring()
    _nothing_counts(place)


def test_a_checkout_s_digest_with_another_tree(place: Place) -> None:
    """Against one's own lock that names the tree: what is stored under a digest is what it says."""
    own = place.export().lock
    triton = own.source("triton")
    assert triton is not None
    git = dataclasses.replace(triton, kind="git", ref="a" * 40, digest=f"git:{'a' * 40}@https://h.example/t")
    sources = tuple(git if one.name == "triton" else one for one in own.sources)
    lockfile.write(dataclasses.replace(own, sources=sources), place.root / "own.lock")
    place.swap("tree", _other_tree())
    _locked(place, tree=_digest_of(_other_tree(), place.root / "x"))
    with pytest.raises(LockedError, match=r"source triton: the tree sha256:.* is locked"):
        bring(place.out, Cache(place.root / "other"), place.root / "own.lock")
    with pytest.raises(HostileInputError, match="one tree of triton by two digests"):
        place.bring()
    _nothing_counts(place)


def test_a_lock_of_one_s_own_that_names_no_tree(place: Place) -> None:
    """A commit cannot be compared with a tree: whoever did not lock the tree has nothing to hold against a bundle."""
    own = place.export().lock
    git = {
        "kind": "git",
        "ref": "a" * 40,
        "digest": f"git:{'a' * 40}@https://h.example/t",
        "repository": "https://h.example/t",
    }
    place.swap("tree", _other_tree())
    _locked(place, **git, tree=_digest_of(_other_tree(), place.root / "x"))
    sources = tuple(
        dataclasses.replace(one, **git, tree="") if one.name == "triton" else one  # type: ignore[arg-type]
        for one in own.sources
    )
    lockfile.write(dataclasses.replace(own, sources=sources), place.root / "own.lock")
    with pytest.raises(LockedError, match="does not say which tree triton"):
        bring(place.out, Cache(place.root / "other"), place.root / "own.lock")
    _nothing_counts(place)


def test_a_file_under_another_name(place: Place) -> None:
    """Whether a source is unpacked, and what an installer makes of a wheel, goes by the name of the file."""
    place.export()

    def rename(value: dict[str, Any], _: Layout) -> None:
        first_file(value)["annotations"]["org.opencontainers.image.title"] = "readme.txt"

    place.change(rename)
    with pytest.raises(HostileInputError, match=r"otherwise than its lock: readme\.txt"):
        place.bring()
    _nothing_counts(place)


@pytest.mark.parametrize("harm", [{"layers": [1]}, {"inputs": {"a": "\ud800"}}])
def test_a_record_that_is_none(place: Place, harm: dict[str, Any]) -> None:
    place.export()
    record = {**json.loads(place.content("record")), **harm}
    place.swap("record", json.dumps(record).encode())
    with pytest.raises(HostileInputError):
        place.bring()
    _nothing_counts(place)


def test_a_tree_that_came_counts_no_longer_than_its_source_is_out_of_reach(place: Place) -> None:
    """The checkout itself is at hand again: it is read, whatever a bundle said of it."""
    place.export()
    place.bring()
    there = Cache(place.root / "other")
    checkout = place.request.sources["triton"]
    source = locate("triton", parse_source_spec(checkout), cache=there)
    store = Store(there.store)
    assert store.brought(str(source.digest))
    tree = store.stored_tree(str(source.digest))
    assert tree is not None
    (tree / "setup.py").write_text("what cannot be seen from outside")
    (store.root / "trees" / f"{tree.name}.json").write_text(json.dumps({
        "tree": tree_digest(tree), "files": 5, "bytes": 1, "brought": True,
    }))  # fmt: skip
    got = fetch_source(source, cache=there, offline=True)
    assert got.path is not None
    assert (got.path / "setup.py").read_text() == "setup.py\n"
    assert not store.brought(str(source.digest))


def test_two_import_at_once(place: Place) -> None:
    place.export()
    assert failures(place.bring) == []
