"""The images that ./quickstart makes, and later calls of the tool on the same cache."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.conftest import Quickstart, toolchain
from tests.integration.test_linked_sources import COMPILED_ALL
from toolchain.catalog.bases import base_recipe
from toolchain.core.cache import Cache, default_cache
from toolchain.engine.buildah import Buildah
from toolchain.kernels.codeobject import check_object
from toolchain.kernels.rules import load_rules
from toolchain.oci import descriptor as media
from toolchain.oci.layout import Layout

pytestmark = pytest.mark.engine
LLVM = "llvm-triton-mlir-tblgen-22.1.8"
WHEEL = ("--source", "triton=pypi:3.7.1")
KERNELS = "flash-attn-kernels-2.8.3.post2-triton-3.7.1-debian13"


def layers(layout: Layout, name: str) -> list[Path]:
    """Return the layer blobs of the only image of a tag."""
    index = layout.resolve(name)
    assert index.media_type == media.INDEX, "published images are always indexes"
    return [layout.blob(d.digest) for d in layout.walk(index) if d.media_type == media.LAYER_GZIP]


def test_quickstart_prints_little_and_logs_the_rest(quickstart: Quickstart) -> None:
    assert len(f"{quickstart.said.out}{quickstart.said.err}".splitlines()) <= 60
    log = Path(f"{quickstart.out}.log").read_text(encoding="utf-8")
    assert "COPY --from" in log
    assert "COPY --from" not in quickstart.said.out


def test_code_objects_match_their_targets_and_kernels(quickstart: Quickstart, tmp_path: Path) -> None:
    (blob,) = layers(Layout(quickstart.out), KERNELS)
    with tarfile.open(blob) as tar:
        tar.extractall(tmp_path, filter="data")
    (report,) = tmp_path.rglob("report.json")
    kernels = json.loads(report.read_text())["kernels"]
    checked: collections.Counter[str] = collections.Counter()
    functions: dict[str, set[str]] = collections.defaultdict(set)
    for row in kernels:
        check_object(report.parent / row["out"], row["target"], row["kernel"])
        checked[row["target"]] += 1
        functions[row["target"]].add(row["kernel"])
    assert set(checked) == {"gfx942", "gfx1100"}
    assert checked.total() >= 24
    for gpu, names in functions.items():
        assert len(names) >= 4, gpu
        assert any("bwd" in name for name in names), gpu
        assert any("fwd" in name for name in names), gpu


def test_row_stride_of_v_is_an_argument_of_attn_fwd(quickstart: Quickstart) -> None:
    """If the stride of rows were the constant 1, the kernel would read one number instead of a row."""
    trees = Cache(default_cache()).store / "trees"
    module = next(trees.glob("*/flash_attn/flash_attn_triton_amd/fwd_prefill.py"))
    data = Path(__file__).parents[2] / "aotriton" / "flash-attn.toml"
    rules = load_rules(data, module.parents[2], ("gfx942",), select="*attn_fwd*").rules
    strides = {(name, kind) for rule in rules for name, kind in rule.signature if name.startswith("stride_v")}
    assert strides == {
        ("stride_vz", "i32:16"), ("stride_vh", "i32:16"), ("stride_vk", "i32:16"), ("stride_vn", "constexpr"),
    }  # fmt: skip


def test_the_llvm_layer_is_one_prefix_with_licences(quickstart: Quickstart) -> None:
    (blob,) = layers(Layout(quickstart.out), LLVM)
    with tarfile.open(blob) as tar:
        members = {member.name: member for member in tar}
    files = sorted(name for name, member in members.items() if member.isfile())
    assert all(name.startswith("usr/lib64/llvm-triton-22.1.8/") for name in files)
    assert "usr/lib64/llvm-triton-22.1.8/share/licenses/llvm/LICENSE.TXT" in files
    assert "usr/lib64/llvm-triton-22.1.8/bin/mlir-tblgen" in files
    assert {(m.uid, m.gid, m.mtime) for m in members.values()} == {(0, 0, 1767225600)}


def test_llvm_is_compiled_from_the_linked_sources_alone(quickstart: Quickstart) -> None:
    """build.sh compiles all sources if linked-sources.cmake lacks one, so only the log shows that the list is whole."""
    (*_, stage) = toolchain("plan", "llvm", *quickstart.options, "--json").json["stages"]
    digest = stage["input_digest"].removeprefix("sha256:")[:12]
    logs = [path.read_text(encoding="utf-8") for path in Cache(default_cache()).logs.glob(f"llvm-{digest}-*.log")]
    if not logs:
        pytest.skip("NO LOG OF LLVM: the layer is in the cache, but the log of its build was deleted")
    assert any("Linking CXX executable bin/mlir-tblgen" in log for log in logs)
    assert [log for log in logs if COMPILED_ALL in log] == []


def test_unchanged_build_starts_no_engine(quickstart: Quickstart, tmp_path: Path) -> None:
    # This PATH contains no engine, so a build that starts one fails.
    for program in ("python3", "git", "apt-get", "apt-config", "dpkg"):
        found = shutil.which(program)
        if found:
            (tmp_path / program).symlink_to(found)
    said = toolchain(
        "build", "all", *quickstart.options, *quickstart.gpus, *quickstart.allow, "--json",
        env={"PATH": str(tmp_path)},
    )  # fmt: skip
    assert said.code == 0, said.err
    assert [stage["reused"] for stage in said.json["stages"]] == [True] * 5


def test_killed_campaign_resumes_without_repeated_work(quickstart: Quickstart) -> None:
    words = [
        "kernels", "run", *WHEEL, "--gpu", "gfx90a", "--select", "*fwd*", *quickstart.allow, "--jobs", "1",
    ]  # fmt: skip
    cache = Path(os.environ.get("TOOLCHAIN_CACHE", Path.home() / ".cache" / "toolchain"))
    _forget(cache, "gfx90a", "*fwd*")
    planned = toolchain("plan", "kernels", *WHEEL, "--gpu", "gfx90a", "--select", "*fwd*", "--json").json["stages"][-1]
    work = cache / "work" / f"kernels-{planned['input_digest'].removeprefix('sha256:')[:12]}"
    shutil.rmtree(work, ignore_errors=True)  # an interrupted run may have left this folder
    child = subprocess.Popen(
        [sys.executable, "-m", "toolchain", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        objects: list[Path] = []
        deadline = time.monotonic() + 1200
        while len(objects) < 3:
            assert child.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline, "no code object in twenty minutes"
            time.sleep(0.2)
            objects = list(work.rglob("*.hsaco"))
        child.send_signal(signal.SIGKILL)
        child.wait()
    finally:
        child.kill()
    deadline = time.monotonic() + 120
    while _processes_below(work) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _processes_below(work) == [], "a child outlived the tool"
    compiled = {path: path.stat().st_mtime_ns for path in work.rglob("*.hsaco")}
    status = toolchain("kernels", "status", "--json").json["campaigns"]
    row = next(row for row in status if row["campaign"] == work.name)
    finished = row["done"]
    assert finished >= 2
    assert finished <= row["count"] + 1 <= row["asked"]

    resumed = _start([*words, "--json"])
    seen: dict[Path, int] = {}
    while resumed.poll() is None:
        for path in compiled:
            with contextlib.suppress(FileNotFoundError):
                seen[path] = path.stat().st_mtime_ns
        time.sleep(0.2)
    out, err = resumed.communicate()
    assert resumed.returncode == 0, err
    stage = json.loads(out)["stages"][-1]
    assert stage["facts"]["kernels"]["failed"] == 0
    assert stage["facts"]["skipped"] == finished
    untouched = [path for path, when in compiled.items() if seen.get(path) == when]
    assert len(untouched) >= finished, "a finished kernel was compiled again"


@pytest.mark.nightly
def test_second_build_waits_for_the_first_and_reuses_it(quickstart: Quickstart) -> None:
    words = [
        "kernels", "run", *WHEEL, "--gpu", "gfx950", "--select", "_bwd_preprocess*", *quickstart.allow, "--json",
    ]  # fmt: skip
    cache = Path(os.environ.get("TOOLCHAIN_CACHE", Path.home() / ".cache" / "toolchain"))
    _forget(cache, "gfx950", "_bwd_preprocess*")
    with contextlib.ExitStack() as started:
        builder = _start(words)
        started.callback(builder.kill)
        _read_until(builder, "; full log: ")  # the builder has locked the stage by now
        # The builder is stopped, because it could end before a busy machine starts the waiter.
        builder.send_signal(signal.SIGSTOP)
        waiter = _start(words)
        started.callback(waiter.kill)
        _read_until(waiter, f"waiting for pid {builder.pid}")
        builder.send_signal(signal.SIGCONT)
        said = [child.communicate() for child in (builder, waiter)]
    assert [child.returncode for child in (builder, waiter)] == [0, 0], said
    assert [json.loads(out)["stages"][-1]["reused"] for out, _ in said] == [False, True]


def _start(words: Sequence[str]) -> subprocess.Popen[str]:
    """Start the tool with these words, and return its process."""
    return subprocess.Popen(
        [sys.executable, "-m", "toolchain", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _read_until(child: subprocess.Popen[str], text: str) -> None:
    """Read a process's standard error until a line has the text; fail if the process ends before."""
    assert child.stderr is not None
    said = []
    for line in child.stderr:
        said.append(line)
        if text in line:
            return
    pytest.fail(f"{text!r} was not said: {''.join(said)}")


