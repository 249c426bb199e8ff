"""What compiling LLVM costs: this project's recipe, and the one that Triton's repository had for its LLVM.

    llvm_cost.py --source llvm=PATH --base IMAGE [--layer FOLDER] [--objects 200] [--seed 1] --work FOLDER --json FILE

Configures LLVM by both recipes in the base's container, each with and without clang, and reads from ninja what each
builds for its goal: our `distribution`, upstream's `install`. Of upstream's objects `--objects` are drawn at random
and compiled by both recipes, upstream's with and without assertions, with the same compiler and no compiler
cache; their CPU seconds (user and system) give those of the whole list. Programs are linked from the archives of a
finished layer (`--layer`, its prefix), a few of those that it has all archives for.

PATH is an unpacked llvm-project with its tests. IMAGE is the base's name in the tool's store of images, as
`toolchain cache ls` shows it. FOLDER keeps the trees, so that a run that was killed goes on. Run with the
repository's own Python.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
# The recipe for Linux that Triton's repository had at the commit that this LLVM serves, by its options.
UPSTREAM = {
    "CMAKE_BUILD_TYPE": "Release",
    "LLVM_BUILD_UTILS": "ON",
    "LLVM_BUILD_TOOLS": "ON",
    "LLVM_INSTALL_UTILS": "ON",
    "LLVM_ENABLE_TERMINFO": "OFF",
    "LLVM_ENABLE_ZSTD": "OFF",
    "LLVM_TARGETS_TO_BUILD": "host;NVPTX;AMDGPU",
    "MLIR_ENABLE_BINDINGS_PYTHON": "OFF",
}
OURS, ASSERTING, PLAIN = "ours", "upstream", "upstream-no-assertions"
GENERATORS = (
    "llvm-min-tblgen",
    "llvm-tblgen",
    "mlir-tblgen",
    "mlir-src-sharder",
    "mlir-linalg-ods-yaml-gen",
    "clang-tblgen",
)
CHUNK = 10
INSIDE = Path("/cost")  # where the trees lie in the container
_STEP = re.compile(
    r"^(?:Building|Linking) (C|CXX|ASM) (object|static library|executable|shared library|shared module) (\S+)$"
)


def launch(log: Path, command: Sequence[str]) -> int:
    """Run a compiler, and note what it took."""
    done, seconds = timed(command)
    out = command[command.index("-o") + 1] if "-o" in command else ""
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"out": out, "cpu": round(seconds, 3), "code": done.returncode}) + "\n")
    return done.returncode


def timed(command: Sequence[str], **how: Any) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a program, with CPU seconds of it and its children, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done: subprocess.CompletedProcess[str] = subprocess.run(command, check=False, text=True, **how)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def project(path: str) -> str:
    """Which part of LLVM an object of a build tree is of."""
    found = re.match(r"tools/(mlir|lld|clang)/", path)
    return found[1] if found else "llvm"


def kinds(steps: Iterable[str]) -> dict[str, list[str]]:
    """Ninja's descriptions by kind: `objects`, `archives` and `links` by what they make, `generated` for the rest."""
    found: dict[str, list[str]] = {"objects": [], "archives": [], "links": [], "generated": []}
    for step in steps:
        if not (made := _STEP.match(step)):
            found["generated"].append(step)
        elif made[2] == "object":
            found["objects"].append(made[3])
        else:
            found["archives" if made[2] == "static library" else "links"].append(made[3])
    return found


