"""List the compiled kernels in a place (a file, a folder, an archive, a store or an image), with facts about each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolchain.core.cache import Cache
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, ToolchainError
from toolchain.core.stored_file import StoredFile
from toolchain_lab.examine.contents import FAULTS, Beside, Code, LaunchList, OnFault, Pack, contents, gpu_in, key_of
from toolchain_lab.examine.facts import Facts, read_object, read_ptx
from toolchain_lab.examine.places import advice, opened

_LAUNCH = ("name", "arch", "source", "signature", "constexprs", "num_warps", "num_stages", "waves_per_eu", "num_ctas")
_CACHED = ("num_warps", "num_stages", "num_ctas", "waves_per_eu")
_CACHE_FOLDER = re.compile(r"[A-Z2-7]{40,64}|[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A compiled kernel in a place.

    Args:
        key: the name of the kernel. `kernels_in` makes it unique in a place.
        facts: the facts about the kernel; None if it is empty, which AOTriton's loader treats as known bad.
        launch: a digest of the compilation inputs; empty if they are unknown.
        content: the bytes of the code object if the `keep` of `kernels_in` contains its digest; otherwise empty.
        packed: whether the kernel is in a pack of AOTriton and not empty.
        alike: the key that the kernel would have without its number, if `kernels_in` added one; otherwise empty.
    """

    key: str
    path: str
    sha256: str
    facts: Facts | None
    launch: str = ""
    content: bytes = field(default=b"", repr=False, compare=False)
    packed: bool = False
    alike: str = ""

    @property
    def gpu(self) -> str:
        """The GPU as in `Facts.gpu`; for an empty kernel, the GPU or the pack in its key, or an empty string."""
        if self.facts is not None:
            return self.facts.gpu
        return gpu_in(self.key)

    @property
    def family(self) -> str:
        """The name of the kernel's function; for an empty kernel, the third-to-last part of its key, or empty."""
        return self.facts.name if self.facts is not None else (self.key.split("/")[-3:-2] or [""])[0]


def kernels_in(
    what: str, cache: Cache, *, keep: Collection[str] = (), note: Callable[[str], None] | None = None
) -> list[Kernel]:
    """Return the kernels in a place, sorted by key.

    Args:
        what: the place; see `places.opened`.
        keep: the digests of the code objects whose content should be kept.
        note: a function that is called with a line for each kind of file that was skipped.

    ConfigError is raised if the place contains no compiled kernel, and KernelError if a file with kernels is damaged or
    cannot be unpacked here; see `places.opened` for more errors.
    """
    with opened(what, cache) as files:
        kernels = list(kernels_of(files, _refuse, keep=keep))
    if note is not None:
        for line in files.notes():
            note(f"{what}: {line}")
    if not kernels:
        raise ConfigError("nothing-compiled",
            f"{what} contains no compiled kernels",
            why="\n".join(["nothing in it is a code object, a pack of AOTriton, a result of a kernel store or PTX",
                           "kernels inside libraries are not read; `toolchain audit` lists their GPUs",
                           *files.notes()]),
            fix=advice(what, "a folder, pack, prefix, store, archive, wheel or image with kernels"),
        )  # fmt: skip
    return sorted(_numbered(kernels), key=lambda kernel: kernel.key)


def _refuse(error: ToolchainError) -> None:
    raise error


def kernels_of(files: Iterable[StoredFile], on_fault: OnFault, *, keep: Collection[str] = ()) -> Iterator[Kernel]:
    """Yield the kernels in `files`; call `on_fault` with an error for each damaged file."""
    waiting: list[tuple[str, Kernel]] = []
    beside: dict[str, Mapping[str, Any]] = {}
    for item in contents(files, on_fault):
        if isinstance(item, Beside):
            beside[item.stem] = {name: item.content[name] for name in _KEPT if name in item.content}
        elif not isinstance(item, LaunchList):
            codes = item.codes(on_fault) if isinstance(item, Pack) else [item]
            for kernel in (kernel for code in codes for kernel in _sound(code, on_fault)):
                if kernel.sha256 not in keep:  # the contents of thousands of kernels would fill the memory
                    kernel = replace(kernel, content=b"")  # noqa: PLW2901
                if isinstance(item, Code) and item.stem:
                    waiting.append((item.stem, kernel))  # the JSON file may come after its kernel
                else:
                    yield kernel
    for stem, kernel in waiting:
        yield _with_launch(kernel, beside.get(stem))


