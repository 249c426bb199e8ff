"""The parts of Triton that generate code for a GPU with their own LLVM, from data/codegen.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as memoize

from toolchain.data import FOLDER, load, typed_row


@dataclass(frozen=True, kw_only=True)
class Codegen:
    """A table of data/codegen.toml, which describes the fields."""

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
        """The path in a checkout of the pin of its LLVM and of the library's build."""
        return f"cmake/{self.name}-llvm-info.json"

    @property
    def llvm(self) -> str:
        """The name of the stage and source of its LLVM: `llvm-amdgpu`."""
        return f"llvm-{self.target.lower()}"

    @property
    def stage(self) -> str:
        """The stage of the library: `codegen-amdgpu`."""
        return f"codegen-{self.target.lower()}"


@memoize
def codegens() -> tuple[Codegen, ...]:
    """Return every row, in the order of the data."""
    rows = load("codegen").items()
    return tuple(typed_row(Codegen, {**row, "name": name}, name, FOLDER / "codegen.toml") for name, row in rows)


def codegen_of(target: str) -> Codegen | None:
    """Return the row of LLVM's target, such as `AMDGPU`; None if there is none."""
    return next((codegen for codegen in codegens() if codegen.target == target), None)


def codegen_named(name: str) -> Codegen | None:
    """Return the row of a pin file's name, such as `amd`; None if there is none."""
    return next((codegen for codegen in codegens() if codegen.name == name), None)
