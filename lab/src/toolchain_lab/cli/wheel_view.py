"""`inspect` of a Triton wheel: list the LLVMs in it, and compare them with the pins."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain.core import console
from toolchain.core.cache import Cache
from toolchain.core.errors import ConfigError, PinError
from toolchain_lab.examine.wheel_llvm import Library, WheelLlvm, read_wheel, repository_inside, wheel_named

_WORDS = {
    "pinned": "as pinned",
    "other": "NOT the pinned revision",
    "contradictory": "CONTRADICTORY",
    "missing": "MISSING",
    "untold": "revision not found",
    "no pin": "no known pin",
}


def inspect_wheel(ref: str, cache: Cache, *, use: bool, json_: bool) -> None:
    """Print the LLVMs in a Triton wheel, and compare them with the pins.

    PinError is raised if an LLVM is missing from the wheel, if several revisions are named for one LLVM, or if an LLVM
    differs from the pin for this Triton. ConfigError is raised if `use` is set.
    """
    if use:
        raise ConfigError(
            "option-not-for-wheel", "--use is for images", why=f"{ref} is a wheel", fix=f"toolchain inspect {ref}"
        )
    with wheel_named(ref, cache) as path:
        wheel = read_wheel(path)
    if json_:
        console.data({"images": [], "wheels": [wheel.as_json()]})
    else:
        for line in _lines(wheel):
            console.text(line)
    if wheel.wrong:
        raise PinError(
            "wheel-other-llvm",
            f"{wheel.file} is not built with the LLVM that Triton {wheel.version} pins",
            why="; ".join(_fault(library) for library in wheel.wrong),
            fix="do not use this wheel; `toolchain pins` lists the pins",
        )


def _fault(library: Library) -> str:
    where = library.file or f"the library for {library.part}"
    if library.verdict == "missing":
        return f"{where} is missing (pinned to {library.pin})"
    if library.verdict == "contradictory":
        revisions = dict.fromkeys(f"{text.revision} ({text.kind})" for text in library.told if text.kind != "compiler")
        return f"{where} names several revisions: {', '.join(revisions)}"
    if not library.revision:
        return f"{where} contains LLVM {library.llvm_version}, and Triton pins LLVM {library.pin_version}"
    return f"{where} contains {library.revision}, and the pin is {library.pin}"


def _lines(wheel: WheelLlvm) -> Iterator[str]:
    yield f"{wheel.file}  {wheel.sha256}  {console.size(wheel.bytes)}"
    yield f"  {wheel.project or 'unknown project'} {wheel.version or 'without version'}  {wheel.tag}".rstrip()
    if not any(library.part == "core" for library in wheel.libraries):
        yield "  contains no libtriton"
    for library in wheel.libraries:
        if library.verdict == "not pinned":
            for told in library.told:
                yield f"  {library.file}: compiled by clang {told.version}, {told.repository} {told.revision}"
            continue
        sure = f" ({library.certainty})" if library.verdict == "pinned" else ""
        found = library.revision or (library.llvm_version and f"LLVM {library.llvm_version}") or "-"
        yield f"  {library.part}  {found}  {_WORDS[library.verdict]}{sure}"
        if library.file:
            yield f"    {library.file}"
        if library.verdict in {"other", "missing"}:
            yield f"    pinned: {library.pin or f'LLVM {library.pin_version}'}"
        if library.also:
            yield f"    also the LLVM of {', '.join(library.also)}"
        if repository := repository_inside(library):
            yield f"    from {repository}"
        for told in library.told:
            build = "" if told.build is None else f"-{told.build}"
            yield f"    {told.kind:<11}  {told.revision}{build}  {told.version}".rstrip()
