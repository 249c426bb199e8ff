"""Tests of reading the files of layers, and of layers that hide files from some programs."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.evidence_fixtures import FILES, small_image
from tests.refusals import refused
from toolchain.core.digest import canonical
from toolchain.core.errors import UntrustedError
from toolchain.oci import descriptor as media
from toolchain.oci.layer_files import glance, layer_files, read_member, read_members
from toolchain.oci.layout import Layout


@pytest.mark.parametrize("how", ["none", "gzip", "zstd"])
def test_files_are_read_from_every_kind_of_layer(tmp_path: Path, how: Any) -> None:
    if how == "zstd" and shutil.which("zstd") is None:
        pytest.skip("zstd is NOT INSTALLED: layers of that kind are not tested (apt-get install zstd)")
    layout = Layout(tmp_path / "l").ensure()
    (tmp_path / "w").mkdir()
    layer = layout.children(small_image(layout, tmp_path / "w", how=how))[1]
    found = {one.path: one for one in layer_files(layout.blob(layer.digest), layer.media_type)}
    assert {name: one.sha256 for name, one in found.items() if one.kind == "file"} == {
        name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()
    }
    assert found["usr/lib64/thing/link"].target == "bin/tool"
    assert read_member(layout.blob(layer.digest), layer.media_type, "usr/lib64/thing/share/text") == b"words\n"
    assert read_member(layout.blob(layer.digest), layer.media_type, "no/such") is None
    assert glance(layout.blob(layer.digest), layer.media_type, "usr/lib64/thing/share/text") == b"words\n"
    assert glance(layout.blob(layer.digest), layer.media_type, "no/such") is None
    (tmp_path / "damaged").write_bytes(b"no layer")
    with pytest.raises(UntrustedError):
        glance(tmp_path / "damaged", layer.media_type, "no/such")


def tar(path: Path, *members: tuple[str, bytes], extra: tuple[tarfile.TarInfo, ...] = ()) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in extra:
            archive.addfile(info)
    return path


def test_name_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    path = tar(tmp_path / "t", ("./a\udcff", b"x"))
    (one,) = layer_files(path, media.LAYER)
    assert one.path == "a\\xff"
    canonical(one.path)  # `canonical` raises an error if the path cannot be written as JSON


def test_hard_link_is_listed_as_a_file(tmp_path: Path) -> None:
    link = tarfile.TarInfo("b")
    link.type, link.linkname = tarfile.LNKTYPE, "a"
    one, other = layer_files(tar(tmp_path / "t", ("a", b"x"), extra=(link,)), media.LAYER)
    assert (one.path, other.path) == ("a", "b")
    assert one.sha256 == other.sha256


def test_data_after_the_end_mark_or_garbage_is_refused(tmp_path: Path) -> None:
    """Some programs stop at an end mark or at garbage, and others continue, so files could hide behind it."""
    first = tar(tmp_path / "a", ("a", b"x")).read_bytes()
    second = tar(tmp_path / "b", ("b", b"evil")).read_bytes()
    end = first.index(b"x") + 512
    assert len(layer_files(tmp_path / "a", media.LAYER)) == 1
    for name, content in (
        ("two archives", first + second),
        ("one block of zeros", first[:end] + b"\0" * 512 + second),
        ("far behind", first + b"\0" * 100_000 + second),
    ):
        (tmp_path / name).write_bytes(content)
        with refused("layer-trailing-data"):
            layer_files(tmp_path / name, media.LAYER)
    (tmp_path / "garbage").write_bytes(first[:end] + b"\xff" * 512 + second)
    with refused("layer-garbage"):
        layer_files(tmp_path / "garbage", media.LAYER)
    (tmp_path / "padded").write_bytes(first + b"\0" * 100_000)
    assert len(layer_files(tmp_path / "padded", media.LAYER)) == 1


def test_invalid_layer_is_refused(tmp_path: Path) -> None:
    with refused("layer-member-twice"):
        layer_files(tar(tmp_path / "twice", ("a", b"x"), ("./a", b"y")), media.LAYER)
    lost = tarfile.TarInfo("b")
    lost.type, lost.linkname = tarfile.LNKTYPE, "nowhere"
    with refused("layer-hard-link"):
        layer_files(tar(tmp_path / "lost", extra=(lost,)), media.LAYER)
    whole = tar(tmp_path / "whole", ("a", b"x" * 5000)).read_bytes()
    (tmp_path / "short").write_bytes(whole[:3000])
    with refused("layer-unreadable"):
        layer_files(tmp_path / "short", media.LAYER)
    with refused("layer-unreadable"):
        read_member(tmp_path / "short", media.LAYER, "a")
    with refused("layer-unreadable"):
        list(read_members(tmp_path / "short", media.LAYER, bool, limit=9999))
    with refused("layer-unreadable"):
        layer_files(tmp_path / "whole", media.LAYER_GZIP)
    with refused("layer-media-type"):
        layer_files(tmp_path / "whole", "application/x-else")
    big = tarfile.TarInfo("././@LongLink")
    big.type, big.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    (tmp_path / "bomb").write_bytes(big.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024)
    with refused("layer-header-size"):
        layer_files(tmp_path / "bomb", media.LAYER)


@pytest.mark.parametrize("names", [["a" * 5000], [f"{at}" for at in range(6)], ["a" * 40, "b" * 40]])
def test_layer_with_too_many_or_too_long_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """A gzip layer of 20 MB could name millions of empty files, which were all kept in memory."""
    monkeypatch.setattr("toolchain.oci.layer_files.MOST", 5)
    monkeypatch.setattr("toolchain.oci.layer_files._LARGEST_NAMES", 79)
    path = tar(tmp_path / "t", *((name, b"") for name in names))
    with pytest.raises(UntrustedError) as caught:
        layer_files(path, media.LAYER)
    assert caught.value.id in {"layer-too-many-members", "layer-name-too-long"}
    assert len(layer_files(tar(tmp_path / "u", *((f"{at}", b"") for at in range(5))), media.LAYER)) == 5


def _member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **more: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    info.pax_headers = more.pop("pax", {})
    info.linkname = more.pop("to", "")
    return info.tobuf(tarfile.PAX_FORMAT) + content + b"\0" * (-len(content) % 512)


def _with(member: bytes, *changes: tuple[int, bytes]) -> bytes:
    """Return the member with changed bytes in its header, and a valid checksum."""
    block = bytearray(member)
    for start, text in (*changes, (148, b" " * 8)):
        block[start : start + len(text)] = text
    block[148:156] = b"%06o\0 " % sum(block[:512])
    return bytes(block)


def _pax(key: str, value: str) -> bytes:
    length = next(n for n in range(99) if n == len(f"{n} {key}={value}\n"))
    return _member("pax", tarfile.XHDTYPE, f"{length} {key}={value}\n".encode())


def _long(name: str) -> bytes:
    return _member("././@LongLink", tarfile.GNUTYPE_LONGNAME, f"{name}\0".encode())


_TOOL = _member("usr/tool", content=b"good")
_OLD, _GNU = (257, b"\0" * 8), (257, b"ustar  \0")  # the magic numbers of the formats v7 and gnu
_GLOBAL = tarfile.TarInfo.create_pax_global_header({"path": "usr/tool"})


@pytest.mark.parametrize(
    ("members", "says"),
    [
        (
            tarfile.TarInfo.create_pax_global_header({"path": "usr/tool"}) + _member("etc/evil", content=b"x"),
            "layer-member-kind",
        ),
        (_TOOL + _member("etc/evil", b"Z", b"evil"), "layer-member-kind"),
        (_TOOL + _member("etc/evil", tarfile.CONTTYPE, b"evil"), "layer-member-kind"),
        (_TOOL + _member("etc/evil", tarfile.GNUTYPE_SPARSE, b"evil"), "layer-member-kind"),
        (
            _member("usr/tool", content=b"evil", pax={"GNU.sparse.name": "etc/evil", "GNU.sparse.size": "4"}),
            "layer-sparse-file",
        ),
        (_TOOL + _member("usr//tool", content=b"evil"), "layer-name-unsafe"),
        (_TOOL + _member("usr/./tool", content=b"evil"), "layer-name-unsafe"),
        (_TOOL + _member("usr/x/../tool", content=b"evil"), "layer-name-unsafe"),
        (_TOOL + _member("././usr/tool", content=b"evil"), "layer-name-unsafe"),
        (_TOOL + _member("/usr/tool", content=b"evil"), "layer-name-unsafe"),
        (_TOOL + _member("usr/tool", tarfile.FIFOTYPE), "layer-member-twice"),
        (_TOOL + _member("usr/tool/", tarfile.DIRTYPE), "layer-member-twice"),
        (_TOOL + _member("lib", tarfile.SYMTYPE, to="usr") + _member("lib/tool", content=b"evil"), "layer-below-file"),
        (
            _TOOL + _member("lib/a/tool", content=b"evil") + _member("lib", tarfile.SYMTYPE, to="usr"),
            "layer-below-file",
        ),
        (_with(_TOOL, _OLD, (345, b"usr/lib")), "layer-header-ambiguous"),
        (_with(_TOOL, _GNU, (345, b"usr/lib")), "layer-header-ambiguous"),
        (_with(_TOOL, (345, b"d" * 155), (508, b"tar\0")), "layer-header-ambiguous"),
        (_pax("path", "listed") + _long("evil") + _TOOL, "layer-header-ambiguous"),
        (_long("evil") + _pax("path", "listed") + _TOOL, "layer-header-ambiguous"),
        (_pax("path", "listed") + _pax("path", "evil") + _TOOL, "layer-header-ambiguous"),
        (_long("listed") + _long("evil") + _TOOL, "layer-header-ambiguous"),
        (_pax("path", "evil") + _member("usr/", tarfile.AREGTYPE, _TOOL), "layer-header-ambiguous"),
        (_pax("path", "listed/") + _member("usr", tarfile.AREGTYPE), "layer-header-ambiguous"),
        (_pax("path", "") + _TOOL, "layer-header-ambiguous"),
        (_pax("linkpath", "") + _member("lib", tarfile.SYMTYPE, to="/etc/passwd"), "layer-header-ambiguous"),
        (_pax("size", "") + _TOOL, "layer-header-ambiguous"),
        (_pax("path", "usr/tool\0evil") + _TOOL, "layer-name-unsafe"),
        (_member("", content=b"evil"), "layer-name-unsafe"),
    ],
)
def test_layer_that_programs_unpack_differently_is_refused(tmp_path: Path, members: bytes, says: str) -> None:
    (tmp_path / "t").write_bytes(members + b"\0" * 1024)
    with refused(says):
        layer_files(tmp_path / "t", media.LAYER)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--format=v7"], ""),
        (["--format=oldgnu"], ""),
        (["--format=gnu"], ""),
        (["--format=ustar"], ""),
        (["--format=posix"], ""),
        # Its headers have times where Python expects the prefix of the name, so Python would read other names.
        (["--format=gnu", "--incremental"], "layer-header-ambiguous"),
        (["--format=gnu", "--sparse"], "layer-member-kind"),
        (["--format=posix", "--sparse"], "layer-sparse-file"),
    ],
)
def test_layer_by_gnu_tar_is_read_unless_it_is_incremental_or_sparse(
    tmp_path: Path, options: list[str], says: str
) -> None:
    deep = "" if "--format=v7" in options else f"{'d' * 80}/{'e' * 60}/"
    files = ["a", f"{deep}b", f"{deep}sparse", *(["n" * 150] if options[0][9:] in {"oldgnu", "gnu", "posix"} else [])]
    for name in files:
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 600)
    os.truncate(tmp_path / "tree" / files[2], 1 << 20)
    (tmp_path / "tree/link").symlink_to("a")
    (tmp_path / "tree/same").hardlink_to(tmp_path / "tree/a")
    names = [*files, "link", "same"]
    subprocess.run(["tar", "-C", str(tmp_path / "tree"), *options, "-cf", str(tmp_path / "t"), *names], check=True)
    if says:
        with refused(says):
            layer_files(tmp_path / "t", media.LAYER)
    else:
        assert {file.path for file in layer_files(tmp_path / "t", media.LAYER)} == set(names)


def test_files_and_links_are_listed_but_not_folders_or_special_files(tmp_path: Path) -> None:
    members = (
        _member("./", tarfile.DIRTYPE) + _member("./usr/", tarfile.DIRTYPE) + _member("./usr/tool", content=b"good")
        + _member("dev/null", tarfile.CHRTYPE) + _member("pipe", tarfile.FIFOTYPE)
        + _member("lib", tarfile.SYMTYPE, to="usr/../x//y") + _member("n" * 300, content=b"long")
    )  # fmt: skip
    (tmp_path / "t").write_bytes(members + b"\0" * 1024)
    assert [one.path for one in layer_files(tmp_path / "t", media.LAYER)] == ["lib", "n" * 300, "usr/tool"]
