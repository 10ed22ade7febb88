"""The clients against a real server: what the cases of all languages do not say."""

import asyncio
import base64
import hmac
import json as jsonlib
import os
import ssl
import threading
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest

import duewheel
from duewheel import AsyncClient, Client, Delivery, Outgoing, errors
from duewheel._calls import problem
from duewheel._http import Answer
from duewheel._leases import Keeper
from duewheel._messages import milliseconds
from duewheel.webhooks import WebhookError, verify
from running import PATIENCE, Fake, Server, certificate, until


def test_every_code_of_the_documentation_has_a_class():
    page = open(os.path.join(os.path.dirname(__file__), "../../../docs/errors.md")).read()
    import re

    codes = set(re.findall(r"^## `(\w+)`", page, re.M))
    assert codes - set(errors.CLASSES) == set()


def test_lengths_are_never_rounded_down():
    assert milliseconds("delay", 0.1) == 100
    assert milliseconds("delay", 0.0001) == 1
    assert milliseconds("delay", timedelta(microseconds=1001)) == 2
    for wrong in (-1, float("nan"), float("inf"), True):
        with pytest.raises(ValueError, match="delay"):
            milliseconds("delay", wrong)


def test_mistakes_are_named_before_anything_is_sent():
    client = Client("http://127.0.0.1:1")
    for wrong, field in (({}, "body"), ({"body": "x", "json": 1}, "body"), ({"body": "x", "due_at": datetime(2030, 1, 1)}, "due_at"),
                         ({"body": "x", "delay": 1, "due_at": "2030-01-01T00:00:00Z"}, "due_at"),
                         ({"body": "x", "dedupe_window": 60}, "dedupe_window")):
        with pytest.raises(ValueError, match=field):
            client.enqueue("q", **wrong)
    with pytest.raises(ValueError, match="url"):
        Client("localhost:7788")


@pytest.mark.parametrize("url", ["htp://:dw_secret@host", "http://:dw_secret@host:abc", "http://:dw_se/cret@host", "http://:dw_secret",
                                 "http://[:dw_secret@host", ":dw_secret@host"])
def test_a_bad_address_does_not_show_its_token(url):
    with pytest.raises(ValueError, match="url: ") as caught:
        Client(url)
    assert "secret" not in str(caught.value) and "cret@" not in str(caught.value)


def test_no_batch_is_sent_when_a_message_cannot_be(duewheel_server):
    with pytest.raises(TypeError):
        duewheel_server.client.enqueue_many("q", [*["x"] * 5_000, {"json": object()}])
    assert duewheel_server.client.queues() == []


def grant(id="1", lease_ms=30_000):
    return Delivery(id=id, queue="q", attempt=1, priority=1, lateness_ms=0, lease_token="00", lease_ms=lease_ms,
                    lease_until=None, body=b"", raw={})


REFUSED = {"status": 503, "code": "storage_unavailable", "detail": "shard 2 has no owner", "outcome": "not_applied"}


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_resend_over_a_stale_connection_leaves_the_outcome_unknown(kind):
    answers = [(200, {}), None, (404, {"status": 404, "code": "message_not_found", "detail": "nothing"})]
    with Fake(lambda *_: answers.pop(0)) as fake:
        async def main():
            client = kind(fake.url)
            for call in (lambda: client.request("GET", "/v1/token"), lambda: client.cancel_key("q", "k")):
                result = call()
                if kind is AsyncClient:
                    await result
        with pytest.raises(errors.MessageNotFound) as caught:
            asyncio.run(main())
    assert caught.value.outcome == "unknown" and len(fake.requests) == 3


def test_items_that_are_refused_for_the_moment_are_sent_again():
    def answer(method, path, body):
        items = [it if isinstance(it, str) else it["id"] for it in jsonlib.loads(body).get("messages", jsonlib.loads(body).get("keys"))]
        refuse = len(fake.requests) < 3
        return 200, {"results": [{"id": id, **REFUSED} if refuse and id == "2" else {"id": id, "result": "done"} for id in items]}

    with Fake(answer) as fake:
        client = Client(fake.url)
        for call in (lambda: client.ack_many([grant("1"), grant("2")]), lambda: client.nack_many([grant("1"), grant("2")]),
                     lambda: client.extend_many([grant("1"), grant("2")]), lambda: client.cancel_many("q", keys=["1", "2"])):
            fake.requests.clear()
            assert [it["result"] for it in call()] == ["done", "done"]
            assert len(fake.requests) == 3 and b'"1"' not in fake.requests[2][2]
        # When patience ends, it is the result.
        fake.requests.clear()
        assert [isinstance(it, errors.StorageUnavailable) for it in Client(fake.url, retry_for=0).cancel_many("q", keys=["1", "2"])] == [False, True]


