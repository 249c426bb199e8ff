"""`emulate`: run an AMD code object on the CPU, or list its instructions."""

from __future__ import annotations

import errno
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain.cli import options as o
from toolchain.core import console
from toolchain.core.errors import ConfigError, EmulationError, NumbersError
from toolchain.core.filesystem import NewFile
from toolchain.core.permissions import for_user, make_named
from toolchain.request import option_values
from toolchain_lab.bridge import described, disassembler, load, require_numpy, translated, translation

if TYPE_CHECKING:
    from toolchain_lab.emulator.disassembly import Disassembler
    from toolchain_lab.emulator.launch import Parameter
    from toolchain_lab.emulator.metadata import Metadata

ObjectsArg = Annotated[list[Path], typer.Argument(metavar="FILE.hsaco…", help="Code objects.")]
GridOpt = Annotated[
    str | None,
    typer.Option("--grid", metavar="X,Y,Z", help="Number of workgroups; without it no kernel runs."),
]
WorkgroupOpt = Annotated[
    list[str] | None,
    typer.Option("--workgroup", metavar="X,Y,Z", help="Run only this workgroup of the grid. Repeatable."),
]
ArgumentOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        metavar="NAME=VALUE",
        help="Kernel argument: a number, null, FILE.npy, zeros:COUNT[:TYPE] or normal:COUNT[:TYPE]. Repeatable.",
    ),
]
SignatureOpt = Annotated[
    str,
    typer.Option(
        "--signature",
        metavar="NAME=TYPE,…",
        help="Types of the arguments, such as `x=*fp16,n=i32`; by default from the files next to the code object.",
        show_default=False,
    ),
]
KernelOpt = Annotated[
    str | None, typer.Option("--kernel", metavar="NAME", help="Kernel to run, if the code object has several.")
]
ExpectOpt = Annotated[
    list[str] | None,
    typer.Option("--expect", metavar="NAME=FILE.npy", help="Compare a buffer with this array. Repeatable."),
]
AtolOpt = Annotated[float, typer.Option("--atol", min=0, help="Absolute tolerance of --expect.")]
RtolOpt = Annotated[float, typer.Option("--rtol", min=0, help="Tolerance of --expect relative to the expected number.")]
OutOpt = Annotated[Path | None, typer.Option("--out", help="Write the resulting buffers to this folder, as NAME.npy.")]
ObjdumpOpt = Annotated[
    Path | None,
    typer.Option(
        "--objdump", envvar="TOOLCHAIN_LLVM_OBJDUMP", help="The llvm-objdump that disassembles.", show_default=False
    ),
]
SeedOpt = Annotated[int, typer.Option("--seed", min=0, help="Seed of random arguments and of uninitialized registers.")]
GpuOpt = Annotated[
    str,
    typer.Option(
        "--gpu",
        metavar="GPU[:FEATURES]",
        help="GPU whose code object is read from a bundle, such as gfx942 or gfx942:xnack+.",
        show_default=False,
    ),
]
FastOpt = Annotated[
    bool, typer.Option("--fast", help="Round each matrix product once, instead of exactly as hardware does.")
]
ReverseOpt = Annotated[bool, typer.Option("--reverse", help="Run the waves of a workgroup in reverse order.")]


