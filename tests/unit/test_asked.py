"""The choice of Triton and LLVM: the precedence of options, and the effect of the current folder."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.git_server import triton_repository
from toolchain.catalog.releases import aotriton_release, triton_release
from toolchain.cli.app import app

TOP = Path(__file__).resolve().parents[2]
V36, V37, V38 = (triton_release(version) for version in ("3.6.0", "3.7.1", "3.8.0"))
UNKNOWN = "0123456789" * 4
COMMIT = "d8da7c998c75c88691e0ec157fcfd92b49d7060a"
UPSTREAM = "https://github.com/triton-lang/triton"


@dataclass
class Here:
    """The current folder of a test."""

    folder: Path

    def call(self, *words: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any], str]:
        done = CliRunner().invoke(app, [*words, "--json"], env=env)
        assert done.exit_code != 1, done.exception
        return done.exit_code, json.loads(done.stdout or "{}"), done.stderr

    def llvm(self, *words: str, env: dict[str, str] | None = None) -> tuple[str, str, str]:
        """Return the commit and the repository that `plan llvm` names, and its standard error."""
        code, found, said = self.call("plan", "llvm", *words, env=env)
        assert code == 0, said
        (source,) = found["stages"][-1]["sources"]
        return source["ref"], source["repository"].removeprefix("https://github.com/"), said

    def triton(self, *words: str, target: str = "triton", env: dict[str, str] | None = None) -> str:
        code, found, said = self.call("plan", target, *words, env=env)
        assert code == 0, said
        rows = {row["name"]: row for row in found["stages"]}
        return str(rows["triton"]["sources"][0]["ref"])

    def checkout(self, **changes: str) -> str:
        """Make the folder a checkout of Triton, and return its commit."""
        return triton_repository(self.folder, **{"version": "3.6.0", "llvm": V36.llvm, "tag": "v3.6.0", **changes})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    for name in [name for name in os.environ if name.startswith("TOOLCHAIN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "a 'folder'"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Here(folder)


def stage(found: Any, name: str) -> Any:
    """Return a stage of a plan by its name."""
    (row,) = [row for row in found["stages"] if row["name"] == name]
    return row


def pin(folder: Path, commit: str, name: str = "llvm-hash.txt", repository: str = "") -> None:
    folder.mkdir(exist_ok=True)
    text = json.dumps({"llvm_hash": commit, "build_number": 1}) if name.endswith("json") else f"{commit}\n"
    (folder / name).write_text(text)
    if repository:
        (folder / "llvm-build-info.json").write_text(json.dumps({"llvm_hash": commit, "repository": repository}))


@pytest.mark.parametrize("name", ["llvm-hash.txt", "llvm-info.json", "cmake/llvm-hash.txt"])
def test_pin_in_the_current_folder_is_used_only_if_it_is_named(here: Here, name: str) -> None:
    plain = here.llvm()
    assert plain == (V37.llvm, V37.repository, "")
    pin(here.folder / Path(name).parent, V36.llvm, Path(name).name, repository="evil/llvm-project")
    ref, repository, said = here.llvm()
    assert (ref, repository) == (V37.llvm, V37.repository)
    assert f"--triton {name}" in said
    pin(here.folder / Path(name).parent, V36.llvm, Path(name).name)
    (here.folder / Path(name).parent / "llvm-build-info.json").unlink()
    assert here.llvm("--triton", name)[:2] == (V36.llvm, V36.repository)
    # The pin and the version with this pin result in the same plan.
    by_pin = here.call("plan", "llvm", "--triton", name)[1]["stages"][-1]
    by_version = here.call("plan", "llvm", "--triton", "3.6.0")[1]["stages"][-1]
    assert by_pin == by_version


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("llvm-hash.txt", None),
        ("llvm-info.json", b""),
        ("cmake/llvm-hash.txt", b"\xff\xfe1\x000\x00"),
        ("llvm-hash.txt", b" " * 70000),
    ],
)
def test_unreadable_pin_is_refused_by_name(here: Here, name: str, content: bytes | None) -> None:
    """Any LLVM other than the one that the folder pins would be wrong."""
    here.checkout()
    shutil.rmtree(here.folder / "cmake")
    file = here.folder / name
    file.parent.mkdir(exist_ok=True)
    if content is None:
        file.symlink_to("nowhere")
    else:
        file.write_bytes(content)
    for words in (["llvm", "--triton", "."], ["triton", "--triton", str(here.folder)], ["llvm", "--triton", name]):
        code, _, said = here.call("plan", *words)
        assert code == 4, said
        assert name in said


def test_two_pins_in_one_folder_that_disagree_are_refused(here: Here) -> None:
    pin(here.folder, V36.llvm)
    pin(here.folder / "cmake", V38.llvm)
    for verb in ("plan", "build"):
        code, _, said = here.call(verb, "llvm", "--triton", ".")
        assert code == 4, said
        assert (V36.llvm in said, V38.llvm in said) == (True, True)
    assert here.llvm("--triton", "3.7.1")[0] == V37.llvm, "nobody asked the folder"
    pin(here.folder / "cmake", "no commit")
    assert here.call("plan", "llvm", "--triton", ".")[0] == 4


def test_checkout_in_the_current_folder_is_built_only_if_it_is_named(here: Here) -> None:
    here.checkout()
    for target in ("triton", "kernels", "all"):
        assert here.triton("--triton", ".", target=target).startswith("local:a 'folder'")
        assert here.triton(target=target) == V37.commit
    assert here.llvm("--triton", ".")[:2] == (V36.llvm, V36.repository)
    assert here.llvm()[0] == V37.llvm
    code, found, said = here.call("plan", "triton", "--triton", ".")
    assert code == 0
    assert stage(found, "llvm")["image"] == f"llvm-triton-{V36.llvm[:8]}"
    # --source selects another LLVM, and the Triton is still that of the folder.
    llvm = f"llvm=https://github.com/llvm/llvm-project@{UNKNOWN}"
    assert here.triton("--triton", ".", "--source", llvm).startswith("local:")
    # An incomplete checkout is refused, because no other Triton may replace it.
    (here.folder / "setup.py").unlink()
    code, _, said = here.call("plan", "triton", "--triton", ".")
    assert code == 5
    assert "setup.py" in said


def test_command_line_precedes_environment_and_file(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.checkout()
    file = here.folder / "t.toml"
    env = {"TOOLCHAIN_TRITON": "3.8.0"}
    release = aotriton_release("0.10b")
    assert here.llvm()[0] == V37.llvm
    file.write_text('triton = "3.6.0"\n')
    monkeypatch.setenv("TOOLCHAIN_CONFIG", "t.toml")
    assert here.llvm()[0] == V36.llvm
    assert here.llvm(env=env)[0] == V38.llvm
    assert here.llvm("--triton", "3.4.0", env=env)[0] == triton_release("3.4.0").llvm
    # Two options that name different Tritons are refused, whatever their origins are.
    code, _, said = here.call("plan", "llvm", "--aotriton", "0.10b", env=env)
    assert (code, "TOOLCHAIN_TRITON" in said) == (4, True)
    assert here.call("plan", "triton", "--source", f"triton={UPSTREAM}@{COMMIT}", env=env)[0] == 4
    assert here.llvm("--source", f"llvm=https://github.com/a/b@{UNKNOWN}", env=env)[0] == UNKNOWN
    file.write_text(f'source = ["triton={UPSTREAM}@{COMMIT}"]\n')
    assert here.triton() == COMMIT
    assert here.call("plan", "triton", env={"TOOLCHAIN_TRITON": "3.7.1"})[0] == 4
    file.write_text('aotriton = "0.10b"\n')
    assert here.triton() == release.triton
    assert here.call("plan", "triton", "--triton", "3.7.1")[0] == 4


def test_checkout_supplies_versions_and_no_options(here: Here) -> None:
    here.checkout()
    (here.folder / "cmake" / "llvm-info.json").write_text(
        json.dumps({"llvm_hash": V36.llvm, "allow-binary": ["triton-wheel"], "reuse-from": "oci:evil", "key": "k"})
    )
    (here.folder / "cmake" / "toolchain.toml").write_text('reuse-from = "oci:evil"\n')
    code, found, said = here.call("plan", "triton", "--triton", ".")
    assert code == 0, said
    assert found["stages"][-1]["binaries"] == []
    assert "evil" not in said


def test_pin_file_selects_llvm_and_cannot_build_triton(here: Here, tmp_path: Path) -> None:
    pin(tmp_path / "pins", V36.llvm)
    file = str(tmp_path / "pins" / "llvm-hash.txt")
    assert here.llvm("--triton", file)[0] == V36.llvm
    assert here.llvm("--triton", str(tmp_path / "pins"))[0] == V36.llvm
    code, _, said = here.call("build", "triton", "--triton", file)
    assert code == 4
    assert "[not-a-triton]" in said
    for other in (("--aotriton", "0.13b"), ("--source", f"llvm=https://github.com/llvm/llvm-project@{UNKNOWN}")):
        assert here.call("plan", "llvm", "--triton", file, *other)[0] == 4


def test_version_is_compared_with_other_options_for_triton(here: Here, tmp_path: Path) -> None:
    tree = tmp_path / "triton"
    head = triton_repository(tree, version="3.6.0", llvm=V36.llvm, tag="v3.6.0")
    release = aotriton_release("0.13b")
    beside = {
        "path": ("--source", f"triton={tree}"),
        "url": ("--source", f"triton={UPSTREAM}@{COMMIT}"),
        "wheel": ("--source", "triton=pypi:3.7.1"),
        "aotriton": ("--aotriton", "0.13b"),
    }
    good = [("3.6.0", "path"), (head, "path"), (COMMIT, "url"), (V37.commit, "wheel"), (release.triton, "aotriton")]
    bad = [("3.7.1", "path"), (COMMIT, "path"), ("3.7.1", "url"), ("3.6.0", "wheel"), (COMMIT, "wheel"),
           (COMMIT, "aotriton"), (str(tree), "url"), (str(tree), "aotriton")]  # fmt: skip
    for value, other in good:
        code, _, said = here.call("plan", "triton", "--triton", value, *beside[other])
        assert code == 0, (value, other, said)
    for value, other in bad:
        code, _, said = here.call("plan", "triton", "--triton", value, *beside[other])
        assert code == 4, (value, other, said)
    # The version is the same, but the LLVM differs, because main has the version of the last release for months.
    triton_repository(tree, version="3.6.0", llvm=V38.llvm, tag="v3.6.0")
    assert here.call("plan", "triton", "--triton", "3.6.0", *beside["path"])[0] == 4
    shutil.rmtree(tree / "cmake")
    (tree / "python" / "triton" / "__init__.py").unlink()
    code, _, said = here.call("plan", "triton", "--triton", "3.6.0", *beside["path"])
    assert code == 4
    assert "[triton-version-unproved]" in said


def test_path_in_configuration_is_relative_to_its_file(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pin of the same name in the current folder must not replace it."""
    beside = here.folder.parent / "conf"
    pin(beside, V36.llvm)
    (beside / "toolchain.toml").write_text('triton = "llvm-hash.txt"\n')
    pin(here.folder, V37.llvm)
    done = CliRunner().invoke(app, ["--config", "../conf/toolchain.toml", "plan", "llvm", "--json"])
    assert json.loads(done.stdout)["stages"][-1]["sources"][0]["ref"] == V36.llvm, done.stderr


