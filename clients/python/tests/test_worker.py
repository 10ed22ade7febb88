"""Workers against a real server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from duewheel import AsyncClient, Client, Dead, NotYet, Result, Retry, Worker, errors
from running import LEASE, LONGER, Fake, Server, until

SOURCE = str(Path(__file__).resolve().parent.parent / "src")


@pytest.fixture
def server(tmp_path):
    one = Server(tmp_path)
    yield one
    one.stop()


class Threaded:
    def __init__(self, worker):
        self.worker, self.error = worker, None
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001: looked at by the test
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.worker.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_handlers_of_both_kinds_and_what_they_raise(server):
    client = Client(server.url)
    worker = Worker(server.url, jobs=4)
    seen = []

    @worker.handler("sync")
    def sync(job):
        seen.append(("sync", job.text, job.attempt))
        if job.attempt == 1:
            raise {"later": NotYet(0.05), "again": Retry(0.05, "busy"), "bad": Dead("no such order"), "broken": ValueError("oh")}[job.text]

    @worker.handler("async", "other")
    async def coroutine(job):
        await asyncio.sleep(0.01)
        seen.append((job.queue, job.json(), job.headers.get("a")))

    client.enqueue_many("sync", [{"body": text, "key": text} for text in ("later", "again", "bad", "broken")])
    client.enqueue("async", json={"n": 1}, headers={"a": "b"})
    client.enqueue("other", json=[2])
    with Threaded(worker) as running:
        until(lambda: len(seen) == 4 + 3 + 2, seen)
        until(lambda: client.queue("sync")["counts"]["leased"] == 0)
    assert running.error is None
    assert sorted(text for kind, text, attempt in seen if kind == "sync" and attempt == 2) == ["again", "broken", "later"]
    assert ("async", {"n": 1}, "b") in seen and ("other", [2], None) in seen
    dead = client.get_key("sync", "bad")
    assert dead.state == "dead" and dead.raw["dead_reason"] == "buried"
    assert dead.raw["history"][-1]["note"] == "no such order"
    assert [queue["counts"]["ready"] + queue["counts"]["scheduled"] for queue in client.queues()] == [0] * len(client.queues())


def test_a_delay_that_is_none_holds_up_no_other_message(server):
    client = Client(server.url)
    worker = Worker(server.url, jobs=8)
    seen = []

    @worker.handler("q")
    async def handle(job):
        seen.append(job.text)
        if job.attempt == 1:
            await asyncio.sleep(0.2)
            raise {"text": NotYet("whenever"), "negative": NotYet(-1), "retry": Retry(-1), "kind": NotYet([]), "good": NotYet(3600)}[job.text]

    client.enqueue_many("q", [{"body": text, "key": text, "lease": 3600} for text in ("text", "negative", "retry", "kind", "good")])
    with Threaded(worker) as running:
        until(lambda: sorted(seen) == sorted(["text", "negative", "retry", "kind"] * 2 + ["good"]), seen)
    assert running.error is None
    assert client.get_key("q", "good").raw["forgiven"] == 1 and client.get_key("q", "good").state == "scheduled"


def test_a_reason_may_be_an_exception(server):
    client = Client(server.url)
    worker = Worker(server.url, jobs=1)
    worker.handler("q")(fail_with(Dead(LookupError("no such order"))))
    worker.handler("again")(fail_with(Retry(3600, LookupError("busy"))))
    client.enqueue("q", "x", key="k")
    client.enqueue("again", "x", key="k")
    with Threaded(worker):
        until(lambda: client.queue("q")["counts"]["dead"] == 1 and client.queue("again")["counts"]["scheduled"] == 1)
    assert [client.get_key(it, "k").raw["history"][-1]["note"] for it in ("q", "again")] == ["no such order", "busy"]


def fail_with(error):
    def handle(job):
        raise error

    return handle


def test_a_result_without_text_costs_no_ack(server):
    """A name of a file with bytes that are no UTF-8; the acks of its batch go on."""
    client = Client(server.url)
    client.config("q", keep_done="1h")
    worker = Worker(server.url, jobs=4)
    runs = []

    @worker.handler("q")
    async def handle(job):
        runs.append(job.text)
        await asyncio.sleep(0.2)
        return Result(b"\xff.txt".decode(errors="surrogateescape") if job.text == "bad" else job.text)

    ids = {text: client.enqueue("q", text).id for text in ("good", "bad", "better")}
    with Threaded(worker):
        until(lambda: client.queue("q")["totals"]["acked"] == 3)
    assert sorted(runs) == ["bad", "better", "good"]
    assert {text: client.get(id).result for text, id in ids.items()} == {"good": "good", "better": "better", "bad": None}


def test_a_worker_that_cannot_ask_ends():
    with Fake(lambda *_: (200, {"messages": []})) as fake:
        worker = Worker(fake.url, token="dw_secret\n")
        worker.add("q", lambda job: None)
        with Threaded(worker) as running:
            running.thread.join(60)
            assert isinstance(running.error, ValueError) and "token" in str(running.error)


def test_stop_iteration_is_a_failed_attempt(server):
    client = Client(server.url)
    worker = Worker(server.url, jobs=1)
    client.enqueue("q", "x", max_attempts=1, key="k")

    @worker.handler("q")
    def handle(job):
        next(iter([]))

    with Threaded(worker):
        until(lambda: client.queue("q")["counts"]["dead"] == 1)
    assert "StopIteration" in client.get_key("q", "k").raw["history"][-1]["note"]


@pytest.mark.parametrize("trouble", [(502, b"<html>bad gateway</html>"), (502, {"status": "error", "code": 7}),
                                     (200, b"<html>welcome</html>"), (200, {"ok": True})], ids=["502", "502-json", "200", "200-json"])
def test_a_proxy_in_trouble_costs_no_lease_and_no_ack(trouble):
    """Extends and acks that are answered by another program, or 503 for an item, are sent again, and the handler goes on."""
    grants = [{"id": str(n), "queue": "q", "key": None, "attempt": 1, "priority": 1, "generation": 1, "due_at": None, "lateness_ms": 0,
               "lease_token": "00", "lease_ms": 800, "lease_until": None, "body": "x", "headers": {}} for n in (1, 2)]
    refused = {"status": 503, "code": "storage_unavailable", "detail": "shard 2 has no owner", "outcome": "not_applied"}
    ended, tokens, acked = [], [], set()

    def answer(method, path, body):
        if path == "/v1/reserve":
            got, grants[:] = grants[:], []
            time.sleep(0 if got else 0.1)
            return 200, {"messages": got}
        items = [it["id"] for it in json.loads(body)["messages"]]
        if len(fake.paths(path)) == 1:
            return trouble
        if path == "/v1/ack":
            refuse = ["2"] if len(fake.paths(path)) < 4 else []
            acked.update(id for id in items if id not in refuse)
            return 200, {"results": [{"id": id, **(refused if id in refuse else {"result": "acked"})} for id in items]}
        return 200, {"results": [{"id": id, "result": "extended"} for id in items]}

    with Fake(answer) as fake:
        worker = Worker(fake.url, jobs=2, wait=0.1)

        @worker.handler("q")
        async def handle(job):
            tokens.append(job.token)
            while len(fake.paths("/v1/extend")) < 3:
                await asyncio.sleep(0.01)
            ended.append(job.id)

        with Threaded(worker):
            until(lambda: acked == {"1", "2"}, fake.requests)
    assert sorted(ended) == ["1", "2"] and not any(it.cancelled for it in tokens)


def test_an_extend_is_repeated_within_its_lease():
    """However long the server asks it to wait."""
    grants = [{"id": "1", "queue": "q", "attempt": 1, "priority": 1, "due_at": None, "lateness_ms": 0, "lease_token": "00",
               "lease_ms": 4_000, "lease_until": None, "body": "x", "headers": {}}]
    busy = {"status": 503, "code": "storage_unavailable", "detail": "shard 2 has no owner", "retry_after_ms": 60_000}
    at = []

    def answer(method, path, body):
        if path == "/v1/reserve":
            got, grants[:] = grants[:], []
            time.sleep(0 if got else 0.1)
            return 200, {"messages": got}
        if path == "/v1/extend":
            at.append(time.monotonic())
            return (503, busy) if len(at) == 1 else (200, {"results": [{"id": "1", "result": "extended"}]})
        return 200, {"results": [{"id": "1", "result": "acked"}]}

    with Fake(answer) as fake:
        worker = Worker(fake.url, jobs=1, wait=0.1)
        worker.add("q", lambda job: until(lambda: len(at) > 1))
        with Threaded(worker):
            until(lambda: fake.paths("/v1/ack"))


def test_jobs_bound_what_runs_at_a_time(server):
    client = Client(server.url)
    worker = Worker(server.url, jobs=3)
    now, most, done, lock = [0], [0], [0], threading.Lock()

    @worker.handler("q")
    def handle(job):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
            done[0] += 1

    client.enqueue_many("q", ["x"] * 30)
    with Threaded(worker):
        until(lambda: done[0] == 30)
    assert most[0] == 3


def test_a_long_job_keeps_its_lease_and_others_do_not_get_it(server):
    client = Client(server.url)
    runs = []

    def work(job):
        runs.append(job.attempt)
        time.sleep(LONGER)

    first, second = Worker(server.url, lease=LEASE), Worker(server.url, lease=LEASE)
    first.add("q", work), second.add("q", work)
    client.enqueue("q", "x")
    with Threaded(first), Threaded(second):
        until(lambda: client.queue("q")["totals"]["acked"] == 1)
    assert runs == [1]


def test_a_message_that_was_superseded_may_still_be_acked(server):
    client = Client(server.url)
    begun, end, done = threading.Event(), threading.Event(), []
    worker = Worker(server.url, jobs=1)

    @worker.handler("q")
    def handle(job):
        begun.set()
        assert end.wait(60)
        done.append(job.text)

    client.enqueue("q", "old", key="k")
    with Threaded(worker):
        assert begun.wait(60)
        client.enqueue("q", "new", key="k", if_exists="supersede")
        end.set()
        until(lambda: done == ["old", "new"])


def test_a_refused_worker_ends_with_the_error(server):
    worker = Worker(server.url)
    worker.add("-bad", lambda job: None)
    with Threaded(worker) as running:
        running.thread.join(60)
    assert isinstance(running.error, errors.BadRequest)


def test_a_worker_goes_on_when_the_server_is_back(server):
    client = Client(server.url)
    seen = []
    worker = Worker(server.url)
    worker.add("q", lambda job: seen.append(job.text))
    with Threaded(worker):
        client.enqueue("q", "before")
        until(lambda: seen == ["before"])
        server.kill()
        server.start()
        client.enqueue("q", "after")
        until(lambda: "after" in seen)


PROGRAM = r"""
import asyncio, sys, time
sys.path.insert(0, {source!r})
from duewheel import Worker
worker = Worker({url!r}, jobs=2, drain={drain})
@worker.handler("threads")
def slow(job):
    print("begun\n", end="", flush=True)
    time.sleep({seconds})
    print("ended\n", end="", flush=True)
