"""Whose signature counts, for the verbs that check one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from toolchain import console
from toolchain.cli.config_file import KEY, PUBLIC_KEY

# Not for people: a flag is the way to the variable and the file, where `key` was once for these verbs too.
FormerKeyOpt = Annotated[Path | None, typer.Option("--former-key", envvar=KEY.variable, hidden=True)]


def chosen(given: Path | None, former: Path | None) -> Path | None:
    """The key that was given, else, with a note, what is the key of `publish` and was once taken for both."""
    if given is not None or former is None:
        return given
    by_variable = bool(os.environ.get(KEY.variable))
    said, better = (KEY.variable, PUBLIC_KEY.variable) if by_variable else (f"`{KEY.name}`", f"`{PUBLIC_KEY.name}`")
    told = "says here whose signature counts, as it did before"
    console.note(f"{said}, the private key of `publish`, {told}: say {better} instead")
    return former