class Tree:
    """A configured build tree of LLVM."""

    def __init__(self, path: Path, goal: str) -> None:
        self.path, self.goal = path, goal
        self.log = path / "cost.jsonl"

    def configure(self, *options: str, native: Path | None = None) -> None:
        """Configure, whatever was there before."""
        launcher = f"{sys.executable};{Path(__file__).resolve()};--launch;{self.log};--"
        if self.path.name.startswith(OURS):
            launcher += ";sh;/recipe/llvm-config/pch-launcher.sh"
        command = ["cmake", "-G", "Ninja", "-S", "/src/llvm/llvm", "-B", str(self.path), *options]
        command += ["-DCMAKE_C_COMPILER=clang", "-DCMAKE_CXX_COMPILER=clang++", "-DCMAKE_INSTALL_PREFIX=/opt/llvm"]
        command += [f"-DCMAKE_{language}_COMPILER_LAUNCHER={launcher}" for language in ("C", "CXX")]
        if native is not None:
            command.append(f"-DLLVM_NATIVE_TOOL_DIR={native}")
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "configure.log").open("w", encoding="utf-8") as file:
            subprocess.run(command, check=True, stdout=file, stderr=subprocess.STDOUT)

    @property
    def mark(self) -> Path:
        """The file that says that it is configured: a run that was killed need not do it again."""
        return self.path / "cost-configured"

    def ninja(self, *words: str, check: bool = True) -> str:
        """Run ninja and return what it prints."""
        done = subprocess.run(
            ["ninja", "-C", str(self.path), *words], check=False, text=True, stdout=subprocess.PIPE, env=_ENVIRONMENT
        )
        if check and done.returncode:
            print(done.stdout[-4000:], file=sys.stderr)
            raise SystemExit(f"ninja {' '.join(words)[:200]} failed in {self.path}")
        return done.stdout

    def steps(self) -> dict[str, list[str]]:
        """What an empty tree would build for the goal, by kind; kept, as the tree does not stay empty."""
        kept = self.path / "steps.json"
        if not kept.is_file():
            kept.write_text(json.dumps(found_in(self.ninja("-n", self.goal))), encoding="utf-8")
        return dict(json.loads(kept.read_text(encoding="utf-8")))

    def costs(self) -> dict[str, float]:
        """CPU seconds of each object that was compiled here, under the name that `same` gives it."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.is_file() else []
        rows = [json.loads(line) for line in lines]
        return {same(row["out"]): row["cpu"] for row in rows if row["code"] == 0 and row["out"]}


_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "NINJA_STATUS": "@ ", "HOME": "/tmp"}  # noqa: S108 - in a container


def found_in(told: str) -> dict[str, list[str]]:
    """What ninja would do, of what it prints, by kind."""
    return kinds(line.removeprefix("@ ") for line in told.splitlines() if line.startswith("@ "))


def same(output: str) -> str:
    """An object's name without the folder of its library: MLIR's lie in another one where objects are installed too."""
    return re.sub(r"CMakeFiles/(obj\.)?", "CMakeFiles/", output)


def estimate(objects: Sequence[str], costs: Mapping[str, float], drawn: Iterable[str]) -> dict[str, Any]:
    """CPU seconds of a list of objects from those of it that were drawn, each part of LLVM by its own mean.

    Returns:
        `seconds`, `error` (one standard error), and by part: objects, sampled, mean.
    """
    parts: dict[str, Any] = {}
    seconds = variance = 0.0
    sample = set(drawn)
    for name, count in sorted(Counter(project(one) for one in objects).items()):
        seen = [
            costs[same(one)] for one in objects if project(one) == name and same(one) in sample and same(one) in costs
        ]
        mean = statistics.fmean(seen) if seen else 0.0
        spread = statistics.variance(seen) if len(seen) > 1 else 0.0
        parts[name] = {"objects": count, "sampled": len(seen), "mean": round(mean, 3)}
        seconds += count * mean
        variance += count * count * spread / len(seen) * (1 - len(seen) / count) if seen else 0.0
    return {"seconds": round(seconds), "error": round(variance**0.5), "parts": parts}


def link(tree: Tree, layer: Path, count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Link some programs of upstream's list from the layer's archives, by the compiler's own linker and by lld."""
    programs = [one for one in tree.steps()["links"] if one.startswith("bin/")]
    rng.shuffle(programs)
    rows: list[dict[str, Any]] = []
    for program in programs:
        if len(rows) == count:
            break
        words = shlex.split(tree.ninja("-t", "commands", "-s", program))
        while words and words[0] in {":", "&&"}:
            words = words[1:]
        words = words[: words.index("&&")] if "&&" in words else words
        archives = [word for word in words if re.fullmatch(r"lib/lib\w+\.a", word)]
        if not archives or any(not (layer / word).is_file() for word in archives):
            continue
        tree.ninja(*[word for word in words if word.endswith(".o")])
        row: dict[str, Any] = {"program": program, "archives": len(archives)}
        for name, extra in (("default", []), ("lld", ["-fuse-ld=lld"])):
            out = str(tree.path / "linked")
            command = [str(layer / word) if word in archives else word for word in words]
            command[command.index("-o") + 1] = out
            done, seconds = timed([*command, *extra], cwd=tree.path, capture_output=True)
            if done.returncode:
                row["error"] = done.stderr[-300:]
                break
            row[name] = round(seconds, 2)
            row["bytes"] = Path(out).stat().st_size
        print(json.dumps(row), file=sys.stderr, flush=True)
        if "error" not in row:
            rows.append(row)
    return rows


