"""The isolation of builds on real buildah: it holds, and the probe names what gets out when a measure is taken away."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.escaping_llvm import escaping_llvm, require_nothing_left
from tests.integration.conftest import Quickstart, toolchain
from tests.own_engine import destroy
from toolchain.core.cache import Cache
from toolchain.core.errors import EngineError
from toolchain.engine import isolation, launcher, view
from toolchain.engine import probe as probing
from toolchain.engine.buildah import Buildah

pytestmark = [pytest.mark.engine, pytest.mark.beside]

ALL_ALLOWED = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [], "syscalls": []}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Buildah]:
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed: apt-get install buildah")
    # Others may read there: only the isolation hides it.
    found = Buildah(Cache(tmp_path / "cache"))
    yield found
    destroy(found)


def refused(engine: Buildah, *, thorough: bool = True) -> str:
    """Why the probe refuses."""
    with pytest.raises(EngineError) as caught:
        probing.probe(engine, thorough=thorough)
    assert not (engine.cache.engine / "isolation.json").exists()
    return caught.value.why


def mutant(monkeypatch: pytest.MonkeyPatch, folder: Path, old: str, new: str) -> None:
    """A launcher that lacks something."""
    text = Path(launcher.__file__).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (folder / "launcher.py").write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.setattr(view, "PROGRAM", folder / "launcher.py")


def changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]) -> None:
    """A launcher with other arguments."""
    honest = view.command

    def command(*words: Any, **more: Any) -> list[str]:
        argv = honest(*words, **more)
        spec = json.loads(argv[4])
        change(spec)
        return [*argv[:4], json.dumps(spec), *argv[5:]]

    monkeypatch.setattr(view, "command", command)


def test_nothing_gets_out_and_that_is_remembered(engine: Buildah) -> None:
    assert probing.probe(engine, thorough=True) == "chroot"
    remembered = json.loads((engine.cache.engine / "isolation.json").read_bytes())
    assert remembered["kernel"] == platform.release()
    with pytest.MonkeyPatch.context() as without:
        without.delattr(probing, "_Trial")
        assert probing.probe(engine) == "chroot"


def test_a_second_chroot(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "DROPPED", [name for name in isolation.DROPPED if name != "CAP_SYS_CHROOT"])
    assert "a build: a second chroot" in refused(engine, thorough=False)


def test_keys(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "seccomp", lambda **_: ALL_ALLOWED)
    assert "a build: keyctl" in refused(engine, thorough=False)


def test_links(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = view.seccomp
    monkeypatch.setattr(view, "seccomp", lambda **_: honest())
    assert "a container: a link where the caller reads" in refused(engine)


def test_rights_over_mounts(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = isolation.arguments
    monkeypatch.setattr(view, "seccomp", lambda **_: ALL_ALLOWED)
    more = ["--cap-add", "CAP_SYS_ADMIN"]
    monkeypatch.setattr(isolation, "arguments", lambda *words, **named: [*honest(*words, **named), *more])
    assert "a build: mount" in refused(engine)


def test_the_caller_s_own_ids(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "ids", lambda: (0, view.COUNT))
    assert "a build: a file of the caller's: /probe/secret" in refused(engine, thorough=False)


def test_new_calls(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    """libseccomp does not know them all."""
    changed(monkeypatch, lambda spec: spec.update(refused_calls=[], unknown_calls=1 << 20))
    assert "a build: a new system call" in refused(engine)


def test_new_privileges(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, lambda spec: spec.update(privileges=True))
    assert "new privileges" in refused(engine)


def test_the_machine_s_network(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, lambda spec: spec.update(network=True))
    assert "network interfaces are visible" in refused(engine, thorough=False)


def test_the_machine_s_files(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, lambda spec: spec["binds"].append(["/etc/shadow", "/etc/shadow", False]))
    assert "outside a container: the machine's files: /etc/shadow" in refused(engine)


def test_a_mount_that_may_be_written_to(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlock(spec: dict[str, Any]) -> None:
        spec["binds"] = [[here, inside, rw or inside.endswith("/locked")] for here, inside, rw in spec["binds"]]

    changed(monkeypatch, unlock)
    assert "outside a container: writing to a read-only mount" in refused(engine)


@pytest.mark.parametrize("name", ["_NEWPID", "_NEWIPC", "_NEWUTS"])
def test_a_namespace(engine: Buildah, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    if os.environ.get("TOOLCHAIN_NAMESPACE_OF"):
        pytest.skip("names can only be set in a namespace of one's own")
    flags = "_NEWPID | _NEWIPC | _NEWUTS"
    mutant(monkeypatch, tmp_path, f"flags = {flags}", f"flags = {flags.replace(name, '0')}")
    if name == "_NEWUTS":
        text = view.PROGRAM.read_text().replace('_check(_LIBC.sethostname(b"toolchain", 9), "no host name")', "")
        view.PROGRAM.write_text(text)
    # Where a PID namespace has a limit of its own, buildah does not even start without one.
    wanted = "a build: " if name == "_NEWPID" else f"a namespace of the caller's: {name[4:].lower()}"
    assert wanted in refused(engine)


def test_a_disk(engine: Buildah, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disks = [path.name for path in Path("/dev").iterdir() if path.is_block_device()]
    if not disks:
        pytest.skip("NO DISK IS SHOWN TO A BUILD: this machine has none in /dev")
    mutant(monkeypatch, tmp_path, '"urandom", "tty")', f'"urandom", "tty", "{disks[0]}")')
    assert f"a disk: /dev/{disks[0]}" in refused(engine)


def test_a_hostile_source_gets_nothing(quickstart: Quickstart, tmp_path: Path) -> None:
    tree = escaping_llvm(tmp_path / "hostile", secret=tmp_path / "secret", owned=tmp_path / "owned")
    said = toolchain(
        "build", "llvm", "--source", f"llvm={tree}", "--only", "mlir-tblgen", "--base", "debian13", "--no-contract"
    )
    assert said.code == 0, said.err[-3000:]
    require_nothing_left(said.err, tmp_path / "owned")
