"""Check, before anything is built, that the user's own base (`--base oci:DIR`) contains the tools that builds need."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache as memoize

from toolchain.catalog.architectures import this_machine
from toolchain.catalog.codegen import codegens
from toolchain.catalog.release_data import numbers
from toolchain.core import console, strict_json
from toolchain.core.digest import sha256_bytes, write_atomically
from toolchain.core.errors import UnsupportedError, UntrustedError
from toolchain.core.pages import page
from toolchain.core.recipe import Runner
from toolchain.data import FOLDER, load
from toolchain.oci.check import verify_layout
from toolchain.oci.descriptor import Descriptor
from toolchain.oci.layout import Layout
from toolchain.request.model import Request
from toolchain.sources.pypi import pypi_row, python_of_wheel
from toolchain.stages.base import LocalImage, local_image
from toolchain.stages.prebuilt import Known, known_files
from toolchain.stages.stage import Planned

DOCS = "docs/bases.md"
_TIMEOUT = 300.0
_EL = {"rhel", "centos", "fedora", "almalinux", "rocky", "ol"}


@dataclass(frozen=True, kw_only=True)
class Way:
    """A tool that can meet a need.

    Args:
        tool: the name of the tool in the output of data/probe-base.sh.
        least: the oldest version that is accepted; empty if every version is accepted.
        exact: the required version, or its first numbers; empty if no particular version is required.
    """

    tool: str
    least: str = ""
    exact: str = ""

    def fault(self, tools: Mapping[str, str]) -> str:
        """Return why this tool does not meet the need, or an empty string if it does.

        Args:
            tools: the version of each tool in the base, by the tool's name.
        """
        if self.tool not in tools:
            return f"no {self.tool}"
        have = tools[self.tool]
        if self.exact:
            wanted = "" if f"{have}.".startswith(f"{self.exact}.") else self.exact
        else:
            wanted = f"{self.least} or newer" if self.least and numbers(have) < numbers(self.least) else ""
        return f"{self.tool} is {have or 'of an unknown version'}, but {wanted} is needed" if wanted else ""


@dataclass(frozen=True, kw_only=True)
class Need:
    """A requirement for a base; see data/needs.toml.

    Args:
        users: the stages that need it (`llvm`, `triton`, `aotriton`), or `triton-wheel` for a wheel of Triton.
        ways: the alternative tools; one of them is enough.
        debian, el: the packages to install on Debian and on Enterprise Linux; empty if there are none.
        why: the purpose of the tools, for messages.
    """

    name: str
    users: tuple[str, ...]
    ways: tuple[Way, ...]
    debian: str
    el: str
    why: str

    def fault(self, tools: Mapping[str, str]) -> str:
        """Return why no tool meets the need, or an empty string if one does.

        Args:
            tools: the version of each tool in the base, by the tool's name.
        """
        faults = [way.fault(tools) for way in self.ways]
        if not all(faults):
            return ""
        return "; ".join(faults) if any(way.tool in tools for way in self.ways) else "not found"


@memoize
def needs() -> tuple[Need, ...]:
    """Return the rows of data/needs.toml."""
    return tuple(
        Need(
            users=tuple(row["for"]),
            ways=tuple(Way(**way) for way in row["any"]),
            **{name: row[name] for name in ("name", "debian", "el", "why")},
        )
        for row in load("needs")["need"]
    )


def check(request: Request, planned: Sequence[Planned]) -> None:
    """Raise UnsupportedError if a user's base lacks tools that the stages need; the error names all of them.

    The result of data/probe-base.sh is cached for each image, script and list of arguments. If it is not cached yet,
    UntrustedError is raised if the image does not match its digests, and UnsupportedError if the image cannot run a
    shell.
    """
    users = users_of(planned)
    if not users:
        return
    tools = _tools_of(request)
    lacking = [need for need in needs_of(request, users) if need.fault(tools)]
    if not lacking:
        return
    names = ", ".join(dict.fromkeys(need.name for need in lacking))
    lines = [
        f"{need.name}: {need.fault(tools)} (for {', '.join(sorted(set(need.users) & users))}: {need.why})"
        for need in lacking
    ]
    raise UnsupportedError(
        "base-incomplete",
        f"the base {request.base} lacks {names}",
        why="\n".join(lines),
        fix="\n".join([*_install(lacking, tools), f"{page(DOCS)} lists what a base must contain"]),
    )


def users_of(planned: Sequence[Planned]) -> set[str]:
    """Return which of the names in `Need.users` apply to a plan.

    A stage that is not built in a container needs no tools of the base.
    """
    inside = {stage.name for stage in planned if stage.engine}
    users = inside & {"llvm", "triton", "aotriton"}
    # The LLVMs for GPUs and the libraries built on them need the same tools as LLVM.
    users |= {"llvm"} if inside & {name for codegen in codegens() for name in (codegen.llvm, codegen.stage)} else set()
    if inside - {"base", "llvm"} and any("triton-wheel" in stage.binaries for stage in planned):
        users.add("triton-wheel")
    return users


def needs_of(request: Request, users: Collection[str]) -> list[Need]:
    """Return the needs of `users`, which are names as in `Need.users`.

    The needs of `triton` include the Pythons that `--python` names, unless the wheel is portable. They also include the
    files of the base that replace prebuilt files of Triton, unless an option allows or drops the prebuilt file.
    """
    needed = [_python_of_wheel(request, need, users) for need in needs() if set(need.users) & set(users)]
    if "triton" in users:
        # A portable wheel is compiled against unpacked CPythons, so it does not need the base's Pythons.
        for version in () if request.glibc else request.pythons:
            needed += [_python(version, "", f"python{version}"), _python(version, " headers", f"python{version}.h")]
        decided = {*request.allow_binary, *request.drop_binary}
        needed += [_bitcode(row) for row in _replaced() if not {row.name, row.path} & decided]
    return needed


def _replaced() -> list[Known]:
    """Return the prebuilt files that most Tritons contain and that files of the base replace."""
    return [row for row in known_files() if row.source == "triton" and row.replace and not row.rare]


def _bitcode(row: Known) -> Need:
    why = f"it replaces {row.path}; or use --allow-binary {row.name} or --drop-binary {row.name}"
    ways = (Way(tool=f"{row.name}.bc"),)
    return Need(name=f"AMD's {row.name}.bc", users=("triton",), ways=ways, debian="rocm-device-libs-17", el="", why=why)


def _python_of_wheel(request: Request, need: Need, users: Collection[str]) -> Need:
    """Return the need for Python of a Triton wheel from the package index, with the version that its file name gives.

    Any other need, and a need that AOTriton shares, is returned unchanged.
    """
    spec = request.sources.get("triton")
    if spec is None or spec.kind != "pypi" or need.name != "Python" or set(need.users) & set(users) != {"triton-wheel"}:
        return need
    file = pypi_row(spec.where, spec.version).file
    version, later = python_of_wheel(file)
    way = Way(tool="python3", least=version) if later else Way(tool="python3", exact=version)
    return replace(need, ways=(way,), why=f"required by {file}")


def _python(version: str, what: str, tool: str) -> Need:
    ways = (Way(tool=tool),)
    package = f"python{version}"
    debian, el = (f"{package}-dev", f"{package}-devel") if what else (package, package)
    return Need(
        name=f"Python {version}{what}", users=("triton",), ways=ways, debian=debian, el=el, why="requested by --python"
    )


def _tools_of(request: Request) -> dict[str, str]:
    own = replace(request, arch=(this_machine(),))
    image = local_image(own)
    text = (FOLDER / "probe-base.sh").read_text(encoding="utf-8")
    words = [*request.pythons, *(f"{row.name}.bc={row.replace}" for row in _replaced())]
    key = sha256_bytes("\n".join([text, *words]).encode()).removeprefix("sha256:")[:8]
    kept = request.cache.probed(image.digest, key)
    try:
        return {str(name): str(version) for name, version in strict_json.read(kept.read_bytes()).items()}
    except (OSError, ValueError, AttributeError):
        pass
    _require_intact(request, image)
    console.note(f"base {request.base}: looking for the tools that builds need")
    from toolchain.engine.buildah import Buildah  # noqa: PLC0415 - a known base starts no engine

    engine = Buildah(request.cache)
    name = engine.ensure_image(f"toolchain-base-{image.name}", image.root, image.digest)
    tools = probe(engine, name, words, text)
    write_atomically(kept, json.dumps(tools, indent=1, sort_keys=True).encode())
    return tools


def _require_intact(request: Request, image: LocalImage) -> None:
    layout = Layout(image.root)
    top = Descriptor(image.media_type, image.digest, layout.blob(image.digest).stat().st_size)
    if faults := verify_layout(layout, top):
        raise UntrustedError(
            faults[0].id,
            f"the base {request.base} does not match its digests",
            why=faults[0].text,
            fix="fetch the image or make it again",
        )


def probe(runner: Runner, image: str, words: Sequence[str], text: str) -> dict[str, str]:
    """Run data/probe-base.sh in an image, and return the version of each tool that it finds, by the tool's name.

    The version is empty if it is unknown. UnsupportedError is raised if the image cannot run the script.

    Args:
        image: the engine's name for the image.
        words: the arguments of the script.
        text: the content of the script.
    """
    # fmt: off
    done = runner.run(
        image, ["sh", "-c", text, "probe", *words], env={"HOME": "/tmp"},  # noqa: S108 - it is in the container
        capture=True, check=False, timeout=_TIMEOUT,
    )
    # fmt: on
    lines = done.stdout.splitlines()
    if "probed" not in lines:
        raise UnsupportedError(
            "base-without-shell",
            "the base cannot run a shell",
            why="\n".join(done.tail[-5:]),
            fix=f"builds are shell scripts; {page(DOCS)} lists what a base must contain",
        )
    rows = [line.removeprefix("found ").partition(" ") for line in lines if line.startswith("found ")]
    return {name: version.strip() for name, _, version in rows}


def _install(lacking: Sequence[Need], tools: Mapping[str, str]) -> list[str]:
    """Return the installation command for each family of distributions that the base may belong to."""
    system = {tools.get("os", ""), *tools.get("like", "").split()}
    debian = " ".join(dict.fromkeys(need.debian for need in lacking if need.debian))
    el = " ".join(dict.fromkeys(need.el for need in lacking if need.el))
    ways = []
    if debian and not system & _EL:
        ways.append(f"on Debian and Ubuntu: apt-get install {debian}")
    if el and not system & {"debian", "ubuntu"}:
        ways.append(f"on Enterprise Linux: dnf install {el}")
    return ways
