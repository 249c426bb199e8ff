"""Find pins of Triton and AOTriton that are new upstream and missing in the data files, and propose builds for them.

The program gathers facts only with git. `--facts FILE` reads recorded facts instead, and `--record FILE` writes the
facts to a file. Standard output is JSON: `{"findings": [{"title", "why", "build"}]}`, where `build` contains the inputs
of the build workflow, or is null if no build is proposed. The program validates or cleans all text from upstream before
the text becomes part of a finding.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolchain.catalog.components import needs_for
from toolchain.catalog.pin_files import read_pin
from toolchain.catalog.release_data import (
    REPOSITORY,
    AotritonRelease,
    CodegenPin,
    LlvmPin,
    aotriton_releases,
    is_commit,
    numbers,
    triton_releases,
)
from toolchain.core import process
from toolchain.core.errors import ToolchainError
from toolchain.core.process import CommandError
from toolchain_lab.examine.wheel_llvm import TARGETS

TRITON = "https://github.com/triton-lang/triton"
AOTRITON = "https://github.com/ROCm/aotriton"
PIN_FILES = ("llvm-hash.txt", "cmake/llvm-hash.txt", "cmake/llvm-info.json", "cmake/llvm-build-info.json")
# This pattern matches the files about the separate LLVMs for GPUs: `info` describes the LLVM that a Triton pins, and
# `build-info` describes upstream's next build, which may exist before a Triton pins it.
_CODEGEN = re.compile(r"cmake/([a-z0-9]{1,20})-llvm-(build-)?info\.json")
_TRITON_TAG = re.compile(r"refs/tags/v(\d{1,4}\.\d{1,4}\.\d{1,4})")
_TRITON_BRANCH = re.compile(r"refs/heads/(main|release/\d{1,4}\.\d{1,4}\.x)")
_AOTRITON_REF = re.compile(r"refs/tags/(\d{1,4}(?:\.\d{1,4}){1,3}(?:b|tp\d?))|refs/heads/(main)")
_LIMIT = 100  # the maximum number of refs to read from a repository, and of pin files to read from a commit


@dataclass(frozen=True)
class Finding:
    """A difference between upstream's pins and the data files.

    Args:
        title: the title, which is the same in every run that finds this difference.
        why: the facts from upstream that show the difference.
        build: the inputs of the build workflow; None if no build is proposed.
    """

    title: str
    why: str
    build: dict[str, str] | None = None


# --- facts from upstream ---


class Repository:
    """A remote repository whose commits are fetched at depth 1, and whose files are fetched only if they are read."""

    def __init__(self, url: str, scratch: Path) -> None:
        self._url = url
        self._env = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "https" if url.startswith("https://") else "file",
            "GIT_DIR": os.fspath(scratch),
        }
        if not scratch.exists():
            self._git("init", "--quiet", "--bare", "--template=", os.fspath(scratch))
            self._git("config", "remote.origin.url", url)
            self._git("config", "remote.origin.promisor", "true")
            self._git("config", "remote.origin.partialCloneFilter", "blob:none")

    def _git(self, *words: str) -> str:
        return process.run(["git", "-c", "gc.auto=0", *words], env=self._env, capture=True, timeout=600).stdout

    def refs(self, wanted: re.Pattern[str], oldest: tuple[int, ...]) -> dict[str, str]:
        """Return the commits of `main` and of matching refs from release `oldest` on, by the full name of the ref.

        If more than `_LIMIT` refs match, only the newest `_LIMIT` refs are considered. For an annotated tag, the commit
        is the commit that the tag points to.
        """
        found: dict[str, str] = {}
        for line in self._git("ls-remote", "--", self._url).splitlines():
            commit, _, name = line.partition("\t")
            plain = name.removesuffix("^{}")  # git lists the commit of an annotated tag with this suffix
            if wanted.fullmatch(plain) and is_commit(commit) and (name != plain or plain not in found):
                found[plain] = commit
        # `main` comes last, because it is newer than all releases.
        newest = sorted(found, key=lambda name: (name.endswith("main"), numbers(name)))[-_LIMIT:]
        return {name: found[name] for name in sorted(newest) if name.endswith("main") or numbers(name) >= oldest}

    def fetch(self, commit: str) -> None:
        """Fetch a commit without its history and without the content of its files."""
        self._git("fetch", "--quiet", "--depth=1", "--filter=blob:none", "--no-tags", "origin", commit)

    def pins(self, commit: str) -> dict[str, str]:
        """Return the pin files in a commit by path, each with the first 4,096 characters of its content."""
        listed = self._git("ls-tree", "-r", "--name-only", commit, "--", "llvm-hash.txt", "cmake").splitlines()
        names = [name for name in listed if name in PIN_FILES or _CODEGEN.fullmatch(name)]
        return {name: self._git("cat-file", "blob", f"{commit}:{name}")[:4096] for name in names[:_LIMIT]}

    def carried(self, commit: str) -> str:
        """Return the commit of the Triton submodule in an AOTriton commit; empty if that commit has no submodule."""
        words = self._git("ls-tree", commit, "--", "third_party/triton").split()
        return words[2] if len(words) > 2 and words[1] == "commit" else ""


def gather(triton: str, aotriton: str) -> dict[str, Any]:
    """Return the facts about main, and about tags and release branches not older than the oldest release on record.

    For Triton, the facts are the commit and its pin files. For AOTriton, they are the commit, the commit of its Triton,
    and the pin files of that Triton.

    Raises:
        CommandError: git failed, for example because a repository does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="new-pins-") as folder:
        one, other = Repository(triton, Path(folder) / "triton"), Repository(aotriton, Path(folder) / "aotriton")
        tritons = []
        wanted = re.compile(f"{_TRITON_TAG.pattern}|{_TRITON_BRANCH.pattern}")
        for ref, commit in one.refs(wanted, _oldest_triton()).items():
            one.fetch(commit)
            tritons.append({"ref": ref, "commit": commit, "files": one.pins(commit)})
        rows = []
        for ref, commit in other.refs(_AOTRITON_REF, _oldest_aotriton()).items():
            other.fetch(commit)
            carried = other.carried(commit)
            rows.append({"ref": ref, "commit": commit, "triton": carried, "files": _carried(one, carried)})
    return {"triton": tritons, "aotriton": rows}


