"""The example of docs/trust.md, run as it is written, with a registry on loopback, the tool, openssl and cosign."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.evidence_fixtures import finished_base
from tests.unit.test_site import of_page
from tests.verifier_programs import UP, unpacked
from toolchain.core.cache import Cache

pytestmark = pytest.mark.registry
BLOCKS = {
    block.title.rpartition(", ")[2]: block.text
    for block in of_page("trust.md")
    if block.title.startswith("Run by tests/integration/test_trust_page.py")
}


@pytest.fixture
def cosign() -> Path:
    """Return the folder of trixie's cosign."""
    for program in ("docker-registry", "curl", "jq", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(
                f"{program} is NOT INSTALLED: the example of docs/trust.md is not run (apt-get install {program})"
            )
    if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        pytest.skip("NO NETWORK NAMESPACE here: the example of docs/trust.md is not run (it needs root)")
    return unpacked("cosign-2.5.0") / "usr" / "bin"


def run(script: str, folder: Path, cosign: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in an empty folder, in a network that has only loopback."""
    finished_base(Cache(folder / "cache"), folder / "work")
    here = folder / "here"
    here.mkdir()
    env = {
        "PATH": f"{Path(sys.executable).parent}:{cosign}:{os.environ['PATH']}",
        "HOME": str(folder),
        "TOOLCHAIN_CACHE": str(folder / "cache"),
    }
    words = ["unshare", "--net", sys.executable, "-c", UP, "sh", "-eu", "-c", script]
    with subprocess.Popen(
        words, cwd=here, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        try:
            out, err = running.communicate(timeout=1200)
        finally:
            with contextlib.suppress(ProcessLookupError):  # the registry still runs only after a failure
                os.killpg(running.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(words, running.returncode, out, err)


def test_example_runs_as_written(tmp_path: Path, cosign: Path) -> None:
    assert list(BLOCKS) == ["publish", "verify", "fetch", "openssl", "files", "cosign"]
    done = run("\n".join(BLOCKS.values()), tmp_path, cosign)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_part_of_the_example_accepts_only_its_key(tmp_path: Path, cosign: Path) -> None:
    script = BLOCKS["publish"] + "cp release-key.pub good\ntoolchain keygen other\n"
    for name in ("verify", "openssl", "cosign"):
        (tmp_path / name).write_text(BLOCKS["fetch"] + BLOCKS[name].replace("kill $!", ":"))
        script += f"cp good release-key.pub\nsh -eu {tmp_path / name}\necho accepted {name}\n"
        script += f"cp other.pub release-key.pub\nif sh -eu {tmp_path / name}; then exit 77; fi\necho refused {name}\n"
    done = run(script + "kill $!\n", tmp_path, cosign)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("accepted ", "refused "))]
    assert said == [f"{word} {name}" for name in ("verify", "openssl", "cosign") for word in ("accepted", "refused")]
