"""Tests of the verb `report`: accepted and refused input, and the content, size and escaping of its pages."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lab.tests.report_fixtures import HOSTILE, large_campaign
from tests.evidence_fixtures import finished_base
from toolchain.cli.app import app
from toolchain.core.cache import LEDGER, NINJA_LOG, Cache
from toolchain.core.digest import canonical
from toolchain.kernels.ledger import Entry, Ledger
from toolchain.pipeline.workspace import BuildWorkspace
from toolchain.trust.keys import new_key
from toolchain_lab.examine.diff import compare
from toolchain_lab.report import builds, page
from toolchain_lab.report.content import Column, Kind, Report, Section, Table, Tone
from toolchain_lab.report.ninja import steps_of

ASSETS = Path(page.__file__).with_name("assets")
LOG = """# ninja log v6
100\t900\t1\tinclude/a.inc\tbb
100\t900\t1\tinclude/b.inc\tbb
0\t2000\t1\tlib/a.o\taa
950\t3000\t1\tlib/liba.a\tcc
0\t500\t1\tbin/tool\tdd
damaged
"""


def write_ledger(path: Path, entries: Sequence[Entry]) -> None:
    """Write the ledger of a campaign, with all entries in one transaction."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Ledger(path).close()
    with sqlite3.connect(path) as db:
        rows = [(entry.id, canonical(asdict(entry)).decode()) for entry in entries]
        db.executemany("INSERT INTO entry VALUES (?, ?)", rows)


def data_of(html: str) -> list[dict[str, Any]]:
    """Return the sections of a page."""
    packed = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', html)
    assert packed
    sections = json.loads(gzip.decompress(base64.b64decode(packed[1])))["sections"]
    assert isinstance(sections, list)
    return sections


def column(section: dict[str, Any], key: str) -> list[Any]:
    return next(list(each["values"]) for each in section["table"]["columns"] if each["key"] == key)


def made(tmp_path: Path, what: object, *, code: int = 0) -> str:
    """Run the verb, check its exit code, and return the page, or its output if `code` is not 0."""
    out = tmp_path / "page.html"
    out.unlink(missing_ok=True)
    done = CliRunner().invoke(app, ["report", str(what), "--out", str(out), "--cache", str(tmp_path / "cache")])
    assert done.exit_code == code, done.output
    assert out.exists() == (code == 0)
    return out.read_text() if code == 0 else done.output


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Cache:
    where = Cache(tmp_path / "cache")
    where.make()
    return where


def test_bundled_chart_js_has_the_published_digest() -> None:
    content = (ASSETS / page.LIBRARY).read_bytes()
    assert hashlib.sha256(content).hexdigest() == page.LIBRARY_SHA256
    assert f"Chart.js v{page.LIBRARY_VERSION}".encode() in content
    for name in ("chart.LICENSE.md", "color.LICENSE.md"):
        assert "MIT" in (ASSETS / name).read_text()


def test_data_is_escaped_and_the_policy_allows_only_the_scripts_of_the_page() -> None:
    table = Table(columns=[Column("name", HOSTILE, Kind.TEXT)], rows=[[HOSTILE]])
    report = Report(
        kind=HOSTILE, title=HOSTILE, subject=HOSTILE, figures=[(HOSTILE, HOSTILE, Tone.BAD)],
        sections=[Section(title=HOSTILE, table=table, note=HOSTILE)],
    )  # fmt: skip
    html = page.html(report)
    assert "<img" not in html
    assert html.count("</script>") == html.count("<script") == 3
    assert data_of(html)[0]["table"]["columns"][0]["values"] == [HOSTILE]
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts}
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    allowed = policy[1].replace("&#x27;", "'")
    assert "default-src 'none'" in allowed
    assert "unsafe" not in allowed
    assert set(allowed.split("script-src ")[1].split(";")[0].split()) == hashes


