"""`MessageState`: decides when a message in progress is written. `changes_between`: what is written.

No task, no clock, no store. Changes are counted: the state knows how many were made, how many are stored,
which of them a caller waits for, and whether a write is in progress. From that follows the next action.
The current time is passed in.

A message belongs to its writer until it is released. From then on its run writes the rest, together with
its own ending; the result of a write that was in progress at that moment is ignored.

Only the difference between two views of a message is written, so an answer of n pieces costs n writes of
one piece each, not of the whole text.
"""

from math import inf

from attrs import define, frozen

from crush_trio.events.growing_message import FixedPart, GrownPart, MessageView, PartView
from crush_trio.store.changes import Change, MessageFinished, PartPut, PartsCut, TextAppended
from crush_trio.wire.ids import MessageId


@frozen
class Write:
    """Store everything up to *version*, then publish it; *plain* if only text was appended."""

    version: int
    plain: bool


@frozen
class WaitUntil:
    """Wait until a time, or until something changes; `inf` means only the latter."""

    at: float


@frozen
class Stop:
    """The message has been released: the writer ends."""


WriterAction = Write | WaitUntil | Stop
"""The next action of a message's writer."""


@frozen
class WriteTicket:
    """What a caller waits for: that a version is stored, by an attempt after number *attempts*."""

    version: int
    attempts: int


@frozen
class TicketResult:
    """The end of a caller's wait: success, or the error of the write."""

    error: Exception | None = None


DONE = TicketResult()


@define(eq=False)
class MessageState:
    """The state of one message in progress.

    Writes that no caller waits for are *pace* seconds apart; after a failure the next waits *retry*.
    """

    pace: float
    retry: float
    version: int = 0
    """The number of changes made."""
    stored: int = 0
    """The version that is stored and published."""
    structural: int = 0
    """The version of the newest change that did more than append text."""
    demanded: int = 0
    """The newest version that a caller waits for and whose write has not failed."""
    writing: int | None = None
    """The version of the write in progress."""
    not_before: float = -inf
    """When the next write may begin that no caller waits for."""
    released: bool = False
    in_doubt: bool = False
    """Whether a write was in progress at the release, so that what it stored is unknown."""
    attempts: int = 0
    failure: Exception | None = None

    # ── For the turn ────────────────────────────────────────────────────────────────────────────

    def change(self, *, structural: bool = False) -> None:
        """Count one more change."""
        assert not self.released, "the message has ended"
        self.version += 1
        if structural:
            self.structural = self.version

    def demand(self) -> WriteTicket:
        """Request a write of everything up to now without delay; return a ticket to wait with."""
        self.demanded = self.version
        return WriteTicket(self.version, self.attempts)

    def answer(self, ticket: WriteTicket) -> TicketResult | None:
        """Return the result for a ticket; None if its caller must keep waiting."""
        if self.stored >= ticket.version or self.released:
            return DONE
        if self.failure is not None and self.attempts > ticket.attempts:
            return TicketResult(self.failure)
        return None

    def release(self) -> None:
        """Release the message from its writer."""
        if not self.released:
            self.released = True
            self.in_doubt = self.writing is not None

    # ── For the writer ──────────────────────────────────────────────────────────────────────────

    def next(self, now: float) -> WriterAction:
        """Return the writer's next action."""
        if self.released:
            return Stop()
        if self.writing is not None:
            return WaitUntil(inf)
        behind = self.stored < self.version
        if now < self.not_before and not (behind and self.demanded > self.stored):
            return WaitUntil(self.not_before)
        if behind:
            return Write(self.version, plain=self.structural <= self.stored)
        return WaitUntil(inf)

    def began(self, write: Write) -> None:
        """Record that a write has begun."""
        assert self.writing is None, "one write at a time"
        self.writing = write.version

    def succeeded(self, now: float) -> bool:
        """Record that the write is stored; return whether to publish it (not after a release)."""
        version = self._ended()
        if self.released:
            return False
        self.stored, self.failure = version, None
        self.not_before = now + self.pace
        return True

    def failed(self, error: Exception, now: float) -> bool:
        """Record that the write failed; return whether it is the first failure in a row, to log it."""
        self._ended()
        if self.released:
            return False
        first = self.failure is None
        self.failure = error
        self.demanded = self.stored  # waiting callers get the error; a new demand retries at once
        self.not_before = now + self.retry
        return first

    def _ended(self) -> int:
        assert self.writing is not None, "no write is under way"
        version, self.writing = self.writing, None
        self.attempts += 1
        return version


def changes_between(before: MessageView, after: MessageView, at: int) -> list[Change]:
    """Return the changes that turn the stored message *before* into *after*."""
    message_id = after.head.id
    kept = _kept(before.parts, after.parts)
    changes: list[Change] = []
    if kept < len(before.parts):
        changes.append(PartsCut(message_id=message_id, length=kept, at=at))
    for index, view in enumerate(after.parts):
        old = before.parts[index] if index < kept else None
        changes.extend(_part_changes(message_id, index, old, view, at))
    if after.finished and not before.finished:
        changes.append(MessageFinished(message_id=message_id, at=at))
    return changes


def _kept(before: tuple[PartView, ...], after: tuple[PartView, ...]) -> int:
    """Return how many leading parts of *before* are still in *after*, changed or not."""
    for index, (old, new) in enumerate(zip(before, after, strict=False)):
        if isinstance(old, GrownPart) and isinstance(new, GrownPart):
            if old.cut.source is not new.cut.source:
                return index
        elif type(old) is not type(new):
            return index
    return min(len(before), len(after))


def _part_changes(
    message_id: MessageId, index: int, old: PartView | None, new: PartView, at: int
) -> list[Change]:
    """Return the changes that turn the stored part *old* into *new*."""
    if new is old:
        return []
    if isinstance(new, FixedPart):
        return [PartPut(message_id=message_id, index=index, part=new.part, at=at)]
    known = old if isinstance(old, GrownPart) else None
    changes: list[Change] = []
    if known is None or known.blank is not new.blank:
        changes.append(PartPut(message_id=message_id, index=index, part=new.blank, at=at))
    text = new.cut.text(known.cut if known is not None else None)
    if text:
        changes.append(TextAppended(message_id=message_id, index=index, text=text, at=at))
    return changes
