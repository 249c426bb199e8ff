"""Make docs/compatibility.md and docs/costs.md from the data files, the errors that the code raises, and recorded tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

from toolchain.catalog.aotriton_generations import generation_of
from toolchain.catalog.architectures import MACHINES
from toolchain.catalog.components import LlvmRequirements, check_generation, needs_for
from toolchain.catalog.costs import costs
from toolchain.catalog.floors import load_floors
from toolchain.catalog.pythons import load_pythons
from toolchain.catalog.release_data import aotriton_releases, is_commit, numbers, require, triton_releases
from toolchain.catalog.releases import triton_release
from toolchain.catalog.rocm import rocms
from toolchain.catalog.stages import STAGES
from toolchain.catalog.tried import Tried, tried
from toolchain.catalog.wheel_rows import wheel_rows
from toolchain.core.errors import ToolchainError, UnsupportedError
from toolchain.data import load
from toolchain.engine.resources import MEMORY
from toolchain.request.model import DEFAULT_GLIBC
from toolchain.sources.distro import known_packages
from toolchain.stages.aotriton import _DISK as AOTRITON_DISK
from toolchain.stages.base import _DISK as BASE_DISK
from toolchain.stages.codegen_library import _DISK as CODEGEN_DISK
from toolchain.stages.codegen_llvm import _DISK as CODEGEN_LLVM_DISK
from toolchain.stages.llvm_subset import DISTRIBUTION, subset_of
from toolchain.stages.triton import cross_machines
from toolchain.stages.triton_source import _DISK as TRITON_DISK
from toolchain.stages.wheel import _DISK as WHEEL_DISK

MADE = "<!-- Made by `python -m scripts.site_pages` from the data. Do not edit this page. -->\n"
_UNTRIED = "untried"
_REFUSED_7 = "[refused: 7](exit-codes.md)"
TOP = Path(__file__).resolve().parents[1]


def tested(row: Tried) -> str:
    """Return the table cell for a tested combination, with a link to its figures."""
    link = f"[**tested**]({measured(row.section)})"
    return f"{link}: {row.part}" if row.part else link


def anchor(heading: str) -> str:
    """Return the anchor that the site and GitHub make for a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def measured(section: str) -> str:
    """Return the address of a section of docs/measurements/, relative to docs/."""
    return f"measurements/{sections()[section]}#{anchor(section)}"


@cache
def sections() -> dict[str, str]:
    """Return the file names of the pages in docs/measurements/, by the headings that they contain."""
    pages = sorted((TOP / "docs" / "measurements").glob("*.md"))
    return {
        heading: page.name
        for page in pages
        for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }


def _tested(what: str, of: str, column: str) -> str:
    return next((tested(row) for row in tried() if (row.what, row.of, row.as_) == (what, of, column)), "")


def refused(error: ToolchainError) -> str:
    """Return the table cell for a combination that the code refuses."""
    return f"[refused: {error.code}](exit-codes.md), {error.what}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def grouped(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return the rows, after merging neighbours that differ only in their first cell."""
    return [
        [", ".join(row[0] for row in same), *rest]
        for rest, same in ((list(rest), list(same)) for rest, same in groupby(rows, key=lambda row: list(row[1:])))
    ]


def compatibility() -> str:
    """Return the content of docs/compatibility.md."""
    return "\n".join([
        "# Compatibility\n",
        MADE,
        ("**tested**: it was built and run; the link has the figures, and the text says which part. **refused** has the exit code, or the reason."
        " **untried**: it was never built. `plan` prints the same in its first line and refuses too, except where only the fetched"
        " tree decides.\n"),
        "## Triton: its LLVM and its wheels\n",
        ("A wheel is built for each `--python`, on the portable layer (glibc 2.31); the last column is for `--base debian13`."
        " Every wheel compiles for AMD; for NVIDIA it needs `--allow-binary libdevice`.\n"),
        _tritons(),
        ("Wheels on the portable layer were only built on an LLVM that is not Triton's pin: the table below."
        " Pythons outside of the tree's `python_requires` are refused with 7: by `plan` for a local tree, otherwise right after"
        " the fetch; with `--reuse-from` only when Triton is built.\n"),
        ("3.8.0+rhaiv.1 is a Triton of Red Hat. Only its LLVM is known, so its wheels need `--source triton=` with a"
        " checkout or `URL@COMMIT`.\n"),
        ("`--python` must include the base's own Python, 3.13 of `debian13`: `--python 3.11,3.13`. With the stable ABI, from 3.9.0"
        " on, 3.13's wheel is `cp312-abi3` and works with 3.12 and later; 3.11 gets a separate wheel.\n"),
        "Also tested:\n",
        _others(),
        "## Triton on a release of LLVM\n",
        ("Triton pins a commit between two releases of LLVM. The table has the releases themselves, as listed by"
        " `toolchain pins --distro`, most of them with [edits](building.md#triton). Every other LLVM is refused with"
        " [7](exit-codes.md), as too old or too new. Tritons without a version are commits near the branch point of an LLVM.\n"),
        _pairs(),
        "## glibc: where a layer is linked and run\n",
        ("A layer or wheel works on systems whose glibc is at least as new as its floor. On older ones the layer's check"
        " fails, and pip refuses the wheel.\n"),
        _systems(),
        "## ROCm: where AOTriton's library is loaded\n",
        ("Without `--base`, AOTriton's library is linked for ROCm 6 and 7, or for those that `--rocm` names. With your own"
        " [base](bases.md) it is linked for the HIP of that image; such a library was last built on 23 November 2026. The library for"
        " a ROCm needs that ROCm's `libamdhip64`, and glibc 2.31 or newer. **tested** means that a program with it"
        " was started there and requested a kernel, of a 0.13b with head sizes cut to 64. There was no GPU, so no AMD code object was"
        " run. Where HIP's real library needs a newer system, the stub took its place.\n"),
        _rocms(),
        "## AOTriton releases\n",
        _aotritons(),
        "## Architectures\n",
        _architectures(),
    ])  # fmt: skip


