"""Network errors, as the HTTP client raises them.

They are neutral: they say what happened, not what the request was for. Each user of `net/` turns them into errors of its
own at one place: `providers/errors.py`, `client/http.py` and `tools/web/fetch.py`.
"""

from crush_trio.errors import CrushError


class NetworkError(CrushError):
    """A request that could not be sent, or whose response could not be read."""


class BadUrl(NetworkError):
    """A text that is not a usable http:// or https:// URL; the detail says why and omits the URL."""

    code = "bad_url"
    message = "not a usable URL"


class UnsendableRequest(NetworkError):
    """A request with characters that HTTP does not allow; the detail does not repeat them."""

    code = "unsendable_request"
    message = "the request cannot be sent"


class AddressRefused(NetworkError):
    """An address check does not allow a connection to this host or address."""

    code = "address_refused"
    message = "the address is refused"


class ConnectFailed(NetworkError):
    """There is no connection, so the request was not sent.

    `reason` is the system's own text, without the address. `status` is the HTTP status of a proxy
    that refused the connection. A `permanent` failure is one of the settings: a certificate that is not
    trusted, a proxy that makes no tunnels. Another attempt would fail as well.
    """

    code = "connect_failed"
    message = "the connection failed"

    def __init__(
        self,
        detail: str = "",
        *,
        reason: str = "",
        status: int | None = None,
        permanent: bool = False,
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.status = status
        self.permanent = permanent


class ForeignSocket(NetworkError):
    """A socket found by default that is not the user's own, or a directory that is not; nothing was sent."""

    code = "foreign_socket"
    message = "the socket is not yours"


class ConnectionLost(NetworkError):
    """The connection broke or was closed before the response was complete."""

    code = "connection_lost"
    message = "the connection broke"


class NotHttp(NetworkError):
    """The server sent bytes that are not an HTTP/1.1 response."""

    code = "not_http"
    message = "this is not HTTP"


class BadEncoding(NetworkError):
    """A compressed body that is damaged or incomplete, or compressed in an unknown way."""

    code = "bad_encoding"
    message = "the compressed body cannot be read"


class ResponseTooLarge(NetworkError):
    """A response whose body has more bytes than its reader allows."""

    code = "response_too_large"
    message = "the response is too large"


class EventTooLarge(NetworkError):
    """An event of an event stream with more bytes than its reader allows."""

    code = "event_too_large"
    message = "an event is too large"
