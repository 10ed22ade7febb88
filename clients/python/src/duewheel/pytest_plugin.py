"""A plugin of pytest: a server with a virtual clock for each test that asks for one.

    def test_order_is_closed(duewheel_server):
        shop.place_order(42, server=duewheel_server.url)
        duewheel_server.assert_enqueued("close-review", key="order-42", due_in="48h")
        duewheel_server.advance("48h")
        assert duewheel_server.client.reserve("close-review")[0].json() == {"order": 42}

The program is `DUEWHEEL_BIN`, the option `--duewheel-bin`, or `duewheel` on the path.
"""

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from ._messages import Duration, Message, milliseconds
from .client import Client

PATIENCE = 60.0  # seconds for the start of the server


class VirtualServer:
    """A server whose clock stands until `advance`. Everything is in memory."""

    def __init__(self, program: str, *options: str):
        self._folder = tempfile.TemporaryDirectory(prefix="duewheel-")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DUEWHEEL_")}
        command = [program, "serve", "--virtual-clock", "--http", "127.0.0.1:0", "--beanstalk", "off", *options]
        self._process = subprocess.Popen(command, cwd=self._folder.name, env=environment, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        patience = threading.Timer(PATIENCE, self._process.kill)
        patience.start()
        assert self._process.stdout is not None
        said: list[str] = []
        found = None
        for line in self._process.stdout:
            said.append(line)
            found = re.match(r"listening on (https?://\S+)", line)
            if found:
                break
        patience.cancel()
        if found is None:
            self.stop()
            raise RuntimeError(f"{program} does not start:\n{''.join(said[-20:])}")
        threading.Thread(target=self._process.stdout.read, daemon=True).start()
        self.url: str = found[1]
        #: A client of this server.
        self.client = Client(self.url)

    def advance(self, by: Duration) -> datetime:
        """Lets time pass, such as "48h". Then everything that is due is granted to the next reserve."""
        return self.client.advance(by)

    def pending(self, queue: str, **filters: Any) -> list[Message]:
        """Scheduled, ready, leased and dead messages of a queue, in due order; with `state="dead"` those alone."""
        found, after = self.client.messages(queue, limit=1000, **filters)
        while after is not None:
            page, after = self.client.messages(queue, limit=1000, after=after, **filters)
            found += page
        return found

    def assert_enqueued(self, queue: str, *, key: str | None = None, body: str | bytes | None = None, json: Any = None,
                        headers: dict[str, str] | None = None, due_in: Duration | None = None,
                        state: str | None = None, count: int | None = None) -> Message:
        """Asserts that a message is pending with everything that is named, and returns the first one. `count` is how
        many there must be. `due_in` is the time until it is due, to the millisecond."""
        asked = {"key": key, "body": body, "json": json, "headers": headers, "due_in": due_in, "state": state}
        asked = {name: value for name, value in asked.items() if value is not None}
        everything = self.pending(queue)
        found = [one for one in everything if all(_agrees(one, name, value) for name, value in asked.items())]
        if found and count is None or len(found) == count:
            return found[0] if found else None  # type: ignore[return-value]
        wanted = ", ".join(f"{name}={value!r}" for name, value in asked.items())
        lines = [f"{len(found)} messages in {queue!r} with {wanted or 'anything'}, not "
                 f"{'at least 1' if count is None else count}; pending are {len(everything)}:"]
        for one in everything[:20]:
            due_in_ms = one.raw.get("due_in_ms")
            lines.append(f"  {one.id} {one.state} due in {due_in_ms} ms, key {one.key!r}, body {one.body[:200]!r}")
        raise AssertionError("\n".join(lines))

    def assert_not_enqueued(self, queue: str, **what: Any) -> None:
        """Asserts that no such message is pending."""
        self.assert_enqueued(queue, count=0, **what)

    def stop(self) -> None:
        """Ends the server, and with it everything that it has."""
        self._process.kill()
        self._process.wait()
        if hasattr(self, "client"):
            self.client.close()
        self._folder.cleanup()


_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def _milliseconds(span: Duration) -> int:
    if not isinstance(span, str):
        return milliseconds("due_in", span)
    if not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h|d|w))+", span):
        raise ValueError(f"due_in: {span!r} is no length of time such as \"48h\" or \"1h30m\"")
    return round(sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ms|s|m|h|d|w)", span)))


def _agrees(message: Message, name: str, wanted: Any) -> bool:
    if name == "json":
        try:
            return bool(message.json() == wanted)
        except ValueError:
            return False
    if name == "headers":
        return bool(wanted.items() <= message.headers.items())
    if name == "due_in":
        return bool(message.raw.get("due_in_ms") == _milliseconds(wanted))
    return bool(getattr(message, name) == (wanted.encode() if name == "body" and isinstance(wanted, str) else wanted))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("duewheel").addoption("--duewheel-bin", help="the program, else DUEWHEEL_BIN or one on the path")


def _program(config: pytest.Config) -> str:
    program = config.getoption("--duewheel-bin") or os.environ.get("DUEWHEEL_BIN") or shutil.which("duewheel")
    if not program:
        pytest.fail("there is no program duewheel: set DUEWHEEL_BIN, give --duewheel-bin, or put it on the path",
                    pytrace=False)
    return os.path.abspath(program) if os.path.dirname(program) else program


@pytest.fixture
def duewheel_server(request: pytest.FixtureRequest) -> Iterator[VirtualServer]:
    """A fresh server with a virtual clock: `url`, `client`, `advance`, `assert_enqueued`, `assert_not_enqueued`,
    `pending`."""
    server = VirtualServer(_program(request.config))
    yield server
    server.stop()
