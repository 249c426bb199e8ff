"""Values that users give: arrays for `emulate`, names of GPUs, and files next to kernels."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.refusals import refused
from toolchain.cli.app import app
from toolchain.kernels.launches import FORMAT
from toolchain_lab.cli.diff_cmd import conditions_of
from toolchain_lab.cli.emulate_cmd import _arguments
from toolchain_lab.emulator.errors import LaunchError
from toolchain_lab.emulator.given import compare_with, parse_argument, read_expected
from toolchain_lab.emulator.launch import Parameter, argument_block
from toolchain_lab.emulator.metadata import Metadata
from toolchain_lab.examine.launch_values import Launches
from toolchain_lab.examine.recompile import rule_of


@pytest.mark.parametrize(("element", "bits"), [("bf16", np.uint16), ("fp8e5b16", np.uint8)])
def test_expected_file_has_the_bits_that_out_writes(element: str, bits: type, tmp_path: Path) -> None:
    buffer = np.arange(1, 9, dtype=bits) << (6 if element == "bf16" else 3)
    buffer = buffer.astype(bits)
    np.save(tmp_path / "same.npy", buffer)
    np.save(tmp_path / "other.npy", buffer[::-1].copy())
    parameter = Parameter("out", f"*{element}")
    for name, differing in (("same", 0), ("other", 8)):
        expected = read_expected(parameter, str(tmp_path / f"{name}.npy"), buffer)
        assert compare_with(parameter, expected, buffer, atol=0, rtol=0).differing == differing


@pytest.mark.parametrize(("element", "kind"), [("i32", ">i4"), ("bf16", ">u2"), ("fp32", ">f4")])
def test_big_endian_array_is_read_with_the_same_numbers(element: str, kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "x.npy")
    np.save(path, np.array([1, 2], kind))
    parameter, value = parse_argument(Parameter("x", f"*{element}"), path, seed=0)
    assert isinstance(value, np.ndarray)
    assert value.tobytes() == np.array([1, 2], kind.replace(">", "<")).tobytes()
    assert compare_with(parameter, read_expected(parameter, path, value), value, atol=0, rtol=0).differing == 0


def test_damaged_arrays_are_refused(tmp_path: Path) -> None:
    good = tmp_path / "good.npy"
    np.save(good, np.zeros(4, np.float32))
    content = good.read_bytes()
    bad = {
        "header": content.replace(b"'shape': (4,)", b"'shape': (4(,"),
        "huge": content.replace(b"'shape': (4,), }      ", b"'shape': (%d,), }" % 2**70)[: len(content)],
    }
    for name, damaged in bad.items():
        (tmp_path / name).write_bytes(damaged)
    np.save(tmp_path / "fields.npy", np.zeros(4, [("a", "<f4"), ("b", "<f4")]))
    np.save(tmp_path / "raw.npy", np.zeros(4, "V2"))
    np.save(tmp_path / "words.npy", np.zeros(4, "U3"))
    for name in (*bad, "fields.npy", "raw.npy"):
        with pytest.raises(LaunchError):
            read_expected(Parameter("out", "*fp32"), str(tmp_path / name), np.zeros(4, np.float32))
    with refused("argument-invalid", np.dtype("U3")):
        read_expected(Parameter("out", "*fp32"), str(tmp_path / "words.npy"), np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("arch", "/tmp/gfx942", "unknown-gpu"),
        ("arch", "../gfx942", "unknown-gpu"),
        ("arch", "gfx\0", "unknown-gpu"),
        ("source", "**x", "kernel-json-malformed"),
        ("source", "a\0.py", "kernel-json-malformed"),
    ],
)
def test_json_of_kernel_with_a_path_or_pattern_is_refused(key: str, value: str, error: str, tmp_path: Path) -> None:
    metadata = {
        "name": "k", "arch": "gfx942", "source": "k.py", "signature": [["x", "*fp32"]], "constexprs": {},
        "num_warps": 1, "num_stages": 1, "waves_per_eu": 0,
    }  # fmt: skip
    (tmp_path / "k.json").write_text(json.dumps(metadata | {key: value}))
    with refused(error):
        rule_of(tmp_path / "k.hsaco", tmp_path)


def test_arguments_with_the_same_name_keep_their_places() -> None:
    """AITER's objects have several padding arguments with the name `pad`."""
    kinds = [("x", "b64"), ("pad", "b64"), ("n", "b32"), ("pad", "b32"), ("m", "b32")]
    metadata = Metadata("k", "gfx942", tuple(Parameter(*one) for one in kinds), waves=1, lds=0)
    ordered, values = _arguments(metadata, {"x": "1", "pad": "2", "n": "3", "m": "4"}, 0)
    assert argument_block(ordered, values, 28) == struct.pack("<QQIII", 1, 2, 3, 2, 4)
    pointers = tuple(Parameter("p", "*", offset=offset) for offset in (0, 16))
    ordered, _ = _arguments(Metadata("k", "gfx942", pointers, waves=1, lds=0), {"p": "zeros:4:fp32"}, 0)
    assert [(one.type, one.offset) for one in ordered] == [("*fp32", 0), ("*fp32", 16)]


def test_empty_fail_on_or_gpu_is_refused() -> None:
    with refused("option-empty"):
        conditions_of(",")
    for verb in (["audit", "x"], ["kernels", "diff", "x", "x"], ["kernels", "check", "x"]):
        for gpu in ("", ","):
            assert CliRunner().invoke(app, [*verb, "--gpu", gpu]).exit_code == 3


def test_launch_list_with_malformed_rows_is_refused() -> None:
    for kernels in ({"k": [0, "gfx942", 1, 0]}, {"k": 3}, 3):
        with pytest.raises((ValueError, LookupError, TypeError)):
            Launches({"format": FORMAT, "functions": [], "signatures": [], "kernels": kernels})
