"""Celery on duewheel, measured: the memory of a worker, tasks that fall due while workers and the server are killed,
`apply_async` beside Redis with `appendfsync always` on the same disk, and the processor time of an idle worker.

usage: shown.py FOLDER [--tasks 20000] [--window 60] [--rate 200]    --full: 1,000,000 tasks, and a window of 600 s
       with DUEWHEEL_BIN, a release build, and redis-server on the path. FOLDER is on the disk that is measured; it has
       what is installed. The status is 1 if an aim is missed.
"""

import argparse
import base64
import copy
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEASE = 10
PACKAGES = ["celery==5.7.0", "kombu==5.7.0", "redis==8.1.0", "packaging==26.4"]

if "BROKER" in os.environ:
    import duewheel  # noqa: F401: makes duewheel:// known
    from celery import Celery

    app = Celery("shown", broker=os.environ["BROKER"])
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, task_ignore_result=True, worker_hijack_root_logger=False,
                    broker_transport_options={"lease": LEASE} if os.environ["BROKER"].startswith("duewheel") else {})

    @app.task(bind=True)
    def note(self, order, due):
        now = time.time()
        with open("notes", "a") as notes:
            notes.write(f"{order} {due} {now} {int(bool(self.request.delivery_info.get('redelivered')))}\n")


def environment(broker):
    return {**os.environ, "BROKER": broker, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])}


class Worker:
    """A worker of Celery, as a user starts it."""

    count = 0

    def __init__(self, folder, broker, *options):
        Worker.count += 1
        command = [sys.executable, "-m", "celery", "-A", "shown", "worker", "-l", "INFO", "-n", f"w{Worker.count}@shown", *options]
        self.log = folder / f"worker-{Worker.count}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=environment(broker), stdout=log, stderr=log, start_new_session=True)

    def ready(self):
        until(lambda: " ready." in self.log.read_text(errors="replace"), f"{self.log}")
        return self

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def memory(self):
        """Its largest resident size so far, in MB of 10^6 bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))

    def seconds(self):
        """The processor time that it has used, with its processes."""
        used = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self.process.pid:
                used += int(fields[11]) + int(fields[12])
        return used / os.sysconf("SC_CLK_TCK")


def templates(url, redis_port):
    """A task with a countdown as Celery sends it, to duewheel and to Redis."""
    import redis

    for broker in (url, f"redis://127.0.0.1:{redis_port}/0"):
        subprocess.run([sys.executable, "-c", "import shown; shown.note.apply_async((0, 0), countdown=172800, task_id='template')"],
                       env=environment(broker), check=True)
    client = duewheel_client(url)
    ours = client.get_key("celery", "template")
    client.cancel_key("celery", "template")
    return ours, redis.Redis(port=redis_port).rpop("celery")


def duewheel_client(url):
    from duewheel import Client

    return Client(url.replace("duewheel://", "http://"), timeout=120)


def changed(task, order, due):
    """Another task like this one."""
    task, id = copy.deepcopy(task), str(uuid.uuid4())
    _, kwargs, rest = json.loads(base64.b64decode(task["body"])) if task["properties"].get("body_encoding") == "base64" else json.loads(task["body"])
    task["body"] = base64.b64encode(json.dumps([[order, due], kwargs, rest]).encode()).decode()
    task["headers"].update(id=id, root_id=id, eta=datetime.fromtimestamp(due, timezone.utc).isoformat())
    task["properties"].update(correlation_id=id, delivery_tag=id)
    return id, json.dumps(task)


def fill(url, template, count, due_of):
    """Enqueues tasks in batches, each as one `apply_async` would have."""
    from duewheel import Outgoing

    client, task = duewheel_client(url), json.loads(template.text)
    for first in range(0, count, 5000):
        batch = []
        for order in range(first, min(first + 5000, count)):
            due = due_of(order)
            id, text = changed(task, order, due)
            batch.append(Outgoing(text, key=id, due_at=datetime.fromtimestamp(due, timezone.utc), past="fire", headers=template.headers,
                                  priority=template.raw["priority"], max_attempts=4_294_967_295))
        refused = [it for it in client.enqueue_many("celery", batch) if isinstance(it, Exception)]
        assert not refused, refused[0]


def memory(folder, url, redis_port, ours, theirs, count):
    import redis

    duewheel_client(url).purge("celery")
    redis.Redis(port=redis_port).flushall()
    fill(url, ours, count, lambda _: time.time() + 172_800)
    worker = Worker(folder, url, "--pool", "solo").ready()
    time.sleep(5)
    here = worker.memory()
    worker.kill()
    waiting = duewheel_client(url).queue("celery")["counts"]["scheduled"]
    few, other, task = min(count, 20_000), redis.Redis(port=redis_port), json.loads(theirs)
    other.config_set("appendfsync", "no")
    for order in range(few):
        other.lpush("celery", changed(task, order, time.time() + 172_800)[1])
    worker = Worker(folder, f"redis://127.0.0.1:{redis_port}/0", "--pool", "solo").ready()
    until(lambda: other.zcard("unacked_index") == few, "the worker of Redis", 600)
    there = worker.memory()
    worker.kill()
    other.flushall()
    return say("memory", here <= 60 and waiting == count,
               f"{count:,} tasks at 48 h: {here:.0f} MB (aim 60); on Redis {few:,}: {there:.0f} MB, {there / here:.1f} times")


def idle(folder, url, seconds):
    worker = Worker(folder, url, "--concurrency", "2").ready()
    time.sleep(5)
    before = worker.seconds()
    time.sleep(seconds)
    share = (worker.seconds() - before) / seconds
    worker.kill()
    return say("idle", share <= 0.01, f"{share:.2%} of a core over {seconds} s (aim 1 %)")


PRODUCER = """
import sys, time, shown
for line in sys.stdin:
    began = time.monotonic()
    for order in range(int(line)):
        shown.note.apply_async((order, 0), countdown=172800)
    print(time.monotonic() - began, flush=True)
