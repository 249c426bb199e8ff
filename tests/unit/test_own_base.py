"""Tests of the programs and files that a base must contain, and of the table in the documentation."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.evidence_fixtures import small_image
from toolchain.catalog.architectures import this_machine
from toolchain.catalog.base_ref import parse_base
from toolchain.core.cache import Cache
from toolchain.core.errors import UntrustedError
from toolchain.core.record import OTHER_BUILDER
from toolchain.oci.image import write_index
from toolchain.oci.layout import Layout
from toolchain.pipeline.own_base import Need, Way, check, needs, needs_of, users_of
from toolchain.pipeline.records import read_record, record_as_it_is
from toolchain.request.model import Request
from toolchain.sources.spec import SourceSpec
from toolchain.stages.base import BaseStage
from toolchain.stages.stage import Built, Planned

TOP = Path(__file__).resolve().parents[2]
DOCS = TOP / "docs" / "bases.md"
EVERYTHING = {
    "clang": "19.1.7", "gcc": "14.2.0", "ld.lld": "", "c++17": "", "cmake": "3.31.6", "ninja": "1.12.1", "ar": "",
    "find": "", "python3": "3.13.5", "python3.h": "", "python3.venv": "", "pkg-config": "", "lzma.h": "", "hip": "",
    "glibc": "2.41", "ocml.bc": "", "ockl.bc": "", "asanrtl.bc": "",
}  # fmt: skip


def lacking(tools: dict[str, str], *users: str, pythons: tuple[str, ...] = ()) -> list[str]:
    request = Request(cache=Cache(Path("/nowhere")), pythons=pythons)
    return [need.name for need in needs_of(request, users) if need.fault(tools)]


def test_missing_needs_of_a_base_are_listed() -> None:
    all_users = ("llvm", "triton", "aotriton", "triton-wheel")
    assert lacking(EVERYTHING, *all_users) == []
    bitcode = [f"AMD's {name}.bc" for name in ("ocml", "ockl", "asanrtl")]
    assert lacking({}, *all_users) == [*(need.name for need in needs()), *bitcode]


@pytest.mark.parametrize(
    ("change", "user", "missing"),
    [
        ({"cmake": "3.19.9"}, "llvm", ["CMake"]),
        ({"cmake": "3.20"}, "llvm", []),
        ({"cmake": ""}, "llvm", ["CMake"]),
        ({"clang": "4.0", "gcc": "7.3.1"}, "llvm", ["C and C++ compiler (clang or gcc)"]),
        ({"python3": "3.9.25"}, "triton", ["Python"]),
        ({"python3": "3.130"}, "triton-wheel", ["Python"]),
        ({"glibc": "2.26"}, "triton-wheel", ["glibc"]),
    ],
)
def test_tool_of_an_unfit_version_is_reported_as_missing(change: dict[str, str], user: str, missing: list[str]) -> None:
    assert lacking({**EVERYTHING, **change}, user) == missing


def test_additional_python_needs_its_headers() -> None:
    assert lacking(EVERYTHING, "triton", pythons=("3.12",)) == ["Python 3.12", "Python 3.12 headers"]
    assert lacking({**EVERYTHING, "python3.12": "3.12.1", "python3.12.h": ""}, "triton", pythons=("3.12",)) == []
    assert lacking(EVERYTHING, "llvm", pythons=("3.12",)) == []


@pytest.mark.parametrize(
    ("version", "has", "enough"),
    [("3.7.1", "3.12.1", False), ("3.7.1", "3.14.0", False), ("3.9.0", "3.14.0", True), ("3.9.0", "3.11.2", False)],
)
def test_version_of_a_triton_wheel_determines_the_python_that_it_needs(version: str, has: str, enough: bool) -> None:
    spec = SourceSpec(kind="pypi", where="triton", version=version)
    request = Request(cache=Cache(Path("/nowhere")), sources={"triton": spec})
    tools = {**EVERYTHING, "python3": has}
    missing = [need.name for need in needs_of(request, ["triton-wheel"]) if need.fault(tools)]
    assert missing == ([] if enough else ["Python"])
    missing = [need.name for need in needs_of(request, ["triton-wheel", "aotriton"]) if need.name == "Python"]
    assert missing == ["Python"], "numpy's wheel is for 3.13 alone"


def test_base_need_not_contain_bitcode_that_is_allowed_or_dropped() -> None:
    tools = {tool: version for tool, version in EVERYTHING.items() if not tool.endswith(".bc")}
    request = Request(cache=Cache(Path("/nowhere")), allow_binary=("ocml",), drop_binary=("asanrtl",))
    named = [need.name for need in needs_of(request, ["triton"]) if need.fault(tools)]
    assert named == ["AMD's ockl.bc"]


def test_only_stages_that_run_in_the_base_have_needs() -> None:
    def planned(name: str, *, engine: bool = True, wheel: bool = False) -> Planned:
        return Planned(name=name, image=name, inputs=None, engine=engine, binaries=("triton-wheel",) if wheel else ())

    base, wheel = planned("base", engine=False), planned("triton", engine=False, wheel=True)
    assert users_of([base]) == set()
    assert users_of([base, wheel]) == set()
    assert users_of([base, wheel, planned("kernels", wheel=True)]) == {"triton-wheel"}
    assert users_of([base, planned("llvm")]) == {"llvm"}
    assert users_of([base, planned("llvm"), planned("triton"), planned("kernels")]) == {"llvm", "triton"}


def test_probe_runs_in_sh_and_looks_for_each_tool(tmp_path: Path) -> None:
    text = (TOP / "toolchain" / "data" / "probe-base.sh").read_text()
    (tmp_path / "one").write_text("")
    words = [f"here={tmp_path}/o*", f"gone={tmp_path}/x*", "3.99"]
    done = subprocess.run(["sh", "-c", text, "probe", *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "probed"
    assert done.stderr == ""
    assert "found here" in done.stdout
    assert "found gone" not in done.stdout
    for way in (way for need in needs() for way in need.ways):
        # A tool whose name comes from a variable is in a list.
        assert any(word in text for word in (f"found {way.tool}", f" {way.tool} ", f" {way.tool};", "found $1")), (
            way.tool
        )


@pytest.mark.parametrize("how", ["bomb", "damaged"])
def test_base_is_verified_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The engine would unpack everything that a layer contains."""
    layout = Layout(tmp_path / "l").ensure()
    image = small_image(layout, tmp_path / "w", arch=this_machine(), files={"usr/lib64/thing/big": bytes(1 << 20)})
    layout.tag(write_index(layout, [image]), "x")
    if how == "bomb":
        monkeypatch.setattr("toolchain.oci.compressed.FREE", 1 << 18)
        monkeypatch.setattr("toolchain.oci.compressed.RATIO", 1)
    else:
        blob = layout.blob(layout.children(image)[1].digest)
        blob.write_bytes(bytes(blob.stat().st_size))
    monkeypatch.setattr("toolchain.engine.buildah.Buildah.ensure_image", lambda *_: pytest.fail("it was unpacked"))
    request = Request(cache=Cache(tmp_path / "c"), base=parse_base(f"oci:{layout.root}:x"))
    with pytest.raises(UntrustedError) as refused:
        check(request, [Planned(name="llvm", image="x", inputs={}, engine=True)])
    assert refused.value.code == 17


