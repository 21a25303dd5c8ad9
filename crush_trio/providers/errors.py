"""What can go wrong between an agent and its model, translated once, at this seam.

Nothing above sees an error of a socket or of a format. `title` is the short text for people, the
detail what the provider itself said. `retryable` errors are worth another attempt, after
`retry_after` seconds if the provider named a time.
"""

from typing import ClassVar

from crush_trio.errors import CrushError


class ProviderError(CrushError):
    """A model could not be asked, or did not answer. `status` is HTTP's, if there was an answer."""

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
    """The provider has trouble of its own (5xx, overloaded)."""

    code = "provider_unavailable"
    message = "the model provider is not available"
    title = "Service Unavailable"
    retryable = True


class ProviderUnreachable(ProviderError):
    """No connection, or one that broke."""

    code = "provider_unreachable"
    message = "the model provider could not be reached"
    title = "Network Error"
    retryable = True


class ProviderRefused(ProviderError):
    """The provider does not want this request (other 4xx): asking again would not help."""

    code = "provider_refused"
    message = "the model provider refused the request"
    title = "Bad Request"


class ProviderTooSlow(ProviderError):
    """A deadline passed: for the first part, between two parts, or for the whole answer.

    Silence is worth one more attempt, and whoever waits decides that: every attempt costs as much
    patience as the first.
    """

    code = "provider_too_slow"
    message = "the model did not answer in time"
    title = "Timed Out"


class ProviderGarbled(ProviderError):
    """The answer was cut off, or is not what the provider's own format says."""

    code = "provider_garbled"
    message = "the model provider sent an answer that makes no sense"
    title = "Broken Answer"
    retryable = True


class ProviderUnsupported(ProviderError):
    """Nothing here speaks the language of this type of provider, or the type is unknown."""

    code = "provider_unsupported"
    message = "this type of provider is not supported"
    title = "Not Supported"
