"""What options are when the command line does not say: values of the file and of the environment, verb by verb."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolchain.cli.approval import Settings, settings
from toolchain.cli.verbs import tree

DEFAULT = "toolchain.toml"


def read_settings(config: Path | None) -> Settings | None:
    """The file of option values: the one that was named, otherwise `toolchain.toml` in the current folder, if any.

    Raises:
        ConfigError: the file cannot be used.
    """
    # Whatever is there is read, and refused where it cannot be: a dangling link is no reason to build the default.
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

    # `pins` answers one question at a time. Whom `verify` trusts, and what it accepts, no file of a folder decides.
    judged = {name: value for name, value in values.items() if name not in {"key", "public_key", "allow_binary"}}
    found = tree(values) | {"pins": {}, "verify": judged}
    if values.get("stage") not in CAMPAIGNS:
        # These work at kernels, whatever the verbs for all stages are to make.
        for verb in ("run", "worker"):
            found["kernels"][verb] = {name: value for name, value in values.items() if name != "stage"}
    return found


def beside(strong: Sequence[str], weak: Sequence[str]) -> list[str]:
    """Of the weaker NAME=VALUE those whose name no stronger one has: they count too."""
    named = {text.partition("=")[0] for text in strong}
    return [text for text in weak if text.partition("=")[0] not in named]


def pairs_from_environment() -> dict[str, list[str]]:
    """TOOLCHAIN_SOURCE, TOOLCHAIN_PATCH and their like by parameter: several NAME=VALUE with space between them.

    Typer would part them at every space, and paths may have some: only one before a name that is known parts here.
    """
    if not any(name.startswith("TOOLCHAIN_") for name in os.environ):
        return {}
    from toolchain.request import options  # noqa: PLC0415 - for `toolchain --help` too

    found = {}
    for option in (declared.option for declared in options() if declared.option.kind == "pairs"):
        if text := os.environ.get(option.variable, "").strip():
            names = "|".join(map(re.escape, option.of)) or r"[^\s=]+"
            found[option.parameter] = re.split(rf"\s+(?=(?:{names})=)", text)
    return found
