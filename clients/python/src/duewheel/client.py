"""The blocking client."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ._calls import Caller, Calls
from ._http import Address, Connection

P = ParamSpec("P")
R = TypeVar("R")


class SocketConnection(Connection):
    """A connection of the blocking client."""

    def __init__(self, address: Address, context: ssl.SSLContext | None, timeout: float):
        super().__init__()
        self.pid = os.getpid()
        end = time.monotonic() + timeout
        self.sock: socket.socket = socket.create_connection((address.host, address.port), timeout)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self.sock.settimeout(max(end - time.monotonic(), 0.001))
                self.sock = context.wrap_socket(self.sock, server_hostname=address.host)
        except BaseException:
            self.sock.close()
            raise

    async def _write(self, data: bytes, seconds: float) -> None:
        self.sock.settimeout(seconds)
        self.sock.sendall(data)

    async def _read(self, seconds: float) -> bytes:
        self.sock.settimeout(seconds)
        return self.sock.recv(65536)

    def end(self) -> None:
        with suppress(OSError):
            # That of an SSLSocket would take the rest of the answer for plain text.
            socket.socket.shutdown(self.sock, socket.SHUT_WR)

    def good(self) -> bool:
        return self.pid == os.getpid() and super().good()

    def close(self) -> None:
        # One of the parent goes on there: this is not a shutdown.
        self.sock.close()


def _blocking(call: Callable[Concatenate[Any, P], Awaitable[R]]) -> Callable[Concatenate[Any, P], R]:
    """A call whose parts never wait for an event loop, as a method that returns its result."""

    @wraps(call)
    def method(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            call(self, *args, **kwargs).send(None)  # type: ignore[attr-defined]
        except StopIteration as end:
            return end.value
        raise RuntimeError("a blocking client waits for nothing else")

    return method


class Client(Caller):
    """A client that blocks. Threads may share it; a process that forks goes on with connections of its own.

    `url` is the server's address, by default `DUEWHEEL_SERVER` or http://127.0.0.1:7788, and `token` by default
    `DUEWHEEL_TOKEN`. `timeout` is how long an answer may take, and `retry_for` how long a call takes in all, repeated
    while the server is away or answers 429 or 503: the wait of a reserve comes on top of both.

    >>> client = Client()                                                        # doctest: +SKIP
    >>> client.enqueue("close-review", "order 42", delay="48h", key="order-42")  # doctest: +SKIP
    """

    enqueue, enqueue_many = _blocking(Calls.enqueue), _blocking(Calls.enqueue_many)
    get, get_key = _blocking(Calls.get), _blocking(Calls.get_key)
    cancel, cancel_key, cancel_many = _blocking(Calls.cancel), _blocking(Calls.cancel_key), _blocking(Calls.cancel_many)
    change, change_key = _blocking(Calls.change), _blocking(Calls.change_key)
    postpone, postpone_key = _blocking(Calls.postpone), _blocking(Calls.postpone_key)
    fire, fire_key = _blocking(Calls.fire), _blocking(Calls.fire_key)
    replay = _blocking(Calls.replay)
    reserve = _blocking(Calls.reserve)
    ack, ack_many = _blocking(Calls.ack), _blocking(Calls.ack_many)
    nack, nack_many = _blocking(Calls.nack), _blocking(Calls.nack_many)
    extend, extend_many = _blocking(Calls.extend), _blocking(Calls.extend_many)
    queue, queues = _blocking(Calls.queue), _blocking(Calls.queues)
    messages = _blocking(Calls.messages)
    config = _blocking(Calls.config)
    pause, resume = _blocking(Calls.pause), _blocking(Calls.resume)
    purge, redrive = _blocking(Calls.purge), _blocking(Calls.redrive)
    advance = _blocking(Calls.advance)
    request, check = _blocking(Calls.request), _blocking(Calls.check)
    #: For workers, and brokers of frameworks.
    schedule, granted = _blocking(Caller._schedule), _blocking(Caller._granted)
    settle_many = _blocking(Caller._settle_many)

    def close(self) -> None:
        """Closes the kept connections. The client may be used again."""
        while (kept := self._kept()) is not None:
            kept.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _open(self, timeout: float) -> SocketConnection:
        return SocketConnection(self.address, self._context, timeout)

    async def _sleep(self, seconds: float, ended: threading.Event | None = None) -> None:
        (time.sleep if ended is None else ended.wait)(seconds)
