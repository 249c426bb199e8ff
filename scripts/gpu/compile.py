"""Compile the attention kernels of kernels.toml to PTX, with the Triton of the interpreter that runs this script.

This script needs Triton and the standard library, but no GPU, no driver and no ptxas. For each kernel it writes
NAME.ptx and NAME.json to a folder, and `run.py` launches these kernels on a machine with a GPU. The JSON describes the
launch: the parameters in order with the values to pass, the grid, the threads, the shared and the scratch memory.

    python scripts/gpu/compile.py OUT --source aotriton=TREE --source flash-attn=TREE [--capability 90] [--only TEXT]
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import importlib
import itertools
import json
import math
import os
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WORKER = HERE.parents[1] / "aotriton" / "worker.py"
STANDIN = WORKER.with_name("standin")
# A compiled kernel: the name of its files without a suffix, the PTX, and the content of the JSON file.
Made = tuple[str, bytes, dict[str, Any]]
# Both LLVM's NVPTX backend and the drivers of CUDA 12.8 and later support this version.
PTX_VERSION = 86
TYPES = {"i1", "i8", "i16", "i32", "i64", "u32", "u64", "fp16", "bf16", "fp32", "fp64"}
LAUNCH = (
    "name",
    "shared",
    "num_warps",
    "num_ctas",
    "global_scratch_size",
    "global_scratch_align",
    "profile_scratch_size",
    "profile_scratch_align",
)


def find(table: Mapping[str, Any], name: str) -> Any:
    """Return the value for the key `name`, or for the first glob that matches it; raise ValueError if none does."""
    if name in table:
        return table[name]
    for pattern, value in table.items():
        if fnmatch.fnmatchcase(name, pattern):
            return value
    raise ValueError(f"no line of [kernel.arguments] or [kernel.values] covers {name}")


def kernels(text: str) -> list[dict[str, Any]]:
    """Return the `[[kernel]]` tables of kernels.toml.

    A table with `like = ROLE` inherits missing arguments and values from the table of ROLE in the same family.
    """
    tables: list[dict[str, Any]] = tomllib.loads(text)["kernel"]
    for table in tables:
        if "like" in table:
            model = next(t for t in tables if (t["family"], t["role"]) == (table["family"], table["like"]))
            for part in ("arguments", "values"):
                table[part] = {**model.get(part, {}), **table.get(part, {})}
    return tables


def forms(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each form of a kernel: the values of its axes, the scale, and the lengths if the table has any."""
    names = list(table["axes"])
    for values in itertools.product(*table["axes"].values()):
        form = dict(zip(names, values, strict=True))
        form["scale"] = 1 / math.sqrt(form["head"])
        for lengths in table.get("lengths", [None]):
            yield {**form, **(dict(zip(("Lq", "Lk"), lengths, strict=True)) if lengths else {})}


def filled(value: Any, form: Mapping[str, Any]) -> Any:
    """Return `value` with a form's values inserted; a string that is only "{axis}" becomes the value of the axis."""
    if not isinstance(value, str):
        return value
    if value.startswith("{") and value.endswith("}"):
        return form[value[1:-1]]
    return value.format(**form)


def patched(capability: int) -> Any:
    """Patch Triton's NVIDIA backend so that it stops at PTX, and return the target for a compute capability.

    The unpatched backend runs ptxas, which need not be installed for this script.
    """
    backend = importlib.import_module("triton.backends.nvidia.compiler").CUDABackend
    begin, stages = backend.__init__, backend.add_stages

    def begun(self: Any, *given: Any) -> None:
        begin(self, *given)
        self.binary_ext = "ptx"

    def until_ptx(self: Any, table: dict[str, Any], *more: Any) -> None:
        stages(self, table, *more)
        table.pop("cubin")

    backend.__init__ = begun
    backend.add_stages = until_ptx
    backend.hash = lambda _: "ptx"
    return importlib.import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)


def compile_one(compiler: Any, table: Mapping[str, Any], form: Mapping[str, Any], root: Path, target: Any) -> Made:
    """Compile one form of a kernel, and return its name, its PTX and the content of its JSON file.

    Args:
        compiler: the kernel worker's `Compiler`.
    """
    where = {"root": str(root), "source": str(root / table["file"]), "kernel": filled(table["function"], form)}
    function = compiler.function(**where)
    signature, constants, parameters = {}, {}, []
    for argument in function.arg_names:
        kind = filled(find(table["arguments"], argument), form)
        base, _, divisible = str(kind).partition(":")
        if isinstance(kind, str) and (base in TYPES or base.startswith("*")):
            signature[argument] = kind
            value = filled(find(table["values"], argument), form)
            parameters.append({"name": argument, "type": base, "value": value, "divisible": int(divisible or 1)})
        else:
            signature[argument] = "constexpr"
            constants[argument] = None if kind == "none" else kind
    source = compiler.source({**where, "signature": signature, "constexprs": constants})
    options = {"num_warps": table["num_warps"], "num_stages": table["num_stages"], "ptx_version": PTX_VERSION}
    made = compiler.triton.compile(source, target=target, options=options)
    code = bytes(made.kernel)
    known = made.metadata._asdict()
    parts = [table["family"], table["role"], *(str(form[a]) for a in table["axes"])]
    parts += [str(form[length]) for length in ("Lq", "Lk") if length in form]
    name = "-".join(parts)
    about = {
        "family": table["family"],
        "role": table["role"],
        "form": {k: v for k, v in form.items() if k != "scale"},
        "function": function.__name__,
        "grid": table["grid"],
        "parameters": parameters,
        "launch": {key: known[key] for key in LAUNCH if key in known},
        "capability": target.arch,
        "triton": compiler.triton.__version__,
        "ptx_sha256": hashlib.sha256(code).hexdigest(),
    }
    return name, code, about


def main() -> int:
    """Compile the forms of kernels that the arguments select; return 1 if a form cannot be compiled, otherwise 0."""
    parser = argparse.ArgumentParser(description="Compile attention kernels to PTX, without a GPU and without ptxas.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", action="append", required=True, metavar="FAMILY=TREE")
    parser.add_argument("--capability", type=int, default=90)
    parser.add_argument("--kernels", type=Path, default=HERE / "kernels.toml", help="file with the kernels")
    parser.add_argument("--only", default="", help="compile only kernels with this text in FAMILY-ROLE-AXES")
    given = parser.parse_args()
    trees = dict(source.split("=", 1) for source in given.source)
    sys.path += [str(WORKER.parent), str(STANDIN)]
    worker = importlib.import_module(WORKER.stem)
    compiler, target = worker.Compiler(), patched(given.capability)
    # With the value 1, Triton stores only files that it regards as binaries, and PTX is not among them.
    os.environ["TRITON_STORE_BINARY_ONLY"] = "0"
    given.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for table in kernels(given.kernels.read_text()):
        if table["family"] not in trees:
            continue
        root = (Path(trees[table["family"]]) / table["root"]).resolve()
        for form in forms(table):
            label = f"{table['family']}-{table['role']}-" + "-".join(str(form[a]) for a in table["axes"])
            if given.only not in label:
                continue
            started = time.process_time()
            try:
                with worker.own_cache():
                    name, code, about = compile_one(compiler, table, form, root, target)
            except Exception:  # noqa: BLE001 - a module may raise anything; the next form is compiled
                traceback.print_exc()
                failed += 1
                print(f"failed {label}", flush=True)
            else:
                (given.out / f"{name}.ptx").write_bytes(code)
                (given.out / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")
                print(f"{time.process_time() - started:6.2f} s  {name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
