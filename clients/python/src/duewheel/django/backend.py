"""The backend of tasks, and how a worker runs one.

The id of a result is that of the message. A task that is scheduled or ready is READY, one that a worker has is RUNNING,
and a dead one FAILED. What a task has returned or raised is a message of the queue `_django.results` with the id as its
key, due when it is of no use any more: then a worker takes it away.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime
from traceback import format_exception
from typing import Any

from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.module_loading import import_string

try:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

from .._publish import DEFAULT_PRIORITY
from ..client import Client
from ..errors import BadRequest, BodyTooLarge, DuewheelError, MessageNotFound
from ..worker import Dead, Job, Worker

log = logging.getLogger("duewheel.django")

RESULTS = "_django.results"
STATES = {"scheduled": TaskResultStatus.READY, "ready": TaskResultStatus.READY, "leased": TaskResultStatus.RUNNING,
          "dead": TaskResultStatus.FAILED}


class DuewheelBackend(BaseTaskBackend):
    """Options: `url` and `token` of the server, by default those of the environment; `prefix` of the names of queues;
    `keep_results` ("24h"); `max_attempts`, `lease` of tasks, by default those of their queue.

    A result whose value is larger than the server takes is kept without it. A task that raises an exception is FAILED, and its message dead, so that it can be redriven. One whose worker was
    killed runs again when its lease ends.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]):
        super().__init__(alias, params)
        options = dict(self.options)
        self.client = Client(options.pop("url", None), token=options.pop("token", None))
        self.prefix = options.pop("prefix", "")
        self.keep_results = options.pop("keep_results", "24h")
        self.message_options = {name: options.pop(name) for name in ("max_attempts", "lease") if name in options}
        if options:
            raise ValueError(f"OPTIONS: {sorted(options)[0]!r} is no option of {type(self).__name__}")

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Enqueues a task. When it returns, the task is durable; in a transaction that may fail, use `on_commit`."""
        self.validate_task(task)
        content = {"task": task.module_path, "args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs)),
                   "takes_context": task.takes_context, "enqueued_at": timezone.now().isoformat()}
        when: dict[str, Any] = {}
        if task.run_after is not None:
            at = task.run_after
            when = {"due_at": at if timezone.is_aware(at) else timezone.make_aware(at), "past": "fire"}
        made = self.client.enqueue(self.prefix + task.queue_name, json=content, priority=DEFAULT_PRIORITY - task.priority,
                                   headers={"content-type": "application/json", "task": task.module_path},
                                   **when, **self.message_options)
        result = self._result(made.id, task, content, TaskResultStatus.READY)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The result with this id. Raises `TaskResultDoesNotExist`."""
        for last in (False, True):
            try:
                kept = self.client.get_key(self.prefix + RESULTS, str(result_id))
                return self._finished(str(result_id), kept.json())
            except (MessageNotFound, BadRequest):
                pass
            try:
                message = self.client.get(str(result_id))
            except (MessageNotFound, BadRequest):
                # It may have ended between the two calls.
                if last:
                    raise TaskResultDoesNotExist(result_id) from None
                continue
            queue = message.queue
            if not queue.startswith(self.prefix) or "task" not in message.headers:
                raise TaskResultDoesNotExist(result_id)
            content = message.json()
            task = self.task(content, queue.removeprefix(self.prefix), DEFAULT_PRIORITY - message.raw["priority"])
            state = STATES.get(message.state, TaskResultStatus.SUCCESSFUL)
            result = self._result(message.id, task, content, state)
            result.worker_ids.extend(["unknown"] * message.attempt)
            return result
        raise TaskResultDoesNotExist(result_id)

    def task(self, content: dict[str, Any], queue: str, priority: int) -> Task:
        """The task of a message."""
        task = import_string(content["task"])
        if not isinstance(task, Task):
            raise ValueError(f"{content['task']} is no task")
        return task.using(queue_name=queue, priority=priority, backend=self.alias)

    def _result(self, id: str, task: Task, content: dict[str, Any], status: Any) -> TaskResult:
        return TaskResult(task=task, id=id, status=status, enqueued_at=_moment(content["enqueued_at"]), started_at=None,
                          finished_at=None, last_attempted_at=None, args=content["args"], kwargs=content["kwargs"], backend=self.alias,
                          errors=[], worker_ids=[])

    def _finished(self, id: str, kept: dict[str, Any]) -> TaskResult:
        result = self._result(id, self.task(kept, kept["queue"], kept["priority"]), kept, TaskResultStatus(kept["status"]))
        for name in ("started_at", "finished_at", "last_attempted_at"):
            object.__setattr__(result, name, _moment(kept[name]))
        result.errors.extend(TaskError(**error) for error in kept["errors"])
        result.worker_ids.extend(kept["worker_ids"])
        object.__setattr__(result, "_return_value", kept["return_value"])
        return result

    # -- workers

    def worker(self, *, jobs: int = 10, queues: list[str] | None = None, name: str = "worker", drain: float = 30.0) -> Worker:
        """A worker of the backend's queues, or of `queues`."""
        names = sorted(self.queues if queues is None else queues)
        if not names:
            raise ValueError("queues: the backend has none of its own, so name those of the worker")
        address = self.client.address
        url = f"{'https' if address.tls else 'http'}://{address.host_header}{address.path}"
        worker = Worker(url, token=address.token, jobs=jobs, drain=drain)
        for queue in names:
            worker.add(self.prefix + queue, lambda job, queue=queue: self._run(job, queue, name))
        worker.add(self.prefix + RESULTS, lambda job: None)  # results that are due are of no use any more
        return worker

    def _run(self, job: Job, queue: str, name: str) -> None:
        content = job.json()
        try:
            task = self.task(content, queue, DEFAULT_PRIORITY - job.delivery.priority)
        except (ImportError, ValueError) as error:
            raise Dead(f"this worker does not know the task: {error}") from error
        result = self._result(job.id, task, content, TaskResultStatus.RUNNING)
        now = timezone.now()
        object.__setattr__(result, "started_at", now)
        object.__setattr__(result, "last_attempted_at", now)
        result.worker_ids.extend(["unknown"] * (job.attempt - 1) + [name])
        close_old_connections()
        try:
            task_started.send(type(self), task_result=result)
            value = error = None
            try:
                context = [TaskContext(task_result=result)] if task.takes_context else []
                value = normalize_json(task.call(*context, *result.args, **result.kwargs))
            except Exception as raised:  # noqa: BLE001: it is the result
                error = raised
                kind = type(raised)
                result.errors.append(TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                                               traceback="".join(format_exception(raised))))
            object.__setattr__(result, "finished_at", timezone.now())
            object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL if error is None else TaskResultStatus.FAILED)
            object.__setattr__(result, "_return_value", value)
            # Before the ack: what has ended has a result.
            self._keep(result, content, queue)
            task_finished.send(type(self), task_result=result)
        finally:
            close_old_connections()
        if error is not None:
            raise Dead(f"{type(error).__name__}: {error}") from error

    def _keep(self, result: TaskResult, content: dict[str, Any], queue: str) -> None:
        kept = {
            **content,
            "queue": queue,
            "priority": result.task.priority,
            "status": str(result.status.value),
            "return_value": result._return_value,
            "errors": [{"exception_class_path": it.exception_class_path, "traceback": it.traceback[-16_384:]} for it in result.errors],
            "worker_ids": result.worker_ids,
            **{name: getattr(result, name).isoformat() for name in ("started_at", "finished_at", "last_attempted_at")},
        }
        short = [{**it, "traceback": it["traceback"][-1024:]} for it in kept["errors"]]
        # The task has run: that it has ended is kept in any case, or it would run again.
        for less in ({}, {"return_value": None, "errors": short}, {"return_value": None, "errors": short, "args": [], "kwargs": {}}):
            try:
                self.client.enqueue(self.prefix + RESULTS, json.dumps({**kept, **less}), key=result.id, delay=self.keep_results,
                                    if_exists="supersede")
                return
            except BodyTooLarge as error:
                log.error("the result of task %s (%s) is kept without %s: %s", result.id, content["task"],
                          "its value" if not less else "its value and its arguments", error)


def _moment(text: str | None) -> datetime | None:
    at = None if text is None else parse_datetime(text)
    if at is not None and not settings.USE_TZ and timezone.is_aware(at):
        at = timezone.make_naive(at)
    return at


__all__ = ["DuewheelBackend", "DuewheelError"]
