"""A kernel store behind a URL that fsspec knows: `s3://BUCKET/PREFIX`, and whatever else has a file system there.

An object store has neither folders nor appending, and takes a whole object or none. So each result is an object of its
own, `results/SCOPE/GPU/NAME`, and what is there is listed once: a miss asks nothing, and others' results are not seen.
fsspec is an extra of the tool, and takes credentials and addresses as its own documentation says.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from toolchain import strict_json
from toolchain.digest import canonical
from toolchain.errors import ConfigError, RegistryError, ToolchainError
from toolchain.kernels.result_name import FORMAT
from toolchain.kernels.store import Addition, check_note
from toolchain.kernels.untrusted import seconds

MARKER = "kernel-store.json"
_TOGETHER = 64  # objects that are asked for at once
_NAME = re.compile(r"[0-9a-f]{64}")


class UrlStore:
    """Records as objects. Any number of processes may read and write them.

    Args:
        url: with its scheme.

    Raises:
        ConfigError: fsspec or its part for this scheme is not installed, or there is a store of another format.
        RegistryError: it cannot be asked.
    """

    def __init__(self, url: str) -> None:
        self.ref = url
        self._fs, self._root = _file_system(url)
        self._scope = ""
        self._paths: dict[str, str] = {}
        self._seconds: dict[str, dict[str, float]] = {}
        with self._asking("be read"):
            marker = self._read(MARKER)
        if marker is not None and marker != canonical({"format": FORMAT}):
            raise ConfigError(f"{url} is a kernel store of another format", fix="name another place")
        self._marked = marker is not None

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except ToolchainError:
            raise
        except Exception as error:  # each file system has errors of its own
            raise RegistryError(
                f"the kernel store {self.ref} cannot {what}",
                why=f"{type(error).__name__}: {error}"[:500],
                fix="look at its address, credentials and room, and run it again: it goes on",
            ) from error

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _read(self, path: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(self._at(path)))
        except FileNotFoundError:
            return None

    def _list(self, folder: str) -> list[str]:
        """Paths of the objects below a folder, without the root."""
        self._fs.invalidate_cache()  # others write there
        found = self._fs.find(self._at(folder))
        start = len(self._at("").lstrip("/"))
        return sorted(path.lstrip("/")[start:] for path in found)

    def _write(self, path: str, content: bytes, *, first: bool = False) -> None:
        with self._asking("be written"):
            if not self._marked and path != MARKER:
                self._write(MARKER, canonical({"format": FORMAT}))
                self._marked = True
            if first:
                # Most refuse the second writer themselves; where one does not, it is seen here unless both are at once.
                if not self._fs.exists(self._at(path)):
                    with contextlib.suppress(FileExistsError):
                        self._fs.pipe_file(self._at(path), content, mode="create")
            else:
                self._fs.pipe_file(self._at(path), content)

    def prepare(self, scope: str, targets: Sequence[str]) -> None:
        """See `KernelStore`."""
        self._scope = scope
        with self._asking("be read"):
            for target in targets:
                for path in self._list(f"results/{scope}/{target}"):
                    name = path.rpartition("/")[2]
                    if _NAME.fullmatch(name):
                        self._paths[name] = path

    def holds(self, name: str) -> bool:
        """See `KernelStore`."""
        return name in self._paths

    def fetch(self, names: Collection[str]) -> Iterator[tuple[str, bytes | None]]:
        """See `KernelStore`."""
        there = [name for name in names if name in self._paths]
        for at in range(0, len(there), _TOGETHER):
            inside = {self._at(self._paths[name]): name for name in there[at : at + _TOGETHER]}
            with self._asking("be read"):
                found = self._fs.cat(list(inside), on_error="return")
            for path, content in found.items():
                name = inside[next(one for one in (path, f"/{path}") if one in inside)]
                if isinstance(content, FileNotFoundError):
                    continue
                if isinstance(content, Exception):
                    with self._asking("be read"):
                        raise content
                yield name, bytes(content)

    def add(self, addition: Addition, *, replace: bool = False) -> int:
        """See `KernelStore`."""
        if addition.name in self._paths and not replace:
            return 0
        path = f"results/{self._scope}/{addition.target}/{addition.name}"
        self._write(path, addition.record)
        self._paths[addition.name] = path
        self._seconds.setdefault(addition.target, {})[addition.rule] = addition.seconds
        return 1

    def flush(self) -> int:
        """See `KernelStore`. Records are stored; the seconds go out as one object for each GPU."""
        for target in tuple(self._seconds):
            content = canonical(self._seconds[target])
            name = hashlib.sha256(content).hexdigest()[:16]
            self._write(f"seconds/{target}/{name}.json", content)
            del self._seconds[target]
        return 0

    def seconds(self, targets: Sequence[str]) -> Mapping[str, float]:
        """See `KernelStore`."""
        found: dict[str, float] = {}
        with self._asking("be read"):
            for target in targets:
                for path in self._list(f"seconds/{target}"):
                    with contextlib.suppress(ValueError, TypeError, AttributeError):
                        rows = strict_json.read(self._read(path) or b"{}")
                        found |= {str(rule): seconds(value) for rule, value in rows.items()}
        return found

    def note(self, name: str, content: bytes, *, first: bool = False) -> bytes:
        """See `KernelStore`. Two writers at once may both be the first where the place cannot refuse the second."""
        path = f"notes/{check_note(name)}.json"
        self._write(path, content, first=first)
        with self._asking("be read"):
            return self._read(path) or b""

    def notes(self, prefix: str) -> Mapping[str, bytes]:
        """See `KernelStore`."""
        with self._asking("be read"):
            found = {path.removeprefix("notes/").removesuffix(".json"): path for path in self._list("notes")}
            return {name: self._read(path) or b"" for name, path in found.items() if name.startswith(prefix)}

    def close(self) -> None:
        """See `KernelStore`."""


def _file_system(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    extra = "pip install '.[fsspec]', in a checkout of this tool"
    try:
        import fsspec  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(f"--kernel-store {url} needs fsspec", why="it is not installed", fix=extra) from error
    try:
        # A file system of its own: one that is shared keeps lists of what others have changed since.
        system = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)
        root = str(system._strip_protocol(url)).rstrip("/")
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"--kernel-store {url} cannot be used", why=str(error), fix=f"{extra}, or take a scheme that fsspec knows"
        ) from error
    return system, root
