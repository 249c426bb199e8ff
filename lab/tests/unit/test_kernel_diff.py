"""`kernels diff` on code objects in folders, archives, wheels, stores and caches, and on PTX."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tarfile
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lab.tests.emulated_objects import compile_all, rule
from lab.tests.json_runs import answer
from tests.kernel_fixtures import aks2
from toolchain.catalog.gpus import known_gpus
from toolchain.catalog.limits import limits_of
from toolchain.cli.app import app
from toolchain.core.errors import ConfigError, KernelError, RegressionError
from toolchain.kernels.result_store import KernelStore, Result
from toolchain_lab.examine.diff import compare
from toolchain_lab.examine.facts import Facts, read_object, read_ptx
from toolchain_lab.examine.kernels import Kernel, _numbered
from toolchain_lab.examine.occupancy import occupancy

GPUS = ("gfx942", "gfx1100")
PTX = """.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry {name}(.param .u64 a)
.reqntid 128
{{
.local .align 16 .b8 __local_depot0[{local}];
.reg .b32 %r<9>;
ld.param.u64 %rd1, [a]; // a comment
ret;
}}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile two campaigns: in `b`, the attention of gfx942 has fewer registers, and other kernels are the same."""
    top = tmp_path_factory.mktemp("kernels")
    a = [rule(top / "a", name, gpu) for name in ("add", "attention") for gpu in GPUS]
    tight = {**rule(top / "b", "attention", "gfx942"), "waves_per_eu": 8}
    compile_all([*a, tight])
    for gpu, name in (("gfx942", "add-fp16"), ("gfx1100", "add-fp16"), ("gfx1100", "attention-fp16")):
        for suffix in (".hsaco", ".json"):
            (top / "b" / gpu).mkdir(parents=True, exist_ok=True)
            shutil.copy(top / "a" / gpu / f"{name}{suffix}", top / "b" / gpu / f"{name}{suffix}")
    return top


run = partial(answer, "kernels", "diff")


def test_occupancy_follows_the_registers_that_the_descriptor_reserves(tmp_path: Path) -> None:
    rules = [rule(tmp_path / name, "add", gpu) for gpu in GPUS for name in ("free", "kept")]
    objects = compile_all([{**rule, "waves_per_eu": at % 2} for at, rule in enumerate(rules)])
    kernels = [read_object(path.read_bytes(), path.name)[0] for path in objects]
    waves = [facts.occupancy and facts.occupancy.registers for facts in kernels]
    # For one requested wave, the descriptor reserves more registers than the kernel uses, so fewer waves fit.
    assert waves == [8, 1, 16, 5]
    assert [facts.vgpr for facts in kernels[::2]] == [facts.vgpr for facts in kernels[1::2]]


def test_every_gpu_has_limits() -> None:
    assert all(limits_of(gpu) for gpu in known_gpus())


@pytest.mark.parametrize(
    ("gpu", "vgpr", "waves"),
    # llc 22.1.8 states these waves for kernels with these numbers of registers.
    [
        ("gfx942", 64, 8),
        *(("gfx942", vgpr, waves) for vgpr, waves in ((65, 7), (80, 6), (96, 5), (128, 4), (168, 3), (169, 2))),
        ("gfx942", 328, 1),
        *(("gfx1100", vgpr, waves) for vgpr, waves in ((96, 16), (97, 12), (144, 10), (192, 8), (240, 6), (256, 5))),
        *(("gfx1103", vgpr, waves) for vgpr, waves in ((64, 16), (65, 12), (128, 8), (192, 5), (256, 4))),
        *(("gfx1250", vgpr, waves) for vgpr, waves in ((64, 8), (128, 8), (144, 7), (192, 5), (256, 4))),
    ],
)  # fmt: skip
def test_registers_limit_waves_as_in_llvm(gpu: str, vgpr: int, waves: int) -> None:
    wave = 64 if gpu == "gfx942" else 32
    result = occupancy(gpu, vgpr=vgpr, sgpr=0, lds=0, wave=wave, threads=4 * wave)
    assert result is not None
    assert (result.registers, result.waves) == (waves, waves)


def test_scalar_registers_and_lds_limit_waves() -> None:
    base: dict[str, Any] = {"vgpr": 8, "wave": 64, "threads": 256}
    results = [occupancy("gfx942", sgpr=sgpr, lds=0, **base) for sgpr in (100, 102, 108)]
    assert [result and result.waves for result in results] == [8, 7, 7]
    results = [occupancy("gfx942", sgpr=8, lds=lds, **base) for lds in (8192, 8193, 32768, 32769, 65536)]
    assert [result and result.waves for result in results] == [8, 7, 2, 1, 1]
    assert occupancy("gfx000", sgpr=8, lds=0, **base) is None


def test_diff_of_a_folder_with_itself_is_empty(built: Path) -> None:
    result = run(built / "a", built / "a")
    assert (result["a"], result["b"]) == (str(built / "a"), str(built / "a"))
    assert result["counts"]["same"] == 4
    assert result["kernels"] == []


def test_new_spills_or_lost_occupancy_fail_the_diff(built: Path) -> None:
    result = run(built / "a", built / "b")
    (row,) = result["kernels"]
    assert (row["gpu"], row["kernel"], row["status"]) == ("gfx942", "attention", "changed")
    assert row["new_spills"] > 0
    assert row["after"]["vgpr"] <= 64 < row["before"]["vgpr"]
    assert run(built / "a", built / "b", "--fail-on", "spills", code=RegressionError.code)["kernels"] == [row]
    assert run(built / "b", built / "a", "--fail-on", "spills")["kernels"][0]["new_spills"] < 0
    # In the other direction, the kernel loses the waves that the spills made possible.
    assert run(built / "b", built / "a", "--fail-on", "occupancy", code=RegressionError.code)
    assert run(built / "a", built / "b", "--gpu", "gfx1100")["kernels"] == []


def test_rows_are_sorted_by_lost_waves_then_by_new_spills() -> None:
    before = Facts(
        name="k", gpu="gfx942", code=9, digest="a", wave=64, threads=256, vgpr=168, sgpr=9, vgpr_spills=0, sgpr_spills=0
    )
    changes = {
        "fewer waves": {"vgpr": 300},
        "spilled for waves": {"vgpr": 64, "vgpr_spills": 100},
        "spilled": {"vgpr_spills": 10},
        "more waves": {"vgpr": 64},
    }
    a = [Kernel(key=f"gfx942/{name}", path=name, sha256="a", facts=before) for name in sorted(changes)]
    b = [
        replace(kernel, sha256="b", facts=replace(before, digest="b", **changes[kernel.path]))  # type: ignore[arg-type]
        for kernel in a
    ]
    assert [row.key.removeprefix("gfx942/") for row in compare(a, b).rows] == list(changes)


def test_text_output_shows_the_spills(built: Path) -> None:
    done = CliRunner().invoke(app, ["kernels", "diff", str(built / "a"), str(built / "b"), "--rows", "1"])
    assert done.exit_code == 0
    assert "VGPR spills 0 -> " in done.stdout


def _pack(built: Path, *, empty: bool = False) -> bytes:
    paths = sorted((built / "a" / "gfx942").glob("*.hsaco"))
    return aks2(*((path.stem, b"" if empty else path.read_bytes()) for path in paths), launch=(512, 256))


def _zip(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def test_prefix_archive_and_wheel_have_the_same_kernels(built: Path, tmp_path: Path) -> None:
    pack = _zip({"amd-gfx942/flash/attention/1.aks2": _pack(built)})
    prefix = tmp_path / "prefix" / "lib" / "aotriton.images" / "amd-gfx942" / "flash"
    prefix.mkdir(parents=True)
    (prefix / "attention.zip").write_bytes(pack)
    archive = tmp_path / "aotriton.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "prefix", "aotriton")
    wheel = tmp_path / "torch-1-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(_zip({"torch/lib/aotriton.images/amd-gfx942/flash/attention.zip": pack}))
    for place in (prefix, archive, wheel, prefix / "attention.zip"):
        assert run(tmp_path / "prefix", place)["counts"]["same"] == 2

    emptied = tmp_path / "emptied.zip"
    emptied.write_bytes(_zip({"amd-gfx942/flash/attention/1.aks2": _pack(built, empty=True)}))
    result = run(archive, emptied, "--fail-on", "missing", code=RegressionError.code)
    assert result["counts"]["empty_b"] == 2
    assert {row["before"]["lds"] for row in result["kernels"]} == {512}


def test_kernels_of_a_store_are_paired_by_their_inputs(built: Path, tmp_path: Path) -> None:
    store = KernelStore(tmp_path / "store")
    for path in sorted((built / "b").rglob("*.hsaco")):
        metadata = path.with_suffix(".json").read_bytes()
        about = json.loads(metadata)
        result = Result(inputs={"rule": {"kernel": about["name"]}}, code=path.read_bytes(), metadata=metadata)
        name = ("0" * 63 + str(len(list((tmp_path / "store").rglob("0*")))))[-64:]
        store.add(name, result.record())
    counts = run(built / "a", tmp_path / "store")["counts"]
    # The tight kernel was compiled for another number of waves, so it is another kernel.
    assert (counts["same"], counts["only_a"], counts["only_b"]) == (3, 1, 1)


def test_kernels_of_two_triton_caches_are_paired(built: Path, tmp_path: Path) -> None:
    for side, folder in (("a", "A" * 52), ("b", "B" * 52)):
        at = tmp_path / side / folder
        at.mkdir(parents=True)
        shutil.copy(built / side / "gfx942" / "attention-fp16.hsaco", at / "attention.hsaco")
        (at / "attention.json").write_text(
            json.dumps({"hash": folder, "num_warps": 4, "num_stages": 1, "shared": 1024})
        )
    (row,) = run(tmp_path / "a", tmp_path / "b")["kernels"]
    assert row["key"].startswith("gfx942/attention/")
    assert (row["before"]["lds"], row["status"]) == (1024, "changed")


def test_variants_of_a_kernel_are_paired_across_names_of_folders(built: Path, tmp_path: Path) -> None:
    for side, letters in (("first", "AB"), ("second", "DC")):
        for variant, letter in zip("ab", letters, strict=True):
            at = tmp_path / side / (letter * 52)
            at.mkdir(parents=True)
            shutil.copy(built / variant / "gfx942" / "attention-fp16.hsaco", at / "attention.hsaco")
            (at / "attention.json").write_text(json.dumps({"hash": at.name, "num_warps": 4, "num_stages": 1}))
    assert run(tmp_path / "first", tmp_path / "second", "--fail-on", "changed")["counts"]["same"] == 2


def test_missing_variant_does_not_shift_the_pairs_of_the_others() -> None:
    """Triton's caches have no names for variants, which differ by constants such as block sizes."""
    facts = Facts(name="k", gpu="gfx942", code=0, digest="", wave=64, threads=256, vgpr=64, sgpr=9)

    def side(name: str, *variants: tuple[str, int, int]) -> list[Kernel]:
        kernels = [
            Kernel(
                key="gfx942/k/1",
                path=label,
                sha256=f"{name}{label}",
                facts=replace(facts, code=code, lds=lds, digest=f"{name}{label}"),
            )
            for label, code, lds in variants
        ]
        return list(_numbered(kernels))

    small, middle, large, grown = ("16", 400, 512), ("32", 820, 1024), ("64", 1600, 2048), ("16", 860, 512)
    a = side("a", small, middle, large)
    b = side("b", ("32", 800, 1024), ("64", 1500, 2048))
    for before, after, only in ((a, b, "only_a"), (b, a, "only_b")):
        rows = compare(before, after).rows
        assert sorted((row.status, [name[1:] for name in row.files]) for row in rows) == [
            ("changed", ["32", "32"]), ("changed", ["64", "64"]), (only, ["16"])
        ]  # fmt: skip
        assert len({row.key for row in rows}) == 3
    # Equal bytes are paired first, even if another variant has grown beyond this one.
    loose = [replace(one, key="gfx942/k/1") for one in (*side("a", middle, large), *side("b", grown))]
    assert [(row.status, row.files) for row in compare(a, list(_numbered(loose))).rows] == [
        ("changed", ("a16", "b16")), ("same", ("a32", "a32")), ("same", ("a64", "a64"))
    ]  # fmt: skip


