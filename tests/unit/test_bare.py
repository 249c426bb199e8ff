"""kernels.bare and kernels.aks2: AOTriton's plan read, in whole clusters, and its archives read back."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernel_fixtures import aks2
from toolchain.catalog.aotriton_generations import generation_of
from toolchain.digest import sha256_bytes
from toolchain.errors import ContractError, KernelError, SourceError, UnsupportedError
from toolchain.kernels.aks2 import read_aks2, read_archive
from toolchain.kernels.aotriton_plan import Archive, Cluster, parse_signature, read_plan
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.ledger import Entry
from toolchain.kernels.rules import RuleSet, cut, in_order
from toolchain.stages.aotriton_images import KernelImages, check_images, compare, packed, upstream_arguments

BUILD, SOURCE = "/b/plan", "/b/src"
SIGNATURE = "*fp16:16, 0, u64:8, u64:1, i32, 32, False, 0.5"


def tree_of(path: Path) -> Path:
    kernels = path / "modules/flash/kernel"
    kernels.mkdir(parents=True)
    (kernels / "fwd.py").write_text(
        "import nothing_that_exists\n@triton.jit\ndef attn(Q, B, sq, one, n, BLOCK: tl.constexpr, FLAG, p):\n    pass\n"
    )
    return path


def plan_of(path: Path, clusters: dict[str, Sequence[str]], *, gpu: str = "gfx942", extra: str = "") -> Path:
    """A generator's folder with one object a name."""
    images = path / f"aotriton.images/amd-{gpu}/flash"
    images.mkdir(parents=True)
    lines, rows, zipped = [], [], []
    for number, (cluster, objects) in enumerate(sorted(clusters.items())):
        manifest = path / f"aks2/amd-{gpu}/flash/attn/{cluster}.nsv"
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text("".join(f"{BUILD}/flash/{name}.hsaco\0;;{name};;\0\n" for name in objects))
        rows.append(";".join([f"amd-{gpu}", "flash", "attn", cluster, *(f"{BUILD}/flash/{o}.hsaco" for o in objects)]))
        zipped.append((f"{BUILD}/aks2/amd-{gpu}/flash/attn/{cluster}.aks2", f"F{number}"))
        for name in objects:
            stages = sum(map(ord, name))
            fields = [
                "default", "/venv/python", f"{BUILD}/flash/{name}.hsaco", f"{SOURCE}/modules/flash/kernel/fwd.py",
                "attn", "4", str(stages), "2", gpu, SIGNATURE,
            ]  # fmt: skip
            line = ";".join(fields)
            if line not in lines:
                lines.append(line)
    (path / "Bare.compile").write_text("\n".join(lines) + "\n" + extra)
    (path / "Bare.cluster").write_text("\n".join(rows) + "\n")
    (images / "attn.nsv").write_text("".join(f"{a}\0{b}\0\n" for a, b in zipped))
    (path / "Bare.flatzip").write_text(";".join([f"amd-{gpu}", "flash", "attn", *(a for a, _ in zipped)]) + "\n")
    return path


def test_a_rule_as_upstream_reads_the_line(tmp_path: Path) -> None:
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


def test_a_part_takes_whole_clusters(tmp_path: Path) -> None:
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


