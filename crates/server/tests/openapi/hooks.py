"""What JSON Schema cannot say of duewheel's requests, for schemathesis."""

import datetime
import re
import unicodedata

import schemathesis
from hypothesis import strategies as st

# A length of time up to the longest delay, 2^32 - 1 seconds.
_units = st.sampled_from([("d", 49_710), ("h", 1_193_046), ("m", 71_582_788), ("s", 4_294_967_295), ("ms", 4_294_967_295_000)])
schemathesis.openapi.format(
    "duewheel-span", _units.flatmap(lambda unit: st.integers(0, unit[1]).map(lambda n: f"{n}{unit[0]}"))
)

# The same, and earlier with a sign before it.
schemathesis.openapi.format(
    "duewheel-shift", st.tuples(st.sampled_from(["", "-"]), st.integers(0, 1000)).map(lambda of: f"{of[0]}{of[1]}h")
)

# Up to 256 bytes of UTF-8, and not of the characters that no path can have.
schemathesis.openapi.format(
    "duewheel-key", st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=64)
    .filter(lambda key: key not in (".", ".."))
)

# Letters, marks and digits of any script, and some signs, in NFC; up to 200 bytes.
_names = (
    st.text(st.characters(categories=["L", "M", "Nd"], include_characters="-+/:;.$_()"), min_size=1, max_size=50)
    .map(lambda name: unicodedata.normalize("NFC", name))
    .filter(lambda name: not name.startswith("-") and name not in (".", "..") and len(name.encode()) <= 200)
)
schemathesis.openapi.format("duewheel-queue", _names)
schemathesis.openapi.format("duewheel-queues", _names | _names.map(lambda name: name + "*"))

# A cursor is an answer of the server, with a part for each of its shards.
schemathesis.openapi.format("duewheel-cursor", st.sampled_from(["-_-", "1767398400000.17_-", "."]))

# An instant that has not passed, and is no further than the longest delay.
schemathesis.openapi.format(
    "date-time",
    st.datetimes(
        min_value=datetime.datetime(2090, 1, 1), max_value=datetime.datetime(2100, 1, 1)
    ).map(lambda at: at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")),
)


def _digits_alone(value):
    """Numbers are written with digits alone: 1.0 is an integer for JSON Schema, and is refused (docs/http.md)."""
    if isinstance(value, dict):
        return {name: _digits_alone(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_digits_alone(element) for element in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


_INSTANT = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
_SPAN = re.compile(r"^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?$")


def _is_longer(span, days):
    """Whether this is a length of time, and longer than so many days."""
    found = _SPAN.match(span) if isinstance(span, str) else None
    ms = (86_400_000, 3_600_000, 60_000, 1_000, 1)
    return found is not None and sum(int(n or 0) * one for n, one in zip(found.groups(), ms)) > days * 86_400_000


def _is_number(value):
    return isinstance(value, int) and not isinstance(value, bool)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Keeps the rules that no schema can say, and does not wait."""
    body, query = case.body, case.query
    if isinstance(query, dict) and case.operation.path == "/v1/history":
        # A range is in the past, begins before its end, and is at most as long as points are kept.
        query.pop("from", None)
        query.pop("to", None)
    if isinstance(body, (dict, list)):
        case.body = body = _digits_alone(body)
    if isinstance(body, dict):
        backoff = body.get("backoff")
        if isinstance(backoff, dict) and all(_is_number(backoff.get(name)) for name in ("min_ms", "max_ms")):
            backoff["min_ms"], backoff["max_ms"] = sorted((backoff["min_ms"], backoff["max_ms"]))
        if case.operation.path.endswith("/config"):
            # There is no target, and nothing is to be sent anywhere.
            body.pop("target", None)
            if _is_longer(body.get("keep_done"), 366):
                body["keep_done"] = "366d"
        if _is_longer(body.get("keep"), 366):
            body["keep"] = "366d"
        if not case.operation.path.endswith("/config"):
            # The window of the queue bounds that of an enqueue.
            if _SPAN.match(body["dedupe_window"] if isinstance(body.get("dedupe_window"), str) else "-"):
                body["dedupe_window"] = "1h"
            if _is_number(body.get("dedupe_window_ms")) and 86_400_000 < body["dedupe_window_ms"] <= 2_592_000_000:
                body["dedupe_window_ms"] = 86_400_000
            # The id may be in a header.
            if not isinstance(body.get("dedupe_id"), str) and "Idempotency-Key" not in (case.headers or {}):
                body.pop("dedupe_window", None)
                body.pop("dedupe_window_ms", None)
        if isinstance(body.get("expires_at"), str) and _INSTANT.match(body["expires_at"]):
            # Nothing expires before it is due.
            body["expires_at"] = "2101-01-01T00:00:00Z"
        if isinstance(body.get("target_url"), str):
            # No queue has a target, and nothing is to be sent anywhere.
            del body["target_url"]
        queues = body.get("queues")
        if isinstance(queues, list) and all(isinstance(one, dict) and isinstance(one.get("queue"), str) for one in queues):
            # A queue is named once.
            body["queues"] = list({one["queue"]: one for one in queues}.values())
        if case.operation.path.endswith("/reserve") and _is_number(body.get("wait_ms")) and body["wait_ms"] <= 600_000:
            body["wait_ms"] = min(body["wait_ms"], 10)
    for asked in (query, body.get("filter") if isinstance(body, dict) else None):
        # Only dead messages have a reason of their death.
        if isinstance(asked, dict):
            if asked.get("state", "dead") != "dead":
                for name in ("reason", "note", "dead_reason", "dead_note"):
                    asked.pop(name, None)
            if "reason" in asked:
                asked.pop("dead_reason", None)
    if case.operation.path.endswith("/histogram") and isinstance(query, dict) and "to" in query:
        query["from"] = "1971-01-01T00:00:00Z"
