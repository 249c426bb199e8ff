"""The name of a kernel's result: a digest of all that its compile process can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from toolchain.core.digest import canonical, sha256_bytes, sha256_json
from toolchain.kernels.reached import Reach
from toolchain.kernels.rules import Rule

# Raised when the same inputs would give a different result, or the form of records changes.
FORMAT = 1


class Naming:
    """Names the results of one campaign.

    Args:
        tree: the kernels' source tree on this machine.
        triton: diff_ids of the Triton image, lowest first. By content: its labels say when and from what it was
            built, which no kernel sees.
        recipe: digests of the files of ours that run beside Triton: the worker, and modules that replace upstream's.
        environment: all variables of the compile processes.
        command: their command line.
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
        # The inputs of all results of the campaign.
        self.shared: Mapping[str, Any] = {
            "format": FORMAT,
            "triton": list(triton),
            "recipe": dict(recipe),
            "environment": dict(environment),
            "command": list(command),
        }

    @property
    def tree(self) -> str:
        """`sha256:…` of the whole source tree."""
        return sha256_json(self._reach.whole)

    @cached_property
    def scope(self) -> str:
        """12 hex digits that all results of one Triton, recipe and environment share."""
        return sha256_json(self.shared).removeprefix("sha256:")[:12]

    def inputs(self, rule: Rule) -> dict[str, Any]:
        """The inputs of a rule's result as JSON, without the path of the result."""
        task = rule.task("/", "/")
        decides = {name: value for name, value in task.items() if name not in {"id", "out"}}
        return {
            **self.shared,
            "rule": {**decides, "root": rule.root, "source": rule.source},
            "sources": self._sources(rule)[1],
        }

    def files(self, rule: Rule) -> str:
        """The name of the set of source files that a rule's compile process sees; `content` lists them.

        Rules of one set have the same root. A process serves one set, because a module of another set could have
        changed the compiler in the memory of the process.
        """
        return self._sources(rule)[0]

    def content(self, files: str) -> Mapping[str, str]:
        """The files of a set, see `Reach.digests`.

        Args:
            files: as `files` returned it.
        """
        return self._sets[files]

    def _sources(self, rule: Rule) -> tuple[str, str]:
        """The set of a rule's source files, and their digest."""
        key = (rule.root, rule.source)
        if key not in self._set_of:
            digests = self._reach.digests(*key)
            digest = sha256_json(digests)
            files = sha256_json([rule.root, digest]).removeprefix("sha256:")
            self._sets[files] = digests
            self._set_of[key] = files, digest
        return self._set_of[key]


def name_of(inputs: Mapping[str, Any]) -> str:
    """The name of what depends on `inputs`."""
    return sha256_bytes(canonical(inputs)).removeprefix("sha256:")
