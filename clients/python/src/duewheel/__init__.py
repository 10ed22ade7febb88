"""duewheel: durable delayed messages.

`Client` and `AsyncClient` call the server, `Worker` runs handlers, `webhooks.verify` checks webhooks; `duewheel.kombu`,
`duewheel.celery`, `duewheel.dramatiq` and `duewheel.django` connect frameworks, and `duewheel.pytest_plugin` tests.

Importing the package makes URLs `duewheel://` known to kombu, if it is installed.
"""

from contextlib import suppress

from . import errors, webhooks
from ._messages import Deliveries, Delivery, Enqueued, Message, Outgoing
from .aio import AsyncClient
from .client import Client
from .errors import ConnectionFailed, DuewheelError
from .worker import Cancelled, CancelToken, Dead, Job, NotYet, Result, Retry, Worker

__version__ = "0.1.0"
__all__ = [
    "AsyncClient", "CancelToken", "Cancelled", "Client", "ConnectionFailed", "Dead", "Deliveries", "Delivery",
    "DuewheelError", "Enqueued", "Job", "Message", "NotYet", "Outgoing", "Result", "Retry", "Worker", "errors",
    "webhooks",
]


with suppress(ImportError):
    from kombu.transport import TRANSPORT_ALIASES

    TRANSPORT_ALIASES.setdefault("duewheel", "duewheel.kombu:Transport")
    TRANSPORT_ALIASES.setdefault("duewheels", "duewheel.kombu:TLSTransport")
