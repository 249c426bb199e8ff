"""Build each LLVM of the distribution and a Triton with it, one after the other, and record the results.

    .venv/bin/python scripts/matrix.py build --tritons FOLDER [--only 19,21]
    .venv/bin/python scripts/matrix.py write

`build` takes hours. FOLDER contains a checkout for each commit in `PAIRS`, named by the commit's first nine digits.
Without --tritons, `build` only builds the LLVMs. `build` can be stopped and started again, because it skips builds that
have a result for the same inputs, and writes each result to scripts/matrix.json at once. After each build, it prunes
all unfinished work in the cache, so that the disk contains only one build tree of LLVM. Set TOOLCHAIN_CACHE to a
separate cache, because the unfinished work of other builds is pruned too.

Add two keys to a Triton's row in scripts/matrix.json by hand: `compiled` with what the output of
tests/integration/test_wheel_systems.py shows, and `cached` with the value true if most objects came from the compiler
cache.

`write` makes docs/measurements/generations.md and rows of toolchain/data/tried.toml from the results.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP))
RESULTS = TOP / "scripts" / "matrix.json"
PAGE = TOP / "docs" / "measurements" / "generations.md"
TRIED = TOP / "toolchain" / "data" / "tried.toml"
_MARK = "\n# Written by scripts/matrix.py, to the end of this file.\n"
_SECTION = "Generations of LLVM and Triton"
_FLOOR = "2.31"
_STEPS = re.compile(r"^@ninja (\d+)/(\d+) ", re.MULTILINE)
_CPU = re.compile(r"^CPU of this run, user and system: (\d+)m([\d.]+)s (\d+)m([\d.]+)s", re.MULTILINE)

_CACHED = ", objects from the compiler cache"
ALLOWED = ("--allow-binary", "libdevice")


@dataclass(frozen=True)
class Pair:
    """An LLVM of the distribution, and the short commit of the Triton that is nearest to this LLVM's branch point."""

    llvm: int
    triton: str
    pythons: str = "3.11,3.13"
    binaries: tuple[str, ...] = ALLOWED

    @property
    def source(self) -> str:
        """Return the value of `--source` for this LLVM."""
        return f"llvm=distro:llvm-toolchain-{self.llvm}"


PAIRS = (
    Pair(22, "d8da7c998"),
    Pair(19, "915b396c1", "3.9,3.11,3.13"),
    Pair(21, "918223185"),
    Pair(18, "397ac38cf", "3.9,3.11,3.13", (*ALLOWED, "--allow-binary", "cuda2gcn", "--drop-binary", "libamdhip64")),
    Pair(23, "be7e23cc6"),
)


def words_of(pair: Pair, stage: str, tritons: Path | None) -> list[str]:
    """Return the arguments of `toolchain plan` or `toolchain build` for a stage of a pair."""
    words = [stage, "--source", pair.source]
    if stage == "triton":
        words += ["--source", f"triton={tritons}/{pair.triton}", "--python", pair.pythons]
        words += pair.binaries
    return words


def toolchain(*words: str) -> Any:
    """Run a verb with `--json`, and return the JSON that it prints; exit if the verb fails."""
    done = subprocess.run(
        [sys.executable, "-I", "-m", "toolchain", *words, "--json"],
        cwd=TOP,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"toolchain {' '.join(words)}: exit code {done.returncode}\n{done.stdout[-2000:]}")
    return json.loads(done.stdout)


