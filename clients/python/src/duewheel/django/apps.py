"""The application, which has the command `duewheel_worker`."""

from django.apps import AppConfig


class DuewheelConfig(AppConfig):
    """Has no models."""

    name = "duewheel.django"
    label = "duewheel"
    verbose_name = "duewheel"
