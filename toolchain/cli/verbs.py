"""The table of verbs, with the function and the `--help` line of each. A verb's module is imported on first use."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from toolchain.cli.parsing import Command, errors_as_data, read_lightly
from toolchain.core import console, plugins
from toolchain.core.errors import ConfigError
from toolchain.core.plugins import Verb

P = ParamSpec("P")
R = TypeVar("R")


GROUPS = {
    "kernels": "Compile FlashAttention kernels, and check and compare them.",
    "bundle": "Move all inputs of a build to a machine without a network.",
    "cache": "Show the size of the cache, and free disk space.",
}
VERBS = (
    Verb("doctor", "doctor_cmd:doctor", "Check this machine, and show how to fix what is missing."),
    Verb("pins", "pins_cmd:pins", "Show the LLVM that a Triton, AOTriton or PyTorch version pins."),
    Verb("plan", "plan_cmd:plan", "Show what would be built and what is already built."),
    Verb("fetch", "plan_cmd:fetch", "Download the sources of a stage."),
    Verb("lock", "lock_cmd:lock", "Write toolchain.lock: every input of a stage, by digest."),
    Verb("build", "build_cmd:build", "Build a stage and the stages it depends on.", engine=True),
    Verb("shell", "shell_cmd:shell", "Open a shell in the build container of a stage.", engine=True),
    Verb("images", "images_cmd:images", "List finished images."),
    Verb("publish", "publish_cmd:publish", "Push images, verify them, and attach SBOM and provenance."),
    Verb("verify", "verify_cmd:verify", "Verify an image: bytes, signature, provenance, SBOM, policy."),
    Verb("keygen", "publish_cmd:keygen", "Generate a key pair for `publish --key`."),
    Verb("reproduce", "reproduce_cmd:reproduce_image", "Rebuild an image and compare the bytes.", engine=True),
    Verb("inspect", "images_cmd:inspect", "Show what an image contains."),
    Verb("pytorch", "pytorch_cmd:pytorch", "Show which AOTriton a PyTorch needs, and what provides it."),
    Verb("kernels run", "build_cmd:kernels_run", "Compile the FlashAttention kernels.", engine=True),
    Verb(
        "kernels merge",
        "build_cmd:kernels_merge",
        "Assemble the results of `--shard` runs: ledger, packs and image.",
        engine=True,
    ),
    Verb(
        "kernels worker", "build_cmd:kernels_worker", "Compile kernels for campaigns of a Dask scheduler.", engine=True
    ),
    Verb(
        "kernels cached",
        "cached_cmd:kernels_cached",
        "Check whether Triton in an image would use a kernel cache.",
        engine=True,
    ),
    Verb("kernels status", "kernels_cmd:kernels_status", "Show the progress of kernel campaigns."),
    Verb("bundle export", "bundle_cmd:bundle_export", "Write all inputs of a build as one OCI artifact."),
    Verb("bundle import", "bundle_cmd:bundle_import", "Fill the cache from a bundle."),
    Verb("cache ls", "cache_cmd:cache_ls", "Show the size of the cache."),
    Verb("cache prune", "cache_cmd:cache_prune", "Remove entries that have not been used for a while.", engine=True),
)


class LazyCommand(TyperCommand):
    """A verb whose module is imported only when the verb's arguments are parsed."""

    function: ClassVar[str]
    engine: ClassVar[bool] = False

    @cached_property
    def loaded(self) -> TyperCommand:
        """Return the command of the verb, after importing its module."""
        from toolchain.cli.failing import handled  # noqa: PLC0415 - `toolchain --help` does not need it

        alone = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
        own = "." not in self.function.partition(":")[0]
        verb = plugins.load(f"toolchain.cli.{self.function}" if own else self.function)
        # Typer would keep the line breaks inside the paragraphs of the docstring, so they become spaces.
        help_text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(verb) or "")
        alone.command(self.name, cls=Command, help=help_text, context_settings=dict(self.context_settings))(
            handled(_in_namespace(verb) if self.engine else verb)
        )
        command = typer.main.get_command(alone)
        assert isinstance(command, TyperCommand)  # noqa: S101 - an app with one function is a command
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Return the context of the loaded command, so that its options are parsed and its help is shown."""
        return self.loaded.make_context(*args, **kwargs)


def _in_namespace(verb: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(verb)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if os.geteuid() != 0:
            from toolchain.engine.namespace import enter  # noqa: PLC0415 - root does not need it

            enter()
        return verb(*args, **kwargs)

    return wrapper


class Verbs(TyperGroup):
    """A group of verbs. Verbs of plugins are added when the verbs are listed, or when a verb is unknown."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a verb, or None if it is unknown; raise an error if its package is not installed."""
        if cmd_name not in self.commands:
            self._add_plugins(ctx)
        command, verb = super().get_command(ctx, cmd_name), f"{_above(ctx)}{cmd_name}"
        if command is None and verb in plugins.LAB_VERBS and not ctx.resilient_parsing:
            raise _NotInstalledError(verb, ctx=ctx)
        return command

    def list_commands(self, ctx: Any) -> list[str]:
        self._add_plugins(ctx)
        return super().list_commands(ctx)

    def _add_plugins(self, ctx: Any) -> None:
        """Add the verbs of plugins.

        If a plugin cannot be loaded, no verb is added, and a warning is printed unless `ctx.resilient_parsing` is set.
        """
        try:
            added = [verb for plugin in plugins.plugins() for verb in plugin.verbs]
        except ConfigError as error:
            if not ctx.resilient_parsing:
                console.warn(f"{error.what}: {error.why}; {error.fix}")
            return
        for verb in added:
            group, space, name = verb.name.rpartition(" ")
            if group + space == _above(ctx):
                self.commands.setdefault(name, lazy(verb))


