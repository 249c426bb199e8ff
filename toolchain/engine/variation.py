"""Change the conditions that a build must not depend on, for `reproduce --vary`.

The list of conditions comes from reprotest. Containerfile instructions in builds and command lines in other containers
change environment variables and the umask. Programs and libraries of this machine (setarch, taskset, libfaketime,
disorderfs) change the other conditions, except for the heap, for which `data/vary/heap.c` is compiled in the base.
"""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from toolchain.core import process
from toolchain.core.recipe import Mount
from toolchain.engine import relay

_FILES = Path(__file__).parents[1] / "data" / "vary"
TARGET = "/run/toolchain-vary"
"""The folder at which the preloaded libraries are mounted in a container."""
_SEEN = "/vary"
_PRELOAD, _CLOCK = "/etc/ld.so.preload", "/etc/faketimerc"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# This script mounts source trees with disorderfs and then runs a command. `wrap` runs the script in a new mount
# namespace, and disorderfs ends with the command. The mounts are read-only, so that the command cannot change the
# sources.
_REORDER = """
order=$1 left=$2; shift 2
while [ "$left" -gt 0 ]; do
  setpriv --pdeathsig KILL \\
    disorderfs -f -o ro,allow_other --quiet --sort-dirents=yes "$order" "$1" "$2" </dev/null &
  tries=100
  until mountpoint -q "$2"; do
    tries=$((tries - 1))
    if [ "$tries" = 0 ]; then echo "toolchain: disorderfs does not mount $1" >&2; exit 1; fi
    sleep 0.1
  done
  left=$((left - 1)); shift 2
done
exec "$@"
"""
ALWAYS_FIXED = {
    "user": "every build runs as root of a user namespace of its own",
    "host-name": "it is `toolchain` in every container",
    "build-path": "it is the same in every container",
}
"""The conditions that are the same in every container, each with the reason."""


