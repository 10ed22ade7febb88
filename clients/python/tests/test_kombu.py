"""The transport of kombu against a real server."""

import os
import random
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone

import pytest

kombu = pytest.importorskip("kombu")

from duewheel import Client, errors  # noqa: E402
from duewheel._leases import Keeper  # noqa: E402
from duewheel.kombu import Bindings, due, queue_name, queue_prefix  # noqa: E402
from running import LEASE, LONGER, Fake, Server, certificate, until  # noqa: E402


@pytest.fixture
def server(tmp_path):
    one = Server(tmp_path)
    yield one
    one.stop()


def connect(server, path="", **options):
    return kombu.Connection(f"duewheel://127.0.0.1:{server.port}/{path}", transport_options=options)


def publish(connection, queue, body, id=None, **options):
    headers = {"id": id, "task": "shop.close"} if id else {}
    headers.update(options.pop("headers", {}))
    kombu.Producer(connection.default_channel).publish(body, routing_key=queue, headers=headers, **options)


class Collected:
    """A consumer that keeps its messages unacked."""

    def __init__(self, connection, *queues, prefetch=None, no_ack=False, exchange=None):
        self.messages = []
        self.connection = connection
        self.channel = connection.channel()
        made = [it if isinstance(it, kombu.Queue) else kombu.Queue(it) for it in queues]
        self.consumer = kombu.Consumer(self.channel, made, on_message=self.messages.append, no_ack=no_ack, prefetch_count=prefetch)
        self.consumer.consume()

    def drain(self, count, patience=60):
        end = time.monotonic() + patience
        while len(self.messages) < count:
            assert time.monotonic() < end, f"{len(self.messages)} of {count}"
            try:
                self.connection.drain_events(timeout=0.2)
            except socket.timeout:
                pass
        return self.messages

    def nothing(self, seconds=0.5):
        before = len(self.messages)
        with pytest.raises(socket.timeout):
            self.connection.drain_events(timeout=seconds)
        assert len(self.messages) == before


def test_names():
    assert queue_name("", "celery") == "celery"
    assert queue_name("shop.", "w@host.celery.pidbox") == "shop.w$40host.celery.pidbox"
    assert queue_name("", "-a") == "$2Da" and queue_name("p", "-a") == "p-a"
    assert queue_name("", "a b$") == "a$20b$24"
    assert queue_name("", "定时") == "定时"
    long = queue_name("", "q" * 400)
    assert len(long) <= 200 and long != queue_name("", "q" * 401)
    assert [queue_prefix(it) for it in (None, "/", "shop", "/shop.", "a/b")] == ["", "", "shop.", "shop.", "a/b."]


def test_the_server_takes_long_names(server):
    with connect(server) as connection:
        for name in ("q" * 400, "队" * 100, "@" * 99):
            publish(connection, name, 1)
            assert Collected(connection, name).drain(1)[0].payload == 1


def test_eta():
    assert due({}) is None and due({"eta": None}) is None and due({"eta": "nonsense"}) is None
    assert due({"eta": "2026-01-02T03:04:05.000006+08:00"}) == "2026-01-02T03:04:05.000006+08:00"
    assert due({"eta": "2026-01-02T03:04:05Z"}) == due({"eta": "2026-01-02T03:04:05"}) == "2026-01-02T03:04:05+00:00"


def test_a_task_with_an_eta_waits_in_the_server(server):
    client = Client(server.url)
    with connect(server, "shop") as connection:
        at = datetime.now(timezone.utc) + timedelta(hours=48)
        publish(connection, "celery", {"n": 1}, id="t-1", headers={"eta": at.isoformat()})
        message = client.get_key("shop.celery", "t-1")
        assert message.state == "scheduled" and abs((message.due_at - at).total_seconds()) < 0.002
        assert message.headers["task"] == "shop.close" and message.raw["max_attempts"] == 4294967295
        consumer = Collected(connection, "celery")
        consumer.nothing()
        client.fire_key("shop.celery", "t-1")
        assert consumer.drain(1)[0].payload == {"n": 1}
        # One that has passed is due now.
        publish(connection, "celery", {"n": 2}, id="t-2", headers={"eta": "2001-01-01T00:00:00+00:00"})
        assert consumer.drain(2)[1].payload == {"n": 2}


