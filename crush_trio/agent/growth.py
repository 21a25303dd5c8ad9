"""From two views of a growing message to the changes that lead from one to the other.

The store is told what was appended, not what the message is: of two views of the same text only
the difference is written, so an answer of n pieces costs n writes of a piece each.
"""

from crush_trio.events.growing import FixedPart, GrownPart, MessageView, PartView
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