def _line(version: str) -> tuple[int, ...]:
    return numbers(version)[:2]


def _wheel(version: str, python: str) -> str:
    row: dict[str, str] = next((one for one in load("tried")["python"] if one["version"] == python), {})
    if _line(version) > _line(row.get("last", "99.0")):
        return _REFUSED_7
    if _line(version) < _line(row.get("first", "0.0")):
        return "the tree decides"
    return _UNTRIED


def _tritons() -> str:
    pythons = list(load_pythons())
    rows = []
    for one in triton_releases():
        if not one.version:
            continue
        try:
            llvm = triton_release(one.version).pin.commit
            needs_for(one.version)
        except ToolchainError as error:
            row = _all_refused(one.version, error, len(pythons) + 3)
            # `build` refuses a Triton without the two backends first, whatever its LLVM is.
            rows.append(row if one.backends else [*row[:4], *[_REFUSED_7] * (len(pythons) + 1)])
            continue
        # For a version that upstream does not have, only the LLVM is known.
        named = one.commit or one.tag
        wheels = [_wheel(one.version, python) if named else "needs its source" for python in pythons]
        if not one.backends:
            wheels = [_REFUSED_7] * len(pythons)
        further = "".join(f"; {pin.target} `{pin.llvm[:8]}` {pin.certainty}" for pin in one.codegen)
        # Only the portable recipe builds a Triton that has an LLVM for a GPU, so the wheel of debian13 is refused.
        last = _REFUSED_7 if one.codegen else wheels[-1]
        rows.append([one.version, f"`{llvm[:8]}` {one.certainty}{further}", _UNTRIED, _UNTRIED, *wheels, last])
    head = ["Triton", "LLVM, and how surely", "layer for glibc 2.31", "layer for debian13"]
    return table([*head, *(f"wheel, Python {one}" for one in pythons), "wheel of debian13 (3.13)"], grouped(rows))


def _needs(triton: str) -> LlvmRequirements | None:
    try:
        return needs_for(triton)
    except ToolchainError:
        return None


def _pairs() -> str:
    stem = "llvm-toolchain-"
    llvms = {int(row.name.removeprefix(stem)): row.version for row in known_packages() if row.name.startswith(stem)}
    built = [row for row in tried() if row.what == "wheel" and row.llvm]
    versions = [row.version for row in triton_releases() if row.version and "+" not in row.version]
    rows = []
    for named in (*dict.fromkeys(row.of for row in built), *versions):
        needs = _needs(named)
        if needs is None and not is_commit(named):
            continue
        cells = []
        old = any(row.version == named and not row.backends for row in triton_releases())
        for number in sorted(llvms):
            done = [row for row in built if (row.of, row.llvm) == (named, llvms[number])]
            try:
                if old:
                    raise UnsupportedError("triton-too-old", "older than the two backends")
                if needs is not None:
                    check_generation(needs, number, where="it")
            except ToolchainError:
                cells.append("refused: older than the two backends" if old else "refused")
            else:
                otherwise = _UNTRIED if needs is not None else "the tree decides"
                cells.append("<br>".join(f"{row.as_}: {tested(row)}" for row in done) or otherwise)
        rows.append([f"`{named[:12]}`" if is_commit(named) else named, *cells])
    return table(["Triton", *(f"LLVM {llvms[number]}" for number in sorted(llvms))], grouped(rows))


