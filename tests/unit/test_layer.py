from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
import zlib
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.core.digest import sha256_file
from toolchain.core.errors import BuildError, ConfigError, HostileInputError, SourceError
from toolchain.oci import tar
from toolchain.oci.deflate import BLOCK, MEMORY, GzipSink
from toolchain.oci.layer import (
    HashedFile,
    compress,
    compressor_id,
    normalise_tar,
    plain_capability,
    write_layer,
    write_tar_gz,
)

EPOCH = 1767225600
NAMES = [
    "usr/lib64/a-b/x",
    "usr/lib64/a/x",
    "usr/lib64/with space, \"quotes\" and 'more'\n.txt",
    "usr/lib64/ünïcode-ß-漢字",
    "usr/lib64/" + "n" * 120,
    "usr/lib64/" + "/".join(["d" * 60] * 5) + "/" + "f" * 200,
    "usr/lib64/=%s",
]


def fill(tree: Path, names: list[str]) -> None:
    for name in names:
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(0o700 if name.endswith("x") else 0o600)


def test_layer_does_not_depend_on_creation_order_umask_or_times(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / 'two with "quotes"'
    fill(one, NAMES)
    old = os.umask(0o077)
    try:
        fill(two, list(reversed(NAMES)))
    finally:
        os.umask(old)
    for path in two.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    first = write_layer(one, tmp_path / "1.tar")
    second = write_layer(two, tmp_path / "2.tar")
    assert first.diff_id == second.diff_id
    assert first.diff_id == sha256_file(first.path)
    assert first.size == first.path.stat().st_size
    (one / NAMES[0]).write_text("changed")
    assert write_layer(one, tmp_path / "4.tar").diff_id != first.diff_id


def test_layer_digest_is_the_same_as_in_earlier_releases(tmp_path: Path) -> None:
    """If this digest changes, rebuilt images differ from those that were published, so increase digest.FORMAT."""
    fill(tmp_path / "t", NAMES)
    (tmp_path / "t" / "usr" / "link").symlink_to("lib64/ünïcode")
    os.link(tmp_path / "t" / NAMES[0], tmp_path / "t" / "usr" / "hard")
    layer = write_layer(tmp_path / "t", tmp_path / "t.tar")
    assert layer.diff_id == "sha256:78f8bc04d43b842990f41b6755606f0adf6c6557e0039790a1d0787891232569"


def test_members_are_sorted_owned_by_root_and_parents_come_first(tmp_path: Path) -> None:
    fill(tmp_path / "t", NAMES)
    write_layer(tmp_path / "t", tmp_path / "t.tar")
    with tarfile.open(tmp_path / "t.tar") as got:
        members = got.getmembers()
        names = [member.name for member in members]
        assert [os.fsencode(name) for name in names] == sorted(os.fsencode(name) for name in names)
        assert set(NAMES) <= set(names)
        assert names[:2] == ["usr", "usr/lib64"]
        for member in members:
            assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", EPOCH)
            if member.isfile():
                assert member.mode == (0o755 if member.name.endswith("x") else 0o644)
                content = got.extractfile(member)
                assert content is not None
                assert content.read().decode() == member.name
            else:
                assert member.mode == 0o755


def test_hard_links_point_to_the_first_name(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    fill(tree, ["b/file"])
    os.link(tree / "b" / "file", tree / "b" / "again")
    os.link(tree / "b" / "file", tree / "zz")
    write_layer(tree, tmp_path / "t.tar")
    with tarfile.open(tmp_path / "t.tar") as got:
        assert got.getmember("b/again").isfile()
        assert [got.getmember(name).linkname for name in ("b/file", "zz")] == ["b/again", "b/again"]
        assert got.getmember("zz").islnk()


def test_symlinks_are_stored_and_not_followed(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    (tree / "real").mkdir(parents=True)
    (tree / "real" / "file").write_text("x")
    (tree / "dir").symlink_to("real")
    (tree / "out").symlink_to("/etc/" + "x" * 150)
    write_layer(tree, tmp_path / "t.tar")
    with tarfile.open(tmp_path / "t.tar") as got:
        assert got.getnames() == ["dir", "out", "real", "real/file"]
        assert got.getmember("dir").linkname == "real"
        assert got.getmember("out").linkname == "/etc/" + "x" * 150


@pytest.mark.parametrize("length", [99, 100, 101, 255])
def test_names_near_the_length_limits_of_tar_are_stored(tmp_path: Path, length: int) -> None:
    tree = tmp_path / "t"
    (tree / ("d" * length)).mkdir(parents=True)
    (tree / ("f" * length)).write_text("x")
    (tree / "link").symlink_to("l" * length)
    write_layer(tree, tmp_path / "t.tar")
    with tarfile.open(tmp_path / "t.tar") as got:
        assert got.getnames() == ["d" * length, "f" * length, "link"]
        assert got.getmember("link").linkname == "l" * length


def test_name_that_is_not_utf8_is_stored(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    tree.mkdir()
    name = os.fsdecode(b"\xff\xfe-" + b"l" * 110)
    (tree / name).write_text("x")
    write_layer(tree, tmp_path / "t.tar")
    with tarfile.open(tmp_path / "t.tar", errors="surrogateescape") as got:
        assert got.getnames() == [name]


def test_excluded_paths_are_left_out_of_an_archive(tmp_path: Path) -> None:
    fill(tmp_path / "t", ["a/x", "a/y.pyc", "b/c/d", "b/e"])
    write_tar_gz(tmp_path / "t", tmp_path / "t.tar.gz", top="t", exclude=["b/c", "*.pyc"])
    with tarfile.open(tmp_path / "t.tar.gz") as got:
        assert got.getnames() == ["t", "t/a", "t/a/x", "t/b", "t/b/e"]


def test_normalised_layer_refuses_pipes_and_drops_setuid(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    fill(tree, ["x"])
    (tree / "x").chmod(0o4755)
    write_layer(tree, tmp_path / "t.tar")
    with tarfile.open(tmp_path / "t.tar") as got:
        assert got.getmember("x").mode == 0o755
    os.mkfifo(tree / "pipe")
    with refused("special-file-in-tree"):
        write_layer(tree, tmp_path / "u.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "t.tar"]


@pytest.mark.parametrize(("name", "normalise"), [("usr/.wh.lib", True), (".wh..wh..opq", False), ("usr/.wh.d/x", True)])
def test_tree_with_whiteouts_is_refused_unless_they_are_allowed(tmp_path: Path, name: str, normalise: bool) -> None:
    fill(tmp_path / "t", [name, "usr/a.wh.b"])
    with refused("whiteout-in-tree"):
        write_layer(tmp_path / "t", tmp_path / "t.tar", normalise=normalise)
    assert not (tmp_path / "t.tar").exists()
    write_layer(tmp_path / "t", tmp_path / "t.tar", normalise=normalise, whiteouts=True)


def test_base_layer_keeps_modes_owners_and_pipes(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    fill(tree, ["bin/su"])
    (tree / "bin" / "su").chmod(0o4750)
    os.mkfifo(tree / "pipe")
    if os.geteuid() == 0:
        os.chown(tree / "bin" / "su", 7, 3_000_000)
        (tree / "bin" / "su").chmod(0o4750)
    write_layer(tree, tmp_path / "t.tar", normalise=False)
    with tarfile.open(tmp_path / "t.tar") as got:
        assert got.getmember("bin/su").mode == 0o4750
        assert got.getmember("pipe").isfifo()
        if os.geteuid() == 0:
            assert (got.getmember("bin/su").uid, got.getmember("bin/su").gid) == (7, 3_000_000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owners_in_a_user_namespace_become_owners_in_the_image(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    fill(tree, ["bin/ping", "home/file"])
    for path, number in ((tree / "bin", 0), (tree / "bin/ping", 0), (tree / "home", 1000), (tree / "home/file", 1000)):
        os.chown(path, 500_000 + number, 500_000 + number)
    write_layer(tree, tmp_path / "t.tar", normalise=False, first_id=500_000)
    with tarfile.open(tmp_path / "t.tar") as got:
        assert {member.name: (member.uid, member.gid) for member in got} == {
            "bin": (0, 0), "bin/ping": (0, 0), "home": (1000, 1000), "home/file": (1000, 1000),
        }  # fmt: skip
    os.chown(tree / "home/file", 499_999, 500_000)
    with pytest.raises(HostileInputError):
        write_layer(tree, tmp_path / "t.tar", normalise=False, first_id=500_000)


def test_capability_of_a_user_namespace_becomes_a_plain_capability() -> None:
    plain = bytes.fromhex("0100000200040000000000000000000000000000")
    assert plain_capability(bytes.fromhex("01000003") + plain[4:] + (500_000).to_bytes(4, "little")) == plain
    assert plain_capability(plain) == plain


def test_file_that_shrinks_is_refused() -> None:
    with refused("file-shrank"):
        tar.copy_content(io.BytesIO(b"abc"), io.BytesIO(), 5, name="lib.a")


def test_header_holds_size_and_id_beyond_the_limits_of_ustar() -> None:
    member = tar.Member(name=b"big", kind=tar.REGULAR, mode=0o644, mtime=0, size=9 << 30, uid=1 << 22)
    info = tarfile.TarInfo.frombuf(member.header()[-512:], "utf-8", "strict")
    assert info.name == "big"
    with tarfile.open(fileobj=io.BytesIO(member.header() + tar.END)) as got:
        read = got.next()
        assert read is not None
        assert (read.size, read.uid) == (9 << 30, 1 << 22)


def test_capability_is_stored_as_bytes() -> None:
    value = bytes(range(20))
    member = tar.Member(name=b"ping", kind=tar.REGULAR, mode=0o755, mtime=0, xattrs={tar.CAPABILITY: value})
    with tarfile.open(fileobj=io.BytesIO(member.header() + tar.END), errors="surrogateescape") as got:
        said = got.getmember("ping").pax_headers[f"SCHILY.xattr.{tar.CAPABILITY}"]
    assert said.encode("utf-8", "surrogateescape") == value


def write_foreign(path: Path, infos: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as out:
        for info, content in infos:
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, *, mtime: float = 5, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mtime, info.linkname, info.mode = kind, mtime, link, mode
    info.uname, info.gname = "someone", "staff"
    return info


def test_normalise_tar_keeps_modes_ids_links_and_capabilities(tmp_path: Path) -> None:
    device = entry("./dev/null", tarfile.CHRTYPE, mode=0o666)
    device.devmajor, device.devminor = 1, 3
    ping = entry("./bin/ping", mode=0o4755, mtime=EPOCH + 99.5)
    ping.uid = 33
    ping.pax_headers = {"SCHILY.xattr.security.capability": "\x01\x00\x02", "SCHILY.xattr.user.x": "gone"}
    infos = [
        (entry("./", tarfile.DIRTYPE, mode=0o755), b""),
        (ping, b"elf"),
        (entry("./bin/ping6", tarfile.LNKTYPE, link="./bin/ping"), b""),
        (device, b""),
        (entry("./lib", tarfile.SYMTYPE, link="./usr/lib"), b""),
    ]
    write_foreign(tmp_path / "in.tar", infos)
    layer = normalise_tar(tmp_path / "in.tar", tmp_path / "out.tar")
    with tarfile.open(layer.path) as got:
        assert got.getnames() == ["bin/ping", "bin/ping6", "dev/null", "lib"]
        read = got.getmember("bin/ping")
        assert (read.mode, read.mtime, read.uid, read.uname) == (0o4755, EPOCH, 33, "")
        assert "SCHILY.xattr.security.capability" in read.pax_headers
        assert "SCHILY.xattr.user.x" not in read.pax_headers
        assert got.getmember("bin/ping6").linkname == "bin/ping"
        assert (got.getmember("dev/null").devmajor, got.getmember("dev/null").devminor) == (1, 3)
        assert got.getmember("lib").linkname == "./usr/lib"
        assert got.getmember("lib").mtime == 5
    for info, _ in infos:
        info.uname = info.gname = "else"
    write_foreign(tmp_path / "in2.tar", infos)
    assert normalise_tar(tmp_path / "in2.tar", tmp_path / "out2.tar").diff_id == layer.diff_id


@pytest.mark.parametrize("name", ["../etc/passwd", "/etc/passwd", "a/../../b"])
def test_normalise_tar_refuses_names_outside_the_tree(tmp_path: Path, name: str) -> None:
    write_foreign(tmp_path / "in.tar", [(entry(name), b"x")])
    with refused("tar-name-escapes"):
        normalise_tar(tmp_path / "in.tar", tmp_path / "out.tar")
    assert not (tmp_path / "out.tar").exists()


def test_normalise_tar_refuses_a_member_of_an_unknown_type(tmp_path: Path) -> None:
    write_foreign(tmp_path / "in.tar", [(entry("x", b"Z"), b"")])
    with refused("tar-member-unknown"):
        normalise_tar(tmp_path / "in.tar", tmp_path / "out.tar")


@pytest.mark.parametrize(("major", "minor"), [(8**7, 1), (1, 8**7), (1, -1)])
def test_normalise_tar_refuses_a_device_that_no_header_can_hold(tmp_path: Path, major: int, minor: int) -> None:
    device = entry("null", tarfile.CHRTYPE)
    device.devmajor, device.devminor = major, minor
    with tarfile.open(tmp_path / "in.tar", "w", format=tarfile.GNU_FORMAT) as out:
        out.addfile(device)
    with refused("tar-member-unknown"):
        normalise_tar(tmp_path / "in.tar", tmp_path / "out.tar")
    assert not (tmp_path / "out.tar").exists()


def test_normalise_tar_refuses_text_files_and_truncated_archives(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x" * 2000)
    with pytest.raises(SourceError):
        normalise_tar(tmp_path / "text", tmp_path / "out.tar")
    write_foreign(tmp_path / "in.tar", [(entry("big"), b"x" * 100_000)])
    os.truncate(tmp_path / "in.tar", 50_000)
    with pytest.raises((SourceError, BuildError)):
        normalise_tar(tmp_path / "in.tar", tmp_path / "out.tar")
    assert not (tmp_path / "out.tar").exists()


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 12345])
def test_gzip_output_is_one_stream_and_does_not_depend_on_thread_count(size: int) -> None:
    content = (random.Random(size).randbytes(size // 2) + b"abcd" * (size // 8 + 1))[:size]
    outs = []
    for threads, step in ((1, 1 << 20), (3, 77_777)):
        out = io.BytesIO()
        with GzipSink(out, 9, threads) as sink:
            for at in range(0, len(content), step):
                sink.write(content[at : at + step])
        outs.append(out.getvalue())
    assert outs[0] == outs[1]
    assert gzip.decompress(outs[0]) == content
    if size <= BLOCK:
        plain = zlib.compressobj(9, zlib.DEFLATED, -15, MEMORY)
        assert outs[0][10:-8] == plain.compress(content) + plain.flush()
    one = zlib.decompressobj(31)
    assert one.decompress(outs[0]) == content
    assert one.eof
    assert one.unused_data == b""


@pytest.mark.parametrize("how", ["none", "gzip", "zstd"])
def test_compress_reports_digest_size_and_media_type(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "t"
    fill(tree, NAMES)
    (tree / "big").write_bytes(random.Random(1).randbytes(100_000) * 4)
    layer = write_layer(tree, tmp_path / "t.tar")
    blob = compress(layer, tmp_path / "blob one", how)  # type: ignore[arg-type]
    assert (blob.digest, blob.size) == (sha256_file(blob.path), blob.path.stat().st_size)
    assert blob.diff_id == layer.diff_id
    assert blob.media_type == "application/vnd.oci.image.layer.v1.tar" + {"none": ""}.get(how, f"+{how}")
    if how == "none":
        assert blob.path == layer.path
        return
    assert blob.size < layer.size
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4})
    assert compress(layer, tmp_path / "two", how).digest == blob.digest  # type: ignore[arg-type]
    other = compress(layer, tmp_path / "three", how, 1)  # type: ignore[arg-type]
    assert other.digest != blob.digest
    assert compressor_id(how).startswith(f"{how}/")  # type: ignore[arg-type]


def test_hashed_file_leaves_no_file_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError), HashedFile(tmp_path / "out") as sink:
        sink.write("no bytes")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_archive_has_one_top_folder_and_is_deterministic(tmp_path: Path) -> None:
    tree = tmp_path / "t"
    fill(tree, ["bin/x", "lib/y"])
    os.link(tree / "bin" / "x", tree / "zz")
    made = write_tar_gz(tree, tmp_path / "a.tar.gz", top="llvm-10dc3a8e-debian-x64")
    again = write_tar_gz(tree, tmp_path / "b.tar.gz", top="llvm-10dc3a8e-debian-x64")
    assert made == again == sha256_file(tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz", "r:gz") as got:
        top = "llvm-10dc3a8e-debian-x64"
        assert got.getnames() == [top, f"{top}/bin", f"{top}/bin/x", f"{top}/lib", f"{top}/lib/y", f"{top}/zz"]
        assert got.getmember(f"{top}/zz").linkname == f"{top}/bin/x"
    for bad in ("", "..", "a/b"):
        with pytest.raises(ConfigError):
            write_tar_gz(tree, tmp_path / "c.tar.gz", top=bad)


def test_folders_of_apt_in_a_base_belong_to_root(tmp_path: Path) -> None:
    """apt gives these folders to its own user, but only if it can switch to that user."""
    found = set()
    for owner in (0, 42):
        with tarfile.open(tmp_path / "in.tar", "w") as made:
            for name in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "home/me"):
                info = tarfile.TarInfo(name)
                info.type, info.uid = tarfile.DIRTYPE, owner if "partial" in name else 7
                info.gid = info.uid
                made.addfile(info)
        layer = normalise_tar(tmp_path / "in.tar", tmp_path / "out.tar")
        with tarfile.open(layer.path) as got:
            assert [member.uid for member in got] == [0, 0, 7]
        found.add(layer.diff_id)
    assert len(found) == 1
