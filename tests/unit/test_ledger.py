"""Tests of the ledger of a campaign, and of damaged and hostile ledger files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel_fixtures import make_rule
from tests.refusals import refused
from toolchain.core.errors import ConfigError, ResourceError
from toolchain.kernels.ledger import DONE, FAILED, TIMEOUT, Entry, Ledger, counts, look, reproducible

WRITER = """
import os, sys
from pathlib import Path
from tests.kernel_fixtures import make_rule
from toolchain.kernels.ledger import Entry, Ledger, counts, look
ledger = Ledger(Path(sys.argv[1]))
for number in range(1000):
    ledger.record(Entry.of(make_rule(f"k{number}"), "done", sha256="ab"))
    print(number, flush=True)
    if number == 20:
        os.kill(os.getpid(), 9)
"""


def test_recorded_entries_survive_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "a b's" / "ledger.sqlite"
    writer = subprocess.run(
        [sys.executable, "-c", WRITER, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    assert writer.returncode == -signal.SIGKILL, writer.stderr
    with Ledger(path) as ledger:
        assert counts(look(ledger.path).entries) == {"done": 21, "failed": 0, "timed_out": 0}
        assert ledger.get(make_rule("k20").id) is not None


def test_full_ledger_is_reported(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        ledger._db.execute("PRAGMA max_page_count = 3")
        long = Entry.of(make_rule("k"), FAILED, reason="x" * 100_000)
        with refused("ledger-unwritable") as caught:
            ledger.record(long)
        assert "full" in caught.value.why


def test_ledger_of_another_format_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(tmp_path / "l") as ledger:
        ledger.record(Entry.of(make_rule("k"), DONE))
        ledger.note_check("k", {"status": "right"})
    with Ledger(tmp_path / "l") as ledger:
        assert counts(look(ledger.path).entries)["done"] == 1
        assert look(ledger.path).numbers == {"right": 1}
    monkeypatch.setattr("toolchain.kernels.ledger.FORMAT", "another")
    with Ledger(tmp_path / "l") as ledger:
        assert (look(ledger.path).total, counts(look(ledger.path).entries)["done"]) == (0, 0)
        assert ledger.checks() == {}


def test_reproducible_rows_do_not_depend_on_order_time_or_attempts(tmp_path: Path) -> None:
    rules = [make_rule(f"k{number}") for number in range(5)]
    for name, order, seconds in (("a", rules, 1.0), ("b", rules[::-1], 7.5)):
        with Ledger(tmp_path / name) as ledger:
            for rule in order:
                ledger.record(Entry.of(rule, TIMEOUT, reason="late", seconds=seconds, attempt=int(seconds) % 2 + 1))
    first, second = (reproducible(look(tmp_path / name).entries) for name in ("a", "b"))
    assert json.dumps(first) == json.dumps(second)
    assert [row["status"] for row in first] == [TIMEOUT] * 5


def test_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(b"not a database, but long enough to be read as one" * 20)

    with refused("ledger-unusable") as caught:
        Ledger(tmp_path / "l")
    assert caught.value.fix == f"remove {tmp_path / 'l'}"


def test_database_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE songs (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        Ledger(path)
    assert path.read_bytes() == before


def test_locked_ledger_is_refused_without_advice_to_remove_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "l"
    with Ledger(path) as ledger:
        assert ledger._db.execute("PRAGMA busy_timeout").fetchone() == (30_000,), "a disk may be busy for long"
    monkeypatch.setattr("toolchain.kernels.ledger._PATIENCE", 0.01)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for use in (Ledger, look):
            with refused("ledger-unusable") as caught:
                use(path)
            assert "process" in caught.value.why
            assert "remove" not in caught.value.fix


def test_damage_found_while_reading_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "l"
    with Ledger(path) as ledger:
        for number in range(40):
            ledger.record(Entry.of(make_rule(f"k{number}"), FAILED, reason="x" * 500))
    content = path.read_bytes()
    path.write_bytes(content[:16384] + bytes(len(content) - 16384))
    with Ledger(path) as ledger, refused("ledger-unusable") as caught:
        ledger.entries([make_rule(f"k{number}") for number in range(40)])
    assert caught.value.fix == f"remove {path}"


def test_entry_and_progress_are_written_in_one_transaction(tmp_path: Path) -> None:
    path = tmp_path / "l"
    said: list[str] = []
    with Ledger(path) as ledger:
        ledger.progress(0, 2)
        ledger._db.set_trace_callback(said.append)
        ledger.record(Entry.of(make_rule("k"), DONE), (1, 2))
        assert said.count("COMMIT") == 1, "each is flushed to disk"
        assert (look(path).count, look(path).total, len(look(path).entries)) == (1, 2, 1)
        ledger._db.execute("PRAGMA max_page_count = 4")
        with pytest.raises(ResourceError):
            ledger.record(Entry.of(make_rule("l"), FAILED, reason="x" * 100_000), (2, 2))
        assert (look(path).count, len(look(path).entries)) == (1, 1)


def test_look_rolls_back_the_transaction_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.record(Entry.of(make_rule("k"), DONE, sha256="ab"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size = 1")  # pages reach the file before the end of the transaction
        db.execute("BEGIN IMMEDIATE")
        for number in range(2000):
            db.execute("INSERT INTO about VALUES (?, ?)", (f"n{number}", "x" * 200))
        killed = tmp_path / "killed" / path.name
        killed.parent.mkdir()
        for suffix in ("", "-journal"):
            killed.with_name(path.name + suffix).write_bytes(path.with_name(path.name + suffix).read_bytes())
        db.execute("ROLLBACK")
    assert counts(look(killed).entries)["done"] == 1
    with contextlib.closing(sqlite3.connect(killed)) as db:
        assert db.execute("SELECT count(*) FROM about WHERE name LIKE 'n%'").fetchone() == (0,)


def _changed(path: Path, *statements: str) -> Path:
    with Ledger(path) as ledger:
        ledger.record(Entry.of(make_rule("k"), DONE, sha256="ab"))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)
    return path


HOSTILE = {
    "a value of another type": ["""UPDATE entry SET content = json_set(content, '$.seconds', 'long')"""],
    "a key too many": ["""UPDATE entry SET content = json_set(content, '$.more', 1)"""],
    "a key too few": ["""UPDATE entry SET content = json_remove(content, '$.kernel')"""],
    "names that are numbers": ["""UPDATE entry SET content = json_set(content, '$.bitcode', json('[1]'))"""],
    "no JSON": ["UPDATE entry SET content = 'x'"], "a list": ["UPDATE entry SET content = '[]'"],
    "no text": ["UPDATE entry SET content = x'00ff'"],
    "numbers that are a list": ["INSERT INTO numbers VALUES ('k', '[]')"],
    "a view": [
        "DROP TABLE entry",
        """CREATE VIEW entry AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
        SELECT x AS id, '{}' AS content FROM n""",
    ],
}  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("statements", HOSTILE.values(), ids=HOSTILE)
def test_ledger_with_malformed_rows_or_a_view_is_refused(tmp_path: Path, statements: list[str]) -> None:
    with pytest.raises(ConfigError):
        look(_changed(tmp_path / "l", *statements))


def test_malformed_progress_is_ignored(tmp_path: Path) -> None:
    assert look(_changed(tmp_path / "l", "INSERT INTO about VALUES ('progress', 'x/y')")).total == 0
