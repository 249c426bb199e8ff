"""The orders of a campaign: which worker has which, on the board and off it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolchain.kernels import dask_board
from toolchain.kernels.dask_board import Board
from toolchain.kernels.rules import Rule

_AHEAD = 2  # orders for each slot


@dataclass(eq=False)
class Order:
    """A rule on its way.

    Args:
        tries: how many failed.
        worker, name: id and name of the worker that has it.
        content: as the worker reads it.
        wanted_back: whether another worker could begin it at once.
    """

    rule: Rule
    tries: int = 0
    worker: str = ""
    name: str = ""
    content: Mapping[str, Any] = field(default_factory=dict)
    wanted_back: bool = False


class Orders:
    """The orders that workers have.

    Args:
        campaign: its id on the board.
    """

    def __init__(self, campaign: str) -> None:
        self._campaign = campaign
        self._held: dict[str, Order] = {}  # by number
        self._posted: dict[str, dict[str, Any]] = {}  # by worker
        self._refreshed = time.monotonic()
        self._sent = 0

    def assign(
        self,
        waiting: deque[Order],
        workers: Mapping[str, Mapping[str, Any]],
        content: Callable[[Rule], Mapping[str, Any]],
    ) -> None:
        """Give each worker more orders than it can begin, and take some back for an idle one.

        Args:
            workers: by id; see `dask_board.workers_on`.
            content: an order for a rule.
        """
        load = Counter(order.worker for order in self._held.values())
        slots = {key: int(row["slots"]) for key, row in workers.items()}
        while waiting and (free := [key for key in slots if load[key] < _AHEAD * slots[key]]):
            order, worker = waiting.popleft(), min(free, key=lambda key: load[key] / slots[key])
            order.content, order.worker, order.name = content(order.rule), worker, workers[worker]["name"]
            order.wanted_back = False
            self._sent += 1
            self._held[str(self._sent)] = order
            load[worker] += 1
        if waiting:
            return
        idle = sum(max(0, slots[key] - load[key]) for key in slots)
        queued = [order for order in self._held.values() if load[order.worker] > slots.get(order.worker, 0)]
        more = idle - sum(order.wanted_back for order in queued)
        for order in [order for order in reversed(queued) if not order.wanted_back][: max(0, more)]:
            order.wanted_back = True

    def post(self, board: Board) -> None:
        """Write the orders of each worker where they changed, and all of them now and then.

        Raises:
            BoardError: the connection is gone.
        """
        orders: dict[str, dict[str, Any]] = {key: {} for key in self._posted}
        for number, order in self._held.items():
            more = {"back": True} if order.wanted_back else {}
            orders.setdefault(order.worker, {})[number] = {**order.content, **more}
        if time.monotonic() - self._refreshed > dask_board.GONE:
            self.forget_posted()
        for worker, content in orders.items():
            if self._posted.get(worker, {}) != content:
                board.write("orders", worker, self._campaign, value=content or None)
                self._posted[worker] = content

    def forget_posted(self) -> None:
        """Write everything again the next time: a scheduler that was restarted knows nothing."""
        self._posted, self._refreshed = {}, time.monotonic()

    def answered(self, board: Board) -> list[tuple[Order, Any]]:
        """Take out the orders that have an answer, by the worker that has them.

        Raises:
            BoardError: the connection is gone.
        """
        settled = []
        for worker, answers in board.read("answers", self._campaign).items():
            for number, answer in answers.items() if isinstance(answers, dict) else ():
                order = self._held.get(number)
                if order is not None and order.worker == worker:
                    del self._held[number]
                    settled.append((order, answer))
        return settled

    def take_back(self, lost: Callable[[Order], bool]) -> list[Order]:
        """Take out the orders for which `lost` holds, in the order in which they were given."""
        numbers = [number for number, order in self._held.items() if lost(order)]
        return [self._held.pop(number) for number in numbers]
