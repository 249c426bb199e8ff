"""`publish.pytorch` and its verb: the AOTriton that PyTorch needs, and the check of archives and prefixes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.refusals import refused
from toolchain.cli.app import app
from toolchain.core.errors import ContractError, SourceError, UnsupportedError
from toolchain.publish.pytorch import CMAKE, VERSION_FILE, check_prefix, read_pytorch

COMMIT = "6e00ef3e335b45dfb49065259533b59c68995bfe"
RUNTIME = "aotriton-0.13b-manylinux_2_28_x86_64-rocm7.2-shared.tar.gz"
NAVI = "aotriton-0.13b-images-amd-gfx110x.tar.gz"
LISTS = f"""
set(__AOTRITON_VER "0.13b")
set(__AOTRITON_MANYLINUX_LIST
    "manylinux_2_28"  # rocm6.4 (as it were)
    "manylinux_2_28"  # rocm7.2
    )
set(__AOTRITON_ROCM_LIST "rocm6.4" "rocm7.2")
set(__AOTRITON_CI_COMMIT "{COMMIT}")
set(__AOTRITON_SHA256_LIST
    "{"0" * 64}"  # rocm6.4
    "{"0" * 64}"  # rocm7.2
    )
set(__AOTRITON_IMAGE_LIST "amd-gfx942" "amd-gfx110x")
set(__AOTRITON_IMAGE_SHA256_LIST
    "{"4" * 64}" # amd-gfx942
    "" # amd-gfx110x
    )
if(USE_ASAN)
  set(__AOTRITON_ROCM_LIST "rocm7.14")
  set(__AOTRITON_SHA256_LIST "{"5" * 64}"  # rocm7.2+asan
    )
