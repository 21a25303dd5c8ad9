"""Errors of the client: of the network, of the event stream, and refusals of the server.

A server answers a refusal with a code. Where the code is that of an error in `crush_trio.errors`, the
client raises the same class, with the same detail: `except SessionBusy` works in the server's process and
in a client's. Any other code becomes an `ApiError`, which carries it.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from crush_trio import errors
from crush_trio.errors import CrushError, DecodeError, Unavailable
from crush_trio.net.address import Address
from crush_trio.net.errors import BadEncoding, ConnectFailed, NetworkError, ResponseTooLarge
from crush_trio.wire.codec import decode
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import ErrorBody


class ApiError(CrushError):
    """The server refused, with a code that has no class of its own on this side."""

    code = "api_error"
    message = "the server refused the request"

    def __init__(self, detail: str = "", *, code: str = "", status: int = 0) -> None:
        super().__init__(detail)
        self.status = status
        """The HTTP status; 0 if no server was involved."""
        if code:
            self.code = code  # type: ignore[misc]  # the class has a code, each error the server's
            self.args = (detail,)


class NoAnswer(Unavailable):
    """The server did not answer; the same request may be answered later."""


class ServerUnreachable(NoAnswer):
    """There was no connection, so the server has not seen the request."""

    code = "server_unreachable"
    message = "cannot reach the server"


class AnswerLost(NoAnswer):
    """The connection broke before the answer was complete; the request may have been carried out."""

    code = "answer_lost"
    message = "the connection to the server broke"


class AnswerGarbled(CrushError):
    """The server's answer does not have the form that its interface promises."""

    code = "answer_garbled"
    message = "the server's answer makes no sense"


class StreamBroken(CrushError):
    """An event of the stream cannot be applied to the state that earlier events built."""

    code = "stream_broken"
    message = "the event stream does not fit"


class RunNotCompleted(CrushError):
    """The text of a run was asked for, and the run ended without completing."""

    code = "run_not_completed"
    message = "the run did not complete"

    def __init__(self, detail: str = "", *, run: RunView | None = None) -> None:
        super().__init__(detail)
        self.run = run
        """The run as it ended."""


def _leaves(cls: type[CrushError]) -> Iterator[type[CrushError]]:
    below = [sub for sub in cls.__subclasses__() if sub.__module__ == errors.__name__]
    if not below:
        yield cls
    for sub in below:
        yield from _leaves(sub)


KNOWN: Final[Mapping[str, type[CrushError]]] = {cls.code: cls for cls in _leaves(CrushError)}
"""The errors that the client raises as the server raised them, by code."""


def refusal(status: int, body: bytes) -> CrushError:
    """Return the error for a response with *status* and *body*."""
    try:
        told = decode(body, ErrorBody)
    except DecodeError:
        told = ErrorBody(message=body[:200].decode(errors="replace").strip())
    known = KNOWN.get(told.code)
    if known is not None:
        return known(_detail(told.message, known.message))
    text = told.message or f"HTTP status {status}"
    return ApiError(text, code=told.code or f"http_{status}", status=status)


def _detail(text: str, message: str) -> str:
    """Return the detail in the text of an error: what follows its message."""
    return text.removeprefix(message).removeprefix(": ")


def passes(error: CrushError) -> bool:
    """Whether to try again: the server is away, busy or broken, and the request was valid."""
    if isinstance(error, ApiError):
        return error.status >= 500
    return isinstance(error, Unavailable | errors.WorkspaceClosing)


@contextmanager
def translated(address: Address, advice: str) -> Generator[None]:
    """Turn the network errors of a block into errors of the client.

    *advice* tells the user what to do if nothing answers at *address*.
    """
    try:
        yield
    except ConnectFailed as exc:
        reason = f" ({exc.reason})" if exc.reason else ""
        raise ServerUnreachable(f"nothing answers at {address}{reason}; {advice}") from exc
    except (BadEncoding, ResponseTooLarge) as exc:
        raise AnswerGarbled(exc.detail) from exc
    except NetworkError as exc:
        raise AnswerLost(exc.detail or type(exc).__name__) from exc
