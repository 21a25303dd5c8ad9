"""`AuditLog`: the queue between a server and the audit file, and the task that writes it.

`AuditLog.note` never waits and never fails, so the audit cannot delay or refuse a request. One task
writes what was noted, in batches, in a thread. A disk that is full or a directory that cannot be written
is reported once, and the records wait in the queue for it to recover; past `QUEUE_MOST`, further ones
are counted as lost, and the number is written as a record of its own when writing works again.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, evolve, field

from crush_trio.audit.file import AuditFile
from crush_trio.audit.record import TEXT_MOST, Action, AuditRecord
from crush_trio.clock import Clock, SystemClock
from crush_trio.config.redaction import redact_text
from crush_trio.errors import Unavailable
from crush_trio.log_context import Hide
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.fields import timestamp

QUEUE_MOST: Final = 10_000
"""Records that may wait to be written."""

BATCH_PAUSE: Final = 0.02
"""Seconds that a prompt's record waits for others, so that writing does not delay the prompt's answer."""

RETRY_PAUSE: Final = 1.0
"""Seconds between attempts to write after one has failed."""

FLUSH_LIMIT: Final = 2.0
"""Seconds that waiting for the file may take, at the end or before a command is run."""

REFUSED_MOST: Final = 60
"""Refused requests that are recorded within `REFUSED_SPAN` seconds.