@translation()
def emulate(
    objects: ObjectsArg,
    grid: GridOpt = None,
    workgroup: WorkgroupOpt = None,
    arg: ArgumentOpt = None,
    signature: SignatureOpt = "",
    kernel: KernelOpt = None,
    expect: ExpectOpt = None,
    atol: AtolOpt = 0.0,
    rtol: RtolOpt = 0.0,
    out: OutOpt = None,
    seed: SeedOpt = 0,
    reverse: ReverseOpt = False,
    fast: FastOpt = False,
    gpu: GpuOpt = "",
    objdump: ObjdumpOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Run an AMD code object on the CPU, without a GPU, and compare its buffers with expected ones.

    Without --grid, list the instructions of the code objects, and those that the emulator does not support. The exit
    code is 24 if a result differs from --expect, and 27 if the kernel accesses memory outside of its buffers.
    """
    if grid is None and (workgroup or arg or out is not None or reverse or signature or kernel or expect):
        what = "--arg, --expect, --kernel, --out, --reverse, --signature and --workgroup need --grid"
        raise ConfigError("grid-missing", what, why="no kernel runs without --grid", fix="add --grid X,Y,Z")
    name, colon, features = gpu.partition(":")
    gpu = ",".join(option_values.gpus(name)) + colon + features if gpu else ""
    tool = decoder(objdump)
    with tempfile.TemporaryDirectory(prefix="toolchain-emulate-") as scratch:
        unpacked = [found for path in objects for found in _code_objects(path, gpu, Path(scratch))]
        if grid is None:
            _list(unpacked, tool, as_json=json_)
            return
        if len(unpacked) != 1:
            raise ConfigError(
                "grid-for-several",
                f"--grid needs one code object, but there are {len(unpacked)}",
                why=", ".join(name for name, _ in unpacked[:9]),
                fix="give one code object, with --gpu GPU if it is in a bundle, or omit --grid",
            )
        from toolchain_lab.emulator.exactness import APPROXIMATE, EXACT  # noqa: PLC0415 - it imports numpy
        from toolchain_lab.emulator.given import compare_with, read_expected  # noqa: PLC0415
        from toolchain_lab.emulator.launch import Launch, run  # noqa: PLC0415
        from toolchain_lab.emulator.program import Program  # noqa: PLC0415

        code = load(unpacked[0][1], kernel)
        metadata = described(objects[0], code, signature)
        if not metadata.lds_known:
            console.note(f"{metadata.lds} bytes of LDS are assumed, because there is no JSON file of {code.kernel}")
        ordered, values = _arguments(metadata, _pairs("--arg", arg or []), seed)
        parameters = {parameter.name: parameter for parameter in ordered}
        expected = _pairs("--expect", expect or [])
        if odd := sorted(name for name in expected if getattr(values.get(name), "size", 0) == 0):
            raise ConfigError(
                "unknown-buffer",
                f"--expect names {', '.join(odd)}, which is not a buffer",
                why="a buffer must be given with --arg, and must not be empty",
                fix="name a buffer that --arg gives",
            )
        wanted = {name: read_expected(parameters[name], path, values[name]) for name, path in expected.items()}
        if out is not None:
            _write(out, {})  # a folder that cannot be written is refused before the run
        program = Program.of(code, tool, exact=not fast)
        launch = Launch(
            parameters=ordered,
            values=values,
            grid=place(grid, "--grid"),
            waves=metadata.waves,
            lds=metadata.lds,
            only=[place(text, "--workgroup") for text in workgroup] if workgroup else None,
        )
        done = run(program, launch, reverse=reverse, seed=seed)
        if out is not None:
            _write(out, done.buffers)
        compared = {
            name: compare_with(parameters[name], array, done.buffers[name], atol=atol, rtol=rtol)
            for name, array in wanted.items()
        }
        document = {
            "kernel": code.kernel,
            "gpu": code.gpu,
            "decoder": tool.label,
            "instructions": done.instructions,
            "executed": dict(sorted(program.executed().items())),
            "exactness": APPROXIMATE if (approximate := program.approximate()) else EXACT,
            "approximate": approximate,
            "changed": {name: done.changed(name, values[name]) for name in done.buffers},
            "expected": {name: one.as_json() for name, one in compared.items()},
        }
        if json_:
            console.data(document)
        else:
            _show(document, {name: buffer.size for name, buffer in done.buffers.items()})
        if wrong := [f"{name}: {one}" for name, one in compared.items() if one.differing]:
            raise NumbersError(
                "wrong-numbers",
                f"the results of {code.kernel} differ from the expected ones",
                why="\n".join(wrong),
                fix="check the arguments and the tolerance; if they are right, the kernel is wrong",
            )


def _show(document: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    count, decoder_ = document["instructions"], document["decoder"]
    console.text(f"{document['kernel']} for {document['gpu']}: {count} wave instructions, decoded by {decoder_}")
    if document["approximate"]:
        console.text("  approximate: on hardware the results of these instructions may differ by")
        for name, text in document["approximate"].items():
            console.text(f"    {name}: {text}")
    else:
        console.text("  exact: every instruction rounds as documented")
    for name, changed in document["changed"].items():
        console.text(f"  {name}: {changed} of {sizes[name]} elements changed")
    for name, one in document["expected"].items():
        if not one["differing"]:
            console.text(f"  {name}: as expected, largest difference {one['largest']:.2e}")


def _code_objects(path: Path, gpu: str, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Yield the code objects of a file, with names for messages: the file itself, or the unpacked parts of a bundle.

    Args:
        gpu: the GPU whose code object is yielded, with or without features; if empty, all are yielded.

    Raises:
        ConfigError: the file has no code object for the GPU.
    """
    from toolchain_lab.examine.contents import bundled  # noqa: PLC0415 - `--help` does not need it

    targets = []
    for code in bundled(path):
        targets.append(target := code.name.rpartition("#")[2])  # the GPU with its features
        if _selects(gpu, target):
            unpacked = Path(tempfile.mkdtemp(dir=scratch), f"{path.stem}-{code.gpu}.hsaco")
            unpacked.write_bytes(code.read())
            yield f"{path}#{target}", unpacked
    if not targets:
        targets = [load(path, first=True).target if gpu else ""]
        if _selects(gpu, targets[0]):
            yield str(path), path
    if not any(_selects(gpu, target) for target in targets):
        raise ConfigError(
            "no-kernel-for-gpu",
            f"{path} has no code object for {gpu}",
            why=f"it has {', '.join(targets)}",
            fix="name one of these",
        )


def _selects(gpu: str, target: str) -> bool:
    """Return whether the value of --gpu selects a code object; `target` is its GPU with or without features."""
    return gpu in {"", target, target.partition(":")[0]}


def decoder(path: Path | None) -> Disassembler:
    """Return the disassembler; raise ConfigError if numpy is missing, and EngineError if llvm-objdump is unusable."""
    require_numpy()
    return disassembler(path)


def place(text: str, option: str) -> tuple[int, int, int]:
    """Return the three numbers in the value of an option; a missing number is 1 for a grid and 0 for a workgroup.

    ConfigError is raised unless the text is one to three numbers of at most nine digits, separated by commas.
    """
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(re.fullmatch(r"\s*\d{1,9}\s*", part) for part in parts):
        raise ConfigError("not-a-grid", f"{option} {text!r} is not X,Y,Z", fix=f"e.g. {option} 2,1,1")
    rest = [1 if option == "--grid" else 0] * (3 - len(parts))
    x, y, z = [*(int(part) for part in parts), *rest]
    return x, y, z


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return the values of a repeatable option of the form NAME=VALUE, by name."""
    texts: dict[str, str] = {}
    for pair in given:
        name, sign, text = pair.partition("=")
        if not sign:
            raise ConfigError("not-name-value", f"{option} {pair!r} has no value", fix=f"{option} NAME=VALUE")
        if name in texts:
            raise ConfigError("option-twice", f"{option} gives {name} twice", fix="remove one of them")
        texts[name] = text
    return texts


def _arguments(metadata: Metadata, texts: Mapping[str, str], seed: int) -> tuple[list[Parameter], dict[str, Any]]:
    """Return the parameters in order, and the values of the arguments by name.

    Parameters with the same name get the same value. In AITER's kernels, all padding is called `pad`.
    """
    from toolchain_lab.emulator.given import parse_argument  # noqa: PLC0415 - it imports numpy

    known = {parameter.name: parameter for parameter in metadata.parameters}
    if odd := sorted(texts.keys() - known.keys()):
        raise ConfigError(
            "unknown-argument",
            f"{metadata.kernel} has no argument {', '.join(odd)}",
            why=f"it has {', '.join(f'{name} ({one.type})' for name, one in known.items())}",
            fix="name one of these",
        )
    missing = [f"{name} ({one.type})" for name, one in known.items() if name not in texts and not one.optional]
    if missing:
        raise ConfigError(
            "arguments-missing",
            "kernel arguments are missing",
            why=", ".join(missing),
            fix="give --arg NAME=VALUE for each",
        )
    values: dict[str, Any] = {}
    for name, text in texts.items():
        known[name], values[name] = parse_argument(known[name], text, seed=seed)
    # A value may determine the element type of its pointer.
    ordered = [
        replace(one, type=known[one.name].type) if one.pointer and known[one.name].pointer else one
        for one in metadata.parameters
    ]
    return ordered, values


def _write(folder: Path, buffers: Mapping[str, Any]) -> None:
    import numpy as np  # noqa: PLC0415 - numpy is an extra

    try:
        make_named(folder)
        if odd := [name for name in buffers if "/" in name]:  # the metadata of the code object gives the names
            raise OSError(errno.EINVAL, f"the file of the buffer {odd[0]!r} would be outside of it")
        for name, buffer in buffers.items():
            with NewFile(folder / f"{name}.npy", mode=for_user(0o644)) as new:
                np.save(new.stream, buffer, allow_pickle=False)
                new.finish(flush=False)
    except OSError as error:
        raise ConfigError(
            "output-unwritable",
            f"cannot write to {folder}",
            why=error.strerror or "it cannot be written",
            fix="name another folder",
        ) from error


def _list(objects: Sequence[tuple[str, Path]], tool: Disassembler, *, as_json: bool) -> None:
    from toolchain_lab.emulator.exactness import APPROXIMATE, EXACT, UNSUPPORTED, bound  # noqa: PLC0415 - it imports numpy
    from toolchain_lab.emulator.program import Program, names  # noqa: PLC0415

    counts: Counter[str] = Counter()
    rows, refused = [], []
    for shown, path in objects:
        code = load(path, first=True)
        programs = Program.of_all(code, tool)
        unknown = [error for program in programs for error in program.unknown()]
        refused += unknown
        own = [Counter(name for line in program.lines for name in names(line)) for program in programs]
        for each in own:
            counts += each
        exact = not any(bound(name, one.target) for one, each in zip(programs, own, strict=True) for name in each)
        rows.append(
            {"object": shown, "gpu": code.gpu, "instructions": sum(each.total() for each in own),
             "unknown": len(unknown),
             "exactness": UNSUPPORTED if unknown else EXACT if exact else APPROXIMATE}
        )  # fmt: skip
    if as_json:
        console.data(
            {"decoder": tool.label, "objects": rows, "instructions": dict(counts.most_common()),
             "unknown": [translated(error).as_json() for error in refused]}
        )  # fmt: skip
    else:
        for name, count in counts.most_common():
            console.text(f"{count:>9} {name}")
        total = f"{len(counts)} names, {counts.total()} instructions, {len(refused)} unknown"
        console.text(f"{len(rows)} objects: {total}; decoded by {tool.label}")
    if refused:
        raise EmulationError(
            "instruction-not-emulated",
            f"the emulator does not support {len(refused)} instructions",
            why="\n".join(sorted({error.what for error in refused})),
            fix="report them with the code object",
        )
