"""A network namespace for each process that compiles, where no engine gives one: inside the image of a kernel worker.

The kernel gives a namespace to root with CAP_SYS_ADMIN, or to anybody along with a user namespace, where it allows
that. Each process proves its own before it becomes what it was started for.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolchain.core import process, strict_json
from toolchain.core.errors import EngineError

# Standard library alone, and it is the process that compiles: what it sees is what that sees.
_BECOME = """
import json, os, socket, sys
seen = sorted(name for _, name in socket.if_nameindex())
if not sys.argv[1:]:
    print(json.dumps(seen))
elif seen != ["lo"]:
    sys.exit("toolchain: a process that compiles must see no network, and sees " + ", ".join(seen))
else:
    os.execvp(sys.argv[1], sys.argv[1:])
"""
# Tried in this order. In a user namespace the process has the rights of root over the namespace alone.
WAYS = (("unshare", "--net", "--"), ("unshare", "--user", "--map-current-user", "--net", "--"))
_SECONDS = 60.0


def without_network(argv: Sequence[str], way: Sequence[str]) -> list[str]:
    """The command line that runs `argv` in a network namespace of its own.

    Args:
        way: from `proved`.
    """
    return [*way, *process.python("-c", _BECOME, *argv)]


def proved(ways: Sequence[Sequence[str]] = WAYS) -> tuple[str, ...]:
    """The first of the ways by which a process here sees no interface but `lo`, which is down in a new namespace.

    Raises:
        EngineError: none.
    """
    refused: list[str] = []
    for way in ways:
        tried = process.run(without_network((), way), capture=True, check=False, timeout=_SECONDS)
        if tried.returncode != 0:
            refused.append(f"{' '.join(way[:-1])}: {' '.join(tried.tail[-2:]) or f'exited with {tried.returncode}'}")
        elif (seen := strict_json.read(tried.stdout)) != ["lo"]:
            refused.append(f"{' '.join(way[:-1])}: it sees {', '.join(seen)}")
        else:
            return tuple(way)
    raise EngineError(
        "kernels would compile with a network, so nothing is compiled here",
        why="\n".join(refused),
        fix="give the container the right to make a namespace: --cap-add SYS_ADMIN, or user namespaces"
        " (a seccomp profile that allows unshare)",
    )
