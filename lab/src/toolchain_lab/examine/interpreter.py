"""Find a Python interpreter and the Triton that is installed for it, without running either.

The files are only read, because Triton is untrusted code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path

from toolchain.core import process
from toolchain.core.errors import ConfigError, KernelError
from toolchain.core.filesystem import read_regular
from toolchain.engine import launcher

_LARGEST = 1 << 20  # bytes; the limit for a .pth file, for pyvenv.cfg and for entry_points.txt
_LIBRARIES = ("lib", "lib64")


@dataclass(frozen=True)
class Interpreter:
    """A CPython interpreter that is installed on the host.

    Args:
        named: the path or the name on `PATH` by which the user named it.
        file: the path of the program, with links resolved.
        prefix: the folder that contains `bin` and `lib`.
        environment: the folder of the virtual environment in which `named` was found; None if it was found elsewhere.
    """

    named: str
    file: Path
    prefix: Path
    environment: Path | None = None

    def files(self) -> list[Path]:
        """Return the paths that the interpreter needs in addition to system folders such as `/usr`."""
        if self.prefix.parts[1] in launcher.SYSTEM:
            return []
        return [self.file, *(folder for name in _LIBRARIES if (folder := self.prefix / name).is_dir())]


def interpreter_at(named: str) -> Interpreter:
    """Return the interpreter that the user names, by a path or by a name that is on `PATH`.

    EngineError is raised if there is no such program, and KernelError if it is not a Python with a standard library.
    """
    path = Path(process.which(named)).absolute()
    file = path.resolve()
    # Like Python, look for pyvenv.cfg in these two folders without resolving links first.
    environment = next((at for at in (path.parent.parent, path.parent) if (at / "pyvenv.cfg").is_file()), None)
    prefix = file.parent.parent
    if file == Path(sys.executable).resolve():
        prefix = Path(sys.base_prefix).resolve()
    found = Interpreter(named, file, prefix, environment)
    if len(prefix.parts) < 2 or (
        prefix.parts[1] not in launcher.SYSTEM
        and not any(any(prefix.glob(f"{name}/python3*/os.py")) for name in _LIBRARIES)
    ):
        raise KernelError(
            "not-a-python",
            f"{named} is not a Python interpreter",
            why=f"{file} has no standard library in {prefix}",
            fix="name the interpreter itself, not a script that starts it: --with-python PATH",
        )
    return found


def triton_of(interpreter: Interpreter, version: str) -> list[tuple[Path, str]]:
    """Return the folders that make up the Triton of an interpreter, each with the name under which it must be visible.

    These are the package `triton`, the metadata through which it finds its backends, and the libraries that its wheel
    bundles.

    Args:
        version: the interpreter's version, such as `3.12`.
    """
    folders = list(_module_folders(interpreter, version))
    package = next((at / "triton" for at in folders if (at / "triton" / "__init__.py").is_file()), None)
    if package is None:
        raise ConfigError(
            "python-without-triton",
            f"Triton is not installed for {interpreter.named}",
            why="there is no folder `triton` in its site-packages, nor in the folders that .pth files there name",
            fix="give --triton-wheel VERSION, or install Triton for that Python, but not in editable mode",
        )
    found = {"triton": package}
    for info in (info for at in folders for end in ("dist-info", "egg-info") for info in sorted(at.glob(f"*.{end}"))):
        if info.is_dir() and _names_backends(info):
            found.setdefault(info.name, info)
            bundled = info.parent / f"{info.name.partition('-')[0]}.libs"
            if bundled.is_dir():
                found.setdefault(bundled.name, bundled)
    return [(path, name) for name, path in found.items()]


def _module_folders(interpreter: Interpreter, version: str) -> Iterator[Path]:
    for site in _site_folders(interpreter, version):
        if not site.is_dir():
            continue
        yield site
        for file in sorted(site.glob("*.pth")):
            yield from _added(site, file)


def _site_folders(interpreter: Interpreter, version: str) -> Iterator[Path]:
    inside = interpreter.environment
    if inside is not None:
        yield from (inside / name / f"python{version}" / "site-packages" for name in _LIBRARIES)
        if not re.search(r"(?mi)^include-system-site-packages\s*=\s*true\s*$", _text(inside / "pyvenv.cfg")):
            return
    yield Path("~").expanduser() / ".local/lib" / f"python{version}" / "site-packages"
    prefix = interpreter.prefix
    if prefix == Path("/usr"):
        yield Path(f"/usr/local/lib/python{version}/dist-packages")
    for name in _LIBRARIES:
        yield from (prefix / name / f"python{version}" / kind for kind in ("site-packages", "dist-packages"))
        yield prefix / name / "python3" / "dist-packages"


def _added(site: Path, file: Path) -> Iterator[Path]:
    for line in _text(file).splitlines():
        if line.strip() and not line.startswith(("#", "import ", "import\t")):
            folder = site / line.strip()
            if folder.is_dir():
                yield folder


def _names_backends(info: Path) -> bool:
    if not _text(info / "entry_points.txt"):
        return False
    named = [entry.value for entry in PathDistribution(info).entry_points if entry.group == "triton.backends"]
    return bool(named) and all(value.startswith("triton.") for value in named)


def _text(file: Path) -> str:
    try:
        return read_regular(file, _LARGEST).decode(errors="replace")
    except OSError:
        return ""
