"""The verb `pins`, which shows the LLVM that a PyTorch, AOTriton or Triton version pins, and how certain that is."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from toolchain.catalog.pin_files import read_codegen_pins, read_pin
from toolchain.catalog.release_data import (
    AotritonRelease,
    CodegenPin,
    LlvmPin,
    PytorchRow,
    TritonRelease,
    aotriton_releases,
    pytorch_rows,
    require,
    triton_releases,
)
from toolchain.catalog.releases import (
    aotriton_for_pytorch,
    aotriton_release,
    is_version,
    newest_patch,
    triton_release,
)
from toolchain.cli.listing import Listing
from toolchain.cli.options import JsonOpt
from toolchain.core import console
from toolchain.core.errors import PinError
from toolchain.sources.spec import users_path

_Fact = PytorchRow | AotritonRelease | TritonRelease | LlvmPin | CodegenPin
_STYLES = {"verified": "green", "inferred": "yellow", "unknown": "red"}


def pins(
    pytorch: Annotated[str | None, typer.Option(metavar="VERSION", help="Resolve a PyTorch version.")] = None,
    triton: Annotated[
        str | None,
        typer.Option(metavar="VERSION|COMMIT|PATH", help="Resolve a Triton: a version, a commit, a checkout."),
    ] = None,
    aotriton: Annotated[str | None, typer.Option(metavar="RELEASE", help="Resolve an AOTriton release.")] = None,
    from_path: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="Read a pin file, a folder or a Triton checkout.")
    ] = None,
    distro: Annotated[
        bool, typer.Option("--distro", help="List Debian's known LLVM source packages, and the nearest Tritons.")
    ] = False,
    json_: JsonOpt = False,
) -> None:
    """Show the LLVM that a version pins. Without options, list all known versions."""
    given = [value for value in (pytorch, triton, aotriton, from_path, distro or None) if value is not None]
    if len(given) > 1:
        raise typer.BadParameter("give one of --pytorch, --triton, --aotriton, --from and --distro")
    if distro:
        from toolchain.cli.distro_view import show  # noqa: PLC0415 - the other forms do not need it

        show(as_json=json_)
        return
    if not given:
        _all(json_)
        return
    resolved = _resolve(pytorch, triton, aotriton, from_path)
    if json_:
        console.data({name: _row(value) for name, value in resolved.items()})
        return
    _print_resolved(resolved)


def _resolve(pytorch: str | None, triton: str | None, aotriton: str | None, path: Path | None) -> dict[str, _Fact]:
    """Return the chain of facts that leads from the user's version or path to its LLVM."""
    if path is not None:
        return _read(_below_home(str(path)))
    if triton is not None:
        if not is_version(triton) and triton.strip() and os.path.lexists(named := _below_home(triton)):
            return _read(named)
        row = triton_release(triton)
        if is_version(triton) and (newest := newest_patch(triton)).version != row.version:
            row = newest
        return {"triton": row, "llvm": row.pin}
    if pytorch is not None:
        torch = aotriton_for_pytorch(pytorch)
        release = aotriton_release(torch.aotriton, allow_unknown=True)
        if not release.llvm:
            raise _llvm_unknown(f"PyTorch {pytorch} uses AOTriton {release.name}, whose LLVM is unknown", release)
        return {"pytorch": torch, "aotriton": release, "llvm": release.pin}
    release = aotriton_release(aotriton or "", allow_unknown=True)
    if release.commit and release.triton and not release.llvm:
        raise _llvm_unknown(f"the LLVM of AOTriton {release.name} is unknown", release)
    require(release, "commit", "triton", "llvm")
    return {"aotriton": release, "llvm": release.pin}


def _llvm_unknown(what: str, release: AotritonRelease) -> PinError:
    return PinError(
        "aotriton-llvm-unknown",
        what,
        why=release.source,
        fix=f"toolchain plan aotriton --aotriton {release.name} shows what a build would use",
    )


def _below_home(text: str) -> Path:
    """Return a path with `~` expanded, because shells do not expand it after `--from=`."""
    return users_path(text) if text.startswith("~") else Path(text)


def _read(path: Path) -> dict[str, _Fact]:
    """Return the LLVM that a file or folder pins, and the separate LLVMs that a folder pins for GPUs."""
    further = read_codegen_pins(path) if path.is_dir() else ()
    return {"llvm": read_pin(path), **{f"llvm-{pin.target.lower()}": pin for pin in further}}


def _row(value: Any) -> dict[str, Any]:
    """Return a fact as a JSON object, with null for empty strings."""
    row = {name: None if field == "" else field for name, field in dataclasses.asdict(value).items()}
    return {**row, "tag": value.tag or None} if isinstance(value, TritonRelease) else row


def _sure(certainty: str) -> Text:
    return Text(certainty, style=_STYLES[certainty])


def _all(as_json: bool) -> None:
    if as_json:
        console.data(
            {
                "triton": [_row(row) for row in triton_releases()],
                "aotriton": [_row(row) for row in aotriton_releases()],
                "pytorch": [_row(row) for row in pytorch_rows()],
            }
        )
        return
    console.show(
        Listing(
            title="Triton",
            columns=("triton", "llvm", "repository", "certainty", "source"),
            head=("triton", "llvm", "certainty"),
            rows=[
                (
                    row.version or row.commit[:12],
                    row.llvm or "-",
                    row.repository or "-",
                    _sure(row.certainty),
                    row.source,
                )
                for row in triton_releases()
            ],
        ),
        Listing(
            title="AOTriton",
            columns=("release", "date", "commit", "triton", "llvm", "certainty"),
            head=("release", "llvm", "certainty"),
            rows=[
                (
                    row.name,
                    row.date,
                    row.commit[:12] or "-",
                    row.triton[:12] or "-",
                    row.llvm or "-",
                    _sure(row.certainty),
                )
                for row in aotriton_releases()
            ],
        ),
        Listing(
            title="PyTorch",
            columns=("pytorch", "aotriton", "certainty", "source"),
            head=("pytorch", "aotriton", "certainty"),
            rows=[(row.version, row.aotriton, _sure(row.certainty), row.source) for row in pytorch_rows()],
        ),
    )


def _shown(content: Any) -> str:
    """Return the value of a field as text; an LLVM for a GPU is shown as its target, commit and build number."""
    if not isinstance(content, tuple | list):
        return str(content)
    return ", ".join(
        f"{item['target']} {item['llvm']}-{item['build']}" if isinstance(item, dict) else item for item in content
    )


def _print_resolved(resolved: dict[str, Any]) -> None:
    lines: list[tuple[str, str]] = []
    warnings: dict[str, None] = {}
    for name, value in resolved.items():
        fields = _row(value)
        for warning in fields.pop("warnings", ()):
            warnings[warning] = None
        for field, content in fields.items():
            if content:
                lines.append((f"{name}.{field.replace('_', '-')}", _shown(content)))
    for name, shown in lines:
        console.text(f"{name:<24} {shown}")
    for warning in warnings:
        console.warn(warning)
