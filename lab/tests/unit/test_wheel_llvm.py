"""Tests of `wheel_llvm` and of the verb `inspect`: the LLVMs that texts in a wheel name, compared with the pins."""

from __future__ import annotations

import json
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.refusals import refused
from toolchain.catalog.releases import triton_release
from toolchain.cli.app import app
from toolchain.core.errors import HostileInputError, PinError, SourceError
from toolchain.core.zips import open_wheel
from toolchain_lab.examine.revisions import KINDS, Revision, revisions
from toolchain_lab.examine.wheel_llvm import Library, WheelLlvm, read_wheel

NEW = triton_release("3.9.0")
OLD = triton_release("3.7.1")
OTHER = "0123456789abcdef0123456789abcdef01234567"
CORE = "triton/_C/libtriton.so"
AMD = "triton/backends/amd/lib/libtriton_amd_codegen.so"
BITCODE = "triton/backends/amd/lib/ocml.bc"
FORK = "https://github.com/triton-lang/llvm-project"
# None of these is a text of LLVM: two-digit numbers, 64 digits, upper case, a commit in a URL, digits after a letter.
NOISE = (
    b"00010203040506070809101112131415161718192021\0" + b"a" * 64 + b"\0" + OTHER.upper().encode() + b"\0"
    b"see https://example.org/commit/" + OTHER.encode() + b"#diff\0" + b"x" + OTHER.encode() + b"\0"
)


def core(llvm: str, *, repository: str = FORK) -> bytes:
    """Return the texts that LLVM's sources leave in a library: lld's version, the file directive, and the producer."""
    return NOISE + b"\0".join([
        b"\x7fELF", f"LLD 23.0.0 ({repository} {llvm})".encode(), f"LLVM version 23.0.0git ({llvm})".encode(),
        llvm.encode(), f"23.0.0git {llvm}".encode(), b"clang version 21.1.8 ( 21.1.8-1.el8)", b"",
    ])  # fmt: skip


def codegen(llvm: str, build: int = 1, *, inside: str = "") -> bytes:
    return b"\x7fELF\0" + f"{llvm}-{build}\0LLVM version 24.0.0git ({inside or llvm})\0".encode()