def build(asked: argparse.Namespace) -> None:
    """Build the stages that have no result for their current inputs, and record the results."""
    from toolchain.core.cache import Cache, default_cache  # noqa: PLC0415 - `write` needs no cache

    cache, results = Cache(default_cache()), read()
    only = {int(number) for number in asked.only.split(",")} if asked.only else {pair.llvm for pair in PAIRS}
    for pair in PAIRS:
        for stage in ("llvm", "triton") if asked.tritons else ("llvm",):
            name = f"{stage}-{pair.llvm}"
            if pair.llvm not in only or is_done(results.get(name), pair, stage, asked.tritons):
                continue
            print(f"== {name}", file=sys.stderr, flush=True)
            row = _row(toolchain("build", *words_of(pair, stage, asked.tritons)), stage)
            digest = row["input_digest"].removeprefix("sha256:")[:12]
            log = max(cache.logs.glob(f"{stage}-{digest}-*.log"), default=None)
            if stage == "triton":
                row["commit"] = _head(asked.tritons / pair.triton)
            elif log is not None:
                row |= measured(log.read_text(encoding="utf-8", errors="replace"))
            results[name] = row | {"date": time.strftime("%d %B %Y", time.gmtime()), "machine": asked.machine}
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            toolchain("cache", "prune", "--unfinished", "--unused-for", "3650")


def is_done(row: dict[str, Any] | None, pair: Pair, stage: str, tritons: Path | None) -> bool:
    """Return whether a row records a build whose input digest is the one that `plan` prints now."""
    if row is None:
        return False
    planned = toolchain("plan", *words_of(pair, stage, tritons))["stages"]
    return any(one["name"] == stage and one["input_digest"] == row["input_digest"] for one in planned)


def _row(said: Any, stage: str) -> dict[str, Any]:
    built = next(one for one in said["stages"] if one["name"] == stage)
    facts = built["facts"]
    row = {key: built[key] for key in ("image", "input_digest")}
    row |= {key: facts[key] for key in ("blob_bytes", "disk_bytes", "diff_id", "version", "serves") if key in facts}
    row["seconds"] = round(facts.get("total_seconds", 0))
    if lit := facts.get("lit"):
        row["lit"] = {version: f"{tests['passed']} of {tests['tests']}" for version, tests in lit.items()}
    if wheels := facts.get("wheels"):
        row["wheels"] = [{key: wheel[key] for key in ("file", "bytes")} for wheel in wheels]
    checks = facts.get("contract", {}).get("checks", [])
    row["contract"] = f"{sum(check['ok'] for check in checks)} of {len(checks)}" if checks else "compiled a kernel"
    symbols = next((check["detail"] for check in checks if check["name"] == "symbols"), "")
    row["symbols"] = " of ".join(f"{int(number):,}" for number in re.findall(r"\d+", symbols)[:2])
    return row


def measured(log: str) -> dict[str, int]:
    """Return the number of steps of ninja's largest run, and the CPU seconds, if a build's log contains them.

    The CPU seconds of a resumed build are those of its last run.
    """
    found: dict[str, int] = {}
    if steps := _STEPS.findall(log):
        found["steps"] = max(int(total) for _, total in steps)
    if cpu := _CPU.findall(log):
        user, system = (float(cpu[-1][at]) * 60 + float(cpu[-1][at + 1]) for at in (0, 2))
        found |= {"cpu_user": round(user), "cpu_system": round(system)}
    return found


