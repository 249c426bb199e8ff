"""Pack compiled code objects with AOTriton's own modules, inside the Triton image.

    pack.py BUILD SOURCE JOB

BUILD is the generator's output folder with the compiled objects, SOURCE is the AOTriton tree, and JOB is a JSON file:
`{"package", "loose", "clusters": [{"path", "manifest", "objects": [path]}], "archives": [{"path", "members": [[path,
name]]}], "arches": [gpu], "sha1", "tree_sha1"}`. The paths in it are relative to BUILD.

`package` is the Python package of the generator. Its module aks2 packs each cluster of objects, flatzip puts the packed
clusters into archives, and write_image_signature writes the signature. If `loose` is true, no archives are made. If the
package has no module write_image_signature, no signature is written. The signature contains `arches`, `sha1` and
`tree_sha1`, as far as the release's write_image_signature accepts them. The program prints a line `@count n/m NAME` for
each cluster and archive.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

SIGNATURE = "__signature__.json"


def call(module: str, *arguments: str) -> None:
    """Call the `main` function of a module with `arguments` as its command-line arguments."""
    before = sys.argv
    sys.argv = [module, *arguments]
    try:
        importlib.import_module(module).main()
    finally:
        sys.argv = before


def sign(build: Path, source: Path, package: str, job: dict[str, Any]) -> bool:
    """Write the signature to `build` and return True, or return False if `package` cannot write signatures."""
    module = f"{package}.write_image_signature"
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return False
    out, text = str(build / SIGNATURE), Path(spec.origin).read_text(encoding="utf-8")
    if "--git_sha1" not in text:
        call(module, str(build), job["sha1"], out)
        return True
    words = ["--build_dir", str(build), "--git_sha1", job["sha1"], "--output_file", out]
    words += ["--root_dir", str(source)] if "--root_dir" in text else []
    words += ["--git_treesha1", job["tree_sha1"]] if "--git_treesha1" in text else []
    words += ["--target_arch", *job["arches"]] if "--target_arch" in text else []
    call(module, *words)
    return True


def main(arguments: list[str]) -> int:
    """Pack the objects of a job and return the exit code."""
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    build, source = Path(arguments[0]), Path(arguments[1])
    job = json.loads(Path(arguments[2]).read_text(encoding="utf-8"))
    package, loose = job["package"], job["loose"]
    total = len(job["clusters"]) + (0 if loose else len(job["archives"]))
    folders = set()
    for number, cluster in enumerate(job["clusters"], 1):
        path = build / cluster["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if loose:
            call(f"{package}.aks2", "-o", str(path), "--", *(str(build / one) for one in cluster["objects"]))
            folders.add(path.parents[2])
        else:
            call(f"{package}.aks2", "-o", str(path), "--hsaco_manifest", str(build / cluster["manifest"]))
        print(f"@count {number}/{total} {cluster['path'].split('/')[-2]}", flush=True)
    for number, archive in enumerate([] if loose else job["archives"], len(job["clusters"]) + 1):
        path = build / archive["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        # The generator's manifest lists every cluster of the archive; this manifest lists only those of the job.
        manifest = path.with_suffix(".packed.nsv")
        lines = [f"{build / member}\0{name}\0\n" for member, name in archive["members"]]
        manifest.write_text("".join(lines), encoding="utf-8")
        call(f"{package}.flatzip", "--manifest", str(manifest), "-o", str(path))
        manifest.unlink()
        folders.add(path.parent.parent)
        print(f"@count {number}/{total} {path.name}", flush=True)
    if not sign(build, source, package, job):
        return 0
    for folder in sorted(folders):
        shutil.copyfile(build / SIGNATURE, folder / "__signature__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
