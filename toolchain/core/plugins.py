"""Load plugins, which can add verbs, the check of kernels, and the inspection of wheels.

A plugin is a distribution with an entry point in the group `toolchain.plugins` that refers to a `Plugin` object.
Plugins are looked up only when they are needed, because importing `importlib.metadata` takes 30 ms.
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
# The command installs from a path, because the package is not on PyPI, where somebody else could register its name.
INSTALL = f"To install {LAB}, run `pip install ./lab` in a checkout of the tool"
# These are the verbs that the package LAB adds, for the error message if LAB is not installed.
LAB_VERBS = ("audit", "report", "emulate", "kernels check", "kernels diff", "kernels try")
Hook = Literal["check", "inspect_wheel"]


@dataclass(frozen=True)
class Verb:
    """A verb of the command line.

    Args:
        name: the words that users type, such as `build` or `kernels run`.
        function: `module:function`; the function's docstring is the help of the verb. A module name without a dot
            refers to a module in `cli/`.
        engine: whether the verb runs containers.
    """

    name: str
    function: str
    brief: str
    engine: bool = False


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The parts that a distribution adds to the tool.

    Args:
        check: the module with the functions of `stages.kernel_check.KernelCheck`; empty if there is none.
        inspect_wheel: `module:function` that `inspect` calls for a wheel; empty if there is none.
    """

    verbs: tuple[Verb, ...] = ()
    check: str = ""
    inspect_wheel: str = ""


@functools.cache
def plugins() -> tuple[Plugin, ...]:
    """Return the installed plugins; raise a ConfigError if one cannot be loaded or is not a `Plugin`."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - the import takes 30 ms

    found = []
    for entry in entry_points(group=GROUP):
        name = entry.dist.name if entry.dist is not None else entry.name
        fix = f"install the {name} that belongs to toolchain {__version__}, or uninstall it"
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
    """Import and return the object that `function` names as `module:object`, or the module if there is no colon."""
    module, _, name = function.partition(":")
    imported = import_module(module)
    return getattr(imported, name) if name else imported


def hook(name: Hook, user: str) -> Any:
    """Return the object that a plugin provides for a hook.

    Raise a ConfigError if no plugin provides one, or if a plugin cannot be loaded.

    Args:
        user: the feature that needs the plugin, for the error message.
    """
    for plugin in plugins():
        if function := getattr(plugin, name):
            return load(function)
    raise ConfigError("lab-missing", f"{user} needs the package {LAB}", why="it is not installed", fix=INSTALL)