endif()
set(__AOTRITON_BASE_URL "https://github.com/ROCm/aotriton/releases/download/")
"""
OLD = """
file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/.ci/docker/aotriton_version.txt" INFO)
set(URL "https://github.com/ROCm/aotriton/releases/download/" "${VER}/${FILE}")
"""


def tree_of(top: Path, text: str, version: str = "") -> Path:
    for name, content in ((CMAKE, text), (VERSION_FILE, version)):
        if content:
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(content)
    return top


def test_aotriton_lists_of_default_build_are_read(tmp_path: Path) -> None:
    wanted = read_pytorch(tree_of(tmp_path, LISTS))
    assert (wanted.release, wanted.commit, wanted.rocms, wanted.fixed_url) == ("0.13b", COMMIT, ("6.4", "7.2"), True)
    assert [archive.name for archive in wanted.needed("7.2", ("gfx1101",))] == [RUNTIME, NAVI]
    assert read_pytorch(tmp_path / CMAKE) == wanted
    variable = LISTS.replace('"https', '"$ENV{PYTORCH_AOTRITON_BASE_URL}" "https')
    assert not read_pytorch(tree_of(tmp_path / "new", variable)).fixed_url


def test_version_file_of_older_pytorch_is_read(tmp_path: Path) -> None:
    text = f"0.7b\nmanylinux_2_17;manylinux_2_17\nrocm6.1;rocm6.2\n{COMMIT}\n{'1' * 64};{'2' * 64}\ngz\n"
    wanted = read_pytorch(tree_of(tmp_path, OLD, text))
    assert (wanted.release, wanted.rocms) == ("0.7b", ("6.1", "6.2"))
    assert [archive.sha256 for archive in wanted.needed("6.2", ("gfx942",))] == ["2" * 64]
    (tmp_path / VERSION_FILE).unlink()
    with refused("pytorch-without-gpu", "gfx950"):
        wanted.needed("6.2", ("gfx950",))
    with refused("pytorch-unreadable"):
        read_pytorch(tmp_path)


def test_missing_archives_and_invalid_trees_are_refused(tmp_path: Path) -> None:
    wanted = read_pytorch(tree_of(tmp_path, LISTS))
    for rocm, gpus in (("5.7", ()), ("7.2", ("gfx950",))):
        with pytest.raises(UnsupportedError):
            wanted.needed(rocm, gpus)
    for text in ("project(x)\n", LISTS.replace('"amd-gfx942" ', ""), LISTS.replace('"rocm6.4" "rocm7.2"', '"rocm6.4"')):
        with pytest.raises(SourceError):
            read_pytorch(tree_of(tmp_path, text))
    with refused("pytorch-without-gpu", "gfx950"):
        wanted.needed("", ("gfx950",))
    with pytest.raises(SourceError):
        read_pytorch(tmp_path / "nothing")


@pytest.mark.timeout(300)
def test_unterminated_list_is_refused(tmp_path: Path) -> None:
    endless = "set(__AOTRITON_SHA256_LIST\n" + f'    "{"0" * 64}"  # {"a comment " * 20}\n' * 20
    with refused("pytorch-without-aotriton"):
        read_pytorch(tree_of(tmp_path, endless + "(\n"))


def test_pytorch_that_compiles_aotriton_is_refused_with_its_commit(tmp_path: Path) -> None:
    commit = "0123456789" * 4
    text = f"ExternalProject_Add(aotriton\n  GIT_REPOSITORY https://host.example/aotriton\n  GIT_TAG {commit})\n"
    with pytest.raises(UnsupportedError) as refusal:
        read_pytorch(tree_of(tmp_path, text))
    assert commit in refusal.value.what
    assert "AOTRITON_INSTALLED_PREFIX" in refusal.value.fix


def test_packs_of_unrecorded_release_are_selected_as_by_pytorch(tmp_path: Path) -> None:
    wanted = read_pytorch(tree_of(tmp_path, LISTS.replace("0.13b", "0.99b")))
    assert [archive.pack for archive in wanted.needed("7.2", ("gfx1103", "gfx942"))] == [
        "",
        "amd-gfx942",
        "amd-gfx110x",
    ]
    with refused("pytorch-without-gpu", "gfx1151"):
        wanted.needed("7.2", ("gfx1151",))


@pytest.mark.parametrize(("old", "new"), [('VER "0.13b"', 'VER "../0.13b"'), ("amd-gfx110x", "../gfx110x")])
def test_name_with_parent_folder_is_refused(tmp_path: Path, old: str, new: str) -> None:
    with refused("pytorch-name-unsafe"):
        read_pytorch(tree_of(tmp_path, LISTS.replace(old, new)))
    with refused("pytorch-name-unsafe"):
        read_pytorch(tree_of(tmp_path / "old", OLD, f"../x\nmanylinux_2_28\nrocm6.2\n{COMMIT}\n{'1' * 64}\n"))


def prefix_of(top: Path, *packs: str, version: tuple[int, int, int] = (0, 13, 0)) -> Path:
    header = top / "include" / "aotriton" / "config.h"
    header.parent.mkdir(parents=True)
    names = ("MAJOR", "MINOR", "PATCH")
    pairs = zip(names, version, strict=True)
    header.write_text("".join(f"#define AOTRITON_VERSION_{name} {number}\n" for name, number in pairs))
    for pack in packs:
        signature = top / "lib" / "aotriton.images" / pack / "__signature__"
        signature.parent.mkdir(parents=True)
        signature.write_text(json.dumps({"AOTRITON_GIT_SHA1": COMMIT}))
    (top / "lib" / "libaotriton_v2.so").write_text("so")
    return top


def test_unfit_prefix_is_refused(tmp_path: Path) -> None:
    wanted = read_pytorch(tree_of(tmp_path / "tree", LISTS))
    prefix = prefix_of(tmp_path / "prefix", "amd-gfx942")
    assert check_prefix(prefix, wanted, ("gfx942",)) == {"version": "0.13.0", "amd-gfx942": COMMIT}
    for damage, reason in (
        (lambda at: None, "gfx1101"),
        (lambda at: (at / "lib/libaotriton_v2.so").unlink(), "libaotriton_v2.so"),
        (lambda at: (at / "lib/libfoo.so").touch(), "libfoo.so"),
        (lambda at: (at / "lib/aotriton.images/amd-gfx942/__signature__").write_text("{}"), "damaged"),
        (lambda at: shutil.rmtree(at / "include"), "no header that defines a version"),
        (
            lambda at: (
                (at / "lib/aotriton.images").rename(at / "i") and (at / "lib/aotriton.images").symlink_to("../i")
            ),
            "a symlink",
        ),
    ):
        at = tmp_path / "damaged"
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(prefix, at)
        damage(at)
        with refused("prefix-unfit") as caught:
            check_prefix(at, wanted, ("gfx942", "gfx1101"))
        assert reason in caught.value.why
    with pytest.raises(ContractError) as caught:
        check_prefix(prefix, wanted, ("gfx942",), "7.2")
    assert "libaotriton_v2.so" in caught.value.why
    with refused("unknown-rocm"):
        check_prefix(prefix, wanted, ("gfx942",), "9.1")
    with refused("prefix-unfit"):
        check_prefix(prefix_of(tmp_path / "old", "amd-gfx942", version=(0, 12, 1)), wanted, ("gfx942",))


def test_verb_reports_archives_and_prefix(tmp_path: Path) -> None:
    top = tree_of(tmp_path / "tree", LISTS)
    (tmp_path / RUNTIME).write_text("runtime")
    words = ["pytorch", str(top), "--rocm", "7.2", "--gpu", "Navi32", "--from", str(tmp_path), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [(row["name"], bool(row["found"])) for row in result["archives"]] == [(RUNTIME, True), (NAVI, False)]
    assert CliRunner().invoke(app, [*words, "--prefix", str(top)]).exit_code == ContractError.code
    prefix = ["--prefix", str(prefix_of(tmp_path / "prefix", "amd-gfx950"))]
    taken = CliRunner().invoke(app, ["pytorch", str(top), *prefix, "--gpu", "gfx950"])
    assert taken.output.splitlines()[-1] == "prefix: 0.13.0, amd-gfx950", "PyTorch itself has no pack of it"
    asked = CliRunner().invoke(app, ["pytorch", str(top), *prefix, "--rocm", "7.3"])
    assert "[prefix-unfit]" in asked.output, "a prefix may be for a ROCm that PyTorch does not name"
    assert CliRunner().invoke(app, ["pytorch", str(top), "--from", str(tmp_path / "nothing")]).exit_code == 3


def test_config_values_for_builds_are_ignored_by_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree_of(tmp_path, LISTS)
    (tmp_path / "t.toml").write_text('gpu = "gfx950"\nrocm = "6,7"\n')
    monkeypatch.setenv("TOOLCHAIN_CONFIG", str(tmp_path / "t.toml"))
    done = CliRunner().invoke(app, ["pytorch", str(tmp_path)])
    assert done.exit_code == 0, done.output


FORK = f"""
set(__AOTRITON_RELEASE_PAGE "0.9.2b")
set(__AOTRITON_VER_LIST
    "0.9.2b"  # rocm6.3
    "0.9.2b"  # rocm6.4
    "0.9.2b_612896439f"  # rocm6.5 with gfx950
    )
