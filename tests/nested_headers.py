"""A tar file with 3000 extended headers, which exceed the recursion limit because tarfile nests the calls for them."""

from __future__ import annotations

import tarfile


def nested_headers() -> bytes:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 512
    extended = header.tobuf(format=tarfile.USTAR_FORMAT) + b"12 a=bcdefg\n".ljust(512, b"\0")
    return extended * 3000 + tarfile.TarInfo("y").tobuf() + bytes(1024)
