"""The broker of Dramatiq against a real server."""

import json
import time

import pytest

dramatiq = pytest.importorskip("dramatiq")

from duewheel import Client, errors  # noqa: E402
from duewheel.dramatiq import DuewheelBroker  # noqa: E402
from running import LEASE, LONGER, Server, until  # noqa: E402


@pytest.fixture
def server(tmp_path):
    one = Server(tmp_path)
    yield one
    one.stop()


@pytest.fixture
def broker(server):
    one = DuewheelBroker(server.url, prefix="shop.", lease=LEASE)
    dramatiq.set_broker(one)
    yield one
    one.close()


class Working:
    def __init__(self, broker, **options):
        self.worker = dramatiq.Worker(broker, worker_timeout=100, **{"worker_threads": 4, **options})

    def __enter__(self):
        self.worker.start()
        return self.worker

    def __exit__(self, *_):
        self.worker.stop()


def test_messages_with_and_without_a_delay(broker, server):
    client, ran = Client(server.url), []

    @dramatiq.actor
    def close(order, due=0.0):
        ran.append((order, time.time() >= due))

    close.send(1)
    close.send_with_options(args=(2, time.time() + 1), delay=1000)
    later = close.send_with_options(args=(3,), delay=172_800_000)
    assert client.get_key("shop.default", later.message_id).state == "scheduled"
    with Working(broker):
        until(lambda: len(ran) == 2)
        # No worker holds it: it waits in the server.
        assert client.queue("shop.default")["counts"]["scheduled"] == 1
        client.fire_key("shop.default", later.message_id)
        broker.join("default", timeout=60_000)
    assert ran == [(1, True), (2, True), (3, True)]


def test_retries_wait_in_the_server_and_the_last_one_is_dead(broker, server):
    client, tries = Client(server.url), []

    @dramatiq.actor(max_retries=2, min_backoff=200, max_backoff=400)
    def broken():
        tries.append(time.monotonic())
        raise RuntimeError("no")

    broken.send()
    with Working(broker):
        until(lambda: len(tries) == 3)
        until(lambda: client.queue("shop.default")["counts"]["dead"] == 1)
        broker.join("default", timeout=60_000)
    assert len(tries) == 3
    assert client.messages("shop.default", state="dead")[0][0].raw["history"][-1]["note"] == "rejected"


def test_a_long_task_runs_once(broker, server):
    ran = []

    @dramatiq.actor
    def slow():
        ran.append(1)
        time.sleep(LONGER)

    slow.send()
    with Working(broker), Working(broker):
        broker.join("default", timeout=60_000)
    assert ran == [1]


def test_a_consumer_that_is_replaced_keeps_what_is_under_way(broker, server):
    client, ran = Client(server.url), []

    @dramatiq.actor
    def slow():
        ran.append(1)
        time.sleep(LONGER)

    slow.send()
    with Working(broker) as worker:
        until(lambda: ran)
        before = worker.consumers["default"].consumer
        before.inbox.put(errors.ConnectionFailed("for a moment"))
        until(lambda: worker.consumers["default"].consumer not in (before, None))
        until(lambda: client.queue("shop.default")["totals"]["acked"] == 1)
    assert ran == [1]


def test_what_is_no_message_is_dead(broker, server):
    client, ran = Client(server.url), []

    @dramatiq.actor
    def note(n):
        ran.append(n)

    whole = note.message(1).asdict()
    for foreign in ("hello", "{}", "[1]", json.dumps({**whole, "args": list(whole["args"]), "options": []})):
        client.enqueue("shop.default", foreign)
    note.send(2)
    with Working(broker):
        until(lambda: ran == [2])
        until(lambda: client.queue("shop.default")["counts"]["dead"] == 4)


def test_a_worker_that_stops_gives_back_what_it_has_not_begun(broker, server):
    client, ran = Client(server.url), []

    @dramatiq.actor
    def slow(n):
        ran.append(n)
        time.sleep(0.5)

    for n in range(30):
        slow.send(n)
    with Working(broker, worker_threads=1):
        until(lambda: ran)
    counts = client.queue("shop.default")["counts"]
    assert counts["leased"] == 0 and counts["ready"] == 30 - len(ran)
    assert counts["ready"] > 0


def test_priorities_cancel_and_flush(broker, server):
    ran = []

    @dramatiq.actor(priority=10)
    def low():
        ran.append("low")

    @dramatiq.actor(priority=0)
    def high():
        ran.append("high")

    taken = low.send_with_options(delay=60_000)
    assert broker.cancel(taken) is True and broker.cancel(taken) is False
    low.send(), high.send()
    with Working(broker, worker_threads=1):
        broker.join("default", timeout=60_000)
    assert ran == ["high", "low"]
    low.send(), low.send_with_options(delay=60_000)
    broker.flush_all()
    broker.join("default", timeout=60_000)
    with pytest.raises(dramatiq.QueueNotFound):
        broker.enqueue(low.message().copy(queue_name="unknown"))


def test_it_goes_on_after_a_restart(broker, server):
    ran = []

    @dramatiq.actor
    def note(n):
        ran.append(n)

    note.send(1)
    with Working(broker):
        until(lambda: ran == [1])
        server.kill()
        server.start()
        note.send(2)
        until(lambda: ran == [1, 2])
