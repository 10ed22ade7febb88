"""The Celery application of test_celery.py, which its workers run."""

import os
import time

import duewheel  # noqa: F401: makes duewheel:// known
from celery import Celery

app = Celery("shop", broker=os.environ["BROKER"], backend=os.environ.get("BACKEND", "cache+memory://"))
app.conf.update(
    task_acks_late=os.environ.get("LATE") == "1",
    task_reject_on_worker_lost=True,
    broker_transport_options={"lease": 6},
    worker_hijack_root_logger=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)


def note(word):
    """One line, which is written at once."""
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{word} {time.time()}\n")


@app.task
def close(order, due=0.0):
    note(f"close-{order}" if time.time() >= due else f"early-{order}")


@app.task(bind=True, max_retries=5)
def stubborn(self, order):
    note(f"try-{order}")
    if self.request.retries < 2:
        raise self.retry(countdown=1)
    note(f"done-{order}")


@app.task
def slow(order, seconds):
    note(f"begin-{order}")
    time.sleep(seconds)
    note(f"end-{order}")
