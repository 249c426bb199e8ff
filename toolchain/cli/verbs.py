"""The verbs: where each one's function is, and the line that `--help` has for it. A verb is loaded when it is run."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from toolchain import console
from toolchain.cli.values import NEVER_EMPTY, empty_variable, take_as_given

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Verb:
    """One verb.

    Args:
        name: as it is typed; of a group with the group's name in front.
        function: `module:function`; its docstring is the help of the verb itself.
        brief: its line in the list of verbs.
        engine: whether it works with containers, for which an ordinary user's process goes into a namespace of its own.
    """

    name: str
    function: str
    brief: str
    engine: bool = False


GROUPS = {
    "kernels": "Compile the FlashAttention kernels, and show how far they are.",
    "bundle": "Carry all inputs of a build to a machine without a network.",
    "cache": "Show what the tool's own folder holds, and free disk.",
}
VERBS = (
    Verb("init", "toolchain.cli.init_cmd:init", "Write toolchain.toml, so that options need not be typed again."),
    Verb("trust", "toolchain.cli.init_cmd:trust", "Approve the toolchain.toml of a folder."),
    Verb("doctor", "toolchain.cli.doctor_cmd:doctor", "Look for what is missing on this machine, and how to mend it."),
    Verb("pins", "toolchain.cli.pins_cmd:pins", "Show which LLVM a Triton, AOTriton or PyTorch version is pinned to."),
    Verb("plan", "toolchain.cli.plan_cmd:plan", "Show what would be built and what is already here."),
    Verb("fetch", "toolchain.cli.plan_cmd:fetch", "Bring the sources of a stage into the store."),
    Verb("lock", "toolchain.cli.lock_cmd:lock", "Write toolchain.lock: every input of a stage, by digest."),
    Verb("build", "toolchain.cli.build_cmd:build", "Build a stage and all below it.", engine=True),
    Verb("shell", "toolchain.cli.shell_cmd:shell", "Open a shell where a stage is built.", engine=True),
    Verb("images", "toolchain.cli.images_cmd:images", "List the images that are finished here."),
    Verb("publish", "toolchain.cli.publish_cmd:publish", "Push images and verify each; attach SBOM and provenance."),
    Verb("verify", "toolchain.cli.verify_cmd:verify", "Check an image: bytes, signature, provenance, SBOM, policy."),
    Verb("keygen", "toolchain.cli.publish_cmd:keygen", "Make a key for `publish --key`."),
    Verb(
        "reproduce",
        "toolchain.cli.reproduce_cmd:reproduce_image",
        "Build an image again and compare the bytes.",
        engine=True,
    ),
    Verb("inspect", "toolchain.cli.images_cmd:inspect", "Show what an image holds."),
    Verb("audit", "toolchain.cli.audit_cmd:audit", "Say which GPUs, kernels and compilers are in what others made."),
    Verb("report", "toolchain.cli.report_cmd:report", "Write a page of a build, a campaign, a comparison or an audit."),
    Verb("pytorch", "toolchain.cli.pytorch_cmd:pytorch", "Show which AOTriton a PyTorch takes, and what serves it."),
    Verb("emulate", "toolchain.cli.emulate_cmd:emulate", "Run an AMD code object on the CPU, without a GPU."),
    Verb("kernels run", "toolchain.cli.build_cmd:kernels_run", "Compile the FlashAttention kernels.", engine=True),
    Verb(
        "kernels merge",
        "toolchain.cli.build_cmd:kernels_merge",
        "Join what `--shard` runs compiled: ledger, packs and image.",
        engine=True,
    ),
    Verb(
        "kernels worker",
        "toolchain.cli.build_cmd:kernels_worker",
        "Compile kernels for the campaigns of a Dask scheduler.",
        engine=True,
    ),
    Verb(
        "kernels check",
        "toolchain.cli.check_cmd:kernels_check",
        "Check the numbers of compiled kernels, without a GPU.",
    ),
    Verb(
        "kernels diff",
        "toolchain.cli.diff_cmd:kernels_diff",
        "Compare the kernels of two builds: registers, spills, waves that fit.",
    ),
    Verb("kernels try", "toolchain.cli.try_cmd:kernels_try", "Compile one kernel by another Triton, and compare it."),
    Verb(
        "kernels cached",
        "toolchain.cli.cached_cmd:kernels_cached",
        "Say whether Triton in an image would find the kernels of a cache.",
        engine=True,
    ),
    Verb("kernels status", "toolchain.cli.kernels_cmd:kernels_status", "Show how many kernels are done."),
    Verb("bundle export", "toolchain.cli.bundle_cmd:bundle_export", "Write all inputs of a build as one OCI artifact."),
    Verb("bundle import", "toolchain.cli.bundle_cmd:bundle_import", "Fill the cache from a bundle."),
    Verb("cache ls", "toolchain.cli.cache_cmd:cache_ls", "List the content of the cache by size and last use."),
    Verb("cache prune", "toolchain.cli.cache_cmd:cache_prune", "Remove what was not used for long.", engine=True),
)


class _Command(TyperCommand):
    """A verb that is loaded."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does, with the readers of `values`."""
        take_as_given(self.get_params(ctx))
        rest = super().parse_args(ctx, args)
        for parameter in self.get_params(ctx):
            _check_variable(ctx, parameter)
        return rest