def test_clusters_that_share_an_object_come_together(tmp_path: Path) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b"], "c2": ["b", "d"], "c3": ["e"]})
    plan = read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
    rules = cut(plan.rules, limit=1)
    clusters = plan.whole(rules)
    assert {rule.out for rule in rules.rules} == {"flash/a.hsaco", "flash/b.hsaco", "flash/d.hsaco"}
    assert len(clusters) == 2


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("*fp16", "1 arguments for a kernel with 2"),
        ("*fp16:32, i32", "has the hint '32'"),
        ("*fp16:x, i32", "has the hint 'x'"),
        ("*fp16:True, i32", "has the hint 'True'"),
    ],
)
def test_a_signature_of_another_form_is_refused(text: str, error: str) -> None:
    with pytest.raises(SourceError, match=error):
        parse_signature(text, ("Q", "n"), where="here")


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        ("default;python;x\n", "3 fields, 10 or more expected"),
        (f"d;p;/elsewhere/x.hsaco;{SOURCE}/modules/flash/kernel/fwd.py;attn;1;1;1;gfx942;i32\n", "is not in"),
        (f"d;p;{BUILD}/../x.hsaco;{SOURCE}/modules/flash/kernel/fwd.py;attn;1;1;1;gfx942;i32\n", "is not in"),
        (f"d;p;{BUILD}/x.hsaco;{SOURCE}/modules/flash/kernel/fwd.py;other;1;1;1;gfx942;i32\n", "no function other"),
        (f"d;p;{BUILD}/x.hsaco;{SOURCE}/gone.py;attn;1;1;1;gfx942;i32\n", "cannot read the kernel source"),
        (f"d;p;{BUILD}/x.hsaco;{SOURCE}/modules/flash/kernel/fwd.py;attn;a;1;1;gfx942;{SIGNATURE}\n", "not numbers"),
    ],
)
def test_a_plan_of_another_form_is_refused(tmp_path: Path, extra: str, error: str) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a"]}, extra=extra)
    with pytest.raises(SourceError, match=error):
        read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)


def test_an_unknown_gpu_is_refused(tmp_path: Path) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a"]}, gpu="gfx906")
    with pytest.raises(UnsupportedError, match="gfx906"):
        read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)


def cut_manifest(folder: Path) -> None:
    path = folder / "aks2/amd-gfx942/flash/attn/c1.nsv"
    path.write_text(path.read_text().splitlines()[0] + "\n")


def end_manifest_early(folder: Path) -> None:
    path = folder / "aotriton.images/amd-gfx942/flash/attn.nsv"
    path.write_text(path.read_text()[:-8])


def lose_line(name: str) -> Callable[[Path], None]:
    def lose(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines()
        (folder / name).write_text("".join(f"{line}\n" for line in lines[1:]))

    return lose


def lose_member(folder: Path) -> None:
    plan, manifest = folder / "Bare.flatzip", folder / "aotriton.images/amd-gfx942/flash/attn.nsv"
    plan.write_text(plan.read_text().rpartition(";")[0] + "\n")
    manifest.write_text(manifest.read_text().splitlines()[0] + "\n")


def one_name_twice(folder: Path) -> None:
    manifest = folder / "aotriton.images/amd-gfx942/flash/attn.nsv"
    manifest.write_text(manifest.read_text().replace("F1", "F0"))


def remove_manifest(folder: Path) -> None:
    (folder / "aks2/amd-gfx942/flash/attn/c2.nsv").unlink()


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (cut_manifest, "name different files"),
        (end_manifest_early, "name different files"),
        (remove_manifest, "cannot read c2"),
        (lose_line("Bare.compile"), "does not make"),
        (lose_line("Bare.cluster"), "no cluster takes"),
        (lose_line("Bare.flatzip"), "no archive takes"),
        (lose_member, "no archive takes"),
        (one_name_twice, "one name to two files"),
    ],
)
def test_a_plan_with_holes_is_no_plan(tmp_path: Path, damage: Callable[[Path], None], error: str) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b"], "c2": ["c"]})
    damage(folder)
    with pytest.raises(SourceError, match=error):
        read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)


def test_one_object_planned_twice_differently_is_refused(tmp_path: Path) -> None:
    extra = f"d;p;{BUILD}/flash/a.hsaco;{SOURCE}/modules/flash/kernel/fwd.py;attn;8;1;1;gfx942;{SIGNATURE}\n"
    with pytest.raises(SourceError, match="twice, differently"):
        read_plan(
            plan_of(tmp_path / "p", {"c1": ["a"]}, extra=extra), tree_of(tmp_path / "t"), build=BUILD, source=SOURCE
        )


def test_one_rule_under_two_names_is_refused(tmp_path: Path) -> None:
    # "a" and "a" again under another path: the same launch values, the same content.
    stages = ord("a")
    extra = f"d;p;{BUILD}/flash/z.hsaco;{SOURCE}/modules/flash/kernel/fwd.py;attn;4;{stages};2;gfx942;{SIGNATURE}\n"
    with pytest.raises(KernelError, match="are the same rule"):
        read_plan(
            plan_of(tmp_path / "p", {"c1": ["a"]}, extra=extra), tree_of(tmp_path / "t"), build=BUILD, source=SOURCE
        )


