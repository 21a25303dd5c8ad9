"""What can go wrong between a client and its server, and how a refusal becomes an error again.

A server answers a refusal with a code. Where the code is that of an error in `crush_trio.errors`,
the client raises that very class, with the detail it was raised with: code that says
`except SessionBusy` works in the server's process and far away from it. Any other code comes back as
an `ApiError`, which carries it.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from crush_trio import errors
from crush_trio.errors import CrushError, DecodeError, Unavailable
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
        """What HTTP called it; 0 if no server was involved."""
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
    """The server answered with something that is not what its interface promises."""

    code = "answer_garbled"
    message = "the server's answer makes no sense"


class StreamBroken(CrushError):
    """An event stream said something that cannot be applied to what it said before."""

    code = "stream_broken"
    message = "the event stream does not fit"


class RunNotCompleted(CrushError):
    """The text of a run was wanted, and the run has ended without completing."""

    code = "run_not_completed"
    message = "the run did not complete"

    def __init__(self, detail: str = "", *, run: RunView | None = None) -> None:
        super().__init__(detail)
        self.run = run
        """How it did end."""


def _leaves(cls: type[CrushError]) -> Iterator[type[CrushError]]:
    below = [sub for sub in cls.__subclasses__() if sub.__module__ == errors.__name__]
    if not below:
        yield cls
    for sub in below:
        yield from _leaves(sub)


KNOWN: Final[Mapping[str, type[CrushError]]] = {cls.code: cls for cls in _leaves(CrushError)}
"""The errors that are raised here as they were raised there, by their code."""


def refusal(status: int, body: bytes) -> CrushError:
    """Return the error that an answer with *status* and *body* stands for."""
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
    """Return what follows the message of an error in its text."""
    return text.removeprefix(message).removeprefix(": ")


def passes(error: CrushError) -> bool:
    """Whether to try again: the server is away, busy or broken, and the request was all right."""
    if isinstance(error, ApiError):
        return error.status >= 500
    return isinstance(error, Unavailable | errors.WorkspaceClosing)
