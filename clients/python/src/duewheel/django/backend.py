"""The backend of tasks, and how a worker runs one.

A task is a message, and its result what the server says of it: one that is scheduled or ready is READY, one that a
worker has is RUNNING, a dead one FAILED with the error of its last attempt, and one that is done SUCCESSFUL: its value
is the `result` of the ack. A queue keeps what is done for `keep_done`, which a worker sets where it is not set.
"""

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
    from django.tasks import task_backends as task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:
    from django_tasks import task_backends as task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

from .._publish import DEFAULT_PRIORITY
from ..client import Client
from ..errors import BadRequest, DuewheelError, MessageNotFound
from ..worker import Dead, Job, Result, Worker

log = logging.getLogger("duewheel.django")

STATES = {"scheduled": TaskResultStatus.READY, "ready": TaskResultStatus.READY, "leased": TaskResultStatus.RUNNING,
          "dead": TaskResultStatus.FAILED, "done": TaskResultStatus.SUCCESSFUL}


class DuewheelBackend(BaseTaskBackend):
    """Options: `url` and `token` of the server, by default those of the environment; `prefix` of the names of queues;
    `keep_results` ("24h") of queues that keep nothing yet; `max_attempts`, `lease` of tasks, by default those of their
    queue.

    A result of more than 16 KiB is kept without its value. A task that raises an exception is FAILED, and its message
    dead, so that it can be redriven; the traceback is in the log of the worker. One whose worker was killed runs again
    when its lease ends.
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
        at = task.run_after
        if at is not None and not timezone.is_aware(at):
            at = timezone.make_aware(at)
        made = self.client.enqueue(self.prefix + task.queue_name, json=content, due_at=at, past=at and "fire",
                                   priority=DEFAULT_PRIORITY - task.priority,
                                   headers={"content-type": "application/json", "task": task.module_path},
                                   **self.message_options)
        result = self._result(made.id, task, content, TaskResultStatus.READY)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """The result with this id. Raises `TaskResultDoesNotExist`."""
        try:
            message = self.client.get(str(result_id))
            content = message.json() if message.queue.startswith(self.prefix) and "task" in message.headers else None
        except (MessageNotFound, BadRequest):
            content = None
        if content is None or message.raw.get("outcome", "acked") != "acked":
            raise TaskResultDoesNotExist(result_id)
        task = self.task(content, message.queue.removeprefix(self.prefix), DEFAULT_PRIORITY - message.raw["priority"])
        result = self._result(message.id, task, content, STATES[message.state])
        result.worker_ids.extend(["unknown"] * message.attempt)
        attempts = message.raw.get("history") or []
        if message.state == "dead" and attempts:
            kind, _, text = attempts[-1]["note"].partition(": ")
            if not text or not kind.replace(".", "").isidentifier():  # it died otherwise, such as by its last lease
                kind, text = "duewheel.errors.Dead", f"{message.raw['dead_reason']} {attempts[-1]['note']}"
            result.errors.append(TaskError(exception_class_path=kind, traceback=text))
        ended = message.raw.get("ended_at") or message.raw.get("dead_at")
        _set(result, started_at=_moment(attempts[0]["granted_at"]) if attempts else None, finished_at=_moment(ended),
             last_attempted_at=_moment(attempts[-1]["granted_at"]) if attempts else None, _return_value=message.result)
        return result

    def task(self, content: dict[str, Any], queue: str, priority: int) -> Task:
        """The task of a message."""
        task = import_string(content["task"])
        if not isinstance(task, Task):
            raise ValueError(f"{content['task']} is no task")
        return task.using(queue_name=queue, priority=priority, backend=self.alias)

    def _result(self, id: str, task: Task, content: dict[str, Any], status: Any) -> TaskResult:
        return TaskResult(task=task, id=id, status=status, enqueued_at=_moment(content["enqueued_at"]), started_at=None,
                          finished_at=None, last_attempted_at=None, args=content["args"], kwargs=content["kwargs"],
                          backend=self.alias, errors=[], worker_ids=[])

    # -- workers

    def worker(self, *, jobs: int = 10, queues: list[str] | None = None, name: str = "worker",
               drain: float = 30.0) -> Worker:
        """A worker of the backend's queues, or of `queues`."""
        names = sorted(self.queues if queues is None else queues)
        if not names:
            raise ValueError("queues: the backend has none of its own, so name those of the worker")
        worker = Worker(self.client, jobs=jobs, drain=drain)
        for queue in names:
            worker.add(self.prefix + queue, lambda job, queue=queue: self._run(job, queue, name))
            try:
                if self.client.config(self.prefix + queue)["config"]["keep_done_ms"] is None:
                    self.client.config(self.prefix + queue, keep_done=self.keep_results)
            except DuewheelError as error:
                log.info("results of %s are kept as its settings say, not for %s: %s", queue, self.keep_results, error)
        return worker

    def _run(self, job: Job, queue: str, name: str) -> Result:
        content = job.json()
        try:
            task = self.task(content, queue, DEFAULT_PRIORITY - job.delivery.priority)
        except (ImportError, ValueError) as error:
            raise Dead(f"{_path(error)}: this worker does not know the task: {error}") from error
        result = self._result(job.id, task, content, TaskResultStatus.RUNNING)
        now = timezone.now()
        _set(result, started_at=now, last_attempted_at=now)
        result.worker_ids.extend(["unknown"] * (job.attempt - 1) + [name])
        close_old_connections()
        try:
            task_started.send(type(self), task_result=result)
            value, error = Result(None), None
            try:
                context = [TaskContext(task_result=result)] if task.takes_context else []
                value = Result(normalize_json(task.call(*context, *result.args, **result.kwargs)))
            except Exception as raised:  # noqa: BLE001: it is the result
                error = raised
                trace = "".join(format_exception(raised))
                result.errors.append(TaskError(exception_class_path=_path(raised), traceback=trace))
            _set(result, finished_at=timezone.now(), _return_value=value.value,
                 status=TaskResultStatus.SUCCESSFUL if error is None else TaskResultStatus.FAILED)
            task_finished.send(type(self), task_result=result)
        finally:
            close_old_connections()
        if error is not None:
            log.error("task %s has failed: %s", result.id, result.errors[-1].traceback)
            raise Dead(f"{_path(error)}: {error}") from error
        return value


def _path(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _set(result: TaskResult, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(result, name, value)


def _moment(text: str | None) -> datetime | None:
    at = parse_datetime(text or "")
    return timezone.make_naive(at) if at and timezone.is_aware(at) and not settings.USE_TZ else at