def made(folder: Path, version: str, files: dict[str, bytes], *, metadata: str | None = "", name: str = "") -> Path:
    """Write a wheel; METADATA is left out if `metadata` is None, and has default fields if `metadata` is empty."""
    path = folder / (name or f"triton-{version}-cp312-abi3-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        if metadata is not None:
            text = metadata or f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n"
            archive.writestr(f"triton-{version}.dist-info/METADATA", text)
    return path


def verdicts(wheel: WheelLlvm) -> dict[str, str | None]:
    return {library.part: library.verdict for library in wheel.libraries}


def of(wheel: WheelLlvm, part: str) -> Library:
    return next(library for library in wheel.libraries if library.part == part)


# --- texts ---


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
def test_revisions_are_found_in_pieces_of_any_size(size: int) -> None:
    compiler = f"clang version 20.0.0git ({FORK} roc-7.1.0 25425 {OTHER})".encode()
    content = core(OLD.llvm) + compiler + b"\0" + codegen(OTHER, 12)
    texts = revisions([content[at : at + size] for at in range(0, len(content), size)], "x")
    assert [(text.kind, text.revision) for text in texts] == [
        ("lld", OLD.llvm), ("asm-printer", OLD.llvm), ("bare", OLD.llvm), ("symtab", OLD.llvm),
        ("compiler", OTHER), ("codegen", OTHER), ("asm-printer", OTHER),
    ]  # fmt: skip
    assert {text.kind for text in texts} == set(KINDS)
    assert [content[text.at :][:40].decode() for text in texts] == [text.revision for text in texts]
    lld, codegen_text = texts[0], texts[5]
    assert (lld.version, lld.repository, lld.build) == ("23.0.0", FORK, None)
    assert codegen_text.build == 12
    assert texts[4].repository == FORK


def test_repeated_revision_is_returned_once_with_its_first_offset() -> None:
    assert revisions([core(OLD.llvm) * 3], "x") == revisions([core(OLD.llvm)], "x")
    assert revisions([OTHER.encode()], "x") == (Revision(kind="bare", revision=OTHER, at=0),)
    assert revisions([], "x") == revisions([NOISE[:-50]], "x") == ()


def test_runs_of_more_or_fewer_than_40_digits_are_not_revisions() -> None:
    assert revisions([b"0" * 100_000] * 20, "x") == ()
    assert revisions([b"0" * 41 + b"\0" + b"1" * 39], "x") == ()


def test_a_file_with_too_many_revisions_is_refused() -> None:
    with refused("too-many-revisions"):
        revisions((f"\0{number:040x}\0".encode() for number in range(1000)), "x")


# --- against the pins ---


def test_wheel_with_the_pinned_llvm_is_pinned(tmp_path: Path) -> None:
    wheel = read_wheel(made(tmp_path, "3.7.1", {CORE: core(OLD.llvm)}))
    assert (wheel.project, wheel.version, wheel.tag) == ("triton", "3.7.1", "cp312-abi3-manylinux_2_28_x86_64")
    (library,) = wheel.libraries
    assert (library.file, library.part, library.revision, library.pin) == (CORE, "core", OLD.llvm, OLD.llvm)
    assert (library.verdict, library.certainty, library.also) == ("pinned", "verified", ())
    assert wheel.wrong == ()


def test_core_and_codegen_library_are_pinned_and_bitcode_is_not(tmp_path: Path) -> None:
    (pin,) = NEW.codegen
    made_by = f"clang version 20.0.0git ({FORK} {OTHER})".encode()
    wheel = read_wheel(made(tmp_path, "3.9.0", {CORE: core(NEW.llvm), BITCODE: made_by, AMD: codegen(pin.llvm)}))
    assert [library.part for library in wheel.libraries] == ["core", "AMDGPU", "bitcode"]
    assert verdicts(wheel) == {"core": "pinned", "AMDGPU": "pinned", "bitcode": "not pinned"}
    assert of(wheel, "AMDGPU").revision == pin.revision
    assert of(wheel, "bitcode").told[0].revision == OTHER


@pytest.mark.parametrize("vendor", ["", "AMD "])
def test_linker_named_in_a_library_is_not_an_llvm_inside_it(tmp_path: Path, vendor: str) -> None:
    linker = f"\0Linker: {vendor}LLD 22.0.0 ({FORK} {OTHER})\0".encode()
    wheel = read_wheel(made(tmp_path, "3.7.1", {CORE: core(OLD.llvm) + linker}))
    assert verdicts(wheel) == {"core": "pinned"}
    (text,) = [text for text in of(wheel, "core").told if text.revision == OTHER]
    assert (text.kind, text.version, text.repository) == ("compiler", "22.0.0", FORK)


PIN = NEW.codegen[0].llvm
CASES: dict[str, tuple[dict[str, bytes], dict[str, str]]] = {
    "another core": ({CORE: core(OLD.llvm), AMD: codegen(PIN)}, {"core": "other", "AMDGPU": "pinned"}),
    "another codegen": ({CORE: core(NEW.llvm), AMD: codegen(OTHER)}, {"core": "pinned", "AMDGPU": "other"}),
    "another build of it": ({CORE: core(NEW.llvm), AMD: codegen(PIN, 2)}, {"core": "pinned", "AMDGPU": "other"}),
    "no codegen": ({CORE: core(NEW.llvm)}, {"core": "pinned", "AMDGPU": "missing"}),
    "no core": ({AMD: codegen(PIN)}, {"core": "missing", "AMDGPU": "pinned"}),
    "two cores in one": (
        {CORE: core(NEW.llvm) + core(OLD.llvm), AMD: codegen(PIN)}, {"core": "contradictory", "AMDGPU": "pinned"},
    ),
    "a name that LLVM's text denies": (
        {CORE: core(NEW.llvm), AMD: codegen(PIN, inside=OTHER)}, {"core": "pinned", "AMDGPU": "contradictory"},
    ),
    "a codegen without a name": (
        {CORE: core(NEW.llvm), AMD: f"LLVM version 24.0.0git ({PIN})".encode()}, {"core": "pinned", "AMDGPU": "pinned"},
    ),
    "only its compiler tells": (
        {CORE: f"clang version 24.0.0 ({FORK} {NEW.llvm})\0".encode(), AMD: codegen(PIN)},
        {"core": "untold", "AMDGPU": "pinned"},
    ),
    "digits alone": (
        {CORE: b"\0" + NEW.llvm.encode() + b"\0", AMD: codegen(PIN)}, {"core": "untold", "AMDGPU": "pinned"},
    ),
    "a third LLVM": (
        {CORE: core(NEW.llvm), AMD: codegen(PIN), AMD.replace("amd", "nvidia"): codegen(OTHER)},
        {"core": "pinned", "AMDGPU": "pinned", "NVPTX": "no pin"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "expected"), CASES.values(), ids=CASES)
def test_verdicts_follow_from_texts_and_pins(tmp_path: Path, files: dict[str, bytes], expected: dict[str, str]) -> None:
    wheel = read_wheel(made(tmp_path, "3.9.0", files))
    assert verdicts(wheel) == expected
    assert {library.part for library in wheel.wrong} == {
        part for part, verdict in expected.items() if verdict in {"other", "missing", "contradictory"}
    }


@pytest.mark.parametrize(
    ("version", "llvm", "verdict"),
    [
        ("2.1.0", "17.0.0git", "untold"),
        ("2.1.0", "18.0.0git", "other"),
        ("2.2.0", "18.0.0git", "untold"),
        ("2.2.0", "17.0.6", "other"),
        ("3.0.0", "17.0.0git", "other"),
        ("4.0.0", "17.0.0git", "untold"),
    ],
)
def test_version_is_compared_if_there_is_no_revision(tmp_path: Path, version: str, llvm: str, verdict: str) -> None:
    # The text lies across the border of two pieces of the file.
    content = b"\x7fELF".ljust((1 << 20) - 5, b"\0") + f"\xfeLLVM{llvm}\0MLIR3.0.0git\0".encode("latin-1")
    wheel = read_wheel(made(tmp_path, version, {CORE: content}))
    assert (of(wheel, "core").llvm_version, of(wheel, "core").verdict) == (llvm, verdict)
    done = CliRunner().invoke(app, ["inspect", str(tmp_path / wheel.file)])
    assert done.exit_code == (PinError.code if verdict == "other" else 0)
    assert f"LLVM {llvm}" in done.stdout


def test_another_release_with_the_same_llvm_is_listed(tmp_path: Path) -> None:
    wheel = read_wheel(made(tmp_path, "3.9.0", {CORE: core(OLD.llvm), AMD: codegen(PIN)}))
    assert of(wheel, "core").also == ("Triton 3.7.1",)


@pytest.mark.parametrize("version", ["3.7.1+git5d6048aa", "3.99.0"])
def test_unknown_version_has_no_pin(tmp_path: Path, version: str) -> None:
    wheel = read_wheel(made(tmp_path, version, {CORE: core(OLD.llvm)}))
    assert (of(wheel, "core").verdict, of(wheel, "core").also) == ("no pin", ("Triton 3.7.1",))
    assert wheel.wrong == ()


def test_another_project_has_no_pin(tmp_path: Path) -> None:
    text = "Name: Triton_Windows\nVersion: 3.7.1\n"
    windows = "triton/_C/libtriton.pyd"
    wheel = read_wheel(made(tmp_path, "3.7.1", {windows: core(OTHER)}, metadata=text))
    assert (wheel.project, of(wheel, "core").verdict) == ("triton-windows", "no pin")


# --- bad wheels ---


def test_version_comes_from_the_file_name_without_metadata(tmp_path: Path) -> None:
    wheel = read_wheel(made(tmp_path, "3.7.1", {CORE: core(OLD.llvm)}, metadata=None))
    assert (wheel.version, of(wheel, "core").verdict) == ("3.7.1", "pinned")
    wheel = read_wheel(made(tmp_path, "3.7.1", {CORE: core(OLD.llvm)}, metadata=None, name="odd name.whl"))
    assert (wheel.project, wheel.version, wheel.tag, of(wheel, "core").verdict) == ("", "", "", "no pin")
    wheel = read_wheel(made(tmp_path, "3.7.1", {CORE: core(OLD.llvm)}, metadata="Name: triton\nVersion: \x1b[31m1\n"))
    assert wheel.version == ""


def _declared(path: Path, size: int) -> None:
    """Change the size of the first member, in its local header and in the central directory."""
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\x01\x02")
    struct.pack_into("<L", content, 22, size)
    struct.pack_into("<L", content, central + 24, size)
    path.write_bytes(content)


def _bomb(path: Path) -> None:
    made(path.parent, "1", {CORE: b"x"}, name=path.name)
    _declared(path, 0xFFFFFFF0)


def _packed(method: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr(CORE, b"x" * 100)

    return make


def _named(*names: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipfile warns of a duplicate name
            for name in names:
                archive.writestr(name, b"x")

    return make


def _encrypted(path: Path) -> None:
    made(path.parent, "1", {CORE: b"x"}, name=path.name)
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)


def _large_kind(path: Path) -> None:
    made(path.parent, "1", {CORE: b"x"}, name=path.name)
    content = path.read_bytes()
    end = content.rindex(b"PK\x05\x06")
    path.write_bytes(content[:end] + struct.pack("<LLQL", 0x07064B50, 0, 0, 1) + content[end:])


def _long_list(path: Path) -> None:
    made(path.parent, "1", {CORE: b"x"}, name=path.name)
    content = bytearray(path.read_bytes())
    struct.pack_into("<L", content, content.rindex(b"PK\x05\x06") + 12, 1 << 30)
    path.write_bytes(content)


def _two_projects(path: Path) -> None:
    text = b"Name: triton\nVersion: 1\n"
    made(path.parent, "1", {CORE: b"x", "a-1.dist-info/METADATA": text, "b-1.dist-info/METADATA": text}, name=path.name)


def _long_metadata(path: Path) -> None:
    made(path.parent, "1", {CORE: b"x"}, metadata="Name: triton\n" * 100_000, name=path.name)


HOSTILE: dict[str, Callable[[Path], None]] = {
    "bomb": _bomb, "bzip2": _packed(zipfile.ZIP_BZIP2), "lzma": _packed(zipfile.ZIP_LZMA), "encrypted": _encrypted,
    "absolute": _named("/etc/evil"), "outside": _named("a/../../b"), "backslash": _named("a\\b"),
    "control": _named("a\x1b[2Jb"), "twice": _named(CORE, CORE), "large kind": _large_kind, "long list": _long_list,
    "two projects": _two_projects, "long metadata": _long_metadata,
}  # fmt: skip


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_hostile_wheel_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "triton-1-py3-none-any.whl"
    make(path)
    with pytest.raises(HostileInputError) as caught:
        read_wheel(path)
    assert "\x1b" not in str(caught.value)


def test_damaged_wheel_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path, "3.7.1", {CORE: core(OLD.llvm) * 50})
    whole = path.read_bytes()
    for content in (b"", b"PK", whole[:-30], whole[:20] + whole[300:], whole.replace(b"PK\x03\x04", b"PK\x03\x05", 1)):
        path.write_bytes(content)
        with pytest.raises(SourceError):
            read_wheel(path)
    middle = whole.index(CORE.encode()) + len(CORE) + 60
    path.write_bytes(whole[:middle] + bytes(20) + whole[middle + 20 :])
    with refused("archive-incomplete"):
        read_wheel(path)
    with refused("archive-unreadable"):
        read_wheel(tmp_path / "none.whl")


def test_error_of_the_reader_is_not_reported_as_a_damaged_wheel(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), open_wheel(made(tmp_path, "1", {CORE: b"x"})):
        raise OSError("the disk is full")


# --- the verb ---


def test_inspect_reports_pinned_libraries(tmp_path: Path) -> None:
    path = made(tmp_path, "3.9.0", {CORE: core(NEW.llvm), AMD: codegen(PIN)})
    done = CliRunner().invoke(app, ["inspect", str(path)])
    assert done.exit_code == 0
    for part in (NEW.llvm, f"{PIN}-1", "as pinned (verified)", CORE, AMD, FORK, "triton 3.9.0"):
        assert part in done.stdout
    result = json.loads(CliRunner().invoke(app, ["inspect", str(path), "--json"]).stdout)
    (wheel,) = result["wheels"]
    assert [library["verdict"] for library in wheel["libraries"]] == ["pinned", "pinned"]
    assert wheel["libraries"][0]["told"][0]["build"] is None


def test_inspect_fails_if_the_core_has_another_llvm(tmp_path: Path) -> None:
    path = made(tmp_path, "3.9.0", {CORE: core(OLD.llvm)})
    done = CliRunner().invoke(app, ["inspect", str(path)])
    assert done.exit_code == PinError.code
    said = " ".join(done.stderr.split())
    assert all(text in said for text in (CORE, OLD.llvm, NEW.llvm, "AMDGPU is missing"))
    assert "NOT the pinned revision" in done.stdout
    assert "the LLVM of Triton 3.7.1" in done.stdout


@pytest.mark.parametrize(
    ("words", "id"),
    [
        (["gone.whl"], "wheel-missing"),
        (["pypi:triton", "--cache", "other"], "nowhere-available"),
        (["x.whl", "--use"], "option-not-for-wheel"),
    ],
)
def test_failed_inspect_creates_no_default_cache(
    words: list[str], id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    done = CliRunner().invoke(app, ["inspect", *words])
    assert f"[{id}]" in done.stderr
    assert done.stdout == ""
    assert (tmp_path / "other").is_dir() == ("other" in words)
    assert not (tmp_path / "cache").exists()