_KEPT = {*_LAUNCH, *_CACHED, "shared"}


def _sound(code: Code, on_fault: OnFault) -> Iterator[Kernel]:
    try:
        yield from _kernels(code)
    except FAULTS as error:
        on_fault(error)


def _kernels(code: Code) -> Iterator[Kernel]:
    content = code.read()
    key = f"{code.gpu}/{code.name.partition('#')[0]}" if code.gpu else code.name
    sha256 = hashlib.sha256(content).hexdigest()
    whole = Kernel(key=key_of(key), path=code.file, sha256=sha256, facts=None, content=content)
    if not content:
        yield whole
        return
    where = code.name if code.file == code.name else f"{code.file}: {code.name.rpartition('/')[2]}"
    if code.is_ptx:
        facts = read_ptx(content.decode("utf-8", "replace"), where)
    else:
        facts = read_object(content, where, shared=_shared(code.launch) if code.launch is not None else code.shared)
    for each in facts:
        if code.launch is not None:
            own = f"{each.gpu}/{each.name}/{_digest(dict(code.inputs.get('rule', {})))[:16]}"
            yield replace(whole, key=key_of(own), facts=each, launch=_launch(code.launch))
        else:
            several = len(facts) > 1 and not code.is_ptx
            own = key_of(f"{key}#{each.name}") if several else whole.key
            yield replace(whole, key=own, facts=each, packed=code.shared is not None)


def _with_launch(kernel: Kernel, launch: Mapping[str, Any] | None) -> Kernel:
    if launch is None or kernel.facts is None:
        return kernel
    lds = (kernel.facts.lds or 0) + (_shared(launch) or 0)
    return replace(kernel, facts=replace(kernel.facts, lds=lds), launch=_launch(launch), key=_cached(kernel, launch))


def _shared(launch: Mapping[str, Any]) -> int | None:
    shared = launch.get("shared")
    return shared if isinstance(shared, int) and 0 <= shared < 1 << 31 else None


def _launch(launch: Mapping[str, Any]) -> str:
    return _digest({name: launch.get(name) for name in _LAUNCH}) if {"signature", "constexprs"} <= launch.keys() else ""


def _cached(kernel: Kernel, launch: Mapping[str, Any]) -> str:
    """Return the key of a kernel.

    For a kernel in Triton's own cache, the key omits the folder, whose name differs for each Triton.
    """
    folder = kernel.key.rpartition("/")[0].rpartition("/")[2]
    if kernel.facts is None or not _CACHE_FOLDER.fullmatch(folder):
        return kernel.key
    same = {name: launch.get(name) for name in _CACHED}
    return f"{kernel.facts.gpu}/{kernel.facts.name}/{_digest(same)[:8]}"


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def _numbered(kernels: Iterable[Kernel]) -> Iterator[Kernel]:
    """Yield the kernels, with a number appended to repeated keys.

    In Triton's caches, keys repeat for constants such as block sizes, and the names of the folders are different for
    each Triton. So the numbers follow the sizes of the kernels, and not the order of the folders. In bundles, keys
    repeat for variants with and without XNACK. `diff.compare` pairs such kernels by their content and size.
    """
    by_key: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_key.setdefault(kernel.key, []).append(kernel)
    for key, alike in by_key.items():
        alike.sort(key=size)
        yield alike[0]
        for number, kernel in enumerate(alike[1:], 2):
            yield replace(kernel, key=f"{key}~{number}", alike=key)


def size(kernel: Kernel) -> tuple[bool, int, int, int, str]:
    """Return the numbers by which kernels with the same key are sorted."""
    facts = kernel.facts
    if facts is None:
        return False, 0, 0, 0, kernel.sha256
    return facts.xnack, facts.code, facts.vgpr or 0, facts.lds or 0, kernel.sha256