def test_page_of_a_whole_gpu_campaign_is_below_15_mib(tmp_path: Path, cache: Cache) -> None:
    entries, _ = large_campaign()
    folder = cache.work / "aotriton-0123"
    folder.mkdir(parents=True)
    write_ledger(folder / LEDGER, entries)
    html = made(tmp_path, "aotriton-0123")
    assert len(html.encode()) < 15 << 20
    (section,) = data_of(html)
    assert section["table"]["count"] == 19_001
    assert "not available" in section["note"]
    status = column(section, "status")
    assert (status.count("failed"), status.count("timeout")) == (5, 5)


def test_row_of_a_failed_kernel_has_its_reason_and_message(tmp_path: Path, cache: Cache) -> None:
    entries, _ = large_campaign(2)
    write_ledger(tmp_path / "some.sqlite", [replace(entries[1], reason="out of room\nat line 3"), entries[0]])
    (section,) = data_of(made(tmp_path, tmp_path / "some.sqlite"))
    assert "out of room" in column(section, "reason")
    assert sorted(column(section, "message")) == ["", "out of room\nat line 3"]


def test_campaign_is_read_from_its_folder_or_its_ledger(tmp_path: Path) -> None:
    entries, _ = large_campaign(2)
    write_ledger(tmp_path / "some" / LEDGER, entries)
    for where in (tmp_path / "some", tmp_path / "some" / LEDGER):
        assert [section["table"]["count"] for section in data_of(made(tmp_path, where))] == [2]


def test_empty_ledger_is_refused(tmp_path: Path) -> None:
    write_ledger(tmp_path / "some.sqlite", [])
    assert "[ledger-empty]" in made(tmp_path, tmp_path / "some.sqlite", code=3)


@pytest.mark.parametrize("out", ["/dev/null", "link.html", "/proc/page.html", "/proc/new/page.html"])
def test_unwritable_output_is_refused_before_the_input_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link.html").symlink_to("/etc/page.html")
    done = CliRunner().invoke(app, ["report", "no.sqlite", "--out", out, "--cache", "cache"])
    assert done.exit_code == 3
    assert "[output-" in done.output, done.output


def test_a_page_is_written_to_a_new_folder(tmp_path: Path) -> None:
    write_ledger(tmp_path / "some.sqlite", large_campaign(2)[0])
    out = tmp_path / "new" / "folder" / "page.html"
    done = CliRunner().invoke(app, ["report", str(tmp_path / "some.sqlite"), "--out", str(out)])
    assert (done.exit_code, [*out.parent.iterdir()]) == (0, [out]), done.output


def test_comparison_page_has_the_values_of_both_sides(tmp_path: Path) -> None:
    _, kernels = large_campaign(40)
    worse = [
        replace(each, sha256="0" * 64, facts=each.facts and replace(each.facts, digest="x", vgpr=256, vgpr_spills=50))
        for each in kernels[:9]
    ]
    (tmp_path / "d.json").write_text(
        json.dumps(compare(kernels, [*worse, *kernels[9:-1]]).as_json() | {"a": "old/", "b": HOSTILE})
    )
    html = made(tmp_path, tmp_path / "d.json")
    assert "From old/ to " in html
    listed, groups = data_of(html)
    assert listed["table"]["count"] == 10
    assert column(listed, "vgpr_b").count(256) == 9
    assert next(each for each in listed["table"]["columns"] if each["key"] == "vgpr_b")["before"] == "vgpr_a"
    assert column(listed, "status").count("only_a") == 1
    assert sum(column(groups, "changed")) == 9


def test_audit_page_lists_functions_findings_and_libraries(tmp_path: Path) -> None:
    audit = {
        "what": HOSTILE, "gpus": {"gfx942": {"attn_fwd": 3}}, "kernels": 3, "planned": 5, "missing": ["a", "b"],
        "empty": [], "damaged": [], "absent": ["gfx90a"], "uneven": [], "glibc": "2.28", "prebuilt": [],
        "libraries": [{"path": "libx.so", "glibc": "2.28", "targets": ["gfx942"], "llvms": ["1f126a6d"]}],
        "rebuilt": {"k": False}, "problems": ["1 GPU without a kernel"], "ok": False,
    }  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(audit))
    functions, findings, libraries = data_of(made(tmp_path, tmp_path / "a.json"))
    assert column(functions, "count") == [3]
    assert column(findings, "found") == ["missing", "missing", "absent", "other bytes"]
    assert column(libraries, "llvm") == ["1f126a6d"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "not-a-report"),
        ("nonsense", "not-a-report"),
        ('{"counts": 1, "groups": 2, "kernels": 3}', "not-a-report"),
    ],
)
def test_other_documents_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "x.json").write_text(content)
    assert f"[{reason}]" in " ".join(made(tmp_path, tmp_path / "x.json", code=3).split())


