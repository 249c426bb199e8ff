"""The tables of data/codegen.toml: Triton's code generator libraries, each of which is built on an LLVM of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as memoize

from toolchain.data import FOLDER, load, typed_row


@dataclass(frozen=True, kw_only=True)
class Codegen:
    """A table of data/codegen.toml, which documents the fields."""

    name: str
    target: str
    repositories: tuple[str, ...]
    components: tuple[str, ...]
    links: tuple[str, ...]
    project: str
    reads: tuple[str, ...]
    library: str
    exports: str
    revision: str
    answers: str
    place: str
    installed: str
    variable: str
    source: str

    @property
    def pin_file(self) -> str:
        """Return the path of the file in a Triton checkout that pins the LLVM commit and the library's build number."""
        return f"cmake/{self.name}-llvm-info.json"

    @property
    def llvm(self) -> str:
        """Return the name of the LLVM's stage and of its source, such as `llvm-amdgpu`."""
        return f"llvm-{self.target.lower()}"

    @property
    def stage(self) -> str:
        """Return the name of the stage that builds the library, such as `codegen-amdgpu`."""
        return f"codegen-{self.target.lower()}"


@memoize
def codegens() -> tuple[Codegen, ...]:
    """Return all tables of data/codegen.toml, in file order."""
    rows = load("codegen").items()
    return tuple(typed_row(Codegen, {**row, "name": name}, name, FOLDER / "codegen.toml") for name, row in rows)


def codegen_named(name: str) -> Codegen | None:
    """Return the table for the prefix of a pin file's name, such as `amd`; None if there is none."""
    return next((codegen for codegen in codegens() if codegen.name == name), None)
