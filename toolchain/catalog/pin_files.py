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
_PUT = "name a pin file, a folder with one, or a checkout; or restore the file"
AOTRITON_SUBMODULE = "third_party/triton"
MAX_SETUP_BYTES = 1 << 20
MAX_PIN_BYTES = 64 << 10  # an llvm-info.json has about 700 bytes

# Forks name the repository in the pin file itself: as owner/name, or as a URL under a key of its own.
_REPOSITORY_KEYS = ("repository", "llvm_repository")
_KEYS = dict.fromkeys(("llvm_hash", "build_number", *_REPOSITORY_KEYS))
_CONFLICT = re.compile(r"^(<<<<<<<|=======$|>>>>>>>)", re.MULTILINE)
_NAMES = tuple(f"{stem}{end}" for stem in ("llvm-hash", "llvm-info") for end in (".txt", ".json", ""))
# Pins of other compilers, and of builds that may be ahead of the pin.
_OTHER = re.compile(r"(amd|nvidia)-.*|.*build-info.*")
# Pins of the LLVMs for GPUs, and upstream's next builds, which may be ahead of the pin.
_CODEGEN = re.compile(r"(.+)-llvm-(build-)?info\.json")


@dataclass(frozen=True)
class _PinFile:
    """A parsed pin file: the commit, and the object of a JSON file."""

    file: Path
    commit: str
    content: Mapping[str, Any]

    @property
    def repository(self) -> str:
        """The repository that the file names as `owner/name`; empty if it names none."""
        named = {key: _repository(self.content[key], self.file) for key in _REPOSITORY_KEYS if key in self.content}
        if len(set(named.values())) > 1:
            raise PinError(
                "pin-two-repositories",
                f"{self.file} names two repositories",
                why="; ".join(f"{key} is {name}" for key, name in named.items()),
                fix="name one of them by --source llvm=URL@COMMIT",
            )
        return next(iter(named.values()), "")


def read_pin(path: Path) -> LlvmPin:
    """Return the LLVM pin in a file, a folder, or a Triton checkout (in `cmake/`, or at the top as in Triton 2.1).

    All pin files of a folder must agree. `llvm-build-info.json` may be ahead of the pin; only its `repository` is used,
    and only if it has the same commit.
    """
    if path.is_dir():
        files = pin_files(path)
        if not files:
            if is_aotriton(path):
                raise PinError(
                    "pin-of-aotriton",
                    f"{path} is a checkout of AOTriton, which pins no LLVM itself",
                    why="its Triton is the submodule third_party/triton, and that pins the LLVM",
                    fix=f"check the submodule out and name it: {path / AOTRITON_SUBMODULE}",
                )
            if (named := named_in_setup(path)) is not None:
                raise PinError(
                    "triton-without-pin-file",
                    f"this Triton is older than pin files: its setup.py names {named}",
                    why="that is not a full commit, and the archive that it stands for is not LLVM's source",
                    fix="name the LLVM: --source llvm=URL@COMMIT with all 40 digits, or distro:llvm-toolchain-17",
                )
            raise PinError(
                "pin-not-found",
                f"no LLVM pin in {path}",
                why="it has neither llvm-hash.txt nor llvm-info.json, also not in its cmake/ folder",
                fix="name the pin file itself, or a Triton checkout",
            )
    else:
        files = [path]
        if _OTHER.fullmatch(path.name):
            raise PinError(
                "pin-of-other-part",
                f"{path} does not hold the pin of Triton's LLVM",
                why="it names the LLVM of another part of Triton, or of a build that may run ahead of the pin",
                fix="give llvm-hash.txt or llvm-info.json",
            )
    pins = [_parsed(file) for file in files]
    if len({pin.commit for pin in pins}) > 1:
        raise PinError(
            "pins-contradict",
            f"the pins in {path} contradict each other",
            why="; ".join(f"{pin.file} says {pin.commit}" for pin in pins),
            fix="remove the stale file, or name the right one",
        )
    repository, warnings, known = _repository_beside(pins)
    return LlvmPin(
        commit=pins[0].commit,
        repository=repository,
        origin=str(pins[0].file),
        certainty="verified" if known else "inferred",
        warnings=tuple(warnings),
    )


def is_aotriton(folder: Path) -> bool:
    """Return whether a folder is a checkout of AOTriton rather than of Triton."""
    return (folder / "include" / "aotriton").is_dir()


@dataclass(frozen=True)
class NamedInSetup:
    """The LLVM that the setup.py of a Triton before November 2023 names, without all digits of its commit.

    Args:
        version: `17.0.0`; empty if only a commit is named.
        commit: the first digits of the commit; empty if only a version is named.
    """

    version: str
    commit: str

    def __str__(self) -> str:
        """Return the name for people: `LLVM 17.0.0, commit c5dede880d17`."""
        parts = (f"LLVM {self.version}".strip(), f"commit {self.commit}" if self.commit else "")
        return (", " if self.version else " ").join(filter(None, parts))


