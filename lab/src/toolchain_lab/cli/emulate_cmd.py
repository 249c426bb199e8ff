"""`emulate`: run an AMD code object on the CPU, or list its instructions."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolchain.cli import options as o
from toolchain.core import console
from toolchain.core.errors import ConfigError, EmulationError
from toolchain_lab.bridge import disassembler, load, read_metadata, require_numpy, translated, translation

if TYPE_CHECKING:
    from toolchain_lab.emulator.disassembly import Disassembler
    from toolchain_lab.emulator.metadata import Metadata

ObjectsArg = Annotated[
    list[Path], typer.Argument(metavar="FILE.hsaco…", help="Code objects, each with its JSON beside it.")
]
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
        help="Kernel argument: a number, null, FILE.npy, zeros:COUNT or normal:COUNT. Repeatable.",
    ),
]
OutOpt = Annotated[Path | None, typer.Option("--out", help="Write the resulting buffers to this folder, as NAME.npy.")]
ObjdumpOpt = Annotated[
    Path | None,
    typer.Option("--objdump", envvar="TOOLCHAIN_LLVM_OBJDUMP", help="llvm-objdump to decode with.", show_default=False),
]
SeedOpt = Annotated[int, typer.Option("--seed", min=0, help="Seed of random arguments and of uninitialized registers.")]
GpuOpt = Annotated[
    str,
    typer.Option("--gpu", metavar="GPU", help="Of a bundle, the code object for this GPU.", show_default=False),
]
ReverseOpt = Annotated[bool, typer.Option("--reverse", help="Run the waves of a workgroup in reverse order.")]


@translation()
def emulate(
    objects: ObjectsArg,
    grid: GridOpt = None,
    workgroup: WorkgroupOpt = None,
    arg: ArgumentOpt = None,
    out: OutOpt = None,
    seed: SeedOpt = 0,
    reverse: ReverseOpt = False,
    gpu: GpuOpt = "",
    objdump: ObjdumpOpt = None,
    json_: o.JsonOpt = False,
) -> None:
    """Run an AMD code object on the CPU, without a GPU. Results are not checked; `kernels check` does that.

    Without --grid, list the instructions of the code objects, and those that the emulator does not support.
    """
    if grid is None and (workgroup or arg or out is not None or reverse):
        what = "--arg, --out, --reverse and --workgroup need --grid"
        raise ConfigError(what, why="without it no kernel runs", fix="add --grid X,Y,Z")
    tool = decoder(objdump)
    with tempfile.TemporaryDirectory(prefix="toolchain-emulate-") as scratch:
        unpacked = [found for path in objects for found in _code_objects(path, gpu, Path(scratch))]
        if grid is None:
            _list(unpacked, tool, as_json=json_)
            return
        if len(unpacked) != 1:
            raise ConfigError(
                f"--grid with {len(unpacked)} code objects",
                why=", ".join(name for name, _ in unpacked[:9]),
                fix="give one, with --gpu GPU if it is a bundle; or leave --grid out",
            )
        from toolchain_lab.emulator.launch import Launch, run  # noqa: PLC0415 - numpy, for a verb that runs
        from toolchain_lab.emulator.metadata import check_metadata  # noqa: PLC0415
        from toolchain_lab.emulator.program import Program  # noqa: PLC0415

        metadata = read_metadata(objects[0])
        code = load(unpacked[0][1], metadata.kernel)
        check_metadata(code, metadata)
        program = Program.of(code, tool)
        launch = Launch(
            parameters=metadata.parameters,
            values=_arguments(metadata, arg or [], seed),
            grid=place(grid, "--grid"),
            waves=metadata.waves,
            lds=metadata.lds,
            only=[place(text, "--workgroup") for text in workgroup] if workgroup else None,
        )
        done = run(program, launch, reverse=reverse, seed=seed)
        changed = {name: int((buffer != launch.values[name]).sum()) for name, buffer in done.buffers.items()}
        if out is not None:
            _write(out, done.buffers)
        document = {
            "kernel": code.kernel,
            "gpu": code.gpu,
            "decoder": tool.label,
            "instructions": done.instructions,
            "executed": dict(sorted(program.executed().items())),
            "changed": changed,
        }
        if json_:
            console.data(document)
            return
        console.text(f"{code.kernel} for {code.gpu}: {done.instructions} wave instructions, decoded by {tool.label}")
        for name, count in changed.items():
            console.text(f"  {name}: {count} of {done.buffers[name].size} elements changed")


def _code_objects(path: Path, gpu: str, scratch: Path) -> Iterator[tuple[str, Path]]:
    """The code objects of a file, with names for messages: the file itself, or those of a bundle in a folder.

    Raises:
        ConfigError: the bundle has none for this GPU.
        KernelError: the bundle is damaged, or cannot be unpacked here.
    """
    from toolchain_lab.examine.contents import bundled  # noqa: PLC0415 - for a verb that runs

    names = []
    for code in bundled(path):
        names.append(code.gpu)
        if gpu in {"", code.gpu}:
            unpacked = Path(tempfile.mkdtemp(dir=scratch), f"{path.stem}-{code.gpu}.hsaco")
            unpacked.write_bytes(code.read())
            yield f"{path}#{code.gpu}", unpacked
    if not names:
        yield str(path), path
    elif gpu and gpu not in names:
        raise ConfigError(
            f"{path} has no code object for {gpu}", why=f"it has {', '.join(names)}", fix="name one of these"
        )


def decoder(path: Path | None) -> Disassembler:
    """The disassembler; also checks that numpy is installed.

    Raises:
        ConfigError: numpy is not installed.
        EngineError: there is no suitable disassembler.
    """
    require_numpy()
    return disassembler(path)


def place(text: str, option: str) -> tuple[int, int, int]:
    """Three numbers; missing ones have the default of CUDA and HIP.

    Raises:
        ConfigError: the text is not X,Y,Z.
    """
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(re.fullmatch(r"\s*\d{1,9}\s*", part) for part in parts):
        raise ConfigError(f"{option} {text!r} is not X,Y,Z", fix=f"e.g. {option} 2,1,1")
    rest = [1 if option == "--grid" else 0] * (3 - len(parts))
    x, y, z = [*(int(part) for part in parts), *rest]
    return x, y, z


def _arguments(metadata: Metadata, given: Sequence[str], seed: int) -> dict[str, Any]:
    from toolchain_lab.emulator.given import parse_argument  # noqa: PLC0415 - numpy

    texts: dict[str, str] = {}
    for pair in given:
        name, sign, text = pair.partition("=")
        if not sign:
            raise ConfigError(f"--arg {pair!r} has no value", fix="--arg NAME=VALUE")
        if name in texts:
            raise ConfigError(f"--arg gives {name} twice", fix="leave one of them out")
        texts[name] = text
    known = {parameter.name: parameter for parameter in metadata.parameters}
    if odd := sorted(texts.keys() - known.keys()):
        raise ConfigError(
            f"{metadata.kernel} has no argument {', '.join(odd)}",
            why=f"it has {', '.join(known)}",
            fix="name one of these",
        )
    if missing := [f"{name} ({known[name].type})" for name in known if name not in texts]:
        raise ConfigError("missing kernel arguments", why=", ".join(missing), fix="--arg NAME=VALUE for each")
    return {name: parse_argument(known[name], text, seed=seed) for name, text in texts.items()}


def _write(folder: Path, buffers: Mapping[str, Any]) -> None:
    import numpy as np  # noqa: PLC0415 - an extra

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, buffer in buffers.items():
            np.save(folder / f"{name}.npy", buffer, allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}", why=str(error), fix="name another folder") from error


def _list(objects: Sequence[tuple[str, Path]], tool: Disassembler, *, as_json: bool) -> None:
    from toolchain_lab.emulator.program import Program, names  # noqa: PLC0415 - numpy

    counts: Counter[str] = Counter()
    rows, refused = [], []
    for shown, path in objects:
        program = Program.of(load(path), tool)
        unknown = program.unknown()
        refused += unknown
        own = Counter(name for line in program.lines for name in names(line))
        counts += own
        rows.append({"object": shown, "gpu": program.code.gpu, "instructions": own.total(), "unknown": len(unknown)})
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
            f"the emulator does not support {len(refused)} instructions",
            why="\n".join(sorted({error.what for error in refused})),
            fix="report them with the code object",
        )
