"""Provider errors: their classes, and which of them an error of the network is.

Nothing above the providers sees an error of a socket or of a format. `title` is the short text for people,
the detail what the provider itself said. `retryable` errors are worth another attempt, after `retry_after`
seconds if the provider named a time. `providers.failures` reads them from responses and events.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import ClassVar

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


class ProviderUnconnectable(ProviderError):
    """The settings allow no connection: a certificate, a proxy. Another attempt would fail as well."""

    code = "provider_unconnectable"
    message = "there is no way to connect to the model provider"
    title = "Network Error"


class ProviderRefused(ProviderError):
    """The provider rejects the request (other 4xx); the same request would be rejected again."""

    code = "provider_refused"
    message = "the model provider refused the request"
    title = "Bad Request"


class ProviderContextFull(ProviderError):
    """The conversation has more tokens than the model can read. `window` is the limit, if it is named."""

    code = "provider_context_full"
    message = "the conversation is longer than the model can read"
    title = "Conversation Too Long"

    def __init__(
        self,
        detail: str = "",
        *,
        status: int | None = None,
        retry_after: float | None = None,
        window: int = 0,
    ) -> None:
        super().__init__(detail, status=status, retry_after=retry_after)
        self.window = window


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


class ProviderUnreadable(ProviderError):
    """The answer is empty, too large, or compressed in an unknown way. The next would be the same."""

    code = "provider_unreadable"
    message = "the model provider sent an answer that cannot be read"
    title = "Unreadable Answer"


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
        case ConnectFailed(permanent=True):
            return ProviderUnconnectable(exc.detail, status=exc.status)
        case ConnectFailed():
            return ProviderUnreachable(exc.detail, status=exc.status)
        case ConnectionLost():
            return ProviderUnreachable(exc.detail)
        case BadEncoding() | ResponseTooLarge() | EventTooLarge():
            return ProviderUnreadable(str(exc))
        case NotHttp():
            return ProviderGarbled(str(exc))
        case BadUrl():
            return ProviderRefused("the base URL is not one of http:// or https:// with a host")
        case _:
            return ProviderRefused(exc.detail)
