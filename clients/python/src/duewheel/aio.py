"""The client on asyncio: streams, and no threads."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from ._calls import Call, Calls, Deliveries, Duration, Request
from ._http import Address, Answer, AnswerParser, request_bytes
from .client import IDLE, default_url

P = ParamSpec("P")
R = TypeVar("R")


class _Stream:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader = reader
        self.writer = writer
        self.parser = AnswerParser()
        self.used = time.monotonic()

    async def exchange(self, data: bytes, timeout: float, stop: asyncio.Event | None = None) -> Answer:
        watching = asyncio.ensure_future(self._end_at(stop)) if stop is not None else None
        try:
            self.writer.write(data)
            await asyncio.wait_for(self.writer.drain(), timeout)
            while True:
                answer = self.parser.feed(await asyncio.wait_for(self.reader.read(65536), timeout))
                if answer is not None:
                    self.used = time.monotonic()
                    return answer
        except (OSError, asyncio.TimeoutError) as error:
            error.partial = self.parser.partial()  # type: ignore[attr-defined]
            raise
        finally:
            if watching is not None:
                watching.cancel()

    async def _end_at(self, stop: asyncio.Event) -> None:
        # The server answers a request that waits by the end of the connection, or has answered it already: nothing that
        # was leased is lost, as it would be if the connection were closed while its answer is on the way.
        await stop.wait()
        if self.writer.can_write_eof():
            self.writer.write_eof()
        else:
            self.writer.close()

    def close(self) -> None:
        self.writer.close()


def awaited(call: Callable[Concatenate[Calls, P], Call[R]]) -> Callable[Concatenate[AsyncClient, P], Awaitable[R]]:
    """A coroutine method that runs a call."""

    @wraps(call)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(call(self._calls, *args, **kwargs))

    return method


class AsyncClient:
    """`Client` for asyncio: the same calls, each to be awaited. It belongs to one event loop.

    A call that is cancelled closes its connection; a waiting reserve that is cancelled so loses no message, because the
    server takes back what it could not hand over. Any other call may have been applied.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout: float = 10.0,
        retry_for: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ):
        self.address = Address.parse(default_url(url), token or os.environ.get("DUEWHEEL_TOKEN"))
        self.timeout = timeout
        self._calls = Calls(retry_for)
        self._context = ssl_context or self.address.context()
        self._idle: list[_Stream] = []

    enqueue = awaited(Calls.enqueue)
    enqueue_many = awaited(Calls.enqueue_many)
    get = awaited(Calls.get)
    get_key = awaited(Calls.get_key)
    cancel = awaited(Calls.cancel)
    cancel_key = awaited(Calls.cancel_key)
    cancel_many = awaited(Calls.cancel_many)
    change = awaited(Calls.change)
    change_key = awaited(Calls.change_key)
    postpone = awaited(Calls.postpone)
    postpone_key = awaited(Calls.postpone_key)
    fire = awaited(Calls.fire)
    fire_key = awaited(Calls.fire_key)
    replay = awaited(Calls.replay)
    reserve = awaited(Calls.reserve)
    ack = awaited(Calls.ack)
    nack = awaited(Calls.nack)
    extend = awaited(Calls.extend)
    ack_many = awaited(Calls.ack_many)
    nack_many = awaited(Calls.nack_many)
    extend_many = awaited(Calls.extend_many)
    settle_many = awaited(Calls.settle_many)
    queues = awaited(Calls.queues)
    queue = awaited(Calls.queue)
    messages = awaited(Calls.messages)
    config = awaited(Calls.config)
    pause = awaited(Calls.pause)
    resume = awaited(Calls.resume)
    purge = awaited(Calls.purge)
    redrive = awaited(Calls.redrive)
    advance = awaited(Calls.advance)
    request = awaited(Calls.request)

    async def reserve_until(
        self,
        stop: asyncio.Event,
        queues: str | Sequence[str] | Mapping[str, int | None],
        max: int = 1,
        *,
        wait: Duration = 0,
        lease: Duration | None = None,
    ) -> Deliveries:
        """`reserve` that ends early, and without a loss, when `stop` is set."""
        return await self._run(self._calls.reserve(queues, max, wait=wait, lease=lease), stop) or Deliveries()

    async def close(self) -> None:
        """Closes the kept connections. The client may be used again."""
        kept, self._idle = self._idle, []
        for stream in kept:
            stream.close()
        for stream in kept:
            try:
                await stream.writer.wait_closed()
            except OSError:
                pass

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    async def _run(self, call: Call[R]) -> R: ...
    @overload
    async def _run(self, call: Call[R], stop: asyncio.Event) -> R | None: ...

    async def _run(self, call: Call[R], stop: asyncio.Event | None = None) -> R | None:
        got: Any = None
        while True:
            try:
                step = call.send(got)
            except StopIteration as end:
                return end.value
            if stop is not None and stop.is_set():
                return None
            if isinstance(step, Request):
                try:
                    got = await self._exchange(step, stop)
                except (OSError, asyncio.TimeoutError) as error:  # one class only since Python 3.11
                    if stop is not None and stop.is_set():
                        return None
                    got = error
            else:
                await _sleep(step, stop)
                got = None

    async def _exchange(self, request: Request, stop: asyncio.Event | None) -> Answer:
        data = request_bytes(self.address, request.method, request.path, request.body, request.content_type)
        timeout = self.timeout + request.wait
        kept = self._kept() if request.repeatable else None
        if kept is not None:
            try:
                return await self._over(kept, data, timeout, stop)
            except ConnectionError:
                if kept.parser.begun or (stop is not None and stop.is_set()):
                    raise
        opened = asyncio.open_connection(self.address.host, self.address.port, ssl=self._context)
        answer = await self._over(_Stream(*await asyncio.wait_for(opened, self.timeout)), data, timeout, stop)
        answer.resent = kept is not None
        return answer

    async def _over(self, stream: _Stream, data: bytes, timeout: float, stop: asyncio.Event | None) -> Answer:
        try:
            answer = await stream.exchange(data, timeout, stop)
        except BaseException:
            stream.close()
            raise
        if answer.keep_alive and not (stop is not None and stop.is_set()):
            self._idle.append(stream)
        else:
            stream.close()
        return answer

    def _kept(self) -> _Stream | None:
        while self._idle:
            stream = self._idle.pop()
            if time.monotonic() - stream.used < IDLE and not stream.reader.at_eof():
                return stream
            stream.close()
        return None


async def _sleep(seconds: float, stop: asyncio.Event | None) -> None:
    if stop is None:
        await asyncio.sleep(seconds)
        return
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except asyncio.TimeoutError:
        pass
