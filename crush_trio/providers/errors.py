"""Provider errors: their classes, and what a response, an event or the network makes of them.

Nothing above the providers sees an error of a socket or of a format. `title` is the short text for people,
the detail what the provider itself said. `retryable` errors are worth another attempt, after `retry_after`
seconds if the provider named a time.

Providers agree on HTTP statuses and on little else: the message is somewhere in a JSON body, or is the
body. The text is shortened and the API key is removed from it, because some providers repeat the key that
they do not accept.
"""

import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import ClassVar, Final

import orjson

from crush_trio.errors import CrushError
from crush_trio.net.errors import (
    BadEncoding,
    BadUrl,
    ConnectFailed,
    ConnectionLost,
    EventTooLarge,
    NetworkError,
    NotHttp,
    ResponseTooLarge,
    UnsendableRequest,
)
from crush_trio.wire.fields import Json, JsonObject

DETAIL_MOST: Final = 600
"""Characters of a provider's message that are kept."""

SECRET_LEAST: Final = 4
"""Characters of the shortest key that is removed from texts; shorter ones also occur in plain words."""

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
"""The HTTP status that an error's type or code stands for, in events and in bodies."""

_TRY_LATER: Final = frozenset({408, 409, 425})


class ProviderError(CrushError):
    """A model call that failed. `status` is the HTTP status, if there was a response."""

    title: ClassVar[str] = "Provider Error"
    retryable: ClassVar[bool] = False

    def __init__(
        self, detail: str = "", *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.retry_after = retry_after


class ProviderUnauthorized(ProviderError):
    """The key is missing, wrong or revoked (401, 403)."""

    code = "provider_unauthorized"
    message = "the model provider does not accept the API key"
    title = "Unauthorized"


class ProviderRateLimited(ProviderError):
    """Too many requests (429)."""

    code = "provider_rate_limited"
    message = "the model provider asks for fewer requests"
    title = "Too Many Requests"
    retryable = True


class ProviderUnavailable(ProviderError):
    """The provider failed or is overloaded (5xx)."""

    code = "provider_unavailable"
    message = "the model provider is not available"
    title = "Service Unavailable"
    retryable = True


class ProviderUnreachable(ProviderError):
    """There was no connection, or it broke."""

    code = "provider_unreachable"
    message = "the model provider could not be reached"
    title = "Network Error"
    retryable = True


class ProviderRefused(ProviderError):
    """The provider rejects the request (other 4xx); the same request would be rejected again."""

    code = "provider_refused"
    message = "the model provider refused the request"
    title = "Bad Request"


class ProviderTooSlow(ProviderError):
    """A deadline passed: for the first part, between two parts, or for the whole answer.

    `call.py` decides whether to try again: every attempt may wait as long as the first.
    """

    code = "provider_too_slow"
    message = "the model did not answer in time"
    title = "Timed Out"


class ProviderGarbled(ProviderError):
    """The answer was cut off, or does not follow the provider's own format."""

    code = "provider_garbled"
    message = "the model provider sent an answer that makes no sense"
    title = "Broken Answer"
    retryable = True


class ProviderUnsupported(ProviderError):
    """There is no provider for this type, or the type is unknown."""

    code = "provider_unsupported"
    message = "this type of provider is not supported"
    title = "Not Supported"


# ── Errors of the network ───────────────────────────────────────────────────────────────────────


@contextmanager
def translated() -> Generator[None]:
    """Turn the network errors of a block into provider errors."""
    try:
        yield
    except UnsendableRequest as exc:
        raise translation(exc) from None
    except NetworkError as exc:
        raise translation(exc) from exc


def translation(exc: NetworkError) -> ProviderError:
    """Return the provider error that a network error amounts to."""
    match exc:
        case ConnectFailed():
            return ProviderUnreachable(exc.detail, status=exc.status)
        case ConnectionLost():
            return ProviderUnreachable(exc.detail)
        case NotHttp() | BadEncoding() | ResponseTooLarge() | EventTooLarge():
            return ProviderGarbled(str(exc))
        case BadUrl():
            return ProviderRefused("the base URL is not one of http:// or https:// with a host")
        case _:
            return ProviderRefused(exc.detail)


# ── Errors in responses and events ──────────────────────────────────────────────────────────────


def json_of(data: bytes | str) -> Json:
    """Return *data* parsed as JSON; raises `ProviderGarbled`.

    orjson is fast and strict. The standard library also accepts what some servers send: half of a
    surrogate pair, or NaN.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ProviderGarbled(f"no JSON: {text[:80]!r}") from exc


def failure(
    status: int, headers: Mapping[str, str], body: str, secrets: Iterable[str] = ()
) -> ProviderError:
    """Return the error for an HTTP response other than 2xx."""
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
    """Return the error for an error object in the middle of an answer.

    The request had been accepted, so an error without a known type counts as the provider's failure.
    """
    found = error if isinstance(error, Mapping) else {"message": str(error)}
    status = next(iter(_statuses(found)), HTTPStatus.INTERNAL_SERVER_ERROR)
    said = _message(found) or _phrase(status)
    return error_type(status)(without(said, secrets), status=int(status))


def error_type(status: int) -> type[ProviderError]:
    """Return the error class for an HTTP status."""
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
    """Return the seconds that a provider asks us to wait, None if it names no valid time.

    A date is compared with the provider's own `Date` header, so that our clock need not be right.
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
    """Return *text* without *secrets*, shortened to `DETAIL_MOST` characters."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_LEAST:
            text = text.replace(secret, "[redacted]")
    text = " ".join(text.split())
    return text if len(text) <= DETAIL_MOST else f"{text[: DETAIL_MOST - 1]}…"


# ── Where the message is ────────────────────────────────────────────────────────────────────────


def _error_in(body: str) -> JsonObject:
    """Return the object in a body that describes the error; empty if there is none."""
    try:
        said = json_of(body)
    except ProviderError:
        return {}
    if isinstance(said, list) and said:
        said = said[0]
    if not isinstance(said, Mapping):
        return {}
    error = said.get("error", said)
    return error if isinstance(error, Mapping) else {"message": str(error)}


def _message(error: JsonObject) -> str:
    """Return the message of an error; a router may add that of the server behind it."""
    said = next((error[key] for key in ("message", "detail", "error") if error.get(key)), "")
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    return f"{said}: {raw}" if raw else str(said)


def _statuses(error: JsonObject) -> list[int]:
    """Return the statuses that an error's code and type stand for, a number first."""
    code = error.get("code")
    numbers = [int(code)] if isinstance(code, int | str) and str(code).isdecimal() else []
    words = [str(error.get(key)) for key in ("code", "type", "status")]
    known = [_STATUS_OF_TYPE[word.lower()] for word in words if word.lower() in _STATUS_OF_TYPE]
    return [number for number in (*numbers, *known) if 400 <= number < 600]


def _plain(body: str, headers: Mapping[str, str]) -> str:
    """Return a body that is not JSON, unless it is an HTML page."""
    return "" if "html" in headers.get("content-type", "") else body


def _phrase(status: int) -> str:
    try:
        return f"{int(status)} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"status {status}"