def _check_variable(ctx: Any, parameter: Any) -> None:
    """Refuse a variable about keys and signatures that is set and empty: a missing secret must not skip a check."""
    variable = parameter.envvar
    if variable not in NEVER_EMPTY or os.environ.get(variable, "-").strip():
        return
    source = ctx.get_parameter_source(parameter.name)
    if source is None or source.name != "COMMANDLINE":
        error = empty_variable(variable)
        console.failure(error, as_json=any(ctx.params.get(name) for name in ("json", "json_")))
        raise typer.Exit(error.code)


class LazyCommand(TyperCommand):
    """A verb in the list of verbs: it has a name and a line. What it takes and does is loaded when it is called."""

    function: ClassVar[str]
    engine: ClassVar[bool] = False

    @cached_property
    def loaded(self) -> TyperCommand:
        """The verb itself."""
        from toolchain.cli.failing import handled  # noqa: PLC0415 - for a verb that runs

        module, _, name = self.function.partition(":")
        alone = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)
        verb = getattr(import_module(module), name)
        alone.command(self.name, cls=_Command, context_settings=dict(self.context_settings))(
            handled(_in_namespace(verb) if self.engine else verb)
        )
        command = typer.main.get_command(alone)
        assert isinstance(command, TyperCommand)  # noqa: S101 - one function makes one
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """The context of the verb itself, so that its options are parsed and its help is shown."""
        return self.loaded.make_context(*args, **kwargs)


def _in_namespace(verb: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(verb)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if os.geteuid() != 0:
            from toolchain.engine.namespace import enter  # noqa: PLC0415 - root needs none

            enter()
        return verb(*args, **kwargs)

    return wrapper


_UsageError: Any = typer.BadParameter.__base__  # Typer gives it no name of its own


class Group(TyperGroup):
    """The list of verbs, and the options in front of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does, with the readers of `values`."""
        take_as_given(self.get_params(ctx))
        console.begin()
        with _as_data():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """The verb, whose own options are read here too."""
        with _as_data():
            return super().invoke(ctx)


@contextlib.contextmanager
def _as_data() -> Iterator[None]:
    """With `--json` a command line that cannot be read is told as data too; Typer tells people."""
    try:
        yield
    except _UsageError as error:
        if "--json" in sys.argv:
            named = error.ctx.command_path if error.ctx is not None else "toolchain"
            console.error_data(
                {"error": "Usage", "exit_code": error.exit_code, "what": error.format_message(), "why": "",
                 "fix": f"{named} --help"}
            )  # fmt: skip
        raise


def register(app: typer.Typer, group: str = "") -> None:
    """Give an app the verbs of a group; with the empty name those at the top, and the groups."""
    for verb in VERBS:
        above, _, name = verb.name.rpartition(" ")
        if above == group:
            kind = type("Lazy", (LazyCommand,), {"function": verb.function, "engine": verb.engine})
            app.command(name, cls=kind, short_help=verb.brief)(_stub())
    for name, text in GROUPS.items() if not group else ():
        inner = typer.Typer(no_args_is_help=True, help=text)
        register(inner, name)
        app.add_typer(inner, name=name)


def _stub() -> Callable[[], None]:
    def verb() -> None:
        """Never called: `LazyCommand.make_context` puts the verb itself in its place."""

    return verb


def tree(value: Any) -> dict[str, Any]:
    """`value` for every verb, as nested as the verbs are."""
    found: dict[str, Any] = {}
    for verb in VERBS:
        above, _, name = verb.name.rpartition(" ")
        (found.setdefault(above, {}) if above else found)[name] = value
    return found
