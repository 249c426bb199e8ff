"""docs/options.md: every option, who takes it, where it may be set, and what remembers it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from toolchain.cli.options import declaration_of
from toolchain.cli.verbs import all_verbs, lazy
from toolchain.request import model

_HEAD = """\
# Options

<!-- Made by `python -m scripts.site_pages` from the declarations in the code. Do not edit this page. -->

Every option of every verb. The command line overrides the environment, the environment overrides the file, and the
file overrides the default. The [file](reference/configuration.md) is the one that `toolchain --config FILE VERB` names,
otherwise `toolchain.toml` in the current folder. Its keys are the options without dashes. Options of
different names are never dropped: `--aotriton` and a `TOOLCHAIN_TRITON` that name different Tritons are refused.

"Set by" lists where an option can be set. The environment variable is `TOOLCHAIN_` and the name in capitals:
`--kernel-timeout` is `TOOLCHAIN_KERNEL_TIMEOUT`. "File" is a file that you name; "any file" is also a `toolchain.toml`
that merely lies in the current folder.

`--key` is the private key of `publish`, `--public-key` the key that signatures are verified with, and `--kernel-key`
the key of a kernel store; a private one also signs new results.

"Recorded" options decide what is built; records and provenance contain them. "Locked" options are kept in
`toolchain.lock`. "Verbs of builds" are `plan`, `fetch`, `lock`, `build`, `reproduce`, `kernels run` and
`bundle export`.

"""
_OF_BUILDS = ("plan", "fetch", "lock", "build", "reproduce", "kernels run", "bundle export")


@functools.cache
def commands() -> dict[str, Any]:
    """Every verb's Typer command, by name."""
    return {verb.name: lazy(verb).loaded for verb in all_verbs()}


def page(verbs: Mapping[str, Any]) -> str:
    """The page for these verbs."""
    rows: dict[tuple[str, str], list[str]] = {}
    by_flag: dict[tuple[str, str], Any] = {}
    for name, command in verbs.items():
        for one in command.params:
            if one.param_type_name == "option" and not one.hidden:
                key = (", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts)), one.help or "")
                rows.setdefault(key, []).append(name)
                by_flag.setdefault(key, one)
    for_builds: list[str] = []
    of_verbs: list[str] = []
    of_request = {option.flag for option in model.options()}
    for key, names in sorted(rows.items()):
        line = _row(key, names, by_flag[key])
        (for_builds if by_flag[key].opts[0] in of_request and "build" in names else of_verbs).append(line)
    head = ["| option | meaning | verbs | set by | recorded | locked |", "|---|---|---|---|---|---|"]
    return _HEAD + "\n".join(
        ["## Options of builds", "", *head, *for_builds, "", "## Options of single verbs", "", *head, *of_verbs, ""]
    )


def _row(key: tuple[str, str], names: list[str], parameter: Any) -> str:
    option = declaration_of(parameter) or next((one for one in model.options() if one.flag in parameter.opts), None)
    ways = ["command line"]
    if parameter.envvar:
        usual = option is not None and parameter.envvar == option.variable
        ways.append("environment" if usual else f"environment: `{parameter.envvar}`")
    if declaration_of(parameter) is not None and option is not None and option.file:
        ways.append("any file" if option.found else "file")
    kept = {"always": "always", "changed": "when set"}.get(option.lock, "") if option is not None else ""
    recorded = "yes" if option is not None and option.is_input else ""
    if set(_OF_BUILDS) <= set(names):
        names = ["verbs of builds", *(f"`{one}`" for one in names if one not in _OF_BUILDS)]
    else:
        names = [f"`{one}`" for one in names]
    text = key[1].replace("|", "\\|")
    return f"| {key[0]} | {text} | {', '.join(names)} | {', '.join(ways)} | {recorded} | {kept} |"
