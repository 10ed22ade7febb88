"""The cases that the clients of all languages run: clients/cases.json."""

import asyncio
import base64
import contextlib
import inspect
import json
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from duewheel import AsyncClient, Client, Dead, Delivery, DuewheelError, NotYet, Outgoing, Result, Worker, webhooks
from running import until

CLIENTS = Path(__file__).resolve().parents[2]
CASES = json.loads((CLIENTS / "cases.json").read_text("utf-8"))
SPANS = {"delay_ms": "delay", "lease_ms": "lease", "wait_ms": "wait", "by_ms": "by", "dedupe_window_ms": "dedupe_window"}


def named(kind):
    return pytest.mark.parametrize("case", CASES[kind], ids=[case["name"] for case in CASES[kind]])


class Blocking:
    """`AsyncClient` behind the calls of `Client`, so that the same cases run with both."""

    def __init__(self, *args, **kwargs):
        self.loop = asyncio.new_event_loop()
        self.client = AsyncClient(*args, **kwargs)

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *args, **kwargs: self.loop.run_until_complete(method(*args, **kwargs))

    def close(self):
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


def translated(fields):
    """The names of HTTP as those of the client: lengths of time are seconds."""
    found = {}
    for name, value in fields.items():
        if name in SPANS:
            found[SPANS[name]] = value / 1000
        elif name == "body_base64":
            found["body"] = base64.b64decode(value)
        elif name == "max" or name != "message":
            found[name] = value
    return found


def delivery(message):
    if isinstance(message, Delivery):
        return message
    defaults = {"queue": "q", "key": None, "attempt": 1, "priority": 1024, "generation": 1, "due_at": "2026-01-03T00:00:00.000Z",
                "lateness_ms": 0, "lease_ms": 30000, "lease_until": "2026-01-03T00:00:30.000Z", "body": "x", "headers": {}}
    return Delivery.read(defaults | message)


def refusal(error):
    return {**error.members, "code": error.code, "status": error.status, "detail": error.detail, "field": error.field, "outcome": error.outcome}


def one(result):
    """A result as JSON."""
    if isinstance(result, DuewheelError):
        return {"error": refusal(result)}
    if hasattr(result, "raw"):
        return {"replayed": False, **result.raw, "object": result}
    return result


def call(client, name, args):
    """Runs a call of the cases; its result as JSON."""
    args = dict(args)
    fields = translated(args)
    if name == "enqueue":
        return one(client.enqueue(fields.pop("queue"), **fields))
    if name == "enqueue_many":
        return {"results": [one(it) for it in client.enqueue_many(args["queue"], [Outgoing(**translated(it)) for it in args["messages"]])]}
    if name in ("get", "cancel", "postpone", "fire"):
        fields.pop("id", None), fields.pop("queue", None), fields.pop("key", None)
        method = {"postpone": "change"}.get(name, name)
        where = (args["id"],) if "id" in args else (args["queue"], args["key"])
        return one(getattr(client, method if "id" in args else f"{method}_key")(*where, **fields))
    if name == "reserve":
        got = client.reserve(**fields)
        return {"messages": [one(it) for it in got], "held_back": got.held_back}
    if name in ("ack", "nack", "extend"):
        result = getattr(client, name)(delivery(args["message"]), **fields)
        return {"result": "extended"} if name == "extend" else result
    if name in ("ack_many", "nack_many", "extend_many"):
        fields.pop("messages")
        return {"results": [one(it) for it in getattr(client, name)([delivery(it) for it in args["messages"]], **fields)]}
    if name == "cancel_many":
        return {"results": [one(it) for it in client.cancel_many(**fields)]}
    if name == "list":
        messages, following = client.messages(**fields)
        return {"messages": [one(it) for it in messages], "next": following}
    if name == "configure":
        return client.config(args["queue"], **args["settings"])
    if name == "replay":
        return one(client.replay(args.pop("id"), **args))
    if name == "advance":
        return {"now": str(client.advance(**fields))}
    return getattr(client, name)(**fields)


def agrees(wanted, got, where="result"):
    """Members that must be there, with their values; a missing one is null."""
    if isinstance(wanted, dict):
        assert isinstance(got, dict), f"{where}: {got!r}"
        for name, value in wanted.items():
            if name == "json" and "json" not in got:
                agrees(value, got["object"].json(), f"{where}.json")
            else:
                agrees(value, got.get(name), f"{where}.{name}")
    elif isinstance(wanted, list):
        assert isinstance(got, list) and len(got) == len(wanted), f"{where}: {got!r}"
        for index, (value, other) in enumerate(zip(wanted, got)):
            agrees(value, other, f"{where}[{index}]")
    else:
        assert got == wanted, f"{where}: {got!r}, not {wanted!r}"


def filled(value, names):
    if isinstance(value, str):
        alone = re.fullmatch(r"\$\{(\w+)\}", value)
        return names[alone[1]] if alone else re.sub(r"\$\{(\w+)\}", lambda found: str(names[found[1]]), value)
    if isinstance(value, dict):
        return {name: filled(it, names) for name, it in value.items()}
    return [filled(it, names) for it in value] if isinstance(value, list) else value


def at(result, path):
    for step in path.split("."):
        result = result[int(step)] if isinstance(result, list) else result[step]
    return result.get("object", result) if isinstance(result, dict) and "lease_token" in result else result