def _carried(triton: Repository, commit: str) -> dict[str, str]:
    """Return the pin files in a commit of `triton`, or an empty dict if the commit is unknown or cannot be fetched."""
    if not is_commit(commit):
        return {}
    try:
        triton.fetch(commit)
    except CommandError:
        return {}
    return triton.pins(commit)


# --- comparison with the data files ---


def findings(facts: Mapping[str, Any]) -> list[Finding]:
    """Return the differences between the facts and the data files."""
    known = {row.llvm for row in triton_releases() if row.llvm} | {row.llvm for row in aotriton_releases() if row.llvm}
    found = [one for entry in facts["triton"] for one in _triton(entry, known)]
    by_name = {row.name: row for row in aotriton_releases()}
    found += [one for entry in facts["aotriton"] for one in _aotriton(entry, by_name)]
    return list({one.title: one for one in found}.values())


def _triton(entry: Mapping[str, Any], known: set[str]) -> Iterator[Finding]:
    tag, branch = _TRITON_TAG.fullmatch(entry["ref"]), _TRITON_BRANCH.fullmatch(entry["ref"])
    if not is_commit(entry["commit"]) or not (tag or branch):
        return
    pin, problem = _pin(entry["files"])
    yield from _codegen_findings(tag[1] if tag else "", branch[1] if branch else "", entry)
    if branch:
        if pin is not None and pin.commit not in known:
            why = f"Triton's {branch[1]} at {entry['commit']} pins it"
            yield Finding(f"LLVM {pin.commit[:12]} of Triton {branch[1]}", why, _build(pin, "", entry["files"]))
        return
    assert tag is not None  # noqa: S101 - a ref is a tag or a branch
    version = tag[1]
    row = next((one for one in triton_releases() if one.version == version), None)
    llvm = pin.commit if pin else ""
    why = f"tag v{version} is {entry['commit']}; " + (f"it pins LLVM {llvm} of {pin.repository}" if pin else problem)
    why += "".join(f"; for {one.target} {_named(one)}" for one in _codegen(entry["files"])[0].values())
    build = _build(pin, version, entry["files"])
    if row is None:
        yield Finding(f"Triton {version} is not on record", why, build)
    elif llvm and not row.llvm:
        yield Finding(f"Triton {version} is on record without its LLVM", why, build)
    elif llvm and row.llvm != llvm:
        yield Finding(f"Triton {version} has another LLVM than on record", f"{why}; the record has {row.llvm}", build)


