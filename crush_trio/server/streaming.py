"""How an answer becomes a stream, whichever server sends it.

The server puts what can carry a stream into the scope of each request; a route that is about to
answer with one says so here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from crush_trio.errors import BadRequest

CARRIER: Final = "crush_trio.carrier"
"""The key in the state of a request's scope under which its server leaves the `Carrier`."""

_STREAMABLE: Final = {"1.0", "1.1"}

SendNow = Callable[[bytes], int]
"""Sends what can be sent without waiting, and returns how many bytes that was.

It is for when everything before has been sent, and what it did not take has to be sent next.
"""


@runtime_checkable
class Carrier(Protocol):
    """A connection with a request on it that can be given over to a stream."""

    def begin_stream(self) -> SendNow:
        """Serve the answer that is about to start until it ends, and nothing after it."""
        ...


class StreamNeedsHttp1(BadRequest):
    """A stream was asked for over HTTP/2, where the server would buffer without limit."""

    code = "http_version_unsupported"
    message = "event streams are served over HTTP/1.1 only"


def begin_stream(scope: Mapping[str, Any]) -> SendNow:
    """Give the connection of the request *scope* over to the response that is about to start.

    The response is sent as it comes, without chunks, and its end is the end of the connection: a
    client then takes even the death of this process for the end of the stream and connects again.
    What the client still sends is thrown away, so that a request sent too early cannot hide that it
    has hung up. Call this last, when nothing but the stream can be the answer. Raises
    `StreamNeedsHttp1` for other versions; does no more than that under a server other than ours.

    Once the first piece of the response is out, what this returns sends the following ones without
    asking the framework.
    """
    version = scope["http_version"]
    if version not in _STREAMABLE:
        raise StreamNeedsHttp1(f"this request came over HTTP/{version}")
    carrier = scope.get("state", {}).get(CARRIER)
    if not isinstance(carrier, Carrier):
        return send_nothing_now
    send_now = carrier.begin_stream()
    return send_nothing_now if scope["method"] == "HEAD" else send_now


def send_nothing_now(_data: bytes) -> int:
    """Leave everything to the framework."""
    return 0
