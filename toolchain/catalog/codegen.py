"""The parts of Triton that make code for a GPU with an LLVM of their own: data of data/codegen.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as memoize

from toolchain.data import FOLDER, load, typed_row


@dataclass(frozen=True, kw_only=True)
class Codegen:
    """A table of data/codegen.toml; that file says what each field is."""

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
        """The path in a checkout of the pin of its LLVM and the library's build."""
        return f"cmake/{self.name}-llvm-info.json"

    @property
    def llvm(self) -> str:
        """The stage of its LLVM, and the source of that: `llvm-amdgpu`."""
        return f"llvm-{self.target.lower()}"

    @property
    def stage(self) -> str:
        """The stage of the library: `codegen-amdgpu`."""
        return f"codegen-{self.target.lower()}"


@memoize
def codegens() -> tuple[Codegen, ...]:
    """Every row, in the order of the data."""
    rows = load("codegen").items()
    return tuple(typed_row(Codegen, {**row, "name": name}, name, FOLDER / "codegen.toml") for name, row in rows)


def codegen_of(target: str) -> Codegen | None:
    """The row of LLVM's target, `AMDGPU`; None if there is none."""
    return next((codegen for codegen in codegens() if codegen.target == target), None)


def codegen_named(name: str) -> Codegen | None:
    """The row of a pin file's name, `amd`; None if there is none."""
    return next((codegen for codegen in codegens() if codegen.name == name), None)
