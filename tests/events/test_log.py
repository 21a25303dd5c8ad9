"""The log itself: order, compaction, what is kept and what a reader who lost its place is told.

How readers wait and wake is in `test_log_waking.py`.
"""

import pytest

from crush_trio.events import (
    EventLog,
    Fact,
    Form,
    GrowingMessage,
    MessageChange,
    Position,
    RunChange,
    Window,
)
from crush_trio.testing.server.client import Replica
from crush_trio.wire.codec import encode
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId, SessionId, WorkspaceId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session

FACT = Fact(
    payload_type=PayloadType.CONFIG_CHANGED,
    change=EventType.UPDATED,
    entity=ConfigChanged(workspace_id=WorkspaceId("w")),
)


class Author:
    """Writes one message into a log."""

    def __init__(self, log, name="m", session="s"):
        self.log = log
        self.growing = GrowingMessage(
            Message(id=MessageId(name), role=Role.ASSISTANT, session_id=SessionId(session))
        )
        self.publish(EventType.CREATED)

    def publish(self, change=EventType.UPDATED, *, plain=False):
        self.log.publish(MessageChange(change=change, view=self.growing.view(), plain=plain))

    def say(self, text):
        self.growing.append_text(text)
        self.publish(plain=True)

    def finish(self):
        self.growing.put(FinishPart(reason=FinishReason.END_TURN, time=1))
        self.publish()


def run_change(name, state=RunState.COMPLETED, text=""):
    return RunChange(run=RunView(id=RunId(name), session_id=SessionId("s"), state=state, text=text))


def told(batch):
    """What message changes a batch has: change and text of each."""
    return [
        (str(event.change), "".join(p.text for p in event.message.parts if type(p) is TextPart))
        for event in batch.events
        if isinstance(event, MessageChange)
    ]


def endings(batch):
    return [e.run.id for e in batch.events if isinstance(e, RunChange) and e.terminal]


def replayed(reader):
    replica = Replica()
    replica.feed(reader.take().encode(Form.NATIVE))
    return replica


# ── Order ──────────────────────────────────────────────────────────────────────────────────────


def test_publishing_takes_effect_at_once_and_ids_count_from_one():
    log = EventLog("boot")
    reader = log.cursor()
    assert [log.publish(FACT) for _ in range(3)] == [1, 2, 3]
    assert log.position == Position(boot="boot", seq=3)
    assert [entry.id for entry in reader.take().entries] == [1, 2, 3]


# ── Compaction ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", [Form.CRUSH, None])
def test_a_reader_that_has_not_read_gets_only_the_newest_plain_update(form):
    log = EventLog("boot")
    reader = log.cursor(form)
    author = Author(log)
    for piece in "abc":
        author.say(piece)
    assert told(reader.take()) == [("created", ""), ("updated", "abc")]
    author.say("d")
    assert told(reader.take()) == [("updated", "abcd")]


def test_structural_updates_are_never_skipped():
    log = EventLog("boot")
    reader = log.cursor(Form.CRUSH)
    author = Author(log)
    author.say("a")
    author.publish()
    author.say("b")
    author.say("c")
    author.publish()
    author.finish()
    author.publish(EventType.DELETED)
    assert told(reader.take()) == [
        ("created", ""),
        ("updated", "a"),
        ("updated", "abc"),
        ("updated", "abc"),
        ("deleted", "abc"),
    ]


def test_messages_are_compacted_one_by_one_and_keep_their_order():
    log = EventLog("boot")
    reader = log.cursor(Form.CRUSH)
    one, two = Author(log, "one"), Author(log, "two")
    one.say("a")
    two.say("x")
    log.publish(FACT)
    one.say("b")
    assert told(reader.take()) == [
        ("created", ""),
        ("created", ""),
        ("updated", "x"),
        ("updated", "ab"),
    ]


def test_a_native_reader_gets_every_link_and_rebuilds_the_message():
    log = EventLog("boot")
    reader = log.cursor(Form.NATIVE)
    author = Author(log)
    for piece in ("a", "😀", '"\\', "\ud83d"):
        author.say(piece)
    author.finish()
    replica = replayed(reader)
    assert replica.last_id == "boot-6"
    assert encode(replica.messages["m"]) == encode(author.growing.view().message())


