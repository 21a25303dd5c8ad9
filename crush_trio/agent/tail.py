"""Events that outlive the program that published them.

The store remembers the newest events that nothing later says again: endings, structural changes
of messages, and facts. After a restart a reader with a cursor from before gets exactly what it
missed, if the earlier starts ended in good order; otherwise one resync, and it knows.

What is remembered of a message or a run is its name: the store has the thing itself, in its newest
state, and a reader takes any state as the newest.
"""

from collections.abc import Sequence
from typing import Protocol

import orjson
import trio
from attrs import define, field, frozen

from crush_trio.errors import MessageNotFound
from crush_trio.events.cursor import Cursor
from crush_trio.events.facts import Event, Fact, MessageChange, Position, RunChange
from crush_trio.events.forms import Entry, Form, Meter
from crush_trio.events.growing import GrowingMessage
from crush_trio.events.log import EventLog
from crush_trio.store.base import Changes, MessageReads, RunReads, TailEvent, TailReads
from crush_trio.store.changes import TailKept
from crush_trio.wire.codec import decode, wrap_change
from crush_trio.wire.events import Envelope, EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Role

KEPT = 10_000
"""How many events a store remembers unless told otherwise."""


class TailStore(MessageReads, RunReads, TailReads, Protocol):
    """What resuming needs of a store."""


@define(eq=False)
class Tail:
    """Gives the store each event to remember; satisfies `EventLog.keep`."""

    store: Changes
    kept: int = KEPT
    last: int = field(default=0, init=False)
    """The seq of the last event that was given to keep."""

    def keep(self, seq: int, event: Event) -> None:
        """Remember *event*, unless a later one will say all it says."""
        text = _remembered(event)
        if text is not None:
            terminal = isinstance(event, RunChange)
            self.store.post(
                TailKept(
                    seq=seq,
                    terminal=terminal,
                    event=text,
                    keep=self.kept,
                    previous=self.last,
                )
            )
            self.last = seq


@frozen(eq=False)
class Resumed:
    """What a reader missed before this start of the program, and its place in this one."""

    missed: tuple[Entry, ...]
    cursor: Cursor


async def resume(
    log: EventLog, store: TailStore, after: Position, form: Form | None = None
) -> Resumed:
    """Continue a reader whose cursor may be from an earlier start of the program.

    If what it missed is not certain, the cursor's first batch is a resync instead.
    """
    await trio.lowlevel.checkpoint()
    if after.boot == log.boot:
        return Resumed((), log.cursor(form, after))
    tail = await store.tail_after(after.boot, after.seq)
    if tail is None:
        return Resumed((), log.cursor(form, after))
    missed = await _recall(store, tail)
    return Resumed(missed, log.cursor(form, Position(boot=log.boot, seq=0)))


def _remembered(event: Event) -> str | None:
    match event:
        case Fact(payload_type=payload_type, encoded=encoded):
            return wrap_change(payload_type, encoded).decode()
        case MessageChange(plain=False, change=change, view=view):
            named = {"message": view.head.id, "session": view.head.session_id, "change": change}
            return orjson.dumps(named).decode()
        case RunChange(terminal=True, run=run):
            return orjson.dumps({"run": run.id}).decode()
        case _:
            return None


async def _recall(store: TailStore, tail: Sequence[TailEvent]) -> tuple[Entry, ...]:
    """Turn remembered events back into entries; of each message only its newest state."""
    await trio.lowlevel.checkpoint()
    rows = [(row, orjson.loads(row.event)) for row in tail]
    last = {named["message"]: row for row, named in rows if "message" in named}
    created = {named["message"] for _, named in rows if named.get("change") == EventType.CREATED}
    entries = []
    for row, named in rows:
        event: Event | None
        if "message" in named:
            if last[named["message"]] is not row:
                continue
            event = await _recall_message(store, named, new=named["message"] in created)
        elif "run" in named:
            event = RunChange(run=(await store.run(RunId(named["run"]))).view)
        else:
            envelope = decode(row.event, Envelope)
            event = Fact(
                payload_type=envelope.payload_type,
                change=envelope.event_type,
                entity=envelope.entity,
            )
        if event is not None:
            entries.append(Entry(row.seq, event, row.boot_id, Meter()))
    return tuple(entries)


async def _recall_message(
    store: TailStore, named: dict[str, str], *, new: bool
) -> MessageChange | None:
    """Return the newest state of a message; None if it has gone with its session."""
    await trio.lowlevel.checkpoint()
    message_id = MessageId(named["message"])
    if named["change"] == EventType.DELETED:
        gone = Message(id=message_id, role=Role.UNSET, session_id=SessionId(named["session"]))
        return MessageChange(change=EventType.DELETED, view=GrowingMessage(gone).view())
    try:
        stored = await store.message(message_id)
    except MessageNotFound:
        return None
    change = EventType.CREATED if new else EventType.UPDATED
    return MessageChange(change=change, view=GrowingMessage(stored.message).view())