@pytest.mark.parametrize("status", [500, 502, 504])
def test_settles_are_repeated_after_every_5xx(status):
    internal = (500, {"status": 500, "code": "internal", "detail": "a fault"})
    refusal = internal if status == 500 else (status, b"<html>a proxy</html>")
    with Fake(lambda *_: refusal if len(fake.requests) < 3 else (200, {"result": "done", "lease_until": "2030-01-01T00:00:00.000Z"})) as fake:
        client = Client(fake.url)
        for call in (client.ack, client.nack, client.extend):
            fake.requests.clear()
            assert call(grant())
            assert len(fake.requests) == 3
        fake.requests.clear()
        with pytest.raises(errors.DuewheelError):
            client.cancel("1")
        assert len(fake.requests) == 1


def called(client, call):
    """The result of a call of either client."""
    async def main():
        result = call(client)
        return await result if isinstance(client, AsyncClient) else result

    return asyncio.run(main())


def hung(kind, monkeypatch, **options):
    """A client on a clock of its own, whose server takes every request and answers none; and its clock, and its tries."""
    now, tries = [0.0], []
    monkeypatch.setattr("duewheel._calls.time", SimpleNamespace(monotonic=lambda: now[0]))

    class Silent:
        got = b""

        async def exchange(self, data, end):
            tries.append(end - now[0])
            now[0] = end
            raise TimeoutError("timed out")

        def partial(self):
            return b""

        def end(self):
            pass

        close = end

    class Hung(kind):
        async def _open(self, timeout):
            return Silent()

        async def _sleep(self, seconds, ended=None):
            now[0] += seconds

    return Hung("http://127.0.0.1:1", **options), now, tries


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(("call", "most"), [
    (lambda it: it.enqueue("q", "x"), 30), (lambda it: it.enqueue_many("q", ["x"] * 12_000), 30),
    (lambda it: it.queue("q"), 30), (lambda it: it.cancel_many("q", keys=["k"] * 2_500), 30), (lambda it: it.reserve("q", wait=60), 90),
    (lambda it: it.extend(grant(lease_ms=5_000)), 5), (lambda it: it.extend_many([grant(lease_ms=5_000), grant("2")]), 5),
], ids=["enqueue", "enqueue_many", "queue", "cancel_many", "reserve", "extend", "extend_many"])
def test_the_last_try_has_what_is_left(kind, call, most, monkeypatch):
    client, now, tries = hung(kind, monkeypatch)
    try:
        called(client, call)
    except errors.ConnectionFailed as error:
        assert error.outcome == "unknown"
    assert now[0] <= most + 0.1 and (len(tries) > 1 or most == 5 or tries == [30])


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid"])
def test_what_was_not_sent_is_not_applied(kind, url):
    client = kind(url, retry_for=0)
    for call in (lambda it: it.enqueue("q", "x"), lambda it: it.cancel("1"), lambda it: it.advance(1)):
        with pytest.raises(errors.ConnectionFailed) as caught:
            called(client, call)
        assert caught.value.outcome == "not_applied"
    assert [it.outcome for it in called(client, lambda it: it.enqueue_many("q", ["x"]))] == ["not_applied"]


def test_a_batch_without_time_sends_no_further_part():
    ended = threading.Event()

    def answer(method, path, body):
        if len(fake.requests) == 2:
            ended.set()
        items = jsonlib.loads(body)["keys"]
        return (503, REFUSED) if ended.is_set() else (200, {"results": [{"key": it, "result": "cancelled"} for it in items]})

    with Fake(answer) as fake:
        got = Client(fake.url, retry_for=0).cancel_many("q", keys=[str(n) for n in range(2_500)])
    assert [getattr(it, "code", "cancelled") for it in got[::1_000]] == ["cancelled", "storage_unavailable", "connection"]
    assert got[2_400].outcome == "not_applied" and len(fake.requests) == 2


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_slow_connect_is_not_applied(kind, monkeypatch):
    client, _, _ = hung(kind, monkeypatch, retry_for=0)

    async def slow(timeout):
        raise TimeoutError("timed out")

    client._open = slow
    with pytest.raises(errors.ConnectionFailed) as caught:
        called(client, lambda it: it.enqueue("q", "x"))
    assert caught.value.outcome == "not_applied"


