"""The ledger of a campaign: the outcome of each rule, in a file that survives kill -9."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum, auto
from pathlib import Path
from typing import Any
from urllib.parse import quote

from toolchain.core import strict_json
from toolchain.core.digest import canonical
from toolchain.core.errors import ConfigError, DocumentError, ResourceError
from toolchain.core.strict_json import Keys
from toolchain.core.typed import TypedError, typed
from toolchain.kernels.rules import Rule

_WORKER = "worker "
DONE = "done"
FAILED = "failed"
TIMEOUT = "timeout"
FORMAT = "2"
_PROGRESS = "progress"
_SCOPE, _SEVERAL = "scope", "several"
_FACTS = "facts"
_LARGEST = 512 << 20  # the maximum size of a ledger in bytes
_LARGEST_VALUE = 16 << 20
# With this setting of SQLite, a committed entry is on disk even if the process is killed or the machine fails.
DURABILITY = "FULL"
_PATIENCE = 30.0  # seconds to wait for another process, because a flush to a busy disk can take long
_STATES = (("done", DONE), ("failed", FAILED), ("timed_out", TIMEOUT))
# This statement counts the entries whose canonical JSON contains text such as `"status":"done"`. No value in an entry
# can contain this text, because JSON escapes quotes.
_COUNT = "SELECT count(*) FROM entry WHERE instr(content, ?)"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entry (id TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS numbers (id TEXT PRIMARY KEY, content TEXT NOT NULL);
"""


class Maker(Enum):
    """The origin of an object: this machine, a Dask worker, or a campaign that added the object to a store."""

    HERE = auto()
    WORKER = auto()
    STORE = auto()


def of_worker(name: str) -> str:
    """Return the `origin` of the objects from the Dask worker with this name."""
    return _WORKER + name


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The outcome of one rule.

    Args:
        status: `done`, `failed` or `timeout`.
        over_memory: whether the worker was ended because it used too much memory.
        refused: whether the kernel's project refused the GPU or the arguments.
        exit_code: the exit code of a worker that died, or the negative number of the signal that ended it; None if no
            exit code is known.
        seconds: the wall time of the last attempt.
        sha256, metadata_sha256: the SHA-256 of the object and of the JSON beside it, as 64 hex digits; empty unless the
            status is `done`.
        attempt: the number of the last attempt, from 1.
        bitcode: the names of the bitcode libraries whose code is in the object.
        origin: the path of the store that the object comes from, or the result of `of_worker`; empty for an object that
            was compiled here.
        signer: the id of the key that verified a result from a store; empty if no key verified the result.
    """

    id: str
    kernel: str
    target: str
    out: str
    cluster: str
    status: str
    reason: str = ""
    over_memory: bool = False
    refused: bool = False
    exit_code: int | None = None
    seconds: float = 0.0
    sha256: str = ""
    metadata_sha256: str = ""
    size: int = 0
    attempt: int = 1
    bitcode: tuple[str, ...] = field(default=())
    origin: str = ""
    signer: str = ""

    @property
    def maker(self) -> Maker:
        if not self.origin:
            return Maker.HERE
        return Maker.WORKER if self.origin.startswith(_WORKER) else Maker.STORE

    @classmethod
    def of(cls, rule: Rule, status: str, **more: Any) -> Entry:
        """Return an entry for a rule; `more` sets the other fields."""
        return cls(
            id=rule.id,
            kernel=rule.kernel,
            target=rule.target,
            out=rule.out,
            cluster=rule.cluster,
            status=status,
            **more,
        )


_KEYS: Keys = dict.fromkeys(part.name for part in fields(Entry))


def counts(entries: Iterable[Entry]) -> dict[str, int]:
    """Return the numbers of entries under the keys `done`, `failed` and `timed_out`."""
    by_status = Counter(entry.status for entry in entries)
    return {name: by_status[status] for name, status in _STATES}


def by_kernel(entries: Iterable[Entry]) -> list[tuple[str, str, list[Entry]]]:
    """Return the entries of each kernel and GPU, sorted by kernel and GPU."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.kernel, entry.target), []).append(entry)
    return [(kernel, gpu, inside) for (kernel, gpu), inside in sorted(groups.items())]