set(__AOTRITON_MANYLINUX_LIST "manylinux_2_28" "manylinux_2_28" "manylinux_2_28")
set(__AOTRITON_ROCM_LIST "rocm6.3" "rocm6.4" "rocm6.5")
set(__AOTRITON_CI_COMMIT "{COMMIT}")
set(__AOTRITON_SHA256_LIST "{"1" * 64}" "{"2" * 64}" "{"3" * 64}")
list(GET __AOTRITON_ROCM_LIST 0 __AOTRITON_ROCM_DEFAULT_STR)
"""
ONE_ARCHIVE = f"""
set(__AOTRITON_VER "0.7.1b")
set(__AOTRITON_MANYLINUX_LIST "manylinux_2_17" "manylinux_2_17" "manylinux_2_28" "manylinux_2_28")
set(__AOTRITON_ROCM_LIST "rocm6.1" "rocm6.2" "rocm6.2" "rocm6.3")
set(__AOTRITON_SHA256_LIST "{"1" * 64}" "{"2" * 64}" "{"3" * 64}" "{"4" * 64}")
"""
OLDER = "list(GET __AOTRITON_ROCM_LIST 0 __AOTRITON_ROCM_DEFAULT_STR)\n"
CLAMPED = "set(__AOTRITON_ROCM ${__AOTRITON_ROCM_HIGH})\n"


@pytest.mark.parametrize(
    ("text", "rocm", "digit"),
    [
        (FORK, "6.5", "3"),
        (FORK, "7.0", "3"),
        (FORK, "6.2", "1"),
        (ONE_ARCHIVE + OLDER, "6.2", "2"),  # CMake takes the first of two for one ROCm
        (ONE_ARCHIVE + OLDER, "6.4", "4"),
        (ONE_ARCHIVE + OLDER, "5.7", "1"),
        (ONE_ARCHIVE + CLAMPED, "6.4", "4"),
        (ONE_ARCHIVE + CLAMPED, "6.0", "1"),
        (ONE_ARCHIVE.replace("rocm6.2", "rocm6.15") + CLAMPED, "6.2", ""),
        (ONE_ARCHIVE, "6.4", ""),
    ],
)
def test_runtime_archive_is_selected_as_by_cmake(tmp_path: Path, text: str, rocm: str, digit: str) -> None:
    wanted = read_pytorch(tree_of(tmp_path, text))
    if digit:
        assert [archive.sha256 for archive in wanted.needed(rocm, ())] == [digit * 64]
    else:
        with pytest.raises(UnsupportedError):
            wanted.needed(rocm, ())


def test_fork_of_amd_selects_the_archive_for_its_rocm(tmp_path: Path) -> None:
    wanted = read_pytorch(tree_of(tmp_path, FORK))
    assert (wanted.release, wanted.version, wanted.commit) == ("0.9.2b", "0.9.2", COMMIT)
    assert wanted.needed("6.5", ())[0].name == "aotriton-0.9.2b_612896439f-manylinux_2_28_x86_64-rocm6.5-shared.tar.gz"


def test_prefix_of_old_aotriton_needs_an_archive_but_no_version(tmp_path: Path) -> None:
    """robertrosenbusch/gfx803_rocm62_pt24#2: a shared library alone does not serve a PyTorch that links an archive."""
    linked = "target_link_libraries(x INTERFACE ${__AOTRITON_INSTALL_DIR}/lib/libaotriton_v2.a dl)\n"
    text = f"0.7b\nmanylinux_2_17\nrocm6.2\n{COMMIT}\n{'1' * 64}\ngz\n"
    wanted = read_pytorch(tree_of(tmp_path / "tree", OLD + linked, text))
    prefix = prefix_of(tmp_path / "prefix", "amd-gfx942")
    shutil.rmtree(prefix / "include")
    with pytest.raises(ContractError) as caught:
        check_prefix(prefix, wanted, ())
    assert "libaotriton_v2.a" in caught.value.why
    assert "header" not in caught.value.why
    (prefix / "lib/libaotriton_v2.a").touch()
    assert check_prefix(prefix, wanted, ())["version"] == ""


def test_lists_that_cmake_leaves_empty_are_refused(tmp_path: Path) -> None:
    lists = "".join(f'list(JOIN "x" ";" __AOTRITON_{name}_LIST)\n' for name in ("MANYLINUX", "ROCM", "SHA256"))
    text = f'# Replaces .ci/docker/aotriton_version.txt\nset(__AOTRITON_VER "0.4.2b")\n{lists}'
    with pytest.raises(UnsupportedError) as refusal:
        read_pytorch(tree_of(tmp_path, text))
    assert "0.4.2b" in refusal.value.fix
