"""Make the report about the subject that the command line names."""

from __future__ import annotations

import contextlib
from pathlib import Path

from toolchain.core import strict_json
from toolchain.core.cache import LEDGER, Cache
from toolchain.core.errors import ConfigError, DocumentError, SourceError
from toolchain.core.filesystem import read_regular
from toolchain.kernels.ledger import look
from toolchain_lab.examine.kernels import Kernel, kernels_in
from toolchain_lab.report.content import Report
from toolchain_lab.report.differences import json_report
from toolchain_lab.report.kernel_tables import campaign_report, kernels_report

_LARGEST = 512 << 20  # bytes; the limit for a JSON document
_SQLITE = b"SQLite format 3\0"


def report_of(what: str, cache: Cache) -> Report:
    """Return the report about a subject.

    Args:
        what: a .json file from `kernels diff --json` or `audit --json`; the ledger, the folder or the name of a
            campaign; the name of a finished image in the cache; or a place with kernels, see `examine.places.opened`.
    """
    path = Path(what)
    campaign = cache.work / what / LEDGER
    if "/" not in what and not path.exists() and campaign.is_file():
        return _campaign(campaign, what, cache)
    if path.is_dir() and (path / LEDGER).is_file():
        return _campaign(path / LEDGER, path.resolve().name, cache)
    if path.is_file() and path.suffix == ".json":
        return json_report(_document(path), path.name)
    if path.is_file() and _is_ledger(path):
        return _campaign(path, path.name.removesuffix(f".{LEDGER}"), cache)
    if not path.exists() and "/" not in what and not what.startswith("oci:"):
        from toolchain.pipeline.finished_images import one_image  # noqa: PLC0415 - only names of images need it
        from toolchain_lab.report.builds import build_report  # noqa: PLC0415

        try:
            return build_report(cache, one_image(cache, what))
        except SourceError as error:
            if error.id == "image-not-found":
                error.what = f"there is no file, folder or campaign {what}, and {error.what}"
                error.fix += "; `toolchain kernels status` lists unfinished campaigns"
            raise
    return kernels_report(what, kernels_in(what, cache))


def _campaign(ledger: Path, name: str, cache: Cache) -> Report:
    entries = look(ledger).entries
    if not entries:
        raise ConfigError(
            "ledger-empty",
            f"{ledger} contains no kernels yet",
            fix="wait for the first one, or name another campaign",
        )
    kernels: list[Kernel] = []
    if ledger.name == LEDGER:  # an unfinished campaign's ledger has this name, and is next to the code objects
        with contextlib.suppress(ConfigError):
            kernels = kernels_in(str(ledger.parent), cache)
    return campaign_report(name, entries, kernels)


def _document(path: Path) -> object:
    try:
        return strict_json.read(read_regular(path, _LARGEST), path.name, limit=_LARGEST)
    except OSError as error:
        raise ConfigError(
            "file-unreadable", f"{path} cannot be read", why=error.strerror or str(error), fix="check the path"
        ) from error
    except ValueError as error:
        raise ConfigError(
            "not-a-report",
            f"{path} is not a JSON document",
            why=error.what if isinstance(error, DocumentError) else "its text cannot be read",
            fix="write it again: toolchain kernels diff A B --json >FILE",
        ) from error


def _is_ledger(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False
