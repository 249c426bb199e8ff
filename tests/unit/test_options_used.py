"""No option is declared for nothing, and no verb takes one that it does not use."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.request_fixtures import with_base
from toolchain.cli.app import app
from toolchain.cli.config_file import OF_VERBS, file_options
from toolchain.cli.defaults import NOT_FROM_FILE
from toolchain.cli.verbs import all_verbs, lazy
from toolchain.request.model import Request, options
from toolchain.request.options import PANELS

PACKAGE = Path(__file__).resolve().parents[2] / "toolchain"
FIELDS = {declared.field: declared.option for declared in options()}
WHEEL = ("--source", "triton=pypi:3.7.1", "--allow-binary", "triton-wheel")
# Together they ask for everything that plans and sources depend on. `fetch` and `bundle export` plan as `plan` does.
CALLS: dict[str, list[tuple[str, ...]]] = {
    "plan": [
        ("triton", "--triton", "3.7.1", "--python", "3.13", "--allow-binary", "libdevice"),
        ("kernels", *WHEEL, "--keep-going", "--kernel-timeout", "9", "--kernel-memory", "4000", "--base", "debian13"),
        ("wheels", *WHEEL, "--base", "debian13"),
        ("triton-cache", *WHEEL, "--base", "debian13"),
        ("aotriton", "--aotriton", "0.13b", "--gpu", "gfx942"),
        ("hip",),
    ],
    "lock": [
        ("kernels", *WHEEL, "--offline"),
        ("wheels", *WHEEL, "--offline"),
        ("triton-cache", *WHEEL, "--offline"),
        ("aotriton", "--aotriton", "0.13b", "--offline"),
        ("hip", "--offline"),
    ],
}
# Read where a source of AOTriton or Triton is here.
LATER = {"drop_binary"}


VERBS: dict[str, Any] = {verb.name: lazy(verb).loaded for verb in all_verbs()}


def attributes_read(package: Path) -> set[str]:
    """The names of all attributes that are read somewhere, but for where a request is declared and made."""
    found = set()
    for path in package.rglob("*.py"):
        if path.relative_to(package).as_posix() not in {"request.py", "cli/request.py"}:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return found


def test_every_option_of_a_request_is_used_somewhere(tmp_path: Path) -> None:
    of_making = {"locked", "lock_file", "glibc"}  # used where the request is made
    assert FIELDS.keys() - of_making - attributes_read(PACKAGE) == set()
    (tmp_path / "module.py").write_text("def use(request):\n    return request.jobs\n")
    assert attributes_read(tmp_path) == {"jobs"}, "an option that nothing reads is found"


def test_every_other_option_of_the_file_is_one_of_a_verb() -> None:
    taken = {parameter.name for command in VERBS.values() for parameter in command.params}
    assert {option.parameter for option in OF_VERBS} - taken == set()


def test_the_file_sets_what_the_environment_sets() -> None:
    """An option that only has a key's name, such as `lock --check`, is not set by the file."""
    keys = {option.parameter: option for option in file_options() if option.environment}
    alike = {
        verb: {
            one.name for one in command.params
            if one.name in keys and not one.envvar and f"[env var: {keys[one.name].variable}]" not in (one.help or "")
        }
        for verb, command in VERBS.items() if verb != "init"
    }  # fmt: skip
    alike["verify"] = {"allow_binary", "public_key"}  # a file must not decide whom it trusts
    assert {verb: set(names) for verb, names in NOT_FROM_FILE.items()} == {
        verb: names for verb, names in alike.items() if names
    }


def test_a_check_of_builds_in_the_file_does_not_keep_lock_from_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toolchain.toml").write_text('check = "1"\n')
    done = CliRunner().invoke(app, ["lock", "base", "--open-base", "--cache", str(tmp_path / "cache")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "toolchain.lock").is_file()


@pytest.mark.parametrize("verb", CALLS)
def test_a_verb_reads_the_options_that_it_takes(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read: set[str] = set()
    plain = Request.__getattribute__

    def noted(self: Request, name: str) -> Any:
        asked = sys._getframe(1).f_globals.get("__name__")
        if name in FIELDS and asked != "dataclasses":
            read.add(name)
        return plain(self, name)

    monkeypatch.setattr(Request, "__getattribute__", noted)
    with_base(tmp_path / "cache")
    for words in CALLS[verb]:
        CliRunner().invoke(app, [verb, *words, "--cache", str(tmp_path / "cache")])
    offered = {parameter.name for parameter in VERBS[verb].params}
    unread = {field for field, option in FIELDS.items() if option.parameter in offered} - read
    assert unread <= LATER


def test_fetch_and_bundle_export_take_what_plan_takes() -> None:
    own = {"json", "stage", "dest", "ref", "ctx"}
    plan, *others = ({one.name for one in VERBS[verb].params} - own for verb in ("plan", "fetch", "bundle export"))
    assert all(other == plan | {"mirror"} for other in others)


@pytest.mark.parametrize("verb", ["plan", "fetch", "lock", "bundle export"])
def test_what_builds_nothing_does_not_ask_how_to_build(verb: str) -> None:
    offered = {parameter.name for parameter in VERBS[verb].params}
    assert not offered & {"jobs", "runner", "fresh", "scheduler", "kernel_store", "contract"}


def test_the_help_of_a_build_has_its_options_under_panels_in_order() -> None:
    panels = [parameter.rich_help_panel for parameter in VERBS["build"].params if parameter.name != "ctx"]
    named = [panel for panel in panels if panel in PANELS]
    assert named == sorted(named, key=PANELS.index)
    assert set(named) == set(PANELS)


def test_build_has_at_most_28_options_and_takes_the_others_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(one.param_type_name == "option" for one in VERBS["build"].params) <= 26
    monkeypatch.chdir(tmp_path)
    asked: list[Request] = []
    monkeypatch.setattr("toolchain.cli.build_cmd.build_stages", lambda request, *_, **__: asked.append(request))
    (tmp_path / "toolchain.toml").write_text('select = "attn*"\nkernel-memory = 4000\n')
    monkeypatch.setenv("TOOLCHAIN_KERNEL_MEMORY", "5000")
    monkeypatch.setenv("TOOLCHAIN_SHARD", "1/2")
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("TOOLCHAIN_KERNEL_STORE", str(tmp_path / "store"))  # which a shard needs
    CliRunner().invoke(app, ["build", "kernels", *WHEEL, "--cache", str(tmp_path / "cache")])
    assert [(one.select, one.kernel_memory, one.shard) for one in asked] == [("attn*", 5000, (1, 2))]
    for name, value in (
        ("TOOLCHAIN_KERNEL_MEMORY", "many"),
        ("TOOLCHAIN_KERNEL_MEMORY", "1"),
        ("TOOLCHAIN_KERNEL_KEY", ""),
    ):
        monkeypatch.setenv(name, value)
        assert CliRunner().invoke(app, ["build", "kernels", *WHEEL]).exit_code == 3
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "words",
    [
        ("lock", "base", "--check", "--open-base"),
        ("cache", "prune", "image", "--unfinished"),
        ("audit", "place", "--source", "."),
        ("audit", "place", "--triton-wheel", "3.7.1"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*words, "--cache", str(tmp_path / "cache")])
    assert done.exit_code == 3
    assert re.search(r"(--open-base|--unfinished|--source).* (exclude each other|need --rebuild)", done.stderr)