def _aotriton(entry: Mapping[str, Any], by_name: Mapping[str, AotritonRelease]) -> Iterator[Finding]:
    named = _AOTRITON_REF.fullmatch(entry["ref"])
    carried = entry["triton"]
    if named is None or not is_commit(entry["commit"]) or (carried and not is_commit(carried)):
        return
    pin, problem = _pin(entry["files"])
    build = _build(pin, "", entry["files"])
    told = f"its Triton is {carried or 'unknown'}" + (f", which pins LLVM {pin.commit}" if pin else f"; {problem}")
    if named[2]:
        if carried and carried not in {row.triton for row in by_name.values()}:
            why = f"AOTriton's main is at {entry['commit']}; {told}"
            yield Finding(f"Triton {carried[:12]} of AOTriton main", why, build)
        return
    why = f"tag {named[1]} is {entry['commit']}; {told}"
    row = by_name.get(named[1])
    if row is None:
        yield Finding(f"AOTriton {named[1]} is not on record", why, build)
        return
    missing = [what for what, value in (("commit", row.commit), ("Triton", row.triton)) if not value]
    missing += ["LLVM"] if pin is not None and not row.llvm else []
    if missing:
        yield Finding(f"AOTriton {named[1]} is on record without its {' and '.join(missing)}", why, build)
    elif (row.commit, row.triton) != (entry["commit"], carried) or (pin is not None and row.llvm != pin.commit):
        on_record = f"the record has {row.commit}, Triton {row.triton}, LLVM {row.llvm or 'unknown'}"
        yield Finding(f"AOTriton {named[1]} differs from the record", f"{why}; {on_record}", build)


def _pin(files: Mapping[str, str]) -> tuple[LlvmPin | None, str]:
    """Read pin files with the code that builds use; return the pin and an empty string, or None and the reason."""
    held = {name: files[name] for name in PIN_FILES if name in files}
    if not held:
        return None, "its pin was not read"
    with tempfile.TemporaryDirectory(prefix="new-pins-") as folder:
        for name, content in held.items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(content, encoding="utf-8")
        try:
            return read_pin(Path(folder)), ""
        except ToolchainError as error:
            # The message may quote text from upstream and becomes part of an issue, so unusual characters are replaced.
            return None, re.sub(r"[^\w .,:;'()/-]", "?", error.what.replace(folder, ""), flags=re.ASCII)[:200]


def _codegen(files: Mapping[str, str]) -> tuple[dict[str, CodegenPin], dict[str, str]]:
    """Return the LLVMs for GPUs that pin files name, and the problems, both by LLVM's name for the target.

    For a target that is not in `TARGETS`, the key is the target's name in the name of the pin file.
    """
    pins: dict[str, CodegenPin] = {}
    odd: dict[str, str] = {}
    for name in sorted({match[1] for file in files if (match := _CODEGEN.fullmatch(file))}):
        pinned, built = (files.get(f"cmake/{name}-llvm-{what}.json") for what in ("info", "build-info"))
        if name not in TARGETS:
            odd[name] = "this tool does not know the target"
        elif pinned is None:
            odd[TARGETS[name]] = "upstream builds it, but does not pin it yet"
        elif (pin := _codegen_pin(TARGETS[name], pinned, built or "")) is None:
            odd[TARGETS[name]] = "its pin cannot be read"
        else:
            pins[pin.target] = pin
    return pins, odd


