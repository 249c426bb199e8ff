"""Inputs of the emulator: code objects, their metadata, arguments and grids, and the refusal of invalid ones."""

from __future__ import annotations

import math
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lab.tests.emulator_fixtures import code_object
from tests.kernel_fixtures import endless, make_object
from tests.refusals import refused
from toolchain.cli.app import app
from toolchain_lab import bridge
from toolchain_lab.cli import emulate_cmd
from toolchain_lab.emulator import codeobject, messagepack
from toolchain_lab.emulator.disassembly import Line
from toolchain_lab.emulator.errors import (
    CodeObjectError,
    LaunchError,
    NotEmulatedError,
)
from toolchain_lab.emulator.given import parse_argument
from toolchain_lab.emulator.launch import Launch, Parameter, argument_block, check_parameters
from toolchain_lab.emulator.launch import run as launch_run
from toolchain_lab.emulator.metadata import check_metadata, described, metadata_of
from toolchain_lab.emulator.program import Program


def test_arguments_are_aligned_to_their_size() -> None:
    parameters = [Parameter("x", "*fp16"), Parameter("n", "i32"), Parameter("s", "i64"), Parameter("f", "fp32")]
    block = argument_block(parameters, {"x": 0x7F0000001000, "n": -1, "s": 5, "f": 1.5}, 64)
    assert block == struct.pack("<Qi4xqf", 0x7F0000001000, -1, 5, 1.5).ljust(64, b"\0")
    with pytest.raises(NotEmulatedError):
        argument_block(parameters, {"x": 0, "n": 0, "s": 0, "f": 0}, 16)
    with pytest.raises(LaunchError):
        argument_block(parameters, {"x": 0, "n": 1 << 40, "s": 0, "f": 0}, 64)


def test_signature_must_match_the_object() -> None:
    arguments = (
        codeobject.Argument(0, 8, "global_buffer"),
        codeobject.Argument(8, 4, "by_value"),
        codeobject.Argument(16, 8, "global_buffer"),
    )
    code = code_object("gfx942", arguments=arguments)
    check_parameters(code, [Parameter("x", "*fp16"), Parameter("n", "i32")])
    for wrong in (
        [Parameter("n", "i32")],
        [Parameter("x", "*fp16"), Parameter("n", "i64")],
        [Parameter("x", "*fp16")] * 4,
    ):
        with refused("kernel-signature-mismatch"):
            check_parameters(code, wrong)


def test_arguments_of_object_without_json_are_at_its_offsets() -> None:
    """The metadata of AITER's objects does not list all parts of the argument block."""
    places = {"x": (8, 8, "global_buffer"), "n": (20, 4, "by_value"), "y": (48, 8, "global_buffer")}
    arguments = tuple(codeobject.Argument(*place, name) for name, place in places.items())
    code = code_object("gfx942", arguments=arguments)
    block = argument_block(described(code, None).parameters, {"x": 1, "n": 2, "y": 3}, 64)
    assert block == struct.pack("<8xq4xi24xq8x", 1, 2, 3)
    # The message must not name a JSON file, because no such file is next to the object.
    for odd in ((codeobject.Argument(8, 8, "by_value"), arguments[0]), (codeobject.Argument(0, 4, "sampler"),)):
        with refused("kernel-signature-mismatch") as caught:
            described(replace(code, arguments=odd), None)
        assert "JSON" not in caught.value.fix


@pytest.mark.parametrize(("grid", "only"), [((0, 1, 1), None), ((1 << 20, 1, 1), None), ((2, 1, 1), [(2, 0, 0)])])
def test_invalid_grid_or_workgroup_is_refused(
    grid: tuple[int, int, int], only: list[tuple[int, int, int]] | None
) -> None:
    launch = Launch(parameters=[], values={}, grid=grid, waves=1, lds=0, only=only)
    with pytest.raises(LaunchError):
        launch.places()


def test_arguments_are_parsed_from_text(tmp_path: Any) -> None:
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float16))
    x = Parameter("x", "*fp16")
    assert np.array_equal(np.asarray(parse_argument(x, str(tmp_path / "x.npy"), seed=0)[1]), np.arange(3))
    assert parse_argument(x, "null", seed=0)[1] is None
    assert np.asarray(parse_argument(x, "zeros:5", seed=0)[1]).tolist() == [0] * 5
    assert parse_argument(Parameter("n", "i32"), "0x10", seed=0)[1] == 16
    assert parse_argument(Parameter("f", "fp32"), "0.5", seed=0)[1] == 0.5
    assert parse_argument(Parameter("b", "b32"), "0.5", seed=0)[1] == 0x3F000000
    assert parse_argument(Parameter("b", "b32"), "-1", seed=0)[1] == -1
    untyped, zeros = parse_argument(Parameter("z", "*"), "zeros:5:bf16", seed=0)
    assert (untyped.type, np.asarray(zeros).dtype.name) == ("*bf16", "uint16")
    for parameter, text in (
        (Parameter("y", "*fp32"), str(tmp_path / "x.npy")),
        (Parameter("y", "*"), "zeros:5"),
        (x, "zeros:5:fp32"),
        (x, "zeros:0"),
        (x, "7"),
        (Parameter("n", "i32"), "a"),
    ):
        with pytest.raises(LaunchError):
            parse_argument(parameter, text, seed=0)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x82\xa1a\x01\xa1b\x93\xc2\xc3\xc0", {"a": 1, "b": [False, True, None]}),
        (b"\xcd\x01\x00", 256),
        (b"\xd0\xff", -1),
        (b"\xff", -1),
        (b"\xc4\x02hi", b"hi"),
        (b"\xda\x00\x02hi", "hi"),
    ],
)
def test_messagepack_metadata_is_read(data: bytes, value: Any) -> None:
    assert messagepack.unpack(data) == value