def test_aks2_is_read() -> None:
    good, bad = read_aks2(aks2((";;a;;", b"\x7fELF object"), (";;b;;", b"")))
    assert (good.name, good.shared, good.threads, good.content) == (";;a;;", 1024, 256, b"\x7fELF object")
    assert bad.content == b""


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: b"AKS1" + data[4:], "not an AKS2 file"),
        (lambda data: data[:4] + struct.pack("<I", 7) + data[8:], "impossible sizes|another size"),
        (lambda data: data[:8] + struct.pack("<I", 9) + data[12:], "directory|outside"),
        (lambda data: data[:30], "ends early|does not unpack"),
        (lambda data: data[:-4], "ends early"),
        (lambda data: data + b"more", "has data after its end"),
        (lambda data: data[:40] + b"\xff" * 8 + data[48:], "does not unpack|ends early|another size|outside|directory"),
    ],
)
def test_damaged_aks2_is_told(damage: Callable[[bytes], bytes], error: str) -> None:
    with pytest.raises(KernelError, match=error):
        read_aks2(damage(aks2(("a", b"x" * 100), ("b", b"y" * 50))))


@pytest.fixture
def images(tmp_path: Path) -> tuple[Path, list[Cluster], list[Archive]]:
    (tmp_path / "flash").mkdir()
    (tmp_path / "flash/a.hsaco").write_bytes(b"object a")
    (tmp_path / "flash/a.json").write_text('{"shared": 1024, "num_warps": 4, "warp_size": 64}')
    (tmp_path / "flash/b.hsaco").write_bytes(b"")
    cluster = Cluster("aks2/x/c1.aks2", "aks2/x/c1.nsv", (("flash/a.hsaco", "A"), ("flash/b.hsaco", "B")))
    archive = Archive("aotriton.images/attn.zip", "aotriton.images/attn.nsv", (("aks2/x/c1.aks2", "F"),))
    (tmp_path / "aotriton.images").mkdir()
    write_zip(tmp_path, ("F", aks2(("A", b"object a"), ("B", b""))))
    return tmp_path, [cluster], [archive]


A_SHA256 = sha256_bytes(b"object a").removeprefix("sha256:")


def write_zip(build: Path, *entries: tuple[str, bytes], how: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(build / "aotriton.images/attn.zip", "w", how) as archive:
        for name, content in entries:
            archive.writestr(name, content)


def test_images_that_hold_what_was_compiled_pass(images: tuple[Path, list[Cluster], list[Archive]]) -> None:
    build, clusters, archives = images
    check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})
    assert [name for name, _ in read_archive(build / archives[0].path)] == ["F"]


@pytest.mark.parametrize(
    "entries",
    [
        [("F", aks2(("A", b"object x"), ("B", b"")))],
        [("F", aks2(("A", b"object a")))],
        [("F", aks2(("B", b""), ("A", b"object a")))],
        [("G", aks2(("A", b"object a"), ("B", b"")))],
        [("F", aks2(("A", b""), ("B", b"")))],
        [("F", aks2(("A", b"object a"), ("B", b""), launch=(1024, 128)))],
        [("F", aks2(("A", b"object a"), ("B", b""), launch=(512, 256)))],
    ],
)
def test_images_that_hold_something_else_are_refused(
    images: tuple[Path, list[Cluster], list[Archive]], entries: list[tuple[str, bytes]]
) -> None:
    build, clusters, archives = images
    write_zip(build, *entries)
    with pytest.raises(ContractError):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})


def test_an_object_that_was_changed_before_it_was_packed_is_refused(
    images: tuple[Path, list[Cluster], list[Archive]],
) -> None:
    build, clusters, archives = images
    (build / "flash/a.hsaco").write_bytes(b"object b")
    write_zip(build, ("F", aks2(("A", b"object b"), ("B", b""))))
    with pytest.raises(ContractError, match="changed since it was compiled"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})


