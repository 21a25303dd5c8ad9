"""The last things the process logged, kept in memory for whoever looks for a fault.

`RecentLogs` is a `logging` handler that the server installs. It is bounded by count and by bytes, and
what is too long to be useful is not kept. A record that belongs to a workspace (`logging_context.py`)
is shown to nobody else; one that does not is about the process as a whole.
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
from crush_trio.logging_context import owner_field, owner_of

RECORDS: Final = 2000
SIZE: Final = 4 * 1024 * 1024
LONGEST: Final = 1024 * 1024
"""Characters of one line; a longer one is skipped."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@frozen
class Line:
    """One record, as it is shown. `workspace_id` is None if it belongs to no workspace."""

    text: str = field(repr=False)
    workspace_id: str | None


class RecentLogs(logging.Handler):
    """Keeps the most recent records. Safe to use from any thread."""

    def __init__(self, *, records: int = RECORDS, size: int = SIZE) -> None:
        super().__init__()
        self._lines: deque[Line] = deque()
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
        if len(text) > LONGEST:
            return
        self._lines.append(Line(text, owner_of(record)))
        self._used += len(text)
        while self._lines and (len(self._lines) > self._records or self._used > self._size):
            self._used -= len(self._lines.popleft().text)

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line: when, how serious, where, what, and the extra fields."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        told = {**extra, **owner_field(record)}
        fields = "".join(f" {name}={value!r}" for name, value in sorted(told.items()))
        failure = ""
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            failure = f" exception={trace!r}"
        message = record.getMessage().replace("\n", "\\n")
        return f"{when} {record.levelname} {record.name} {message}{fields}{failure}"

    def tail(
        self, count: int, *, workspace_id: str | None, secrets: Collection[str] = ()
    ) -> list[str]:
        """Return the last *count* lines that this workspace may see, oldest first, without secrets."""
        self.acquire()
        try:
            lines = tuple(self._lines)
        finally:
            self.release()
        visible = (
            line.text for line in reversed(lines) if line.workspace_id in {None, workspace_id}
        )
        return [redact_text(text, secrets=secrets) for text in islice(visible, count)][::-1]


@contextmanager
def keeping_logs() -> Iterator[RecentLogs]:
    """Keep what this package logs, for the length of the block."""
    logs, ours = RecentLogs(), logging.getLogger("crush_trio")
    ours.addHandler(logs)
    try:
        yield logs
    finally:
        ours.removeHandler(logs)