@worker.handler("coroutines")
async def nap(job):
    print("begun\n", end="", flush=True)
    await asyncio.sleep({seconds})
    print("ended\n", end="", flush=True)
worker.run()
print("drained", flush=True)
"""


@pytest.mark.parametrize("queue", ["threads", "coroutines"])
def test_sigterm_drains(server, queue):
    client = Client(server.url)
    client.enqueue_many(queue, ["x"] * 5)
    text = textwrap.dedent(PROGRAM).format(source=SOURCE, url=server.url, drain=30, seconds=1)
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n" and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=60)[0].split()
    assert process.returncode == 0
    assert rest.count("ended") == rest.count("begun") + 2 and rest[-1] == "drained"
    counts = client.queue(queue)["counts"]
    assert counts["leased"] == 0 and counts["ready"] == 5 - rest.count("ended")


def test_a_drain_that_takes_too_long_gives_the_message_back(server):
    client = Client(server.url)
    client.enqueue("coroutines", "x")
    text = textwrap.dedent(PROGRAM).format(source=SOURCE, url=server.url, drain=0.2, seconds=600)
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0].split() == ["drained"]
    message = client.reserve("coroutines", wait=60)[0]
    assert message.attempt == 2 and client.get(message.id).raw["forgiven"] == 1


def test_a_killed_worker_loses_nothing(server):
    client = Client(server.url)
    client.enqueue("threads", "x", lease=2)
    text = textwrap.dedent(PROGRAM).format(source=SOURCE, url=server.url, drain=30, seconds=600)
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert client.reserve("threads", wait=60)[0].attempt >= 2


def test_a_worker_on_the_callers_loop(server):
    async def main():
        async with AsyncClient(server.url) as client:
            worker = Worker(AsyncClient(server.url), jobs=50)
            done = []

            @worker.handler("q")
            async def handle(job):
                await asyncio.sleep(0.2)
                done.append(job.text)
                if len(done) == 50:
                    worker.stop()

            await client.enqueue_many("q", [str(n) for n in range(50)])
            await asyncio.wait_for(worker.serve(), 60)
            assert sorted(done, key=int) == [str(n) for n in range(50)]
            assert (await client.queue("q"))["totals"]["acked"] == 50

    asyncio.run(main())
