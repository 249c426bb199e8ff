"""Has a copy of AOTriton's source compile with the libstdc++ of GCC 10.

From 0.13 on it looks into hash tables by something else than their key, which libstdc++ can do since GCC 11. The key
itself finds the same, for a copy of a short text.

    old_libstdcxx.py SOURCE

A source without these lines is left alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

# File, anchor, and our text in its place.
EDITS = (
    ("v3src/packed_kernel_common.cc", "registry_.find(flatzip_path)", "registry_.find(pstring_type(flatzip_path))"),
    ("v3src/packed_kernel_common.cc", ".find(aks2_entry)", ".find(std::string(aks2_entry))"),
)


def main(source: Path) -> None:
    """Change the files below `source`, and say what was changed."""
    for name, anchor, text in EDITS:
        path = source / name
        content = path.read_text(encoding="utf-8") if path.is_file() else ""
        if count := content.count(anchor):
            path.write_text(content.replace(anchor, text), encoding="utf-8")
            sys.stdout.write(f"{name}: {count} times {text}, for the libstdc++ of GCC 10\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
