"""`inspect` of a Triton wheel: the LLVMs in it, and whether they are the pinned ones."""

from __future__ import annotations

from collections.abc import Iterator

from toolchain import console
from toolchain.cache import Cache, default_cache
from toolchain.errors import ConfigError, PinError
from toolchain.stages.wheel_llvm import Library, WheelLlvm, read_wheel, repository_inside, wheel_named

_WORDS = {
    "pinned": "as pinned",
    "other": "NOT the pinned one",
    "contradictory": "CONTRADICTS itself",
    "missing": "MISSING",
    "untold": "no text tells",
    "no pin": "no pin on record",
}


def inspect_wheel(ref: str, *, use: bool, json_: bool) -> None:
    """Print what a wheel tells.

    Raises:
        PinError: an LLVM in it is not the one on record for this Triton, is missing, or contradicts itself.
    """
    if use:
        raise ConfigError("--use is for images", why=f"{ref} is a wheel", fix=f"toolchain inspect {ref}")
    with wheel_named(ref, Cache(default_cache().absolute())) as path:
        wheel = read_wheel(path)
    if json_:
        console.data({"images": [], "wheels": [wheel.as_json()]})
    else:
        for line in _lines(wheel):
            console.text(line)
    if wheel.wrong:
        raise PinError(
            f"{wheel.file} is not built with the LLVM on record for Triton {wheel.version}",
            why="; ".join(_fault(one) for one in wheel.wrong),
            fix="do not count it as that Triton; `toolchain pins` shows what is on record",
        )


def _fault(library: Library) -> str:
    where = library.file or f"the library for {library.part}"
    if library.verdict == "missing":
        return f"{where} is missing, which is pinned to {library.pin}"
    if library.verdict == "contradictory":
        told = dict.fromkeys(f"{text.revision} ({text.kind})" for text in library.told if text.kind != "compiler")
        return f"{where} tells of several: {', '.join(told)}"
    return f"{where} holds {library.revision}, pinned is {library.pin}"


def _lines(wheel: WheelLlvm) -> Iterator[str]:
    yield f"{wheel.file}  {wheel.sha256}  {console.size(wheel.bytes)}"
    yield f"  {wheel.project or 'no project'} {wheel.version or 'of no version'}  {wheel.tag}".rstrip()
    if not any(library.part == "core" for library in wheel.libraries):
        yield "  no libtriton in it"
    for library in wheel.libraries:
        if library.verdict == "not pinned":
            for told in library.told:
                yield f"  {library.file}: made by clang {told.version}, {told.repository} {told.revision}"
            continue
        sure = f" ({library.certainty})" if library.verdict == "pinned" else ""
        yield f"  {library.part}  {library.revision or '-'}  {_WORDS[library.verdict]}{sure}"
        if library.file:
            yield f"    {library.file}"
        if library.verdict in {"other", "missing"}:
            yield f"    pinned: {library.pin}"
        if library.also:
            yield f"    the LLVM of {', '.join(library.also)}"
        if repository := repository_inside(library):
            yield f"    from {repository}"
        for told in library.told:
            build = "" if told.build is None else f"-{told.build}"
            yield f"    {told.kind:<11}  {told.revision}{build}  {told.version}".rstrip()
