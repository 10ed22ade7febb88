"""The blocking client."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ._calls import Call, Calls, Request
from ._http import Address, Answer, AnswerParser, request_bytes

P = ParamSpec("P")
R = TypeVar("R")

#: A kept connection is not used again after this time: the server closes one that is idle for 30 s.
IDLE = 20.0


class Connection:
    """One connection, and how its answers are read."""

    def __init__(self, address: Address, context: ssl.SSLContext | None, timeout: float):
        self.sock: socket.socket = socket.create_connection((address.host, address.port), timeout)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                self.sock = (context or ssl.create_default_context()).wrap_socket(self.sock, server_hostname=address.host)
        except BaseException:
            self.sock.close()
            raise
        self.parser = AnswerParser()
        self.made = self.used = time.monotonic()

    def exchange(self, data: bytes, timeout: float) -> Answer:
        """Sends a request and reads its answer, which may take `timeout` between two of its bytes."""
        try:
            self.sock.settimeout(timeout)
            self.sock.sendall(data)
            while True:
                answer = self.parser.feed(self.sock.recv(65536))
                if answer is not None:
                    self.used = time.monotonic()
                    return answer
        except OSError as error:
            error.partial = self.parser.partial()  # type: ignore[attr-defined]
            raise

    def close(self) -> None:
        try:
            self.sock.close()
        except OSError:
            pass


def default_url(url: str | None) -> str:
    return url or os.environ.get("DUEWHEEL_SERVER") or "http://127.0.0.1:7788"


def blocking(call: Callable[Concatenate[Calls, P], Call[R]]) -> Callable[Concatenate[Client, P], R]:
    """A method that runs a call."""

    @wraps(call)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(call(self._calls, *args, **kwargs))

    return method


class Client:
    """A client that blocks. Threads may share it; a process that forks goes on with connections of its own.

    `url` is the server's address, by default `DUEWHEEL_SERVER` or http://127.0.0.1:7788, and `token` by default
    `DUEWHEEL_TOKEN`. `timeout` is how long an answer may take, in addition to the wait of a reserve, and `retry_for` how
    long a call is repeated in all while the server is away or answers 429 or 503.

    >>> client = Client()                                                        # doctest: +SKIP
    >>> client.enqueue("close-review", "order 42", delay="48h", key="order-42")  # doctest: +SKIP
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
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._pid = os.getpid()

    enqueue = blocking(Calls.enqueue)
    enqueue_many = blocking(Calls.enqueue_many)
    get = blocking(Calls.get)
    get_key = blocking(Calls.get_key)
    cancel = blocking(Calls.cancel)
    cancel_key = blocking(Calls.cancel_key)
    cancel_many = blocking(Calls.cancel_many)
    change = blocking(Calls.change)
    change_key = blocking(Calls.change_key)
    postpone = blocking(Calls.postpone)
    postpone_key = blocking(Calls.postpone_key)
    fire = blocking(Calls.fire)
    fire_key = blocking(Calls.fire_key)
    replay = blocking(Calls.replay)
    reserve = blocking(Calls.reserve)
    ack = blocking(Calls.ack)
    nack = blocking(Calls.nack)
    extend = blocking(Calls.extend)
    ack_many = blocking(Calls.ack_many)
    nack_many = blocking(Calls.nack_many)
    extend_many = blocking(Calls.extend_many)
    settle_many = blocking(Calls.settle_many)
    queues = blocking(Calls.queues)
    queue = blocking(Calls.queue)
    messages = blocking(Calls.messages)
    config = blocking(Calls.config)
    pause = blocking(Calls.pause)
    resume = blocking(Calls.resume)
    purge = blocking(Calls.purge)
    redrive = blocking(Calls.redrive)
    advance = blocking(Calls.advance)
    request = blocking(Calls.request)

    def close(self) -> None:
        """Closes the kept connections. The client may be used again."""
        with self._lock:
            kept, self._idle = self._idle, []
        for connection in kept:
            connection.close()

    def check(self) -> dict[str, Any]:
        """Asks once, without repetition, whether the server is there and takes the token; what the token allows."""
        return self._run(Calls(0.0).request("GET", "/v1/token"))

    def connect(self) -> Connection:
        """A connection of its own, for calls that wait."""
        return Connection(self.address, self._context, self.timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, call: Call[R]) -> R:
        got: Any = None
        while True:
            try:
                step = call.send(got)
            except StopIteration as end:
                return end.value
            if isinstance(step, Request):
                try:
                    got = self._exchange(step)
                except OSError as error:
                    got = error
            else:
                time.sleep(step)
                got = None

    def _exchange(self, request: Request) -> Answer:
        data = request_bytes(self.address, request.method, request.path, request.body, request.content_type)
        timeout = self.timeout + request.wait
        # A kept connection may be one that the server is closing, so what must not be sent twice gets a fresh one.
        kept = self._kept() if request.repeatable else None
        if kept is not None:
            try:
                return self._over(kept, data, timeout)
            except ConnectionError:
                if kept.parser.begun:
                    raise
        answer = self._over(self.connect(), data, timeout)
        answer.resent = kept is not None
        return answer

    def _over(self, connection: Connection, data: bytes, timeout: float) -> Answer:
        try:
            answer = connection.exchange(data, timeout)
        except BaseException:
            connection.close()
            raise
        if answer.keep_alive:
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _kept(self) -> Connection | None:
        with self._lock:
            if self._pid != os.getpid():
                # The connections belong to the parent, which goes on with them: close() of a socket is not a shutdown.
                self._pid, old, self._idle = os.getpid(), self._idle, []
                for connection in old:
                    connection.sock.detach() if isinstance(connection.sock, ssl.SSLSocket) else connection.close()
            while self._idle:
                connection = self._idle.pop()
                if time.monotonic() - connection.used < IDLE:
                    return connection
                connection.close()
        return None
