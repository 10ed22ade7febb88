"""The client on asyncio: streams, and no threads."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from ._calls import Calls, reserve_request
from ._http import Connection
from ._messages import Deliveries, Duration, Queues


class _Stream(Connection):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        super().__init__()
        self.reader = reader
        self.writer = writer

    async def _write(self, data: bytes, seconds: float) -> None:
        self.writer.write(data)
        await asyncio.wait_for(self.writer.drain(), seconds)

    async def _read(self, seconds: float) -> bytes:
        return await asyncio.wait_for(self.reader.read(65536), seconds)

    def end(self) -> None:
        with suppress(OSError):
            # Under TLS as well: the end of a TLS stream would end the answer.
            self.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)

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
            request.end()  # also if it is cancelled below: before Python 3.12 `wait_for` may miss that
            if request.connection is None and not reserving.done():
                return Deliveries()  # nothing is under way
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
        opening = asyncio.open_connection(self.address.host, self.address.port, ssl=self._context)
        return _Stream(*await asyncio.wait_for(opening, timeout))

    async def _sleep(self, seconds: float, ended: threading.Event | None = None) -> None:
        await asyncio.sleep(seconds)