# ── The window ─────────────────────────────────────────────────────────────────────────────────


def kept(log):
    """How far back a reader of deltas may be without having lost its place."""
    oldest = log.head
    while oldest > 0:
        place = Position(boot=log.boot, seq=oldest - 1)
        if log.cursor(Form.NATIVE, after=place).take().resync is not None:
            break
        oldest -= 1
    return log.head - oldest


def test_the_window_is_bounded_by_count():
    log = EventLog("boot", window=Window(events=10))
    for _ in range(500):
        log.publish(FACT)
        assert kept(log) <= 20
    assert kept(log) >= 10


def test_the_window_is_bounded_by_weight():
    log = EventLog("boot", window=Window(weight=100_000))
    for number in range(200):
        log.publish(run_change(f"run-{number}", RunState.ACTIVE, "x" * 5000))
        assert kept(log) <= 20
    assert kept(log) >= 5


def test_one_event_heavier_than_the_window_is_still_handed_out():
    log = EventLog("boot", window=Window(weight=1000))
    reader = log.cursor(Form.NATIVE)
    log.publish(run_change("heavy", RunState.ACTIVE, "x" * 5000))
    assert len(reader.take().entries) == 1


def test_bytes_that_readers_asked_for_count_too():
    log = EventLog("boot", window=Window(weight=60_000))
    author, reader = Author(log), log.cursor(Form.CRUSH)
    author.say("x" * 10_000)
    for _ in range(20):
        author.publish()
        reader.take().encode(Form.CRUSH)
    assert kept(log) <= 6


def test_a_long_answer_leaves_the_readers_of_whole_messages_in_their_place():
    log = EventLog("boot", window=Window(events=8))
    reader = log.cursor(Form.CRUSH)
    author = Author(log)
    for _ in range(1000):
        author.say("x")
    batch = reader.take()
    assert batch.resync is None
    assert told(batch) == [("created", ""), ("updated", "x" * 1000)]


def test_a_reader_of_deltas_that_is_only_a_little_behind_keeps_its_place():
    log = EventLog("boot", window=Window(events=64))
    reader, replica = log.cursor(Form.NATIVE), Replica()
    author = Author(log)
    for _ in range(200):
        author.say("x")
        log.publish(FACT)
        author.say("y")
        replica.feed(reader.take().encode(Form.NATIVE))
    assert replica.resyncs == 0


def test_telling_old_endings_does_not_use_up_the_window():
    window = Window(events=4, weight=200_000)
    log = EventLog("boot", window=window)
    for number in range(100):
        late = log.cursor(Form.CRUSH)
        log.publish(run_change(f"run-{number}", text="x" * 5000))
        for _ in range(10):
            log.publish(FACT)
        late.take().encode(Form.CRUSH)
    assert kept(log) >= 4


# ── Losing one's place ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", [*Form, None])
def test_a_reader_that_fell_out_of_the_window_is_told_the_endings_and_then_the_state(form):
    log = EventLog("boot", window=Window(events=4))
    reader = log.cursor(form)
    log.publish(run_change("open", RunState.ACTIVE))
    author = Author(log)
    for number in range(5):
        log.publish(run_change(f"run-{number}"))
        for _ in range(10):
            log.publish(FACT)
    author.say("so far")
    batch = reader.take()
    assert endings(batch) == [f"run-{number}" for number in range(5)]
    assert len(batch.entries) == 5
    assert [run.id for run in batch.resync.runs] == ["open"]
    assert [view.message().parts for view in batch.resync.messages] == [(TextPart(text="so far"),)]
    assert batch.resync.position == log.position
    again = reader.take()
    assert (again.entries, again.resync) == ((), None)


