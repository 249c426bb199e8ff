"""Rules come out of data and source, whole clusters at a time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.kernel_fixtures import make_rule
from toolchain.errors import ConfigError, SourceError, UnsupportedError
from toolchain.kernels.rules import Rule, cut, load_rules

KERNELS = """
import something_that_is_not_installed

@triton.jit
def add(X, Y, stride_x, stride_xk, n, scale, mask, BLOCK: tl.constexpr, DOUBLE: "tl.constexpr" = False):
    pass

@triton.autotune(configs=[])
@triton.jit
def copy(X, N: tl.constexpr):
    pass
"""
DATA = """
[source]
root = "pack age"

[[kernel]]
source = "inner/kernels.py"
function = "add"
direction = "forward"
num_warps = 4
num_stages = 1
waves_per_eu = 2
options = { kpack = 2 }
axes = { dtype = ["fp16", "bf16"], double = [false, true] }
skip = [{ dtype = "bf16", double = true }]
[kernel.arguments]
"[XY]" = "*{dtype}:16"
stride_xk = 1
"stride_*" = "i32:16"
n = "i32"
scale = "fp32"
mask = "none"
BLOCK = 128
DOUBLE = "{double}"

[[kernel]]
source = "inner/kernels.py"
function = "copy"
direction = "backward"
num_warps = 1
num_stages = 1
waves_per_eu = 0
[kernel.arguments]
X = "*fp32"
N = 64
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "it's the source" / "pack age" / "inner"
    folder.mkdir(parents=True)
    (folder / "kernels.py").write_text(KERNELS, encoding="utf-8")
    return tmp_path / "it's the source"


def load(tree: Path, data: str = DATA, *, gpus: tuple[str, ...] = ("gfx942",)) -> tuple[Rule, ...]:
    path = tree.parent / "data.toml"
    path.write_text(data, encoding="utf-8")
    return load_rules(path, tree, gpus).rules


def test_every_form_of_every_kernel_for_every_gpu(tree: Path) -> None:
    rules = load(tree, gpus=("gfx942", "gfx1100"))

    assert len(rules) == 2 * (3 + 1)
    assert len({rule.id for rule in rules}) == len({rule.out for rule in rules}) == 8
    first = rules[0]
    assert (first.kernel, first.target, first.direction) == ("add", "gfx1100", "forward")
    assert first.signature == (
        ("X", "*fp16:16"),
        ("Y", "*fp16:16"),
        ("stride_x", "i32:16"),
        ("stride_xk", "constexpr"),
        ("n", "i32"),
        ("scale", "fp32"),
        ("mask", "constexpr"),
        ("BLOCK", "constexpr"),
        ("DOUBLE", "constexpr"),
    )
    assert dict(first.constexprs) == {"stride_xk": 1, "mask": None, "BLOCK": 128, "DOUBLE": False}
    assert first.out == "gfx1100/kernels.add/dtype-fp16_double-false.hsaco"
    assert {rule.cluster for rule in rules} == {
        f"{g}/kernels.{k}" for g in ("gfx942", "gfx1100") for k in ("add", "copy")
    }


def test_a_task_is_json_with_the_workers_own_paths(tree: Path) -> None:
    rule = load(tree)[0]
    task = json.loads(json.dumps(rule.task("/src", "/out")))

    assert task["root"] == "/src/pack age"
    assert task["source"] == "/src/pack age/inner/kernels.py"
    assert task["out"] == f"/out/{rule.out}"
    assert task["id"] == rule.id
    assert task["options"] == {"kpack": 2}
    assert list(task["signature"]) == ["X", "Y", "stride_x", "stride_xk", "n", "scale", "mask", "BLOCK", "DOUBLE"]


def test_the_id_follows_the_content_and_nothing_else(tree: Path) -> None:
    rule = load(tree)[0]

    assert load(tree)[0].id == rule.id
    assert dataclasses.replace(rule, cluster="other", out="elsewhere").id == rule.id
    changed = [
        dataclasses.replace(rule, num_warps=8),
        dataclasses.replace(rule, waves_per_eu=0),
        dataclasses.replace(rule, target="gfx950"),
        dataclasses.replace(rule, options=()),
        dataclasses.replace(rule, constexprs=(*rule.constexprs[:-1], ("stride_xk", 2))),
    ]
    assert len({rule.id, *(one.id for one in changed)}) == 6


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('n = "i32"\n', "", SourceError, "nothing says what n is"),
        ('n = "i32"\n', 'n = "i32"\nm = "i32"\n', SourceError, "no such argument: m"),
        ('function = "copy"', 'function = "missing"', SourceError, "no function missing"),
        ("inner/kernels.py", "inner/gone.py", SourceError, "cannot read"),
        ("N = 64", 'N = "i32"', ConfigError, "N is a constant"),
        ("num_warps = 4", 'num_warps = "many"', ConfigError, "lacks or misuses"),
        ("[source]", "[sauce]", ConfigError, "cannot use"),
        ('["fp16", "bf16"]', '["fp16", "fp16"]', ConfigError, "two rules"),
    ],
)
def test_data_that_does_not_fit_the_source_is_refused(
    tree: Path, old: str, new: str, error: type[Exception], message: str
) -> None:
    assert old in DATA
    with pytest.raises(error, match=message):
        load(tree, DATA.replace(old, new, 1))


def test_an_unknown_gpu_is_refused(tree: Path) -> None:
    with pytest.raises(UnsupportedError, match="gfx999"):
        load(tree, gpus=("gfx999",))


def campaign() -> list[Rule]:
    return [
        make_rule(kernel, target=target, cluster=f"{target}/{kernel}/{group}", warps=2**warps)
        for target in ("gfx942", "gfx1100")
        for kernel in ("attn_fwd", "bwd_dq")
        for group in range(3)
        for warps in range(group * 4, group * 4 + 4)
    ]


def test_all_is_no_part() -> None:
    assert not cut(campaign()).partial
    assert not cut(campaign(), select="*").partial
    assert not cut(campaign(), limit=10_000).partial


def test_select_keeps_whole_clusters() -> None:
    everything = campaign()
    by_kernel = cut(everything, select="attn_*")
    by_id = cut(everything, select=everything[5].id)

    assert {rule.kernel for rule in by_kernel.rules} == {"attn_fwd"}
    assert by_kernel.partial
    assert len(by_kernel.rules) == 24
    assert by_id.rules == tuple(everything[4:8])


def test_limit_keeps_whole_clusters_of_each_gpu_and_kernel() -> None:
    part = cut(campaign(), limit=14)

    assert part.partial
    assert len(part.rules) == 16
    assert len({(rule.target, rule.kernel) for rule in part.rules}) == 4
    sizes: dict[str, int] = {}
    for rule in part.rules:
        sizes[rule.cluster] = sizes.get(rule.cluster, 0) + 1
    assert set(sizes.values()) == {4}


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(ConfigError, match="matches no kernel") as caught:
        cut(campaign(), select="nope")
    assert "attn_fwd, bwd_dq" in caught.value.why
    with pytest.raises(ConfigError, match="limit"):
        cut(campaign(), limit=0)


def test_the_digest_tells_parts_apart() -> None:
    assert cut(campaign()).digest == cut(campaign()).digest
    assert cut(campaign()).digest != cut(campaign(), limit=4).digest
