"""The LLVM commits in the pin files of a Triton checkout."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolchain.catalog.codegen import Codegen, codegen_named, codegens
from toolchain.catalog.release_data import REPOSITORY, CodegenPin, LlvmPin, is_commit
from toolchain.catalog.releases import repository_of
from toolchain.core import strict_json
from toolchain.core.errors import DocumentError, PinError, UnsupportedError
from toolchain.core.filesystem import read_regular

UPSTREAM = "llvm/llvm-project"
_PUT = "give a pin file, a folder with one, or a checkout; or restore the file"
AOTRITON_SUBMODULE = "third_party/triton"
MAX_SETUP_BYTES = 1 << 20
MAX_PIN_BYTES = 64 << 10

# A pin file may name the repository of the commit under one of these keys, as owner/name or as a GitHub URL.
_REPOSITORY_KEYS = ("repository", "llvm_repository")
_KEYS = dict.fromkeys(("llvm_hash", "build_number", *_REPOSITORY_KEYS))
_CONFLICT = re.compile(r"^(<<<<<<<|=======$|>>>>>>>)", re.MULTILINE)
_NAMES = tuple(f"{stem}{end}" for stem in ("llvm-hash", "llvm-info") for end in (".txt", ".json", ""))
# This matches the names of files that pin an LLVM other than the main one, or whose commit may be newer than the pin.
_OTHER = re.compile(r"(amd|nvidia)-.*|.*build-info.*")
# This matches the names of the pin files and build-info files of the LLVMs that generate code for GPUs.
_CODEGEN = re.compile(r"(.+)-llvm-(build-)?info\.json")


@dataclass(frozen=True)
class _PinFile:
    """A parsed pin file; `content` is empty if the file is not JSON."""

    file: Path
    commit: str
    content: Mapping[str, Any]

    @property
    def repository(self) -> str:
        """Return the repository that the file names, as `owner/name`; an empty string if it names none.

        Raise a PinError if the file names two repositories, or an invalid one.
        """
        named = {key: _repository(self.content[key], self.file) for key in _REPOSITORY_KEYS if key in self.content}
        if len(set(named.values())) > 1:
            raise PinError(
                "pin-two-repositories",
                f"{self.file} names two repositories",
                why="; ".join(f"{key} is {name}" for key, name in named.items()),
                fix="choose one of them with --source llvm=URL@COMMIT",
            )
        return next(iter(named.values()), "")


def read_pin(path: Path) -> LlvmPin:
    """Return the LLVM pin in a pin file, in a folder of pin files, or in a Triton checkout.

    The pin files of a checkout are in `cmake/` or at its top. `llvm-build-info.json` may be newer than the pin, so only
    its `repository` is used, and only if it names the pinned commit. Raise a PinError if there is no valid pin, or if
    the pin files name different commits or repositories, and a DocumentError if `strict_json.read` refuses a file.
    """
    if path.is_dir():
        files = pin_files(path)
        if not files:
            if (path / "include" / "aotriton").is_dir():
                raise PinError(
                    "pin-of-aotriton",
                    f"{path} is a checkout of AOTriton, which pins no LLVM itself",
                    why="the LLVM is pinned by its submodule third_party/triton",
                    fix=f"check out the submodule and give its path: {path / AOTRITON_SUBMODULE}",
                )
            if (named := named_in_setup(path)) is not None:
                raise PinError(
                    "triton-without-pin-file",
                    f"this Triton has no pin file: its setup.py names {named}",
                    why="that is not a full commit, and the archive with that name contains a build and no sources",
                    fix="give the LLVM: --source llvm=URL@COMMIT with all 40 digits, or "
                    "--source llvm=distro:llvm-toolchain-17",
                )
            raise PinError(
                "pin-not-found",
                f"no LLVM pin in {path}",
                why="neither the folder nor its cmake/ has a file llvm-hash.txt or llvm-info.json",
                fix="give a pin file or a Triton checkout",
            )
    else:
        files = [path]
        if _OTHER.fullmatch(path.name):
            raise PinError(
                "pin-of-other-part",
                f"{path} does not contain the pin of Triton's LLVM",
                why="it names the LLVM of another part of Triton, or of a build that may be newer than the pin",
                fix="give llvm-hash.txt or llvm-info.json",
            )
    pins = [_parsed(file) for file in files]
    if len({pin.commit for pin in pins}) > 1:
        raise PinError(
            "pins-contradict",
            f"the pins in {path} contradict each other",
            why="; ".join(f"{pin.file} says {pin.commit}" for pin in pins),
            fix="remove the outdated file, or give the right one",
        )
    repository, warnings, known = _find_repository(pins)
    return LlvmPin(
        commit=pins[0].commit,
        repository=repository,
        origin=str(pins[0].file),
        certainty="verified" if known else "inferred",
        warnings=tuple(warnings),
    )


@dataclass(frozen=True)
class NamedInSetup:
    """The LLVM that the setup.py of an old Triton names.

    Args:
        version: the version, such as `17.0.0`; empty if only a commit is named.
        commit: the first 8 to 40 digits of the commit; empty if only a version is named.
    """

    version: str
    commit: str

    def __str__(self) -> str:
        """Return text for messages, such as `LLVM 17.0.0, commit c5dede880d17`."""
        parts = (f"LLVM {self.version}".strip(), f"commit {self.commit}" if self.commit else "")
        return (", " if self.version else " ").join(filter(None, parts))


def named_in_setup(checkout: Path) -> NamedInSetup | None:
    """Return the LLVM that the setup.py of an old Triton names; None if it names none or cannot be read."""
    file = checkout / "python" / "setup.py"
    try:
        text = read_regular(file, MAX_SETUP_BYTES, within=checkout).decode("utf-8", errors="replace")
    except OSError:
        return None
    if match := re.search(r"\bllvm-(\d+\.\d+\.\d+)-([0-9a-f]{8,40})\b", text):
        return NamedInSetup(match[1], match[2])
    if match := re.search(r"""\brev = ["']([0-9a-f]{8,40})["']""", text):
        return NamedInSetup("", match[1])
    match = re.search(r"\bllvm(?:\+mlir)?-(\d+\.\d+\.\d+)\b", text)
    return NamedInSetup(match[1], "") if match else None


def read_codegen_pins(checkout: Path) -> tuple[CodegenPin, ...]:
    """Return the pins of the separate LLVMs that a checkout of Triton uses for GPUs, sorted by target.

    Raise an UnsupportedError if a pin file or build-info file is for an LLVM without a table in data/codegen.toml, and
    a PinError or DocumentError if a pin cannot be read or is invalid.
    """
    named: dict[str, list[str]] = {}
    for file in _in_cmake(checkout):
        if match := _CODEGEN.fullmatch(file):
            named.setdefault(match[1], []).append(f"cmake/{file}")
    pins = []
    for name, files in named.items():
        rule = codegen_named(name)
        if rule is None:
            raise UnsupportedError(
                "unknown-codegen",
                f"this Triton uses a separate LLVM for {name}, which this tool cannot build",
                why=f"{checkout} has {' and '.join(files)}; known LLVMs are those for "
                + ", ".join(f"{codegen.name} ({codegen.target})" for codegen in codegens()),
                fix="use an older Triton, or add a table for this LLVM to toolchain/data/codegen.toml",
            )
        if rule.pin_file in files:  # this Triton does not use an LLVM that has only a build-info file
            pins.append(_codegen_pin(checkout / rule.pin_file, rule))
    return tuple(sorted(pins, key=lambda pin: pin.target))


def _in_cmake(checkout: Path) -> list[str]:
    try:
        return sorted(path.name for path in (checkout / "cmake").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        why = error.strerror or str(error)
        raise PinError(
            "pin-unreadable", f"cannot read {checkout / 'cmake'}", why=why, fix="check its permissions"
        ) from error


def _codegen_pin(file: Path, rule: Codegen) -> CodegenPin:
    pin = _parsed(file)
    build = pin.content.get("build_number")
    if type(build) is not int or not 0 <= build < 10**6:
        shown = str(build)[:20] if isinstance(build, int | None) else f"a {type(build).__name__}"
        raise PinError(
            "pin-without-build",
            f"{file} has an invalid build_number: {shown}",
            why="the library reports the revision COMMIT-BUILD, which is part of the key of Triton's cached kernels",
            fix="restore the file from Triton",
        )
    ahead = file.with_name(f"{rule.name}-llvm-build-info.json")
    repository = pin.repository
    if not repository and _exists(ahead) and (next_pin := _parsed(ahead)).commit == pin.commit:
        repository = next_pin.repository
    return CodegenPin(
        target=rule.target,
        llvm=pin.commit,
        build=build,
        repository=repository or repository_of(pin.commit) or "",
        certainty="verified",
        source=str(file),
    )


def pin_files(folder: Path) -> list[Path]:
    """Return the paths of the LLVM pin files in a folder and in its `cmake/`.

    Unreadable files are included, because the wrong LLVM might be built if one of them were skipped. Raise a PinError
    if the folder cannot be searched for the files.
    """
    cmake = folder / "cmake"
    if cmake.is_symlink() and not cmake.exists():
        why = f"it is a dangling link to {cmake.readlink()}"
        raise PinError("pin-unreadable", f"cannot read {cmake}", why=why, fix="correct or remove the link")
    return [place / name for place in (folder, cmake) for name in _NAMES if _exists(place / name)]


def _exists(file: Path) -> bool:
    """Return whether a path exists or is a dangling link; raise a PinError if this cannot be determined."""
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise PinError(
            "pin-unreadable", f"cannot look for {file}", why=error.strerror or str(error), fix="check its permissions"
        ) from error
    return True


def _text_of(file: Path) -> str:
    """Return the content of a pin file without a byte order mark or surrounding whitespace.

    Raise a PinError if the file cannot be read or is not UTF-8.
    """
    # A checkout is untrusted, so a link in it must not lead to a file outside it.
    top = file.parent.parent if file.parent.name == "cmake" else file.parent
    try:
        content = read_regular(file, MAX_PIN_BYTES, within=top)
    except FileNotFoundError as error:
        why = f"it is a dangling link to {file.readlink()}" if file.is_symlink() else "it does not exist"
        raise PinError("pin-unreadable", f"cannot read {file}", why=why, fix=_PUT) from error
    except OSError as error:
        raise PinError("pin-unreadable", f"cannot read {file}", why=error.strerror or str(error), fix=_PUT) from error
    try:
        return content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        why = f"byte {error.start} is not UTF-8"
        raise PinError(
            "not-a-pin-file", f"{file} is not a pin file", why=why, fix="give llvm-hash.txt or llvm-info.json"
        ) from error


def _object_in(file: Path, text: str) -> dict[str, Any]:
    try:
        value = strict_json.read(text, str(file), keys=_KEYS)
    except DocumentError:
        raise
    except json.JSONDecodeError as error:
        why = f"the syntax is invalid at line {error.lineno}, column {error.colno}"
        raise PinError("pin-not-json", f"{file} is not JSON", why=why, fix="restore the file from Triton") from error
    if not isinstance(value, dict):
        raise PinError("pin-not-json", f"{file} is not a JSON object", fix="restore the file from Triton")
    return value


def _parsed(file: Path) -> _PinFile:
    """Parse a pin file, which contains a commit and optional `#` comments, or JSON with the key `llvm_hash`.

    The name of the file does not determine its format. Raise a PinError or DocumentError if the file is not valid.
    """
    text = _text_of(file)
    content: dict[str, Any] = {}
    if _CONFLICT.search(text):
        raise PinError(
            "pin-merge-conflict",
            f"{file} contains the conflict markers of an unfinished merge",
            why="it names more than one LLVM",
            fix="resolve the conflict in that file, so that it names one commit",
        )
    value: object = _without_comments(text)
    if text.startswith(("{", "[")):
        content = _object_in(file, text)
        if "llvm_hash" not in content:
            why = f"the key llvm_hash is missing; the file has {len(content)} other keys"
            raise PinError("pin-without-commit", f"{file} names no LLVM", why=why, fix="restore the file from Triton")
        value = content["llvm_hash"]
    commit = value.strip().lower() if isinstance(value, str) else ""
    if not is_commit(commit):
        fix = "give all 40 digits, because a short value may mean more than one commit"
        raise PinError(
            "pin-without-commit",
            f"{file} has no valid commit: {_excerpt(value)}",
            why="a commit has 40 hexadecimal digits",
            fix=fix,
        )
    return _PinFile(file, commit, content)


def _without_comments(text: str) -> str:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _excerpt(value: object) -> str:
    """Return a description of an invalid commit that quotes only hexadecimal digits, because the file is untrusted."""
    if not isinstance(value, str):
        return f"it is {'null' if value is None else type(value).__name__}, not text"
    digits = re.match(r"\s*([0-9a-fA-F]{0,64})\s*$", value)
    shown = f"{digits[1]!r}, " if digits is not None and digits[1] else ""
    return f"{shown}{len(value.strip())} characters"


def _find_repository(pins: list[_PinFile]) -> tuple[str, list[str], bool]:
    """Return the repository of the pinned commit, warnings, and whether the repository is certain.

    The sources are, in this order: the pin files, llvm-build-info.json, and the release data. If none of them names a
    repository, return LLVM's own, which is certain only if no pin file is an llvm-info file. Raise a PinError if the
    pin files name different repositories.
    """
    commit = pins[0].commit
    if own := {pin.file: name for pin in pins if (name := pin.repository)}:
        if len(set(own.values())) > 1:
            raise PinError(
                "pin-two-repositories",
                "the pin files name different repositories",
                why="; ".join(f"{file} says {name}" for file, name in own.items()),
                fix="remove the outdated file, or give the right one",
            )
        return next(iter(own.values())), [], True
    warnings = []
    for folder in dict.fromkeys(pin.file.parent for pin in pins):
        build = folder / "llvm-build-info.json"
        if not _exists(build):
            continue
        try:
            built = _parsed(build)
        except (PinError, DocumentError) as error:
            warnings.append(f"{build} is ignored: {error.what}")
            continue
        if built.commit != commit:
            warnings.append(f"{build} is ahead of the pin: it names {built.commit}, but the pin {commit} is used")
        elif named := built.repository:
            return named, warnings, True
    if known := repository_of(commit):
        return known, warnings, True
    # Upstream's plain llvm-hash.txt always means LLVM's own repository, but an llvm-info.json may mean a fork.
    assumed = any(pin.file.name.startswith("llvm-info") for pin in pins)
    if assumed:
        warnings.append(
            f"no file names the repository of {commit}; {UPSTREAM} is assumed, although the commit may be in a fork"
        )
    return UPSTREAM, warnings, not assumed


def _repository(named: object, file: Path) -> str:
    """Return the repository that a pin file names, as `owner/name`; raise a PinError if the value is invalid."""
    short = re.sub(r"^https://github\.com/|\.git$|/$", "", named) if isinstance(named, str) else ""
    if not REPOSITORY.fullmatch(short):
        why = "a repository is owner/name or an https://github.com/ URL"
        raise PinError(
            "pin-unknown-repository",
            f"{file} names an invalid repository",
            why=why,
            fix="give the LLVM with --source llvm=URL@COMMIT",
        )
    return short