def test_what_a_stale_connection_has_taken_stays_unknown():
    answers = [(200, {}), None]

    def answer(*_):
        if len(answers) == 1:
            fake.server.socket.close()  # the next connect is refused
        return answers.pop(0)

    with Fake(answer) as fake:
        client = Client(fake.url, retry_for=0)
        client.request("GET", "/v1/token")
        with pytest.raises(errors.ConnectionFailed) as caught:
            client.cancel("1")
    assert caught.value.outcome == "unknown" and len(fake.requests) == 2


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_no_extend_waits_for_longer_than_its_lease(kind):
    busy = {**REFUSED, "retry_after_ms": 60_000}
    pauses = []

    class Noted(kind):
        async def _sleep(self, seconds, ended=None):
            pauses.append(seconds)

    def answer(method, path, body):
        return (200, {"results": [{"id": "1", **busy}]}) if path == "/v1/extend" else (503, busy)

    with Fake(answer) as fake:
        client = Noted(fake.url, retry_for=120)
        with pytest.raises(errors.StorageUnavailable):
            called(client, lambda it: it.extend(grant(lease_ms=2_000)))
        got = called(kind(fake.url, retry_for=120), lambda it: it.extend_many([grant(lease_ms=2_000)]))
        assert isinstance(got[0], errors.StorageUnavailable)
    assert pauses == []


def test_of_a_lost_lease_only_the_ack_counts():
    refused = {"status": 409, "code": "lease_lost", "detail": "it ran out"}
    with Fake(lambda method, path, body: (200, {"results": [refused if path == "/v1/extend" else {"result": "acked"}]})) as fake:
        lost = []
        keeper = Keeper(Client(fake.url), lost.append)
        ends = {"not begun": keeper.holds, "failed": lambda tag: keeper.requeue([tag]), "done": keeper.ack}
        for id, end in ends.items():
            tag = keeper.add(grant(id, lease_ms=100))
            until(lambda: tag in lost)
            assert not end(tag)
        for tag in lost:
            keeper.ack(tag)  # they are forgotten
        keeper.close()
        settled = [jsonlib.loads(body)["messages"] for _, path, body in fake.requests if path != "/v1/extend"]
    assert settled == [[{"id": "done", "lease_token": "00"}]]


def test_an_id_of_the_client_outlives_its_repetitions():
    made = {"id": "1", "queue": "q", "due_at": "2030-01-01T00:00:00.000Z", "created": True}
    with Fake(lambda *_: (201, made)) as fake:
        for retry_for in (30, 3_600, 10 ** 9):
            Client(fake.url, retry_for=retry_for).enqueue("q", "x")
    assert [jsonlib.loads(body)["dedupe_window_ms"] for _, _, body in fake.requests] == [900_000, 3_620_000, 2_592_000_000]


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b'{"ok": true}', b"[1]"])
def test_an_answer_of_another_program_is_named(body):
    with Fake(lambda *_: (200, body)) as fake:
        client = Client(fake.url, retry_for=0)
        for call in (lambda: client.enqueue("q", "x"), lambda: client.get("1"), lambda: client.reserve("q"), client.queues,
                     lambda: client.messages("q"), lambda: client.purge("q"), lambda: client.extend(grant()), lambda: client.cancel_key("q", "k"),
                     lambda: client.ack_many([grant()])):
            with pytest.raises(errors.BadAnswer) as caught:
                call()
            assert caught.value.outcome == "unknown"


def test_a_proxy_may_say_when_to_try_again():
    refused = [problem(Answer(503, {"retry-after": after}, body, True))
               for after in ("7", "²", "9" * 5_000) for body in (b"<html>", b'{"status": "error", "code": 7}')]
    assert [it.retry_after for it in refused] == [7.0, 7.0, None, None, None, None]
    assert all(it.status == 503 for it in refused)


@pytest.mark.parametrize("stamp", ["9" * 400, "9" * 5_000, "-1", "1e3", "٣"])
def test_a_senseless_time_of_a_webhook_is_refused(stamp):
    headers = {"webhook-id": "a", "webhook-timestamp": stamp, "webhook-signature": "v1,AAAA"}
    with pytest.raises(WebhookError) as caught:
        verify(headers, b"x", "whsec_AAAA")
    assert caught.value.code == "webhook_timestamp"


def test_senseless_unsigned_headers_of_a_webhook_are_none():
    signature = base64.b64encode(hmac.digest(b"\0\0\0", b"a.1000.x", "sha256")).decode()
    headers = {"webhook-id": "a", "webhook-timestamp": "1000", "webhook-signature": f"v1,{signature}", "duewheel-attempt": "9" * 5_000,
               "duewheel-due-at": "soon", "duewheel-key": "%zz%ff"}
    got = verify(headers, b"x", "whsec_AAAA", now=1000)
    assert got.attempt is None and got.due_at is None and got.key.startswith("%zz")


def test_connections_are_kept(duewheel_server):
    client = duewheel_server.client
    client.enqueue("q", "x")
    first = client._idle[0]
    for _ in range(3):
        client.queue("q")
    assert client._idle == [first]


