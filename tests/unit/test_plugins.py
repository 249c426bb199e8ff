"""Plugins: their verbs and hooks, and the errors if a plugin is missing or broken."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests import small_plugin
from toolchain.cli.app import app
from toolchain.core import plugins
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, NumbersError
from toolchain.request.model import Request
from toolchain.stages import kernel_check

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that makes the given objects the entry points of all plugins."""

    def only(*values: str) -> None:
        found = [EntryPoint(f"plugin{at}", value, plugins.GROUP) for at, value in enumerate(values)]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)

    plugins.plugins.cache_clear()
    yield only
    plugins.plugins.cache_clear()


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr("sys.argv", ["toolchain", *words])
    return CliRunner().invoke(app, list(words))


def test_plugin_adds_verbs_to_their_groups(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("tests.small_plugin:PLUGIN")
    assert call(monkeypatch, "greet").stdout == "hello\n"
    assert call(monkeypatch, "kernels", "weigh").stdout == "1 kg\n"
    assert "greet" in call(monkeypatch, "--help").stdout
    assert "weigh" in call(monkeypatch, "kernels", "--help").stdout
    assert call(monkeypatch, "weigh").exit_code == 2, "it is one of another group"


@pytest.mark.parametrize("verb", plugins.LAB_VERBS)
def test_lab_verb_without_its_package_names_the_package(
    verb: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    done = call(monkeypatch, *verb.split(), "x", "--json")
    assert done.exit_code == 2
    told = json.loads(done.stdout)
    assert (told["error"], told["exit_code"]) == ("Usage", 2)
    assert plugins.LAB in told["what"]
    assert call(monkeypatch, "--help").exit_code == 0


@pytest.mark.parametrize("hook", ["check", "inspect_wheel"])
def test_hook_without_plugin_is_refused(hook: plugins.Hook, install: Install) -> None:
    install()
    with pytest.raises(ConfigError) as caught:
        plugins.hook(hook, "it")
    assert plugins.LAB in caught.value.fix


@pytest.mark.parametrize("value", ["tests.no_such_module:PLUGIN", "tests.small_plugin:ROW", "tests.small_plugin:NONE"])
def test_broken_plugin_fails_only_its_own_hooks_and_verbs(
    value: str, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(value)
    with pytest.raises(ConfigError):
        plugins.hook("check", "--check")
    assert call(monkeypatch, "--help").exit_code == 0
    assert call(monkeypatch, "greet").exit_code == 2
    assert call(monkeypatch, "pins", "--triton", "3.7.1").exit_code == 0


def test_a_wrong_kernel_fails_a_build(install: Install, tmp_path: Path) -> None:
    install("tests.small_plugin:PLUGIN")
    kernel_check.require_check()
    assert small_plugin.required
    with pytest.raises(NumbersError) as caught:
        kernel_check.check_files([], Request(cache=Cache(tmp_path), check=0), label="a place", jobs=1)
    assert small_plugin.ROW["reason"] in caught.value.why
