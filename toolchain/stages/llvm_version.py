"""Find the version of an LLVM source from its tree or its name."""

from __future__ import annotations

import re
from pathlib import Path

from toolchain.core.errors import SourceError
from toolchain.core.filesystem import source_text
from toolchain.sources.tree import Source

# Since LLVM 19, the first file sets the version. Before, the second file set it.
_FILES = ("cmake/Modules/LLVMVersion.cmake", "llvm/CMakeLists.txt")
_NUMBER = re.compile(r"^\s*set\(LLVM_VERSION_(MAJOR|MINOR|PATCH)\s+([0-9]{1,6})\)", re.MULTILINE)
_PACKAGE = re.compile(r"llvm-toolchain-([0-9]{1,3}|snapshot)")
_VERSION = re.compile(r"([0-9]{1,3})[.~]")


def version_of_tree(tree: Path) -> str:
    """Return the version that an LLVM source tree sets, such as `19.1.7`; raise SourceError if it sets none."""
    for name in _FILES:
        try:
            numbers = dict(_NUMBER.findall(source_text(tree, name)))
        except SourceError:
            continue
        if len(numbers) == 3:
            return f"{numbers['MAJOR']}.{numbers['MINOR']}.{numbers['PATCH']}"
    raise SourceError(
        "llvm-version-unknown",
        "the version of this LLVM source is unknown",
        why=f"neither {' nor '.join(_FILES)} sets LLVM_VERSION_MAJOR, _MINOR and _PATCH",
        fix="give the top folder of a complete llvm-project, including cmake/",
    )


def major_of(source: Source) -> int | None:
    """Return the major version of an LLVM source; None if it is unknown until the source is fetched.

    SourceError is raised for a folder that sets no version.
    """
    if source.path is not None and source.path.is_dir():
        return major(version_of_tree(source.path))
    named = _PACKAGE.fullmatch(source.where) if source.kind == "distro" else None
    if named is None:
        return None
    match = _VERSION.match(source.version)
    number = match[1] if match else named[1]
    return int(number) if number.isdecimal() else None


def major(version: str) -> int:
    """Return the major number of a version, such as 19 for `19.1.7`."""
    return int(version.partition(".")[0])
