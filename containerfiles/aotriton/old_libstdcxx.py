"""Make a copy of AOTriton's source compile with the libstdc++ of GCC 10.

AOTriton 0.13 and newer search hash tables for values of another type than the key type. libstdc++ supports such a
search only from GCC 11 on. The edits convert the value to the key type.

    old_libstdcxx.py SOURCE

A source without the old texts in `EDITS` is not changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

# (file, old text, new text)
EDITS = (
    ("v3src/packed_kernel_common.cc", "registry_.find(flatzip_path)", "registry_.find(pstring_type(flatzip_path))"),
    ("v3src/packed_kernel_common.cc", ".find(aks2_entry)", ".find(std::string(aks2_entry))"),
)


def main(source: Path) -> None:
    """Edit the files below `source` and print the edits."""
    for name, anchor, text in EDITS:
        path = source / name
        content = path.read_text(encoding="utf-8") if path.is_file() else ""
        if count := content.count(anchor):
            path.write_text(content.replace(anchor, text), encoding="utf-8")
            sys.stdout.write(f"{name}: {count} times {text}, for the libstdc++ of GCC 10\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
