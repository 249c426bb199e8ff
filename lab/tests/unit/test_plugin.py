"""Tests of the plugin that the lab registers."""

from __future__ import annotations

from importlib.metadata import entry_points

from toolchain.core import plugins
from toolchain.stages.kernel_check import KernelCheck
from toolchain_lab.numbers import build_check
from toolchain_lab.plugin import PLUGIN


def test_the_entry_point_names_the_plugin() -> None:
    (entry,) = [entry for entry in entry_points(group=plugins.GROUP) if entry.value.startswith("toolchain_lab")]
    assert entry.load() is PLUGIN
    assert entry.dist is not None
    assert entry.dist.name == plugins.LAB


def test_plugin_verbs_match_the_list_in_the_tool() -> None:
    assert tuple(verb.name for verb in PLUGIN.verbs) == plugins.LAB_VERBS


def test_plugin_provides_the_check_and_inspect_wheel_hooks() -> None:
    check: KernelCheck = build_check
    assert plugins.hook("check", "") is check
    assert callable(plugins.hook("inspect_wheel", ""))
