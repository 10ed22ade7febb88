"""Celery with tasks unchanged: real workers, which are killed."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("celery")

from duewheel import Client  # noqa: E402
from running import LONGER, Server, until  # noqa: E402

HERE = Path(__file__).resolve().parent


class Shop:
    def __init__(self, folder):
        self.folder = folder
        self.server = Server(folder)
        self.notes = folder / "notes"
        self.notes.write_text("")
        self.workers = []
        self.environment = {
            **os.environ,
            "BROKER": f"duewheel://127.0.0.1:{self.server.port}/",
            "NOTES": str(self.notes),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)]),
        }
        os.environ.update({name: self.environment[name] for name in ("BROKER", "NOTES")})
        import celery_app

        self.tasks = importlib.reload(celery_app)
        self.client = Client(self.server.url)

    def worker(self, *options, **environment):
        log = open(self.folder / "worker.log", "a")
        command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--loglevel", "INFO", "-n", f"w{len(self.workers)}@test",
                   "--without-gossip", "--without-mingle", *options]
        process = subprocess.Popen(command, cwd=self.folder, env={**self.environment, **environment}, stdout=log, stderr=log, start_new_session=True)
        log.close()
        self.workers.append(process)
        return process

    def said(self):
        return [line.split()[0] for line in self.notes.read_text().splitlines()]

    def stop(self):
        for worker in self.workers:
            kill(worker)
        self.tasks.app.close()
        self.server.stop()


full = pytest.mark.skipif(not os.environ.get("DUEWHEEL_TEST_FULL"), reason="with DUEWHEEL_TEST_FULL")


def kill(worker):
    """Ends a worker and its processes without a warning."""
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    worker.wait()


@pytest.fixture
def shop(tmp_path):
    one = Shop(tmp_path)
    yield one
    if os.environ.get("SHOW_LOGS"):
        print((tmp_path / "worker.log").read_text()[-5000:])
    one.stop()


def test_two_hundred_tasks_with_a_countdown_outlive_their_worker_and_the_server(shop):
    due = time.time() + 15
    for order in range(200):
        shop.tasks.close.apply_async((order, due - 0.5), countdown=max(due - time.time(), 0))
    assert sum(shop.client.queue("celery")["counts"].values()) == 200
    first = shop.worker("--pool", "solo", LATE="1")
    shop.tasks.close.delay("now")
    until(lambda: "close-now" in shop.said())
    kill(first)
    shop.server.kill()
    shop.server.start()
    shop.worker("--pool", "solo", LATE="1")
    until(lambda: len(set(shop.said())) == 201)
    assert set(shop.said()) == {"close-now", *(f"close-{order}" for order in range(200))}


@full
def test_tasks_of_a_killed_pool_run_again(shop):
    first = shop.worker("--concurrency", "2", LATE="1")
    for order in range(4):
        shop.tasks.slow.apply_async((order, LONGER))
    until(lambda: len([it for it in shop.said() if it.startswith("begin")]) == 2)
    kill(first)
    shop.worker("--concurrency", "2", LATE="1")
    until(lambda: len({it for it in shop.said() if it.startswith("end")}) == 4)
    # A task takes longer than its lease: none of them ran twice for that.
    assert sum(it.startswith("end") for it in shop.said()) == 4


def test_retries_and_revokes(shop):
    from duewheel.celery import revoke

    shop.worker("--pool", "threads", "--concurrency", "4", LATE="1")
    shop.tasks.stubborn.delay(1)
    until(lambda: "done-1" in shop.said())
    assert shop.said().count("try-1") == 3
    fired = shop.tasks.close.apply_async((6,), countdown=172800)
    shop.client.fire_key("celery", fired.id)
    until(lambda: "close-6" in shop.said())
    later = shop.tasks.close.apply_async((7,), countdown=3600)
    assert shop.client.get_key("celery", later.id).state == "scheduled"
    assert revoke(shop.tasks.app, later.id).outcome == "cancelled"
    assert revoke(shop.tasks.app, later.id).outcome == "not_found"
    running = shop.tasks.slow.apply_async((8, 3))
    until(lambda: "begin-8" in shop.said())
    assert revoke(shop.tasks.app, running.id).outcome == "leased"
    until(lambda: "end-8" in shop.said())
    until(lambda: sum(shop.client.queue("celery")["counts"].values()) == 0)


def test_control_reaches_workers_and_leaves_nothing(shop):
    worker = shop.worker("--pool", "solo")
    inspect = shop.tasks.app.control.inspect(timeout=1)
    assert until(lambda: inspect.ping()) == {"w0@test": {"ok": "pong"}}
    assert until(lambda: shop.tasks.app.control.revoke("no-such-task", reply=True, timeout=1))[0]["w0@test"]["ok"]
    later = shop.tasks.close.apply_async((9,), countdown=3600)
    # Without a tag of a delivery, which a message has when it is leased: once nothing was listed for that.
    listed = until(lambda: inspect.scheduled())["w0@test"]
    assert [(it["request"]["id"], it["request"]["args"]) for it in listed] == [(later.id, [9])] and listed[0]["eta"]
    later.revoke()
    shop.client.cancel_key("celery", later.id)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert shop.client.get_key("_kombu.bindings", "celery.pidbox").json() == {}
    left = {it["queue"] for it in shop.client.queues() if sum(it["counts"].values())}
    assert left <= {"_kombu.bindings", "_kombu.expiries"}