def _all_refused(version: str, error: ToolchainError, cells: int) -> list[str]:
    why = error.what.removeprefix(f"Triton {version}").removeprefix(":").strip()
    return [version, why, *[f"[refused: {error.code}](exit-codes.md)"] * cells]


def _others() -> str:
    rows = []
    released = {one.commit for one in aotriton_releases()}  # these have a separate table
    names = {"llvm": "LLVM", "kernels": "FlashAttention kernels by Triton", "aotriton": "AOTriton"}
    for one in tried():
        if one.what in names and one.as_ in {"debian13", "glibc 2.31"} and one.of not in released:
            rows.append(
                [
                    f"{names[one.what]} {one.of[:12]}" + (f" on LLVM {one.llvm}" if one.llvm else ""),
                    one.as_,
                    tested(one),
                ]
            )
    return table(["what", "on or for", "result"], grouped(rows))


def _systems() -> str:
    floors = load_floors()
    base = "2.41"
    rows = []
    for one in load("tried")["system"]:
        cells = []
        for floor, column in (*((floor, f"glibc {floor}") for floor in floors), (base, "debian13")):
            tested = _tested("consumer", one["name"], column)
            if floor in floors and not floors[floor].tested:
                cells.append(_REFUSED_7)
            else:
                cells.append(tested or (_UNTRIED if _line(one["glibc"]) >= _line(floor) else "refused: older"))
        rows.append([one["glibc"], f"{one['name']} ({one['glibc']})", *cells])
    named = [row[1:] for row in sorted(rows, key=lambda row: _line(row[0]))]
    return table(["system (glibc)", *(f"`--glibc {floor}`" for floor in floors), "`--base debian13`"], grouped(named))


def _rocms() -> str:
    done = {(row.of, row.as_): tested(row) for row in tried() if row.what == "rocm"}
    systems = {one["name"]: one["glibc"] for one in load("tried")["system"]} | {
        one["name"]: one["glibc"] for one in load("tried")["rocm_system"]
    }
    rows = [
        [
            f"{name} ({glibc})",
            *(
                "older" if _line(glibc) < _line(DEFAULT_GLIBC) else done.get((one.major, name), _UNTRIED)
                for one in rocms()
            ),
        ]
        for name, glibc in sorted(systems.items(), key=lambda one: _line(one[1]))
    ]
    return table(["system (glibc)", *(f"`--rocm {one.major}`, {one.soname}" for one in rocms())], grouped(rows))


def _aotritons() -> str:
    rows = []
    for one in aotriton_releases():
        generation = generation_of(one.name)
        same = [
            " ".join(pack for pack, gpus in generation.packs.items() if set(gpus) & set(one.gpus)) or "in the library",
            f"`{generation.python}`",
        ]
        if generation.refused:
            pins = [f"`{text[:8]}`" if text else "unknown" for text in (one.triton, one.llvm)]
            rows.append([one.name, *pins, *same, f"{_REFUSED_7}: {generation.refused}"])
            continue
        try:
            require(one, "commit", "triton")
        except ToolchainError as error:
            rows.append(
                [one.name, f"`{one.triton[:8]}`" if one.triton else "unknown", "unknown", *same, refused(error)]
            )
            continue
        built = _tested("aotriton", one.commit, "glibc 2.31") or _UNTRIED
        llvm = f"`{one.llvm[:8]}` {one.certainty}" if one.llvm else "unknown"
        rows.append([one.name, f"`{one.triton[:8]}`", llvm, *same, built])
    text = "An *inferred* LLVM is used with a warning, and the build stops after the fetch if the tree pins another one. An"
    text += " *unknown* one is read from `cmake/llvm-hash.txt` of the release's Triton, which `build` fetches first. If"
    text += " Triton's or AOTriton's commit is unknown too, name `--source triton=` and `--source aotriton=`."
    text += (
        " Since 0.14 some kernels are made by a compiler other than Triton and must be left out: `--without flydsl`,"
    )
    text += f" otherwise [7](exit-codes.md). One commit near 0.14 was tested. Of some releases [parts]({measured('AOTriton releases')})"
    text += " were built with other Tritons; none was built with its own.\n\n"
    return text + table(
        ["AOTriton", "Triton", "LLVM", "image packs", "Pythons of upstream's build", "built"], grouped(rows)
    )


