"""Make the tables of options in docs/reference/verbs.md: which verbs take an option, and where it can be set."""

from __future__ import annotations

import functools
from typing import Any

from toolchain.cli.options import declaration_of
from toolchain.cli.verbs import all_verbs, lazy
from toolchain.request import model

_OF_BUILDS = ("plan", "fetch", "lock", "build", "reproduce", "kernels run", "bundle export")


@functools.cache
def commands() -> dict[str, Any]:
    """Return the Typer command of each verb, by name."""
    return {verb.name: lazy(verb).loaded for verb in all_verbs()}


def tables() -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows for the options of builds, and the rows for the options of single verbs."""
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    of_builds: set[str] = set()
    declared = {option.flag for option in model.options()}
    for verb, command in commands().items():
        for one in command.params:
            if one.param_type_name != "option" or one.hidden:
                continue
            flags = ", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts))
            found.setdefault(flags, {}).setdefault((one.help or "", _ways(one)), []).append(verb)
            if verb == "build" and one.opts[0] in declared:
                of_builds.add(flags)
    rows = {flags: _row(flags, meanings) for flags, meanings in sorted(found.items())}
    return [rows[one] for one in rows if one in of_builds], [rows[one] for one in rows if one not in of_builds]


def _row(flags: str, meanings: dict[tuple[str, str], list[str]]) -> list[str]:
    every = {ways for _, ways in meanings}
    if len(every) == 1:
        return [flags, "<br>".join(_meaning(text, verbs) for (text, _), verbs in meanings.items()), every.pop()]
    told = [_meaning(text, verbs) + (f" ({ways})" if ways else "") for (text, ways), verbs in meanings.items()]
    return [flags, "<br>".join(told), "by meaning"]


def _meaning(text: str, verbs: list[str]) -> str:
    if set(_OF_BUILDS) <= set(verbs):
        verbs = [one for one in verbs if one not in _OF_BUILDS]
        named = ["verbs of builds", *(f"`{one}`" for one in verbs)]
    else:
        named = [f"`{one}`" for one in verbs]
    escaped = text.replace("|", "\\|")
    return f"{escaped} *{', '.join(named)}*"


def _ways(parameter: Any) -> str:
    """Return where an option can be set other than on the command line, and whether a build's record contains it."""
    option = declaration_of(parameter)
    ways = []
    if parameter.envvar:
        usual = option is not None and parameter.envvar == option.variable
        ways.append("variable" if usual else f"`{parameter.envvar}`")
    if option is not None and option.file:
        known = option.kind == "text" and option.known is not None
        ways.append("file" if not option.found else "any file: known names" if known else "any file")
    if option is not None and option.is_input:
        ways.append("recorded")
    return ", ".join(ways)
