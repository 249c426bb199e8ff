"""Write archives of LLVM and AOTriton, and wheels, with file names that resemble those of upstream."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from toolchain import __version__
from toolchain.catalog.architectures import machine_of
from toolchain.catalog.gpus import short_list
from toolchain.catalog.stages import STAGES, involves
from toolchain.catalog.wheel_rows import wheel_rows
from toolchain.core import console, strict_json
from toolchain.core.cache import Cache
from toolchain.core.digest import FORMAT, sha256_file, sha256_json, write_atomically
from toolchain.core.errors import ConfigError, HostileInputError, SourceError
from toolchain.core.filesystem import NewFile
from toolchain.core.permissions import for_user, make_named
from toolchain.core.record import Record
from toolchain.oci.files import is_plain_name
from toolchain.oci.image import platform_of
from toolchain.oci.layer import compressor_id, write_tar_gz
from toolchain.oci.layout import Layout
from toolchain.pipeline.records import stages_below
from toolchain.sources.commit_archives import commit_of
from toolchain.sources.spec import SourceSpec
from toolchain.sources.unpack import unpack_tar
from toolchain.stages.base import label_of
from toolchain.stages.wheels import in_store

_Write = Callable[[Cache, Record, Path], list[Path]]
# The file names of LLVM's archives contain these names of architectures instead of OCI's.
_ARCH = {"amd64": "x64"}


def check_folder(target: str, folder: Path, sources: Mapping[str, SourceSpec]) -> None:
    """Create the folder for archives before the build, so that a mistake is reported early.

    ConfigError is raised if no stage of the build has plain files, if the folder is in a source of the build, or if
    it is not writable.
    """
    if not any(involves(target, name) for name in FORMS):
        raise no_plain_form("--archive", "build")
    counted = {name for row in STAGES if involves(target, row.name) for name in row.sources}
    for name, spec in sources.items():
        tree = spec.path if name in counted else None
        if tree is not None and tree.is_dir() and folder.resolve().is_relative_to(tree.resolve()):
            raise ConfigError(
                "archive-in-source",
                f"--archive {folder} is in the source {name}",
                why=f"every file in {tree} is an input, so the archives would change the inputs of the next build",
                fix="name a folder outside of the source: --archive "
                + os.path.relpath(tree.resolve().parent / (folder.name or "files")),
            )
    try:
        make_named(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = str(error.strerror)
        raise ConfigError(
            "archive-unwritable", f"--archive {folder} is not writable", why=why, fix="name a writable folder"
        ) from error


def write_archives(cache: Cache, records: Sequence[Record], folder: Path) -> list[Path]:
    """Write the plain files of the images whose stages have any, and return the paths of the files.

    Archives of the same image that are already in the folder, unchanged, are not written again.
    """
    make_named(folder)
    cache.work.mkdir(parents=True, exist_ok=True)
    made = [path for record in records if record.stage in FORMS for path in FORMS[record.stage](cache, record, folder)]
    for path in made:
        path.chmod(for_user(0o644))
    return made


def no_plain_form(option: str, verb: str) -> ConfigError:
    """Return the error for an option that needs plain files when no requested stage has any."""
    return ConfigError(
        "option-not-for-stage",
        f"{option} is only for {', '.join(FORMS)}",
        why="other stages have no plain files",
        fix=f"leave out {option}, or {verb} one of these stages",
    )


def _packed_once(write: _Write) -> _Write:
    """Return a function like `write` that skips an image whose files are already in the folder, unchanged."""

    @functools.wraps(write)
    def again(cache: Cache, record: Record, folder: Path) -> list[Path]:
        made_of = [__version__, FORMAT, compressor_id("gzip"), record.image, record.manifest, dict(record.facts)]
        note = cache.root / "archives" / f"{sha256_json(made_of).removeprefix('sha256:')[:16]}.json"
        known: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            known = strict_json.read(note.read_bytes())
        paths = [folder / name for name in known]
        if known and all(path.is_file() and sha256_file(path) == known[path.name] for path in paths):
            return paths
        console.note(f"{record.stage}: packing {record.image} for {console.one_line(str(folder))}")
        paths = write(cache, record, folder)
        write_atomically(note, json.dumps({path.name: sha256_file(path) for path in paths}, indent=1).encode())
        return paths

    return again


@contextlib.contextmanager
def _tree(cache: Cache, record: Record) -> Iterator[Path]:
    """Yield a temporary folder with the unpacked top layer of an image."""
    layout = Layout(cache.images)
    layer = layout.children(layout.resolve(record.manifest))[-1]
    with tempfile.TemporaryDirectory(dir=cache.work, prefix="archive-") as scratch:
        tree = Path(scratch) / "tree"
        unpack_tar(layout.blob(layer.digest), tree, strip=0)
        yield tree


def _platform(cache: Cache, record: Record) -> str:
    """Return the architecture that the config of an image names."""
    layout = Layout(cache.images)
    return platform_of(layout.read_json(layout.children(layout.resolve(record.manifest))[0])).arch


@_packed_once
def llvm(cache: Cache, record: Record, folder: Path) -> list[Path]:
    """Write the prefix of an LLVM image as `llvm-<id>-<base>-<arch>.tar.gz`.

    The archive has a single top folder, whose name is that of the archive without `.tar.gz`.
    """
    stem = record.image.replace("llvm-triton-", "llvm-", 1)
    arch = _platform(cache, record)
    out = folder / f"{stem}-{_ARCH.get(arch, arch)}.tar.gz"
    with _tree(cache, record) as tree:
        prefix = tree / str(record.facts["prefix"]).lstrip("/")
        write_tar_gz(prefix, out, top=out.name.removesuffix(".tar.gz"))
    return [out]


def wheels(cache: Cache, record: Record, folder: Path) -> list[Path]:
    """Write the wheels that the stage of an image built, but not wheels that it took from the package index.

    SourceError is raised if a wheel is no longer in the store, and HostileInputError if the name of a wheel is unsafe.
    """
    written = []
    for wheel in record.facts.get("wheels", ()):
        kept = in_store(cache, wheel["digest"])
        if kept is None:
            raise SourceError(
                "stored-wheel-missing",
                f"{wheel['file']} is no longer in the store",
                why="the image contains only the unpacked wheel",
                fix="reuse an image that was published with --files (--reuse-from), or delete the record of this stage "
                "and build it again",
            )
        if not is_plain_name(wheel["file"]):
            raise HostileInputError(
                "wheel-name-unsafe",
                f"the wheel of {record.image} has the unsafe name {wheel['file'][:200]!r}",
                fix="do not use the image, and build it here",
            )
        out = folder / wheel["file"]
        # The file is copied, because an edit of a hard link would change the store.
        with NewFile(out) as new, kept.open("rb") as stream:
            shutil.copyfileobj(stream, new.stream)
            new.finish(wheel["digest"])
        written.append(out)
    return written


@_packed_once
def aotriton(cache: Cache, record: Record, folder: Path) -> list[Path]:
    """Write an archive of the AOTriton library, and an archive of each pack of kernels.

    The library's archive is `aotriton-<git12>-<base>_<machine>-hip<minor>-<gpus>-shared.tar.gz`. If the library
    is built for a glibc floor, an archive is written for each ROCm version instead, such as
    `aotriton-<git12>-glibc_2_31_<machine>-rocm6-<gpus>-shared.tar.gz`. The archive of a pack is
    `aotriton-<git12>-images-<pack>.tar.gz`. Names also show whether the build is partial, whether a pack lacks GPUs of
    its family, and how many kernels are known to be bad. `<git12>` stands for the first 12 digits of the commit, or, if
    the commit is unknown, for `tree` and the first 12 digits of the source's digest.
    """
    facts = record.facts
    short = _commit(record)[:12] or f"tree{str(facts['sha1'])[:12]}"
    hip = ".".join(str(facts["hip"]).split(".")[:2]) or "unknown"
    base = next((label_of(stage.inputs) for stage in stages_below(cache, record.inputs) if stage.stage == "base"), "")
    machine, gpus = machine_of(_platform(cache, record)).kernel, short_list(facts["gpus"])
    kernels = facts["kernels"]
    bad = int(kernels["failed"]) + int(kernels["timed_out"])
    part = any(record.inputs.get(name) for name in ("select", "limit", "shard"))
    inside = "" if facts["packs"] else ("-partial" if part else "") + (f"-knownbad{bad}" if bad else "")
    # The library supports only the GPUs in its name. In old releases, the library also contains their kernels.
    tail = f"-{gpus}{inside}-shared.tar.gz"
    runtimes = {"": f"aotriton-{short}-{base}_{machine}-hip{hip}{tail}"}
    if rocms := facts.get("rocm", {}):
        floor = str(record.inputs["glibc"]).replace(".", "_")
        runtimes = {f"rocm{rocm}": f"aotriton-{short}-glibc_{floor}_{machine}-rocm{rocm}{tail}" for rocm in rocms}
    by_pack = facts.get("known_bad_by_pack", {})
    written = []
    with _tree(cache, record) as tree:
        prefix = tree / str(facts["prefix"]).lstrip("/")
        for below, name in runtimes.items():
            write_tar_gz(prefix / below, folder / name, top="aotriton", exclude=("lib/aotriton.images",))
            written.append(folder / name)
        for pack in facts["packs"]:
            lacks = pack in facts.get("lacking", {})
            kind = "images" + ("-partial" if part or lacks else "")
            # Packs that lack different GPUs need different names.
            kind += f"-{short_list(facts['gpus_by_pack'][pack])}" if lacks else ""
            known_bad = int(by_pack.get(pack, 0) if by_pack else bad)
            kind += f"-knownbad{known_bad}" if known_bad else ""
            out = folder / f"aotriton-{short}-{kind}-{pack}.tar.gz"
            write_tar_gz(prefix, out, top="aotriton", exclude=_all_but(prefix, pack))
            written.append(out)
    return written


def _commit(record: Record) -> str:
    """Return the commit of an image's AOTriton, or an empty string if it is unknown."""
    source = next(row for row in record.sources if row.name == "aotriton")
    # If the source is not a repository, this fact is a digest.
    return str(record.facts["sha1"]) if source.kind == "git" else commit_of(str(source.digest))


def _all_but(prefix: Path, pack: str) -> tuple[str, ...]:
    """Return the paths in a prefix that do not belong to the pack `pack`, as patterns to exclude."""
    images = prefix / "lib/aotriton.images"
    kept = {images.parent, images, images / pack}
    beside = (path for folder in (prefix, images.parent, images) for path in folder.iterdir() if path not in kept)
    return tuple(sorted(path.relative_to(prefix).as_posix() for path in beside))


# These functions, by stage, write the plain files of an image.
FORMS: dict[str, _Write] = {
    "llvm": llvm, "triton": wheels, "aotriton": aotriton,
    **{row.name: wheels for row in wheel_rows()},
}  # fmt: skip