def _forget(cache: Path, gpu: str, select: str) -> None:
    """Remove the records of these tests' own campaigns."""
    for record in (cache / "records").glob("*.json"):
        content = json.loads(record.read_text())
        if content["stage"] == "kernels" and (content["inputs"]["gpus"], content["inputs"]["select"]) == (
            [gpu],
            select,
        ):
            record.unlink()


def _processes_below(work: Path) -> list[str]:
    """Return the command lines of running processes that name the work folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(work) in words:
                found.append(words.decode(errors="replace"))
    return found


@pytest.mark.nightly
def test_thirty_kernels_are_reproducible_under_varied_conditions(quickstart: Quickstart) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("NO FAKETIME: the clock cannot be changed (apt-get install faketime)")
    first = toolchain("kernels", "run", *quickstart.options, "--gpu", "gfx942", *quickstart.allow, "--json")
    assert first.code == 0, first.err
    assert first.json["stages"][-1]["facts"]["kernels"]["done"] == 30
    again = toolchain("reproduce", *first.json["publish"], "--vary", "--jobs", "1", "--json")
    assert again.code == 0, again.err
    assert {"heap", "time", "time-zone", "umask"} <= set(again.json["varied"]["changed"])
    assert again.json["diff_ids"][0] == again.json["diff_ids"][1] == first.json["stages"][-1]["facts"]["diff_id"]
    assert again.json["blobs"][0] == again.json["blobs"][1]


def test_base_allocator_is_loaded_only_if_preloaded(base: tuple[Buildah, str]) -> None:
    engine, image = base
    library = base_recipe("debian13").allocator
    ask = ["python3", "-c", "print(open('/proc/self/maps').read())"]
    assert library not in engine.run(image, ask, capture=True).stdout
    assert library in engine.run(image, ask, env={"LD_PRELOAD": library}, capture=True).stdout
