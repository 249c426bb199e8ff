"""The output of the verbs with `--json`, from one process and small data.

`json_outputs.py FOLDER` prints a list of `[verb, subject, exit code, document]`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

from lab.tests.emulated_objects import KERNELS, compile_all, rule
from tests.with_report import register

ASKED = ("--base", "debian13", "--source", "notes=notes")


def _pytorch(folder: Path) -> Path:
    """Write the file in which PyTorch pins AOTriton, for one version of ROCm."""
    file = folder / "aotriton.cmake"
    lists = {"ROCM_LIST": "rocm7.2", "MANYLINUX_LIST": "manylinux_2_28", "SHA256_LIST": "0" * 64, "VER": "0.13b"}
    file.write_text("".join(f'set(__AOTRITON_{name} "{value}")\n' for name, value in lists.items()), encoding="utf-8")
    return file


def _wheel(folder: Path, version: str) -> Path:
    """Write a wheel of Triton that contains the LLVM of Triton 3.7.1."""
    folder.mkdir(exist_ok=True)
    path = folder / f"triton-{version}-cp312-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("triton/_C/libtriton.so", "LLVM version 23.0.0git (1f126a6dea50d185c0781743a667390037ae88bd)")
        archive.writestr("triton/backends/amd/lib/libtriton_amd_codegen.so", f"\0{'0' * 39}1-2\0")
    return path


def _cached(folder: Path) -> Path:
    """Write a layout whose image has a Triton cache of one kernel."""
    from toolchain.kernels.cache_entries import Entry, entry_folder, labels, write_manifest  # noqa: PLC0415
    from toolchain.oci.image import ImageSpec, add_layer, write_image  # noqa: PLC0415
    from toolchain.oci.labels import CACHE_CALLS, CACHE_MOUNT  # noqa: PLC0415
    from toolchain.oci.layer import compress, write_layer  # noqa: PLC0415
    from toolchain.oci.layout import Layout  # noqa: PLC0415

    target = {"backend": "hip", "arch": "gfx942", "warp_size": 64}
    hash_ = "ab" * 32
    metadata = {"hash": hash_, "target": target, "num_stages": 2, "num_warps": 4}
    entry = folder / "tree/io.triton.cache" / entry_folder(hash_)
    entry.mkdir(parents=True)
    paths = {"k.json": f"/opt/cache/{entry.name}/k.json"}
    (entry / "k.json").write_text(json.dumps(metadata), encoding="utf-8")
    (entry / "__grp__k.json").write_text(json.dumps({"child_paths": paths}), encoding="utf-8")
    entries = [Entry(metadata=metadata, size=sum(path.stat().st_size for path in entry.iterdir()))]
    write_manifest(entries, folder / "tree", "unknown-triton-key")
    layout = Layout(folder / "layout").ensure()
    layer = compress(write_layer(folder / "tree", folder / "layer.tar"), folder / "blob", "gzip")
    said = {**labels(entries), CACHE_MOUNT: "/opt/cache", CACHE_CALLS: json.dumps(["gfx942/direction=forward,seq=8"])}
    spec = ImageSpec(arch="amd64", layers=(add_layer(layout, layer),), labels=said)
    layout.tag(write_image(layout, spec), "cache")
    return layout.root


def main(folder: Path) -> None:
    register("copied")  # The modules with help texts are imported after this call.
    from typer.testing import CliRunner  # noqa: PLC0415

    from tests.evidence_fixtures import finished_base  # noqa: PLC0415
    from tests.kernel_fixtures import make_rule  # noqa: PLC0415
    from toolchain.cli import doctor  # noqa: PLC0415
    from toolchain.cli.app import app  # noqa: PLC0415
    from toolchain.core.cache import Cache  # noqa: PLC0415
    from toolchain.kernels.ledger import Entry, Ledger  # noqa: PLC0415
    from toolchain.kernels.status import STATUS, Board  # noqa: PLC0415
    from toolchain.oci.descriptor import REF_NAME  # noqa: PLC0415

    os.chdir(folder)
    cache = Cache(folder / "cache")
    os.environ["TOOLCHAIN_CACHE"] = str(cache.root)
    cache.make()
    finished_base(cache, folder / "work")
    (folder / "notes").mkdir()
    (folder / "notes" / "report.txt").write_text("all is well\n")
    patch = folder / "a.patch"
    patch.write_text("--- a/report.txt\n+++ b/report.txt\n@@ -1 +1 @@\n-all is well\n+all is better\n")
    entry = Entry.of(make_rule("k"), "failed", reason="no", seconds=2.0)
    for name in ("a-campaign", "without-a-status"):
        (cache.work / name).mkdir(parents=True)
        with Ledger(cache.work / name / "ledger.sqlite") as ledger:
            ledger.record(entry)
    worker = {"pid": 1, "memory": 1, "compiled": 3, "kernel": "k", "gpu": "gfx942", "out": "/o", "seconds": 0.5}
    board = Board(cache.work / "a-campaign" / STATUS, [make_rule("k")] * 2, workers=lambda: [worker])
    # `kernels status` shows the campaign as running until __exit__ is called.
    board.__enter__()
    board.count(entry)
    said: list[Any] = []

    def call(verb: str, about: str, *words: str, code: int = 0, data: bool = True) -> None:
        # A verb that fails before its options are parsed looks for --json in sys.argv.
        sys.argv = ["toolchain", *verb.split(), *words, "--json"]
        done = CliRunner().invoke(app, [*verb.split(), *words, *(["--json"] if data else [])])
        if done.exit_code != code:
            raise SystemExit(f"{verb} {words}: {done.exit_code}\n{done.output}\n{done.exception!r}")
        if data:
            said.append([verb, about, code, json.loads(done.stdout)])

    call("pins", "everything")
    call("pins", "a PyTorch", "--pytorch", "2.9")
    call("pins", "a Triton", "--triton", "3.7.1")
    call("pins", "an AOTriton", "--aotriton", "0.11b")
    call("pytorch", "a file", str(_pytorch(folder)))
    call("pins", "the distribution's", "--distro")
    call("pins", "a release that is none", "--triton", "9.9", code=7)
    found = [doctor.Check("cache", "ok", "a folder"), doctor.Check("buildah", "fail", "not installed", "install it")]
    doctor.examine = lambda *_, **__: iter(found)  # The real checks would use the network.
    call("doctor", "a machine without an engine", code=8)
    call("plan", "a patch", "report", *ASKED, "--patch", f"notes={patch}")
    call("plan", "all", "all", "--triton", "3.6.0", "--arch", "amd64")
    call("plan", "a commit whose LLVM is unknown", "llvm", "--triton", "0" * 40)
    call("plan", "two architectures", "llvm", "--arch", "amd64,arm64")
    call("fetch", "a checkout", "report", *ASKED)
    call("lock", "whole", "report", *ASKED)
    call("lock", "as it is", "report", *ASKED, "--check")
    call("build", "a stage", "report", *ASKED)
    call("build", "what is here", "report", *ASKED)
    call("kernels status", "a campaign that runs, and one of an earlier version")
    board.__exit__(None, None, None)
    call("kernels status", "campaigns that do not run")
    emulated, wider = compile_all(
        [rule(folder / name, "row_sum", "gfx942", warps=warps) for name, warps in (("4", 4), ("8", 8))]
    )
    values = ["--grid", "1", "--arg", "x=normal:512", "--arg", "out=zeros:1"]
    call("emulate", "a kernel", str(emulated), *values, "--out", str(folder / "buffers"))
    expected = f"x={folder / 'buffers' / 'x.npy'}"
    call("emulate", "an expected buffer", str(emulated), *values, "--expect", expected)
    call("emulate", "a list of instructions", str(emulated))
    call("kernels check", "a kernel without a case", str(emulated.parent), code=28)
    call("kernels cached", "one kernel", f"oci:{_cached(folder / 'a-cache')}")
    call("kernels diff", "more warps", str(emulated.parent), str(wider.parent))
    call("kernels try", "the same", str(emulated), "--source", str(KERNELS.parent))
    libraries = folder / "libraries"
    libraries.mkdir()
    shutil.copy(next(Path("/usr/lib").rglob("libz.so.1")).resolve(), libraries / "libz.so.1")
    call("audit", "a library", str(libraries), "--gpu", "gfx90a", code=12)
    call("audit", "kernels", str(emulated.parent), "--rebuild", "1", "--source", str(KERNELS.parent))
    call("keygen", "", "key", data=False)
    call("publish", "signed, with files", "oci:out", "report", "--key", "key", "--files")
    call("publish", "unsigned", "oci:plain", "toolchain-base")
    call("publish", "copied", "oci:copy", "oci:plain")
    call("images", "")
    call("inspect", "a finished image", "report")
    call("verify", "signed", "oci:out", "--public-key", "key.pub", "--policy", "source-only")
    call("verify", "not signed", "oci:plain")
    call("verify", "by another key", "oci:plain", "--public-key", "key.pub", code=17)
    call("inspect", "images and files", "oci:out")
    call("inspect", "use", "oci:plain", "--use")
    call("inspect", "a wheel", str(_wheel(folder / "wheels", "3.7.1")))
    call("inspect", "a wheel of another LLVM", str(_wheel(folder / "wheels", "3.9.0")), code=4)
    call("reproduce", "the same", "report", "--vary", "--seed", "7")
    call("reproduce", "a published image", "oci:out", "--public-key", "key.pub", code=7)
    tags = [
        row.get("annotations", {}).get(REF_NAME, "")
        for row in json.loads(Path("out/index.json").read_text())["manifests"]
    ]
    there = f"oci:out:{next(tag for tag in tags if tag.startswith('report') and '.' not in tag)}"
    signed = ("--attest", "key", "--builder-id", "urn:x:me")
    call("reproduce", "an image, attested", there, "--public-key", "key.pub", *signed)
    Path("builders.toml").write_text('[[builder]]\nid = "urn:x:me"\nkey = "key.pub"\noperator = "me"\n')
    call("verify", "rebuilt", there, "--rebuilders", "1", "--builders", "builders.toml")
    call("bundle export", "", "oci:bundle", "report", *ASKED)
    os.environ["TOOLCHAIN_CACHE"] = str(folder / "another cache")
    call("bundle import", "", "oci:bundle", "--lock-file", "bundle.lock")
    os.environ["TOOLCHAIN_CACHE"] = str(cache.root)
    call("build", "taken", "base", "--reuse-from", "oci:plain", "--public-key", "key.pub", "--offline")
    call("cache ls", "")
    cache.logs.mkdir(exist_ok=True)
    (cache.logs / "old.log").touch()
    os.utime(cache.logs / "old.log", (1, 1))
    call("cache prune", "dry", "--dry-run")
    call("cache prune", "")
    call("verify", "not there", "oci:nowhere", code=13)
    call("plan", "a value that cannot be", "llvm", "--source", "x=y", code=3)
    call("plan", "an option that is none", "--no-such-option", code=2)
    call("build", "a number that is none", "llvm", "--jobs", "many", code=2)
    call("pins", "two questions", "--triton", "3.7.1", "--pytorch", "2.9", code=2)
    call("no-such-verb", "", code=2)
    call("cache no-such-verb", "", code=2)
    call("verify", "nothing", code=2)
    os.environ["TOOLCHAIN_CONFIG"] = "toolchain.toml"
    Path("toolchain.toml").write_text("nonsense = 1\n")
    call("plan", "a file that cannot be", code=3)
    print(json.dumps(said))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
