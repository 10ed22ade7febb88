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
import math
import signal
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar, Union

from ._calls import Caller
from ._leases import Fetcher, Keeper
from ._messages import Body, Delivery, Duration, milliseconds
from .client import Client
from .errors import BadAnswer

log = logging.getLogger("duewheel.worker")

#: A handler of messages, with `async` or without it.
Handler = Callable[["Job"], Union[Awaitable[Any], Any]]
H = TypeVar("H", bound=Handler)


class Result:
    """Returned by a handler: the message is done, and this is its result, which a queue with `keep_done` keeps: any
    JSON of at most 16 KiB. A larger one is left out."""

    def __init__(self, value: Any):
        self.value = json.loads(json.dumps(value, allow_nan=False))  # a mistake is the handler's


class GivenBack(Exception):
    """Raised by a handler: the message is not done."""

    #: How it is nacked, besides its delay and its reason.
    how: dict[str, Any] = {}

    def __init__(self, delay: Duration | None = None, reason: str | None = None):
        super().__init__(reason or type(self).__name__)
        self.delay = delay
        self.reason = None if reason is None else str(reason)


class NotYet(GivenBack):
    """Raised by a handler: the message comes again after `delay`, or its backoff, and no attempt is used up."""

    how = {"attempt": False}


class Retry(GivenBack):
    """Raised by a handler: a failed attempt, after which the message comes again after `delay`."""


class Dead(GivenBack):
    """Raised by a handler: the message is dead at once, because of `reason`."""

    how = {"dead": True}

    def __init__(self, reason: str):
        super().__init__(None, reason)


class Cancelled(Exception):
    """Raised by `CancelToken.check`."""


