"""Plans as AOTriton's generators write them, and the source trees that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

BUILD, SOURCE = "/b/plan", "/b/src"


SIGNATURE = "*fp16:16, 0, u64:8, u64:1, i32, 32, False, 0.5"


def tree_of(path: Path) -> Path:
    kernels = path / "modules/flash/kernel"
    kernels.mkdir(parents=True)
    (kernels / "fwd.py").write_text(
        "import nothing_that_exists\n@triton.jit\ndef attn(Q, B, sq, one, n, BLOCK: tl.constexpr, FLAG, p):\n    pass\n"
    )
    return path


def plan_of(path: Path, clusters: dict[str, Sequence[str]], *, gpu: str = "gfx942", extra: str = "") -> Path:
    """Write the folder of a generator with an object for each name in `clusters`."""
    images = path / f"aotriton.images/amd-{gpu}/flash"
    images.mkdir(parents=True)
    lines, rows, zipped = [], [], []
    for number, (cluster, objects) in enumerate(sorted(clusters.items())):
        manifest = path / f"aks2/amd-{gpu}/flash/attn/{cluster}.nsv"
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text("".join(f"{BUILD}/flash/{name}.hsaco\0;;{name};;\0\n" for name in objects))
        rows.append(";".join([f"amd-{gpu}", "flash", "attn", cluster, *(f"{BUILD}/flash/{o}.hsaco" for o in objects)]))
        zipped.append((f"{BUILD}/aks2/amd-{gpu}/flash/attn/{cluster}.aks2", f"F{number}"))
        for name in objects:
            stages = sum(map(ord, name))
            fields = [
                "default", "/venv/python", f"{BUILD}/flash/{name}.hsaco", f"{SOURCE}/modules/flash/kernel/fwd.py",
                "attn", "4", str(stages), "2", gpu, SIGNATURE,
            ]  # fmt: skip
            line = ";".join(fields)
            if line not in lines:
                lines.append(line)
    (path / "Bare.compile").write_text("\n".join(lines) + "\n" + extra)
    (path / "Bare.cluster").write_text("\n".join(rows) + "\n")
    (images / "attn.nsv").write_text("".join(f"{a}\0{b}\0\n" for a, b in zipped))
    (path / "Bare.flatzip").write_text(";".join([f"amd-{gpu}", "flash", "attn", *(a for a, _ in zipped)]) + "\n")
    return path


def old_plan(path: Path, rows: Sequence[tuple[str, str, int]], *, clusters: Mapping[str, Sequence[str]]) -> Path:
    """Write a folder as generators before 0.12 do: a line for each (object, GPU, waves), and optional `clusters`."""
    path.mkdir(parents=True)
    lines = [
        f"{BUILD}/flash/{name}.hsaco;{SOURCE}/tritonsrc/flash.py;attn;4;1;{waves};{gpu};{SIGNATURE}"
        for name, gpu, waves in rows
    ]
    (path / "Bare.compile").write_text("\n".join(lines) + "\n")
    if clusters:
        rules = [
            ";".join(["amd-gfx942", "flash", "attn", name, *(f"{BUILD}/flash/{object_}.hsaco" for object_ in objects)])
            for name, objects in clusters.items()
        ]
        (path / "Bare.cluster").write_text("\n".join(rules) + "\n")
    return path


def old_tree(path: Path) -> Path:
    kernels = path / "tritonsrc"
    kernels.mkdir(parents=True)
    (kernels / "flash.py").write_text("import triton\nfrom .fwd import other as attn\nfrom package.sub import else_\n")
    (kernels / "fwd.py").write_text("def other(Q, B, sq, one, n, BLOCK, FLAG, p):\n    pass\n")
    return path