def _codegen_pin(target: str, pinned: str, built: str) -> CodegenPin | None:
    """Return the pin in the JSON document `pinned`; None if this document or `built` is invalid.

    The pin has a repository only if `built`, the JSON document about the next build, names the same commit.
    """
    try:
        said, ahead = json.loads(pinned), json.loads(built or "{}")
        llvm, build = said["llvm_hash"], said["build_number"]
        same = isinstance(ahead, dict) and ahead.get("llvm_hash") == llvm
        repository = ahead.get("repository", "") if same else ""
        named = not repository or REPOSITORY.fullmatch(repository)
        if not (is_commit(llvm) and type(build) is int and 0 <= build < 10**6 and named):
            return None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return CodegenPin(
        target=target, llvm=llvm, build=build, repository=repository, certainty="verified", source="its pin file"
    )


def _named(pin: CodegenPin) -> str:
    return f"{pin.revision} of {pin.repository or 'a repository that is not named'}"


def _codegen_findings(version: str, branch: str, entry: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about LLVMs for GPUs.

    For a tag that is not on record, only problems are yielded, because the tag is already a finding.
    """
    pins, odd = _codegen(entry["files"])
    who = f"Triton {version or branch}"
    where = f"tag v{version} is {entry['commit']}" if version else f"Triton's {branch} is at {entry['commit']}"
    for name, what in odd.items():
        yield Finding(f"{who} has an LLVM for {name}: {what}", where)
    if branch:
        known = {pin.revision for row in triton_releases() for pin in row.codegen}
        for pin in pins.values():
            if pin.revision not in known:
                title = f"LLVM {pin.llvm[:12]}-{pin.build} for {pin.target} of {who}"
                yield Finding(title, f"{where}; it pins {_named(pin)}")
        return
    row = next((one for one in triton_releases() if one.version == version), None)
    if row is None or not entry["files"]:
        return
    recorded = {pin.target: pin for pin in row.codegen}
    for target in sorted({*pins, *recorded} - set(odd)):
        here, there = pins.get(target), recorded.get(target)
        why = (
            f"{where}; it pins {_named(here) if here else 'none'}; the record has {_named(there) if there else 'none'}"
        )
        if here is None or there is None or here.revision != there.revision:
            yield Finding(f"{who} has another LLVM for {target} than on record", why)
        elif here.repository and here.repository != there.repository:
            yield Finding(f"{who}: the repository of its LLVM for {target} is not on record", why)


def _build(pin: LlvmPin | None, version: str, files: Mapping[str, str]) -> dict[str, str] | None:
    """Return the inputs of the build workflow; None if the workflow cannot build the pin."""
    if pin is None or any(_CODEGEN.fullmatch(name) for name in files):
        return None
    try:
        if version:
            needs_for(version)
    except ToolchainError:
        return None
    return {"source": f"llvm=https://github.com/{pin.repository}@{pin.commit}", "triton": version}


def _oldest_triton() -> tuple[int, ...]:
    return min(numbers(row.version)[:2] for row in triton_releases() if row.version)


def _oldest_aotriton() -> tuple[int, ...]:
    return min(numbers(row.name) for row in aotriton_releases())


def main(argv: Sequence[str]) -> int:
    """Print the findings as JSON, and return the exit code: 18 if git fails, otherwise 0.

    If the environment variable GITHUB_STEP_SUMMARY names a file, a table of the findings is appended to it.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facts", type=Path, help="file with recorded facts, to use no network")
    parser.add_argument("--record", type=Path, help="file for the facts")
    parser.add_argument("--triton", default=TRITON, help="URL or folder of the repository")
    parser.add_argument("--aotriton", default=AOTRITON, help="URL or folder of the repository")
    given = parser.parse_args(argv)
    try:
        facts = json.loads(given.facts.read_bytes()) if given.facts else gather(given.triton, given.aotriton)
    except CommandError as error:
        print(f"upstream does not answer: {error}", file=sys.stderr)
        return 18
    if given.record:
        given.record.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    found = findings(facts)
    print(json.dumps({"findings": [asdict(one) for one in found]}))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        rows = [f"| {one.title} | {one.why} | {'yes' if one.build else 'no'} |" for one in found]
        text = "\n".join(["| new | why | build |", "|---|---|---|", *rows]) if rows else "nothing new"
        with Path(summary).open("a", encoding="utf-8") as stream:
            stream.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
