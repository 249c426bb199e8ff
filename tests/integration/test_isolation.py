"""The isolation of builds on real buildah: it holds, and the probe names the leak if a measure is removed."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import escape_attempts
from tests.escaping_llvm import escaping_llvm, require_nothing_left, write_attempts
from tests.integration.conftest import Quickstart, toolchain
from tests.own_engine import destroy
from toolchain.core.cache import Cache
from toolchain.core.errors import EngineError
from toolchain.core.recipe import Mount
from toolchain.engine import isolation, view
from toolchain.engine import probe as probing
from toolchain.engine.buildah import Buildah
from toolchain.engine.storage import Storage

pytestmark = [pytest.mark.engine, pytest.mark.beside]

ALL_ALLOWED = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [], "syscalls": []}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Buildah]:
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed: apt-get install buildah")
    found = Buildah(Cache(tmp_path / "cache"))
    yield found
    destroy(found)


def test_concurrent_builds_probe_the_isolation_once(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    made, attack = [], probing._try

    def counted(*how: Any) -> Any:
        made.append(how)
        return attack(*how)

    monkeypatch.setattr(probing, "_try", counted)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(probing.probe, Storage(engine.cache)) for _ in range(2)]
    assert [done.result() for done in both] == [isolation.MODE] * 2
    assert len(made) == 1


def refused(engine: Buildah) -> str:
    """Return why the probe refuses the isolation."""
    with pytest.raises(EngineError) as caught:
        probing.probe(engine)
    assert not (engine.cache.engine / "isolation.json").exists()
    return caught.value.why


def changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the arguments of the launcher."""
    honest = view.command

    def command(*words: Any, **more: Any) -> list[str]:
        argv = honest(*words, **more)
        spec = json.loads(argv[4])
        change(spec)
        return [*argv[:4], json.dumps(spec), *argv[5:]]

    monkeypatch.setattr(view, "command", command)


def test_successful_probe_is_recorded_and_not_repeated(engine: Buildah) -> None:
    assert probing.probe(engine) == "chroot"
    remembered = json.loads((engine.cache.engine / "isolation.json").read_bytes())
    assert remembered["kernel"] == platform.release()
    with pytest.MonkeyPatch.context() as without:
        without.delattr(probing, "_try")
        assert probing.probe(engine) == "chroot"


def test_probe_reports_a_second_chroot(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "DROPPED", [name for name in isolation.DROPPED if name != "CAP_SYS_CHROOT"])
    assert "chroot" in refused(engine)


def test_probe_reports_keyctl(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "seccomp", lambda **_: ALL_ALLOWED)
    assert "keyctl" in refused(engine)


def test_probe_reports_user_ids_of_the_caller(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "ids", lambda: (0, view.COUNT))
    assert "/probe/secret" in refused(engine)


def test_probe_reports_network_of_the_host(engine: Buildah, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, lambda spec: spec.update(network=True))
    assert "interfaces" in refused(engine)


def test_every_escape_attempt_of_a_hostile_source_fails(quickstart: Quickstart, tmp_path: Path) -> None:
    tree = escaping_llvm(tmp_path / "hostile", secret=tmp_path / "secret", owned=tmp_path / "owned")
    said = toolchain(
        "build", "llvm", "--source", f"llvm={tree}", "--only", "mlir-tblgen", "--base", "debian13", "--no-contract"
    )
    assert said.code == 0, said.err[-3000:]
    require_nothing_left(said.err, tmp_path / "owned")


@pytest.mark.parametrize("links", [False, True])
def test_container_makes_links_only_where_its_mount_allows_them(
    base: tuple[Buildah, str], tmp_path: Path, links: bool
) -> None:
    """A mount that allows links shows that the attempt can succeed."""
    given, written = tmp_path / "given", tmp_path / "written"
    given.mkdir()
    given.chmod(0o777)
    written.mkdir()
    write_attempts(given, unseen=[str(tmp_path)], locked="/given", written="/written")
    engine, image = base
    # The container writes a file first, so that no attempt can fail because the folder is not writable.
    script = "echo fine >/written/file && exec python3 -I -S -B /given/escape_attempts.py /given/given.json"
    mounts = [Mount(given, "/given"), Mount(written, "/written", read_only=False, links=links)]
    said = engine.run(image, ["sh", "-c", script], mounts=mounts, capture=True).stdout.splitlines()
    out = {line for line in said if line.startswith("@out")}
    assert out == ({"@out a link where the caller reads: /written/link"} if links else set())
    assert len(said) == len(escape_attempts.ATTEMPTS) + 1