def test_a_retry_takes_over_the_key_of_its_own_message(server):
    client = Client(server.url)
    with connect(server) as connection:
        consumer = Collected(connection, "celery")
        publish(connection, "celery", 1, id="t")
        first = consumer.drain(1)[0]
        publish(connection, "celery", 2, id="t", headers={"eta": (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()})
        assert client.get_key("celery", "t").state == "scheduled"
        first.ack()
        until(lambda: client.queue("celery")["counts"]["leased"] == 0)
        client.fire_key("celery", "t")
        assert consumer.drain(2)[1].payload == 2


def test_a_second_message_with_a_pending_id_is_not_dropped(server):
    with connect(server) as connection:
        for n in range(3):
            publish(connection, "celery", n, id="t")
        consumer = Collected(connection, "celery")
        assert sorted(it.payload for it in consumer.drain(3)) == [0, 1, 2]


def test_grants_keep_to_the_prefetch_count(server):
    client = Client(server.url)
    with connect(server) as connection:
        for n in range(6):
            publish(connection, "q", n)
        consumer = Collected(connection, "q", prefetch=2)
        consumer.drain(2)
        consumer.nothing()
        assert client.queue("q")["counts"]["leased"] == 2
        consumer.messages[0].ack()
        consumer.drain(3)
        consumer.nothing()
        consumer.consumer.qos(prefetch_count=4)
        consumer.drain(5)
        consumer.nothing()
        # A lower count drops the reserve that waits for more.
        consumer.consumer.qos(prefetch_count=1)
        for message in consumer.messages[1:5]:
            message.ack()
        consumer.drain(6)
        assert [it.payload for it in consumer.messages] == list(range(6))


def test_prefetched_messages_keep_their_leases_while_nothing_is_read(server):
    client = Client(server.url)
    with connect(server, lease=LEASE) as connection:
        for n in range(4):
            publish(connection, "q", n)
        consumer = Collected(connection, "q", prefetch=4)
        consumer.drain(1)
        time.sleep(LONGER)
        assert client.reserve("q", 10) == []
        consumer.drain(4)
        for message in consumer.messages:
            message.ack()
        until(lambda: client.queue("q")["totals"]["acked"] == 4)
        assert [it.delivery_info.get("redelivered") for it in consumer.messages] == [None] * 4


def test_reject(server):
    client = Client(server.url)
    with connect(server) as connection:
        publish(connection, "q", "a", id="a")
        consumer = Collected(connection, "q", prefetch=1)
        consumer.drain(1)[0].reject(requeue=True)
        assert consumer.drain(2)[1].delivery_info["redelivered"] is True
        consumer.messages[1].reject(requeue=False)
        dead = client.get_key("q", "a")
        assert dead.state == "dead" and dead.raw["history"][-1]["note"] == "rejected" and dead.raw["forgiven"] == 1
        publish(connection, "other", "b")
        got = connection.default_channel.basic_get("other")
        connection.default_channel.basic_reject(got.delivery_tag, requeue=True)
        assert connection.default_channel.basic_get("other").payload == "b"


def test_a_closed_channel_gives_everything_back(server):
    client = Client(server.url)
    connection = connect(server)
    for n in range(5):
        publish(connection, "q", n)
    consumer = Collected(connection, "q")
    consumer.drain(2)
    connection.close()
    counts = client.queue("q")["counts"]
    assert counts["leased"] == 0 and counts["ready"] == 5


def test_a_consumer_that_is_cancelled_loses_nothing(server):
    client = Client(server.url)
    with connect(server) as connection:
        for round in range(20):
            consumer = Collected(connection, "q")
            publish(connection, "q", round)
            time.sleep(round % 5 * 0.002)
            consumer.consumer.cancel()
            for message in consumer.messages:
                message.ack()
        until(lambda: client.queue("q")["counts"]["leased"] == 0)
        assert client.queue("q")["counts"]["ready"] == 20


def test_a_consumer_that_is_cancelled_loses_nothing_over_tls(tmp_path):
    options = certificate(tmp_path)
    server = Server(tmp_path, *options)
    client = Client(server.url, ssl_context=ssl.create_default_context(cafile=options[1]))
    with kombu.Connection(f"duewheels://127.0.0.1:{server.port}/", ssl={"ca_certs": options[1]}) as connection:
        for round in range(20):
            consumer = Collected(connection, "q")
            publish(connection, "q", round)
            time.sleep(round % 5 * 0.002)
            consumer.consumer.cancel()
            for message in consumer.messages:
                message.ack()
        until(lambda: client.queue("q")["counts"]["leased"] == 0)
        assert client.queue("q")["counts"]["ready"] == 20
        assert sorted(it.payload for it in Collected(connection, "q").drain(20)) == list(range(20))
    server.stop()


def test_a_consumer_that_acks_at_once_is_never_forgotten(server):
    """With a prefetch count of one, the thread of the reserve and the one that acks change the room at the same time."""
    client = Client(server.url)
    with connect(server) as connection:
        publish(connection, "q", 0)
        body = client.reserve("q")[0]
        client.ack(body)
        client.enqueue_many("q", [body.body] * 600)
        seen = []
        consumer = kombu.Consumer(connection.channel(), [kombu.Queue("q")], on_message=lambda it: (seen.append(it), it.ack()), prefetch_count=1)
        consumer.consume()
        while len(seen) < 600:
            connection.drain_events(timeout=30)


def test_it_goes_on_after_a_restart(server):
    with connect(server) as connection:
        consumer = Collected(connection, "q")
        publish(connection, "q", 1)
        consumer.drain(1)
        server.kill()
        again = threading.Timer(1.0, server.start)
        again.start()
        publish(connection, "q", 2)
        consumer.drain(2)
        # The lease of before is still held.
        consumer.messages[0].ack()
        until(lambda: Client(server.url).queue("q")["totals"]["acked"] == 1)
        again.join()


def losing(server, lost, wanted=lambda body: True):
    """Answers as the server does; of the wanted requests for messages the first `lost[0]` answers are lost."""
    def answer(method, path, body):
        request = urllib.request.Request(server.url + path, data=body or None, method=method, headers={"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request) as got:
                status, data = got.status, got.read()
        except urllib.error.HTTPError as error:
            status, data = error.code, error.read()
        if path.endswith("/messages") and wanted(body) and lost[0]:
            lost[0] -= 1
            return None
        return status, data

    return answer


@pytest.mark.parametrize("state", ["leased", "ready"])
def test_a_repeated_retry_makes_one_message(server, state):
    """A task that retries: it takes over the key of its own message, and the answer to that is lost."""
    client, lost = Client(server.url), [2]
    with connect(server) as connection:
        publish(connection, "q", "first", id="t")
    taken = client.reserve("q") if state == "leased" else []
    with Fake(losing(server, lost, lambda body: b"supersede" in body if taken else b'"key":"t"' not in body)) as fake:
        with kombu.Connection(fake.url.replace("http", "duewheel"), transport_options={"retry_for": 0}) as connection:
            policy = {"max_retries": 9, "interval_start": 0, "interval_step": 0.1}
            kombu.Producer(connection.default_channel).publish("second", routing_key="q", headers={"id": "t", "task": "x"}, retry=True,
                                                               retry_policy=policy)
    assert lost == [0]
    client.ack_many(taken)
    assert len(client.reserve("q", 10)) == (1 if taken else 2)


def test_a_publish_that_kombu_repeats_makes_one_message(server):
    """The first answers are lost for longer than one call is repeated."""
    lost = [3]
    answer = losing(server, lost)
    client = Client(server.url)
    with Fake(answer) as fake:
        with kombu.Connection(fake.url.replace("http", "duewheel"), transport_options={"retry_for": 0}) as connection:
            producer = kombu.Producer(connection.default_channel)
            policy = {"max_retries": 9, "interval_start": 0, "interval_step": 0.1}
            producer.publish(1, routing_key="q", headers={"id": "t", "task": "x"}, retry=True, retry_policy=policy)
            assert lost == [0]
            # The same content once more is another message.
            producer.publish(1, routing_key="q", headers={"id": "t", "task": "x"}, retry=True, retry_policy=policy)
    assert sorted(str(it.key) for it in client.reserve("q", 10)) == ["None", "t"]


def test_what_is_acked_while_the_server_is_away_is_settled_after_a_reconnect(server, monkeypatch):
    monkeypatch.setattr("duewheel._leases.PATIENCE", 0.3)
    client = Client(server.url)
    connection = connect(server, retry_for=0.2)
    consumer = Collected(connection, "q")
    publish(connection, "q", 1)
    message = consumer.drain(1)[0]
    server.kill()
    message.ack()
    connection.close()
    server.start()
    until(lambda: client.queue("q")["totals"]["acked"] == 1 or client.queue("q")["counts"]["leased"] == 0)
    counts = client.queue("q")["counts"]
    assert counts["ready"] == counts["scheduled"] == counts["leased"] == 0


def test_kombu_is_told_when_the_server_stays_away(tmp_path):
    server = Server(tmp_path)
    connection = connect(server, reconnect_for=0.5, retry_for=0.2)
    consumer = Collected(connection, "q")
    consumer.nothing(0.2)
    server.stop()
    with pytest.raises(connection.connection_errors):
        for _ in range(600):
            try:
                connection.drain_events(timeout=0.1)
            except socket.timeout:
                pass
    with pytest.raises(connection.connection_errors):
        connect(server).connect()
    connection.close()


def test_fanout_reaches_every_process_and_only_the_living(server):
    client = Client(server.url)
    exchange = kombu.Exchange("news", type="fanout")
    one, two, sender = connect(server), connect(server), connect(server)
    first = Collected(one, kombu.Queue("n1@a", exchange, auto_delete=True, expires=10))
    second = Collected(two, kombu.Queue("n2@b", exchange, auto_delete=True, expires=10, message_ttl=5))
    producer = kombu.Producer(sender.default_channel, exchange=exchange)
    producer.publish("hello", declare=[exchange])
    assert first.drain(1)[0].payload == second.drain(1)[0].payload == "hello"
    pending = client.messages("_kombu.bindings")[0]
    assert [it.key for it in pending] == ["news"] and pending[0].due_at.year > 2150
    two.close()
    assert set(pending[0].json()) == {"n1@a", "n2@b"} and set(client.get_key("_kombu.bindings", "news").json()) == {"n1@a"}
    producer.publish("again")
    assert first.drain(2)[1].payload == "again"
    assert "n2$40b" not in [it["queue"] for it in client.queues()]
    for connection in (one, sender):
        connection.close()
    assert client.get_key("_kombu.bindings", "news").json() == {}


def test_bindings_are_changed_by_many_at_the_same_time(server):
    def bind(number):
        Bindings(Client(server.url), "").bind("ex", f"q{number}", "key", None, None, False)

    threads = [threading.Thread(target=bind, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Bindings(Client(server.url), "").table("ex")) == 16


def test_what_a_killed_worker_has_left_is_swept(duewheel_server):
    client = duewheel_server.client
    url = duewheel_server.url.replace("http", "duewheel")
    exchange = kombu.Exchange("news", type="fanout")
    killed = kombu.Connection(url)
    Collected(killed, kombu.Queue("n@killed", exchange, auto_delete=True, expires=10))
    sender = kombu.Connection(url)
    kombu.Producer(sender.default_channel, exchange=exchange).publish("for nobody", declare=[exchange])
    until(lambda: client.queue("n$40killed")["counts"]["leased"] == 1)
    transport = killed.transport
    transport.keeper._closed.set()
    transport.channels[-1]._fetcher._closed = True
    with transport.keeper._changed:
        transport.keeper._changed.notify_all()
    duewheel_server.advance("20m")
    other = Collected(sender, kombu.Queue("n@living", exchange, auto_delete=True, expires=10))
    until(lambda: set(client.get_key("_kombu.bindings", "news").json()) == {"n@living"})
    assert "n$40killed" not in [it["queue"] for it in client.queues()]
    other.channel.close()
    duewheel_server.advance("2m")
    Bindings(client, "").sweep(sender.transport.remove_queue)
    assert {it["queue"] for it in client.queues() if sum(it["counts"].values())} == {"_kombu.bindings"}


def test_topics_and_a_binding_of_the_last_moment(server):
    exchange = kombu.Exchange("logs", type="topic")
    receiver, sender = connect(server), connect(server)
    producer = kombu.Producer(sender.default_channel, exchange=exchange)
    producer.publish("nobody", routing_key="a.b", declare=[exchange])
    got = Collected(receiver, kombu.Queue("q", exchange, routing_key="a.*"))
    producer.publish("one", routing_key="a.b")
    producer.publish("other", routing_key="b.b")
    assert [it.payload for it in got.drain(1)] == ["one"]
    got.nothing()
    receiver.close(), sender.close()


def test_a_queue_that_is_unbound_gets_nothing(server):
    exchange = kombu.Exchange("logs", type="topic")
    with connect(server) as connection:
        got = Collected(connection, kombu.Queue("q", exchange, routing_key="a.*"))
        producer = kombu.Producer(connection.default_channel, exchange=exchange)
        kombu.Queue("q", exchange, channel=connection.default_channel).unbind_from(exchange, routing_key="a.*")
        producer.publish("nobody", routing_key="a.b")
        got.nothing()
        assert connection.default_channel.queue_purge("q") == 0


def test_queues_with_long_names_end_each_by_itself(server):
    client = Client(server.url)
    for end in "ab":
        Bindings(client, "").keep("q" * 200 + end, ["ex"], 60)
    assert {it.json()["queue"][-1] for it in client.messages("_kombu.expiries")[0]} == {"a", "b"}


def test_messages_that_have_expired_are_not_delivered(server):
    client = Client(server.url)
    with connect(server) as connection:
        publish(connection, "q", "old", expiration=0.1)
        publish(connection, "q", "new")
        time.sleep(0.3)
        consumer = Collected(connection, "q")
        assert [it.payload for it in consumer.drain(1)] == ["new"]
        consumer.nothing(0.2)
        until(lambda: client.queue("q")["counts"]["leased"] == 1)


def test_what_is_not_a_task_is_dead_and_stops_nobody(server):
    client = Client(server.url)
    with connect(server) as connection:
        consumer = Collected(connection, "q")
        for foreign in ("hello", "[1]", "{}", '{"body": "x", "headers": 7}', b"\xff\xfe",
                        '{"body": "x", "properties": {"body_encoding": "none"}}', '{"body": "x", "properties": {"delivery_info": 7}}'):
            client.enqueue("q", foreign)
        client.enqueue("q", '{"body": "plain", "headers": null, "properties": null, "content-type": "text/plain", "content-encoding": "utf-8"}')
        publish(connection, "q", "a task")
        assert sorted(it.payload for it in consumer.drain(2)) == ["a task", "plain"]
        dead = client.messages("q", state="dead")[0]
        assert len(dead) == 7 and all(it.raw["history"][-1]["note"].startswith("not a task") for it in dead)
        client.enqueue("q", "hello")
        publish(connection, "other", 1)
        assert connection.default_channel.basic_get("q") is None
        assert connection.default_channel.basic_get("other").payload == 1


def test_leases_do_not_wait_for_the_upkeep_of_queues(server):
    client = Client(server.url)
    client.enqueue("q", "x")
    keeper, entered, leave = Keeper(client), threading.Event(), threading.Event()
    delivery = client.reserve("q", lease=LEASE)[0]
    keeper.every(0.01, lambda: (entered.set(), leave.wait(60)))
    assert entered.wait(60)
    tag = keeper.add(delivery)
    time.sleep(LONGER)
    assert client.reserve("q") == [] and keeper.holds(tag)
    keeper.ack(tag)
    until(lambda: client.queue("q")["totals"]["acked"] == 1)
    leave.set()
    keeper.close()


def test_priorities_ascend(server):
    with connect(server) as connection:
        for priority in (0, 9, 3, None):
            publish(connection, "q", priority, priority=priority)
        consumer = Collected(connection, "q")
        assert [it.payload for it in consumer.drain(4)] == [9, 3, 0, None]


def test_large_messages_are_compressed(server):
    with connect(server) as connection:
        publish(connection, "q", ["task", 1234] * 40_000)
        with pytest.raises(errors.BodyTooLarge):
            publish(connection, "q", random.Random(1).randbytes(400_000).hex())
        assert Collected(connection, "q").drain(1)[0].payload == ["task", 1234] * 40_000
    message = Client(server.url).reserve("q")[0]
    assert message.headers["content-encoding"] == "deflate" and len(message.body) < 100_000


def with_tokens(folder, *tokens):
    """A server with these tokens, each as options of `duewheel token new`, and their secrets."""
    import subprocess

    from running import BIN

    secrets = []
    with open(folder / "tokens.toml", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        for number, token in enumerate(tokens):
            made = subprocess.run([BIN, "token", "new", "--name", f"t{number}", *token.split()], capture_output=True, text=True, check=True).stdout
            file.write(made[made.index("[["):])
            secrets.append(made.split()[0])
    return Server(folder, "--tokens", str(folder / "tokens.toml")), *secrets


def test_the_scope_metrics_lists_the_queues_of_a_prefix(tmp_path):
    server, secret, other = with_tokens(tmp_path, "--scope enqueue,consume,cancel,metrics --queue shop.", "--scope enqueue")
    client = Client(server.url, token=secret)
    Client(server.url, token=other).enqueue("another", "x")
    with kombu.Connection(f"duewheel://:{secret}@127.0.0.1:{server.port}/shop") as connection:
        got = Collected(connection, kombu.Queue("celery.pidbox", kombu.Exchange("pidbox", type="fanout"), auto_delete=True), "tasks")
        publish(connection, "later", 1, headers={"eta": "2100-01-01T00:00:00+00:00"})
        publish(connection, "tasks", 2)
        assert got.drain(1)[0].payload == 2
        assert connection.default_channel.queue_declare("later", passive=True).message_count == 1
        listed = {it["queue"] for it in client.queues()}
        assert {"shop._kombu.bindings", "shop.later", "shop.tasks"} <= listed and all(it.startswith("shop.") for it in listed)
    assert len(client.messages("shop.later", state="scheduled")[0]) == 1
    for forbidden in (lambda: client.queue("another"), lambda: client.request("GET", "/v1/stats"), lambda: client.messages("another")):
        with pytest.raises(errors.Forbidden):
            forbidden()
    server.stop()


def test_a_token_without_admin(tmp_path):
    server, secret = with_tokens(tmp_path, "--scope enqueue,consume,cancel --queue shop.")
    exchange = kombu.Exchange("news", type="fanout")
    with kombu.Connection(f"duewheel://:{secret}@127.0.0.1:{server.port}/shop") as connection:
        got = Collected(connection, kombu.Queue("n", exchange, auto_delete=True, expires=10), "tasks")
        kombu.Producer(connection.default_channel, exchange=exchange).publish("hello", declare=[exchange])
        publish(connection, "tasks", 1, id="t")
        assert sorted(str(it.payload) for it in got.drain(2)) == ["1", "hello"]
        assert connection.default_channel.queue_purge("tasks") == 0
    with pytest.raises(errors.Unauthorized):
        kombu.Connection(f"duewheel://:dw_wrong@127.0.0.1:{server.port}/shop").connect()
    assert "dw_" not in kombu.Connection(f"duewheel://:{secret}@127.0.0.1:{server.port}/shop").as_uri()
    server.stop()