def configure_ours(tree: Tree, job: Mapping[str, Any], *, clang: bool) -> None:
    """As containerfiles/llvm/build.sh configures it on the machine that it is for, but for its compiler cache."""
    if tree.mark.is_file():
        return
    projects, components = list(job["projects"]), list(job["components"])
    if clang and "clang" not in projects:
        projects, components = [*projects, "clang"], [*components, "clang", "clang-resource-headers"]
    flags = f"-ffile-prefix-map=/src/llvm=. -ffile-prefix-map={tree.path}=."
    options = ["-C", "/recipe/llvm-config/common.cmake", "-C", "/recipe/llvm-config/targets/amd64.cmake"]
    options += [f"-DCMAKE_{language}_FLAGS={flags}" for language in ("C", "CXX", "ASM")]
    options += [f"-DLLVM_ENABLE_PROJECTS={';'.join(projects)}", "-DLLVM_USE_LINKER=lld"]
    options += [f"-DLLVM_DISTRIBUTION_COMPONENTS={';'.join(components)}"]
    tree.configure(*options)
    others = [one for one in components if not one.endswith("-libraries")]
    wanted = ";".join([*others, *reached(tree, job, job["keep"])])
    again = ["cmake", f"-DLLVM_DISTRIBUTION_COMPONENTS={wanted}", str(tree.path)]
    subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
    tree.mark.touch()


def reached(tree: Tree, job: Mapping[str, Any], keep: Sequence[str]) -> list[str]:
    """The libraries that Triton names, those that match `keep`, and all that they link."""
    command = [sys.executable, "/recipe/llvm-config/closure.py", str(tree.path), ",".join(keep), ",".join(job["drop"])]
    told = subprocess.run([*command, *job["roots"]], check=True, text=True, stdout=subprocess.PIPE).stdout
    return told.strip().split(";")


def configure_upstream(tree: Tree, *, assertions: bool, clang: bool, native: Path | None) -> None:
    """As upstream's workflow for Linux configures it."""
    if tree.mark.is_file():
        return
    options = [f"-D{name}={value}" for name, value in UPSTREAM.items()]
    options += [f"-DLLVM_ENABLE_ASSERTIONS={'ON' if assertions else 'OFF'}", "-DCMAKE_LINKER=lld"]
    options += [f"-DLLVM_ENABLE_PROJECTS=mlir;lld{';clang' if clang else ''}"]
    tree.configure(*options, native=native)
    tree.mark.touch()


def generated_mean(tree: Tree) -> float:
    """Wall seconds of a run of a table generator or the like in this tree, the mean."""
    taken = {}
    for line in (tree.path / ".ninja_log").read_text(encoding="utf-8").splitlines()[1:]:
        begin, end, _, out, command = line.split("\t")
        if re.search(r"\.(inc|h|def|gen)$", out):
            taken[command] = (int(end) - int(begin)) / 1000
    return statistics.fmean(taken.values()) if taken else 0.0


def inside(job: Mapping[str, Any]) -> dict[str, Any]:
    """Configure, draw, compile: the part in the container."""
    work, jobs = INSIDE, f"-j{job['jobs']}"
    ours = {clang: Tree(work / f"{OURS}{'-clang' if clang else ''}", "distribution") for clang in (False, True)}
    for clang, tree in ours.items():
        configure_ours(tree, job, clang=clang)
        tree.steps()
    compiled = {OURS: ours[True]}
    compiled[OURS].ninja(jobs, *(one for one in GENERATORS if compiled[OURS].ninja("-t", "query", one, check=False)))
    native = compiled[OURS].path / "bin"
    listed = Tree(work / "upstream-listed", "install")
    configure_upstream(listed, assertions=True, clang=False, native=None)
    for name in (ASSERTING, PLAIN):
        compiled[name] = Tree(work / name, "install")
        configure_upstream(compiled[name], assertions=name == ASSERTING, clang=True, native=native)
    lists = {f"{OURS}": ours[False], f"{OURS} with clang": ours[True], "upstream": listed}
    lists |= {"upstream with clang": compiled[ASSERTING], "upstream with clang, no assertions": compiled[PLAIN]}
    steps = {name: tree.steps() for name, tree in lists.items()}
    # Nothing is compiled in this tree: it lists all that its goals take.
    # What it reaches may have no archive: interfaces are libraries for CMake alone.
    archives = {f"lib/lib{name}.a" for name in reached(ours[False], job, ())} & set(steps[OURS]["archives"])
    bare = ours[False].ninja("-n", *sorted(archives), "mlir-tblgen", "FileCheck", "mlir-headers")
    steps["ours, without what Triton does not reach"] = found_in(bare)
    for name, found in steps.items():
        print(name, {kind: len(made) for kind, made in found.items()}, file=sys.stderr, flush=True)

    rng = random.Random(job["seed"])  # noqa: S311 - a sample, no secret
    names = sorted(set(steps["upstream with clang"]["objects"]))
    drawn = rng.sample(names, job["objects"])
    order = [(tree, {same(one): one for one in tree.steps()["objects"]}) for tree in compiled.values()]
    for at in range(0, len(drawn), CHUNK):
        rng.shuffle(order)
        for tree, known in order:
            wanted = [known[same(one)] for one in drawn[at : at + CHUNK] if same(one) in known]
            if wanted:
                tree.ninja(jobs, "-k0", *wanted, check=False)
        print(f"{min(at + CHUNK, len(drawn))} of {len(drawn)} objects", file=sys.stderr, flush=True)

    costs = {name: tree.costs() for name, tree in compiled.items()}
    sample = [same(one) for one in drawn]
    ways = {
        "ours": (OURS, "ours"),
        "ours with clang": (OURS, "ours with clang"),
        "ours, without what Triton does not reach": (OURS, "ours, without what Triton does not reach"),
        "upstream": (ASSERTING, "upstream"),
        "upstream with clang": (ASSERTING, "upstream with clang"),
        "upstream, no assertions": (PLAIN, "upstream"),
        "upstream with clang, no assertions": (PLAIN, "upstream with clang"),
    }
    totals = {name: estimate(steps[of]["objects"], costs[by], sample) for name, (by, of) in ways.items()}
    both = [one for one in sample if all(one in found for found in costs.values())]
    result = {
        "steps": {name: {kind: len(made) for kind, made in found.items()} for name, found in steps.items()},
        "totals": totals,
        "same objects": {
            "objects": len(both),
            **{name: sum(found[one] for one in both) for name, found in costs.items()},
        },
        "failed": sorted(one for one in sample for name in (ASSERTING, PLAIN) if one not in costs[name]),
        "generated mean": {name: generated_mean(tree) for name, tree in compiled.items()},
        "samples": {name: {one: found[one] for one in sample if one in found} for name, found in costs.items()},
        "headers": {one: cost for one, cost in costs[OURS].items() if "toolchain-pch" in one},
    }
    if job["layer"]:
        result["links"] = link(compiled[PLAIN], Path("/layer"), job["links"], rng)
    return result


