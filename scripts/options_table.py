"""docs/options.md: every option, who takes it, where it may be set, and what remembers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolchain.cli.config_file import OF_VERBS
from toolchain.cli.defaults import NOT_FROM_FILE
from toolchain.cli.verbs import all_verbs, lazy
from toolchain.request import model as request_module
from toolchain.request.options import Option

_HEAD = """\
# Options

<!-- Made by `python -m scripts.site_pages` from the declarations in the code. Do not edit this page. -->

Every option of every verb. The command line overrides the environment, the environment overrides `toolchain.toml`, and
the file overrides the default. The file is `toolchain.toml` in the current folder, or the one in
`toolchain --config FILE VERB`; `toolchain init` writes one. Its keys are the options without dashes. Relative paths in
it are relative to its folder.

"Set by" lists where an option can be set. The environment variable is `TOOLCHAIN_` and the name in capitals,
unless the table names another: `--kernel-timeout` is `TOOLCHAIN_KERNEL_TIMEOUT`. `verify` ignores keys and
`allow-binary` in the file, and `pins` ignores all of it. Options that affect trust are ignored in a file that you have
neither named nor approved: [approval](trust.md#whose-toolchaintoml).

`--key` is the private key of `publish`, `--public-key` the key that signatures are verified with, and `--kernel-key`
the key of a kernel store; a private one also signs new results.

"Recorded" options decide what is built; records and provenance contain them. "Locked" options are kept in
`toolchain.lock`. "Verbs of builds" are `plan`, `fetch`, `lock`, `build`, `reproduce`, `kernels run` and
`bundle export`.

"""
_OF_BUILDS = ("plan", "fetch", "lock", "build", "reproduce", "kernels run", "bundle export")


def commands() -> dict[str, Any]:
    """Every verb's Typer command, by name."""
    return {verb.name: lazy(verb).loaded for verb in all_verbs()}


def page(verbs: Mapping[str, Any]) -> str:
    """The page for these verbs."""
    rows: dict[tuple[str, str], list[str]] = {}
    by_flag: dict[tuple[str, str], Any] = {}
    for name, command in verbs.items():
        if name == "init":  # takes what the file holds
            continue
        for one in command.params:
            if one.param_type_name == "option" and not one.hidden:
                key = (", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts)), one.help or "")
                rows.setdefault(key, []).append(name)
                by_flag.setdefault(key, one)
    of_builds = {one.option.name: one.option for one in request_module.options()}
    for_builds: list[str] = []
    of_verbs: list[str] = []
    for key, names in sorted(rows.items()):
        name = by_flag[key].opts[0].removeprefix("--")
        own = all(by_flag[key].name in NOT_FROM_FILE.get(verb, ()) for verb in names)
        line = _row(key, names, by_flag[key], None if own else of_builds.get(name), not own)
        (for_builds if name in of_builds and "build" in names else of_verbs).append(line)
    head = ["| option | meaning | verbs | set by | recorded | locked |", "|---|---|---|---|---|---|"]
    return _HEAD + "\n".join(
        ["## Options of builds", "", *head, *for_builds, "", "## Options of single verbs", "", *head, *of_verbs, ""]
    )


def _row(key: tuple[str, str], names: list[str], parameter: Any, option: Option | None, in_file: bool) -> str:
    name = parameter.opts[0].removeprefix("--")
    in_file = in_file and (option.file if option is not None else name in {one.name for one in OF_VERBS})
    variable = parameter.envvar or (option.variable if option is not None and option.kind == "pairs" else "")
    usual = f"TOOLCHAIN_{name.upper().replace('-', '_')}"
    environment = "environment" if variable == usual else f"environment: `{variable}`"
    ways = ["command line", *([environment] if variable else []), *(["file"] if in_file else [])]
    text = key[1].partition(" \\[env var")[0].replace("|", "\\|")
    kept = {"always": "always", "changed": "when set"}.get(option.lock, "") if option is not None else ""
    recorded = "yes" if option is not None and option.is_input else ""
    if set(_OF_BUILDS) <= set(names):
        names = ["verbs of builds", *(f"`{one}`" for one in names if one not in _OF_BUILDS)]
    else:
        names = [f"`{one}`" for one in names]
    verbs = ", ".join(names)
    return f"| {key[0]} | {text} | {verbs} | {', '.join(ways)} | {recorded} | {kept} |"
