"""Build, from source, wheels of projects that use Triton, and make images that contain these wheels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from toolchain.catalog.wheel_rows import WheelRow, wheel_row, wheel_rows
from toolchain.core import recipe, strict_json
from toolchain.core.digest import write_atomically
from toolchain.core.errors import BuildError, ContractError, SourceError, ToolchainError
from toolchain.core.filesystem import emptied, read_built_json
from toolchain.core.recipe import Mount, Recipe, digests
from toolchain.core.zips import open_wheel
from toolchain.request.model import Request
from toolchain.sources.scan import Finding, scan
from toolchain.sources.spec import SourceSpec
from toolchain.sources.tree import Source
from toolchain.stages.inputs import source_inputs, stage_inputs, triton_id
from toolchain.stages.prebuilt import choices, names_allowed, take_in
from toolchain.stages.stage import Built, ContractCheck, ImageParts, LayerContent, Planned, Workspace
from toolchain.stages.triton_wheel import SITE as TRITON_SITE
from toolchain.stages.triton_wheel import unzip
from toolchain.stages.wheels import SBOM_WRITER, keep_wheel, wheel_folder, wheel_sources, wheels_with_sbom

RECIPE = "containerfiles/wheel"
SITE = "/usr/lib/toolchain/wheels"
LISTING = "usr/share/toolchain/wheels.json"
_ALWAYS = ("packaging", "setuptools", "wheel")
_DISK = 3_000_000_000
_WEIGHTS = {"configure": 20.0, "compile": 20.0}
# These are the error class and the advice for each kind of failure that containerfiles/wheel/build.py reports.
_FAILURES: Mapping[str, tuple[type[ToolchainError], str]] = {
    "triton": (ContractError, "build Triton again: its wheel contains the dist-info"),
    "torch": (ContractError, "check that the packages of torch in data/wheels.toml fit the base"),
    "source": (SourceError, "name a source of the version that data/wheels.toml describes"),
    "changed": (ContractError, "see the log: the build of the project writes into the folder of Triton"),
    "network": (BuildError, "add what the build downloads to `requires` in its row of data/wheels.toml"),
}


@dataclass(frozen=True)
class _Result:
    """The content of result.json; containerfiles/wheel/build.py writes this file and describes the fields."""

    torch: str
    triton: Mapping[str, Any]
    network: tuple[tuple[str, ...], ...]
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class WheelStage:
    """The stage that builds the wheel of a project that uses Triton."""

    name: str

    @property
    def row(self) -> WheelRow:
        return wheel_row(self.name)

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned:
        row = self.row
        source = wheel_source(row, request)
        if source.path is not None and source.path.is_dir():
            require_needs(row, source.path, source.ref)
        wheels = wheel_sources(tuple(sorted({*_ALWAYS, *row.requires})))
        under = {name: dependencies[name].input_digest for name in ("base", "torch", "triton")}
        resolved = {**under, "sources": source_inputs([source, *wheels], request.patches)}
        more = {
            "recipe": digests(RECIPE),
            "row": asdict(row),
            "binaries": choices(self.name, request),
            "site": SITE,
            "sbom": SBOM_WRITER,
        }
        triton = triton_id(dependencies["triton"])
        stray = f"upstream's wheel contains {', '.join(row.stray)} by accident" if row.stray else ""
        return Planned(
            name=self.name,
            image=f"{self.name}-{source.short_id}-triton-{triton}-{dependencies['base'].details.name}",
            inputs=stage_inputs(self.name, request, resolved, more),
            sources=(source, *wheels),
            binaries=tuple(sorted({*dependencies["triton"].binaries, *names_allowed(self.name, request)})),
            partial="; ".join(f"without {part}: {why}" for part, why in sorted(row.lacks.items())),
            disk=_DISK,
            engine=True,
            has_contract_check=True,
            note=stray,
        )

    def build(self, planned: Planned, dependencies: Mapping[str, Built], workspace: Workspace) -> Built:
        row, request = self.row, workspace.request
        workspace.step("source")
        source = workspace.fetch(planned.sources[0])
        require_needs(row, source.path, planned.sources[0].ref)
        left = [name for name in row.leave_out if (source.path / name).is_dir()]
        beside = [f"{name}/{finding.file}" for name in left for finding in scan(source.path / name)]
        intake, findings = take_in(
            self.name, source.path, replace(request, drop_binary=(*request.drop_binary, *beside))
        )
        planned = replace(planned, binaries=intake.binaries(planned.binaries))
        making = self._recipe(planned, dependencies, workspace, source.path, drop=(*left, *intake.dropped))
        out = workspace.build(making)
        result = read_built_json(out, "result.json", _Result)
        if result.failed:
            raise _failure(self.name, result.failed)
        wheels = wheels_with_sbom(out, planned, [], workspace)
        if len(wheels) != 1:
            raise BuildError(
                "wheel-not-built", f"the build of {self.name} left {len(wheels)} wheels", fix="see the log"
            )
        content = check_content(row, wheels[0])
        tree = emptied(workspace.work() / "tree")
        unzip(wheels[0], tree / SITE.lstrip("/"))
        facts = {**content, "wheels": [keep_wheel(wheels[0], workspace.cache)]}
        return workspace.finish(
            planned,
            LayerContent(tree=tree),
            ImageParts(
                revision=source.ref,
                binaries=True,
                under=dependencies["triton"],
                beside=(dependencies["torch"],),
                environment=environment([row]),
            ),
            facts={
                **facts,
                "torch": result.torch,
                "triton": result.triton,
                "network": [list(row) for row in result.network],
                "tests": row.tests,
                "left_out": left,
                "found_binaries": intake.rows(elsewhere(findings, left)),
            },
            check=ContractCheck(run=check_imports([row], workspace)),
        )

    def _recipe(
        self,
        planned: Planned,
        dependencies: Mapping[str, Built],
        workspace: Workspace,
        source: Path,
        *,
        drop: Sequence[str],
    ) -> Recipe:
        row, short_id = asdict(self.row), planned.sources[0].short_id
        build = {name: text.replace("{id}", short_id) for name, text in row["build"].items()}
        folder = workspace.work() / "row"
        folder.mkdir(exist_ok=True)
        write_atomically(
            folder / "row.json", json.dumps({**row, "build": build, "drop": list(drop)}, sort_keys=True).encode()
        )
        return Recipe(
            name=self.name,
            containerfile=f"{RECIPE}/Containerfile",
            base=workspace.image(dependencies["base"]),
            images={name.upper(): workspace.image(dependencies[name]) for name in ("torch", "triton")},
            contexts={"source": source, "wheels": wheel_folder(planned.sources[1:], workspace), "row": folder},
            steps=_WEIGHTS,
        )


@dataclass(frozen=True)
class WheelsStage:
    """The stage that makes an image with Triton, PyTorch and the wheels whose names `wheel_names` returns."""

    name: str = "wheels"

    def plan(self, request: Request, dependencies: Mapping[str, Planned]) -> Planned[tuple[WheelRow, ...]]:
        rows = tuple(wheel_row(name) for name in wheel_names(request))
        below = [dependencies[row.name] for row in rows]
        under = {name: dependencies[name].input_digest for name in ("torch", "triton", *(row.name for row in rows))}
        names, triton = "-".join(wheel.name for wheel in below), triton_id(dependencies["triton"])
        return Planned(
            name=self.name,
            image=f"wheels-{names}-triton-{triton}-{dependencies['base'].details.name}",
            inputs=stage_inputs(self.name, request, under),
            binaries=tuple(sorted({name for wheel in below for name in wheel.binaries})),
            partial="; ".join(f"{wheel.name} {wheel.partial}" for wheel in below if wheel.partial),
            disk=_DISK,
            engine=request.contract,
            has_contract_check=True,
            details=rows,
        )

    def build(
        self, planned: Planned[tuple[WheelRow, ...]], dependencies: Mapping[str, Built], workspace: Workspace
    ) -> Built:
        rows = planned.details
        below = [dependencies[row.name] for row in rows]
        made = {wheel.planned.name: wheel.facts["wheels"] for wheel in below}
        planned = replace(planned, binaries=tuple(sorted({name for wheel in below for name in wheel.binaries})))
        tree = emptied(workspace.work() / "tree")
        (tree / LISTING).parent.mkdir(parents=True)
        (tree / LISTING).write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return workspace.finish(
            planned,
            LayerContent(tree=tree),
            ImageParts(
                binaries=True,
                under=dependencies["triton"],
                beside=(dependencies["torch"], *below),
                environment=environment(rows),
            ),
            facts={"projects": [row.name for row in rows]},
            check=ContractCheck(run=check_imports(rows, workspace)),
        )


def check_imports(rows: Sequence[WheelRow], workspace: Workspace) -> Callable[[str], Mapping[str, Any]]:
    """Return a contract check that imports the modules of the rows in a fresh container of the image.

    In the container, all environment variables come from the image, except HOME and PYTHONDONTWRITEBYTECODE. The check
    raises ContractError if a module in the `imports` of a row cannot be imported, or if imports.py gives no result. For
    the packages in `walks`, the modules that cannot be imported are only listed in the result.
    """
    wanted = [name for row in rows for name in row.imports]

    def check(image: str) -> Mapping[str, Any]:
        workspace.step("contract")
        done = workspace.runner.run(
            image,
            ["python3", "/recipe/wheel/imports.py", *wanted, "--", *(name for row in rows for name in row.walks)],
            mounts=[Mount(recipe.root() / "containerfiles", "/recipe")],
            env={"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},  # noqa: S108 - the path is in a container
            log=workspace.log,
            capture=True,
            check=False,
        )
        try:
            result: dict[str, Any] = strict_json.read((done.stdout.strip().splitlines() or [""])[-1])
            result["failed"].keys()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ContractError(
                "wheel-not-importable", "the import check gave no result", why="\n".join(done.tail), fix="see the log"
            ) from None
        if wrong := [name for name in wanted if name in result["failed"]]:
            raise ContractError(
                "wheel-not-importable",
                f"{wrong[0]} cannot be imported in its image",
                why="\n".join(f"{name}: {result['failed'][name]}" for name in wrong),
                fix="check that `run` in its row of data/wheels.toml sets the environment variables that it needs",
            )
        return {"imports": result}

    return check


def environment(rows: Sequence[WheelRow]) -> dict[str, str]:
    """Return the environment variables that an image with the wheels of these rows sets."""
    needed = {name: text for row in rows for name, text in row.run.items()}
    return {**needed, "PYTHONPATH": f"{TRITON_SITE}:{SITE}"}


def stands_on(request: Request) -> tuple[str, ...]:
    """Return the names of the stages below the image with the requested wheels."""
    return ("base", "torch", "triton", *wheel_names(request))


def wheel_names(request: Request) -> tuple[str, ...]:
    """Return the names of the wheels to build, in the order of data/wheels.toml.

    If the request names wheels, only these are returned; otherwise all wheels in the file are returned.
    """
    return tuple(row.name for row in wheel_rows() if row.name in request.wheels or not request.wheels)


def wheel_source(row: WheelRow, request: Request) -> Source:
    """Return the source that the request names for a project, or else that of its row, without using the network."""
    own = (
        SourceSpec(kind="pypi", where=row.project)
        if row.project
        else SourceSpec(kind="git", where=row.repository, version=row.commit)
    )
    return request.locate(row.name, request.sources.get(row.name, own))


def require_needs(row: WheelRow, tree: Path, ref: str) -> None:
    """Raise SourceError if a source lacks a file that the recipe of its wheel needs."""
    if missing := [name for name in row.needs if not (tree / name).exists()]:
        raise SourceError(
            "source-incomplete",
            f"the source of {row.name} has no {missing[0]}",
            why=f"the recipe needs this file, and {ref} does not contain it",
            fix=f"give a complete checkout: --source {row.name}=PATH or URL@COMMIT",
        )


def check_content(row: WheelRow, wheel: Path) -> dict[str, Any]:
    """Compare a wheel with its row; raise ContractError if they differ.

    Returns:
        `{"tag", "files", "packages"}`: the tag in the wheel's name, the number of files in the wheel, and the names of
        its top folders, except that of the metadata.
    """
    match = re.search(r"-([^-]+-[^-]+-[^-]+)\.whl$", wheel.name)
    tag = match[1] if match else ""
    with open_wheel(wheel) as archive:
        names = archive.namelist()
    tops = sorted({name.partition("/")[0] for name in names if "/" in name and ".dist-info/" not in name})
    wrong = [f"its tag is {tag}, not {row.tag}"] if tag != row.tag else []
    wrong += [
        f"it must not contain {name}" for name in names if any(fnmatchcase(name, pattern) for pattern in row.without)
    ]
    wrong += [
        f"it contains {part}, which its row lists as missing"
        for part in row.lacks
        if any(fnmatchcase(name, part) for name in names)
    ]
    if set(tops) != set(row.packages):
        wrong.append(f"it contains {', '.join(tops)}, not {', '.join(row.packages)}")
    if wrong:
        raise ContractError(
            "wheel-row-mismatch",
            f"{wheel.name} does not match its row in data/wheels.toml",
            why="\n".join(wrong),
            fix=f"correct [wheels.{row.name}] in data/wheels.toml for this source",
        )
    return {"tag": tag, "files": len(names), "packages": tops}


def elsewhere(findings: Sequence[Finding], folders: Sequence[str]) -> list[Finding]:
    """Return the findings whose files are not below any of `folders`."""
    return [finding for finding in findings if not any(finding.file.startswith(f"{name}/") for name in folders)]


def _failure(name: str, failed: Sequence[str]) -> ToolchainError:
    kind, what, why = (*failed, "", "", "")[:3]
    # The kind may be unknown, because the project's code can also write result.json.
    error, fix = _FAILURES.get(kind, (BuildError, "see the log"))
    return error("wheel-build-refused", f"{name}: {what}", why=why, fix=fix)
