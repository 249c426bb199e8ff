"""Tests of the checks of kernels' numbers: references, random numbers, the bound on errors, and samples."""

from __future__ import annotations

import dataclasses
import io
import json
import multiprocessing
import os
import zipfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.kernel_fixtures import aks2, make_object, stored
from tests.refusals import refused
from tests.tiny_image import make
from toolchain.cli.app import app
from toolchain.core import process
from toolchain.core.cache import Cache
from toolchain.core.check_result import REFUSED, Object, describe, enough
from toolchain.core.errors import ConfigError, EngineError
from toolchain.core.stored_file import StoredFile
from toolchain.engine import namespace, view
from toolchain.kernels.aotriton_plan import Archive, Cluster
from toolchain.kernels.launches import launch_files
from toolchain.kernels.result_store import KernelStore, Result
from toolchain.kernels.rules import Rule
from toolchain.trust.attest import subjects
from toolchain.trust.numbers import result, statement
from toolchain_lab.bridge import read_metadata, run_program
from toolchain_lab.cli.check_cmd import screen
from toolchain_lab.emulator.disassembly import Disassembler
from toolchain_lab.emulator.launch import Parameter
from toolchain_lab.emulator.metadata import Metadata
from toolchain_lab.examine.launch_values import of_rule
from toolchain_lab.examine.places import local_files
from toolchain_lab.examine.rebuild import launches_of
from toolchain_lab.numbers import flash_attn
from toolchain_lab.numbers.campaign import Report, results
from toolchain_lab.numbers.case import Expected, NoCaseError
from toolchain_lab.numbers.check import CASES, Checked, _cases, check_object
from toolchain_lab.numbers.collect import Collected, collect
from toolchain_lab.numbers.contained import check_contained
from toolchain_lab.numbers.elements import BF16, FP16, FP32, tensor
from toolchain_lab.numbers.objects import sample
from toolchain_lab.numbers.philox import random_words
from toolchain_lab.numbers.problem import Dropout, Problem, Shape
from toolchain_lab.numbers.reference import Inputs, attention, summed_from_xf32, summed_singly, window


def test_philox_gives_the_published_words() -> None:
    # These are the known answers of Random123 for Philox 4x32-10 with a counter and a key of zeros.
    assert [int(word[0]) for word in random_words(0, np.zeros(1, np.uint64))] == [
        0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8,
    ]  # fmt: skip


def inputs(**changes: Any) -> Inputs:
    random = np.random.default_rng(5)
    q, k, v, do = (random.standard_normal((rows, 8)) for rows in (6, 9, 9, 6))
    values: dict[str, Any] = {"q": q, "k": k, "v": v, "do": do, "scale": 0.35, "visible": window(np.arange(6), 9, 6, 3)}
    return Inputs(**{**values, **changes})


@pytest.mark.parametrize("name", ["q", "k", "v", "bias"])
def test_gradients_equal_finite_differences(name: str) -> None:
    random = np.random.default_rng(6)
    keep = random.random((6, 9)) > 0.3
    given = inputs(bias=random.standard_normal((6, 9)), keep=keep, drop=0.3)
    gradient = getattr(attention(given), {"q": "dq", "k": "dk", "v": "dv", "bias": "db"}[name])
    step = 1e-6
    for place in ((0, 0), (2, 1), (5, 7)):
        values = []
        for sign in (1, -1):
            moved = getattr(given, name).copy()
            moved[place] += sign * step
            changed = Inputs(**{**given.__dict__, name: moved})
            assert given.do is not None
            values.append((attention(changed).o * given.do).sum())
        assert gradient[place] == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-7)


def test_float32_loop_rounds_each_sum_and_xf32_inputs_are_truncated() -> None:
    # In float32, 2**24 + 1 is rounded to 2**24, so each of the three additions of 1 is lost.
    assert summed_singly(np.array([[2.0**24, 1, 1, 1]]), np.ones((4, 1))).tolist() == [[2.0**24]]
    assert summed_singly(np.array([[1, 1, 1, 2.0**24]]), np.ones((4, 1))).tolist() == [[2.0**24 + 4]]
    # xf32 has 10 mantissa bits, and the other bits are truncated.
    assert summed_from_xf32(np.array([[1 + 2.0**-10 - 2.0**-20]]), np.ones((1, 1))).tolist() == [[1.0]]


def test_kernels_in_flash_py_have_the_same_cases_as_in_separate_files() -> None:
    for file, kernel in (("fwd_kernel.py", "attn_fwd"), ("bwd_kernel_fuse.py", "bwd_kernel_fuse")):
        assert CASES["flash.py", kernel] is CASES[file, kernel]