def test_record_of_an_own_base_does_not_claim_that_it_was_built_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")  # a hosted builder may have a level above 1
    layout, cache = Layout(tmp_path / "base").ensure(), Cache(tmp_path / "cache")
    image = small_image(layout, tmp_path / "work")
    layout.tag(image, "latest")
    request = Request(cache=cache, base=parse_base(f"oci:{layout.root}"))
    planned = BaseStage().plan(request, {})
    own = Layout(cache.images).ensure()
    for part in (*layout.children(image), image):
        own.link(layout.blob(part.digest), part.digest)
    digest = str(planned.input_digest)
    record_as_it_is(request, Built(planned=planned, input_digest=digest, manifest=image.digest, layers=()))
    assert read_record(cache, digest).tool["builder"] == OTHER_BUILDER


def row(need: Need) -> str:
    def way(way_: Way) -> str:
        return way_.tool + (f" ≥ {way_.least}" if way_.least else f" {way_.exact}" if way_.exact else "")

    users = ["yes" if user in need.users else "" for user in ("llvm", "triton", "aotriton", "triton-wheel")]
    cells = [need.name, " or ".join(map(way, need.ways)), *users, need.debian or "none", need.el or "none", need.why]
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def test_documentation_has_the_same_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line in {row(need) for need in needs()}] == [
        row(need) for need in needs()
    ]
