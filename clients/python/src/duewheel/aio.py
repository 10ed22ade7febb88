"""The client on asyncio: streams, and no threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ._api import IDLE, Api
from ._calls import Call, Deliveries, Duration, Request
from ._http import Answer, AnswerParser, request_bytes

R = TypeVar("R")


class _Stopped(Exception):
    """Raised by a call that `stop` has ended."""


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

    def good(self) -> bool:
        return time.monotonic() - self.used < IDLE and not self.reader.at_eof()

    def close(self) -> None:
        self.writer.close()


class AsyncClient(Api):
    """`Client` for asyncio: the same calls, each to be awaited. It belongs to one event loop.

    A call that is cancelled closes its connection; a waiting reserve that is cancelled so loses no message, because the
    server takes back what it could not hand over. Any other call may have been applied.
    """

    async def reserve_until(self, stop: asyncio.Event, queues: str | Sequence[str] | Mapping[str, int | None],
                            max: int = 1, *, wait: Duration = 0, lease: Duration | None = None) -> Deliveries:
        """`reserve` that ends early, and without a loss, when `stop` is set."""
        try:
            return await self._run(self._calls.reserve(queues, max, wait=wait, lease=lease), stop)
        except _Stopped:
            return Deliveries()

    async def close(self) -> None:
        """Closes the kept connections. The client may be used again."""
        while (kept := self._kept()) is not None:
            kept.close()
            try:
                await kept.writer.wait_closed()
            except OSError:
                pass

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, call: Call[R], stop: asyncio.Event | None = None) -> R:
        got: Any = None
        while True:
            try:
                step = call.send(got)
            except StopIteration as end:
                return end.value
            if stop is not None and stop.is_set():
                raise _Stopped
            try:
                got = await (self._exchange(step, stop) if isinstance(step, Request) else _sleep(step, stop))
            except (OSError, asyncio.TimeoutError) as error:  # one class only since Python 3.11
                if stop is not None and stop.is_set():
                    raise _Stopped from error
                got = error

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


async def _sleep(seconds: float, stop: asyncio.Event | None) -> None:
    if stop is None:
        await asyncio.sleep(seconds)
        return
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except asyncio.TimeoutError:
        pass
