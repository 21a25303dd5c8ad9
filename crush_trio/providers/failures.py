"""What failed, according to a provider's response or to an event in its stream.

Providers agree on HTTP statuses and on little else: the message is somewhere in a JSON body, or is the
body. The text is shortened and the API key is removed from it, because some providers repeat the key that
they do not accept.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import orjson

from crush_trio.config.redaction import is_secret_name
from crush_trio.providers.base import Endpoint
from crush_trio.providers.errors import (
    ProviderContextFull,
    ProviderError,
    ProviderGarbled,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
)
from crush_trio.wire.fields import Json, JsonObject

DETAIL_MOST: Final = 600
"""Characters of a provider's message that are kept."""

DIGITS_MOST: Final = 9  # of the longest number in an error that is believed
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

_WRONG_URL: Final = frozenset({404, 405, 410})
"""Statuses of a URL that is not a model's; the error names it."""

_OTHER_REASONS: Final = frozenset({401, 403, 404, 429})
"""Statuses that do not mean a conversation that is too long, whatever the text says."""

_CONTEXT_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_CONTEXT_WORDS: Final = re.compile(
    r"(?:maximum|max(?:imum)? allowed|available|model'?s?) (?:context|prompt) (?:length|size|window|limit)"
    r"|context[ _](?:length|window|size|limit)[ _]?(?:is |was )?(?:exceeded|of only)"
    r"|exceed(?:s|ed)? (?:the |its )?(?:\w+ ){0,2}context|ContextWindowExceeded"
    r"|(?:longer|greater) than the (?:maximum )?(?:context|model|model's context) length"
    r"|(?:prompt|input|request|conversation)(?: length)?(?: is| was)? too (?:long|large)"
    r"|(?:prompt|input) (?:contains|has) too many tokens|(?:input|prompt) token count.{0,40}exceeds"
    r"|number of tokens in the prompt cannot|inputs` tokens \+ `max_new|prompt exceeds max|model token limit"
    r"|(?:input|prompt|request|message)s? tokens exceeds?\b|total tokens of .{0,40}exceeds?\b"
    r"|tokens in (?:the |your )?(?:input|prompt|request|messages?) (?:exceeds?|(?:is |are )?more than)\b"
    r"|too many input tokens|input length \d+ exceeds|string too long\. expected a string"
    r"|context window exceeds|range of input length should|reduce the length of the (?:messages|prompt|input)|too large for model with",
    re.IGNORECASE,
)
"""How providers say that a conversation is too long; few of them have a code for it."""

_CONTEXT_LIMIT: Final = re.compile(
    r"(?:>|<=|cannot exceed|\[1) (\d{3,})|(\d+) maximum context|allowed \(?(\d+)"
    r"|(?:length|size) \((\d{3,}) tokens|model length of (\d{3,})"
    r"|(?:context|prompt) (?:length|size|window|limit)(?! by)[^\d>(]{0,24}(\d{3,})(?![\d ]*\+)|limit(?:ed to| of| is|:)? (\d{4,})(?![\d ]*\+)",
    re.IGNORECASE,
)


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
    status: int,
    headers: Mapping[str, str],
    body: str,
    secrets: Iterable[str] = (),
    url: str = "",
) -> ProviderError:
    """Return the error for an HTTP response other than 2xx, to a request to *url*."""
    error = _error_in(body)
    said = _message(error) or _plain(body, headers)
    if full := context_full(error, said, status, secrets):
        return full
    if 300 <= status < 400:
        said = f"it redirects to {headers.get('location', 'another address')}; set the base URL"
    if url and (status < 400 or status in _WRONG_URL):
        answer = f"{url} answered {_phrase(status)}"
        said = f"{said} ({answer})" if said else f"{answer}; check base_url"
    spent = status == HTTPStatus.TOO_MANY_REQUESTS and 402 in _statuses(error)
    kind = ProviderRefused if spent else error_type(status)
    return kind(
        without(said or _phrase(status), secrets), status=status, retry_after=retry_after(headers)
    )


