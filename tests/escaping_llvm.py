"""An LLVM source tree whose CMake files try to leave the build, and a check of the build's log."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from tests import escape_attempts
from tests.hostile_llvm import hostile_llvm
from toolchain.engine import attack

# The script runs the two programs and adds attempts of an attacker who knows paths of the host.
_PROBE = """
here=$(dirname "$0")
python3 -I -S -B "$here/attack.py" SECRET
python3 -I -S -B "$here/escape_attempts.py" "$here/given.json"
for path in OWNED "/proc/1/root/OWNED" "/proc/1/cwd/OWNED"; do
  if { echo owned >"$path"; } 2>/dev/null; then echo "@out a file outside: $path"; rm -f "$path"; fi
done
perl -e 'opendir(my $d, "/") && mkdir("/second") && chroot("/second") && chdir($d) && exit 0; exit 1' 2>/dev/null &&
  echo "@out chroot by perl: it worked"
id -u; head -3 /proc/self/uid_map
echo "@tried everything"
"""


def escaping_llvm(folder: Path, *, secret: Path, owned: Path) -> Path:
    """Make the tree in `folder`.

    Args:
        secret: a file of the caller that the build tries to find; it is created here, readable only by its owner.
        owned: a file outside of the build that the build tries to write.
    """
    script = _PROBE.replace("OWNED", os.fspath(owned)).replace("SECRET", os.fspath(secret))
    tree = hostile_llvm(folder, probe=script, says=f"from {os.getpid()}")
    secret.write_text("a key")
    secret.chmod(0o600)
    unseen = [os.fspath(secret.parent), os.fspath(folder)]
    write_attempts(tree / "llvm", unseen=unseen, locked="/src/llvm")
    shutil.copy(attack.__file__, tree / "llvm")
    return tree


def write_attempts(folder: Path, *, unseen: list[str], locked: str, written: str = "") -> None:
    """Write the program `escape_attempts.py` and its input `given.json`; for the arguments see `Given`."""
    number = folder.stat().st_dev
    given: escape_attempts.Given = {
        "unseen": unseen,
        "locked": locked,
        "written": written,
        "disk": (os.major(number), os.minor(number)),
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "ipc", "net")},  # noqa: PTH115
    }
    (folder / "given.json").write_text(json.dumps(given))
    shutil.copy(escape_attempts.__file__, folder)


def require_nothing_left(said: str, owned: Path) -> None:
    """Check that a build of the tree, whose log is named in `said`, made every attempt, and that all failed."""
    found = re.search(r"full log: (\S+/llvm-[^/\s]+\.log)", said)
    assert found, said
    lines = Path(found[1]).read_text(encoding="utf-8").splitlines()
    assert "@tried everything" in lines, lines[-20:]
    assert [line for line in lines if line.startswith("@out")] == []
    assert {line.removeprefix("@held ") for line in lines if line.startswith("@held ")} == {
        *attack.ATTEMPTS,
        *escape_attempts.ATTEMPTS,
    }
    assert not owned.exists()
