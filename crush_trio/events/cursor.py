"""A reader's place in an event log, and what it reads from there.

A cursor belongs to one reader. It moves only when a batch is handed out, in the same step, so a
read that is cancelled has read nothing.
"""

from typing import TYPE_CHECKING

from attrs import define, field

from crush_trio.errors import LogClosed
from crush_trio.events.facts import Event, Resync
from crush_trio.events.forms import Entry, Form, resync_frames

if TYPE_CHECKING:
    from crush_trio.events.log import EventLog


@define(eq=False)
class Batch:
    """What one wake-up brings: entries in order.

    If the reader's place was lost, the entries are the endings it missed, and `resync` has the rest.
    """

    upto: int
    entries: tuple[Entry, ...]
    resync: Resync | None = None
    _bytes: dict[Form, bytes] = field(factory=dict, init=False, repr=False)

    @property
    def events(self) -> tuple[Event, ...]:
        """The events themselves, for readers in this process who are not too far behind to want all."""
        return tuple(entry.event for entry in self.entries if not entry.merged)

    def encode(self, form: Form) -> bytes:
        """Return all of it as one piece, to be sent with one call. Empty if *form* has no word."""
        data = self._bytes.get(form)
        if data is None:
            if self.resync is not None:
                data = resync_frames(self.resync, self.entries, form)
            else:
                data = b"".join(entry.frame(form) for entry in self.entries)
            self._bytes[form] = data
        return data


@define(eq=False)
class Cursor:
    """One reader's place. Iterating yields batches until the log is closed and read to its end."""

    _log: "EventLog"
    form: Form | None
    after: int

    @property
    def lag(self) -> int:
        """How many events were published that this reader has not read."""
        return self._log.head - max(self.after, 0)

    def take(self) -> Batch:
        """Return what there is now, without waiting; perhaps an empty batch."""
        batch = self._log.take(self.after, deltas=self.form is Form.NATIVE)
        self.after = batch.upto
        return batch

    async def read(self) -> Batch:
        """Wait for something new and return all of it; raise `LogClosed` when nothing can come."""
        await self._log.wait_beyond(self.after)
        if self.after == self._log.head:
            raise LogClosed
        return self.take()

    def __aiter__(self) -> "Cursor":
        return self

    async def __anext__(self) -> Batch:
        try:
            return await self.read()
        except LogClosed:
            raise StopAsyncIteration from None
