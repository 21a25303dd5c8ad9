"""`RecentLogs`: the log records that the tool `crush_logs` shows.

A `logging` handler that the server installs. It keeps the most recent records in
memory, bounded by number and by size. A record is shown in the workspace that it belongs to
(`log_context.py`) and in no other; one without workspace is shown in none.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from attrs import field, frozen
from typing_extensions import override

from crush_trio.config.redaction import redact_text
from crush_trio.log_context import owner_field, owner_of

MAX_RECORDS: Final = 2000
MAX_CHARACTERS: Final = 4 * 1024 * 1024
MAX_LINE_LENGTH: Final = 1024 * 1024
"""Characters of one line; longer ones are not kept."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@frozen
class LogLine:
    """One formatted record. `workspace_id` is None if it belongs to no workspace."""

    text: str = field(repr=False)
    workspace_id: str | None


class RecentLogs(logging.Handler):
    """A log handler that keeps the most recent records. Safe to use from any thread."""

    def __init__(self, *, records: int = MAX_RECORDS, size: int = MAX_CHARACTERS) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque()
        self._records = records
        self._size = size
        self._used = 0

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; called with the handler's lock held."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  # a record that cannot be formatted must not hurt its author
            self.handleError(record)
            return
        if len(text) > MAX_LINE_LENGTH:
            return
        self._lines.append(LogLine(text, owner_of(record)))
        self._used += len(text)
        while self._lines and (len(self._lines) > self._records or self._used > self._size):
            self._used -= len(self._lines.popleft().text)

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line: time, level, logger, message, extra fields, exception."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        shown = {**extra, **owner_field(record)}
        fields = "".join(f" {name}={value!r}" for name, value in sorted(shown.items()))
        failure = ""
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            failure = f" exception={trace!r}"
        message = record.getMessage().replace("\n", "\\n")
        return f"{when} {record.levelname} {record.name} {message}{fields}{failure}"

    def tail(self, count: int, *, workspace_id: str, secrets: Collection[str] = ()) -> list[str]:
        """Return the last *count* lines of a workspace, oldest first, redacted."""
        self.acquire()
        try:
            lines = tuple(self._lines)
        finally:
            self.release()
        visible = (line.text for line in reversed(lines) if line.workspace_id == workspace_id)
        return [redact_text(text, secrets=secrets) for text in islice(visible, count)][::-1]


@contextmanager
def keep_recent_logs() -> Iterator[RecentLogs]:
    """Keep the log records of this package while the block runs."""
    logs, ours = RecentLogs(), logging.getLogger("crush_trio")
    ours.addHandler(logs)
    try:
        yield logs
    finally:
        ours.removeHandler(logs)
