"""The example of docs/lab/emulator.md, and `emulate` on its code object with other options and files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from toolchain.cli.app import app
from toolchain_lab.emulator.float8 import TYPES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lab" / "emulator.md"
_BLOCK = re.compile(r'```(python|sh) title="([^"]+)"\n(.*?)```', re.DOTALL)
Emulate = Callable[..., Result]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the commands of the example, and return their folder."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("own")
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    for kind, title, text in blocks:
        if kind == "python":
            (folder / title).write_text(text)
    (commands,) = [text for kind, _, text in blocks if kind == "sh"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TRITON_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        ["/bin/sh", "-ec", commands], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "out: as expected" in done.stdout
    return folder


@pytest.fixture
def emulate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Emulate:
    monkeypatch.chdir(folder)
    return lambda *words: CliRunner().invoke(app, ["emulate", *words])


ARGUMENTS = ("--arg", "x=x.npy", "--arg", "out=zeros:300", "--arg", "columns=100")


def test_grid_beyond_the_buffers_is_not_reported_as_kernel_fault(emulate: Emulate) -> None:
    done = emulate("softmax.hsaco", "--grid", "4", *ARGUMENTS, "--json")
    assert done.exit_code == 27, done.output
    assert json.loads(done.stdout)["id"] == "outside-buffers"


def test_result_that_differs_from_expected_is_reported_with_its_index(emulate: Emulate) -> None:
    expected = np.load("softmax.npy")
    expected[2, 5] += 1
    np.save("other.npy", expected)
    words = ("softmax.hsaco", "--grid", "3", *ARGUMENTS, "--expect", "out=other.npy", "--rtol", "1e-5")
    done = emulate(*words, "--json")
    assert done.exit_code == 24, done.output
    told, _ = json.JSONDecoder().raw_decode(done.stdout)
    assert (told["expected"]["out"]["differing"], told["expected"]["out"]["first_index"]) == (1, 205)
    assert emulate(*words, "--atol", "1.1").exit_code == 0
    assert emulate(*words[:-2], "--expect", "y=other.npy").exit_code == 3


def test_invalid_options_are_refused_before_the_run(emulate: Emulate, folder: Path) -> None:
    words = ("softmax.hsaco", "--grid", "3", *ARGUMENTS, "--out", "none")
    for wrong, id in (
        (("--gpu", "gfx90a"), "no-kernel-for-gpu"),
        (("--gpu", "gfx0"), "unknown-gpu"),
        (("--expect", "out=missing.npy"), "argument-invalid"),
    ):
        assert json.loads(emulate(*words, *wrong, "--json").stdout)["id"] == id
    assert not (folder / "none").exists()


def test_object_without_json_is_emulated(emulate: Emulate, folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.hsaco"
    bare.write_bytes((folder / "softmax.hsaco").read_bytes())
    expect = ("--rtol", "1e-5", "--expect")
    words = (str(bare), "--grid", "3")
    named = ("--arg", "arg0=x.npy", "--arg", "arg1=zeros:300:fp32", "--arg", "arg2=100", *expect, "arg1=softmax.npy")
    assert emulate(*words, *named).exit_code == 0
    signature = ("--signature", "x=*fp16:16, out=*fp32, columns=i32, 128")
    assert emulate(*words, *signature, *ARGUMENTS, *expect, "out=softmax.npy").exit_code == 0
    assert emulate(*words, "--signature", "x=*fp16,columns=i32", *ARGUMENTS[:2], *ARGUMENTS[4:]).exit_code == 3
    assert emulate(*words, "--arg", "arg0=x.npy", "--arg", "arg1=zeros:300", "--arg", "arg2=100").exit_code == 3


def test_json_of_another_object_is_refused(emulate: Emulate, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "k.hsaco"
    path.write_bytes((folder / "softmax.hsaco").read_bytes())
    about = json.loads((folder / "softmax.json").read_text())
    for change in ({"num_warps": 8}, {"name": "other"}, {"shared": "much"}, {"profile_scratch_size": 64}):
        path.with_suffix(".json").write_text(json.dumps({**about, **change}))
        assert emulate(str(path), "--grid", "3", *ARGUMENTS).exit_code == 23


def test_buffers_of_8_bit_floats_are_read_and_written_as_bytes(emulate: Emulate) -> None:
    words = ("--signature", "x=*fp8e4b8,out=*fp32,columns=i32", "--arg", "x=normal:600", *ARGUMENTS[2:], "--grid", "1")
    assert emulate("softmax.hsaco", *words, "--out", "made").exit_code == 0
    made = np.load("made/x.npy")
    assert made.dtype == np.uint8
    assert abs(float(TYPES["fp8e4b8"].decode(made).std()) - 1) < 0.1
    np.save("typed.npy", made.view("V1"))
    assert emulate("softmax.hsaco", *words[:3], "x=typed.npy", *words[4:], "--expect", "x=typed.npy").exit_code == 0
