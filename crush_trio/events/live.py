"""What is still going on in a workspace, as its log has told it: runs and messages that have no end.

Plain data. A message is known by the entry that showed it last.
"""

from attrs import define, field

from crush_trio.events.entry import Entry
from crush_trio.events.facts import Fact, MessageChange, Position, Resync, RunChange
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.native import RunView


@define(eq=False)
class Live:
    """Everything under way."""

    _runs: dict[RunId, RunView] = field(factory=dict, init=False)
    _messages: dict[MessageId, Entry] = field(factory=dict, init=False)

    def follow_run(self, event: RunChange) -> None:
        """Take note of a run's new state."""
        if event.terminal:
            self._runs.pop(event.run.id, None)
        else:
            self._runs[event.run.id] = event.run

    def follow_fact(self, event: Fact) -> list[Entry]:
        """Forget the open messages of a session that is deleted; no event says so one by one (J4).

        Returns the entries that show none any more.
        """
        if event.payload_type is not PayloadType.SESSION or event.change is not EventType.DELETED:
            return []
        session_id, gone = getattr(event.entity, "id", None), list[Entry]()
        for message_id, entry in list(self._messages.items()):
            assert isinstance(entry.event, MessageChange)
            if entry.event.view.head.session_id == session_id:
                gone.append(self._messages.pop(message_id))
        return gone

    def take(self, message_id: MessageId) -> Entry | None:
        """Return the entry that showed a message last, and forget it."""
        return self._messages.pop(message_id, None)

    def show(self, event: MessageChange, entry: Entry) -> None:
        """Take note that *entry* shows a message now, unless the message is over."""
        if event.change is not EventType.DELETED and not event.view.finished:
            self._messages[event.message_id] = entry

    def shows(self, entry: Entry) -> bool:
        """Whether an open message is known by *entry*."""
        event = entry.event
        return isinstance(event, MessageChange) and self._messages.get(event.message_id) is entry

    def snapshot(self, position: Position) -> Resync:
        """Return the state at *position*, which is now."""
        views = []
        for entry in self._messages.values():
            assert isinstance(entry.event, MessageChange)
            views.append(entry.event.view)
        return Resync(position=position, runs=tuple(self._runs.values()), messages=tuple(views))
