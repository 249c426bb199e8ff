"""Defaults of options from toolchain.toml and the environment, by verb."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.cli.approval import Settings, settings
from toolchain.cli.verbs import tree

DEFAULT = "toolchain.toml"
# Parameters that a verb does not take from the file although a key has their name. They mean something else; whom
# `verify` trusts and what it accepts must not be decided by a file; and `pins` takes one option at a time.
NOT_FROM_FILE: Mapping[str, tuple[str, ...]] = {
    "audit": ("gpu", "kernel_timeout", "key", "source"),
    "bundle export": ("dest",),
    "kernels check": ("gpu", "jobs", "source"),
    "kernels diff": ("gpu",),
    "kernels try": ("kernel_timeout", "source"),
    "lock": ("check",),
    "pins": ("aotriton", "triton"),
    "pytorch": ("gpu", "patch", "rocm"),
    "verify": ("allow_binary", "public_key"),
}


def read_settings(config: Path | None) -> Settings | None:
    """The file of option values: the named one, otherwise `toolchain.toml` in the current folder, if any.

    Raises:
        ConfigError: the file cannot be used.
    """
    # A file that exists but cannot be read is an error: a dangling symlink must not silently mean the defaults.
    chosen = config or (Path(DEFAULT) if os.path.lexists(DEFAULT) else None)
    return settings(chosen, named=config is not None) if chosen is not None else None


def defaults(file: Settings | None) -> dict[str, Any] | None:
    """The values by verb and parameter, as Typer takes them."""
    values = dict(file.values) if file is not None else {}
    for name, pairs in pairs_from_environment().items():
        values[name] = [*pairs, *beside(pairs, values.get(name, ()))]
    if not values:
        return None
    from toolchain.catalog.stages import CAMPAIGNS  # noqa: PLC0415 - most calls have no file

    by_verb = tree(values)
    for verb, names in NOT_FROM_FILE.items():
        group, _, name = verb.rpartition(" ")
        (by_verb[group] if group else by_verb)[name] = {key: values[key] for key in values.keys() - set(names)}
    if values.get("stage") not in CAMPAIGNS:
        # The stage of these verbs must have kernels; the file's stage is for the others.
        for verb in ("run", "worker"):
            by_verb["kernels"][verb] = {name: value for name, value in values.items() if name != "stage"}
    return by_verb


def beside(strong: Sequence[str], weak: Sequence[str]) -> list[str]:
    """The weaker NAME=VALUE pairs whose name no stronger pair has: they are used too."""
    named = {text.partition("=")[0] for text in strong}
    return [text for text in weak if text.partition("=")[0] not in named]


def pairs_from_environment() -> dict[str, list[str]]:
    """TOOLCHAIN_SOURCE, TOOLCHAIN_PATCH and the like by parameter: NAME=VALUE pairs, separated by spaces.

    Typer would split at every space, and paths may contain spaces. Here only a space before a known name splits.
    """
    if not any(name.startswith("TOOLCHAIN_") for name in os.environ):
        return {}
    from toolchain.request.model import options  # noqa: PLC0415 - for `toolchain --help` too

    pairs = {}
    for option in (declared.option for declared in options() if declared.option.kind == "pairs"):
        if text := os.environ.get(option.variable, "").strip():
            names = "|".join(map(re.escape, option.of)) or r"[^\s=]+"
            pairs[option.parameter] = re.split(rf"\s+(?=(?:{names})=)", text)
    return pairs