def test_an_archive_that_the_loader_would_not_read_is_refused(
    images: tuple[Path, list[Cluster], list[Archive]],
) -> None:
    build, clusters, archives = images
    content = aks2(("A", b"object a"), ("B", b""))
    write_zip(build, ("F", content), how=zipfile.ZIP_DEFLATED)
    with pytest.raises(KernelError, match="compressed"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})
    with pytest.warns(UserWarning, match="Duplicate name"):
        write_zip(build, ("F", content), ("F", aks2(("A", b"object x"))))
    with pytest.raises(KernelError, match="one name twice"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256})


def test_an_empty_object_that_counts_as_compiled_is_refused(
    images: tuple[Path, list[Cluster], list[Archive]],
) -> None:
    build, clusters, archives = images
    with pytest.raises(ContractError, match="B is not what was compiled"):
        check_images(build, clusters, archives, {"flash/a.hsaco": A_SHA256, "flash/b.hsaco": "sha"})


def entry(
    out: str, status: str, sha256: str = "", reason: str = "TypeError: boom\nbecause", exit_code: int | None = None
) -> Entry:
    return Entry(
        id=out, kernel="attn", target="gfx942", out=out, cluster="c", status=status, reason=reason, sha256=sha256,
        exit_code=exit_code,
    )  # fmt: skip


def answer(sha256: str = "", *, code: int = 0, status: str = "", error: str = "") -> dict[str, object]:
    return {"sha256": sha256, "size": len(sha256), "code": code, "status": status, "error": error, "reason": "said"}


