"""Checks webhooks that a duewheel server has sent: Standard Webhooks 1.0, `v1` (HMAC-SHA256) and `v1a` (Ed25519)."""

import base64
import hmac
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import unquote

from . import _ed25519
from ._messages import Body, instant_of


#: Whether a signature is by a key.
SCHEMES: dict[str, Callable[[bytes, bytes, bytes], bool]] = {
    "v1": lambda key, signature, signed: hmac.compare_digest(hmac.digest(key, signed, "sha256"), signature),
    "v1a": _ed25519.verify,
}


class WebhookError(Exception):
    """The request is not to be believed: answer it with 401. `code` says why: webhook_header, webhook_timestamp or
    webhook_signature; webhook_secret is a mistake in the receiver's own settings."""

    def __init__(self, code: str, detail: str):
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True)
class Webhook(Body):
    """A genuine webhook. Remember `id`: it is the same each time the message comes again."""

    id: str
    timestamp: int
    queue: str | None
    key: str | None
    attempt: int | None
    due_at: datetime | None
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def verify(headers: Mapping[str, str], body: bytes | str, secrets: str | Iterable[str], *, tolerance: float = 300,
           now: float | None = None) -> Webhook:
    """Returns the webhook if one of the signatures is by one of the secrets, and not older than `tolerance` seconds.

    `secrets` are `whsec_…`, as the target has them, or `whpk_…`, the public key of a `whsk_…`; several while one is
    being replaced. `body` must be the bytes as they came. Raises `WebhookError`.
    """
    given = {name.lower(): value for name, value in headers.items()}
    body = body.encode() if isinstance(body, str) else bytes(body)
    keys = [_key(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys:
        raise WebhookError("webhook_secret", "secrets: give the secret of the target, whsec_… or whpk_…")
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        if not given.get(name):
            raise WebhookError("webhook_header", f"the request has no {name}")
    stamp = given["webhook-timestamp"]
    at = _whole(stamp)
    if at is None:
        raise WebhookError("webhook_timestamp", "webhook-timestamp is no whole number of seconds")
    if abs((time.time() if now is None else now) - at) > tolerance:
        raise WebhookError("webhook_timestamp", f"the request is not of the last {tolerance:g} s; compare the clocks, "
                                                "or it is an old one")
    signed = b".".join((given["webhook-id"].encode("utf-8", "surrogatepass"), stamp.encode(), body))
    if not any(_holds(keys, signature, signed) for signature in given["webhook-signature"].split()):
        raise WebhookError("webhook_signature", "no signature is by one of the secrets")
    return Webhook(given["webhook-id"], at, _plain(given.get("duewheel-queue")), _plain(given.get("duewheel-key")),
                   _whole(given.get("duewheel-attempt", "")), _moment(given.get("duewheel-due-at")), _headers(given),
                   body)


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def _moment(value: str | None) -> datetime | None:
    """An instant of a header, which is not signed: None if it is none."""
    try:
        return instant_of(value or "")
    except ValueError:
        return None


def _plain(value: str | None) -> str | None:
    return None if value is None else unquote(value)


def _headers(given: dict[str, str]) -> dict[str, str]:
    """The headers of the message. A name with a star has its value percent-encoded."""
    found = {}
    for name, value in given.items():
        if name.startswith("duewheel-h-"):
            name = name.removeprefix("duewheel-h-")
            if name.endswith("*"):
                name, value = name[:-1], unquote(value.removeprefix("UTF-8''"))
            found[name] = value
    if "content-type" in given:
        found["content-type"] = given["content-type"]
    return found


def _decoded(text: str) -> bytes:
    """Base64; empty if it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _key(secret: str) -> tuple[str, bytes]:
    if secret.startswith("whsk_"):
        raise WebhookError("webhook_secret", "secrets: whsk_… is the sender's private key; a receiver needs its public "
                                             "one, whpk_…")
    kind = "v1a" if secret.startswith("whpk_") else "v1"
    key = _decoded(secret.removeprefix("whpk_").removeprefix("whsec_"))
    if not key or (kind == "v1a" and len(key) != 32):
        raise WebhookError("webhook_secret", "secrets: what follows whsec_ or whpk_ is no key in base64")
    return kind, key


def _holds(keys: list[tuple[str, bytes]], signature: str, signed: bytes) -> bool:
    version, _, text = signature.partition(",")
    return any(kind == version and SCHEMES[kind](key, _decoded(text), signed) for kind, key in keys)
