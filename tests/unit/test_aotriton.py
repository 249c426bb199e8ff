"""stages.aotriton: the notes in its image, and the folder in which a campaign continues."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernel_fixtures import make_rule
from tests.refusals import refused
from toolchain.catalog.aotriton_generations import generation_of
from toolchain.core import locks as lock
from toolchain.core.cache import Cache
from toolchain.core.errors import SourceError
from toolchain.kernels.campaign import CampaignResult
from toolchain.kernels.ledger import DONE, Entry, Ledger
from toolchain.kernels.rules import RuleSet
from toolchain.stages import aotriton_images
from toolchain.stages.aotriton import assemble, campaign_folder, lacking, partial_text
from toolchain.stages.aotriton_images import KernelImages, MadeImages, require_gpus

PREFIX = "/usr/lib64/aotriton-30ae9671"
OF = generation_of("0.13b")


def entry(name: str, gpu: str, pack: str, status: str = "done", reason: str = "") -> Entry:
    return Entry(
        id=name, kernel="attn", target=gpu, out=f"flash/{name}.hsaco", cluster=f"{pack}/flash/attn/c", status=status,
        reason=reason, sha256="ab" if status == "done" else "", bitcode=("ocml",) if status == "done" else (),
    )  # fmt: skip


def images(folder: Path, entries: Sequence[Entry], *, packs: tuple[str, ...], rules: int, partial: bool) -> MadeImages:
    archives = []
    for name in packs:
        path = folder / name / "flash" / "attn.zip"
        path.parent.mkdir(parents=True)
        path.write_text("zip")
        (folder / name / "__signature__").write_text("{}")
        (folder / name / "flash" / "of an earlier part.zip").write_text("old")
        archives.append(path)
    about = {"triton": "3.6.0", "bitcode": {"ocml": "ff"}}
    return MadeImages(
        result=CampaignResult(entries=tuple(entries), skipped=0, partial=partial, about=about),
        folder=folder, archives=tuple(archives), packs=packs, rules=rules, partial=partial, against={},
    )  # fmt: skip


def lay(tmp_path: Path, made: MadeImages, gpus: tuple[str, ...]) -> Path:
    installed = tmp_path / "installed"
    (installed / PREFIX[1:] / "lib").mkdir(parents=True)
    (installed / PREFIX[1:] / "lib" / "libaotriton_v2.so").write_text("so")
    assemble(tmp_path / "tree", PREFIX, installed, made, gpus=gpus, of=OF)
    return tmp_path / "tree" / PREFIX[1:] / "lib" / "aotriton.images"


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_complete_pack_has_ledger_and_no_partial_note(tmp_path: Path) -> None:
    made = images(tmp_path / "i", [entry("a", "gfx942", "amd-gfx942")], packs=("amd-gfx942",), rules=1, partial=False)
    pack = lay(tmp_path, made, ("gfx942",)) / "amd-gfx942"
    files = sorted(path.name for path in pack.rglob("*") if path.is_file())
    assert files == ["__ledger__", "__signature__", "attn.zip"]
    ledger = read(pack / "__ledger__")
    assert (ledger["partial"], ledger["done"], ledger["known_bad"]) == (False, 1, 0)
    assert ledger["bitcode"] == {"ocml": "ff"}
    (row,) = ledger["kernels"]
    assert (row["out"], row["bitcode"], row["sha256"]) == ("flash/a.hsaco", ["ocml"], "ab")
    assert partial_text(made, part="", gpus=("gfx942",), of=OF) == ""


def test_pack_with_known_bad_kernel_has_partial_note(tmp_path: Path) -> None:
    entries = [
        entry("a", "gfx942", "amd-gfx942"),
        entry("b", "gfx90a", "amd-gfx90a", "failed", "TypeError: no\nat 0x7fab"),
    ]
    made = images(tmp_path / "i", entries, packs=("amd-gfx90a", "amd-gfx942"), rules=2, partial=False)
    laid = lay(tmp_path, made, ("gfx90a", "gfx942"))
    assert not (laid / "amd-gfx942" / "__partial__").exists()
    partial = read(laid / "amd-gfx90a" / "__partial__")
    assert partial["known_bad"] == ["flash/b.hsaco"]
    assert "kernels" not in partial
    assert read(laid / "amd-gfx90a" / "__ledger__")["kernels"][0]["reason"] == "TypeError: no"
    assert partial_text(made, part="", gpus=("gfx90a", "gfx942"), of=OF) == "1 kernels known bad"


def test_pack_of_limited_build_has_partial_note(tmp_path: Path) -> None:
    made = images(tmp_path / "i", [entry("a", "gfx942", "amd-gfx942")], packs=("amd-gfx942",), rules=9, partial=True)
    assert read(lay(tmp_path, made, ("gfx942",)) / "amd-gfx942" / "__partial__")["partial"] is True
    assert partial_text(made, part="limit 1", gpus=("gfx942",), of=OF) == "1 of 9 kernels (limit 1)"


def test_family_pack_without_all_gpus_has_partial_note(tmp_path: Path) -> None:
    made = images(
        tmp_path / "i", [entry("a", "gfx1200", "amd-gfx120x")], packs=("amd-gfx120x",), rules=1, partial=False
    )
    partial = read(lay(tmp_path, made, ("gfx1200",)) / "amd-gfx120x" / "__partial__")
    assert (partial["gpus"], partial["without_gpus"]) == (["gfx1200"], ["gfx1201"])
    assert partial_text(made, part="", gpus=("gfx1200",), of=OF) == "amd-gfx120x without gfx1201"
    assert lacking(("gfx1200", "gfx1201", "gfx942"), OF) == {}


def test_gpu_without_planned_kernels_is_refused() -> None:
    require_gpus(("gfx942",), {"gfx942", "gfx950"})
    with refused("gpu-not-in-aotriton", "gfx1103"):
        require_gpus(("gfx1103", "gfx942"), {"gfx942"})


def test_campaigns_over_same_objects_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, order = Cache(tmp_path), []
    monkeypatch.setattr(lock, "PATIENCE", 0.1)

    def second() -> None:
        with campaign_folder(cache, "sha256:" + "a" * 64) as folder:
            order.append(folder.name)

    with campaign_folder(cache, "sha256:" + "a" * 64) as folder, campaign_folder(cache, "sha256:" + "b" * 64) as apart:
        assert folder != apart
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.5)
        order.append("first")
    thread.join(300)
    assert order == ["first", folder.name]


def test_plan_is_not_written_through_symlinks(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".profile").write_text("of the user")
    (tmp_path / "built" / "plan" / "sub").mkdir(parents=True)
    for name in ("Bare.compile", "sub/file"):
        (tmp_path / "built" / "plan" / name).write_text("of the tree")
    folder = tmp_path / "plan"
    folder.mkdir()
    (folder / "Bare.compile").symlink_to(tmp_path / "home" / ".profile")
    (folder / "sub").symlink_to(tmp_path / "home")
    workspace: Any = SimpleNamespace(request=None)
    with pytest.raises(SourceError):
        KernelImages(folder, tmp_path, "", workspace).make(tmp_path / "built", gpus=(), sha1="")
    assert (tmp_path / "home" / ".profile").read_text() == "of the user"
    assert [path.name for path in (tmp_path / "home").iterdir()] == [".profile"]
    assert (folder / "sub" / "file").read_text() == "of the tree"


def test_ledger_is_kept_if_only_kernel_store_supplied_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, facts = make_rule("k"), {"triton": "3.7.1"}
    known: list[tuple[Entry, ...]] = []
    (tmp_path / "plan").mkdir()

    class Stored:
        executor = SimpleNamespace(about=dict)

        def run(self, rules: RuleSet, ledger: Ledger, count: Any) -> CampaignResult:
            known.append(ledger.entries(rules.rules))
            ledger.record(Entry.of(rule, DONE))
            count(1, 1, "")
            return CampaignResult(entries=(), skipped=0, partial=False, about={})

    monkeypatch.setattr(aotriton_images, "compiling", lambda *_: contextlib.nullcontext(Stored()))
    monkeypatch.setattr(KernelImages, "compile_setup", lambda _: None)
    workspace: Any = SimpleNamespace(count=lambda *_: None)
    shared: Any = SimpleNamespace(about=facts)
    made = KernelImages(tmp_path / "plan", tmp_path, "", workspace)
    results = [made.compile(RuleSet((rule,), 1), shared) for _ in range(2)]
    assert [len(entries) for entries in known] == [0, 1]
    assert [result.about for result in results] == [facts, facts]
