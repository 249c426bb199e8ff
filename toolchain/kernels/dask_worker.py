"""A worker that takes orders from the board of a Dask scheduler: it keeps running when schedulers come and go."""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from toolchain.core.errors import UnreachableError
from toolchain.kernels.dask_board import BEAT, TICK, Board, BoardError, Presence
from toolchain.kernels.worker import MACHINE, Answer, KernelWorker

LOG = logging.getLogger(__name__)
PATIENCE = 600.0
"""Seconds for which a worker and a campaign wait for a lost scheduler."""
RETURNED = "returned"
"""The status of an order that a campaign wants back and that was not begun."""
_PAUSE = 1.0


def serve(
    address: str, worker: KernelWorker, *, patience: float = PATIENCE, ended: threading.Event | None = None
) -> None:
    """Work for a scheduler until interrupted, or until `ended` is set.

    Args:
        patience: seconds; see `PATIENCE`.

    Raises:
        ConfigError: see `dask_link`.
        UnreachableError: no scheduler answers in time.
    """
    ended = ended or threading.Event()
    desk = _Desk(worker, ended)
    last = time.monotonic()
    try:
        while not ended.is_set():
            try:
                board = Board(address, "worker")
            except UnreachableError:
                if time.monotonic() - last > patience:
                    raise
                ended.wait(_PAUSE)
                continue
            LOG.info("worker %s serves %s", worker.name, address)
            try:
                with contextlib.closing(board):
                    desk.attend(board)
            except BoardError as error:
                LOG.warning("lost the scheduler at %s (%s); waiting for it", address, error)
            last = time.monotonic()
    finally:
        desk.close()


@dataclass(eq=False)
class _Job:
    """An order and its state."""

    order: Mapping[str, Any]
    wanted: float
    begun: bool = False
    answer: Answer | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, worker: KernelWorker) -> None:
        """Carry it out, unless it was given back."""
        with self.lock:
            if self.answer is not None:
                return
            self.begun = True
        try:
            answer = worker.carry_out(self.order)
        except Exception as error:  # noqa: BLE001 - reported to the campaign, which gives the order to another
            answer = {"status": MACHINE, "reason": f"{type(error).__name__}: {error}"}
        with self.lock:
            self.answer = answer

    def give_back(self) -> None:
        """Leave it to others, if it has not been begun."""
        with self.lock:
            if not self.begun and self.answer is None:
                self.answer = {"status": RETURNED}


class _Desk:
    """A worker's orders, across connections."""

    def __init__(self, worker: KernelWorker, ended: threading.Event) -> None:
        self._worker = worker
        self._ended = ended
        self._id = secrets.token_hex(8)
        self._pool = ThreadPoolExecutor(worker.slots, thread_name_prefix="order")
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._campaigns = Presence()
        self._beats = itertools.count()

    def attend(self, board: Board) -> None:
        """Take orders from a board and write answers to it, until the end.

        Raises:
            BoardError: the connection is gone.
        """
        written: dict[str, dict[str, Answer]] = {}
        description = self._worker.describe()
        beaten = -BEAT
        try:
            while not self._ended.wait(TICK):
                if time.monotonic() - beaten >= BEAT:
                    beaten = time.monotonic()
                    row = {"said": description, "now": self._worker.now(), "at": board.local, "beat": next(self._beats)}
                    board.write("workers", self._id, value=row)
                answers = self._settle(board)
                for campaign in {*answers, *written}:
                    if answers.get(campaign) != written.get(campaign):
                        board.write("answers", campaign, self._id, value=answers.get(campaign))
                written = answers
        finally:
            with contextlib.suppress(BoardError):
                board.write("workers", self._id, value=None)

    def _settle(self, board: Board) -> dict[str, dict[str, Answer]]:
        """Begin what is ordered; the answers that are there, by campaign and order."""
        beats = board.read("beats")
        answers: dict[str, dict[str, Answer]] = defaultdict(dict)
        for campaign, orders in board.read("orders", self._id).items():
            if not (alive := self._campaigns.alive(campaign, beats.get(campaign))):
                board.write("orders", self._id, campaign, value=None)
            for number, order in orders.items() if isinstance(orders, dict) else ():
                if not isinstance(order, dict):
                    continue
                job = self._jobs.get((campaign, number))
                if job is None:
                    if not alive:
                        continue
                    job = self._jobs[campaign, number] = _Job(order, 0.0)
                    self._pool.submit(job.run, self._worker)
                job.wanted = time.monotonic()
                if order.get("back") or not alive:
                    job.give_back()
                if job.answer is not None:
                    answers[campaign][number] = job.answer
        self._forget()
        return answers

    def _forget(self) -> None:
        """Forget what no campaign has wanted for long; a campaign whose scheduler was restarted asks again."""
        oldest = time.monotonic() - PATIENCE
        for key, job in list(self._jobs.items()):
            if job.wanted < oldest and job.answer is not None:
                del self._jobs[key]

    def close(self) -> None:
        """Begin no further order."""
        for job in self._jobs.values():
            job.give_back()
        self._pool.shutdown(wait=False, cancel_futures=True)