def test_sources_from_all_origins_are_merged_by_name(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line replaces the source of the same name, and removes no other source."""
    llvm, triton = f"llvm=https://github.com/{V36.repository}@{V36.llvm}", f"triton={UPSTREAM}@{COMMIT}"
    (here.folder / "t.toml").write_text(f'source = ["{llvm}", "{triton}"]\n')
    monkeypatch.setenv("TOOLCHAIN_CONFIG", "t.toml")
    assert here.llvm() == (V36.llvm, V36.repository, "")

    def planned(*words: str, env: dict[str, str] | None = None) -> tuple[str, str, str]:
        code, found, said = here.call("plan", "triton", "--drop-binary", "libdevice", *words, env=env)
        assert code == 0, said
        refs = {source["name"]: source["ref"] for row in found["stages"] for source in row["sources"]}
        return refs["llvm"], refs["triton"], said

    other = f"llvm=https://github.com/a/b@{UNKNOWN}"
    assert planned() == (V36.llvm, COMMIT, "")
    ref, commit, said = planned("--source", other)
    assert (ref, commit) == (UNKNOWN, COMMIT)
    assert (triton in said, llvm in said, "t.toml" in said) == (True, False, True)
    ref, commit, said = planned("--source", f"triton={UPSTREAM}@{V37.commit}", env={"TOOLCHAIN_SOURCE": other})
    assert (ref, commit, "TOOLCHAIN_SOURCE" in said) == (UNKNOWN, V37.commit, True)


def test_deleted_current_folder_is_refused(here: Here) -> None:
    gone = here.folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    code, found, _ = here.call("plan", "llvm")
    os.chdir(here.folder)
    assert (code, found["id"]) == (3, "current-folder-deleted")


def test_plan_warns_of_inferred_llvm_and_binary_that_build_refuses(here: Here) -> None:
    asked = ("plan", "aotriton", "--aotriton", "0.13b", "--gpu", "gfx942")
    assert "inferred" in here.call(*asked)[2]
    named = ("--source", f"llvm=https://github.com/llvm/llvm-project@{V36.llvm}")
    assert "inferred" not in here.call(*asked, *named)[2], "nothing is inferred of an LLVM that was named"
    assert "inferred" not in here.call(*asked, "--source", "triton=pypi:triton==3.7.1")[2], (
        "a wheel of Triton needs no LLVM"
    )
    wheel = ("plan", "triton", "--source", "triton=pypi:3.7.1")
    assert "--allow-binary triton-wheel" in here.call(*wheel)[2]
    assert "warning" not in here.call(*wheel, "--allow-binary", "triton-wheel")[2]