class Ledger:
    """The entries of a campaign in an SQLite file. Only the thread that opens a ledger may use it.

    Opening a ledger that does not have the format `FORMAT` deletes its content. ConfigError is raised if the file
    cannot be used as a ledger.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        with _reading(path):
            self._db = sqlite3.connect(path, isolation_level=None, timeout=_PATIENCE)
        try:
            with _reading(path):
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        tables = _restrict(self._db, self.path)
        if tables and "about" not in tables:
            raise _not_ours(self.path, "it is another program's database")
        self._db.execute(f"PRAGMA synchronous={DURABILITY}")
        self._db.executescript(_SCHEMA)
        known = dict(self._db.execute("SELECT name, value FROM about"))
        if known.get("format") != FORMAT:
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:  # commits, or rolls back after an error
                self._db.execute("DELETE FROM entry")
                self._db.execute("DELETE FROM numbers")
                self._db.execute("DELETE FROM about")
                self._db.execute("INSERT INTO about VALUES ('format', ?)", (FORMAT,))

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def record(
        self, entry: Entry, progress: tuple[int, int] | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Record an entry, and the progress and facts if they are given. All are on disk when this method returns.

        ResourceError is raised if the file cannot be written.

        Args:
            facts: the facts that the workers reported, if they reported any.
        """
        rows = [] if progress is None else [_progress_row(*progress)]
        if facts:
            rows.append(("about", _FACTS, canonical(dict(facts)).decode()))
        self._write(("entry", entry.id, canonical(asdict(entry)).decode()), *rows)

    def _write(self, *rows: tuple[str, str, str]) -> None:
        # All rows share one transaction, because each transaction is flushed to disk.
        try:
            self._db.execute("BEGIN IMMEDIATE")
            with self._db:
                for table, key, value in rows:
                    self._db.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (key, value))  # noqa: S608 - the tables are constants
        except sqlite3.Error as error:
            raise ResourceError(
                "ledger-unwritable",
                f"the ledger {self.path} cannot be written",
                why=_reason(error),
                fix="free disk space and run the command again; it continues",
            ) from error

    def get(self, rule_id: str) -> Entry | None:
        """Return the entry of the rule with this id; None if the rule has no entry."""
        with _reading(self.path):
            row = self._db.execute("SELECT content FROM entry WHERE id = ?", (rule_id,)).fetchone()
        return None if row is None else _entry(self.path, row[0])

    def begin(self, scope: str) -> bool:
        """Return whether all entries come from campaigns with this `Naming.scope`.

        A ledger without entries gets this scope. If the result is False, later calls return False too.
        """
        with _reading(self.path):
            known = dict(self._db.execute("SELECT name, value FROM about"))
            entries = self._db.execute("SELECT count(*) FROM entry").fetchone()[0]
        if not entries:
            self._write(("about", _SCOPE, scope))
            return True
        if known.get(_SCOPE) != scope:
            self._write(("about", _SCOPE, _SEVERAL))
            return False
        return True

    def facts(self) -> dict[str, Any]:
        """Return the latest facts that `record` recorded about the workers; an empty dictionary if there are none."""
        with _reading(self.path):
            row = self._db.execute("SELECT value FROM about WHERE name = ?", (_FACTS,)).fetchone()
        return {} if row is None else _object(self.path, row[0])

    def note_check(self, rule_id: str, row: Mapping[str, Any]) -> None:
        self._write(("numbers", rule_id, canonical(dict(row)).decode()))

    def checks(self) -> dict[str, dict[str, Any]]:
        """Return the results that `note_check` recorded, by the rule's id."""
        with _reading(self.path):
            rows = self._db.execute("SELECT id, content FROM numbers ORDER BY id").fetchall()
        return {str(rule_id): _object(self.path, content) for rule_id, content in rows}

    def entries(self, rules: Iterable[Rule]) -> tuple[Entry, ...]:
        """Return the entries that exist for `rules`, in the order of the rules."""
        return tuple(entry for entry in (self.get(rule.id) for rule in rules) if entry is not None)

    def progress(self, count: int, total: int) -> None:
        """Record how many kernels of the latest request are finished, and how many kernels it contains."""
        self._write(_progress_row(count, total))


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The state of a campaign, read from its ledger.

    Args:
        count, total: how many kernels of the latest request are finished, and how many it contains; 0 if unknown.
        counted: the numbers that `counts` returns for the entries.
        entries: the entries sorted by id; empty if only their counts were read.
        numbers: how many kernels are `right`, `wrong`, `skipped` and `refused`.
    """

    count: int = 0
    total: int = 0
    counted: Mapping[str, int] = field(default_factory=lambda: counts(()))
    entries: tuple[Entry, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)


def look(path: Path, *, entries: bool = True) -> Standing:
    """Return the state of a campaign from its ledger. The campaign may be running.

    A ledger that does not have the format `FORMAT` gives the default `Standing`. ConfigError is raised if the file
    cannot be used as a ledger.
    """
    # With mode=ro, SQLite could not roll back the transaction of a killed campaign. With mode=rw, it can also read
    # files that this user may not write.
    name = f"file:{quote(str(path))}?mode=rw"
    with _reading(path), contextlib.closing(sqlite3.connect(name, uri=True, timeout=_PATIENCE)) as db:
        tables = _restrict(db, path)
        known = dict(db.execute("SELECT name, value FROM about")) if "about" in tables else {}
        if known.get("format") != FORMAT:
            return Standing()
        # All rows are fetched at once, because an unfinished read would block the campaign's writes.
        rows = db.execute("SELECT content FROM entry ORDER BY id").fetchall() if entries else []
        by_status = {name: db.execute(_COUNT, (f'"status":"{status}"',)).fetchone()[0] for name, status in _STATES}
        checked = db.execute("SELECT content FROM numbers").fetchall() if "numbers" in tables else []
    progress = re.fullmatch(r"(\d{1,9})/(\d{1,9})", str(known.get(_PROGRESS, "")))
    return Standing(
        count=int(progress[1]) if progress else 0,
        total=int(progress[2]) if progress else 0,
        counted=by_status,
        entries=tuple(_entry(path, content) for (content,) in rows),
        numbers=Counter(str(_object(path, content).get("status")) for (content,) in checked),
    )


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of SQLite, and errors from malformed values except DocumentError, into a ConfigError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _unusable(path, error) from error
    except (UnicodeDecodeError, ValueError) as error:  # a value is malformed, e.g. text that is not UTF-8
        if isinstance(error, DocumentError):
            raise
        raise _not_ours(path, "it is damaged") from error


def _restrict(db: sqlite3.Connection, path: Path) -> set[str]:
    """Limit the cost of reading a ledger of unknown origin, and return the names of its tables.

    ConfigError is raised if the ledger is too large. It is also raised if the ledger defines views or triggers, because
    reading a view could take forever.
    """
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
    db.execute("PRAGMA trusted_schema=OFF")
    db.execute("PRAGMA cell_size_check=ON")
    (pages,), (size,) = (db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    if pages * size > _LARGEST:
        raise _not_ours(path, f"it has {pages * size} bytes; at most {_LARGEST} are read")
    rows = db.execute("SELECT type, name FROM sqlite_master").fetchall()
    if odd := [str(name)[:80] for kind, name in rows if kind not in {"table", "index"}]:
        raise _not_ours(path, f"it defines {odd[0]!r}, but a ledger contains only tables")
    return {str(name) for kind, name in rows if kind == "table"}


def _progress_row(count: int, total: int) -> tuple[str, str, str]:
    return "about", _PROGRESS, f"{count}/{total}"


_REASONS = {
    sqlite3.SQLITE_BUSY: "another process uses it",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write it",
    sqlite3.SQLITE_LOCKED: "another process uses it",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database",
    sqlite3.SQLITE_PERM: "it may not be written",
    sqlite3.SQLITE_READONLY: "it may not be written",
}


def _reason(error: sqlite3.Error) -> str:
    # The low byte of SQLite's extended error code is the primary code.
    return _REASONS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "its tables are not those of a ledger")


def _unusable(path: Path, error: sqlite3.DatabaseError) -> ConfigError:
    # A ledger that is locked or cannot be opened may be intact, so the advice must not be to remove it.
    whole = isinstance(error, sqlite3.OperationalError)
    fix = "check its permissions, the disk and its other users, then try again" if whole else f"remove {path}"
    return ConfigError("ledger-unusable", f"the ledger {path} cannot be used", why=_reason(error), fix=fix)


def _not_ours(path: Path, why: str) -> ConfigError:
    return ConfigError("ledger-unusable", f"the ledger {path} cannot be used", why=why, fix=f"remove {path}")


def reproducible(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return rows for the list of kernels in an image, sorted by output path, without values that differ between runs.

    Only the first line of a failure's reason is included, because the other lines may contain memory addresses, the
    order of a worker's output, or the memory that it used.
    """
    left_out = (
        "seconds", "attempt", "origin", "signer", "over_memory", "refused", "exit_code", "metadata_sha256",
    )  # fmt: skip
    rows = []
    for entry in sorted(entries, key=lambda entry: (entry.out, entry.id)):
        row = asdict(entry)
        for name in left_out:
            del row[name]
        row["bitcode"] = list(entry.bitcode)
        row["reason"] = entry.reason.partition("\n")[0]
        rows.append(row)
    return rows


def _object(path: Path, content: object) -> dict[str, Any]:
    try:
        value = strict_json.read(content, "the ledger", keys=_KEYS) if isinstance(content, str) else None
    except ValueError as error:
        why = error.what if isinstance(error, DocumentError) else "one of its rows is not JSON"
        raise _not_ours(path, why) from error
    if not isinstance(value, dict):
        raise _not_ours(path, "one of its rows is not a JSON object")
    return value


def _entry(path: Path, content: object) -> Entry:
    try:
        return typed(Entry, _object(path, content), "an entry")
    except TypedError as error:
        raise _not_ours(path, str(error)) from error
