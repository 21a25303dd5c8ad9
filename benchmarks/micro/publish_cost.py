"""Whether publishing costs more with more readers.

One log has a single parked reader, another a thousand. Both take the same updates of a growing
message, and only the calls of `publish` are timed; in between all readers read. Run it with
`python -m benchmarks.micro.publish_cost`.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio
from trio.testing import wait_all_tasks_blocked

from benchmarks.micro.timing import Ratio, report, seconds
from crush_trio.events import Cursor, Event, EventLog, GrowingMessage, MessageChange, open_event_log
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import Message, Role

READERS: Final = 1_000
EVENTS: Final = 2_000
ROUNDS: Final = 25
TARGET: Final = 2.0


def updates() -> list[Event]:
    """Return the events of one round, made beforehand so that only publishing is timed."""
    message = GrowingMessage(
        Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"))
    )
    events: list[Event] = []
    for _ in range(EVENTS):
        message.append_text("word ")
        events.append(MessageChange(change=EventType.UPDATED, view=message.view(), plain=True))
    return events


def publish_all(log: EventLog, events: Sequence[Event]) -> None:
    """Publish *events*; this is timed."""
    for event in events:
        log.publish(event)


async def read_on(cursor: Cursor) -> None:
    """Read until the log is closed."""
    async for _batch in cursor:
        pass


async def measure() -> Ratio:
    """Publish to a log with one reader and to one with many, in alternation."""
    alone: list[float] = []
    crowded: list[float] = []
    async with (
        trio.open_nursery() as nursery,
        open_event_log("alone") as quiet_log,
        open_event_log("crowded") as busy_log,
    ):
        nursery.start_soon(read_on, quiet_log.cursor())
        for _ in range(READERS):
            nursery.start_soon(read_on, busy_log.cursor())
        for _ in range(ROUNDS):
            for log, times in ((quiet_log, alone), (busy_log, crowded)):
                events = updates()
                await wait_all_tasks_blocked()  # every reader is parked
                times.append(seconds(partial(publish_all, log, events)))
    return Ratio(name="publish", small=alone, large=crowded, target=TARGET)


def main() -> int:
    """Print the cost with one and with many readers; return 1 if the ratio misses its target."""
    question = f"{EVENTS:,} calls of publish with 1 and with {READERS:,} parked readers, median:"
    return report(question, [trio.run(measure)])


if __name__ == "__main__":
    sys.exit(main())
