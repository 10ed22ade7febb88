"""The client on asyncio: streams, and no threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from ._calls import Calls, reserve_request
from ._http import Connection
from ._messages import Deliveries, Duration, Queues

R = TypeVar("R")


async def _within(seconds: float, work: Awaitable[R]) -> R:
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:  # an OSError only since Python 3.11
        raise TimeoutError("timed out") from None


class _Stream(Connection):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        super().__init__()
        self.reader = reader
        self.writer = writer

    async def _write(self, data: bytes, seconds: float) -> None:
        self.writer.write(data)
        await _within(seconds, self.writer.drain())

    async def _read(self, seconds: float) -> bytes:
        return await _within(seconds, self.reader.read(65536))

    def end(self) -> None:
        if self.writer.can_write_eof():
            self.writer.write_eof()
        else:
            self.writer.close()

    def good(self) -> bool:
        return super().good() and not self.reader.at_eof()

    def close(self) -> None:
        self.writer.close()


class AsyncClient(Calls):
    """`Client` for asyncio: the same calls, each to be awaited. It belongs to one event loop.

    A call that is cancelled closes its connection; a waiting reserve that is cancelled so loses no message, because the
    server takes back what it could not hand over. Any other call may have been applied.
    """

    async def reserve_until(self, stop: asyncio.Event, queues: Queues,
                            max: int = 1, *, wait: Duration = 0, lease: Duration | None = None) -> Deliveries:
        """`reserve` that ends early, and without a loss, when `stop` is set."""
        request = reserve_request(queues, max, wait, lease)
        reserving, stopping = asyncio.ensure_future(self._granted(request)), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({reserving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set() and request.connection is None and not reserving.done():
                return Deliveries()  # nothing is under way
            request.end()
            return await reserving
        finally:
            reserving.cancel()
            stopping.cancel()

    async def close(self) -> None:
        """Closes the kept connections. The client may be used again."""
        while (kept := self._kept()) is not None:
            kept.close()
            with suppress(OSError):
                await kept.writer.wait_closed()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self, timeout: float) -> _Stream:
        return _Stream(*await _within(timeout, asyncio.open_connection(self.address.host, self.address.port,
                                                                       ssl=self._context)))

    async def _sleep(self, seconds: float, ended: threading.Event | None = None) -> None:
        await asyncio.sleep(seconds)