def test_output_and_key_gradient_are_zero_without_visible_keys() -> None:
    result = attention(inputs(visible=np.zeros((6, 9), np.bool_)))
    assert (result.o == 0).all()
    assert np.isinf(result.lse).all()
    assert (result.dk == 0).all()


@pytest.mark.parametrize("element", [FP16, BF16, FP32])
def test_rounding_is_idempotent_and_within_the_precision(element: Any) -> None:
    values = np.array([1.0, 1 + element.precision / 4, -3.0])
    assert np.array_equal(element.rounded(element.rounded(values)), element.rounded(values))
    assert np.abs(element.rounded(values) - values).max() <= element.precision


def test_padding_of_a_tensor_is_nan() -> None:
    made = tensor(FP16, (2, 3, 4, 5), np.ones, pitch=8, guard=2)
    assert made.read().shape == (2, 3, 4, 5)
    assert (made.read() == 1).all()
    assert np.isnan(FP16.decode(made.data)).sum() == len(made.data) - 2 * 3 * 4 * 5
    assert made.strides == ((4 + 2) * 3 * 8, 8, 3 * 8, 1)


def test_bound_is_twice_the_plain_error_plus_a_unit_of_the_type() -> None:
    places, exact = np.arange(3), np.array([1.0, -4.0, 2.0])
    expected = Expected("o", "O", FP16, places, exact, exact + 0.25)
    assert expected.bound == 0.5 + 2.0**-10 * 4
    assert expected.error(np.array([1, -4, 3], np.float16)) == 1
    assert expected.error(np.array([1, -4, np.nan], np.float16)) == float("inf")


def test_dropout_keeps_the_expected_share_and_differs_by_head() -> None:
    shape = Shape(((64, 70),), heads=2, key_heads=1, head=16, pitch=16)
    problem = Problem(FP16, shape, 0.25, 1, dropout=Dropout(0.4, 7, 9))
    kept = [problem.kept(0, head) for head in (0, 1)]
    assert kept[0] is not None
    assert kept[1] is not None
    assert abs(kept[0].mean() - 0.6) < 0.03
    assert (kept[0] != kept[1]).any()


def test_packed_sequences_are_contiguous() -> None:
    shape = Shape(((3, 5), (4, 6)), heads=2, key_heads=1, head=16, pitch=16, packed=True)
    problem = Problem(FP16, shape, 0.25, 1)
    assert problem.starts(keys=False) == [0, 3, 7]
    assert problem.rows(1, keys=True) == slice(5, 11)
    assert problem.inputs(1, 1).k.shape == (6, 16)


