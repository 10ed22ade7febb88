"""Celery on duewheel: what its own calls cannot say."""

import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kombu.utils.json import loads

from .errors import DuewheelError, Leased, MessageNotFound
from .kombu import Transport, due, text_of

log = logging.getLogger("duewheel.celery")


@dataclass(frozen=True)
class Revoked:
    """The outcome of revoking a task.

    `outcome` is "cancelled": its message is gone, and it never runs; "leased": a worker has it, was sent Celery's
    revoke, and stops it only if it has not begun (or with `terminate`); "not_found": nothing is pending, so it has run,
    was revoked before, never was there, or was sent twice under its id. `queue` is where the message was.
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
        transport = connection.default_channel.connection
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


LISTED = 100  # messages of each queue


def extend_panel() -> None:
    """Lets `inspect().scheduled()` also list what is scheduled in the server, which no worker holds."""
    control = sys.modules.get("celery.worker.control")  # it is there in a worker
    if control is None or getattr(control.Panel.data["scheduled"], "__module__", None) == __name__:
        return
    held = control.Panel.data["scheduled"]

    def scheduled(state: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return held(state, **kwargs) + _in_the_server(state)

    for name in ("scheduled", control.Panel.meta["scheduled"].alias):
        control.Panel.data[name] = scheduled


def _in_the_server(state: Any) -> list[dict[str, Any]]:
    """The next tasks of the worker's queues, as Celery lists them."""
    from celery.worker.request import Request

    consumer = state.consumer.task_consumer
    channel, transport = consumer.channel, consumer.channel.connection
    if not isinstance(transport, Transport):
        return []
    found = []
    for queue in [it.name for it in consumer.queues]:
        try:
            messages, _ = transport.duewheel.messages(transport.named(queue), state="scheduled", limit=LISTED)
        except DuewheelError as error:
            log.info("scheduled tasks of %r are not listed: %s", queue, error)
            continue
        for message in messages:
            try:
                payload = loads(text_of(message))
                if due(payload["headers"]) is None:
                    continue  # a retry of the server's
                payload["properties"]["delivery_tag"] = message.id  # it has none before it is leased
                task = channel.Message(payload, channel=channel, accept=consumer.accept)
                request = Request(task, app=state.app, hostname=state.hostname)
                found.append({"eta": request.eta.isoformat(), "priority": 6, "request": request.info()})
            except Exception as error:  # noqa: BLE001: not a task of this application
                log.info("message %s of %r is not listed: %s", message.id, queue, error)
    return found
