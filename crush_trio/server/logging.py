"""Where the log of a server goes, and in what form: one event on one line, for people or for programs.

What is logged is an event with fields (`log.info("claim.expired", extra={…})`). Here it becomes text,
and this is the last place that sees it, so secrets are taken out here: under the names of secrets, by
what secrets look like, and those that the server itself was given. That holds for both forms, for the
fields, for the message and for what an exception says.

Prompts and answers are never logged. Our own code does not do it. Libraries do, below the level of a
warning, so from them nothing below that level is taken, whatever level is asked for.

How a failure is told in a log without what the client sent.
"""

import logging
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TextIO

import orjson
from typing_extensions import override

from crush_trio.config.redaction import redact, redact_text
from crush_trio.log_context import owner_field
from crush_trio.wire.fields import Json


def places(error: BaseException) -> Iterator[str]:
    """Yield the kind and the line of code of each failure in *error*.

    Messages and tracebacks are left out: they can hold what the client sent, its token included.
    """
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from places(inner)
    else:
        trace = traceback.extract_tb(error.__traceback__)
        place = (
            f"{trace[-1].filename}:{trace[-1].lineno}" if trace else "no line: it was not raised"
        )
        yield f"{type(error).__name__} at {place}"


OWN: Final = "crush_trio"
"""The name above every logger of ours."""

_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """How a line of the log is written."""

    HUMAN = "human"
    JSON = "json"


class LogLevel(StrEnum):
    """From which level on our own events are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """The level as the standard library counts."""
        return logging.getLevelNamesMapping()[self.name]


@contextmanager
def open_log(
    form: LogFormat = LogFormat.HUMAN,
    level: LogLevel = LogLevel.INFO,
    *,
    stream: TextIO | None = None,
    secrets: Collection[str] = (),
) -> Iterator[None]:
    """Have the process log to *stream*, by default to standard error, for the length of the block.

    *secrets* are texts that are never to be written, such as the server's own token. This is for
    programs that are a server. One that embeds a server has a log of its own, and gives its handlers
    a `formatter` from here if it likes.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(formatter(form, secrets=secrets))
    root, own = logging.getLogger(), logging.getLogger(OWN)
    before = root.level, own.level
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, level.number))
    own.setLevel(level.number)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before[0])
        own.setLevel(before[1])


def formatter(form: LogFormat, *, secrets: Collection[str] = ()) -> "EventFormatter":
    """Return what writes the lines of a log in *form*, without *secrets*."""
    return JsonFormatter(secrets) if form is LogFormat.JSON else HumanFormatter(secrets)


class EventFormatter(logging.Formatter):
    """What both forms share: the parts of an event, with nothing secret left in them."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        super().__init__()
        self._secrets = frozenset(secrets)

    def event(self, record: logging.LogRecord) -> str:
        """Return the name of the event; a library's message stands in its place."""
        return self._text(record.getMessage())

    def fields(self, record: logging.LogRecord) -> dict[str, Json]:
        """Return what the event is about, as plain values; whose it is comes last."""
        own = {name: _plain(each) for name, each in vars(record).items() if name not in _PLAIN}
        return dict(redact({**own, **owner_field(record)}, secrets=self._secrets))

    def exception(self, record: logging.LogRecord) -> str:
        """Return the traceback and the stack that came with the event; mostly there is none."""
        told = []
        if record.exc_info:
            told.append(self.formatException(record.exc_info))
        if record.stack_info:
            told.append(self.formatStack(record.stack_info))
        return self._text("\n".join(told))

    def _text(self, text: str) -> str:
        return redact_text(_encodable(text), secrets=self._secrets)


class HumanFormatter(EventFormatter):
    """Writes when, how bad, the event, and its fields; a traceback follows on lines of its own."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the line. Values are quoted, so that none can pass for a line of its own."""
        fields = "".join(f" {name}={value!r}" for name, value in self.fields(record).items())
        event = self.event(record).replace("\n", r"\n").replace("\r", r"\r")
        line = f"{_time(record)} {record.levelname} {event}{fields}"
        exception = self.exception(record)
        return f"{line}\n{exception}" if exception else line


class JsonFormatter(EventFormatter):
    """Writes one JSON object: `time`, `level`, `event`, `logger`, `fields`, and `exception` if any."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line."""
        told: dict[str, Json] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": self.event(record),
            "logger": record.name,
            "fields": self.fields(record),
        }
        if exception := self.exception(record):
            told["exception"] = exception
        return orjson.dumps(told).decode()


def _time(record: logging.LogRecord) -> str:
    """Return when the event was logged, as RFC 3339 has it, in UTC and to the millisecond."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> Json:
    """Return a field as JSON can hold it; what is no plain value is told in its own words."""
    match value:
        case None | bool() | float():
            return value
        case int() if abs(value) < 2**53:
            return value
        case Mapping():
            return {_encodable(str(key)): _plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(each) for each in value]
        case _:
            return _encodable(str(value))


def _encodable(text: str) -> str:
    """Return *text* with whatever UTF-8 cannot hold written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()
