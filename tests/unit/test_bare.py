"""kernels.aotriton_plan: AOTriton's plan is read, and cut into whole clusters."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plan_fixtures import BUILD, SIGNATURE, SOURCE, old_plan, old_tree, plan_of, tree_of
from tests.refusals import refused
from toolchain.catalog.aotriton_generations import generation_of
from toolchain.core.errors import KernelError, SourceError, UnsupportedError
from toolchain.kernels.aotriton_plan import parse_signature, read_plan
from toolchain.kernels.rules import cut, in_order
from toolchain.stages.aotriton_images import packed


def test_rule_has_values_of_plan_line(tmp_path: Path) -> None:
    plan = read_plan(plan_of(tmp_path / "p", {"c1": ["a"]}), tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
    (rule,) = plan.rules
    assert rule.out == "flash/a.hsaco"
    assert (rule.source, rule.root) == ("modules/flash/kernel/fwd.py", "modules/flash/kernel")
    assert dict(rule.signature) == {
        "Q": "*fp16:16", "B": "constexpr", "sq": "u64:8", "one": "constexpr", "n": "i32", "BLOCK": "constexpr",
        "FLAG": "constexpr", "p": "constexpr",
    }  # fmt: skip
    assert dict(rule.constexprs) == {"B": 0, "one": 1, "BLOCK": 32, "FLAG": False, "p": 0.5}
    assert isinstance(dict(rule.constexprs)["FLAG"], bool)
    assert (rule.num_warps, rule.waves_per_eu, rule.target) == (4, 2, "gfx942")
    assert plan.clusters[0].objects == (("flash/a.hsaco", ";;a;;"),)
    assert plan.archives[0].members == (("aks2/amd-gfx942/flash/attn/c1.aks2", "F0"),)


def test_cut_keeps_whole_clusters(tmp_path: Path) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b"], "c2": ["c", "d"], "c3": ["e"]})
    plan = read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
    rules = cut(plan.rules, limit=3)
    clusters = plan.whole(rules)
    assert {rule.out for rule in rules.rules} == {f"flash/{each}.hsaco" for each in "abcd"}
    assert [each.name.rpartition("/")[2] for each in clusters] == ["c1", "c2"]
    assert rules.partial
    (archive,) = packed(plan, clusters)
    assert [name for _, name in archive.members] == ["F0", "F1"]
    whole = cut(plan.rules)
    assert not whole.partial
    assert len(plan.whole(whole)) == 3


def test_cut_keeps_clusters_that_share_object_together(tmp_path: Path) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b"], "c2": ["b", "d"], "c3": ["e"]})
    plan = read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
    rules = cut(plan.rules, limit=1)
    clusters = plan.whole(rules)
    assert {rule.out for rule in rules.rules} == {"flash/a.hsaco", "flash/b.hsaco", "flash/d.hsaco"}
    assert len(clusters) == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("*fp16", "1 arguments"),
        ("*fp16:32, i32", "'32'"),
        ("*fp16:x, i32", "'x'"),
        ("*fp16:True, i32", "'True'"),
    ],
)
def test_malformed_signature_is_refused(text: str, error: str) -> None:
    with pytest.raises(SourceError, match=error):
        parse_signature(text, ("Q", "n"), where="here")


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        ("default;python;x\n", "plan-malformed"),
        (
            f"d;p;{BUILD}/x.hsaco;{SOURCE}/modules/flash/kernel/fwd.py;other;1;1;1;gfx942;i32\n",
            "kernel-function-missing",
        ),
        (f"d;p;{BUILD}/x.hsaco;{SOURCE}/gone.py;attn;1;1;1;gfx942;i32\n", "kernel-source-unreadable"),
        (f"d;p;{BUILD}/x.hsaco;{SOURCE}/modules/flash/kernel/fwd.py;attn;a;1;1;gfx942;{SIGNATURE}\n", "plan-malformed"),
    ],
)
def test_malformed_plan_line_is_refused(tmp_path: Path, extra: str, error: str) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a"]}, extra=extra)
    with refused(error):
        read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)


@pytest.mark.parametrize("kind", ["zeros", "link"])
@pytest.mark.parametrize("name", ["Bare.compile", "Bare.cluster", "aks2/amd-gfx942/flash/attn/c1.nsv"])
def test_plan_of_zeros_or_outside_of_its_folder_is_not_read(tmp_path: Path, name: str, kind: str) -> None:
    """A file of 60 GB may take no place on the disk of the hostile generator that writes it."""
    file = plan_of(tmp_path / "p", {"c1": ["a"]}) / name
    if kind == "zeros":
        os.truncate(file, 65 << 20)
    else:
        file.rename(tmp_path / "outside")
        file.symlink_to(tmp_path / "outside")
    tracemalloc.start()
    try:
        with pytest.raises(SourceError):
            read_plan(tmp_path / "p", tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_modules_that_import_a_kernel_from_each_other_are_refused(tmp_path: Path) -> None:
    tree = tree_of(tmp_path / "t")
    kernels = tree / "modules/flash/kernel"
    for one, other in (("x", "y"), ("y", "x")):
        (kernels / f"{one}.py").write_text(f"from .{other} import attn\n")
    extra = f"d;p;{BUILD}/x.hsaco;{SOURCE}/modules/flash/kernel/x.py;attn;1;1;1;gfx942;i32\n"
    folder = plan_of(tmp_path / "p", {"c1": ["a"]}, extra=extra)
    with refused("kernel-function-missing"):
        read_plan(folder, tree, build=BUILD, source=SOURCE)


@pytest.mark.parametrize("text", ["nan", "inf", "1_0"])
def test_nan_inf_and_underscores_are_not_numbers(text: str) -> None:
    assert parse_signature(text, ("n",), where="here") == ((("n", text),), ())


def end_manifest_early(folder: Path) -> None:
    path = folder / "aotriton.images/amd-gfx942/flash/attn.nsv"
    path.write_text(path.read_text()[:-8])


def lose_line(name: str) -> Callable[[Path], None]:
    def lose(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines()
        (folder / name).write_text("".join(f"{line}\n" for line in lines[1:]))

    return lose


def one_name_twice(folder: Path) -> None:
    manifest = folder / "aotriton.images/amd-gfx942/flash/attn.nsv"
    manifest.write_text(manifest.read_text().replace("F1", "F0"))


def remove_manifest(folder: Path) -> None:
    (folder / "aks2/amd-gfx942/flash/attn/c2.nsv").unlink()


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (end_manifest_early, "plan-contradictory"),
        (remove_manifest, "plan-unreadable"),
        (lose_line("Bare.compile"), "plan-contradictory"),
        (lose_line("Bare.cluster"), "plan-contradictory"),
        (lose_line("Bare.flatzip"), "plan-contradictory"),
        (one_name_twice, "plan-contradictory"),
    ],
)
def test_incomplete_plan_is_refused(tmp_path: Path, damage: Callable[[Path], None], error: str) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b"], "c2": ["c"]})
    damage(folder)
    with refused(error):
        read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)


@pytest.mark.parametrize(
    ("out", "launch", "kind", "error"),
    [
        ("a", "8;1;1", SourceError, "plan-contradictory"),
        # The rule of "z" has the values of the rule of "a", so its object would have the same content.
        ("z", f"4;{ord('a')};2", KernelError, "rule-twice"),
    ],
)
def test_object_or_rule_planned_twice_is_refused(
    tmp_path: Path, out: str, launch: str, kind: type[Exception], error: str
) -> None:
    extra = f"d;p;{BUILD}/flash/{out}.hsaco;{SOURCE}/modules/flash/kernel/fwd.py;attn;{launch};gfx942;{SIGNATURE}\n"
    folder = plan_of(tmp_path / "p", {"c1": ["a"]}, extra=extra)
    with refused(error):
        read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)


def test_constants_that_compare_equal_keep_their_types(tmp_path: Path) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b", "c", "d"]})
    text = (folder / "Bare.compile").read_text()
    for name, constant in (("a", "1"), ("b", "True"), ("c", "1.0"), ("d", "u64:1")):
        line = next(line for line in text.splitlines() if f"/{name}.hsaco" in line)
        text = text.replace(line, line.replace(" 0, u64:8", f" {constant}, u64:8"))
    (folder / "Bare.compile").write_text(text)
    plan = read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
    values = [dict(rule.constexprs)["B"] for rule in plan.rules]
    assert [(type(value), value) for value in values] == [(int, 1), (bool, True), (float, 1.0), (int, 1)]


@pytest.mark.parametrize(
    "path",
    ["/x.hsaco", "/b/plan/..", "/b/plan/../x.hsaco", "/b/plan/", "/b/plan", "/b/plan/a/../../x", "x", "", "/b/planx/y"],
)
def test_object_path_outside_plan_folder_is_refused(tmp_path: Path, path: str) -> None:
    extra = f"d;p;{path};{SOURCE}/modules/flash/kernel/fwd.py;attn;1;1;1;gfx942;{SIGNATURE}\n"
    folder = plan_of(tmp_path / "p", {"c1": ["a"]}, extra=extra)
    with refused("plan-escapes"):
        read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)


def test_rules_with_equal_constants_are_compiled_in_a_row(tmp_path: Path) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b", "c", "d"]})
    text = (folder / "Bare.compile").read_text()
    for name in "bd":
        line = next(line for line in text.splitlines() if f"/{name}.hsaco" in line)
        text = text.replace(line, line.replace("32, False", "64, False"))
    (folder / "Bare.compile").write_text(text)
    plan = read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
    assert [rule.out[6] for rule in plan.rules] == ["a", "b", "c", "d"]
    assert [rule.out[6] for rule in in_order(plan.rules)] == ["a", "c", "b", "d"]


def test_plan_with_eight_fields_and_unzipped_clusters_is_read(tmp_path: Path) -> None:
    folder = old_plan(tmp_path / "p", [("＊a", "gfx942", 1), ("＊b", "gfx942", 2)], clusters={"＊F": ["＊a", "＊b"]})  # noqa: RUF001
    plan = read_plan(folder, old_tree(tmp_path / "t"), build=BUILD, source=SOURCE, of=generation_of("0.11b"))
    (cluster,) = plan.clusters
    assert (cluster.path, cluster.manifest) == ("aotriton.images/amd-gfx942/flash/attn/＊F.aks2", "")  # noqa: RUF001
    assert cluster.objects == (("flash/＊a.hsaco", "＊a"), ("flash/＊b.hsaco", "＊b"))  # noqa: RUF001
    assert [archive.path for archive in plan.archives] == [cluster.path]
    assert [rule.waves_per_eu for rule in plan.rules] == [1, 2]
    assert plan.rules[0].signature[0] == ("Q", "*fp16:16"), "names are those of the file that flash.py takes it from"
    assert plan.copies == {}


def test_gpu_words_are_mapped_and_equal_rules_are_compiled_once(tmp_path: Path) -> None:
    rows = [("a", "MI300X", 0), ("b", "MI300X", 3), ("c", "Navi31", 0)]
    folder = old_plan(tmp_path / "p", rows, clusters={})
    plan = read_plan(folder, old_tree(tmp_path / "t"), build=BUILD, source=SOURCE, of=generation_of("0.7.1b"))
    assert [(rule.out, rule.target) for rule in plan.rules] == [
        ("flash/a.hsaco", "gfx942"),
        ("flash/c.hsaco", "gfx1100"),
    ]
    assert plan.copies == {"flash/a.hsaco": ("flash/b.hsaco",)}
    clusters = {"F": ["a", "b", "c"]}
    folder = old_plan(tmp_path / "other", rows, clusters=clusters)
    with pytest.raises(UnsupportedError):  # The words of one generation are no GPUs in another.
        read_plan(folder, tmp_path / "t", build=BUILD, source=SOURCE, of=generation_of("0.11b"))