def outside(asked: argparse.Namespace) -> None:
    """Start the other half in the base, without network, and print what it found."""
    sys.path.insert(0, str(TOP))
    from toolchain.cache import Cache, default_cache  # noqa: PLC0415 - the container has none of its dependencies
    from toolchain.catalog.components import needs_for  # noqa: PLC0415
    from toolchain.engine.buildah import Buildah  # noqa: PLC0415
    from toolchain.oci.layout import Layout  # noqa: PLC0415
    from toolchain.recipe import Mount  # noqa: PLC0415

    cache, needs = Cache(default_cache()), needs_for("3.7")
    engine = Buildah(cache)
    image = engine.ensure_image("cost-base", cache.images, Layout(cache.images).resolve(asked.base).digest)
    job = {
        "projects": needs.projects,
        "components": needs.components,
        "roots": needs.roots,
        "keep": needs.keep,
        "drop": needs.drop,
        "objects": asked.objects,
        "seed": asked.seed,
        "jobs": asked.jobs,
        "links": asked.links,
        "layer": asked.layer is not None,
    }
    asked.work.mkdir(parents=True, exist_ok=True)
    (asked.work / "job.json").write_text(json.dumps(job), encoding="utf-8")
    mounts = [
        Mount(asked.source, "/src/llvm"),
        Mount(TOP, "/recipe"),
        Mount(asked.work, os.fspath(INSIDE), read_only=False),
        *([Mount(asked.layer, "/layer")] if asked.layer else []),
    ]
    began = time.time()
    engine.run(
        image,
        ["python3", "/recipe/scripts/llvm_cost.py", "--inside"],
        mounts=mounts,
        on_line=lambda line: print(line, file=sys.stderr, flush=True),
    )
    result = json.loads((asked.work / "result.json").read_text(encoding="utf-8"))
    result["wall"] = round(time.time() - began)
    asked.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, total in result["totals"].items():
        print(f"{name:36} {total['seconds']:7} +- {total['error']} CPU seconds of objects")


def main(argv: Sequence[str]) -> int:
    """See above."""
    if argv[:1] == ["--launch"]:
        return launch(Path(argv[1]), argv[argv.index("--") + 1 :])
    if argv == ["--inside"]:
        result = inside(json.loads((INSIDE / "job.json").read_text(encoding="utf-8")))
        (INSIDE / "result.json").write_text(json.dumps(result), encoding="utf-8")
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=lambda text: Path(text.removeprefix("llvm=")), required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--layer", type=Path)
    parser.add_argument("--objects", type=int, default=200)
    parser.add_argument("--links", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    outside(parser.parse_args(argv))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