class CancelToken(threading.Event):
    """Says that the work of a handler is of no use any more: its lease is lost ("lease_lost"), so that another consumer
    may have the message, or the worker stops and waits no longer ("stopped"). `wait(timeout)` waits for that."""

    reason: str | None = None

    @property
    def cancelled(self) -> bool:
        return self.is_set()

    def check(self) -> None:
        """Raises `Cancelled` if it is."""
        if self.cancelled:
            raise Cancelled(self.reason)

    def cancel(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.set()


class Job(Body):
    """A message that a handler works on."""

    _task: asyncio.Task[None]
    _handling: asyncio.Future[Any] | None = None

    def __init__(self, delivery: Delivery):
        self.delivery, self.token = delivery, CancelToken()
        self.id, self.queue, self.key = delivery.id, delivery.queue, delivery.key
        self.attempt, self.due_at = delivery.attempt, delivery.due_at
        self.body, self.headers = delivery.body, delivery.headers

    def __repr__(self) -> str:
        return f"<Job {self.id} of {self.queue}, attempt {self.attempt}>"

    def _stop(self) -> None:
        """A thread sees the token; a coroutine is cancelled as well."""
        if isinstance(self._handling, asyncio.Task):
            self._handling.cancel()


def _called(function: Handler, job: Job) -> Any:
    try:
        return function(job)
    except StopIteration as error:
        # A future cannot hold it.
        raise RuntimeError("the handler has raised StopIteration") from error


class Worker:
    """Leases messages of the queues that have handlers, up to `jobs` at a time, in one waiting reserve over all of
    them.

    A handler that returns acks its message, and one that raises an exception gives it back: `NotYet`, `Dead`, `Retry`,
    or any other for the backoff. Its lease is extended while it runs; when it is lost, the token of the job is
    cancelled (a coroutine is cancelled). One that returns all the same is acked, which counts if nobody has got the
    message since; nothing else is settled then. Handlers with `async` run on the worker's event loop, others in `jobs`
    threads. After SIGTERM or SIGINT no message is leased any more, and handlers have `drain` to end.

    `client` is an address, a `Client` or an `AsyncClient`; without one, the environment says where the server is.
    `lease` is the length of leases, by default that of each message; `wait` how long one reserve waits.
    """

    def __init__(self, client: Caller | str | None = None, *, jobs: int = 10, lease: float | None = None,
                 drain: float = 30.0, wait: float = 30.0, token: str | None = None):
        if jobs < 1:
            raise ValueError("jobs: a worker needs at least 1")
        if lease is not None and milliseconds("lease", lease) < 1:
            raise ValueError("lease: at least a millisecond")
        self.client = client._like(Client, _idle=[]) if isinstance(client, Caller) else Client(client, token=token)
        self.jobs = jobs
        self.lease = lease
        self.drain = drain
        self.wait = wait
        self._handlers: dict[str, Handler] = {}
        self._running: dict[str, Job] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopped = False
        self._error: Exception | None = None

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
        if self._stop is not None:
            self._call(self._stop.set)

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        """Calls a function on the loop."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(function, *args)

    async def serve(self, *, signals: bool = False) -> None:
        """Works on the running event loop until `stop`; ends when everything that was begun is settled, or when the
        server is away for ten seconds then.

        Raises the error of a server that refuses the worker, such as `Unauthorized`; one that is away is waited for.
        """
        if not self._handlers:
            raise ValueError("a worker needs a handler: @worker.handler(\"queue\")")
        self._loop = loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        if self._stopped:
            self._stop.set()
        taken = (signal.SIGTERM, signal.SIGINT) if signals else ()
        for number in taken:
            loop.add_signal_handler(number, self.stop)
        self._threads = ThreadPoolExecutor(self.jobs, thread_name_prefix="duewheel")
        self._keeper = Keeper(self.client, self._lost)
        self._fetcher = Fetcher(self._keeper, self.lease, self.wait, math.inf, self._wanted, self._take, self._fail,
                                late=True)
        try:
            if not self._stopped:
                self._fetcher.update()
            await self._stop.wait()
        finally:
            await asyncio.to_thread(self._fetcher.close)
            await self._drain()
            await asyncio.to_thread(self._keeper.close)
            # A thread cannot be ended: a handler that ignores its token keeps the process, not this call.
            self._threads.shutdown(wait=False, cancel_futures=True)
            for number in taken:
                loop.remove_signal_handler(number)
            self._loop = None
            self.client.close()
        if self._error is not None:
            raise self._error

    # Of the threads of the fetcher and the keeper.

    def _wanted(self) -> tuple[list[str], int]:
        return list(self._handlers), max(self.jobs - len(self._running), 0)

    def _take(self, granted: list[Delivery]) -> None:
        for delivery in granted:
            tag = self._keeper.add(delivery)
            self._running[tag] = Job(delivery)
            self._call(self._begin, tag)
        self._fetcher.update()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, BadAnswer):  # perhaps a proxy's, for a while
            log.warning("no messages can be leased, trying again: %s", error)
        else:
            self._error = error
            self.stop()

    def _lost(self, tag: str) -> None:
        if job := self._running.get(tag):
            job.token.cancel("lease_lost")
            self._call(job._stop)

    # Of the loop.

    def _begin(self, tag: str) -> None:
        job = self._running[tag]
        job._task = asyncio.ensure_future(self._work(tag, job))

    async def _work(self, tag: str, job: Job) -> None:
        try:
            result = await self._handle(job)
            # A handler may end its work in spite of a cancelled token: the settle says whether it counts.
            self._keeper.ack(tag, result.value if isinstance(result, Result) else None)
        except GivenBack as error:
            self._nack(tag, job, delay=error.delay, reason=error.reason, **error.how)
        except (asyncio.CancelledError, Cancelled):
            if job.token.cancelled:
                self._nack(tag, job, delay=0, reason="the worker has stopped", attempt=False)
            elif job._handling is not None and job._handling.cancelled():
                self._nack(tag, job, reason="cancelled")
            else:
                raise  # the worker itself is cancelled
        except Exception as error:  # noqa: BLE001: whatever a handler raises is a failed attempt
            if not job.token.cancelled:
                log.exception("%r has failed", job)
            self._nack(tag, job, reason=str(error) or type(error).__name__)
        finally:
            del self._running[tag]
            self._fetcher.update()

    async def _handle(self, job: Job) -> Any:
        function = self._handlers[job.queue]
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):
            job._handling = asyncio.ensure_future(function(job))
        else:
            job._handling = asyncio.get_running_loop().run_in_executor(self._threads, _called, function, job)
        if job.token.cancelled:
            job._stop()
        return await job._handling

    def _nack(self, tag: str, job: Job, **how: Any) -> None:
        """Nacks a message. One with a delay that is none comes again after its backoff."""
        try:
            self._keeper.nack([tag], **how)
        except (TypeError, ValueError) as error:
            log.error("%r comes again after its backoff: %s", job, error)
            self._keeper.nack([tag], **{**how, "delay": None})

    async def _drain(self) -> None:
        running = {job._task: job for job in self._running.values()}
        late = (await asyncio.wait(running, timeout=self.drain))[1] if running else set()
        for task in late:
            log.warning("%r has not ended in time", running[task])
            running[task].token.cancel("stopped")
            running[task]._stop()
        if late:
            await asyncio.wait(late, timeout=5.0)
        for task in late:
            task.cancel()