@dataclass
class Variation:
    """The changed conditions of one build.

    Args:
        seed: the number from which all new values are derived. They also depend on the processors that this process
            may use.

    Attributes:
        conditions: the new value of each changed condition.
        fixed: the reason for each condition that was not changed.
        static: the programs of the base that are linked statically, and so do not load the preloaded libraries.
    """

    seed: int
    conditions: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=lambda: dict(ALWAYS_FIXED))
    static: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        choose = random.Random(self.seed)  # noqa: S311 - the values must be repeatable, and need not be secret
        self._heap = choose.randrange(1, 2**31)
        self._days = choose.randrange(200, 900)
        self._reverse = choose.random() < 0.5
        self._cpus = sorted(os.sched_getaffinity(0))
        self._cpu = choose.choice(self._cpus)
        self._umask = choose.choice(("0002", "0077"))
        hours = choose.choice((-11, 11, 13))
        self._variables = {
            "TZ": f"VARY{-hours:+d}:30",
            "LANG": choose.choice(("tr_TR.UTF-8", "de_CH.UTF-8", "C")),
            "LC_ALL": choose.choice(("C", "POSIX", "C.UTF-8")),
            "HOME": f"/nonexistent/{choose.randrange(10**6)}",
            "PATH": f"{_PATH}:/nonexistent/{choose.randrange(10**6)}",
            "TOOLCHAIN_VARIED": "x" * choose.randrange(1, 500),
            # libfaketime moves the times that `stat` returns, but not those that `stat64` returns. CMake calls `stat`,
            # and ninja calls `stat64`, so ninja would build everything again after a resume.
            "NO_FAKE_STAT": "1",
            # If the clock is ahead, ccache removes temporary files that are in use, because they seem old.
            "CCACHE_DISABLE": "1",
        }
        names = {"TZ": "time-zone", "HOME": "home", "PATH": "exec-path"}
        self.conditions |= {word: self._variables[name] for name, word in names.items()}
        self.conditions["locale"] = " ".join(f"{name}={self._variables[name]}" for name in ("LANG", "LC_ALL"))
        self.conditions["environment"] = f"TOOLCHAIN_VARIED with {len(self._variables['TOOLCHAIN_VARIED'])} bytes"
        self.conditions["umask"] = self._umask
        self._prepared: dict[str, list[Mount]] = {}

    def wrap(self, argv: Sequence[str], trees: Sequence[tuple[Path, Path]] = ()) -> list[str]:
        """Return a command line that runs an engine's command `argv` under programs that change conditions for it.

        The changed conditions also apply to the containers that the engine starts.

        Args:
            trees: pairs of a source tree and the empty folder where the tree is mounted with reordered entries.
        """
        words = [*self._outside, *argv]
        if not trees:
            return words
        order = f"--reverse-dirents={'yes' if self._reverse else 'no'}"
        pairs = [os.fspath(path.absolute()) for pair in trees for path in pair]
        return ["unshare", "--mount", "sh", "-c", _REORDER, "sh", order, str(len(trees)), *pairs, *words]

    def shown(
        self, mounts: Sequence[Mount], preloaded: Sequence[Mount], folder: Path
    ) -> tuple[list[Mount], list[str], list[tuple[Path, Path]]]:
        """Return a build's changed mounts, the additional options, and the source trees for `wrap`.

        Args:
            preloaded: the mounts of the preloaded libraries; see `take`.
            folder: the invocation's folder, where the reordered trees are mounted.
        """
        trees: list[tuple[Path, Path]] = []
        seen = [Mount(mount.source, f"/vary/{number}") for number, mount in enumerate(preloaded)]
        pairs = [Mount(Path(f"/vary/{number}"), mount.target).arguments() for number, mount in enumerate(preloaded)]
        for mount in mounts:
            if self.reorders and mount.target.startswith("/contexts/"):
                place = folder / "reordered" / Path(mount.target).name
                place.mkdir(parents=True)
                trees.append((mount.source, place))
                seen.append(replace(mount, source=place))
            else:
                seen.append(mount)
        return seen, [word for pair in pairs for word in pair], trees

    @cached_property
    def reorders(self) -> bool:
        """Whether source trees can be mounted with their entries reordered.

        The first access mounts a folder as a test, and records the result in `conditions` or `fixed`.
        """
        if process.find("disorderfs") is None:
            self.fixed["file-order"] = "disorderfs is not installed (apt-get install disorderfs)"
            return False
        with tempfile.TemporaryDirectory(prefix="toolchain-vary-") as scratch:
            tree, place = Path(scratch) / "tree", Path(scratch) / "place"
            (tree / "entry").mkdir(parents=True)
            place.mkdir()
            words = self.wrap(["test", "-d", os.fspath(place / "entry")], [(tree, place)])
            if process.run(words, check=False, timeout=60).returncode != 0:
                self.fixed["file-order"] = "disorderfs cannot mount a folder; it needs FUSE and root privileges"
                return False
        self.conditions["file-order"] = "sorted backwards" if self._reverse else "sorted"
        return True

    @cached_property
    def _outside(self) -> list[str]:
        words: list[str] = []
        if process.find("setarch") is None:
            self.fixed |= dict.fromkeys(("aslr", "kernel"), "setarch is not installed")
        else:
            self.conditions |= {"aslr": "off", "kernel": "2.6"}
            words += ["setarch", platform.machine(), "--addr-no-randomize", "--uname-2.6"]
        if process.find("taskset") is None:
            self.fixed["cpus"] = "taskset is not installed"
        else:
            words += ["taskset", "--cpu-list", str(self._cpu)]
            if len(self._cpus) > 1:
                self.conditions["cpus"] = f"only processor {self._cpu}"
            else:
                self.fixed["cpus"] = "this machine has one processor"
        return words

    def instructions(self, *, relayed: bool) -> list[str]:
        """Return the instructions that change environment variables and the umask for the RUN steps of a stage.

        Args:
            relayed: whether RUN steps write to pipes; see `engine.relay`.
        """
        variables = " ".join(f"{name}={json.dumps(value)}" for name, value in self._variables.items())
        into = f" >{relay.TARGET}/out 2>&1" if relayed else ""
        shell = ["/bin/sh", "-c", f'umask {self._umask}; exec /bin/sh -c "$0"{into}']
        return [f"ENV {variables}", "SHELL " + json.dumps(shell)]

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Return a command line that runs `argv` in a container with the changed umask."""
        return ["/bin/sh", "-c", f'umask {self._umask}; exec "$@"', "sh", *argv]

    @property
    def variables(self) -> Mapping[str, str]:
        return self._variables

    def prepare(self, place: Path) -> tuple[list[str], Mount]:
        """Return the command that builds the preloaded libraries in a container, and the mount that it needs.

        The caller passes the output of the command to `take`.

        Args:
            place: the folder to create for the libraries and the files to compile.
        """
        place.mkdir(parents=True)
        for file in _FILES.iterdir():
            shutil.copy(file, place)
        clock = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
        if clock is not None:
            shutil.copy(clock, place / "clock.so")
        command = f"cd {_SEEN}; SEED={self._heap} DAYS={self._days} PATH={_PATH} exec sh prepare.sh"
        return ["/bin/sh", "-c", command], Mount(place, _SEEN, read_only=False)

    def take(self, image: str, place: Path, printed: str) -> list[Mount]:
        """Return the mounts of the libraries for containers of `image`, and record which conditions they change.

        Args:
            place: the folder that `prepare` created.
            printed: the output of the command of `prepare` in a container of `image`.
        """
        words = [line.split(" ", 1) for line in printed.splitlines()]
        works = {line[0] for line in words}
        libraries = []
        if "heap" in works:
            libraries.append("heap.so")
            self.conditions["heap"] = f"blocks in a random order (seed {self._heap})"
        else:
            self.fixed["heap"] = "no C compiler of the base built a library that can be preloaded"
        if "clock" in works:
            libraries.append("clock.so")
            self.conditions["time"] = f"{self._days} days ahead"
            (place / "clock").write_text(f"+{self._days}d\n", encoding="ascii")
        elif (place / "clock.so").exists():
            self.fixed["time"] = "this machine's libfaketime does not load in the base"
        else:
            self.fixed["time"] = "libfaketime is not installed (apt-get install libfaketime)"
        self.static = sorted({*self.static, *(line[1] for line in words if line[0] == "static" and len(line) > 1)})
        if "unknown" in works:
            self.fixed["static-programs"] = "the base has no python3, which the search for them needs"
        (place / "preload").write_text("".join(f"{TARGET}/{name}\n" for name in libraries), encoding="ascii")
        shown = [Mount(place, TARGET), Mount(place / "preload", _PRELOAD)]
        if "clock" in works:
            shown.append(Mount(place / "clock", _CLOCK))
        self._prepared[image] = shown
        return shown

    def known(self, image: str) -> list[Mount] | None:
        """Return the mounts that `take` returned for `image`; None if there was no such call."""
        return self._prepared.get(image)

    def as_json(self) -> dict[str, Any]:
        """Return the seed, the changed and unchanged conditions and `static` as `reproduce --json` prints them."""
        if not self._prepared:
            reason = "the build started no container"
            return {"seed": self.seed, "changed": {}, "unchanged": {"every-condition": reason}, "static": []}
        fixed = dict(self.fixed)
        if "file-order" not in self.conditions:
            fixed.setdefault("file-order", "no `buildah build` mounted a source tree, and only those are reordered")
        return {
            "seed": self.seed,
            "changed": dict(sorted(self.conditions.items())),
            "unchanged": dict(sorted(fixed.items())),
            "static": self.static,
        }
