"""A Triton that was built from source, checked against its contract, and AOTriton's kernels compiled with it.

The tests are marked `full`: run them after `toolchain build triton` with the same cache, and those of the AOTriton
image also after `toolchain build aotriton`.

    TOOLCHAIN_TEST_AOTRITON=/path/to/aotriton pytest -m full -s tests/integration/test_triton_full.py

TOOLCHAIN_CACHE           the cache that has the images (default: the tool's own)
TOOLCHAIN_TEST_TRITON     the name of Triton's image (default: the newest that was built from source)
TOOLCHAIN_TEST_AOTRITON   AOTriton's source, at any commit that the tool builds
TOOLCHAIN_TEST_GPUS       the GPUs (default: the five of the contract)
TOOLCHAIN_TEST_RULES      the least number of rules for each GPU (default: 20); upstream's script compiles 20 too
TOOLCHAIN_TEST_LEAST      the least number of rules in the AOTriton image (default: 300)
TOOLCHAIN_TEST_SAMPLE     the number of the image's kernels that upstream's script compiles too (default: 200)
"""

# ruff: noqa: T201, ARG002
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from elftools.elf.elffile import ELFFile

from toolchain.core.cache import Cache, default_cache
from toolchain.core.recipe import Mount, root
from toolchain.core.record import Record
from toolchain.engine.buildah import Buildah
from toolchain.kernels.aks2 import read_archive
from toolchain.kernels.aotriton_plan import read_plan
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import records
from toolchain.request.model import Request
from toolchain.sources.resolve import fetch_source
from toolchain.sources.scan import scan
from toolchain.sources.store import Store
from toolchain.stages import aotriton_images
from toolchain.stages.aotriton_images import KernelImages
from toolchain.stages.stage import Workspace
from toolchain.stages.triton_source import CONTRACT_GPUS
from toolchain.stages.triton_wheel import SITE, unzip
from toolchain.stages.wheels import AOTRITON, wheel_sources

pytestmark = [pytest.mark.full, pytest.mark.engine, pytest.mark.timeout(0)]
LARGEST = 120_000_000
FOREIGN = ("ptxas", "cuobjdump", "nvdisasm", "libcupti", "libproton", "cudart")
# The least number of code objects of each kernel, by the beginning of its name; two kernels begin with bwd_preprocess.
ENOUGH = {"attn_fwd": 40, "bwd_kernel_dk_dv": 40, "bwd_kernel_dq": 40, "bwd_kernel_fuse": 40, "bwd_preprocess": 1}


def newest(stage: str, *, has: str, name: str = "", arch: str = "amd64") -> Record:
    """Return the newest record of a stage for an architecture, or skip the test."""
    found = [
        one
        for one in records(Cache(default_cache()))
        if one.stage == stage and one.facts.get(has) and name in ("", one.image)
        if (one.inputs or {}).get("arch") == arch
    ]
    if not found:
        why = f"{default_cache()} has no {name or stage} from source for {arch}"
        pytest.skip(f"NOT BUILT: {why}; run toolchain build {stage} --arch {arch}")
    return found[-1]


@pytest.fixture(scope="module")
def triton() -> Record:
    """Return the record of the Triton under test."""
    return newest("triton", has="wheels", name=os.environ.get("TOOLCHAIN_TEST_TRITON", ""))


def test_wheel_is_small_and_has_no_foreign_binary_or_debug_section(triton: Record, tmp_path: Path) -> None:
    (auditwheel,) = [triton.facts["auditwheel"]]
    for wheel in triton.facts["wheels"]:
        path = Store(Cache(default_cache()).store).file(wheel["digest"], verify=True)
        assert path is not None, f"{wheel['file']} is not in the store"
        print(f"\n{wheel['file']}: {wheel['bytes']:,} bytes")
        assert wheel["bytes"] <= LARGEST
        platform = wheel["file"].removesuffix(".whl").rpartition("-")[2]
        assert f'platform tag: "{platform}"' in " ".join(auditwheel.split())
        tree = tmp_path / wheel["file"]
        unzip(path, tree)
        for found in scan(tree):
            print(f"  {found.size:>12,} {found.what:14} {found.path}")
            assert not any(name in found.path.rpartition("/")[2] for name in FOREIGN), found.path
            if found.what == "ELF":
                with (tree / found.path).open("rb") as stream:
                    sections = [section.name for section in ELFFile(stream).iter_sections()]
                assert not [name for name in sections if name.startswith(".debug")], (
                    f"{found.path} has debug information"
                )


