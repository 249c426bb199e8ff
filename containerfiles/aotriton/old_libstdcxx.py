"""Edit a copy of AOTriton's source so that it compiles with the libstdc++ of GCC 10.

    old_libstdcxx.py SOURCE

AOTriton 0.13 and newer use heterogeneous lookup in hash tables, which libstdc++ supports only since GCC 11. The edits
convert the arguments of `find` to the key type. A file without the old strings in `EDITS` is not changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Each edit consists of a file, an old string and a new string.
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
