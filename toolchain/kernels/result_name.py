"""Name a kernel's result by a digest of all inputs of its compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from toolchain.core.digest import canonical, sha256_bytes, sha256_json
from toolchain.kernels.reached import Reach
from toolchain.kernels.rules import Rule

# Increase this number when a change of this tool alters the results for the same inputs, or the form of records.
FORMAT = 1


class Naming:
    """The inputs of one campaign from which the names of its results are computed.

    Args:
        triton: the diff_ids of the Triton image's layers, lowest first.
        recipe: the digests of the recipe's files that run with Triton, by path.
        environment, command: all environment variables and the command line of the compile processes.
        search: see `Reach`.
    """

    def __init__(
        self,
        tree: Path,
        *,
        triton: Sequence[str],
        recipe: Mapping[str, str],
        environment: Mapping[str, str],
        command: Sequence[str] = (),
        search: Sequence[str] = (),
    ) -> None:
        self.folder = tree
        self._reach = Reach(tree, search)
        self._sets: dict[str, Mapping[str, str]] = {}
        self._set_of: dict[tuple[str, str], tuple[str, str]] = {}
        self.shared: Mapping[str, Any] = {
            "format": FORMAT,
            "triton": list(triton),
            "recipe": dict(recipe),
            "environment": dict(environment),
            "command": list(command),
        }

    @property
    def tree(self) -> str:
        return sha256_json(self._reach.whole)

    @cached_property
    def scope(self) -> str:
        """12 hex digits of a digest of the inputs that all results share, such as the Triton image and the recipe."""
        return sha256_json(self.shared).removeprefix("sha256:")[:12]

    def inputs(self, rule: Rule) -> dict[str, Any]:
        """Return the inputs of a rule's result as a JSON object. The rule's id and output path are not inputs."""
        task = rule.task("/", "/")
        decides = {name: value for name, value in task.items() if name not in {"id", "out"}}
        return {
            **self.shared,
            "rule": {**decides, "root": rule.root, "source": rule.source},
            "sources": self._sources(rule)[1],
        }

    def files(self, rule: Rule) -> str:
        """Return the name of the set of source files that a rule's compile process sees; `content` lists the files.

        A process compiles rules of only one set, because a module of another set could have changed the compiler in its
        memory.
        """
        return self._sources(rule)[0]

    def content(self, files: str) -> Mapping[str, str]:
        """Return the digests of the files in the set with this name; see `Reach.digests`."""
        return self._sets[files]

    def _sources(self, rule: Rule) -> tuple[str, str]:
        """Return the name of a rule's set of source files, and the digest of the files."""
        key = (rule.root, rule.source)
        if key not in self._set_of:
            digests = self._reach.digests(*key)
            digest = sha256_json(digests)
            files = sha256_json([rule.root, digest]).removeprefix("sha256:")
            self._sets[files] = digests
            self._set_of[key] = files, digest
        return self._set_of[key]


def name_of(inputs: Mapping[str, Any]) -> str:
    """Return the name of the result with these inputs: a SHA-256 in 64 hex digits."""
    return sha256_bytes(canonical(inputs)).removeprefix("sha256:")
