"""Print `static FILE` for each statically linked 64-bit program in the folders of $PATH.

Libraries cannot be preloaded into such a program.
"""

import os
import struct

_INTERPRETER = 3  # PT_INTERP
_EXECUTABLES = (2, 3)  # ET_EXEC, ET_DYN


def is_static(path: str) -> bool:
    """Return whether a file is a 64-bit ELF program without an interpreter; False if the file cannot be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a base may have any Python 3
            head = file.read(4096)
    except OSError:
        return False
    if head[:6] != b"\x7fELF\x02\x01" or head[16] not in _EXECUTABLES:
        return False
    start = struct.unpack_from("<Q", head, 32)[0]
    size, count = struct.unpack_from("<HH", head, 54)
    return all(
        struct.unpack_from("<I", head, start + number * size)[0] != _INTERPRETER
        for number in range(count)
        if start + number * size + 4 <= len(head)
    )


found = set()
for folder in os.environ["PATH"].split(":"):
    for name in os.listdir(folder) if os.path.isdir(folder) else ():  # noqa: PTH112, PTH208
        found.add(os.path.realpath(os.path.join(folder, name)))  # noqa: PTH118
for program in sorted(found):
    if is_static(program):
        print("static", program)  # noqa: T201