@dataclass(frozen=True)
class Place:
    """The part of a `Workspace` that kernels need, with the image of Triton."""

    request: Request
    folder: Path
    image: str
    engine: Buildah

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def runner(self) -> Any:
        return self.engine

    def work(self) -> Path:
        return self.folder

    def jobs(self, kind: str) -> int:
        return min(2, os.cpu_count() or 1)

    def memory(self) -> int:
        return 4 << 30

    def step(self, name: str) -> None:
        print(f"  {name}", flush=True)

    def count(self, done: int, total: int, label: str = "") -> None:
        """Ignore the progress."""

    @contextlib.contextmanager
    def worker(
        self, image: str, argv: Sequence[str], *, mounts: Sequence[Mount], env: Mapping[str, str]
    ) -> Iterator[subprocess.Popen[str]]:
        """See `Workspace.worker`."""
        with self.engine.worker(image, argv, mounts=mounts, env=env) as child:
            yield child


@pytest.fixture(scope="module")
def source() -> Path:
    named = os.environ.get("TOOLCHAIN_TEST_AOTRITON", "")
    if not named:
        pytest.skip("NO AOTRITON: name its source in TOOLCHAIN_TEST_AOTRITON")
    return Path(named).resolve()


@pytest.fixture(scope="module")
def place(triton: Record, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return the workspace in which kernels are compiled."""
    cache, folder = Cache(default_cache()), tmp_path_factory.mktemp("campaign")
    request = Request(cache=cache, limit=int(os.environ.get("TOOLCHAIN_TEST_RULES", "20")))
    engine = Buildah(cache)
    return Place(request, folder, engine.ensure_image(triton.image, cache.images, triton.manifest), engine)


@pytest.fixture(scope="module")
def modules(place: Place, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with AOTriton's generator, its packers and their imports, as the recipe leaves it in `python`."""
    folder = tmp_path_factory.mktemp("modules")
    for wheel in wheel_sources(AOTRITON):
        fetched = fetch_source(wheel, cache=place.request.cache, offline=False)
        assert fetched.path is not None
        unzip(fetched.path, folder)
    shutil.copytree(source / "python", folder / "aotriton", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


# This program does the work of `python3 -m` in another folder.
IN_FOLDER = (
    "import os, runpy, sys; os.chdir(sys.argv[1]); del sys.argv[:2];"
    " runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def plan_for(gpu: str, place: Place, source: Path, modules: Path, build: Path) -> None:
    """Have upstream's generator plan the kernels of one GPU, as the recipe does."""
    own = Mount(build, str(build), read_only=False, links=True)
    mounts = [own, Mount(source, str(source)), Mount(modules, "/python")]
    env = {"PYTHONPATH": "/python", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "AOTRITON_ENABLE_FP32": "1"}

    def tool(name: str, *arguments: str) -> None:
        argv = ["python3", "-X", "utf8", "-c", IN_FOLDER, str(source), f"aotriton.{name}", *arguments]
        place.runner.run(place.image, argv, mounts=mounts, env=env, log=place.log)

    for database in source.glob("modules/*/database"):
        into = build / database.parent.name / "database"
        for packed in database.rglob("*.sqlite3.tar.xz"):
            with tarfile.open(packed) as tar:
                tar.extractall(into / packed.parent.relative_to(database), filter="data")
        tool("database_compose", "--database_file", str(into / "tuning_database.sqlite3"), "--decomposed", str(into))
    tool("generate", "--target_gpus", f"{gpu}_mod0", "--build_dir", str(build), "--root_dir", str(source))


@pytest.mark.parametrize("gpu", os.environ.get("TOOLCHAIN_TEST_GPUS", ",".join(CONTRACT_GPUS)).split(","))
def test_aotriton_rules_compile_to_upstreams_bytes_and_pack(
    gpu: str, place: Place, source: Path, modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The campaign compiles whole clusters, upstream's packers pack them, and the tool's reader checks the packs."""
    built = tmp_path / "built"
    (built / "plan").mkdir(parents=True)
    plan_for(gpu, place, source, modules, built / "plan")
    # The plan contains these paths. A plan of the stage's own recipe would contain the original ones.
    (built / "python").symlink_to(modules)
    monkeypatch.setattr(aotriton_images, "PLAN", str(built / "plan"))
    monkeypatch.setattr(aotriton_images, "SOURCE", str(source))
    images = KernelImages(tmp_path / "campaign" / "plan", source, place.image, cast("Workspace", place))
    made = images.make(built, gpus=(gpu,), sha1="0" * 40)
    print(f"\n{made.result.rows()}\n{dict(made.against)} of {made.rules}; Triton {made.result.about.get('triton')}")
    assert made.result.bad == ()
    assert len(made.result.done) >= (place.request.limit or 0)
    assert made.against["equal"] >= 20 or made.against["equal"] == len(made.result.done)
    assert {entry.target for entry in made.result.done} == {gpu}
    assert made.partial
    signature = json.loads((made.folder / made.packs[0] / "__signature__").read_text())
    assert signature["TRITON_VERSION"].startswith(str(made.result.about["triton"]).partition("+")[0])


def kernel_images(record: Record, folder: Path) -> Path:
    """Unpack the last layer of an AOTriton image, and return the folder of the kernel images."""
    with tarfile.open(Layout(Cache(default_cache()).images).blob(record.layers[-1]["digest"])) as tar:
        tar.extractall(folder, filter="data")
    return folder / str(record.facts["prefix"]).lstrip("/") / "lib" / "aotriton.images"


def test_aotriton_image_matches_its_record_and_ledgers(tmp_path: Path) -> None:
    """A reader that is independent of upstream's packers reads each kernel out of the layer, to compare its SHA-256."""
    record = newest("aotriton", has="packs")
    facts = record.facts
    for row in facts["by_kernel"]:
        print(
            f"\n{row['kernel']:32} {row['gpu']:8} "
            + " ".join(f"{key} {row[key]}" for key in row if key not in ("kernel", "gpu")),
            end="",
        )
    print(f"\n{facts['kernels']}, bitcode {facts['bitcode']}, against upstream {facts['against_upstream']}")
    for finding in facts["found_binaries"]:
        print(finding)
    images = kernel_images(record, tmp_path)
    seen = 0
    for pack in sorted(images.iterdir()):
        ledger = json.loads((pack / "__ledger__").read_text())
        wanted = {row["sha256"] for row in ledger["kernels"] if row["status"] == "done"}
        inside: list[str] = []
        for archive in sorted(pack.rglob("*.zip")):
            for _, kernels in read_archive(archive):
                inside += [hashlib.sha256(one.read()).hexdigest() for one in kernels if one.size]
                assert ledger["known_bad"] or all(one.size for one in kernels)
        assert set(inside) == wanted
        assert len(inside) == ledger["done"]
        assert (pack / "__partial__").exists() == bool(
            ledger["partial"] or ledger["known_bad"] or ledger["without_gpus"]
        )
        seen += len(ledger["kernels"])
    assert seen == sum(facts["kernels"].values()) >= int(os.environ.get("TOOLCHAIN_TEST_LEAST", "300"))
    assert (seen < facts["rules"]) == ("partial" in record.image)
    assert facts["kernels"]["done"] >= 0.95 * seen
    for kernel, least in ENOUGH.items():
        assert sum(row["done"] for row in facts["by_kernel"] if row["kernel"].startswith(kernel)) >= least, kernel
    assert facts["against_upstream"]["equal"] == facts["against_upstream"]["sampled"] >= 20
    assert facts["against_upstream"]["alike"] == len(facts["failures"])
    assert all(failure["reason"] for failure in facts["failures"])


def test_random_kernels_of_the_image_equal_those_of_upstreams_script(
    place: Place, source: Path, modules: Path, tmp_path: Path
) -> None:
    """The kernels are drawn from all that the image's packs list, and compiled by upstream's own command line."""
    record = newest("aotriton", has="packs")
    images = kernel_images(record, tmp_path / "image")
    done: dict[str, str] = {}
    packed: set[str] = set()
    for pack in sorted(images.iterdir()):
        listed = json.loads((pack / "__ledger__").read_text())["kernels"]
        done |= {row["out"]: row["sha256"] for row in listed if row["status"] == "done"}
        for archive in pack.rglob("*.zip"):
            packed |= {hashlib.sha256(one.read()).hexdigest() for _, all_ in read_archive(archive) for one in all_}
    build = tmp_path / "plan"
    build.mkdir()
    for gpu in record.facts["gpus"]:
        plan_for(gpu, place, source, modules, build)
    by_out = {rule.out: rule for rule in read_plan(build, source, build=str(build), source=str(source)).rules}
    assert set(done) <= set(by_out)
    wanted = int(os.environ.get("TOOLCHAIN_TEST_SAMPLE", "200"))
    chosen = random.Random(record.manifest).sample(sorted(done), min(wanted, len(done)))
    rules = []
    for out in chosen:
        arguments = aotriton_images.upstream_arguments(by_out[out])
        arguments[0] = str(source / by_out[out].source)
        rules.append({"id": out, "arguments": arguments, "timeout": 0})
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"script": str(source / "python/compile.py"), "jobs": place.jobs(""), "rules": rules}))
    programs = root() / "aotriton"
    said = place.runner.run(
        place.image,
        ["python3", str(programs / "upstream.py"), str(job)],
        mounts=[Mount(source, str(source)), Mount(programs, str(programs)), Mount(job, str(job))],
        env={"PYTHONPATH": SITE, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"},
        log=place.log,
        capture=True,
    )
    answers = [json.loads(line) for line in said.stdout.strip().splitlines()]
    kernels = Counter(f"{by_out[row['id']].kernel} {by_out[row['id']].target}" for row in answers)
    print(f"\n{len(answers)} of {len(done)} compiled by upstream's script: {dict(sorted(kernels.items()))}")
    assert len(answers) == min(wanted, len(done))
    assert [row for row in answers if row["sha256"] != done[row["id"]] or row["sha256"] not in packed] == []
