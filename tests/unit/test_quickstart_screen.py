"""The screen and the log of ./quickstart, with fakes of the programs that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
_NOISE = "for at in $(seq 100); do echo noise of $0 $at; echo more $at >&2; done"
# The programs answer as on a machine without any package, where the user is root.
_PROGRAMS = {"id": "echo 0", "dpkg-query": "exit 1", "apt-get": _NOISE, "apt-cache": "exit 0"}


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def quickstart(folder: Path, toolchain: str, apt: str = _NOISE) -> tuple[subprocess.CompletedProcess[str], str]:
    for name, text in {**_PROGRAMS, "apt-get": apt}.items():
        program(folder / "bin" / name, text)
    venv = folder / "venv"
    program(venv / "bin/toolchain", toolchain)
    # The fake pip prints many lines; the last script prints one line.
    program(
        venv / "bin/python",
        f'case "$*" in *" pip install"*) {_NOISE};; *json.load*) echo one two;; *summary*) echo made;; esac',
    )
    checkout = folder / "checkout"
    for name in ("quickstart", "pyproject.toml", "lab/pyproject.toml", "requirements/run.lock", "scripts/prepare.sh"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_bytes((TOP / name).read_bytes())
    out = folder / "to/out"
    environment = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "TOOLCHAIN_VENV": str(venv),
        "QUICKSTART_OUT": str(out),
    }
    words = ["/bin/sh", str(checkout / "quickstart")]
    # A shell cannot trap SIGINT if the process that starts it ignores this signal, as background jobs do.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    finally:
        signal.signal(signal.SIGINT, before)
    return done, (folder / "to/out.log").read_text()


def test_output_of_apt_pip_and_build_is_only_in_the_log(tmp_path: Path) -> None:
    done, log = quickstart(tmp_path, f'[ "$1" = verify ] && echo trusted && exit; {_NOISE}')
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["trusted", "made"]
    assert "noise" not in done.stderr
    assert len(done.stderr.splitlines()) <= 20
    for name in ("apt-get", "python", "toolchain"):
        assert f"{name} 100" in log


@pytest.mark.parametrize("verb", ["build", "verify"])
def test_failed_step_shows_its_reason_and_keeps_its_exit_code(tmp_path: Path, verb: str) -> None:
    done, log = quickstart(tmp_path, f'[ "$1" != {verb} ] || {{ echo the reason >&2; exit 17; }}')
    assert done.returncode == 17
    assert "the reason" in done.stderr
    assert str(tmp_path / "to/out.log") in done.stderr
    assert ("the reason" in log) == (verb != "verify"), "the result of verify is on the screen"
    assert "== done" not in done.stderr


def test_reason_of_failed_kernels_is_last_in_the_log(tmp_path: Path) -> None:
    done, log = quickstart(tmp_path, f'[ "$2" != kernels ] || {{ echo the reason >&2; exit 21; }}; {_NOISE}')
    assert done.returncode == 21
    assert "the reason" in done.stderr
    assert log.splitlines()[-1] == "the reason"


# Each build exits with 9 if another build has not started after two minutes.
_MEET = """case "$1 $2" in
"build llvm") other=kernels;; "build kernels") other=sysroot;; "build sysroot") other=llvm;; *) exit 0;;
esac
>"{folder}/$2"
for at in $(seq 1200); do [ ! -e "{folder}/$other" ] || break; sleep 0.1; done
[ -e "{folder}/$other" ] || exit 9
"""


def test_llvm_its_sysroot_and_the_kernels_are_built_at_the_same_time(tmp_path: Path) -> None:
    done, _ = quickstart(tmp_path, _MEET.format(folder=tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("sign", "code"), [("INT", 130), ("TERM", 143)])
def test_a_signal_ends_all_builds(tmp_path: Path, sign: str, code: int) -> None:
    trap = f"""trap 'echo ended >"{tmp_path}/$2.ended"; exit 1' TERM\n"""
    # The build of LLVM sends the signal to its parent, ./quickstart.
    waits = f'[ "$2" != llvm ] || kill -{sign} $PPID\nfor at in $(seq 1200); do sleep 0.1; done'
    done, _ = quickstart(tmp_path, trap + _MEET.format(folder=tmp_path) + waits)
    assert done.returncode == code
    assert sorted(path.name for path in tmp_path.glob("*.ended")) == ["kernels.ended", "llvm.ended", "sysroot.ended"]


def test_error_of_apt_is_shown(tmp_path: Path) -> None:
    done, _ = quickstart(tmp_path, "exit 0", apt="echo no such mirror >&2; exit 100")
    assert done.returncode == 100
    assert "no such mirror" in done.stderr
