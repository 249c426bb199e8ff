"""What the lab registers."""

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


def test_the_tool_knows_the_verbs_by_name() -> None:
    assert tuple(verb.name for verb in PLUGIN.verbs) == plugins.LAB_VERBS


def test_its_hooks_are_there() -> None:
    check: KernelCheck = build_check
    assert plugins.hook("check", "") is check
    assert callable(plugins.hook("inspect_wheel", ""))
