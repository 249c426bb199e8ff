"""`init` writes option values to toolchain.toml; `trust` approves such a file."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from toolchain.catalog.bases import base_recipe
from toolchain.cli.approval import approve, by_option, harmless, revoke
from toolchain.cli.config_file import file_options, read_content, read_values, render, write_new
from toolchain.cli.defaults import DEFAULT
from toolchain.cli.options import parameter
from toolchain.cli.request import file_of, make_request, origin_of
from toolchain.core import console, toml_text
from toolchain.core.errors import ConfigError
from toolchain.core.locks import in_use
from toolchain.oci.reference import parse_place
from toolchain.request.model import options
from toolchain.request.options import Declared


def _with_file_options(verb: Callable[[typer.Context, dict[str, Any]], None]) -> Callable[..., None]:
    """Give the verb every option that the file may hold. Environment variables are not read: they apply anyway."""
    of_request = {declared.option.name: declared for declared in options()}
    offered = [
        parameter(of_request.get(option.name, Declared(option.parameter, option, None)), environment=False)
        for option in file_options()
    ]

    def command(ctx: typer.Context, **given: Any) -> None:
        # Defaults are not written: they may change in a later version.
        typed = {name: value for name, value in given.items() if origin_of(ctx, name) == "COMMANDLINE"}
        verb(ctx, typed)

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    command.__signature__ = inspect.Signature([context, *offered])  # type: ignore[attr-defined] # what Typer reads
    command.__annotations__ = {option.name: option.annotation for option in (context, *offered)}
    command.__doc__ = verb.__doc__
    return command


@_with_file_options
def init(ctx: typer.Context, given: dict[str, Any]) -> None:
    """Write the given options to toolchain.toml, and all others as comments.

    `plan`, `build`, `publish` and `lock` then need no options, and with --stage no stage. An existing file is not
    overwritten; `--config FILE` names another one. The written file is approved (see `toolchain trust`).
    """
    path = file_of(ctx)
    _check(given)
    written = render(given, path.parent)
    write_new(path, written)
    _approve_own(path, written.encode())
    words = ["toolchain", *([] if path == Path(DEFAULT) else ["--config", str(path)]), "plan"]
    console.text(str(path), "written", f"{len(given)} options set")
    console.note(f"next: {shlex.join(words)}")


def _approve_own(path: Path, content: bytes) -> None:
    """Approve the file that the user wrote, if it needs approval."""
    values = by_option(read_values(path, content))
    if any(not harmless(name, value) for name, value in values.items()):
        try:
            approve(path, content, values)
        except ConfigError as error:
            console.warn(f"{error.what}: {error.why}")


def trust(
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="The file to approve.", show_default=DEFAULT)] = None,
    take_back: Annotated[bool, typer.Option("--revoke", help="Revoke the approval.")] = False,
) -> None:
    """Approve a toolchain.toml, so that all of its values are used.

    Without approval, options in ./toolchain.toml that decide whom a build trusts, which inputs it accepts and where it
    writes are ignored. Read the file first. The approval is for this path and content, and for the key files that it
    names: after a change, approve again. Approvals are stored in `$XDG_STATE_HOME/toolchain`.
    """
    path = file or file_of(ctx)
    if take_back:
        console.text(str(path), "approval revoked" if revoke(path) else "not approved")
        return
    content = read_content(path)
    values = by_option(read_values(path, content))
    approve(path, content, values)
    for name, value in values.items():
        if not harmless(name, value):
            console.text(f"{name} = {toml_text.value(value)}")
    console.note(f"{path} is approved")


def _check(given: Mapping[str, Any]) -> None:
    """Refuse values that no verb would accept. The lock file and the destination need not exist yet."""
    of_request = {declared.option.parameter for declared in options()} - {"locked", "lock_file"}
    values = {name: value for name, value in given.items() if name in of_request}
    stage = given.get("stage", "")
    request = make_request(**values, target=stage)
    if stage:
        from toolchain.pipeline.plan import plan  # noqa: PLC0415 - without a stage there is nothing to plan

        with in_use(request.cache):
            plan(request, stage)
    elif request.base.recipe:
        base_recipe(request.base.recipe)
    for name in ("dest", "reuse_from"):
        if name in given:
            parse_place(given[name], f"--{name.replace('_', '-')}")