def _head(checkout: Path) -> str:
    done = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def read() -> dict[str, dict[str, Any]]:
    """Return the recorded results by stage and LLVM, or an empty dict if the file does not exist."""
    if not RESULTS.is_file():
        return {}
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def page(results: dict[str, dict[str, Any]]) -> str:
    """Return the content of docs/measurements/generations.md."""
    llvms, tritons = [], []
    for pair in sorted(PAIRS, key=lambda pair: pair.llvm):
        if row := results.get(f"llvm-{pair.llvm}"):
            cpu = f"{row['cpu_user']:,} and {row['cpu_system']:,}" if "cpu_user" in row else "not measured"
            llvms.append(
                f"| {row['version']} | {row['serves']} | {row.get('steps', 0):,} | {cpu} | {row['blob_bytes']:,} "
                f"| {row['disk_bytes']:,} | {row['contract']} | {row['symbols'] or 'not asked'} "
                f"| {row['date']}, {row['machine']} |"
            )
        if row := results.get(f"triton-{pair.llvm}"):
            wheels = "<br>".join(f"`{wheel['file']}` {wheel['bytes']:,}" for wheel in row.get("wheels", []))
            llvm = results[f"llvm-{pair.llvm}"]["version"]
            lit = "<br>".join(f"{version}: {passed}" for version, passed in row.get("lit", {}).items())
            tritons.append(
                f"| {llvm} | `{row['commit'][:12]}` | {edits_for(row['commit'], llvm)} | {wheels} | {lit} "
                f"| {row.get('compiled', 'not tried')} | {row['seconds']:,}{_CACHED * row.get('cached', False)} "
                f"| {row['date']} |"
            )
    head = "| LLVM | parts for Triton | steps | CPU seconds, user and system | as gzip, bytes | on disk, bytes "
    wheels_head = (
        "| on LLVM | Triton | edits | wheels, bytes | lit tests passed, by Python | compiled in plain systems "
    )
    table = ["", f"{wheels_head}| seconds | when |", "|" + "---|" * 8, *tritons]
    return "\n".join([
        f"# {_SECTION}\n",
        "Made by `scripts/matrix.py write` from `scripts/matrix.json`. Do not edit this page.\n",
        (f"Each LLVM is a source package of the distribution, portable (glibc {_FLOOR}), for amd64. More of 22.1.8"
        " and of arm64: [LLVM](llvm.md#the-portable-layer), [Triton](triton.md#wheels-on-the-portable-layer).\n"),
        f"{head}| contract | symbols | when, where |",
        "|" + "---|" * 9,
        *llvms,
        *(table if tritons else ()),
    ]) + "\n"  # fmt: skip


def edits_for(commit: str, llvm: str) -> int:
    """Return how many edits the tool makes to a commit of Triton for an LLVM."""
    from toolchain.sources.edits import shipped  # noqa: PLC0415 - `build` does not need it

    return sum(
        len(file.edits) for file in shipped() if file.source == "triton" and file.commit == commit and file.is_for(llvm)
    )


def rows(results: dict[str, dict[str, Any]], by_hand: Sequence[dict[str, str]]) -> str:
    """Return rows for tried.toml, except for results that `by_hand` already has a row for."""
    known = {(row["what"], row["of"], row["as"]) for row in by_hand}
    found = []
    for pair in PAIRS:
        llvm, triton = results.get(f"llvm-{pair.llvm}"), results.get(f"triton-{pair.llvm}")
        if llvm is not None:
            found.append({"what": "llvm", "of": llvm["version"], "triton": llvm["serves"]})
        if llvm is not None and triton is not None:
            pythons = " and ".join(pair.pythons.replace(",", ", ").rsplit(", ", 1))
            edits = edits_for(triton["commit"], llvm["version"])
            part = f"{pythons}, with {edits} edits" if edits else pythons
            found.append({"what": "wheel", "of": triton["commit"], "llvm": llvm["version"], "part": part})
    return "".join(_tried(row) for row in found if (row["what"], row["of"], f"glibc {_FLOOR}") not in known)


def _tried(row: dict[str, str]) -> str:
    row = {**row, "as": f"glibc {_FLOOR}", "section": _SECTION}
    return "\n[[tried]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in row.items())


def write(_: argparse.Namespace) -> None:
    """Write docs/measurements/generations.md, and replace the generated rows at the end of tried.toml."""
    results = read()
    if not results:
        raise SystemExit("scripts/matrix.json contains no result yet")
    PAGE.write_text(page(results), encoding="utf-8")
    by_hand = TRIED.read_text(encoding="utf-8").partition(_MARK)[0].rstrip("\n") + "\n"
    TRIED.write_text(by_hand + _MARK + rows(results, tomllib.loads(by_hand)["tried"]), encoding="utf-8")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    building = verbs.add_parser("build")
    building.add_argument("--tritons", type=Path, help="folder of checkouts; without it only the LLVMs are built")
    building.add_argument("--only", default="", help="major versions of LLVM, comma-separated")
    building.add_argument("--machine", default="two cores", help="description of the machine for the page")
    building.set_defaults(run=build)
    verbs.add_parser("write").set_defaults(run=write)
    asked = parser.parse_args(words)
    asked.run(asked)


if __name__ == "__main__":
    main(sys.argv[1:])
