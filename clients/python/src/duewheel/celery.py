"""Celery on duewheel: what its own calls cannot say."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .errors import Leased, MessageNotFound
from .kombu import Transport

log = logging.getLogger("duewheel.celery")


@dataclass(frozen=True)
class Revoked:
    """What became of a task that was revoked.

    `outcome` is "cancelled": its message is gone, and it never runs; "leased": a worker has it, which was told, and stops
    it only if it has not begun (or with `terminate`); "not_found": nothing is pending, so it has run, was revoked
    before, never was there, or was sent twice under its id. `queue` is where the message was.
    """

    outcome: str
    queue: str | None = None

    def __bool__(self) -> bool:
        return self.outcome == "cancelled"


def revoke(app: Any, task_id: str, *, queues: Iterable[str] | None = None, **options: Any) -> Revoked:
    """Revokes a task: deletes its message by its id, and then tells the workers, with the options of
    `app.control.revoke`.

    A deleted task gets the state REVOKED in the result backend, because no worker will set it. `queues` are those to
    look in, by default all of `app.conf.task_queues`.
    """
    outcome = Revoked("not_found")
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        transport = channel.connection
        if not isinstance(transport, Transport):
            raise TypeError(f"app: its broker is {transport.driver_type}, not duewheel")
        for queue in dict.fromkeys(app.amqp.queues if queues is None else queues):
            try:
                transport.duewheel.cancel_key(transport.named(queue), task_id)
                outcome = Revoked("cancelled", queue)
                break
            except Leased:
                outcome = Revoked("leased", queue)
            except MessageNotFound as error:
                if error.outcome == "unknown":
                    log.warning("an answer was lost: the task %s may have been cancelled by this call", task_id)
    if outcome:
        app.backend.mark_as_revoked(task_id, "revoked", store_result=True)
    app.control.revoke(task_id, **options)
    return outcome
