"""Containers from an image's files under an overlay, entered by pivot_root, with all rights of root.

They resemble containers of an orchestrator more than those of buildah do, because the tool may make namespaces in them.
The program `python rooted.py SPEC PROGRAM [ARGUMENT...]` enters a container; see `Rooted.command`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.engine import launcher

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2


def unpacked(layout: Path, digest: str, folder: Path) -> tuple[Path, ...]:
    """Unpack the layers of an image with their owners into folders below `folder`; return them, uppermost first."""
    manifest = json.loads((layout / "blobs" / digest.replace(":", "/")).read_bytes())
    found = []
    for layer in manifest["layers"]:
        blob = layout / "blobs" / layer["digest"].replace(":", "/")
        place = folder / blob.name[:12]
        if not place.is_dir():
            place.mkdir(parents=True)
            subprocess.run(["tar", "-xp", "--numeric-owner", "-f", blob, "-C", place], check=True)
        found.append(place)
    return tuple(reversed(found))


@dataclass(frozen=True)
class Rooted:
    """A container.

    Args:
        lower: folders with the initial files, uppermost first.
        place: a folder for the changes; a container with the folder of another one continues from its changes.
    """

    lower: tuple[Path, ...]
    place: Path

    @property
    def upper(self) -> Path:
        """Return the folder with the changes, which can be a lower folder of another container."""
        return self.place / "upper"

    def command(
        self, argv: Sequence[str], *, binds: Sequence[tuple[Path, str, bool]] = (), env: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return the command line that runs `argv` in the container, in new PID and mount namespaces.

        Args:
            binds: bind mounts: the path outside, the path inside, and whether the mount is writable.
            env: variables in addition to a default PATH.
        """
        for name in ("upper", "work", "root"):
            (self.place / name).mkdir(parents=True, exist_ok=True)
        spec = {
            "lower": [os.fspath(path) for path in self.lower],
            "place": os.fspath(self.place),
            "binds": [(os.fspath(source), target, writable) for source, target, writable in binds],
            "env": {"PATH": _PATH, **(env or {})},
        }
        wrapper = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--"]
        return [*wrapper, sys.executable, __file__, json.dumps(spec), *argv]


def _enter(spec: dict[str, Any], argv: list[str]) -> None:
    place = Path(spec["place"])
    root, mount = place / "root", launcher._mount
    mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    layers = f"lowerdir={':'.join(spec['lower'])},upperdir={place / 'upper'},workdir={place / 'work'}"
    mount("overlay", str(root), "overlay", 0, layers)
    for name in ("proc", "dev", "sys", "old"):
        (root / name).mkdir(exist_ok=True)
    for name in ("dev", "sys"):
        mount(f"/{name}", str(root / name), None, _MS_BIND | _MS_REC)
    mount("proc", str(root / "proc"), "proc", 0)
    for source, target, writable in spec["binds"]:
        inside = root / target.lstrip("/")
        if Path(source).is_dir():
            inside.mkdir(parents=True, exist_ok=True)
        else:
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.touch()
        mount(source, str(inside), None, _MS_BIND | _MS_REC)
        if not writable:
            mount(None, str(inside), None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
    launcher._check(launcher._LIBC.pivot_root(os.fsencode(root), os.fsencode(root / "old")), "pivot_root")
    os.chdir("/")
    launcher._check(launcher._LIBC.umount2(b"/old", _MNT_DETACH), "umount")
    Path("/old").rmdir()
    os.execvpe(argv[0], argv, spec["env"])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    _enter(json.loads(sys.argv[1]), sys.argv[2:])