def test_growth_of_ptx_local_memory_is_reported_as_spills(tmp_path: Path) -> None:
    for side, local in (("a", 16), ("b", 64)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "k.ptx").write_text(PTX.format(name="k", local=local))
    (row,) = run(tmp_path / "a", tmp_path / "b", "--fail-on", "spills", code=RegressionError.code)["kernels"]
    assert (row["gpu"], row["new_spills"], row["before"]["vgpr"], row["before"]["threads"]) == ("sm_90a", 48, None, 128)
    (before, after) = (row[side]["scratch"] for side in ("before", "after"))
    assert (before, after) == (16, 64)


def test_digest_of_ptx_omits_declarations_and_comments() -> None:
    (first,) = read_ptx(PTX.format(name="k", local=16), "k.ptx")
    (same,) = read_ptx(PTX.format(name="k", local=16).replace("a comment", "another") + "// the end\n", "k.ptx")
    (other,) = read_ptx(PTX.format(name="k", local=16).replace("[a]", "[b]"), "k.ptx")
    assert first.digest == same.digest != other.digest


def test_ptx_with_functions_only_has_no_kernel() -> None:
    """Numba's wheels have such a file, which is linked with a kernel later."""
    declared = ".extern .func (.param .b32 r) print\n(.param .b64 a)\n;\n"
    text = f".target sm_50\n{declared}.visible .func (.param .b32 r) double(.param .b64 a)\n{{\nret;\n}}\n"
    assert read_ptx(text, "f.ptx") == ()
    for broken in (text.replace("}", ""), f".target sm_50\n{declared}", text.replace(".func", ".entry")[:-2]):
        with pytest.raises(KernelError):
            read_ptx(broken, "f.ptx")


