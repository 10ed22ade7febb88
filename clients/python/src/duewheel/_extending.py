"""When leases are extended, and what the answers to that and to settles mean; for workers and for brokers of frameworks."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any, TypeVar

from ._calls import Delivery
from .errors import DuewheelError, LeaseLost, MessageNotFound

log = logging.getLogger("duewheel.leases")

NEVER = float("inf")


class Lease:
    """A lease, and when it is to be extended: at half its time."""

    def __init__(self, delivery: Delivery):
        self.delivery = delivery
        self.half = delivery.lease_ms / 2000
        self.extend_at = time.monotonic() + self.half

    def end(self) -> None:
        """It is not extended any more."""
        self.extend_at = NEVER


L = TypeVar("L", bound=Lease)


def until_due(leases: Iterable[Lease]) -> float | None:
    """Seconds until one of them is to be extended; None if none is."""
    nearest = min((one.extend_at - one.half / 5 for one in leases), default=NEVER)
    return None if nearest == NEVER else max(nearest - time.monotonic(), 0.0)


def due_leases(leases: Iterable[L]) -> list[L]:
    """Those to extend now, in one call, and next after another half of their time."""
    now = time.monotonic()
    due = [one for one in leases if one.extend_at - one.half / 5 <= now]
    for one in due:
        one.extend_at = now + one.half
    return due


def lost_leases(leases: list[L], results: list[Any]) -> list[L]:
    """Those that are over, by the results of an extension. What was refused otherwise is tried again soon."""
    lost = []
    for one, result in zip(leases, results):
        if one.extend_at == NEVER:
            continue
        if is_lost(result):
            one.end()
            lost.append(one)
        elif isinstance(result, DuewheelError):
            one.extend_at = time.monotonic() + one.half / 4
    return lost


def is_lost(result: Any) -> bool:
    """Whether the result of a settle says that the lease is over."""
    return isinstance(result, (LeaseLost, MessageNotFound))


def report(message: str, result: Any) -> None:
    """Says in the log that a settle was refused."""
    if is_lost(result):
        log.warning("the lease of %s was over before it was settled; it may be worked on again", message)
    elif isinstance(result, DuewheelError):
        log.error("%s cannot be settled, and comes again after its lease: %s", message, result)
