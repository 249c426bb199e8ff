"""`toolchain shell` opens a failed step's environment, and keeps the tree from which the next build continues."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time

import pytest

from tests.integration.conftest import Quickstart, Said, toolchain
from tests.small_llvm import small_llvm
from toolchain.core.errors import BuildError, ConfigError, UnsupportedError

pytestmark = pytest.mark.engine

PROJECTS = ("llvm", "mlir", "lld", "clang", "cmake", "third-party")


@pytest.fixture(scope="module")
def failing(quickstart: Quickstart, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the options of a build that failed while CMake configured."""
    tree = small_llvm(tmp_path_factory.mktemp("shell") / "llvm", PROJECTS)
    text = f"cmake_minimum_required(VERSION 3.20)\nproject(LLVM)\nmessage(FATAL_ERROR no-{os.getpid()})\n"
    (tree / "llvm" / "CMakeLists.txt").write_text(text)
    words = ("--source", f"llvm={tree}", "--only", "mlir-tblgen", "--base", "debian13")
    said = toolchain("build", "llvm", *words)
    assert said.code == BuildError.code
    assert "toolchain shell llvm" in said.err
    return words


def test_a_command_sees_sources_arguments_and_tree_of_the_failed_step(failing: tuple[str, ...]) -> None:
    script = 'echo "goal $GOAL"\nls /src/llvm/llvm /build; touch /build/planted; cat /proc/net/dev | wc -l; exit 7'
    said = toolchain("shell", "llvm", *failing, "--", "sh", "-c", script)
    assert said.code == 7, said.err
    lines = said.out.split()
    assert lines[:2] == ["goal", "mlir-tblgen"]
    assert {"CMakeLists.txt", "CMakeCache.txt"} <= set(lines)
    assert lines[-1] == "3"  # two lines of headers, and loopback
    # The file that the command wrote is gone, and sources are read-only.
    again = toolchain("shell", "llvm", *failing, "--", "sh", "-c", "ls /build; touch /src/llvm/x")
    assert "planted" not in again.out
    assert "CMakeCache.txt" in again.out
    assert "Read-only file system" in again.out
    assert again.code == 1


def test_shell_on_a_terminal_takes_input_and_interrupts(failing: tuple[str, ...]) -> None:
    typed = (("# ", "echo sum $((40 + 2)); sleep 1000\n"), ("sum 42", "\x03"), ("# ", "exit 5\n"))
    said = _typed(("shell", "llvm", *failing), *typed)
    assert "sum 42" in said.out
    assert said.code == 5


def test_unsupported_shells_are_refused(failing: tuple[str, ...]) -> None:
    assert toolchain("shell", "base", "--", "true").code == UnsupportedError.code
    assert toolchain("shell", "llvm", *failing).code == ConfigError.code  # no terminal
    lower = toolchain("shell", "kernels", "--source", "triton=pypi:3.9.0", "--gpu", "gfx942", "--", "true")
    assert lower.code == ConfigError.code
    assert "toolchain build triton" in lower.err


def test_shell_opens_the_container_of_a_kernel_worker(quickstart: Quickstart) -> None:
    words = ("--source", "triton=pypi:3.7.1", "--allow-binary", "triton-wheel", "--gpu", "gfx90a", "--limit", "1")
    script = (
        "import sys, triton; print(triton.__version__, flush=True); print('apart', file=sys.stderr, flush=True); "
        "print('last'); open('/out/written', 'w')"
    )
    said = toolchain("kernels", "run", "kernels", *words)
    assert said.code == 0
    said = toolchain("shell", "kernels", *words, "--", "python3", "-c", script)
    assert (said.code, said.out.split()) == (0, ["3.7.1", "apart", "last"]), said.err


def _typed(words: tuple[str, ...], *texts: tuple[str, str]) -> Said:
    """Run the tool on a terminal; type the second text of each pair when the screen has shown the first and is idle."""
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover - becomes the tool
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nohup ignores it, and the tool would inherit that
        os.execv(sys.executable, [sys.executable, "-m", "toolchain", *words])  # noqa: S606
    seen, old = b"", 0
    waiting = list(texts)
    begun = time.monotonic()
    while time.monotonic() - begun < 600:
        if not select.select([terminal], [], [], 1)[0]:
            if waiting and waiting[0][0].encode() in seen[old:]:
                old = len(seen)
                os.write(terminal, waiting.pop(0)[1].encode())
            continue
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # the other side is closed
            break
    else:
        os.kill(child, signal.SIGTERM)
    return Said(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen.decode(errors="replace"), "")