def test_sample_includes_every_kernel_of_every_gpu(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("chosen")
    for gpu in ("gfx942", "gfx1100"):
        for kernel in ("a", "b", "c"):
            for form in range(5):
                path = tmp_path / gpu / f"{kernel}{form}.hsaco"
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(b"x")
                about: dict[str, Any] = {
                    "name": kernel,
                    "arch": gpu,
                    "source": "k.py",
                    "signature": [],
                    "constexprs": {},
                    "num_warps": 1,
                    "shared": 0,
                }
                path.with_suffix(".json").write_text(json.dumps(about))
    (tmp_path / "bad.hsaco").write_bytes(b"")  # an empty object marks a kernel that is known bad
    (tmp_path / "by_hand.co").write_bytes(b"x")

    def chosen_of(count: int | None = None, gpus: Sequence[str] = (), seed: int = 1) -> Collected:
        return collect(list(local_files(tmp_path, "")), out, gpus=gpus, count=count, seed=seed, label="here")

    objects = chosen_of().objects
    assert (len(objects), chosen_of().other) == (30, 1)
    assert all(each.path.read_bytes() == b"x" for each in objects)
    chosen = sample(objects, 6, 1)
    assert {(each.gpu, each.kernel) for each in chosen} == {
        (g, f"k.py:{k}") for g in ("gfx942", "gfx1100") for k in "abc"
    }
    assert sample(objects, 6, 1) == chosen
    assert sample(objects, 6, 2) != chosen
    assert sample(objects, None, 1) == objects
    few = chosen_of(2, ["gfx942"])
    assert (len(few.objects), few.available, {each.gpu for each in few.objects}) == (2, 15, {"gfx942"})
    with pytest.raises(ConfigError):
        chosen_of(gpus=["gfx90a"])


def member(out: str, inside: str, gpu: str) -> tuple[Rule, Cluster, Archive]:
    """Return a rule of AOTriton, its cluster and its archive."""
    rule = Rule(
        source="modules/flash/fwd_kernel.py", root="modules/flash", kernel="attn_fwd",
        signature=(("Q", "*fp16:16"), ("BLOCK_M", "constexpr"), ("Sm_scale", "fp32")), constexprs=(("BLOCK_M", 64),),
        target=gpu, num_warps=4, num_stages=1, waves_per_eu=2, out=out, cluster="amd-gfx942/flash/attn_fwd/one",
    )  # fmt: skip
    cluster = Cluster("aks2/amd-gfx942/flash/attn_fwd/one.aks2", "", ((out, inside), ("gone", "gone")))
    return rule, cluster, Archive("aotriton.images/amd-gfx942/flash/attn_fwd.zip", "", ((cluster.path, "one.aks2"),))


def pack(*entries: tuple[str, bytes]) -> bytes:
    """Return a zip archive with one .aks2 file, as AOTriton's packers write it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("one.aks2", aks2(*entries, launch=(4096, 256)))
    return stream.getvalue()


def test_launch_values_come_from_the_launch_file_or_the_plan(tmp_path: Path) -> None:
    rule, cluster, archive = member("flash/a.hsaco", "first", "gfx942")
    written = launch_files([rule], [cluster], [archive], lambda _: 16)
    assert list(written) == ["amd-gfx942"]
    content = {
        "lib/aotriton.images/amd-gfx942/flash/attn_fwd.zip": pack(("first", b"code"), ("gone", b"")),
        "lib/aotriton.images/amd-gfx942/__launch__": written["amd-gfx942"],
    }

    def files(names: Iterable[str] = content) -> list[StoredFile]:
        return [stored(name, content[name]) for name in names]

    (kernel,) = collect(files(), tmp_path / "a").objects
    assert (kernel.gpu, kernel.kernel) == ("gfx942", "fwd_kernel.py:attn_fwd")
    assert kernel.path.read_bytes() == b"code"
    metadata = read_metadata(kernel.path)
    assert (metadata.waves, metadata.lds, metadata.scratch, metadata.constants) == (4, 4096, 16, {"BLOCK_M": 64})
    assert [(each.name, each.type) for each in metadata.parameters] == [("Q", "*fp16"), ("Sm_scale", "fp32")]
    # Without a __launch__ file, the values are known only from a plan.
    bare = files(list(content)[:1])
    with refused("launches-missing"):
        collect(bare, tmp_path / "b", label="it")
    (planned,) = collect(
        bare, tmp_path / "c", planned=lambda name, shared: of_rule(rule, shared) if name.endswith("first") else None
    ).objects
    assert read_metadata(planned.path) == dataclasses.replace(metadata, scratch=0)


def test_triton_cache_kernel_is_launched_by_our_json_not_by_tritons(tmp_path: Path) -> None:
    about = {
        "name": "k", "arch": "gfx942", "source": "k.py", "signature": [["x", "*bf16"]], "constexprs": {},
        "num_warps": 1, "shared": 0,
    }  # fmt: skip
    own = {"hash": "ab" * 32, "target": {"arch": "gfx942"}, "name": "k", "num_warps": 1}
    entry = tmp_path / "io.triton.cache/ABC"
    entry.mkdir(parents=True)
    for name, content in {"k.json": own, "k.launch.json": about, "__grp__k.json": {"child_paths": {}}}.items():
        (entry / name).write_text(json.dumps(content))
    (entry / "k.hsaco").write_bytes(b"code")
    files = list(local_files(tmp_path, "cache"))
    for number, order in enumerate((files, files[::-1])):
        (kernel,) = collect(order, tmp_path / str(number)).objects
        assert (kernel.gpu, kernel.kernel) == ("gfx942", "k.py:k")
        assert read_metadata(kernel.path).names == ("x",)


def test_grouped_heads_read_the_keys_of_their_group() -> None:
    constants: dict[str, Any] = {
        "HQ": 8, "HK": 2, "ACTUAL_BLOCK_DMODEL": 16, "MAX_SEQLENS_Q": 64, "MAX_SEQLENS_K": 64, "BLOCK_M": 32,
        "IS_CAUSAL": False, "SM_SCALE": 0.25,
    }  # fmt: skip
    strides = [f"stride_{name}{part}" for name in ("q", "k", "v", "o") for part in "zhmd"]
    names = ("Q", "K", "V", "Out", "LSE", *strides, *(f"stride_lse_{part}" for part in "zhm"))
    parameters = tuple(Parameter(name, "i32" if "stride" in name else "*fp32") for name in names)
    about = Metadata("attn_fwd", "gfx942", parameters, 4, 0, names=names, constants=constants)
    (case,) = flash_attn.forward(about, 1)
    assert (case.grid, list(case.only)) == ((2, 8, 1), [(1, 4, 0)])
    shape = Shape(((64, 64),), heads=8, key_heads=2, head=16, pitch=16)
    problem = Problem(FP32, shape, 0.25, 1)
    rows = slice(32, 64)
    scores = problem.q.read()[0, 4, rows] @ problem.k.read()[0, 1].T * 0.25
    weights = np.exp(scores - scores.max(1, keepdims=True))
    exact = weights @ problem.v.read()[0, 1] / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(case.expected[0].exact, exact, rtol=1e-9, atol=1e-12)


def test_result_of_a_kernel_store_is_collected_with_its_json(tmp_path: Path) -> None:
    about = {
        "name": "k", "arch": "gfx942", "source": "k.py", "signature": [], "constexprs": {}, "num_warps": 1, "shared": 0,
    }  # fmt: skip
    store = KernelStore(tmp_path / "store")
    record = Result(inputs={}, code=b"code", metadata=json.dumps(about).encode()).record()
    store.add("ab" * 32, record)
    (kernel,) = collect(list(local_files(tmp_path / "store", "store")), tmp_path / "out").objects
    assert (kernel.gpu, kernel.kernel, kernel.path.read_bytes()) == ("gfx942", "k.py:k", b"code")
    assert read_metadata(kernel.path).kernel == "k"


def test_columns_of_the_table_are_aligned_for_long_names() -> None:
    rows = tuple(Checked(name=f"{n}.hsaco", gpu="gfx942", kernel="k" * n, status="right") for n in (3, 50))
    head, *table = list(screen(Report(rows, available=2, decoder="")))[:3]
    assert [len(line) for line in table] == [len(head), len(head)]
    assert all(line[head.index("kernel") :].split()[1] == "1" for line in table)


def test_table_without_kernels_has_only_its_head() -> None:
    head, total, *_ = screen(Report((), available=0, decoder=""))
    assert (head.split()[:2], total.split()[:3]) == (["GPU", "kernel"], ["0", "of", "0"])


def test_recorded_check_is_enough_for_at_most_as_many_kernels() -> None:
    numbers = {"checked": 2, "available": 6, "right": 2, "wrong": 0, "skipped": 1, "refused": 0}
    assert [enough(numbers, count) for count in (3, 4, 0)] == [True, False, False]
    assert enough({**numbers, "right": 5}, 0)
    assert not enough(None, 1)
    assert describe(dict.fromkeys(numbers, 0)) == "0 of 0 kernels checked by emulation"
    assert describe(numbers) == "2 of 6 kernels checked by emulation: 2 right, 1 skipped"


def test_image_with_a_statement_of_a_wrong_kernel_is_refused() -> None:
    row = {"checked": 2, "available": 6, "right": 2, "wrong": 0, "skipped": 1, "refused": 0}
    about = subjects("image", ["sha256:ab"])
    needed = {"sha256:ab"}
    few, more = statement(about, row), statement(about, {**row, "checked": 5, "right": 5})
    assert result([few, more], needed) == "5 of 6 kernels checked by emulation: 5 right, 1 skipped"
    assert result([few], {"sha256:cd"}) == ""
    with refused("numbers-wrong"):
        result([more, statement(about, {**row, "wrong": 1})], needed)
    with refused("numbers-malformed"):
        result([statement(about, {"checked": "many"})], needed)


@pytest.fixture
def endless(tmp_path: Path) -> Generator[Checked, None, None]:
    """Return a check whose two workers, after the first result, hash files of one tebibyte for an hour."""
    objects = [Object(tmp_path / f"{number}.hsaco", str(number), "", "") for number in range(8)]
    for each in objects:
        each.path.touch()
    for each in objects[1:]:
        os.truncate(each.path, 1 << 40)
    rows = results(objects, Disassembler(Path("objdump"), (22, 0, 0), run_program), 2)
    assert next(rows).status == REFUSED
    return rows


def test_interrupted_check_ends_its_workers(endless: Generator[Checked, None, None]) -> None:
    """A process pool would wait for all tasks that were submitted to it."""
    endless.close()
    assert not multiprocessing.active_children()


def test_check_fails_if_a_worker_is_killed(endless: Generator[Checked, None, None]) -> None:
    multiprocessing.active_children()[0].kill()
    with refused("workers-lost"):
        next(endless)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("error", [TypeError, ValueError, ZeroDivisionError, KeyError])
def test_constants_that_fit_no_case_are_reported(error: type[Exception]) -> None:
    def make(_: object, __: int) -> Iterator[Any]:
        raise error
        yield

    metadata: Any = SimpleNamespace(kernel="k")
    with pytest.raises(NoCaseError, match="constants of k"):
        list(_cases(make, metadata, 0))


def test_damaged_object_is_refused_by_its_original_name(tmp_path: Path) -> None:
    path = tmp_path / "7.hsaco"
    path.write_bytes(b"\x7fELF")
    decoder = Disassembler(Path("objdump"), (22, 0, 0), run_program)
    row = check_object(path, "gfx942/add.hsaco", decoder)
    assert row.status == REFUSED
    assert "gfx942/add.hsaco" in row.reason
    signature = {"name": "add", "arch": "gfx942", "source": "x.py", "signature": [], "constexprs": {}}
    path.with_suffix(".json").write_text(json.dumps({**signature, "num_warps": 1, "shared": 0}))
    row = check_object(path, "gfx942/add.hsaco", decoder)
    assert (row.status, row.reason.partition(":")[0]) == (REFUSED, "gfx942/add.hsaco is not a complete code object")


def test_gpu_without_objects_is_refused_with_the_gpus_that_have_some(tmp_path: Path) -> None:
    about = {"name": "add", "arch": "gfx942", "source": "x.py", "signature": [], "constexprs": {}, "num_warps": 1}
    files = [stored("add.hsaco", b"code"), stored("add.json", json.dumps({**about, "shared": 0}).encode())]
    with refused("no-code-objects", "gfx1100") as caught:
        collect(files, tmp_path, gpus=["gfx1100"], label="place")
    assert "gfx942" in caught.value.why


def test_objects_without_launch_data_are_chosen_by_their_own_gpu(tmp_path: Path) -> None:
    """The GPU is read from the object itself, because there is no JSON file with launch values."""
    content = {gpu: make_object(gpu, "k") for gpu in ("gfx942", "gfx1100")}
    files = [stored(f"{gpu}/k.hsaco", code) for gpu, code in content.items()] + [stored("x/k.hsaco", b"damaged")]
    (chosen,) = collect(files, tmp_path, gpus=["gfx942"]).objects
    assert (chosen.name, chosen.gpu, chosen.path.read_bytes()) == ("gfx942/k.hsaco", "gfx942", content["gfx942"])
    with refused("no-code-objects", "gfx942", "gfx1100", "gfx90a"):
        collect(files, tmp_path, gpus=["gfx90a"])


@pytest.mark.parametrize("content", [None, "", "a;b;c\n"])
def test_folder_without_a_plan_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        for name in ("Bare.flatzip", "Bare.compile"):
            (tmp_path / name).write_text(content)
    with refused("plan-missing"):
        launches_of(tmp_path, tmp_path)


@pytest.mark.parametrize("words", [("kernels", "check"), ("report",)])
def test_error_for_a_layout_folder_suggests_the_oci_prefix(words: tuple[str, ...], tmp_path: Path) -> None:
    layout, _ = make(tmp_path)
    done = CliRunner().invoke(app, [*words, str(layout), "--cache", str(tmp_path / "cache")])
    assert done.exit_code == ConfigError.code
    assert f"oci:{layout}" in "".join(done.stderr.split())


@pytest.mark.parametrize(
    ("code", "last", "memory"),
    [
        (-9, "", True),
        (137, "", True),
        (1, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate", True),
        (1, "toolchain.core.errors.ResourceError: a process that checks kernels was killed", True),
        (1, "KeyError: 'x'", False),
    ],
)
def test_fewer_jobs_are_suggested_only_after_a_lack_of_memory(
    code: int, last: str, memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise process.CommandError(["python"], code, [last])

    monkeypatch.setattr(namespace, "enter", lambda: None)
    monkeypatch.setattr(view, "visible", lambda path, _: path)
    monkeypatch.setattr(view, "command", lambda words, *_, **__: words)
    monkeypatch.setattr(process, "run", fail)
    disassembler = Disassembler(Path("/usr/bin/true"), (22, 1, 8), run_program)
    with pytest.raises(EngineError) as caught:
        check_contained([], tmp_path, disassembler, Cache(tmp_path / "cache"), jobs=1, available=0)
    assert ("--jobs" in caught.value.fix) is memory
