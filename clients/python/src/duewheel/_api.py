"""The methods that the blocking client and the one on asyncio have in common."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable
from functools import wraps
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from ._calls import Call, Calls
from ._http import Address

P = ParamSpec("P")
R = TypeVar("R")

#: A kept connection is not used again after this time: the server closes one that is idle for 30 s.
IDLE = 20.0


class _Blocking(Protocol):
    def _run(self, call: Call[R]) -> R: ...


class _Awaited(Protocol):
    def _run(self, call: Call[R]) -> Awaitable[R]: ...


class Method(Generic[P, R]):
    """A call as a method, which the client runs."""

    def __init__(self, call: Callable[Concatenate[Calls, P], Call[R]]):
        self.call = call

    @overload
    def __get__(self, client: None, owner: object) -> Callable[Concatenate[Any, P], Any]: ...
    @overload
    def __get__(self, client: _Awaited, owner: object) -> Callable[P, Awaitable[R]]: ...
    @overload
    def __get__(self, client: _Blocking, owner: object) -> Callable[P, R]: ...

    def __get__(self, client: Any, owner: object) -> Any:
        if client is None:
            return self.call
        call = MethodType(self.call, client._calls)

        @wraps(call)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client._run(call(*args, **kwargs))

        return method


class Api:
    """Where the server is, and every call."""

    def __init__(self, url: str | None = None, *, token: str | None = None, timeout: float = 10.0,
                 retry_for: float = 30.0, ssl_context: ssl.SSLContext | None = None):
        url = url or os.environ.get("DUEWHEEL_SERVER") or "http://127.0.0.1:7788"
        self.address = Address.parse(url, token or os.environ.get("DUEWHEEL_TOKEN"))
        self.timeout = timeout
        self._calls = Calls(retry_for)
        self._context = ssl_context or self.address.context()
        self._idle: list[Any] = []

    def _kept(self) -> Any:
        """A connection that is still good, or None; others are closed."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.good():
                return connection
            connection.close()

    enqueue = Method(Calls.enqueue)
    enqueue_many = Method(Calls.enqueue_many)
    get = Method(Calls.get)
    get_key = Method(Calls.get_key)
    cancel = Method(Calls.cancel)
    cancel_key = Method(Calls.cancel_key)
    cancel_many = Method(Calls.cancel_many)
    change = Method(Calls.change)
    change_key = Method(Calls.change_key)
    postpone = Method(Calls.postpone)
    postpone_key = Method(Calls.postpone_key)
    fire = Method(Calls.fire)
    fire_key = Method(Calls.fire_key)
    replay = Method(Calls.replay)
    reserve = Method(Calls.reserve)
    ack = Method(Calls.ack)
    nack = Method(Calls.nack)
    extend = Method(Calls.extend)
    ack_many = Method(Calls.ack_many)
    nack_many = Method(Calls.nack_many)
    extend_many = Method(Calls.extend_many)
    settle_many = Method(Calls.settle_many)
    queues = Method(Calls.queues)
    queue = Method(Calls.queue)
    messages = Method(Calls.messages)
    config = Method(Calls.config)
    pause = Method(Calls.pause)
    resume = Method(Calls.resume)
    purge = Method(Calls.purge)
    redrive = Method(Calls.redrive)
    advance = Method(Calls.advance)
    request = Method(Calls.request)
