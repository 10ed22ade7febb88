"""Django's tasks on duewheel: `run_after` is durable, however far away it is.

    INSTALLED_APPS = [..., "duewheel.django"]
    TASKS = {
        "default": {
            "BACKEND": "duewheel.django.DuewheelBackend",
            "QUEUES": ["default"],
            "OPTIONS": {"url": "http://localhost:7788", "token": None, "prefix": "shop.", "keep_results": "24h"},
        }
    }

`python manage.py duewheel_worker --jobs 10` runs the tasks. Django 6, or Django 5.2 with the package django-tasks.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    # Django imports this package before its applications are ready.
    if name == "DuewheelBackend":
        from .backend import DuewheelBackend

        return DuewheelBackend
    raise AttributeError(name)