def expect(client, step, names):
    args, error = filled(step.get("args", {}), names), filled(step.get("error"), names)
    if error is not None:
        with pytest.raises(DuewheelError) as caught:
            call(client, step["call"], args)
        agrees(error, refusal(caught.value), "error")
        assert caught.value.code == error["code"]
        return
    result = call(client, step["call"], args)
    agrees(filled(step.get("result", {}), names), result)
    for name, path in step.get("save", {}).items():
        names[name] = at(result, path)


@pytest.mark.parametrize("kind", [Client, Blocking], ids=["blocking", "async"])
@named("real")
def test_real(duewheel_server, case, kind):
    client = kind(duewheel_server.url)
    names = {"queue": f"case-{CASES['real'].index(case)}"}
    for step in case["steps"]:
        expect(client, step, names)
    client.close()


@pytest.fixture(scope="module")
def scripted():
    process = subprocess.Popen([sys.executable, str(CLIENTS / "scripted_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process.stdout.readline().strip()
    process.stdin.close()
    process.wait(60)


def test_a_cut_request_is_not_judged(scripted):
    """A worker that is stopped ends its connection, perhaps between head and body: the runner of Java was blamed for an
    empty reserve, `reserve.max is missing`."""
    host, port = scripted.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /ack/v1/reserve HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert verdict(scripted, "ack")["failures"] == [
        "0 instead of 1 times: {'verb': 'ack', 'id': '17', 'lease_token': '000000010000000000000001'}; then came []"
    ]


@pytest.fixture(params=[Client, Blocking], ids=["blocking", "async"])
def judged(request):
    """A scripted server of its own for each client, because a case is answered once."""
    process = subprocess.Popen([sys.executable, str(CLIENTS / "scripted_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield request.param, process.stdout.readline().strip()
    process.stdin.close()
    process.wait(60)


def verdict(address, name):
    return Client(address).request("GET", f"/_/{name}")


def test_scripted(judged, subtests=None):
    """All at once, in threads: most of their time is pauses."""
    kind, address = judged
    wrong = {}

    def run(case):
        try:
            options = case.get("client", {})
            client = kind(f"{address}/{case['name']}", token=options.get("token"), retry_for=options.get("retry_for_ms", 30000) / 1000)
            try:
                expect(client, case, {})
            finally:
                client.close()
            found = verdict(address, case["name"])
            assert found["failures"] == [] and found["complete"], found
        except BaseException as error:  # noqa: BLE001: reported below
            wrong[case["name"]] = error

    threads = [threading.Thread(target=run, args=(case,)) for case in CASES["scripted"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, "\n".join(f"{name}: {error!r}" for name, error in wrong.items())


def handler_of(case, begun, coroutine):
    what = case["handler"]

    def act(job, sleep):
        begun.set()
        if what["do"] == "fail":
            raise RuntimeError(what["message"])
        if what["do"] == "not_yet":
            raise NotYet(what["delay_ms"] / 1000)
        if what["do"] == "result":
            return Result(what["value"])
        if what["do"] == "dead":
            raise Dead(what["reason"])
        if what["do"] == "sleep":
            return sleep(what["ms"] / 1000)
        if what["do"] == "wait_cancelled":
            return cancelled(job) if coroutine else job.token.wait(60) and given_up()
        assert what["do"] == "return"

    async def cancelled(job):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        assert job.token.cancelled
        given_up()

    def given_up():
        if "message" in what:
            raise RuntimeError(what["message"])

    async def awaited(job):
        found = act(job, asyncio.sleep)
        return await found if inspect.isawaitable(found) else found

    return awaited if coroutine else lambda job: act(job, time.sleep)


@pytest.mark.parametrize("coroutine", [False, True], ids=["threads", "coroutines"])
def test_workers(coroutine):
    process = subprocess.Popen([sys.executable, str(CLIENTS / "scripted_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    address = process.stdout.readline().strip()
    wrong = {}

    def run(case):
        try:
            begun = threading.Event()
            options = case["worker"]
            worker = Worker(f"{address}/{case['name']}", jobs=options["concurrency"], lease=options["lease_ms"] / 1000)
            for queue in options["queues"]:
                worker.add(queue, handler_of(case, begun, coroutine))
            thread = threading.Thread(target=worker.run)
            thread.start()
            if case.get("stop") == "while_running":
                assert begun.wait(60)
                worker.stop()
                thread.join(60)
            try:
                until(lambda: verdict(address, case["name"])["complete"], case["name"])
            finally:
                # What should not come has time to come.
                time.sleep(0.5)
                worker.stop()
                thread.join(60)
            assert not thread.is_alive()
            found = verdict(address, case["name"])
            assert found["failures"] == [] and found["complete"], found
        except BaseException as error:  # noqa: BLE001: reported below
            wrong[case["name"]] = error

    threads = [threading.Thread(target=run, args=(case,)) for case in CASES["workers"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.stdin.close()
    process.wait(60)
    assert not wrong, "\n".join(f"{name}: {error!r}" for name, error in wrong.items())


@named("signatures")
def test_signatures(case):
    body = base64.b64decode(case["body_base64"]) if "body_base64" in case else case["body"].encode()
    options = {"now": case["now"]}
    if "tolerance_ms" in case:
        options["tolerance"] = case["tolerance_ms"] / 1000
    if "error" in case:
        with pytest.raises(webhooks.WebhookError) as caught:
            webhooks.verify(case["headers"], body, case["secrets"], **options)
        assert caught.value.code == case["error"]["code"]
        return
    found = webhooks.verify(case["headers"], body, case["secrets"], **options)
    for name, value in case["result"].items():
        got = getattr(found, name)
        assert (got.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z" if name == "due_at" else got) == value
    assert found.body == body
