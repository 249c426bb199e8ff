"""A campaign whose kernels other machines compile: orders and answers are on the board of a Dask scheduler, results in
the store."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from toolchain.core.errors import ConfigError, KernelError, UnreachableError
from toolchain.kernels import dask_board
from toolchain.kernels.dask_board import BEAT, TICK, Board, BoardError, Presence, fits, workers_on
from toolchain.kernels.dask_link import FORMAT, order_of
from toolchain.kernels.dask_orders import Order, Orders
from toolchain.kernels.dask_worker import PATIENCE, RETURNED
from toolchain.kernels.executors import Outcome
from toolchain.kernels.ledger import DONE, FAILED, TIMEOUT, of_worker
from toolchain.kernels.oci_store import OciStore
from toolchain.kernels.rules import Rule
from toolchain.kernels.shared import SharedResults
from toolchain.kernels.store import DamagedError, UnsignedError, difference
from toolchain.kernels.worker import MACHINE, REFUSED, Limits

LOG = logging.getLogger(__name__)
_LOOK = 1.0  # seconds between two looks at the workers
_STRIKES = 3  # of one worker
_TRIES = 5  # of one order that ends in neither an object nor a failure
_LATE = (0.0, 0.2, 1.0, 4.0, 10.0)  # seconds: a folder on another machine may show a file late
_ANSWER = {"status": str, "reason": str, "seconds": (int, float), "attempt": int}


class DaskExecutor:
    """Compiles by the workers of a Dask scheduler; see `Executor`. Used as a context.

    A worker with a different Triton or different limits gets no order. A worker whose machine fails is set aside, and
    its orders go to others. If the scheduler or all workers are lost, it waits.

    Args:
        address: of the scheduler.
        out: folder of the objects.
        campaign: its name, for status queries.
        patience: seconds to wait for a scheduler, and for the first worker.
        on_log: called with a kernel that failed, who compiled it, and the last lines of the log there.

    Raises:
        ConfigError: there is no store in which others see results at once.
        UnreachableError: no scheduler answers.
    """

    def __init__(
        self,
        address: str,
        *,
        shared: SharedResults | None,
        out: Path,
        limits: Limits,
        campaign: str = "",
        patience: float = PATIENCE,
        on_log: Callable[[Rule, str, str], None] = lambda _rule, _worker, _log: None,
    ) -> None:
        if shared is None or not shared.stores or isinstance(shared.stores[0], OciStore):
            raise ConfigError(
                "--scheduler needs a --kernel-store that keeps each result apart",
                why="results travel through it, one by one" + ("; an OCI store packs them" if shared else ""),
                fix="give a folder that all machines see; `cp` or a second run brings the results into OCI",
            )
        self._address = address
        self._shared = shared
        self._out = out
        self._limits = {"timeout": limits.timeout, "memory": limits.memory}
        self._campaign = campaign or out.parent.name
        self._patience = patience
        self._on_log = on_log
        self._token = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, Any]] = {}  # the workers that are there
        self._seen: dict[str, dict[str, Any]] = {}  # those of them that fit
        self._aside: dict[str, str] = {}  # why, by worker
        self._orders = Orders(self._token)
        self._strikes: Counter[str] = Counter()
        self._looked = 0.0
        self._presence = Presence()
        self._back_until = 0.0  # when workers are expected that know of a scheduler's restart, on the monotonic clock
        self._board = Board(address)
        self._ended = threading.Event()
        # Apart from `run`, which waits while the campaign checks what came.
        self._pulse = threading.Thread(target=self._beat, name="campaign-beat", daemon=True)

    def __enter__(self) -> Self:
        self._pulse.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._board.close()

    def about(self) -> dict[str, Any]:
        """See `Executor.about`."""
        return dict(self._shared.about)

    def workers(self) -> list[dict[str, Any]]:
        """See `Executor.workers`; with `worker`, the machine's name."""
        with self._lock:
            seen = list(self._seen.values())
        return [{"worker": machine["name"], **row} for machine in seen for row in machine["now"].get("processes", ())]

    def tell(self, status: Mapping[str, Any]) -> None:
        """Publish the campaign's progress on the scheduler. A failure to do so fails no kernel."""
        report = {"campaign": self._campaign, "refused": dict(self._aside), "status": dict(status)}
        self._write("campaigns", self._campaign, value=report)

    def _write(self, *keys: str, value: object) -> None:
        with contextlib.suppress(BoardError):  # `run` meets it too, and connects again
            self._board.write(*keys, value=value)

    def _beat(self) -> None:
        for beat in itertools.count():
            self._write("beats", self._token, value=beat)
            if self._ended.wait(BEAT):
                return

    def run(self, rules: Sequence[Rule], _tree: str, _out: str, /) -> Generator[Outcome, None, None]:
        """See `Executor.run`; each worker has its own folders.

        Raises:
            KernelError: no usable worker came in time, the store does not answer, or an order never succeeds.
            UnreachableError: the scheduler does not come back in time.
        """
        waiting = deque(Order(rule) for rule in rules)
        left = len(waiting)
        self._looked = 0.0
        try:
            while left:
                for order, outcome in self._step(waiting):
                    if outcome is None:
                        self._again(order, waiting)
                    else:
                        left -= 1
                        yield outcome
        finally:
            self._drop_orders()

    def _step(self, waiting: deque[Order]) -> Iterator[tuple[Order, Outcome | None]]:
        """Send orders, and settle those that came back: an outcome each, or None for another try."""
        try:
            self._look()
            for order in self._lost():
                yield order, None
            self._orders.assign(waiting, self._seen, self._content)
            self._orders.post(self._board)
            came = self._orders.answered(self._board)
        except BoardError as error:
            self._reconnect(str(error))
            return
        for order, answer in came:
            yield order, self._settled(order, answer)
        if not came:
            time.sleep(TICK)

    def _content(self, rule: Rule) -> dict[str, Any]:
        return order_of(rule, self._shared.name(rule), recompile=self._shared.is_rejected(rule))

    def _look(self) -> None:
        """Look for workers, at most once a second; wait while there are none."""
        since = time.monotonic()
        if self._seen and since - self._looked < _LOOK:
            return
        warned = False
        while True:
            self._known = workers_on(self._board, self._presence)
            fitting = {key: row for key, row in self._known.items() if self._takes(row)}
            with self._lock:
                self._seen = fitting
            self._looked = time.monotonic()
            if fitting:
                return
            if time.monotonic() - since > self._patience:
                raise KernelError(
                    f"no worker at {self._address} compiles for this campaign",
                    why="\n".join(f"{name}: {why}" for name, why in self._aside.items()) or "none came",
                    fix="start some: `toolchain kernels worker`, with the options of this campaign; then run it again",
                )
            if not warned:
                warned = True
                LOG.warning("waiting for workers at %s", self._address)
            time.sleep(_LOOK)

    def _lost(self) -> list[Order]:
        """Take orders back from workers that are lost, or that get no more orders."""

        def lost(order: Order) -> bool:
            gone = order.worker not in self._known
            return order.worker not in self._seen and not (gone and time.monotonic() < self._back_until)

        orders = self._orders.take_back(lost)
        for order in orders:
            if order.worker not in self._known:
                # Perhaps this order made the machine fail.
                order.tries += 1
                LOG.warning("%s: no answer: the worker is lost", order.rule.out)
        return orders

    def _takes(self, row: Mapping[str, Any]) -> bool:
        """Whether a worker may compile for this campaign; the reason is logged once."""
        name = str(row["name"])
        if name not in self._aside and (why := self._unfit(row)):
            self._set_aside(name, why)
        return name not in self._aside

    def _unfit(self, row: Mapping[str, Any]) -> str:
        naming = self._shared.naming
        if row.get("format") != FORMAT:
            return "it is of another version of this tool"
        own = naming.shared
        inputs = {part: row["inputs"].get(part) for part in own}
        if inputs != dict(own):
            return difference(inputs, own)
        if row.get("limits") != self._limits:
            return f"its --kernel-timeout and --kernel-memory are {row.get('limits')}, here they are {self._limits}"
        return ""

    def _set_aside(self, name: str, why: str) -> None:
        self._aside[name] = why
        with self._lock:
            self._seen = {at: row for at, row in self._seen.items() if row["name"] != name}
        LOG.warning("the worker %s is refused: %s", name, why)

    def _settled(self, order: Order, answer: Any) -> Outcome | None:
        """The outcome of an answer; None if it is not usable."""
        if isinstance(answer, dict) and answer.get("status") == RETURNED:
            return None
        rule, name = order.rule, order.name
        if not fits(answer, _ANSWER) or not 0 <= answer["seconds"] < math.inf:
            self._set_aside(name, "its answers are invalid")
        if name in self._aside:
            return None
        status = answer["status"]
        if status == DONE:
            return self._brought(order, answer)
        if status in {FAILED, TIMEOUT}:
            self._on_log(rule, name, str(answer.get("log") or answer["reason"]))
            return self._outcome(rule, answer, origin=of_worker(name))
        why = answer["reason"]
        if status == REFUSED and isinstance(inputs := answer.get("inputs"), dict):
            own = self._shared.naming.inputs(rule)
            why = difference({**own, **{part: inputs[part] for part in own.keys() & inputs.keys() - {"rule"}}}, own)
        self._set_aside(name, why if status in {REFUSED, MACHINE} else f"it answers {status!r}")
        return None

    def _brought(self, order: Order, answer: Mapping[str, Any]) -> Outcome | None:
        rule, shared, name, maker = order.rule, self._shared, order.name, of_worker(order.name)
        if not shared.stores:
            raise KernelError(
                "the kernel store does not answer any more",
                why="workers write their results there; the log has the reason",
                fix="check that it can be read and has room, then run it again: it continues",
            )
        stored = bool(answer.get("found"))
        try:
            entry = None
            for pause in _LATE:
                time.sleep(pause)
                origin = shared.stores[0].ref if stored else maker
                entry = shared.receive(rule, self._out, origin, str(answer.get("sha256", "")))
                if entry is not None:
                    break
        except (DamagedError, UnsignedError) as error:
            order.tries += 1
            self._strikes[name] += 1
            shared.reject(rule)
            LOG.warning("%s: what %s left in the store cannot be used: %s", rule.out, name, error)
            if self._strikes[name] >= _STRIKES:
                self._set_aside(name, "what it leaves in the store cannot be used")
            return None
        if entry is None:
            self._set_aside(name, f"what it compiled is not in {shared.stores[0].ref}: its --kernel-store differs")
            return None
        return {
            **self._outcome(rule, answer, origin=entry.origin),
            "sha256": entry.sha256,
            "size": entry.size,
            "bitcode": list(entry.bitcode),
        }

    def _outcome(self, rule: Rule, answer: Mapping[str, Any], *, origin: str) -> Outcome:
        return {
            "id": rule.id,
            "status": answer["status"],
            "reason": answer["reason"][:4000],
            "seconds": float(answer["seconds"]),
            "attempt": answer["attempt"],
            "over_memory": answer.get("over_memory") is True,
            "refused": answer.get("refused") is True,
            "exit_code": code if isinstance(code := answer.get("exit_code"), int) else None,
            "origin": origin,
        }

    def _again(self, order: Order, waiting: deque[Order]) -> None:
        if order.tries >= _TRIES:
            raise KernelError(
                f"{order.rule.out} ends in neither an object nor a failure",
                why=f"{order.tries} orders for it were lost with their workers, or answered wrongly",
                fix="see the warnings above and the workers' logs; run it again: it continues with this kernel",
            )
        waiting.appendleft(order)

    def _drop_orders(self) -> None:
        """Take all orders back; those that are being compiled reach the store all the same."""
        self._orders.take_back(lambda _: True)
        with contextlib.suppress(BoardError):
            self._orders.post(self._board)

    def _reconnect(self, why: str) -> None:
        LOG.warning("lost the scheduler at %s (%s); waiting for it", self._address, why)
        self._board.close()
        until = time.monotonic() + self._patience
        while True:
            try:
                self._board = Board(self._address)
            except UnreachableError:
                if time.monotonic() > until:
                    raise
                time.sleep(_LOOK)
            else:
                # A scheduler that was restarted knows nothing. Workers come back as this campaign does.
                self._orders.forget_posted()
                self._back_until = time.monotonic() + dask_board.GONE
                return
