"""Tests of reading the pin files in a checkout of Triton, and of refusing invalid ones."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.refusals import refused
from toolchain.catalog.pin_files import pin_files, read_codegen_pins, read_pin
from toolchain.core.errors import DocumentError, PinError

HASH = "10dc3a8e916d73291269e5e2b82dd22681489aa1"
FORK = "1f126a6dea50d185c0781743a667390037ae88bd"
OTHER = "86b69c31642e98f8357df62c09d118ad1da4e16a"
NOWHERE = "0123456789abcdef0123456789abcdef01234567"
UPSTREAM = "llvm/llvm-project"
TRITON_FORK = "triton-lang/llvm-project"


def info(commit: str = HASH, **more: object) -> str:
    return json.dumps({"llvm_hash": commit, "build_number": 1, **more})


@pytest.mark.parametrize("content", [HASH, f"{HASH}\n", f"  {HASH}\r\n", HASH.upper(), f"\ufeff{HASH}\n", info()])
@pytest.mark.parametrize("name", ["llvm-hash.txt", "llvm-hash", "llvm-hash.json", "llvm-info.json", "llvm-info"])
def test_pin_is_read_in_each_spelling_and_from_each_file_name(name: str, content: str, tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s a "Triton" checkout'
    (folder / "cmake").mkdir(parents=True)
    file = folder / "cmake" / name
    file.write_text(content, encoding="utf-8")
    for path in (file, folder / "cmake", folder):
        pin = read_pin(path)
        assert (pin.commit, pin.repository, pin.origin, pin.certainty) == (HASH, UPSTREAM, str(file), "verified")
        assert not pin.warnings


@pytest.mark.parametrize(("first", "second"), [("llvm-hash.txt", "llvm-info.json"), ("llvm-info", "llvm-info.json")])
def test_contradicting_pin_files_are_refused(first: str, second: str, tmp_path: Path) -> None:
    (tmp_path / first).write_text(HASH)
    (tmp_path / second).write_text(info(OTHER))
    with refused("pins-contradict") as caught:
        read_pin(tmp_path)
    for part in (HASH, OTHER, str(tmp_path / first), str(tmp_path / second)):
        assert part in caught.value.why
    assert read_pin(tmp_path / second).commit == OTHER


@pytest.mark.parametrize("whole", [True, False])
def test_repository_of_a_pin_is_read_from_its_build_info(whole: bool, tmp_path: Path) -> None:
    (tmp_path / "llvm-info.json").write_text(info(NOWHERE))
    (tmp_path / "llvm-build-info.json").write_text(info(NOWHERE, repository="someone/llvm-fork"))
    pin = read_pin(tmp_path if whole else tmp_path / "llvm-info.json")
    assert (pin.commit, pin.repository, pin.warnings) == (NOWHERE, "someone/llvm-fork", ())


@pytest.mark.parametrize("key", ["repository", "llvm_repository"])
@pytest.mark.parametrize("named", ["someone/llvm-fork", "https://github.com/someone/llvm-fork.git"])
def test_a_pin_file_names_its_repository(key: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "llvm-info.json").write_text(info(NOWHERE, **{key: named}))
    pin = read_pin(tmp_path)
    assert (pin.commit, pin.repository, pin.certainty, pin.warnings) == (NOWHERE, "someone/llvm-fork", "verified", ())


def test_pin_file_with_two_repositories_is_refused(tmp_path: Path) -> None:
    (tmp_path / "llvm-info.json").write_text(info(NOWHERE, repository="a/llvm", llvm_repository="b/llvm"))
    with refused("pin-two-repositories"):
        read_pin(tmp_path)


def test_comments_in_a_plain_pin_file_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "llvm-hash.txt").write_text(f"# The LLVM of this fork\n# see the wiki\n\n{HASH}  # 2025-06\n")
    assert read_pin(tmp_path).commit == HASH
    (tmp_path / "llvm-hash.txt").write_text(f"# two\n{HASH}\n{OTHER}\n")
    with refused("pin-without-commit"):
        read_pin(tmp_path)


@pytest.mark.parametrize("name", ["llvm-hash.txt", "llvm-info.json"])
def test_pin_file_with_a_merge_conflict_is_refused(name: str, tmp_path: Path) -> None:
    first, second = (HASH, OTHER) if name.endswith("txt") else (info(HASH), info(OTHER))
    (tmp_path / name).write_text(f"<<<<<<< HEAD\n{first}\n=======\n{second}\n>>>>>>> main\n")
    with refused("pin-merge-conflict"):
        read_pin(tmp_path)


@pytest.mark.parametrize(
    ("setup", "named"),
    [
        ('name = f"llvm+mlir-17.0.0-{arch}"\nversion = "llvm-17.0.0-c5dede880d17"\n', "c5dede880d17"),
        ('rev = "b1115f8c"\nname = f"llvm-{rev}-{suffix}"\n', "b1115f8c"),
        ("name = 'clang+llvm-11.0.1-x86_64-linux-gnu-ubuntu-16.04'\n", "LLVM 11.0.1"),
    ],
)
def test_error_for_an_old_triton_names_the_llvm_in_setup_py(setup: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "setup.py").write_text(setup)
    with pytest.raises(PinError, match=named):
        read_pin(tmp_path)


def test_error_for_a_checkout_of_aotriton_names_its_submodule(tmp_path: Path) -> None:
    (tmp_path / "include" / "aotriton").mkdir(parents=True)
    with refused("pin-of-aotriton") as caught:
        read_pin(tmp_path)
    assert "third_party/triton" in str(caught.value.fix)


def test_build_info_with_another_commit_is_not_used_and_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "llvm-info.json").write_text(info(FORK))
    (tmp_path / "llvm-build-info.json").write_text(info(OTHER, repository="someone/llvm-fork"))
    pin = read_pin(tmp_path)
    assert (pin.commit, pin.repository) == (FORK, TRITON_FORK)
    assert OTHER in pin.warnings[0]
    assert FORK in pin.warnings[0]


def test_assumed_repository_gives_a_warning(tmp_path: Path) -> None:
    (tmp_path / "llvm-info.json").write_text(info(NOWHERE))
    pin = read_pin(tmp_path)
    assert (pin.repository, pin.certainty) == (UPSTREAM, "inferred")
    assert "assumed" in pin.warnings[0]


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"build_number": 1}', '{"llvm_hash": 1, "llvm_hash": 2}', info("short")]
)
def test_malformed_build_info_gives_a_warning(content: str, tmp_path: Path) -> None:
    (tmp_path / "llvm-info.json").write_text(info())
    (tmp_path / "llvm-build-info.json").write_text(content)
    pin = read_pin(tmp_path)
    assert pin.commit == HASH
    assert "ignored" in pin.warnings[0]


@pytest.mark.parametrize("repository", ["--upload-pack=x/y", "a/b/c", "", 7, None, "ssh://host/x", "a/../b"])
def test_invalid_repository_is_refused(repository: object, tmp_path: Path) -> None:
    (tmp_path / "llvm-info.json").write_text(info())
    (tmp_path / "llvm-build-info.json").write_text(info(repository=repository))
    with refused("pin-unknown-repository"):
        read_pin(tmp_path)


NEIGHBOURS = ["amd-llvm-info.json", "amd-llvm-build-info.json", "nvidia-llvm-build-info.json", "llvm-build-info.json"]


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_pin_files_of_other_parts_are_not_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(info(OTHER))
    with refused("pin-not-found"):
        read_pin(tmp_path)
    with refused("pin-of-other-part"):
        read_pin(tmp_path / name)
    (tmp_path / "llvm-info.json").write_text(info())
    assert read_pin(tmp_path).commit == HASH


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "pin-without-commit"),
        (HASH[:39].encode(), "pin-without-commit"),
        (f"{HASH}\n{OTHER}".encode(), "pin-without-commit"),
        (b'{"build_number": 1}', "pin-without-commit"),
        (b'{"llvm_hash": 7}', "pin-without-commit"),
        (b'{"llvm_hash": "10dc3a8e"}', "pin-without-commit"),
        (b'{"llvm_hash": ', "pin-not-json"),
        (b'["llvm_hash"]', "pin-not-json"),
        (b"\xff\xfe1\x000\x00", "not-a-pin-file"),
        (HASH.encode() + b" " * 70000, "pin-unreadable"),
    ],
)
def test_malformed_pin_file_is_refused(content: bytes, match: str, tmp_path: Path) -> None:
    file = tmp_path / "llvm-hash.txt"
    file.write_bytes(content)
    for path in (file, tmp_path):
        with refused(match) as caught:
            read_pin(path)
        assert str(file) in caught.value.what
        assert caught.value.fix


@pytest.mark.parametrize(
    "text",
    [
        f'{{"llvm_hash": "{HASH}", "llvm_hash": "{OTHER}"}}',
        f'{{"llvm_hash": "{HASH}", "LLVM_hash": "{OTHER}"}}',
        f'{{"llvm_hash": "{HASH}", "x": {"[" * 100}{"]" * 100}}}',
        "[" * 60000,
    ],
    ids=lambda text: text[-12:],
)
def test_pin_file_that_programs_read_differently_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "llvm-info.json").write_text(text)
    with pytest.raises(DocumentError, match=r"llvm-info\.json"):
        read_pin(tmp_path)


@pytest.mark.parametrize("name", ["llvm-hash.txt", "llvm-info.json", "cmake/llvm-hash.txt", "cmake"])
def test_pin_file_that_links_out_of_the_checkout_is_refused(name: str, tmp_path: Path) -> None:
    """A checkout may come from anyone, and CI may publish the content of files that a message shows."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "llvm-hash.txt").write_text(HASH)
    checkout = tmp_path / "checkout"
    (checkout / name).parent.mkdir(parents=True)
    (checkout / name).symlink_to(private if name == "cmake" else private / "llvm-hash.txt")
    with refused("pin-unreadable") as caught:
        read_pin(checkout)
    assert HASH not in str(caught.value)


