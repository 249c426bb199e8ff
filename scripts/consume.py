"""Build a Containerfile that copies the published LLVM layer with COPY --from, to test this layer with buildah."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from toolchain.core import process
from toolchain.core.cache import Cache, default_cache
from toolchain.core.digest import write_atomically
from toolchain.core.recipe import Mount
from toolchain.engine.buildah import Buildah
from toolchain.engine.isolation import arguments
from toolchain.oci import descriptor as media
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import find_image

_CONTAINERFILE = """\
FROM {base}
COPY --from={llvm} {prefix} {prefix}
RUN {prefix}/bin/mlir-tblgen --version
"""


def main(out: Path) -> None:
    """Build the Containerfile, and print the version that mlir-tblgen reports."""
    cache = Cache(default_cache())
    engine = Buildah(cache)
    layout = Layout(out)
    index = next(d for n, d in layout.images().items() if n.startswith("llvm-triton-"))
    manifest = next(d for d in layout.walk(index) if d.media_type == media.MANIFEST)
    title = layout.read_json(layout.children(manifest)[0])["config"]["Labels"]["org.opencontainers.image.title"]
    version = title.removeprefix("llvm-triton-").removeprefix("mlir-tblgen-")
    base = find_image(cache, "toolchain-base-debian13")[0]
    text = _CONTAINERFILE.format(
        base=engine.ensure_image("toolchain-base-debian13", cache.images, base.manifest),
        llvm=engine.ensure_image("quickstart-llvm", out, manifest.digest),
        prefix=f"/usr/lib64/llvm-triton-{version}",
    )
    print(text, file=sys.stderr)
    said: list[str] = []
    words = ["build", "--no-cache", "--layers=false", "--force-rm", "--pull=never"]
    words += [*arguments("build"), "--tag", "localhost/quickstart-consumer"]
    words += ["--file", "/context/Containerfile", "/context"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        write_atomically(Path(folder) / "Containerfile", text.encode())
        process.run(engine.command(*words, show=[Mount(Path(folder), "/context")]), on_line=said.append)
    answers = [line.strip() for line in said if "LLVM version" in line]
    if not answers:
        sys.exit("mlir-tblgen did not print its version:\n" + "\n".join(said[-20:]))
    print(answers[0])
    engine.forget_image("localhost/quickstart-consumer")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