def test_upstreams_script_is_given_the_signature_it_wrote(tmp_path: Path) -> None:
    plan = read_plan(plan_of(tmp_path / "p", {"c1": ["a"]}), tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
    arguments = upstream_arguments(plan.rules[0])
    # What is known to be 1 is a constant to both.
    assert arguments[-1] == SIGNATURE.replace("u64:1", "1")
    assert arguments[0] == "/build/src/modules/flash/kernel/fwd.py"
    assert parse_signature(arguments[-1], [name for name, _ in plan.rules[0].signature], where="") == (
        plan.rules[0].signature,
        plan.rules[0].constexprs,
    )


BOOM = answer(code=1, error="TypeError: boom")


def test_the_same_bytes_and_the_same_failures_pass() -> None:
    counts = compare([entry("a", "done", "ff")], [entry("b", "failed")], {"a": answer("ff"), "b": BOOM})
    assert counts == {"sampled": 1, "equal": 1, "failures": 1, "alike": 1}


@pytest.mark.parametrize(
    ("answers", "pattern"),
    [
        ({"a": answer("ee"), "b": BOOM}, "a: ff here, ee by upstream"),
        ({"a": answer(), "b": BOOM}, "a: ff here, nothing by upstream"),
        ({"a": answer("ff"), "b": answer("dd")}, r"b failed here \(TypeError: boom\), an object there"),
    ],
)
def test_other_bytes_and_a_failure_of_our_own_are_told(answers: dict[str, dict[str, object]], pattern: str) -> None:
    with pytest.raises(ContractError) as caught:
        compare([entry("a", "done", "ff")], [entry("b", "failed")], answers)
    assert re.search(pattern, caught.value.why)


@pytest.mark.parametrize(
    ("status", "reason", "exit_code", "there", "alike"),
    [
        ("failed", "TypeError: boom", None, answer(code=1, error="TypeError: boom"), True),
        (
            "failed",
            "a.b.CompilationError: at 1:2:\nx",
            None,
            answer(code=1, error="a.b.CompilationError: at 1:2:"),
            True,
        ),
        # The script did not come so far as to compile.
        ("failed", "TypeError: boom", None, answer(code=2), False),
        (
            "failed",
            "TypeError: boom",
            None,
            answer(code=1, error="ModuleNotFoundError: No module named 'triton'"),
            False,
        ),
        ("failed", "the worker was ended by SIGABRT\nLLVM ERROR", -6, answer(code=-6), True),
        ("failed", "the worker was ended by SIGABRT\nLLVM ERROR", -6, answer(code=1, error="OSError: no"), False),
        ("failed", "the worker exited with 3", 3, answer(code=3), True),
        ("failed", "the worker exited with 3", 3, answer(code=1), False),
        ("failed", "the file is empty", None, answer(), True),
        ("failed", "the file is empty", None, answer(code=1, error="TypeError: boom"), False),
        ("timeout", "no result after 3 s", None, answer(status="Timeout"), True),
        ("timeout", "no result after 3 s", None, answer(status="Exception"), False),
    ],
)
def test_only_the_same_failure_is_alike(
    status: str, reason: str, exit_code: int | None, there: dict[str, object], alike: bool
) -> None:
    bad = [entry("b", status, reason=reason, exit_code=exit_code)]
    if alike:
        assert compare([], bad, {"b": there})["alike"] == 1
    else:
        with pytest.raises(ContractError, match="1 of 1 failures differ there"):
            compare([], bad, {"b": there})


def test_what_ended_upstreams_script_is_found_in_what_it_said(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "try:\n    raise KeyError('inner')\nexcept KeyError as e:\n    raise ValueError('first\\nerror: more') from e\n"
    )
    job = {"script": str(script), "jobs": 1, "rules": [{"id": "x", "arguments": [], "timeout": 0}]}
    (tmp_path / "job.json").write_text(json.dumps(job))
    upstream = Path(__file__).resolve().parents[2] / "aotriton/upstream.py"
    done = subprocess.run([sys.executable, upstream, tmp_path / "job.json"], capture_output=True, text=True, check=True)
    answer_ = json.loads(done.stdout)
    assert (answer_["code"], answer_["error"], answer_["size"]) == (1, "ValueError: first", 0)


def test_rules_that_differ_in_launch_alone_share_what_was_read(tmp_path: Path) -> None:
    """A third of AOTriton's rules have a signature of their own; for all GPUs a copy for each would be a gigabyte."""
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b"], "c2": ["c"]})
    plan = read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
    first, *others = plan.rules
    for rule in others:
        assert rule.num_stages != first.num_stages
        assert rule.signature is first.signature
        assert rule.constexprs is first.constexprs
        assert rule.source is first.source


def test_constants_that_compare_equal_stay_what_they_are(tmp_path: Path) -> None:
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
    "path", ["/x.hsaco", "/b/plan/..", "/b/plan/", "/b/plan", "/b/plan/a/../../x", "x", "", "/b/planx/y"]
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    extra = f"d;p;{path};{SOURCE}/modules/flash/kernel/fwd.py;attn;1;1;1;gfx942;{SIGNATURE}\n"
    folder = plan_of(tmp_path / "p", {"c1": ["a"]}, extra=extra)
    with pytest.raises(SourceError, match="is not in"):
        read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)


def test_what_shares_most_is_compiled_in_a_row(tmp_path: Path) -> None:
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b", "c", "d"]})
    text = (folder / "Bare.compile").read_text()
    for name in "bd":
        line = next(line for line in text.splitlines() if f"/{name}.hsaco" in line)
        text = text.replace(line, line.replace("32, False", "64, False"))
    (folder / "Bare.compile").write_text(text)
    plan = read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE)
    assert [rule.out[6] for rule in plan.rules] == ["a", "b", "c", "d"]
    assert [rule.out[6] for rule in in_order(plan.rules)] == ["a", "c", "b", "d"]