@pytest.mark.parametrize("data", [b"", b"\xa5ab", b"\xc1", b"\x91" * 40])
def test_broken_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="metadata"):
        messagepack.unpack(data)


@pytest.mark.parametrize("content", [{}, [], {"name": "k"}, {"compile_status": "Failed"}, None])
def test_json_without_launch_data_is_refused(content: Any) -> None:
    with pytest.raises(NotEmulatedError):
        metadata_of(content, "k.json")


@pytest.mark.parametrize("text", ["zeros:²", f"zeros:{'1' * 5000}", "normal:0", "empty.npy", "zip.npy"])
def test_invalid_buffer_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.npy").touch()
    Path("zip.npy").write_bytes(b"PK\3\4 no zip")
    with pytest.raises(LaunchError):
        parse_argument(Parameter("x", "*fp32"), text, seed=0)


def test_number_that_does_not_fit_its_argument_is_refused() -> None:
    for kind, number in (("fp32", 1e300), ("i32", 1 << 40), ("i32", math.nan)):
        with refused("argument-invalid"):
            argument_block([Parameter("n", kind)], {"n": number}, 16)


@pytest.mark.parametrize("words", [("--arg", "n=1"), ("--out", "folder"), ("--workgroup", "0"), ("--reverse",)])
def test_options_of_a_run_are_refused_without_grid(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["emulate", "kernel.hsaco", *words])
    assert (done.exit_code, "need --grid" in done.output) == (3, True), done.output


def test_invalid_lds_size_in_json_is_refused() -> None:
    about = {"name": "kernel", "arch": "gfx942", "source": "x.py", "signature": [], "constexprs": {}, "num_warps": 1}
    for lds in (1 << 50, -1):
        with refused("memory-too-large"):
            check_metadata(code_object("gfx942"), metadata_of({**about, "shared": lds}, "the JSON"))


@pytest.mark.parametrize(("offset", "size"), [(0, 1 << 40), (0, -1), (1 << 40, 8), (-8, 8), (60, 8)])
def test_argument_outside_of_the_argument_block_is_refused(offset: int, size: int) -> None:
    code = code_object("gfx942", arguments=(codeobject.Argument(offset, size, "hidden_none"),))
    with refused("arguments-unfit"):
        described(code, None)
    with refused("memory-too-large"):
        described(replace(code, descriptor=replace(code.descriptor, kernarg=0xFFFFFFFF)), None)


def test_hidden_argument_may_be_smaller_than_its_value() -> None:
    code = code_object("gfx942", arguments=(codeobject.Argument(0, 1, "hidden_block_count_x"),))
    launch = Launch([], {}, (70_000, 1, 1), 1, 0, only=[(0, 0, 0)])
    assert launch_run(Program(code, [Line(0, "s_endpgm", (0,))]), launch).instructions == 1


@pytest.mark.parametrize("threads", [0, 32, 100, 1 << 40])
def test_workgroup_of_invalid_size_is_refused(threads: int) -> None:
    """The error does not name the JSON file, because that file is optional and HIP writes no such file."""
    code = replace(code_object("gfx942"), workgroup_size=threads)
    with refused("kernel-not-emulated", threads):
        described(code, None)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("table", ["sections", "segments"])
def test_code_object_with_endless_table_is_refused(table: str, tmp_path: Path) -> None:
    path = tmp_path / "k.hsaco"
    path.write_bytes(endless(make_object("gfx942", "k"))[table])
    with pytest.raises(CodeObjectError):
        bridge.load(path)


@pytest.mark.timeout(300)
def test_json_that_is_a_device_or_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "k.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("k", "pipe"):
        with pytest.raises(NotEmulatedError):
            bridge.read_metadata(tmp_path / f"{name}.hsaco")


@pytest.mark.timeout(300)
def test_metadata_of_millions_of_empty_values_is_refused() -> None:
    with pytest.raises(ValueError, match="many"):
        messagepack.unpack(b"\xdd\x00\x3d\x09\x00" + b"\x80" * 4_000_000)


def test_buffers_are_written_only_to_the_given_folder(tmp_path: Path) -> None:
    """The code object names its arguments, and another user may have left a link in the folder."""
    out, kept = tmp_path / "out", tmp_path / "kept"
    kept.write_text("kept")
    out.mkdir()
    (out / "a.npy").symlink_to(kept)
    emulate_cmd._write(out, {"a": np.arange(3)})
    assert np.load(out / "a.npy").tolist() == [0, 1, 2]
    for name in ("../evil", str(tmp_path / "evil")):
        with refused("output-unwritable", name):
            emulate_cmd._write(out, {"b": np.arange(3), name: np.arange(3)})
    assert kept.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.rglob("*.npy")) == ["a.npy"]
