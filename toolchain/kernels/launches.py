"""Write the file with the launch values of an AOTriton pack.

The file is JSON, `{"format": 1, "functions", "signatures", "kernels"}`. A function is `[source, kernel, [argument…]]`.
A signature is `[function, [part…]]`, where a part is a type, or a list with the value that is compiled in. A kernel is
`[signature, GPU, warps, bytes of Triton's own scratch memory]` under the key `archive/cluster/name`, or `cluster/name`
for a cluster in no .zip. Signatures refer to functions, and kernels refer to signatures, by their position in the list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any

from toolchain.kernels.aotriton_plan import Archive, Cluster
from toolchain.kernels.rules import Rule

NAME = "__launch__"
FORMAT = 1


def launch_files(
    rules: Iterable[Rule],
    clusters: Iterable[Cluster],
    archives: Iterable[Archive],
    scratch: Callable[[str], int | None],
) -> dict[str, bytes]:
    """Return the content of the file `NAME` of each pack with compiled kernels, by pack, such as `amd-gfx942`.

    Args:
        scratch: a function that returns how many bytes of Triton's own scratch memory the code object at a path
            needs; None if the object did not compile.
    """
    by_out, by_path = {rule.out: rule for rule in rules}, {cluster.path: cluster for cluster in clusters}
    files: dict[str, _File] = {}
    for archive in archives:
        for member, name in archive.members:
            for out, inside in by_path[member].objects:
                rule = by_out.get(out)
                wanted = scratch(out) if rule is not None else None
                if rule is not None and wanted is not None:
                    pack, _, rest = archive.path.partition("/")[2].partition("/")
                    key = f"{_stem(rest, name)}/{inside}"
                    files.setdefault(pack, _File()).add(key, rule, wanted)
    return {pack: file.content() for pack, file in files.items()}


def _stem(archive: str, member: str) -> str:
    """Return the name of a cluster. The name begins with that of the .zip if the cluster is in one."""
    own = member.removesuffix(".aks2")
    return f"{archive.removesuffix('.zip')}/{own}" if archive.endswith(".zip") else archive.removesuffix(".aks2")


class _File:
    def __init__(self) -> None:
        self._functions: dict[tuple[Any, ...], int] = {}  # the values are positions in the list `functions` of the file
        self._signatures: dict[tuple[Any, ...], int] = {}
        self._kernels: dict[str, list[Any]] = {}

    def add(self, key: str, rule: Rule, scratch: int) -> None:
        source = PurePosixPath(rule.source).relative_to(rule.root or ".").as_posix()
        names = tuple(name for name, _ in rule.signature)
        function = self._functions.setdefault((source, rule.kernel, names), len(self._functions))
        values = dict(rule.constexprs)
        parts = tuple((values[name],) if kind == "constexpr" else kind for name, kind in rule.signature)
        signature = self._signatures.setdefault((function, parts), len(self._signatures))
        self._kernels[key] = [signature, rule.target, rule.num_warps, scratch]

    def content(self) -> bytes:
        value = {
            "format": FORMAT, "functions": list(self._functions), "signatures": list(self._signatures),
            "kernels": dict(sorted(self._kernels.items())),
        }  # fmt: skip
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode() + b"\n"
