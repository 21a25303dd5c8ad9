"""The server's log: handlers and formats, one event per line, for people or for programs.

A log record is an event with fields (`log.info("claim.expired", extra={…})`). The formatters here turn it
into text, and remove secrets: by the names of fields, by what secrets look like, those that the server
itself was given, and those that the record's workspace knows. That holds for both formats, for the fields, the message and the exception.

Prompts and answers are never logged. Our own code does not do it. Libraries do, below the level of a
warning, so nothing below that level is taken from them, whatever level is asked for. `places` describes
a failure without what the client sent.
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

from crush_trio.config.redaction import map_text, redact, redact_text
from crush_trio.log_context import hide_secrets, owner_field
from crush_trio.tools.recent_logs import RecentLogs, keep_recent_logs
from crush_trio.wire.fields import Json


def places(error: BaseException) -> Iterator[str]:
    """Yield the class and the line of code of each exception in *error*.

    Messages and tracebacks are left out: they can contain what the client sent, its token included.
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
"""The parent of all our loggers."""

_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    """The format of a log line."""

    HUMAN = "human"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level at which our own events are logged."""

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
    """Log to *stream*, by default to standard error, for the length of the block.

    *secrets* are texts that must never be written, such as the server's own token. This is for
    programs that are only a server. A program that embeds a server configures logging itself, and may
    give its handlers a `formatter` from here.
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


@contextmanager
def keep_logs(secrets: Collection[str] = ()) -> Iterator[RecentLogs]:
    """Keep recent records for the tool `crush_logs`; write warnings to standard error if nothing else does.

    Python writes warnings and errors to standard error where a program has configured no handler
    (`logging.lastResort`). The handler that keeps the records would switch that off, so a second one takes
    its place. It writes nothing if the program has a handler of its own.
    """
    fallback, own = FallbackHandler(secrets), logging.getLogger(OWN)
    with keep_recent_logs() as logs:
        own.addHandler(fallback)
        try:
            yield logs
        finally:
            own.removeHandler(fallback)


class FallbackHandler(logging.Handler):
    """Writes warnings and errors to standard error while only handlers of this package would get them."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(HumanFormatter(secrets))

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless the program's own handlers do or another server's fallback does."""
        if logging.lastResort is None or _fallback_of(record.name) is not self:
            return
        try:
            print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201
        except Exception:  # noqa: BLE001  # a record that cannot be written must not hurt its author
            self.handleError(record)


def _fallback_of(name: str) -> FallbackHandler | None:
    """Return the handler that writes the records of a logger; None if the program has one of its own."""
    first, logger = None, logging.getLogger(name)
    while True:
        for handler in logger.handlers:
            if isinstance(handler, FallbackHandler):
                first = first or handler
            elif not isinstance(handler, RecentLogs):
                return None
        if logger.parent is None or not logger.propagate:
            return first
        logger = logger.parent


def formatter(form: LogFormat, *, secrets: Collection[str] = ()) -> "EventFormatter":
    """Return a formatter that writes lines in *form*, without *secrets*."""
    return JsonFormatter(secrets) if form is LogFormat.JSON else HumanFormatter(secrets)


class EventFormatter(logging.Formatter):
    """What both formats share: the parts of an event, with secrets removed."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        super().__init__()
        self._secrets = frozenset(secrets)

    def event(self, record: logging.LogRecord) -> str:
        """Return the name of the event; for a library, its message.

        Some of our messages go on with a sentence, for programs that format records themselves. Here the
        fields say the same.
        """
        if record.args and record.name.partition(".")[0] == OWN:
            return str(record.msg).partition(": ")[0]
        return self._text(record.getMessage())

    def fields(self, record: logging.LogRecord) -> dict[str, Json]:
        """Return the fields of the event as plain values; its workspace comes last."""
        own = {name: _plain(each) for name, each in vars(record).items() if name not in _PLAIN}
        shown = redact({**own, **owner_field(record)}, secrets=self._secrets)
        return dict(map_text(shown, hide_secrets))

    def exception(self, record: logging.LogRecord) -> str:
        """Return the traceback and the stack of the event, if it has any."""
        told = []
        if record.exc_info:
            told.append(self.formatException(record.exc_info))
        if record.stack_info:
            told.append(self.formatStack(record.stack_info))
        return self._text("\n".join(told))

    def _text(self, text: str) -> str:
        return hide_secrets(redact_text(_encodable(text), secrets=self._secrets))


class HumanFormatter(EventFormatter):
    """Writes time, level, event and fields; a traceback follows on lines of its own."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return the line. Values are quoted, so that none can look like a line of its own."""
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
    """Return the time of the event in RFC 3339 form, in UTC, to the millisecond."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> Json:
    """Return a field as JSON can hold it; any other value as its text."""
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
    """Return *text* with characters that UTF-8 cannot encode written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