def test_a_connection_that_the_server_has_closed_is_replaced(duewheel_server):
    client = duewheel_server.client
    client.queue("q")
    client._idle[0].sock.shutdown(2)
    client.enqueue("q", "x")
    assert client.queue("q")["counts"]["ready"] == 1


def test_threads_and_forks_share_no_connection(duewheel_server):
    client = duewheel_server.client
    threads = [threading.Thread(target=lambda: [client.enqueue("q", "x") for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        try:
            client.enqueue("q", "of the child")
        finally:
            os._exit(0)
    client.enqueue("q", "of the parent")
    os.waitpid(child, 0)
    assert client.queue("q")["counts"]["ready"] == 82


def test_many_messages_are_sent_in_parts(duewheel_server):
    results = duewheel_server.client.enqueue_many("q", (Outgoing(str(n), delay=n) for n in range(12_000)))
    assert len(results) == 12_000 and all(it.created for it in results)
    assert len({it.id for it in results}) == 12_000
    assert duewheel_server.client.queue("q")["counts"]["scheduled"] == 11_999


def test_calls_wait_for_a_server_that_restarts(tmp_path):
    server = Server(tmp_path)
    client = Client(server.url)
    client.enqueue("q", "before", key="k", delay="1h")
    server.kill()
    again = threading.Timer(1.0, server.start)
    again.start()
    assert client.enqueue("q", "after").created
    again.join()
    assert client.get_key("q", "k").text == "before"
    server.stop()
    quick = Client(server.url, retry_for=0.3)
    with pytest.raises(duewheel.ConnectionFailed) as caught:
        quick.enqueue("q", "x")
    assert caught.value.outcome == "not_applied" and isinstance(caught.value, ConnectionError)


def test_tokens(tmp_path):
    import subprocess

    from running import BIN

    made = subprocess.run([BIN, "token", "new", "--name", "shop", "--scope", "enqueue"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    secret = next(word for word in made.stdout.split() if word.strip('"').startswith("dw_")).strip('"')
    (tmp_path / "tokens.toml").write_text(made.stdout[made.stdout.index("[["):])
    (tmp_path / "tokens.toml").chmod(0o600)
    server = Server(tmp_path, "--tokens", str(tmp_path / "tokens.toml"))
    try:
        with pytest.raises(errors.Unauthorized):
            Client(server.url).enqueue("q", "x")
        assert Client(server.url, token=secret).enqueue("q", "x").created
        with pytest.raises(errors.Forbidden):
            Client(server.url.replace("://", f"://:{secret}@")).reserve("q")
    finally:
        server.stop()


def test_async_calls_at_the_same_time(duewheel_server):
    async def main():
        async with AsyncClient(duewheel_server.url) as client:
            waiting = asyncio.ensure_future(client.reserve("q", wait=30))
            made = await asyncio.gather(*(client.enqueue("later", "x", delay=60) for _ in range(50)))
            assert len({it.id for it in made}) == 50
            await client.enqueue("q", "now")
            assert [it.text for it in await waiting] == ["now"]
            before = threading.active_count()
            await client.queue("q")
            assert threading.active_count() == before

    asyncio.run(main())


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_reserve_that_is_stopped_loses_nothing(tmp_path, tls):
    options = certificate(tmp_path) if tls else []
    server = Server(tmp_path, *options)
    context = ssl.create_default_context(cafile=options[1]) if tls else None

    async def main():
        async with AsyncClient(server.url, ssl_context=context) as client:
            seen = 0
            for n in range(60):
                stop = asyncio.Event()
                waiting = asyncio.ensure_future(client.reserve_until(stop, "q", 10, wait=30, lease=3600))
                await asyncio.sleep(0.003)
                sending = asyncio.ensure_future(client.enqueue("q", "x"))
                await asyncio.sleep(n % 20 * 0.0002)
                stop.set()
                got = await waiting
                await sending
                seen += len(got)
                await client.ack_many(got)
            end = time.monotonic() + PATIENCE
            # What reached nobody is given back within moments, and not by the end of its lease.
            while (counts := (await client.queue("q"))["counts"])["leased"] and time.monotonic() < end:
                await asyncio.sleep(0.02)
            assert counts["leased"] == 0 and counts["ready"] + seen == 60

    try:
        asyncio.run(main())
    finally:
        server.stop()


def test_instants(duewheel_server):
    due = datetime(2099, 1, 1, 12, tzinfo=timezone(timedelta(hours=8)))
    made = duewheel_server.client.enqueue("q", "x", due_at=due)
    assert made.due_at == due
    assert duewheel_server.client.get(made.id).due_at == due
    for day, found in ((due - timedelta(days=1), [made.id]), (due + timedelta(days=1), [])):
        assert [it.id for it in duewheel_server.client.messages("q", due_from=day)[0]] == found
