"""A campaign whose kernels other machines compile: Dask hands the orders out, the store brings the results."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolchain import strict_json
from toolchain.errors import ConfigError, KernelError, UnreachableError
from toolchain.kernels.dask_link import FORMAT, KEY, connect, rule_as_text, workers_of
from toolchain.kernels.dask_worker import PATIENCE, compile_kernel
from toolchain.kernels.executors import Outcome
from toolchain.kernels.ledger import DONE, FAILED, TIMEOUT
from toolchain.kernels.oci_store import OciStore
from toolchain.kernels.rules import Rule
from toolchain.kernels.shared import WORKER, SharedResults
from toolchain.kernels.station import MACHINE, REFUSED, Limits
from toolchain.kernels.store import DamagedError, UnsignedError, difference
from toolchain.kernels.worker_process import Task

LOG = logging.getLogger(__name__)
_LOOK = 1.0  # seconds between two looks at the workers
_AHEAD = 2  # orders for each slot
_STRIKES = 3  # of one worker
_TRIES = 5  # of one order that ends in neither an object nor a failure
_LATE = (0.0, 0.2, 1.0, 4.0, 10.0)  # seconds: a folder on another machine may show a file late


class _LostError(Exception):
    """The connection to the scheduler is gone."""


class _NoAnswerError(Exception):
    """A worker worked an order off, and took its answer along."""


@dataclass(eq=False)
class _Order:
    """A rule on its way.

    Args:
        tries: that came to nothing.
        future: what Dask has of it.
        workers: addresses of those that may have it.
    """

    rule: Rule
    tries: int = 0
    future: Any = None
    workers: frozenset[str] = frozenset()


class DaskExecutor:
    """Compiles by the workers of a Dask scheduler; see `Executor`. Used as a context.

    A worker that was made of another Triton, or has other limits, gets no order. One whose machine fails is set aside,
    and what it had is compiled by others. Where the scheduler or all workers are gone it waits.

    Args:
        address: of the scheduler.
        rules: all that may be asked for.
        out: folder of the objects.
        campaign: its name, for those who ask the scheduler.
        patience: seconds to wait for a scheduler, and for the first worker.
        on_log: called with a kernel that failed, who compiled it, and the last lines of the log there.

    Raises:
        ConfigError: there is no store that others see at once.
        UnreachableError: no scheduler answers.
    """

    def __init__(
        self,
        address: str,
        *,
        rules: Sequence[Rule],
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
        self._rules = {rule.id: rule for rule in rules}
        self._shared = shared
        self._out = out
        self._limits = {"timeout": limits.timeout, "memory": limits.memory}
        self._campaign = campaign or out.parent.name
        self._patience = patience
        self._on_log = on_log
        self._token = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._seen: dict[str, dict[str, Any]] = {}
        self._aside: dict[str, str] = {}  # why, by worker
        self._done: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._flying: dict[str, _Order] = {}  # by Dask's key
        self._sent = 0
        self._strikes: Counter[str] = Counter()
        self._looked = 0.0
        self._client: Any = connect(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def about(self) -> dict[str, Any]:
        """See `Executor.about`."""
        return dict(self._shared.about)

    def workers(self) -> list[dict[str, Any]]:
        """See `Executor.workers`; with `worker`, the machine's name."""
        with self._lock:
            seen = list(self._seen.values())
        return [{"worker": one["name"], **row} for one in seen for row in one["now"].get("processes", ())]

    def tell(self, status: Mapping[str, Any]) -> None:
        """Let those know how far the campaign is who ask the scheduler. Nobody's kernels fail because that fails."""
        client, told = self._client, {"campaign": self._campaign, "refused": dict(self._aside), "status": dict(status)}
        if client is not None and client.status == "running":
            with contextlib.suppress(Exception):
                client.sync(
                    client.scheduler.set_metadata,
                    keys=[KEY, self._campaign],
                    value=json.dumps(told),
                    callback_timeout=5,
                )

    def run(self, tasks: Sequence[Task]) -> Generator[Outcome, None, None]:
        """See `Executor.run`.

        Raises:
            KernelError: no worker that could compile came for so long, the store is gone, or an order ends in nothing.
            UnreachableError: the scheduler is gone for so long.
        """
        waiting = deque(_Order(self._rules[task["id"]]) for task in tasks)
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

    def _step(self, waiting: deque[_Order]) -> Iterator[tuple[_Order, Outcome | None]]:
        """Send orders, and settle those that came back: an outcome each, or None for another try."""
        try:
            self._look()
            self._send(waiting)
            for order in self._came():
                yield order, self._settled(order)
        except _LostError as error:
            waiting.extendleft(self._drop_orders())
            self._reconnect(str(error))

    def _came(self) -> Iterator[_Order]:
        timeout = _LOOK
        while True:
            try:
                key = self._done.get(timeout=timeout)
            except queue.Empty:
                return
            timeout = 0.0
            if (order := self._flying.get(key)) is not None:
                if order.future.cancelled():
                    raise _LostError("it knows nothing of an order")
                del self._flying[key]
                yield order

    def _look(self) -> None:
        """Who is there, at most once a second; and wait while nobody is."""
        since = time.monotonic()
        if self._seen and since - self._looked < _LOOK:
            return
        told = False
        while True:
            if self._client.status != "running":
                raise _LostError(f"the connection is {self._client.status}")
            try:
                info = self._client.sync(self._client.scheduler.identity, n_workers=-1, callback_timeout=10)
            except Exception as error:
                raise _LostError(str(error) or type(error).__name__) from error
            found = {at: row for at, row in workers_of(info).items() if self._takes(row)}
            with self._lock:
                self._seen = found
            self._looked = time.monotonic()
            if found:
                return
            if time.monotonic() - since > self._patience:
                raise KernelError(
                    f"no worker at {self._address} compiles for this campaign",
                    why="\n".join(f"{name}: {why}" for name, why in self._aside.items()) or "none came",
                    fix="start some: `toolchain kernels worker`, with the options of this campaign; then run it again",
                )
            if not told:
                told = True
                LOG.warning("waiting for workers at %s", self._address)
            time.sleep(_LOOK)

    def _takes(self, row: Mapping[str, Any]) -> bool:
        """Whether a worker may compile for this campaign; why not is told once."""
        name = str(row["name"])
        if name not in self._aside and (why := self._unfit(row)):
            self._set_aside(name, why)
        return name not in self._aside

    def _unfit(self, row: Mapping[str, Any]) -> str:
        naming = self._shared.naming
        if row.get("format") != FORMAT:
            return "it is of another version of this tool"
        inputs, own = dict(row.get("inputs") or {}), naming.shared
        if any(inputs.get(part) != value for part, value in own.items()):
            return difference(inputs, own)
        if row.get("limits") != self._limits:
            return f"its --kernel-timeout and --kernel-memory are {row.get('limits')}, here they are {self._limits}"
        return ""

    def _set_aside(self, name: str, why: str) -> None:
        self._aside[name] = why
        with self._lock:
            self._seen = {at: row for at, row in self._seen.items() if row["name"] != name}
        LOG.warning("the worker %s is refused: %s", name, why)

    def _send(self, waiting: deque[_Order]) -> None:
        slots = sum(int(one["slots"]) for one in self._seen.values())
        here = frozenset(self._seen)
        for key, order in list(self._flying.items()):
            # Dask keeps an order for the workers that were there when it was sent, also when all of them are gone.
            if not here & order.workers:
                del self._flying[key]
                order.future.cancel()
                waiting.appendleft(order)
        while waiting and len(self._flying) < _AHEAD * slots:
            order = waiting.popleft()
            text = rule_as_text(order.rule, self._shared.name(order.rule), anew=self._shared.is_rejected(order.rule))
            self._sent += 1
            key = f"kernel-{order.rule.id}-{self._token}-{self._sent}"
            try:
                future = self._client.submit(compile_kernel, text, key=key, workers=sorted(here), pure=False)
            except Exception as error:
                waiting.appendleft(order)
                raise _LostError(str(error) or type(error).__name__) from error
            order.future, order.workers = future, here
            self._flying[key] = order
            future.add_done_callback(lambda _, key=key: self._done.put(key))

    def _settled(self, order: _Order) -> Outcome | None:
        try:
            answer = strict_json.read(self._answer(order))
        except Exception as error:  # noqa: BLE001 - Dask raises what the worker raised
            # The worker is gone with its answer, say. What it compiled is in the store.
            order.tries += 1
            why = str(error) if isinstance(error, _NoAnswerError) else f"{type(error).__name__}: {error}"
            LOG.warning("%s: no answer: %s", order.rule.out, why[:500])
            return None
        finally:
            order.future.release()
        return self._heard(order, answer if isinstance(answer, dict) else {})

    def _answer(self, order: _Order) -> Any:
        # Not by `Future.result`: where the worker is gone with its answer, that waits until another one, which may
        # never come, has worked the order off again, and leaves a task behind whose exception nobody fetches.
        future = order.future
        if future.status == "error":
            raise future.exception(timeout=30)
        if future.status == "finished":
            told = self._client.sync(self._client.scheduler.gather, keys=[future.key], callback_timeout=30)
            if told["status"] == "OK":
                return told["data"][future.key]
        raise _NoAnswerError("the worker is gone, with its answer")

    def _heard(self, order: _Order, answer: Mapping[str, Any]) -> Outcome | None:
        """What an answer is worth."""
        rule, name, status = order.rule, str(answer.get("worker", "")), answer.get("status")
        if name in self._aside:
            return None
        if status == DONE:
            return self._brought(order, name, answer)
        if status in {FAILED, TIMEOUT}:
            self._on_log(rule, name, str(answer.get("log") or answer.get("reason", "")))
            return self._outcome(rule, answer, origin=WORKER + name)
        why = str(answer.get("reason", ""))
        if status == REFUSED and isinstance(answer.get("inputs"), dict):
            own = self._shared.naming.inputs(rule)
            why = difference({**own, **answer["inputs"]}, own)
        self._set_aside(name, why if status in {REFUSED, MACHINE} else f"it answers {status!r}")
        return None

    def _brought(self, order: _Order, name: str, answer: Mapping[str, Any]) -> Outcome | None:
        rule, shared, maker = order.rule, self._shared, WORKER + name
        if not shared.stores:
            raise KernelError(
                "the kernel store does not answer any more",
                why="workers write their results there; the log says why it was given up",
                fix="see that it can be read and has room, then run it again: it goes on",
            )
        found = bool(answer.get("found"))
        try:
            entry = None
            for pause in _LATE:
                time.sleep(pause)
                origin = shared.stores[0].ref if found else maker
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
            self._set_aside(name, f"what it compiled is not in {shared.stores[0].ref}: its --kernel-store is another")
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
            "status": str(answer["status"]),
            "reason": str(answer.get("reason", ""))[:4000],
            "seconds": float(answer.get("seconds", 0.0)),
            "attempt": int(answer.get("attempt", 1)),
            "origin": origin,
        }

    def _again(self, order: _Order, waiting: deque[_Order]) -> None:
        if order.tries >= _TRIES:
            raise KernelError(
                f"{order.rule.out} ends in neither an object nor a failure",
                why=f"{order.tries} orders for it were lost with their workers, or answered wrongly",
                fix="see the warnings above and the workers' logs; run it again: it goes on with this kernel",
            )
        waiting.appendleft(order)

    def _drop_orders(self) -> list[_Order]:
        """Take all orders back; those that are being compiled reach the store all the same."""
        flying, self._flying = self._flying, {}
        with contextlib.suppress(Exception):
            if flying and self._client.status == "running":
                self._client.cancel([order.future for order in flying.values()], force=True)
        return list(flying.values())

    def _reconnect(self, why: str) -> None:
        LOG.warning("the scheduler at %s is gone (%s); waiting for it", self._address, why)
        self._close()
        until = time.monotonic() + self._patience
        while True:
            try:
                self._client = connect(self._address)
            except UnreachableError:
                if time.monotonic() > until:
                    raise
                time.sleep(_LOOK)
            else:
                with self._lock:
                    self._seen = {}
                return

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close(timeout=5)
