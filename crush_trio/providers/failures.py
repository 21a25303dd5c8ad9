"""What an error of a provider means, read from its status, its headers and its words.

Providers agree on statuses and on nothing else: the message is somewhere in a JSON body, or is the
body. Whatever is found is cut to a length that a person reads, and the key is taken out of it: some
providers repeat the key that they do not accept.
"""

from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

from crush_trio.providers.errors import (
    ProviderError,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
)
from crush_trio.providers.event_stream import Event
from crush_trio.wire.fields import Json, JsonObject

DETAIL_MOST: Final = 600
"""Characters of a provider's message that are kept."""

SECRET_LEAST: Final = 4
"""Shorter keys are no secrets, and taking them out would make holes in innocent words."""

_STATUS_OF_TYPE: Final[Mapping[str, int]] = {
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "invalid_request_error": 400,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 402,
    "billing_error": 402,
    "timeout_error": 504,
    "api_error": 500,
    "server_error": 500,
    "overloaded_error": 529,
}
"""What the types and codes of errors mean that come in the midst of an answer."""

_TRY_LATER: Final = frozenset({408, 409, 425})


def failure(
    status: int, headers: Mapping[str, str], body: str, secrets: Iterable[str] = ()
) -> ProviderError:
    """Return the error that an HTTP answer other than 2xx amounts to."""
    error = _error_in(body)
    said = _message(error) or _plain(body, headers)
    if 300 <= status < 400:
        said = f"it redirects to {headers.get('location', 'another address')}; set the base URL"
    spent = status == HTTPStatus.TOO_MANY_REQUESTS and 402 in _statuses(error)
    kind = ProviderRefused if spent else error_type(status)
    return kind(
        without(said or _phrase(status), secrets), status=status, retry_after=retry_after(headers)
    )


def failure_in_stream(error: Json, secrets: Iterable[str] = ()) -> ProviderError:
    """Return the error that an error object in the midst of an answer amounts to.

    The request had been accepted, so an error that does not say what it is is the provider's own.
    """
    found = error if isinstance(error, Mapping) else {"message": str(error)}
    status = next(iter(_statuses(found)), HTTPStatus.INTERNAL_SERVER_ERROR)
    said = _message(found) or _phrase(status)
    return error_type(status)(without(said, secrets), status=int(status))


def error_type(status: int) -> type[ProviderError]:
    """Return the kind of error that goes with a status."""
    match status:
        case 401 | 403:
            return ProviderUnauthorized
        case 429:
            return ProviderRateLimited
        case _ if status >= 500 or status in _TRY_LATER:
            return ProviderUnavailable
        case _:
            return ProviderRefused


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a provider asks us to wait; None if it does not say, or nonsense.

    A date is compared with the provider's own, so that nobody's clock has to be right.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        then = parsedate_to_datetime(headers.get("retry-after", ""))
        now = parsedate_to_datetime(headers.get("date", ""))
        return max(0.0, (then - now).total_seconds())
    except (ValueError, TypeError):
        return None


def without(text: str, secrets: Iterable[str]) -> str:
    """Return *text* without *secrets*, and no longer than a person reads."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_LEAST:
            text = text.replace(secret, "[redacted]")
    text = " ".join(text.split())
    return text if len(text) <= DETAIL_MOST else f"{text[: DETAIL_MOST - 1]}…"


# ── Where the message is ────────────────────────────────────────────────────────────────────────


def _error_in(body: str) -> JsonObject:
    """Return the object in a body that tells of the error; empty if there is none."""
    try:
        said = Event(body).json()
    except ProviderError:
        return {}
    if isinstance(said, list) and said:
        said = said[0]
    if not isinstance(said, Mapping):
        return {}
    error = said.get("error", said)
    return error if isinstance(error, Mapping) else {"message": str(error)}


def _message(error: JsonObject) -> str:
    """Return what an error says; a router may add what the server behind it said."""
    said = next((error[key] for key in ("message", "detail", "error") if error.get(key)), "")
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f"{said}: {raw}" if raw else str(said)


def _statuses(error: JsonObject) -> list[int]:
    """Return the statuses that an error's own words point to, the plainest first."""
    code = error.get("code")
    numbers = [int(code)] if isinstance(code, int | str) and str(code).isdecimal() else []
    words = [str(error.get(key)) for key in ("code", "type", "status")]
    known = [_STATUS_OF_TYPE[word.lower()] for word in words if word.lower() in _STATUS_OF_TYPE]
    return [number for number in (*numbers, *known) if 400 <= number < 600]


def _plain(body: str, headers: Mapping[str, str]) -> str:
    """Return a body that is no JSON, unless it is a page for browsers."""
    return "" if "html" in headers.get("content-type", "") else body


def _phrase(status: int) -> str:
    try:
        return f"{int(status)} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"status {status}"
