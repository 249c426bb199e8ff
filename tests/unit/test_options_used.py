"""Tests that each declared option is used, and that no verb accepts an option that it ignores."""

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
from toolchain.cli.verbs import all_verbs, lazy
from toolchain.request.model import Request, options

PACKAGE = Path(__file__).resolve().parents[2] / "toolchain"
FIELDS = {declared.field: declared for declared in options()}
WHEEL = ("--source", "triton=pypi:3.7.1", "--allow-binary", "triton-wheel")
# Together, these calls read all options on which plans and sources depend. `fetch` and `bundle export` make the same
# plans as `plan`.
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
# This option is read only if a source of AOTriton or Triton has been fetched.
LATER = {"drop_binary"}


VERBS: dict[str, Any] = {verb.name: lazy(verb).loaded for verb in all_verbs()}


def attributes_read(package: Path) -> set[str]:
    """Return the names of all attributes in the package, except in the modules that declare and make requests."""
    found = set()
    for path in package.rglob("*.py"):
        if path.relative_to(package).as_posix() not in {"request/model.py", "cli/build_options.py"}:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return found


def test_every_option_of_a_request_is_used_somewhere(tmp_path: Path) -> None:
    of_making = {"locked", "lock_file", "glibc"}  # these are used when a request is made
    assert FIELDS.keys() - of_making - attributes_read(PACKAGE) == set()
    (tmp_path / "module.py").write_text("def use(request):\n    return request.jobs\n")
    assert attributes_read(tmp_path) == {"jobs"}, "an option that nothing reads is found"


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


@pytest.mark.parametrize("verb", ["plan", "fetch", "lock", "bundle export"])
def test_verb_without_a_build_has_no_build_options(verb: str) -> None:
    offered = {parameter.name for parameter in VERBS[verb].params}
    assert not offered & {"jobs", "runner", "fresh", "scheduler", "kernel_store", "contract"}


CAMPAIGN = [option.flag for option in options() if option.campaign]


@pytest.mark.parametrize("flag", CAMPAIGN)
def test_error_for_a_campaign_option_of_build_names_the_right_verb(flag: str) -> None:
    done = CliRunner().invoke(app, ["build", "kernels", flag, "1"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "toolchain kernels run" in done.stderr
    assert flag in {name for one in VERBS["kernels run"].params for name in one.opts}


def test_build_reads_no_option_that_it_does_not_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[Request] = []
    monkeypatch.setattr("toolchain.cli.build_cmd.build_stages", lambda request, *_, **__: asked.append(request))
    (tmp_path / "toolchain.toml").write_text('select = "attn*"\nkernel-memory = 4000\njobs = 3\n')
    monkeypatch.setenv("TOOLCHAIN_LIMIT", "4")
    monkeypatch.setenv("TOOLCHAIN_SHARD", "1/2")
    for words in (["build", "kernels"], ["kernels", "run"]):
        CliRunner().invoke(app, [*words, *WHEEL, "--cache", str(tmp_path / "cache")], env={"TOOLCHAIN_SHARD": ""})
    read = [(one.select, one.kernel_memory, one.limit, one.jobs) for one in asked]
    assert read == [(None, None, None, 3), ("attn*", 4000, 4, 3)]


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
    assert re.search(r"\[(options-exclude|option-needs-option)\]", done.stderr)