def _above(ctx: Any) -> str:
    """Return the name of a group and a space; an empty string for the top level."""
    return f"{ctx.info_name} " if ctx.parent is not None else ""


class _NotInstalledError(typer.BadParameter):
    """The package that provides a verb is not installed."""

    def format_message(self) -> str:
        return f"`toolchain {self.message}` is a verb of {plugins.LAB}, which is not installed. {plugins.INSTALL}."


class Group(Verbs):
    """The top-level command: the global options and the list of verbs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        read_lightly(self, ctx)
        console.begin()
        with errors_as_data():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with errors_as_data():
            return super().invoke(ctx)


def register(app: typer.Typer, group: str = "") -> None:
    """Add the verbs of a group to an app; if `group` is empty, add the top-level verbs and all groups."""
    for verb in VERBS:
        above, _, name = verb.name.rpartition(" ")
        if above == group:
            app.command(name, cls=_kind(verb), short_help=verb.brief)(_not_loaded)
    for name, text in GROUPS.items() if not group else ():
        inner = typer.Typer(cls=Verbs, no_args_is_help=True, help=text)
        register(inner, name)
        app.add_typer(inner, name=name)


def _kind(verb: Verb) -> type[LazyCommand]:
    return type("Lazy", (LazyCommand,), {"function": verb.function, "engine": verb.engine})


def lazy(verb: Verb) -> LazyCommand:
    """Return a command that imports the module of a verb only when the verb's arguments are parsed."""
    alone = typer.Typer(add_completion=False)
    alone.command(verb.name.rpartition(" ")[2], cls=_kind(verb), short_help=verb.brief)(_not_loaded)
    command = typer.main.get_command(alone)
    assert isinstance(command, LazyCommand)  # noqa: S101 - an app with one function is a command
    return command


def _not_loaded() -> None:
    """Do nothing. Typer needs a function for each command, but `LazyCommand` calls the verb's own function instead."""


def all_verbs() -> tuple[Verb, ...]:
    return (*VERBS, *(verb for plugin in plugins.plugins() for verb in plugin.verbs))