def test_a_kernel_that_was_stopped_for_its_memory_is_not_given_to_upstreams_script(tmp_path: Path) -> None:
    """Nothing bounds that script: it would take the machine's memory. One that ran for an hour gets an hour there."""
    folder = plan_of(tmp_path / "p", {"c1": ["a", "b", "c"]})
    rules = read_plan(folder, tree_of(tmp_path / "t"), build=BUILD, source=SOURCE).rules
    good, large, late = rules
    entries = (
        Entry.of(good, "done", sha256="ab"),
        Entry.of(large, "failed", reason="memory: 9 GB, one kernel may take 4 GB", over_memory=True),
        Entry.of(late, "timeout", reason="no result after 3600 s"),
    )
    sent: list[dict[str, Any]] = []

    def run(_: str, __: object, *, mounts: Sequence[Any], **___: object) -> Any:
        (path,) = (mount.source for mount in mounts if mount.target == "/job.json")
        sent.extend(json.loads(path.read_text())["rules"])
        answers = {
            good.id: {"sha256": "ab", "size": 1, "status": "Complete"},
            late.id: {"sha256": "", "size": 0, "status": "Timeout"},
        }
        rows = [{"id": mount["id"], "code": 0, "error": "", "reason": "", **answers[mount["id"]]} for mount in sent]
        return SimpleNamespace(stdout="\n".join(map(json.dumps, rows)))

    workspace: Any = SimpleNamespace(
        request=SimpleNamespace(kernel_timeout=None), work=lambda: tmp_path, jobs=lambda _: 1, log=tmp_path / "log",
        runner=SimpleNamespace(run=run), on_line=print,
    )  # fmt: skip
    result = CampaignResult(entries=entries, skipped=0, partial=False, about={})
    images = KernelImages(folder, tmp_path / "t", "image", workspace)
    assert images.against_upstream(RuleSet(rules, total=3), result)["failures"] == 1
    assert [(row["id"], row["timeout"]) for row in sent] == [(good.id, 0), (late.id, 60.0)]


# --- older generations ---


def old_plan(path: Path, rows: Sequence[tuple[str, str, int]], *, clusters: Mapping[str, Sequence[str]]) -> Path:
    """A folder as generators before 0.12 leave it: (object, GPU, waves) a line, in `clusters` where those are files."""
    path.mkdir(parents=True)
    lines = [
        f"{BUILD}/flash/{name}.hsaco;{SOURCE}/tritonsrc/flash.py;attn;4;1;{waves};{gpu};{SIGNATURE}"
        for name, gpu, waves in rows
    ]
    (path / "Bare.compile").write_text("\n".join(lines) + "\n")
    if clusters:
        rules = [
            ";".join(["amd-gfx942", "flash", "attn", name, *(f"{BUILD}/flash/{object_}.hsaco" for object_ in objects)])
            for name, objects in clusters.items()
        ]
        (path / "Bare.cluster").write_text("\n".join(rules) + "\n")
    return path


def old_tree(path: Path) -> Path:
    kernels = path / "tritonsrc"
    kernels.mkdir(parents=True)
    (kernels / "flash.py").write_text("import triton\nfrom .fwd import other as attn\nfrom package.sub import else_\n")
    (kernels / "fwd.py").write_text("def other(Q, B, sq, one, n, BLOCK, FLAG, p):\n    pass\n")
    return path


def test_a_plan_of_eight_fields_with_loose_clusters_is_read(tmp_path: Path) -> None:
    folder = old_plan(tmp_path / "p", [("＊a", "gfx942", 1), ("＊b", "gfx942", 2)], clusters={"＊F": ["＊a", "＊b"]})  # noqa: RUF001
    plan = read_plan(folder, old_tree(tmp_path / "t"), build=BUILD, source=SOURCE, of=generation_of("0.11b"))
    (cluster,) = plan.clusters
    assert (cluster.path, cluster.manifest) == ("aotriton.images/amd-gfx942/flash/attn/＊F.aks2", "")  # noqa: RUF001
    assert cluster.objects == (("flash/＊a.hsaco", "＊a"), ("flash/＊b.hsaco", "＊b"))  # noqa: RUF001
    assert [archive.path for archive in plan.archives] == [cluster.path]
    assert [rule.waves_per_eu for rule in plan.rules] == [1, 2]
    assert plan.rules[0].signature[0] == ("Q", "*fp16:16"), "names are those of the file that flash.py takes it from"
    assert plan.copies == {}


def test_words_become_gpus_and_rules_that_a_compiler_takes_for_one_are_compiled_once(tmp_path: Path) -> None:
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
    with pytest.raises(UnsupportedError):  # another generation's words are not GPUs
        read_plan(folder, tmp_path / "t", build=BUILD, source=SOURCE, of=generation_of("0.11b"))