def test_a_link_inside_the_checkout_is_followed(tmp_path: Path) -> None:
    (tmp_path / "cmake").mkdir()
    (tmp_path / "pin").write_text(HASH)
    (tmp_path / "cmake" / "llvm-hash.txt").symlink_to("../pin")
    assert read_pin(tmp_path).commit == HASH


@pytest.mark.parametrize(
    "text",
    [
        "root:$6$secret:19000:0:99999:7:::",
        '{"llvm_hash": "root:$6$secret"}',
        '{"llvm_hash": ["secret"]}',
        '{"root:$6$secret": 1}',
        '{"llvm_hash": "0123", "repository": "secret"}',
        "\x1b[31msecret",
        "secret\n::error::secret",
    ],
    ids=repr,
)
def test_error_shows_an_incomplete_commit_but_no_other_content_of_a_pin_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "llvm-hash.txt").write_text(text)
    with pytest.raises(PinError) as caught:
        read_pin(tmp_path)
    assert "secret" not in str(caught.value)
    (tmp_path / "llvm-hash.txt").write_text(HASH[:39])
    with pytest.raises(PinError, match=HASH[:39]):
        read_pin(tmp_path)


@contextlib.contextmanager
def as_somebody() -> Iterator[None]:
    """Drop root's rights for the block, because root may read every file."""
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        yield
    finally:
        os.seteuid(user)


