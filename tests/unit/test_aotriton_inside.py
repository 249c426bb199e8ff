"""stages.aotriton_inside: the files of kernels for a library that contains them, and incbin.h, which embeds them."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path

import pytest

from tests.plan_fixtures import BUILD, SOURCE, old_plan, old_tree
from toolchain.catalog.aotriton_generations import generation_of
from toolchain.core import recipe
from toolchain.kernels.aotriton_plan import read_plan
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.ledger import Entry
from toolchain.kernels.rules import cut
from toolchain.stages.aotriton_inside import LEDGER, lay_copies, lay_ledger, lay_objects

OF = generation_of("0.7.1b")


def entry(out: str, status: str = "done") -> Entry:
    return Entry(
        id=out, kernel="attn", target="gfx942", out=out, cluster=f"gfx942/{out}", status=status, reason="no\nat 0x1",
        sha256="ab" if status == "done" else "",
    )  # fmt: skip


def test_each_line_of_the_plan_gets_an_object(tmp_path: Path) -> None:
    folder = old_plan(tmp_path / "p", [("a", "MI300X", 1), ("b", "MI300X", 2), ("c", "MI200", 1)], clusters={})
    plan = read_plan(folder, old_tree(tmp_path / "t"), build=BUILD, source=SOURCE, of=OF)
    assert plan.copies == {"flash/a.hsaco": ("flash/b.hsaco",)}, "they differ in waves, which its script does not pass"
    assert len(cut(plan.rules, limit=1).rules) == 1, "each stands for itself"
    (folder / "flash").mkdir()
    (folder / "flash/a.hsaco").write_bytes(b"code")
    (folder / "flash/a.json").write_text('{"name": "attn"}')
    result = CampaignResult(entries=(entry("flash/a.hsaco"),), skipped=0, partial=True, about={"triton": "3.0.0"})
    lay_objects(plan, result, folder, tmp_path / "o")
    assert (tmp_path / "o/flash/a.hsaco").read_bytes() == (tmp_path / "o/flash/b.hsaco").read_bytes() == b"code"
    assert json.loads((tmp_path / "o/flash/b.json").read_text()) == {"name": "attn"}
    assert (tmp_path / "o/flash/c.hsaco").read_bytes() == b""
    assert json.loads((tmp_path / "o/flash/c.json").read_text())["warp_size"] == 64
    lay_ledger(tmp_path / "tree", "/usr/x", result, {"partial": True})
    ledger = json.loads((tmp_path / "tree/usr/x" / LEDGER).read_text())
    kernel = ledger["kernels"][0]
    assert (ledger["partial"], kernel["out"], kernel["reason"]) == (True, "flash/a.hsaco", "no")


def test_copies_are_in_cluster_and_get_same_object(tmp_path: Path) -> None:
    rows = [("a", "MI300X", 1), ("b", "MI300X", 2), ("c", "MI300X", 3)]
    folder = old_plan(tmp_path / "p", rows, clusters={"^F,False": ["a", "b", "c"]})
    of = generation_of("0.8b")
    plan = read_plan(folder, old_tree(tmp_path / "t"), build=BUILD, source=SOURCE, of=of)
    rules = cut(plan.rules, limit=1)
    assert [cluster.name for cluster in plan.whole(rules)] == ["amd-gfx942/flash/attn/^F,False"]
    assert [rule.out for rule in plan.with_copies(rules.rules)] == ["flash/a.hsaco", "flash/b.hsaco", "flash/c.hsaco"]
    (folder / "flash").mkdir()
    (folder / "flash/a.hsaco").write_bytes(b"old")
    (folder / "flash/a.json").write_text("{}")
    result = CampaignResult(entries=(entry("flash/a.hsaco"),), skipped=0, partial=False, about={})
    lay_copies(plan, result, folder)
    (folder / "flash/a.hsaco").unlink()
    (folder / "flash/a.hsaco").write_bytes(b"code")
    assert lay_copies(plan, result, folder) == dict.fromkeys(["flash/a.hsaco", "flash/b.hsaco", "flash/c.hsaco"], "ab")
    assert [(folder / f"flash/{name}.hsaco").read_bytes() for name in "bc"] == [b"code", b"code"]
    assert (folder / "flash/c.json").read_text() == "{}"


@pytest.mark.parametrize("content", [b"some code", b""])
def test_incbin_embeds_file_as_aligned_array(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "k^fp16@16.hsaco").write_bytes(content)
    (tmp_path / "a.cc").write_text(
        "#define INCBIN_PREFIX g_of_\n#define data_of(x) g_of_ ## x ## _data\n#include <incbin.h>\n"
        f'INCBIN(k, "{tmp_path}/k^fp16@16.hsaco");\n'
        'extern "C" unsigned size() { return g_of_k_size; }\n'
        'extern "C" const void* data() { return data_of(k); }\n'
        'extern "C" const char* line() { return "at " INCBIN_STRINGIZE(__LINE__); }\n'
    )
    here = recipe.root() / "containerfiles/aotriton/inside"
    library = tmp_path / "a.so"
    subprocess.run(["c++", "-std=c++20", "-shared", "-fPIC", f"-I{here}", "-o", library, tmp_path / "a.cc"], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.data.restype, loaded.line.restype = ctypes.c_void_p, ctypes.c_char_p
    assert loaded.size() == len(content)
    assert ctypes.string_at(loaded.data(), len(content)) == content
    assert loaded.data() % 4096 == 0
    assert loaded.line() == b"at 7"