def _architectures() -> str:
    from toolchain.cli.build_options import make_request  # noqa: PLC0415 - only this table needs the command line

    cross = cross_machines(make_request())
    rows = []
    for arch in MACHINES:
        cells = []
        for stage in STAGES:
            if arch == "amd64":
                cells.append("yes")
            elif stage.name == "llvm":
                cells.append(_tested("llvm", "22.1.8", arch))
            elif stage.name == "base":
                cells.append("made on that machine")
            elif not stage.machines or (stage.cross and arch in cross):
                as_ = {"triton": "wheel"}.get(stage.name, stage.name)
                cells.append(next((tested(one) for one in tried() if (one.what, one.as_) == (as_, arch)), _UNTRIED))
            else:
                cells.append(_REFUSED_7)
        rows.append([arch, *cells])
    text = "`--arch`, on an amd64 machine. For amd64 the tables above hold."
    return f"{text}\n\n" + table(["architecture", *(stage.name for stage in STAGES)], rows)


def room_told(room: int | None) -> str:
    """Return how much disk space must be free, such as `14 GB`, or `not asked` if the tool does not check it."""
    if not room:
        return "not asked"
    return f"{room / 1e9:.0f} GB" if room >= 1e9 else f"{room / 1e6:.0f} MB"


def what_it_takes() -> str:
    """Return the content of docs/costs.md."""
    disk = {
        "base": BASE_DISK,
        "llvm-codegen": CODEGEN_LLVM_DISK,
        "codegen": CODEGEN_DISK,
        "triton": TRITON_DISK,
        "aotriton": AOTRITON_DISK,
        "wheel": WHEEL_DISK,
    }
    needs = needs_for("3.7")
    parts = {"distribution": "", "wheel": " (the index's wheel)"}
    wheels = "`, `".join((*(row.name for row in wheel_rows()), "wheels"))
    # AMDGPU is the only target with an LLVM of its own.
    names = {"llvm-codegen": "llvm-amdgpu", "codegen": "codegen-amdgpu", "wheel": wheels}
    counts = (2, 4, 8, 32)
    rows = []
    for one in costs():
        name = f"`{names.get(one.stage, one.stage)}`" + parts.get(
            one.part, f", `--only {one.part}`" if one.part else ""
        )
        # A build that uses the wheel from the package index does not need the disk space for compiling Triton.
        room = None if one.part == "wheel" else disk.get(one.stage)
        if one.stage == "llvm":
            room = subset_of(one.part or DISTRIBUTION, needs).disk
        memory = f"{MEMORY[one.job] / 1e9:.1f} GB per {one.job}" if one.job else "little"
        output = f"{one.output[0]} / {one.output[1]} MB" if one.output else "not measured"
        source = one.source if one.source.startswith("not") else f"[{one.source}]({measured(one.source)})"
        times = [
            one.time_for(count) if one.cores or count == counts[0] or one.kernel else "the same" for count in counts
        ]
        rows.append([name, *times, memory, room_told(room), output, source])
    head = [
        "stage",
        *(f"{count} cores" for count in counts),
        "memory",
        "disk while built",
        "layer packed / on disk",
        "from",
    ]
    return "\n".join([
        "# Hours, memory and disk\n",
        MADE,
        ("Two cores were measured. The other columns are calculated: compile time scales with cores, unpacking does not."
        " `toolchain plan STAGE` prints the same for this machine, and `--json` has it as `takes`.\n"),
        table(head, rows),
        ("- The number of jobs follows from cores and memory; `--jobs` sets it, as far as memory allows.\n"
        "- Disk is what must be free before a stage is begun; a build with less ends at once with"
        " [exit code 9](exit-codes.md). Most of that room is free again when the stage is done. Have 17 GB free for LLVM: 14 while"
        " it builds, 3 for base and sources.\n"
        "- The compiler cache of one build is part of that room. It stays for the next build, and grows to 20 GB at most.\n"
        "- Memory is what the number of jobs is counted with: 5.4 GB for each link, 1.6 GB for each compile or kernel. It is a"
        " reserve, not a measurement: a worker of flash-attn took 262 MB at most.\n"
        "- Triton 3.9 and later: add the stages `llvm-amdgpu` and `codegen-amdgpu`.\n"
        "- A whole GPU of AOTriton 0.10 to 0.13 has 14,485 to 23,883 kernels (gfx1250 of 0.13.50tp has 1,715), as far as upstream's generator was counted. The 19,001 of gfx942 near 0.14"
        f" [took 4 h 13 min]({measured('A whole gfx942')}) on two cores, with other load.\n"),
        "## What is brought in\n",
        table(["what", "size"], [
            ["base packages of debian13", "198 MB packed, 0.8 GB on disk"],
            ["the portable floor (sysroot)", "123 MB on disk"],
            ["LLVM 22.1.8 of the distribution, `distro:llvm-toolchain-22`", "197 MB"],
            ["LLVM by git, one commit at depth 1", "hundreds of MB, not measured"],
            ["a wheel of Triton (`inspect pypi:triton==3.9.0`, `--source triton=pypi:3.9.0`)", "286 MB"],
        ]),
    ])  # fmt: skip