UNREADABLE = {
    "dangling": "it is a dangling link to nowhere",
    "loop": "symbolic links",
    "folder": "it is a folder",
    "pipe": "it is not a regular file",
}


def unreadable(file: Path, kind: str) -> None:
    file.parent.mkdir(exist_ok=True)
    match kind:
        case "dangling":
            file.symlink_to("nowhere")
        case "loop":
            file.symlink_to(file.name)
        case "folder":
            file.mkdir()
        case _:
            os.mkfifo(file)


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("name", ["llvm-hash.txt", "llvm-info.json", "cmake/llvm-hash.txt"])
def test_unreadable_pin_file_is_refused_even_if_there_is_another(kind: str, name: str, tmp_path: Path) -> None:
    """If the file were skipped, the build would use the LLVM of another pin, or that of the newest Triton."""
    unreadable(tmp_path / name, kind)
    (tmp_path / "llvm-info").write_text(info())
    assert tmp_path / name in pin_files(tmp_path)
    with refused("pin-unreadable") as caught:
        read_pin(tmp_path)
    assert str(tmp_path / name) in caught.value.what
    assert UNREADABLE[kind] in caught.value.why


@pytest.mark.parametrize("closed", ["llvm-hash.txt", "cmake"])
def test_pin_file_without_read_permission_is_refused(closed: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        top.chmod(0o755)
        (top / "llvm-info.json").write_text(info())
        (top / "cmake").mkdir()
        (top / "llvm-hash.txt").write_text(HASH)
        (top / closed).chmod(0)
        with as_somebody(), refused("pin-unreadable") as caught:
            read_pin(top)
    assert closed in caught.value.what
    assert "ermission denied" in caught.value.why


def test_dangling_link_as_cmake_folder_is_refused_but_a_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "cmake").symlink_to("nowhere")
    with refused("pin-unreadable") as caught:
        pin_files(tmp_path)
    assert str(tmp_path / "cmake") in caught.value.what
    (tmp_path / "cmake").unlink()
    (tmp_path / "cmake").touch()
    assert pin_files(tmp_path) == []


