"""Packs compiled code objects with AOTriton's own modules, inside the Triton image.

    pack.py BUILD SOURCE JOB

BUILD is the generator's folder with the objects in it, SOURCE the AOTriton tree, JOB a JSON file:
`{"clusters": [{"path", "manifest"}], "archives": [{"path", "members": [[aks2, name]]}], "arches": [gpu],
"sha1", "tree_sha1"}`, paths below BUILD. Calls aotriton.aks2, aotriton.flatzip and aotriton.write_image_signature as
their command lines do, in this one process, and prints `@count n/m` lines. Standard library and AOTriton alone.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path


def call(module: str, *arguments: str) -> None:
    """Run the main of one of AOTriton's tools."""
    before = sys.argv
    sys.argv = [module, *arguments]
    try:
        importlib.import_module(module).main()
    finally:
        sys.argv = before


def main(arguments: list[str]) -> int:
    """Run as a program."""
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    build, source = Path(arguments[0]), Path(arguments[1])
    job = json.loads(Path(arguments[2]).read_text(encoding="utf-8"))
    total = len(job["clusters"]) + len(job["archives"])
    for number, cluster in enumerate(job["clusters"], 1):
        call("aotriton.aks2", "-o", str(build / cluster["path"]), "--hsaco_manifest", str(build / cluster["manifest"]))
        print(f"@count {number}/{total} {cluster['path'].split('/')[-2]}", flush=True)
    folders = set()
    for number, archive in enumerate(job["archives"], len(job["clusters"]) + 1):
        path = build / archive["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        # The generator's own manifest names every cluster; this one those that are here.
        manifest = path.with_suffix(".packed.nsv")
        lines = [f"{build / member}\0{name}\0\n" for member, name in archive["members"]]
        manifest.write_text("".join(lines), encoding="utf-8")
        call("aotriton.flatzip", "--manifest", str(manifest), "-o", str(path))
        manifest.unlink()
        folders.add(path.parent.parent)
        print(f"@count {number}/{total} {path.name}", flush=True)
    signature = build / "__signature__.json"
    call(
        "aotriton.write_image_signature", "--build_dir", str(build), "--root_dir", str(source),
        "--git_sha1", job["sha1"], "--git_treesha1", job["tree_sha1"],
        "--target_arch", *job["arches"], "--output_file", str(signature),
    )  # fmt: skip
    for folder in sorted(folders):
        shutil.copyfile(signature, folder / "__signature__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
