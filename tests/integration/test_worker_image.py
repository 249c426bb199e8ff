"""The image of a kernel worker: run by the engine with its own entry point, it makes what a local campaign makes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.dask_fixtures import LIMITS, hub, until
from tests.integration.conftest import TOP, Quickstart, Said, toolchain
from tests.rooted import Rooted, unpacked
from toolchain.core import process, recipe
from toolchain.core.cache import Cache, default_cache
from toolchain.kernels.bounds import processes
from toolchain.kernels.campaign import run_campaign
from toolchain.kernels.dask_executor import DaskExecutor
from toolchain.kernels.dask_status import ask
from toolchain.kernels.ledger import Ledger
from toolchain.kernels.result_name import Naming
from toolchain.kernels.rules import load_rules
from toolchain.kernels.shared import SharedResults
from toolchain.kernels.store import FolderStore
from toolchain.oci.layout import Layout
from toolchain.pipeline.contained_worker import Kernels
from toolchain.pipeline.records import find_image
from toolchain.sources.unpack import unpack_tar
from toolchain.stages.kernels import PREFIX
from toolchain.stages.worker import FOLDER, PROGRAM

IMAGE = "kernel-worker-flash-attn-2.8.3.post2-debian13"
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::UserWarning"
    ),
]


@pytest.fixture(scope="module")
def asked(quickstart: Quickstart) -> tuple[str, ...]:
    """The options of the worker on the quickstart's Triton."""
    return ("--base", "debian13", *quickstart.options[2:4], *quickstart.allow, "--allow-binary", "dask")


@pytest.fixture(scope="module")
def built(asked: tuple[str, ...]) -> Said:
    said = toolchain("build", "worker", *asked)
    assert said.code == 0, said.err
    return said


def top_layer(image: str, folder: Path) -> tuple[Path, list[str], list[str]]:
    """An image's own layer unpacked, its entry point, and the digests of the layers below."""
    cache = Cache(default_cache())
    layout = Layout(cache.images)
    config, *layers = layout.children(layout.resolve(find_image(cache, image)[0].manifest))
    unpack_tar(layout.blob(layers[-1].digest), folder, strip=0)
    return folder, layout.read_json(config)["config"].get("Entrypoint", []), [one.digest for one in layers[:-1]]


def interfaces(pid: int) -> list[str]:
    rows = Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return [row.partition(":")[0].strip() for row in rows]


def below(pid: int) -> dict[int, str]:
    """A process and all below it, with their command lines."""
    found = {}
    for one in processes(pid):
        with contextlib.suppress(OSError):
            found[one] = Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def test_its_objects_are_those_of_a_local_campaign(built: Said, quickstart: Quickstart, tmp_path: Path) -> None:
    cache = Cache(default_cache())
    layer, entry, lower = top_layer(IMAGE, tmp_path / "layer")
    assert entry == [PROGRAM]
    said = Kernels.read(layer / FOLDER.lstrip("/") / "kernels.json")
    assert list(said.triton) == lower
    (tmp_path / "store").mkdir()
    out, store = tmp_path / "out", FolderStore(tmp_path / "store")
    source = layer / said.source.lstrip("/")
    rules = load_rules(recipe.root() / "aotriton/flash-attn.toml", source, ("gfx942",), limit=2).rules
    naming = Naming(
        source, triton=said.triton, recipe=said.recipe, environment=said.environment, search=said.search
    )  # fmt: skip
    shared, limits = SharedResults([store], naming), replace(LIMITS, timeout=600)
    seen: list[list[str]] = []
    box = Rooted(unpacked(cache.images, find_image(cache, IMAGE)[0].manifest, tmp_path / "layers"), tmp_path / "box")
    with hub() as scheduler:
        words = [*entry, scheduler.address, "--name", "boxed", "--jobs", "1", "--kernel-timeout", "600"]
        command = box.command(words, binds=[(tmp_path / "store", "/store", True)])
        with process.piped(command, env={"PYTHONPATH": os.fspath(TOP)}) as child:
            lines: list[str] = []
            streams = [child.stdout, child.stderr]
            readers = [threading.Thread(target=lambda s=s: lines.extend(s), daemon=True) for s in streams if s]
            for reader in readers:
                reader.start()
            until(lambda: ask(scheduler.address)["machines"] or child.poll() is not None, "worker", 240)
            assert child.poll() is None, lines

            def look(*_: object) -> None:
                for pid, text in below(child.pid).items():
                    if text.startswith("python3 /recipe/aotriton/worker.py"):
                        seen.append(interfaces(pid))

            with (
                Ledger(tmp_path / "ledger.sqlite") as ledger,
                DaskExecutor(scheduler.address, shared=shared, out=out, limits=limits) as executor,
            ):
                made = run_campaign(
                    rules, executor, ledger, out, worker_tree=said.source, shared=shared, on_count=look,
                    tell=executor.tell,
                )  # fmt: skip
            (worker,) = (
                pid for pid, text in below(child.pid).items() if "build.contained_worker" in text.split("sh ")[0]
            )
            assert interfaces(worker) == interfaces(os.getpid())
            os.kill(worker, signal.SIGTERM)
            child.wait(60)
            assert child.returncode == 128 + signal.SIGTERM, lines
    assert {entry.origin for entry in made.entries} == {"worker boxed"}
    assert seen
    assert all(one == ["lo"] for one in seen)
    local, _, _ = top_layer("flash-attn-kernels-2.8.3.post2-triton-3.7.1-debian13", tmp_path / "local")
    for rule in rules:
        for name in (rule.out, str(Path(rule.out).with_suffix(".json"))):
            assert (out / name).read_bytes() == (local / PREFIX.lstrip("/") / name).read_bytes()


@pytest.mark.full  # base and Triton are packed for it: two gigabytes
def test_it_is_published_and_judged_as_other_images(
    built: Said, asked: tuple[str, ...], registry_host: str, tmp_path: Path
) -> None:
    key = tmp_path / "a.key"
    assert toolchain("keygen", key).code == 0
    said = toolchain("publish", f"{registry_host}/worker", *built.json["publish"], "--key", key, "--json")
    assert said.code == 0, said.err
    assert [one["image"] for one in said.json["published"]] == [IMAGE]
    ref = f"{registry_host}/worker/{IMAGE}"
    allowed = ("--allow-binary", "dask", "--allow-binary", "triton-wheel")
    judged = toolchain("verify", ref, "--public-key", f"{key}.pub", "--policy", "source-only", *allowed, "--json")
    assert judged.code == 0, judged.err
    assert judged.json["images"][0]["verdict"] == "trusted"
    refused = toolchain("verify", ref, "--public-key", f"{key}.pub", "--policy", "source-only", *allowed[2:])
    assert refused.code == 17
    assert "dask" in refused.err + refused.out
    shown = toolchain("inspect", ref, "--json")
    assert shown.code == 0, shown.err
    assert "dask,triton-wheel" in shown.out
    if shutil.which("skopeo") is not None:
        config = subprocess.run(
            ["skopeo", "inspect", "--config", "--tls-verify=false", f"docker://{ref}:latest"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert config.returncode != 0 or PROGRAM in config.stdout