# --- the LLVMs for GPUs ---


def codegen(tmp_path: Path, **files: object) -> Path:
    """Write files to the folder cmake/ of a checkout, and return it; `amd_info` becomes amd-llvm-info.json."""
    (tmp_path / "cmake").mkdir()
    for name, content in files.items():
        who, _, what = name.partition("_")
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "cmake" / f"{who}-llvm-{what.replace('_', '-')}.json").write_text(text)
    return tmp_path


PIN = {"llvm_hash": NOWHERE, "build_number": 2, "sha256sum": {"ubuntu-x64": "0" * 64}}


def test_codegen_pins_are_read_from_a_checkout(tmp_path: Path) -> None:
    (pin,) = read_codegen_pins(codegen(tmp_path, amd_info=PIN))
    assert (pin.target, pin.revision, pin.repository, pin.certainty) == ("AMDGPU", f"{NOWHERE}-2", "", "verified")
    assert pin.source.endswith("cmake/amd-llvm-info.json")


def test_build_info_of_a_codegen_pin_gives_only_the_repository(tmp_path: Path) -> None:
    ahead = {"llvm_hash": NOWHERE, "repository": "ROCm/llvm-project", "build_number": 2}
    (pin,) = read_codegen_pins(codegen(tmp_path, amd_info=PIN, amd_build_info=ahead))
    assert pin.repository == "ROCm/llvm-project"
    (tmp_path / "cmake/amd-llvm-build-info.json").write_text(json.dumps({**ahead, "llvm_hash": OTHER}))
    (pin,) = read_codegen_pins(tmp_path)
    assert (pin.llvm, pin.repository) == (NOWHERE, "")
    (tmp_path / "cmake/amd-llvm-info.json").unlink()
    assert read_codegen_pins(tmp_path) == ()


def test_checkout_without_codegen_pin_files_gives_no_pins(tmp_path: Path) -> None:
    assert read_codegen_pins(tmp_path) == ()
    (tmp_path / "cmake").mkdir()
    (tmp_path / "cmake/llvm-info.json").write_text(info())
    (tmp_path / "cmake/llvm-build-info.json").write_text(info(OTHER))
    (tmp_path / "cmake/nvidia-toolchain-version.json").write_text("{}")
    assert read_codegen_pins(tmp_path) == ()


@pytest.mark.parametrize("what", ["info", "build_info"])
def test_codegen_pin_without_a_rule_is_refused_with_its_file_name(what: str, tmp_path: Path) -> None:
    tree = codegen(tmp_path, amd_info=PIN, **{f"intel_{what}": PIN})
    with refused("unknown-codegen") as caught:
        read_codegen_pins(tree)
    assert f"cmake/intel-llvm-{what.replace('_', '-')}.json" in caught.value.why
    assert "amd (AMDGPU)" in caught.value.why


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "pin-not-json"),
        ({"build_number": 1}, "pin-without-commit"),
        ({"llvm_hash": HASH[:8], "build_number": 1}, "pin-without-commit"),
        ({"llvm_hash": HASH}, "pin-without-build"),
        ({"llvm_hash": HASH, "build_number": -1}, "pin-without-build"),
    ],
)
def test_malformed_codegen_pin_is_refused(content: object, match: str, tmp_path: Path) -> None:
    with refused(match):
        read_codegen_pins(codegen(tmp_path, amd_info=content))