def error_of(said: JsonObject) -> Json:
    """Return the error that a value in an answer reports, in any of the usual forms; None for others."""
    return said if said.get("object") == "error" else said.get("error")


def failure_in_stream(error: Json, secrets: Iterable[str] = ()) -> ProviderError:
    """Return the error for an error object in the middle of an answer.

    The request had been accepted, so an error without a known type counts as the provider's failure.
    """
    found = error if isinstance(error, Mapping) else {"message": str(error)}
    status = next(iter(_statuses(found)), HTTPStatus.INTERNAL_SERVER_ERROR)
    said = _message(found) or _phrase(status)
    if full := context_full(found, said, int(status), secrets):
        return full
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
    except (ValueError, TypeError, OverflowError):  # of a time zone that is no number of hours
        return None


def without(text: str, secrets: Iterable[str]) -> str:
    """Return *text* without *secrets*, shortened to `DETAIL_MOST` characters."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_LEAST:
            text = text.replace(secret, "[redacted]")
    text = " ".join(text.split())
    return text if len(text) <= DETAIL_MOST else f"{text[: DETAIL_MOST - 1]}…"


def secrets_of(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the values that must not appear in any error.

    A header of any name can carry a credential, so all configured ones count.
    """
    given = (*endpoint.extra_headers.values(), *_secret_texts(endpoint.extra_body))
    keys = (endpoint.api_key, *given)
    words = [key.rpartition(" ")[2] for key in keys]  # of "Bearer …", a server repeats the rest
    password = urlsplit(endpoint.base_url).password or ""
    telling = (each for each in (*given, *words) if len(each) >= SECRET_LEAST)
    return tuple(filter(None, (endpoint.api_key, *telling, password)))


def _secret_texts(value: Json, *, secret: bool = False) -> Iterator[str]:
    """Yield the texts under keys that name a secret, at any depth."""
    if isinstance(value, str) and secret:
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secret_texts(item, secret=secret or is_secret_name(str(name)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secret_texts(item, secret=secret)


def context_full(
    error: JsonObject, said: str, status: int, secrets: Iterable[str]
) -> ProviderContextFull | None:
    """Return the error if a provider says that the conversation is too long, in any spelling."""
    coded = {str(error.get(key)) for key in ("code", "type")} & _CONTEXT_CODES
    matched = status <= 500 and status not in _OTHER_REASONS and _CONTEXT_WORDS.search(said)
    if not (coded or matched):
        return None
    found = _CONTEXT_LIMIT.search(said.replace(",", ""))
    worded = next(filter(None, found.groups())) if found else ""
    window = _number(error.get("n_ctx")) or _number(worded)
    told = without(said or _phrase(status), secrets)
    return ProviderContextFull(told, status=status, window=window)


# ── Where the message is ────────────────────────────────────────────────────────────────────────


def _error_in(body: str) -> JsonObject:
    """Return the object in a body that describes the error; empty if there is none."""
    try:
        said = json_of(body)
    except ProviderError:
        return {}
    said = said[0] if isinstance(said, list) and said else said
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
    numbers = [_number(error.get("code"))]
    words = [str(error.get(key)) for key in ("code", "type", "status")]
    known = [_STATUS_OF_TYPE[word.lower()] for word in words if word.lower() in _STATUS_OF_TYPE]
    return [number for number in (*numbers, *known) if 400 <= number < 600]


def _number(said: Json) -> int:
    """Return a number of at most `DIGITS_MOST` digits, also from a text; 0 for everything else."""
    text = str(said)
    return int(text) if text.isdecimal() and len(text) <= DIGITS_MOST else 0


def _plain(body: str, headers: Mapping[str, str]) -> str:
    """Return a body that is not JSON, unless it is an HTML page."""
    return "" if "html" in headers.get("content-type", "") else body


def _phrase(status: int) -> str:
    try:
        return f"{int(status)} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"status {status}"