"""


def apply_async(url, redis_port, rounds=8, each=400):
    """Rounds on both by turns; the median of each. An answer of either says that the task is on the disk."""
    assert duewheel_client(url).enqueue("durability", "x").durability == "fsync"
    brokers = {"duewheel": url, "redis": f"redis://127.0.0.1:{redis_port}/0"}
    producers = {name: subprocess.Popen([sys.executable, "-c", PRODUCER], env=environment(broker), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                 for name, broker in brokers.items()}
    rates = {name: [] for name in producers}
    for number in range(rounds + 1):
        for name in list(producers)[:: 1 if number % 2 else -1]:
            print(each, file=producers[name].stdin, flush=True)
            rates[name].append(each / float(producers[name].stdout.readline()))
    for producer in producers.values():
        producer.stdin.close()
        producer.wait()
    here, there = (statistics.median(rates[name][1:]) for name in brokers)
    return say("apply_async", here >= there, f"{here:.0f}/s, on Redis with appendfsync always {there:.0f}/s: {here / there:.2f} times (aim 1.00)")


def kills(folder, server, url, ours, window, rate):
    count, begin = window * rate, time.time() + 5 + window * rate / 5000
    fill(url, ours, count, lambda order: begin + order / rate)
    options = ("--concurrency", "2", "--without-mingle", "--without-gossip")
    workers = [Worker(folder, url, *options).ready() for _ in range(2)]
    victims = 0
    while time.time() < begin + window:
        # Longer than a lease, so that a task that comes again is not leased at a kill once more.
        time.sleep(max(min(15.0, begin + window - time.time()), 0) if time.time() > begin else begin + 5 - time.time())
        victims += 1
        if victims % 3 == 0:
            server.kill()
            server.start()
        else:
            workers[victims % 2].kill()
            workers[victims % 2] = Worker(folder, url, *options)
    notes = folder / "notes"

    def runs():
        return [(int(order), float(due), float(now), again == "1") for order, due, now, again in map(str.split, notes.read_text().splitlines())]

    until(lambda: len({it[0] for it in runs()}) == count, "all tasks", 120)
    for worker in workers:
        worker.kill()
    first = {}
    for order, due, now, again in sorted(runs(), key=lambda it: it[2]):
        first.setdefault(order, (now - due, again))
    others = sorted(late for late, again in first.values() if not again)
    leased = [late for late, again in first.values() if again]
    early, p99, worst = sum(late < 0 for late, _ in first.values()), others[int(len(others) * 0.99)], max(leased, default=0.0)
    return say("kills", early == 0 and p99 <= 1 and worst <= LEASE + 5,
               f"{count:,} tasks in {window} s, {victims} kills: all have run, {early} early, p99 {p99:.2f} s late (aim 1), worst {others[-1]:.2f} s; "
               f"{len(leased)} were leased at a kill, worst {worst:.1f} s (aim {LEASE + 5}); {len(runs()) - count} have begun twice")


def say(name, reached, text):
    print(f"{name}: {text}{'' if reached else '   MISSED'}", flush=True)
    return reached


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=60)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", default="memory,idle,apply_async,kills")
    options = parser.parse_args()
    if options.full:
        options.tasks, options.window = 1_000_000, 600
    folder = options.folder.resolve()
    python = folder / "venv/bin/python"
    if Path(sys.prefix) != folder / "venv":
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "-c", HERE / "constraints.txt", *PACKAGES], check=True)
        os.execv(python, [python, *sys.argv])
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    port = free_port()
    redis = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--appendonly", "yes", "--appendfsync", "always"],
                             stdout=subprocess.DEVNULL, cwd=work)
    server = None
    try:
        until(lambda: subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True).stdout == b"PONG\n", "Redis")
        server = Server(work)
        url, only = f"duewheel://127.0.0.1:{server.port}/", options.only.split(",")
        ours, theirs = templates(url, port)
        reached = [run() for name, run in {
            "apply_async": lambda: apply_async(url, port),
            "idle": lambda: idle(work, url, 30),
            "kills": lambda: kills(work, server, url, ours, options.window, options.rate),
            "memory": lambda: memory(work, url, port, ours, theirs, options.tasks),
        }.items() if name in only]
    finally:
        redis.terminate()
        redis.wait()
        if server is not None:
            server.stop()
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]
    from running import Server, free_port, until

    sys.exit(main())