@pytest.mark.parametrize("at", [0, 3, 19, 64, 300, 2000])
def test_truncated_code_object_is_refused(built: Path, tmp_path: Path, at: int) -> None:
    content = (built / "a" / "gfx942" / "attention-fp16.hsaco").read_bytes()
    if at:
        with pytest.raises(KernelError):
            read_object(content[:at], "k")
    (tmp_path / "gfx942").mkdir()
    (tmp_path / "gfx942" / "attention-fp16.hsaco").write_bytes(content[: len(content) // 2])
    assert CliRunner().invoke(app, ["kernels", "diff", str(tmp_path), str(built / "a")]).exit_code == KernelError.code


def test_corrupt_object_raises_only_kernel_errors(built: Path) -> None:
    content = (built / "a" / "gfx1100" / "add-fp16.hsaco").read_bytes()
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        try:
            read_object(bytes(damaged), "k")
        except KernelError:
            continue


def test_each_mistake_has_its_own_message(built: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "k.ptx").write_text(PTX.format(name="k", local=1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.aks2").write_bytes(b"AKS3" + bytes(60))
    (tmp_path / "broken.tar.gz").write_bytes(b"\x1f\x8b" + bytes(60))
    seen = set()
    for words, code in (
        ((built / "a", tmp_path / "other"), ConfigError.code),
        ((built / "a", tmp_path / "empty"), ConfigError.code),
        ((built / "a", tmp_path / "nowhere"), ConfigError.code),
        ((built / "a", built / "b", "--fail-on", "speed"), ConfigError.code),
        ((built / "a", built / "b", "--gpu", "gfx90a"), ConfigError.code),
        ((built / "a", tmp_path / "x.aks2"), KernelError.code),
        ((tmp_path / "broken.tar.gz", built / "b"), 5),
    ):
        done = CliRunner().invoke(app, ["kernels", "diff", *map(str, words)])
        assert done.exit_code == code, done.output
        seen.add(done.stderr.splitlines()[0].replace(str(tmp_path), ""))
        assert ("inside libraries" in done.stderr) == (words[1:] == (tmp_path / "empty",))
    assert len(seen) == 7


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "body",
    [
        ".local " * 200_000,
        ".local\n" * 200_000 + "}",
        ".local" + " " * 60_000 + "}",
        "\n" * 200_000,
        ".maxntid " + "9" * 5000 + "\n}",
    ],
)
def test_hostile_ptx_is_read_in_bounded_time(body: str) -> None:
    """Patterns that match across lines would take hours, and a number of 5000 digits would end in a traceback."""
    with contextlib.suppress(KernelError):
        (facts,) = read_ptx(f"\n.target sm_90\n.entry k(\n{body}\n", "k.ptx")
        assert (facts.threads, facts.scratch) == (0, 0)
