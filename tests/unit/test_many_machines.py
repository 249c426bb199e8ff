"""The protocol of many machines, without machines: what it refuses, how it lies, and what it does not let pass."""

from __future__ import annotations

import io
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from scripts import machine_roles, many_machines, namespaces
from tests.kernel_fixtures import make_rule

LIKE = {"python": "python3", "triton": "sha256:0", "source": "/src", "kernels": 2}
WAY = {"kernels": 2, "layer": "sha256:1", "files": "sha256:2", "entries": "sha256:3", "seconds": 1.0}


def test_a_machine_without_iproute2_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "ip" else f"/usr/bin/{name}")
    assert namespaces.lacking() == "not installed: ip (package iproute2)"
    with pytest.raises(SystemExit, match="cannot have machines of its own: not installed: ip"):
        many_machines.main(["--python", "p", "--other-python", "q", "--source", str(tmp_path)])


def test_an_ordinary_user_is_told_that_it_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespaces.lacking() == "network namespaces need root"


@pytest.mark.parametrize("words", [["--parts", "all"], ["--kernels", "0"], ["--rounds", "0"], []])
def test_what_it_cannot_do_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as found:
        many_machines.parse(["--python", "p", "--source", "s", *words])
    assert found.value.code == 2
    assert "error: --" in capsys.readouterr().err


@pytest.mark.parametrize("lies", [False, True])
def test_a_liar_compiles_another_kernel_of_that_name_and_gpu(tmp_path: Path, lies: bool) -> None:
    task, stream = make_rule("one").task("/src", "/out"), io.StringIO()
    machine_roles.Noted(stream, tmp_path / "log", lies=lies).write(json.dumps(task) + "\n")
    sent = json.loads(stream.getvalue())
    changed = {name for name in task if sent[name] != task[name]}
    assert changed == ({"waves_per_eu"} if lies else set())
    assert json.loads((tmp_path / "log").read_text())["rule"] == task["id"]


@pytest.mark.parametrize("part", ["kernels", "layer", "files", "entries"])
def test_a_way_that_gives_something_else_is_seen(tmp_path: Path, part: str) -> None:
    protocol = many_machines.Protocol(tmp_path, LIKE, LIKE)
    protocol.ways |= {"local": dict(WAY), "same": dict(WAY), "odd": {**WAY, part: "sha256:9"}}
    protocol.compare()
    assert [holds for _, holds in sorted(protocol.checks.items())] == [False, True]
    assert "**no**" in "\n".join(many_machines.table({"ways": {"local": WAY}, "checks": protocol.checks}))


def test_a_role_gets_its_machine_as_it_was(tmp_path: Path) -> None:
    machine = machine_roles.new_machine(tmp_path / "one", LIKE, lies=True)
    words = machine_roles.command("station", {"machine": machine, "name": "one"}, tmp_path / "one.json")
    given = json.loads(Path(words[-1]).read_text())
    assert machine_roles.Machine(**given["machine"]) == machine
    assert given == {"machine": asdict(machine), "name": "one"}


def test_certificates_are_of_one_authority_whose_key_is_gone(tmp_path: Path) -> None:
    namespaces.certificates(tmp_path / "pem", ["one", "two"])
    names = {path.name for path in (tmp_path / "pem").iterdir()}
    assert {"ca.pem", "one.pem", "one.key", "two.pem", "two.key"} <= names
    assert "ca.key" not in names