def named_in_setup(checkout: Path) -> NamedInSetup | None:
    """Return the LLVM that the setup.py of a Triton before November 2023 names; None if it names none."""
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
    """Return the LLVMs that a checkout of Triton uses for GPUs, apart from the one it links, sorted by target.

    Before Triton 3.9 there are none. An LLVM for a part without a row in data/codegen.toml is refused.
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
                f"this Triton has a separate LLVM for {name}, for which there is no rule here",
                why=f"{' and '.join(files)} in {checkout}; known are "
                + ", ".join(f"{codegen.name} ({codegen.target})" for codegen in codegens()),
                fix="use a Triton from before that; what such an LLVM needs is a table in toolchain/data/codegen.toml",
            )
        if rule.pin_file in files:  # without a pin, this Triton does not use the build
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
            f"{file} names no build of the library: build_number is {shown}",
            why="the library answers COMMIT-BUILD, and Triton keeps its kernels by that",
            fix="take the file from Triton again",
        )
    ahead = file.with_name(f"{rule.name}-llvm-build-info.json")
    repository = pin.repository
    if not repository and _lies_there(ahead) and (next_pin := _parsed(ahead)).commit == pin.commit:
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
    """Return the files in a folder, or in the `cmake/` of a checkout, that say which LLVM Triton is built with.

    Unreadable files with such a name are included, because another LLVM would be built if they were skipped.
    """
    cmake = folder / "cmake"
    if cmake.is_symlink() and not cmake.exists():
        why = f"it is a link to nothing: {cmake.readlink()}"
        raise PinError("pin-unreadable", f"cannot read {cmake}", why=why, fix="correct or remove the link")
    return [place / name for place in (folder, cmake) for name in _NAMES if _lies_there(place / name)]


def _lies_there(file: Path) -> bool:
    """Return whether the path exists, also as a dangling link."""
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
    """Return the content of a small text file, without a byte order mark and surrounding space."""
    # A checkout is untrusted: no link in it may show a file of this machine.
    top = file.parent.parent if file.parent.name == "cmake" else file.parent
    try:
        content = read_regular(file, MAX_PIN_BYTES, within=top)
    except FileNotFoundError as error:
        why = f"it is a link to nothing: {file.readlink()}" if file.is_symlink() else "it does not exist"
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
        why = f"it cannot be read at line {error.lineno}, column {error.colno}"
        raise PinError("pin-not-json", f"{file} is not JSON", why=why, fix="take the file from Triton again") from error
    if not isinstance(value, dict):
        raise PinError("pin-not-json", f"{file} holds no JSON object", fix="take the file from Triton again")
    return value


def _parsed(file: Path) -> _PinFile:
    """Read a pin file: plain digits, or JSON with the key `llvm_hash`, independent of the file's name."""
    text = _text_of(file)
    content: dict[str, Any] = {}
    if _CONFLICT.search(text):
        raise PinError(
            "pin-merge-conflict",
            f"{file} holds the conflict markers of an unfinished merge",
            why="it names more than one LLVM, and git could not choose between them",
            fix="resolve the conflict in that file, so that it names one commit",
        )
    value: object = _without_comments(text)
    if text.startswith(("{", "[")):
        content = _object_in(file, text)
        if "llvm_hash" not in content:
            why = f"the key llvm_hash is missing; there are {len(content)} others"
            raise PinError(
                "pin-without-commit", f"{file} names no LLVM", why=why, fix="take the file from Triton again"
            )
        value = content["llvm_hash"]
    commit = value.strip().lower() if isinstance(value, str) else ""
    if not is_commit(commit):
        fix = "give all 40 digits; a short value may mean more than one commit"
        raise PinError(
            "pin-without-commit",
            f"{file} holds no commit: {_excerpt(value)}",
            why="a commit has 40 hexadecimal digits",
            fix=fix,
        )
    return _PinFile(file, commit, content)


def _without_comments(text: str) -> str:
    """Return a plain pin file without its `#` comments."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _excerpt(value: object) -> str:
    """Return a printable excerpt of an invalid commit, because the file may be malicious."""
    if not isinstance(value, str):
        return f"it is {'null' if value is None else type(value).__name__}, not text"
    digits = re.match(r"\s*([0-9a-fA-F]{0,64})\s*$", value)
    shown = f"{digits[1]!r}, " if digits is not None and digits[1] else ""
    return f"{shown}{len(value.strip())} characters"


def _repository_beside(pins: list[_PinFile]) -> tuple[str, list[str], bool]:
    """Return the repository that holds the pinned commit, warnings, and whether a file or the data name it.

    The pin file's own repository comes first, then that of llvm-build-info.json in the same folder, then the data.
    """
    commit = pins[0].commit
    if own := {pin.file: name for pin in pins if (name := pin.repository)}:
        if len(set(own.values())) > 1:
            raise PinError(
                "pin-two-repositories",
                "the pin files name different repositories",
                why="; ".join(f"{file} says {name}" for file, name in own.items()),
                fix="remove the stale file, or name the right one",
            )
        return next(iter(own.values())), [], True
    warnings = []
    for folder in dict.fromkeys(pin.file.parent for pin in pins):
        build = folder / "llvm-build-info.json"
        if not _lies_there(build):
            continue
        try:
            built = _parsed(build)
        except PinError as error:
            warnings.append(f"{build} is ignored: {error.what}")
            continue
        if built.commit != commit:
            warnings.append(f"{build} is ahead of the pin: it builds {built.commit}, the pin stays {commit}")
        elif named := built.repository:
            return named, warnings, True
    if known := repository_of(commit):
        return known, warnings, True
    # Upstream's plain llvm-hash.txt always means LLVM's own repository; an llvm-info.json may mean a fork.
    assumed = any(pin.file.name.startswith("llvm-info") for pin in pins)
    if assumed:
        warnings.append(f"no file says which repository holds {commit}; {UPSTREAM} is assumed, it may be a fork's")
    return UPSTREAM, warnings, not assumed


def _repository(named: object, file: Path) -> str:
    """Return a repository of a file as `owner/name`."""
    short = re.sub(r"^https://github\.com/|\.git$|/$", "", named) if isinstance(named, str) else ""
    if not REPOSITORY.fullmatch(short):
        why = "a repository is owner/name or an https://github.com/ URL"
        raise PinError(
            "pin-unknown-repository",
            f"{file} names no repository that is known here",
            why=why,
            fix="give --source llvm=URL@COMMIT",
        )
    return short
