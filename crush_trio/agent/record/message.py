"""When a message in progress is written, and what its callers are told.

Plain data: no task, no clock, no store. Changes are counted. The state knows how many were made, how
many are stored, which of them a caller waits for, and whether a write is under way; what is to be done
next follows from that. Time comes in as a number.

A message belongs to its writer until it is released. From then on its run writes what is left, together
with its own ending; a write that was under way at that moment does not count any more.

From two views of a growing message to the changes that lead from one to the other.

The store is told what was appended, not what the message is: of two views of the same text only
the difference is written, so an answer of n pieces costs n writes of a piece each.
"""

from math import inf

from attrs import define, frozen

from crush_trio.events.growing_message import FixedPart, GrownPart, MessageView, PartView
from crush_trio.store.changes import Change, MessageFinished, PartPut, PartsCut, TextAppended
from crush_trio.wire.ids import MessageId


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
    """Return how many leading parts of *before* live on in *after*, changed or not."""
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
    """Return what a part needs that was *old* in the store and is *new* now."""
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


@frozen
class Write:
    """Store everything up to *version*, then publish it; *plain* if all of it is only more text."""

    version: int
    plain: bool


@frozen
class WaitUntil:
    """Wait until a time, or until something changes; `inf` is for the latter alone."""

    at: float


@frozen
class Stop:
    """The message has been released: there is nothing left to do."""


Action = Write | WaitUntil | Stop
"""What the writer of a message does next."""


@frozen
class Ticket:
    """What a caller waits for: a version, by an attempt that comes after this one."""

    version: int
    attempts: int


@frozen
class Answer:
    """What a caller is told: that it need not wait any longer, or what went wrong."""

    error: Exception | None = None


DONE = Answer()


@define(eq=False)
class MessageState:
    """The state of one message in progress; see the module.

    Unhurried writes are *pace* seconds apart, and after a failure the next one waits for *retry*.
    """

    pace: float
    retry: float
    said: int = 0
    """The changes that were made."""
    stored: int = 0
    """The changes that are stored and published."""
    structural: int = 0
    """The newest change that is not just more text."""
    demanded: int = 0
    """The newest change that a caller waits for, and has not been told to have failed."""
    writing: int | None = None
    """The version of the write under way."""
    not_before: float = -inf
    """When the next unhurried write may begin."""
    released: bool = False
    in_doubt: bool = False
    """Whether a write was under way when the message was released: nobody knows what it stored."""
    attempts: int = 0
    failure: Exception | None = None

    # ── From the turn ───────────────────────────────────────────────────────────────────────────

    def change(self, *, structural: bool = False) -> None:
        """Count one more change."""
        assert not self.released, "the message has ended"
        self.said += 1
        if structural:
            self.structural = self.said

    def demand(self) -> Ticket:
        """Have everything up to now stored without delay; return what the caller waits with."""
        self.demanded = self.said
        return Ticket(self.said, self.attempts)

    def answer(self, ticket: Ticket) -> Answer | None:
        """Return what a caller is told; None if it has to go on waiting."""
        if self.stored >= ticket.version or self.released:
            return DONE
        if self.failure is not None and self.attempts > ticket.attempts:
            return Answer(self.failure)
        return None

    def release(self) -> None:
        """Take the message from its writer."""
        if not self.released:
            self.released = True
            self.in_doubt = self.writing is not None

    # ── From the writer ─────────────────────────────────────────────────────────────────────────

    def next(self, now: float) -> Action:
        """Return what the writer is to do now."""
        if self.released:
            return Stop()
        if self.writing is not None:
            return WaitUntil(inf)
        behind = self.stored < self.said
        if now < self.not_before and not (behind and self.demanded > self.stored):
            return WaitUntil(self.not_before)
        if behind:
            return Write(self.said, plain=self.structural <= self.stored)
        return WaitUntil(inf)

    def began(self, write: Write) -> None:
        """Note that a write is under way."""
        assert self.writing is None, "one write at a time"
        self.writing = write.version

    def succeeded(self, now: float) -> bool:
        """Note that the write is stored; return whether that counts and is to be published."""
        version = self._ended()
        if self.released:
            return False
        self.stored, self.failure = version, None
        self.not_before = now + self.pace
        return True

    def failed(self, error: Exception, now: float) -> bool:
        """Note that the write has failed; return whether it is the first in a row, to be logged."""
        self._ended()
        if self.released:
            return False
        first = self.failure is None
        self.failure = error
        self.demanded = self.stored  # those who wait are told; a new demand tries again at once
        self.not_before = now + self.retry
        return first

    def _ended(self) -> int:
        assert self.writing is not None, "no write is under way"
        version, self.writing = self.writing, None
        self.attempts += 1
        return version
