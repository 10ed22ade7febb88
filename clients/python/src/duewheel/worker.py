"""Workers: handlers that are called with each due message.

>>> worker = Worker("http://localhost:7788", jobs=10)   # doctest: +SKIP
>>> @worker.handler("close-review")                     # doctest: +SKIP
... def close(job):
...     shop.close(job.json()["order"])
>>> worker.run()                                        # doctest: +SKIP
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import random
import signal
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, Union

from ._calls import Body, Delivery, Duration, ack_fields, extend_fields, milliseconds, nack_fields, passing
from ._extending import Lease, due_leases, lost_leases, report, until_due
from .aio import AsyncClient
from .errors import BadAnswer, BadRequest, ConnectionFailed, DuewheelError

log = logging.getLogger("duewheel.worker")

#: A handler of messages, with `async` or without it.
Handler = Callable[["Job"], Union[Awaitable[Any], Any]]
H = TypeVar("H", bound=Handler)


class Result:
    """Returned by a handler: the message is done, and this is its result, which a queue with `keep_done` keeps: any JSON
    of at most 16 KiB. A larger one is left out."""

    def __init__(self, value: Any):
        self.value = json.loads(json.dumps(value, allow_nan=False))  # a mistake is the handler's


class NotYet(Exception):
    """Raised by a handler: the message comes again after `delay`, or its backoff, and no attempt is used up."""

    def __init__(self, delay: Duration | None = None, reason: str | None = None):
        super().__init__(reason or "not yet")
        self.delay = delay
        self.reason = reason


class Dead(Exception):
    """Raised by a handler: the message is dead at once, because of `reason`."""

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class Retry(Exception):
    """Raised by a handler: a failed attempt, after which the message comes again after `delay`."""

    def __init__(self, delay: Duration, reason: str | None = None):
        super().__init__(reason or "retry")
        self.delay = delay
        self.reason = reason


class Cancelled(Exception):
    """Raised by `CancelToken.check`."""


class CancelToken:
    """Says that the work of a handler is of no use any more: its lease is lost ("lease_lost"), so that another consumer
    may have the message, or the worker stops and waits no longer ("stopped")."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason: str | None = None

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is cancelled, for `timeout` seconds at most; whether it is."""
        return self._event.wait(timeout)

    def check(self) -> None:
        """Raises `Cancelled` if it is."""
        if self.cancelled:
            raise Cancelled(self.reason)

    def cancel(self, reason: str) -> None:
        if not self.cancelled:
            self.reason = reason
            self._event.set()


class Job(Body):
    """A message that a handler works on."""

    def __init__(self, delivery: Delivery):
        self.delivery = delivery
        self.token = CancelToken()
        self.id, self.queue, self.key = delivery.id, delivery.queue, delivery.key
        self.attempt, self.due_at = delivery.attempt, delivery.due_at
        self.body, self.headers = delivery.body, delivery.headers

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.queue}, attempt {self.attempt}>"


class _Settler:
    """Sends settles in batches: what comes while a batch is under way is the next one. Each is repeated until it is
    answered, or its lease is lost."""

    def __init__(self, client: AsyncClient, verb: str):
        self.client = client
        self.verb = verb
        self.waiting: list[tuple[dict[str, Any], asyncio.Future[Any]]] = []
        self.task: asyncio.Task[None] | None = None
        self.apart: set[asyncio.Task[None]] = set()

    async def settle(self, fields: dict[str, Any]) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((fields, done))
        if self.task is None or self.task.done():
            self.task = asyncio.ensure_future(self._send())
        return await done

    async def _send(self) -> None:
        tries = 0
        while self.waiting:
            batch, self.waiting = self.waiting, []
            try:
                results = await self.client.settle_many(self.verb, [fields for fields, _ in batch], 0.0)
                tries = 0
            except DuewheelError as error:
                if isinstance(error, BadRequest) and len(batch) > 1:
                    # One of them is at fault, and the others are not to suffer from it.
                    for one in batch:
                        self._later([one], 0.0)
                    continue
                if isinstance(error, ConnectionFailed) or passing(error.status, True):
                    self.waiting[:0] = batch
                    await asyncio.sleep(max(min(0.1 * 2 ** min(tries, 10), 5.0) * random.uniform(0.5, 1.0), error.retry_after or 0.0))
                    tries += 1
                    continue
                results = [error] * len(batch)
            except BaseException:
                for _, done in batch + self.waiting:
                    done.cancel()
                raise
            for one, result in zip(batch, results):
                if isinstance(result, DuewheelError) and passing(result.status, True):
                    # Those of other messages do not wait for it.
                    self._later([one], max(random.uniform(0.25, 0.5), result.retry_after or 0.0))
                elif not one[1].done():
                    one[1].set_result(result)

    def _later(self, batch: list[tuple[dict[str, Any], asyncio.Future[Any]]], pause: float) -> None:
        async def send() -> None:
            await asyncio.sleep(pause)
            one = _Settler(self.client, self.verb)
            one.waiting = batch
            await one._send()

        task = asyncio.ensure_future(send())
        self.apart.add(task)
        task.add_done_callback(self.apart.discard)


def _nack_fields(delivery: Delivery, **how: Any) -> dict[str, Any]:
    """The fields of a nack. One with a delay that is none is plain: the message comes again after its backoff."""
    try:
        return nack_fields(delivery, **how)
    except (TypeError, ValueError) as error:
        log.error("message %s of %s comes again after its backoff: %s", delivery.id, delivery.queue, error)
        return nack_fields(delivery, **{**how, "delay": None})


def _called(function: Handler, job: Job) -> Any:
    try:
        return function(job)
    except StopIteration as error:
        # A future cannot hold it.
        raise RuntimeError("the handler has raised StopIteration") from error


class _Running(Lease):
    """A job under way, under its lease."""

    task: asyncio.Task[None]

    def __init__(self, job: Job):
        super().__init__(job.delivery)
        self.job = job
        self.handling: asyncio.Future[Any] | None = None
        self.sync = False

    def cancel(self, reason: str) -> None:
        self.job.token.cancel(reason)
        # A thread sees its token; a coroutine is cancelled as well.
        if self.handling is not None and not self.sync:
            self.handling.cancel()


class Worker:
    """Leases messages of the queues that have handlers, up to `jobs` at a time, in one waiting reserve over all of them.

    A handler that returns acks its message, and one that raises an exception gives it back: `NotYet`, `Dead`, `Retry`,
    or any other for the backoff. Its lease is extended while it runs; when it is lost, the token of the job is cancelled
    (a coroutine is cancelled) and nothing is settled. Handlers with `async` run on the worker's event loop, others
    in `jobs` threads. After SIGTERM or SIGINT no message is leased any more, and the handlers have `drain` to end.

    `client` is an address or an `AsyncClient`; without one, the environment says where the server is. `lease` is the
    length of leases, by default that of each message; `wait` how long one reserve waits.
    """

    def __init__(self, client: AsyncClient | str | None = None, *, jobs: int = 10, lease: float | None = None,
                 drain: float = 30.0, wait: float = 30.0, token: str | None = None):
        if jobs < 1:
            raise ValueError("jobs: a worker needs at least 1")
        if lease is not None and milliseconds("lease", lease) < 1:
            raise ValueError("lease: at least a millisecond")
        self.client = client if isinstance(client, AsyncClient) else AsyncClient(client, token=token)
        self.jobs = jobs
        self.lease = lease
        self.drain = drain
        self.wait = wait
        self._handlers: dict[str, Handler] = {}
        self._running: set[_Running] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopped = False

    def handler(self, *queues: str) -> Callable[[H], H]:
        """Registers a function for the messages of these queues, as a decorator."""

        def register(function: H) -> H:
            for queue in queues:
                self.add(queue, function)
            return function

        return register

    def add(self, queue: str, function: Handler) -> None:
        """Registers a function for the messages of a queue."""
        if queue in self._handlers:
            raise ValueError(f"queue: {queue!r} has a handler already")
        self._handlers[queue] = function

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`. Signals are only taken in the main thread."""
        asyncio.run(self.serve(signals=threading.current_thread() is threading.main_thread()))

    def stop(self) -> None:
        """Begins to drain; any thread may call it."""
        self._stopped = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                pass  # the loop has ended

    async def serve(self, *, signals: bool = False) -> None:
        """Works on the running event loop until `stop`; ends when everything that was begun is settled.

        Raises the error of a server that refuses the worker, such as `Unauthorized`; one that is away is waited for.
        """
        if not self._handlers:
            raise ValueError("a worker needs a handler: @worker.handler(\"queue\")")
        self._loop = asyncio.get_running_loop()
        self._stop = stop = asyncio.Event()
        if self._stopped:
            stop.set()
        taken = (signal.SIGTERM, signal.SIGINT) if signals else ()
        for number in taken:
            self._loop.add_signal_handler(number, self.stop)
        self._free, self._begun = asyncio.Event(), asyncio.Event()
        self._acks, self._nacks = _Settler(self.client, "ack"), _Settler(self.client, "nack")
        threads = ThreadPoolExecutor(self.jobs, thread_name_prefix="duewheel")
        extending = asyncio.ensure_future(self._extend())
        try:
            try:
                await self._lease(stop, threads)
            finally:
                await self._drain()
        finally:
            extending.cancel()
            # A thread cannot be ended: a handler that ignores its token keeps the process, not this call.
            threads.shutdown(wait=False, cancel_futures=True)
            for number in taken:
                self._loop.remove_signal_handler(number)
            self._loop = None
            await self.client.close()

    async def _lease(self, stop: asyncio.Event, threads: ThreadPoolExecutor) -> None:
        pause = 0.0
        while not stop.is_set():
            room = self.jobs - len(self._running)
            if room <= 0:
                self._free.clear()
                await _either(stop, self._free)
                continue
            try:
                granted = await self.client.reserve_until(stop, list(self._handlers), room, wait=self.wait, lease=self.lease)
                pause = 0.0
            except DuewheelError as error:
                if not (isinstance(error, (BadAnswer, ConnectionFailed)) or error.status >= 429):
                    raise
                pause = min(pause * 2 or 0.5, 10.0)
                log.warning("no messages can be leased, trying again in %.1f s: %s", pause, error)
                await _within(stop.wait(), pause)
                continue
            for delivery in granted:
                one = _Running(Job(delivery))
                self._running.add(one)
                # After a stop what is still granted is given back, and none of its attempts is used up.
                work = self._give_back(one) if stop.is_set() else self._work(one, threads)
                one.task = asyncio.ensure_future(work)
            self._begun.set()

    async def _give_back(self, one: _Running) -> None:
        try:
            await self._settled(self._nacks, one, nack_fields(one.delivery, delay=0, attempt=False))
        finally:
            self._running.discard(one)

    async def _work(self, one: _Running, threads: ThreadPoolExecutor) -> None:
        delivery = one.job.delivery
        try:
            try:
                fields = await self._handle(one, threads)
            finally:
                one.end()
            if isinstance(fields, Result):
                await self._settled(self._acks, one, ack_fields(delivery, fields.value))
            elif one.job.token.reason != "lease_lost":
                await self._settled(self._nacks, one, fields)
        finally:
            self._running.discard(one)
            self._free.set()

    async def _handle(self, one: _Running, threads: ThreadPoolExecutor) -> dict[str, Any] | Result:
        """Calls the handler; the result of a message that is done, else the fields of its nack."""
        job, delivery = one.job, one.job.delivery
        function = self._handlers[delivery.queue]
        try:
            if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):
                one.handling = asyncio.ensure_future(function(job))
            else:
                one.sync = True
                one.handling = asyncio.get_running_loop().run_in_executor(threads, _called, function, job)
            result = await one.handling
            if job.token.reason == "lease_lost":
                return {}
            # A handler may end its work in spite of a cancelled token: the settle says whether it counts.
            return result if isinstance(result, Result) else Result(None)
        except NotYet as error:
            return _nack_fields(delivery, delay=error.delay, reason=error.reason, attempt=False)
        except Dead as error:
            return _nack_fields(delivery, reason=error.reason, dead=True)
        except Retry as error:
            return _nack_fields(delivery, delay=error.delay, reason=error.reason)
        except (asyncio.CancelledError, Cancelled):
            if not job.token.cancelled:
                if one.handling is None or not one.handling.cancelled():
                    raise  # the worker itself is cancelled
                return nack_fields(delivery, reason="cancelled")
            return nack_fields(delivery, delay=0, reason="the worker has stopped", attempt=False)
        except Exception as error:  # noqa: BLE001: whatever a handler raises is a failed attempt
            if not job.token.cancelled:
                log.exception("%r has failed", job)
            return nack_fields(delivery, reason=str(error) or type(error).__name__)

    async def _settled(self, settler: _Settler, one: _Running, fields: dict[str, Any]) -> None:
        result = await settler.settle(fields)
        refused = fields.keys() & {"delay", "delay_ms", "result"}
        if isinstance(result, BadRequest) and refused:
            log.error("%r is settled without %s: %s", one.job, " and ".join(refused), result)
            result = await settler.settle({name: value for name, value in fields.items() if name not in refused})
        report(repr(one.job), result)

    async def _extend(self) -> None:
        """Extends each lease at half its time, those that are near in one call."""
        while True:
            due = due_leases(self._running)
            if due:
                asyncio.ensure_future(self._extend_now(due))
            self._begun.clear()
            await _within(self._begun.wait(), until_due(self._running))

    async def _extend_now(self, due: list[_Running]) -> None:
        patience = min(one.half for one in due) / 4
        try:
            results = await self.client.settle_many("extend", [extend_fields(one.delivery) for one in due], patience)
        except DuewheelError as error:
            log.warning("leases cannot be extended, trying again: %s", error)
            results = [error] * len(due)
        for one in lost_leases(due, results):
            if one in self._running:
                log.warning("the lease of %r is lost", one.job)
                one.cancel("lease_lost")
        self._begun.set()

    async def _drain(self) -> None:
        running = {one.task: one for one in self._running}
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=self.drain)
        for task in late:
            log.warning("%r has not ended in time", running[task].job)
            running[task].cancel("stopped")
        if late:
            await asyncio.wait(late, timeout=5.0)
        for task in late:
            task.cancel()


async def _within(work: Awaitable[Any], seconds: float | None) -> None:
    """Waits, for that long at most."""
    try:
        await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        pass


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
