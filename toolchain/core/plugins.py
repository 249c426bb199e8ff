"""Plugins: other distributions that add verbs and the check of kernels.

A plugin is an entry point of the group `toolchain.plugins` that names a `Plugin`. Plugins are looked up only for an
unknown verb, a check, help and completion, because the import of `importlib.metadata` takes 30 ms.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from toolchain import __version__
from toolchain.core.errors import ConfigError

GROUP = "toolchain.plugins"
LAB = "toolchain-lab"
# By a path, because the Python index does not have it, and another project may take the name there.
INSTALL = f"To install {LAB}, run `pip install ./lab` in a checkout of the tool"
# The verbs of the package LAB, which are named in messages if it is not installed.
LAB_VERBS = ("audit", "report", "emulate", "kernels check", "kernels diff", "kernels try")
Hook = Literal["check", "inspect_wheel"]


@dataclass(frozen=True)
class Verb:
    """A verb.

    Args:
        name: the word that users type, after the group's name if it has one.
        function: `module:function`; its docstring is the help of the verb. A module without a dot is in `cli/`.
        brief: its line in the list of verbs.
        engine: whether it runs containers, so that an ordinary user's process must enter a user namespace.
    """

    name: str
    function: str
    brief: str
    engine: bool = False


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The additions of a distribution.

    Args:
        check: a module with the functions of `stages.kernel_check.KernelCheck`; empty for none.
        inspect_wheel: `module:function` that `inspect` calls for a wheel; empty for none.
    """

    verbs: tuple[Verb, ...] = ()
    check: str = ""
    inspect_wheel: str = ""


@functools.cache
def plugins() -> tuple[Plugin, ...]:
    """Return the installed plugins."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    found = []
    for entry in entry_points(group=GROUP):
        name = entry.dist.name if entry.dist is not None else entry.name
        fix = f"install the {name} of toolchain {__version__}, or uninstall it"
        try:
            plugin = entry.load()
        except Exception as error:
            missing = isinstance(error, ImportError) and error.name
            why = f"it needs the module {missing}" if missing else f"its code failed: {error}"
            raise ConfigError("plugin-unloadable", f"the plugin {name} cannot be loaded", why=why, fix=fix) from error
        if not isinstance(plugin, Plugin):
            raise ConfigError(
                "plugin-unloadable",
                f"the plugin {name} cannot be loaded",
                why=f"{entry.value} is not a Plugin",
                fix=fix,
            )
        found.append(plugin)
    return tuple(found)


def load(function: str) -> Any:
    """Import and return `module:object` or `module`."""
    module, _, name = function.partition(":")
    imported = import_module(module)
    return getattr(imported, name) if name else imported


def hook(name: Hook, user: str) -> Any:
    """Return the first plugin's object for a hook.

    Args:
        user: the feature that needs it, for the message.
    """
    for plugin in plugins():
        if function := getattr(plugin, name):
            return load(function)
    raise ConfigError("lab-missing", f"{user} needs the package {LAB}", why="it is not installed", fix=INSTALL)
