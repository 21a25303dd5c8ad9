"""Whether a long answer costs more per piece than a short one.

An answer arrives in small pieces. After each the message is published, and every few pieces a
reader takes what there is and encodes it, as a stream paced at some thirty frames a second does.
Ten times the pieces should cost ten times as much. The native form promises that; the crush form
sends the whole message each time, so its cost grows faster by design; it is printed without a
target. Run it with `python -m benchmarks.micro.growing_message`.
"""

import sys
from functools import partial
from typing import Final

from benchmarks.micro.timing import Ratio, report, seconds
from crush_trio.events import EventLog, Form, GrowingMessage, MessageChange
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role

SHORT: Final = 1_000
LONG: Final = 10_000
PIECES_PER_READ: Final = 6
ROUNDS: Final = 9
TARGETS: Final = {Form.NATIVE: 12.0, Form.CRUSH: None}


def stream(pieces: int, form: Form) -> int:
    """Write an answer of *pieces*, publish and read it; return the bytes that were sent."""
    log = EventLog("benchmark")
    reader = log.cursor(form)
    message = GrowingMessage(
        Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"))
    )
    log.publish(MessageChange(change=EventType.CREATED, view=message.view()))
    sent = 0
    for piece in range(pieces):
        message.append_text("word ")
        log.publish(MessageChange(change=EventType.UPDATED, view=message.view(), plain=True))
        if piece % PIECES_PER_READ == 0:
            sent += len(reader.take().encode(form))
    message.put(FinishPart(reason=FinishReason.END_TURN, time=1))
    log.publish(MessageChange(change=EventType.UPDATED, view=message.view()))
    return sent + len(reader.take().encode(form))


def measure(form: Form) -> Ratio:
    """Time one long answer and as many short ones as are as long together, in alternation."""
    many = LONG // SHORT

    def short_answers() -> None:
        for _ in range(many):
            stream(SHORT, form)

    short, long = [], []
    for _ in range(ROUNDS):
        short.append(seconds(short_answers) / many)
        long.append(seconds(partial(stream, LONG, form)))
    return Ratio(name=form.value, small=short, large=long, target=TARGETS[form])


def main() -> int:
    """Print the costs in both forms; return 1 if the native ratio misses its target."""
    question = (
        f"append, publish, read and encode an answer of {SHORT:,} and of {LONG:,} pieces, "
        f"one read per {PIECES_PER_READ} pieces, median:"
    )
    return report(question, [measure(form) for form in (Form.NATIVE, Form.CRUSH)])


if __name__ == "__main__":
    sys.exit(main())
