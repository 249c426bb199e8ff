"""Read the launch values of AOTriton's kernels, from the file in a pack or from the generator's rules.

`toolchain.kernels.launches` writes the file and describes its format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from toolchain.kernels.launches import FORMAT
from toolchain.kernels.rules import Rule


class Launches:
    """The launch values of the kernels in a pack.

    ValueError is raised for a format other than `FORMAT`, and ValueError, LookupError, TypeError or AttributeError for
    a malformed file.

    Args:
        content: the parsed JSON of the file.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        if content.get("format") != FORMAT:
            raise ValueError(f"its format is {content.get('format')!r}, not {FORMAT}")
        self._functions, self._signatures = content["functions"], content["signatures"]
        self.kernels: Mapping[str, Any] = content["kernels"]
        for key in self.kernels:
            self.metadata(key, 0)  # raises an error if a row is malformed

    def metadata(self, key: str, shared: int) -> dict[str, Any]:
        """Return the launch values of the kernel at `key` in the file; its object needs `shared` bytes of LDS."""
        signature, gpu, warps, scratch = self.kernels[key]
        function, parts = self._signatures[signature]
        source, kernel, names = self._functions[function]
        pairs = list(zip(names, parts, strict=True))
        return {
            "name": kernel, "arch": gpu, "source": source, "num_warps": warps, "shared": shared,
            "global_scratch_size": scratch,
            "signature": [[name, part if isinstance(part, str) else "constexpr"] for name, part in pairs],
            "constexprs": {name: part[0] for name, part in pairs if not isinstance(part, str)},
        }  # fmt: skip


def of_rule(rule: Rule, shared: int) -> dict[str, Any]:
    """Return the launch values of a rule whose object needs `shared` bytes of LDS.

    The size of the scratch memory is 0, because a rule does not state it.
    """
    values = dict(rule.constexprs)
    return {
        "name": rule.kernel, "arch": rule.target, "num_warps": rule.num_warps, "shared": shared,
        "source": PurePosixPath(rule.source).relative_to(rule.root or ".").as_posix(),
        "global_scratch_size": 0,
        "signature": [[name, kind] for name, kind in rule.signature],
        "constexprs": {name: values[name] for name, kind in rule.signature if kind == "constexpr"},
    }  # fmt: skip