More are in the metrics only: a client without a token must not be able to push the other records out of
the files.
"""

REFUSED_SPAN: Final = 60.0

log = logging.getLogger(__name__)


_Noted = tuple[int, AuditRecord, Hide | None]
"""When a record was noted, in unix seconds; the record; and what removes the secrets of its workspace."""


class AuditUnreadable(Unavailable):
    """The files of the audit cannot be read; the detail says why."""

    code = "audit_unreadable"
    message = "the audit cannot be read"


@define(eq=False)
class AuditLog:
    """The audit of one server; without a *file*, nothing is recorded. Made by `open_audit`."""

    file: AuditFile | None = None
    clock: Clock = field(factory=SystemClock)
    written: int = field(default=0, init=False)
    """How many records were written."""
    lost: int = field(default=0, init=False)
    """How many records were dropped because the queue was full."""
    problem: str = field(default="", init=False)
    """Why the last attempt to write failed; empty if it did not."""
    _queue: list[_Noted] = field(factory=list, init=False, repr=False)
    _unreported: int = field(default=0, init=False)
    _taken: int = field(default=0, init=False)
    """How many records have left the queue."""
    _refused_since: float = field(default=0.0, init=False)
    _refused: int = field(default=0, init=False)
    _noted: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _urgent: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _tried: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    def note(self, record: AuditRecord, hide: Hide | None = None) -> None:
        """Queue *record* with the current time; secrets in its text are replaced when it is written.

        *hide* removes those that its workspace knows; it is called in a thread.
        """
        if self.file is None:
            return
        if record.action is Action.REFUSED and not self._takes_refusal():
            return
        if len(self._queue) >= QUEUE_MOST:
            self.lost += 1
            self._unreported += 1
            return
        self._queue.append((self.clock.unix(), record, hide))
        self._noted.set()
        if record.action is not Action.SENT:
            self._urgent.set()

    @property
    def waiting(self) -> int:
        """How many records have not been written yet."""
        return len(self._queue) + bool(self._unreported)

    def _takes_refusal(self) -> bool:
        now = trio.current_time()
        if not self._refused or now - self._refused_since > REFUSED_SPAN:
            self._refused_since, self._refused = now, 0
        self._refused += 1
        return self._refused <= REFUSED_MOST

    async def flush(self) -> None:
        """Wait until what was noted has been written, or could not be; `FLUSH_LIMIT` at most."""
        await trio.lowlevel.checkpoint()
        goal = self._taken + len(self._queue)
        self._urgent.set()
        with trio.move_on_after(FLUSH_LIMIT):
            while self._taken < goal and not self.problem:
                await self._tried.park()

    async def read(self, after: int | None, limit: int) -> list[AuditRecord]:
        """Return records of all servers of the user, those of this one up to now included.

        *after* and *limit* are those of `AuditFile.read`. Raises `AuditUnreadable`.
        """
        if self.file is None:
            await trio.lowlevel.checkpoint()
            return []
        await self.flush()
        try:
            return await trio.to_thread.run_sync(self.file.read, after, limit)
        except OSError as error:
            raise AuditUnreadable(f"{self.file.path}: {error.strerror or error}") from error

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────

    async def write(self) -> None:
        """Write what is noted, for ever. Run it as a task; a cancel does not lose what is queued."""
        while True:
            await self._noted.wait()
            with trio.move_on_after(BATCH_PAUSE):
                await self._urgent.wait()
            await self.write_queue()
            if self.problem:
                await trio.sleep(RETRY_PAUSE)

    async def write_queue(self) -> None:
        """Write the queue once; failures are kept in `problem`."""
        assert self.file is not None
        await trio.lowlevel.checkpoint()
        self._noted, self._urgent = trio.Event(), trio.Event()
        unreported, told = self._unreported, self._lost_records()
        batch = [*told, *self._queue]
        try:
            done = await trio.to_thread.run_sync(_append, self.file, batch)
        except OSError as error:
            done, why = 0, error.strerror or str(error)
        else:
            why = "" if done == len(batch) else "no space left on the device"
        if done:
            self._unreported -= unreported
            del self._queue[: done - len(told)]
            self._taken += done - len(told)
        self.written += done
        self._report(why)
        if self._queue:
            self._noted.set()
        self._tried.unpark_all()

    def _lost_records(self) -> list[_Noted]:
        if not self._unreported:
            return []
        what = f"{self._unreported} records could not be written"
        return [(self.clock.unix(), AuditRecord(action=Action.RECORDS_LOST, what=what), None)]

    def _report(self, why: str) -> None:
        """Note and log a change: that writing fails, or works again."""
        before, self.problem = self.problem, why
        assert self.file is not None
        if why and not before:
            log.error("audit.failed", extra={"path": str(self.file.path), "reason": why})
        elif before and not why:
            log.info("audit.recovered", extra={"lost": self.lost})


_TEXTS: Final = (
    *("client_id", "directory", "session_id", "run_id", "ask_id", "tool", "what"),
    *("token", "address"),
)
"""The fields whose text comes from clients and models, or may be long."""

_SEARCHED: Final = 4000
"""Characters of a text that are searched for secrets; the rest is dropped."""


def _append(file: AuditFile, batch: list[_Noted]) -> int:
    """Write *batch* without secrets. Runs in a thread: searching for secrets takes a moment."""
    return file.append([_cleaned(at, record, hide) for at, record, hide in batch])


def _cleaned(at: int, record: AuditRecord, hide: Hide | None) -> AuditRecord:
    texts: dict[str, Any] = {}
    for name in _TEXTS:
        text = getattr(record, name)[:_SEARCHED]
        known = text if hide is None or not text else hide(text)
        texts[name] = _short(redact_text(known) if name == "what" else known)
    return evolve(record, time=timestamp(at), **texts)


def _short(text: str) -> str:
    """Return *text* on one line, within the limit and as UTF-8 can encode it."""
    if len(text) <= TEXT_MOST and text.isascii() and text.isprintable():
        return text
    line = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()
    return line if len(line) <= TEXT_MOST else f"{line[: TEXT_MOST - 1]}…"


@asynccontextmanager
async def open_audit(path: Path | None, clock: Clock | None = None) -> AsyncIterator[AuditLog]:
    """Open the audit at *path*; leaving writes what is queued, within `FLUSH_LIMIT`.

    Without a path, nothing is recorded. Nothing is written before the first record.
    """
    if path is None:
        yield AuditLog()
        return
    audit = AuditLog(AuditFile(path), SystemClock() if clock is None else clock)
    try:
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(audit.write)
            yield audit
            nursery.cancel_scope.cancel()
    finally:
        if audit.waiting:
            with trio.move_on_after(FLUSH_LIMIT, shield=True):
                await audit.write_queue()