def test_unknown_name_is_refused_with_a_hint(tmp_path: Path) -> None:
    said = made(tmp_path, "nothing-here", code=5)
    assert "[image-not-found]" in said
    assert "no file, folder or campaign nothing-here" in said
    assert "kernels status" in said  # this command lists the campaigns


def test_steps_of_a_ninja_log_have_lanes_and_later_runs_follow() -> None:
    steps = steps_of(LOG.encode())
    assert [(step.output, step.kind, step.start, step.end, step.lane) for step in steps] == [
        ("lib/a.o", "compile", 0, 2, 1),
        ("include/a.inc", "generate", 0.1, 0.9, 2),
        ("lib/liba.a", "archive and link", 0.95, 3, 2),
        ("bin/tool", "archive and link", 3, 3.5, 1),
    ]
    assert steps_of(b"") == []
    assert steps_of(b"\xff\tx\ty\tz\tw\n") == []


def test_page_of_a_finished_image_has_times_and_content(tmp_path: Path, cache: Cache) -> None:
    built = finished_base(cache, tmp_path / "work")
    kept = cache.kept(f"base-{built.input_digest.removeprefix('sha256:')[:12]}", NINJA_LOG)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(LOG)
    titles = [section["title"] for section in data_of(made(tmp_path, built.planned.image))]
    assert titles[:2] == ["Time by stage", "The build by ninja's log"]
    assert "Content of the layer" in titles


def test_ledger_of_a_finished_campaign_is_kept(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = BuildWorkspace.__new__(BuildWorkspace)
    monkeypatch.setattr(BuildWorkspace, "cache", cache)
    workspace.stage, workspace._engine = "kernels-abc", None
    cache.kept("kernels-abc", LEDGER).parent.mkdir(parents=True)
    (cache.work / "kernels-abc").mkdir(parents=True)
    write_ledger(cache.work / "kernels-abc" / LEDGER, [])
    workspace._tidy(None)  # type: ignore[arg-type] # no engine has run
    assert cache.kept("kernels-abc", LEDGER).is_file()
    assert not (cache.work / "kernels-abc").exists()


def test_path_outside_utf8_is_reported_but_refused_in_a_statement(tmp_path: Path, cache: Cache) -> None:
    """Members of archives can have such names too."""
    text = ".target sm_90a\n.visible .entry add() {\nret;\n}\n"
    place = tmp_path / os.fsdecode(b"place\xff")
    place.mkdir()
    (place / os.fsdecode(b"add\xfe.ptx")).write_text(text)
    (kernels,) = data_of(made(tmp_path, place))
    assert column(kernels, "gpu") == ["sm_90a"]
    new_key(tmp_path / "key")
    words = ["audit", str(place), "--key", str(tmp_path / "key"), "--statement", str(tmp_path / "out.json")]
    done = CliRunner().invoke(app, [*words, "--cache", str(cache.root)])
    assert (done.exit_code, "not UTF-8" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("output", "group"),
    [
        ("lib/Support/CMakeFiles/LLVMSupport.dir/APInt.cpp.o", "lib/Support"),
        ("tools/mlir/lib/Dialect/Arith/IR/CMakeFiles/x.dir/a.o", "tools/mlir/lib/Dialect"),
        ("CMakeFiles/x.dir/a.o", "top"),
        ("lib/libLLVMSupport.a", "lib"),
        ("build.txt", "top"),
    ],
)
def test_outputs_are_grouped_by_folder(output: str, group: str) -> None:
    assert builds._folder(output) == group