def test_an_ending_that_was_read_before_the_gap_is_not_told_again():
    log = EventLog("boot", window=Window(events=2))
    reader = log.cursor()
    log.publish(run_change("read"))
    assert endings(reader.take()) == ["read"]
    log.publish(run_change("missed"))
    for _ in range(10):
        log.publish(FACT)
    assert endings(reader.take()) == ["missed"]


def test_after_a_resync_a_reader_has_what_a_reader_of_everything_has():
    log = EventLog("boot", window=Window(events=4))
    slow, fast = log.cursor(Form.NATIVE), log.cursor(Form.NATIVE)
    late, everything = Replica(), Replica()
    authors = []
    for name in ("one", "two", "😀"):
        authors.append(Author(log, name))
        everything.feed(fast.take().encode(Form.NATIVE))
    for number in range(40):
        authors[number % 3].say(f"{number}\n")
        everything.feed(fast.take().encode(Form.NATIVE))
    late.feed(slow.take().encode(Form.NATIVE))
    assert (late.resyncs, everything.resyncs) == (1, 0)
    assert late.messages == everything.messages
    for author in authors:
        author.finish()
        late.feed(slow.take().encode(Form.NATIVE))
        everything.feed(fast.take().encode(Form.NATIVE))
    assert (late.resyncs, everything.resyncs) == (1, 0)
    assert late.messages == everything.messages
    assert len(late.messages) == 3


def test_a_snapshot_has_nothing_that_is_over():
    log = EventLog("boot")
    Author(log, "finished").finish()
    Author(log, "deleted").publish(EventType.DELETED)
    open_message = Author(log, "open")
    log.publish(run_change("ended", RunState.ACTIVE))
    log.publish(run_change("ended", RunState.CANCELLED))
    log.publish(run_change("queued", RunState.QUEUED))
    snapshot = log.snapshot()
    assert [view.head.id for view in snapshot.messages] == [open_message.growing.head.id]
    assert [(run.id, run.state) for run in snapshot.runs] == [("queued", RunState.QUEUED)]


@pytest.mark.item("J4")
def test_the_open_messages_of_a_deleted_session_are_forgotten():
    log = EventLog("boot")
    Author(log, "gone", "s1")
    Author(log, "stays", "s2")
    session = Session(id=SessionId("s1"))
    log.publish(Fact(payload_type=PayloadType.SESSION, change=EventType.DELETED, entity=session))
    assert [view.head.id for view in log.snapshot().messages] == ["stays"]


def test_endings_beyond_the_window_are_bounded_and_the_newest_are_kept():
    log = EventLog("boot", window=Window(events=2, endings=10))
    reader = log.cursor()
    for number in range(100):
        log.publish(run_change(f"run-{number}"))
    told_of = endings(reader.take())
    assert told_of == [f"run-{number}" for number in range(100 - len(told_of), 100)]
    assert 10 <= len(told_of) <= 14


def test_ids_still_grow_when_the_last_event_of_a_gap_is_an_ending():
    log = EventLog("boot", window=Window(events=2))
    reader = log.cursor(Form.NATIVE)
    for _ in range(10):
        log.publish(FACT)
    log.publish(run_change("last"))
    replica = replayed(reader)
    assert set(replica.endings) == {"last"}
    assert replica.resyncs == 1


def test_a_connection_cut_anywhere_in_a_gap_loses_neither_the_endings_nor_the_state():
    log = EventLog("boot", window=Window(events=3))
    start = log.position
    author = Author(log)
    for _ in range(10):
        author.say("x")
    for name in ("one", "two"):
        log.publish(run_change(name))
    author.say("y")
    stream = log.cursor(Form.NATIVE, after=start).take().encode(Form.NATIVE)
    for cut in range(len(stream)):
        replica = Replica()
        replica.feed(stream[:cut])
        replica.cut()
        place = start if replica.last_id is None else Position.parse(replica.last_id)
        replica.feed(log.cursor(Form.NATIVE, after=place).take().encode(Form.NATIVE))
        assert set(replica.endings) == {"one", "two"}, stream[:cut]
        text = replica.messages["m"]["parts"][0]["data"]["text"]
        assert text == "x" * 10 + "y", stream[:cut]
