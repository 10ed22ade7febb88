"""`python manage.py duewheel_worker`: runs tasks until SIGTERM."""

import os
import socket
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    """Runs the tasks of a backend."""

    help = "Runs the tasks of a backend that is duewheel.django.DuewheelBackend, until SIGTERM."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--backend", default="default", help="its name in TASKS")
        parser.add_argument("--queue", action="append", help="only these queues; by default all of the backend")
        parser.add_argument("--jobs", type=int, default=10, help="tasks at a time")
        parser.add_argument("--drain", type=float, default=30.0, help="seconds that running tasks have after SIGTERM")

    def handle(self, *args: Any, **options: Any) -> None:
        from ...backend import DuewheelBackend, task_backends

        backend = task_backends[options["backend"]]
        if not isinstance(backend, DuewheelBackend):
            raise CommandError(f"--backend: {options['backend']!r} is {type(backend).__name__}, not duewheel's")
        name = f"{socket.gethostname()}-{os.getpid()}"
        worker = backend.worker(jobs=options["jobs"], queues=options["queue"], name=name, drain=options["drain"])
        self.stdout.write(f"working on {', '.join(options['queue'] or sorted(backend.queues))}")
        self.stdout.flush()
        worker.run()
