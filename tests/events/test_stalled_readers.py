"""Readers that stop reading: what they hold, what they are told later, and how much at a time."""

import gc
import os
import tracemalloc
import weakref
from unittest.mock import ANY

import orjson
import pytest
from attrs import evolve

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
from crush_trio.events.pieces import JOINED, PIECE, Pieces, pieces_after, pieces_of
from crush_trio.testing.server.client import Replica
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId, SessionId, WorkspaceId
from crush_trio.wire.messages import BinaryPart, FinishPart, FinishReason, Message, Role, TextPart
from crush_trio.wire.runs import RunState, RunView

READERS = 50
PER_READER = 64 * 1024
SESSION = SessionId("s")
STOP = FinishPart(reason=FinishReason.STOP, time=0)


def fact(name="w"):
    return Fact(
        payload_type=PayloadType.CONFIG_CHANGED,
        change=EventType.UPDATED,
        entity=ConfigChanged(workspace_id=WorkspaceId(name)),
    )


def prompt(size, name="m"):
    """A user's message with a file of *size* bytes."""
    file = BinaryPart(path="/a", mime_type="text/plain", data=os.urandom(size))
    head = Message(id=MessageId(name), role=Role.USER, session_id=SESSION)
    view = GrowingMessage(evolve(head, parts=(TextPart(text="look"), file, STOP))).view()
    return MessageChange(change=EventType.CREATED, view=view)


def ending(name, text=""):
    run = RunView(id=RunId(name), session_id=SESSION, state=RunState.COMPLETED, text=text)
    return RunChange(run=evolve(run, run_id=RunId(name)))


class Stalled:
    """A reader that has taken some of what it was given, and holds what a stream holds of the rest."""

    def __init__(self, cursor):
        self.cursor = cursor
        self.pieces = iter(())
        self.rest = b""

    def stall(self, taken):
        """Take a few pieces and a part of the next one."""
        batch, form = self.cursor.take(), self.cursor.form
        content = batch.content(form)
        if isinstance(content, bytes) and batch.resync is None and not batch.endings:
            after, self.pieces = batch.rest(form, min(taken * PIECE + 100, len(content) - 1))
            self.cursor.rewind(after)
            self.rest = next(self.pieces)
        else:
            self.pieces = pieces_after(batch.chunks(form), 0)
            for _ in range(taken):
                next(self.pieces, b"")
            self.rest = next(self.pieces, b"")[100:]

    def finish(self):
        return self.rest + b"".join(self.pieces)


def held_by(make):
    """Return how many bytes are allocated by *make*, and stay so while what it returns is there."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = make()
        gc.collect()
        return tracemalloc.get_traced_memory()[0], kept
    finally:
        tracemalloc.stop()


# ── What they hold ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.heavy
@pytest.mark.parametrize("form", Form)
def test_readers_stalled_at_different_places_of_a_large_event_hold_no_bytes_of_it(form):
    log = EventLog("boot")
    cursors = []
    for _ in range(READERS):
        cursors.append(log.cursor(form))
        log.publish(fact())  # each is at a place of its own
    log.publish(prompt(5 * 2**20))

    def stall():
        readers = [Stalled(cursor) for cursor in cursors]
        for number, reader in enumerate(readers):
            while len(reader.rest) < PIECE // 2:  # until it is in the middle of the large one
                reader.stall(3 * number)
        return readers

    size, readers = held_by(stall)
    assert size / READERS < PER_READER
    ends = {reader.finish()[-1000:] for reader in readers}
    assert len(ends) == 1
    assert all(cursor.after == log.head for cursor in cursors)


@pytest.mark.heavy
@pytest.mark.parametrize("words", [20_000, 400_000])
def test_readers_halfway_through_different_states_of_a_long_answer_share_its_text(words):
    """The crush form sends the whole message with every update; each reader has another one."""
    log = EventLog("boot")
    head = Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SESSION)
    growing = GrowingMessage(head)
    growing.append_text("word " * words)
    growing.append_text("and ")  # makes room for what is appended below
    log.publish(MessageChange(change=EventType.CREATED, view=growing.view()))
    readers = [Stalled(log.cursor(Form.CRUSH)) for _ in range(READERS)]

    def stall():
        for reader in readers:
            growing.append_text("more ")
            log.publish(MessageChange(change=EventType.UPDATED, view=growing.view(), plain=True))
            reader.stall(words // 15_000)
        return readers

    size, _ = held_by(stall)
    assert size / READERS < PER_READER
    states = [reader.finish() for reader in readers]
    assert [state.count(b"more ") for state in states] == list(range(1, READERS + 1))


def test_an_event_that_has_left_the_log_lives_as_long_as_a_reader_is_in_the_middle_of_it():
    log = EventLog("boot", window=Window(events=4, fresh=1))
    readers = [Stalled(log.cursor(form)) for form in Form]
    event = prompt(2**20)
    file = weakref.ref(event.view.parts[1].encoded.sources[1])
    log.publish(event)
    del event
    for reader in readers:
        reader.stall(10)
    for _ in range(20):
        log.publish(fact())
    gc.collect()
    assert file() is not None
    assert all(len(reader.finish()) > 10**6 for reader in readers)
    del readers, reader
    gc.collect()
    assert file() is None


def test_an_event_that_nobody_is_in_the_middle_of_goes_with_the_log():
    log = EventLog("boot", window=Window(events=4, fresh=1))
    late = log.cursor(Form.CRUSH)
    event = prompt(2**20)
    file = weakref.ref(event.view.parts[1].encoded.sources[1])
    log.publish(event)
    del event
    for _ in range(20):
        log.publish(fact())
    gc.collect()
    assert file() is None
    assert late.take().resync is not None


@pytest.mark.heavy
@pytest.mark.parametrize("form", Form)
def test_a_resync_shares_what_is_under_way(form):
    log = EventLog("boot", window=Window(events=4))
    growing = GrowingMessage(Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SESSION))
    growing.append_text("word " * 400_000)
    log.publish(MessageChange(change=EventType.CREATED, view=growing.view()))
    for number in range(2000):
        run = RunView(id=RunId(f"queued-{number}"), session_id=SESSION, state=RunState.QUEUED)
        log.publish(RunChange(run=run))
    elsewhere = Position(boot="an earlier one", seq=3)
    readers = [Stalled(log.cursor(form, elsewhere)) for _ in range(READERS)]

    def stall():
        for number, reader in enumerate(readers):
            reader.stall(number)
            log.publish(fact())
        return readers

    size, _ = held_by(stall)
    assert size / READERS < PER_READER + 2000 * 8  # a list of the runs that go on


# ── How much at a time ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", [*Form, None])
def test_a_batch_has_a_bounded_number_of_events(form):
    log = EventLog("boot")
    cursor = log.cursor(form)
    for number in range(1000):
        log.publish(fact(str(number)))
    read = []
    while cursor.behind:
        batch = cursor.take()
        assert 0 < len(batch.entries) <= Window().batch
        read += [event.entity.workspace_id for event in batch.events]
    assert read == [str(number) for number in range(1000)]
    assert cursor.take().entries == ()


@pytest.mark.parametrize("form", Form)
def test_a_batch_can_be_sent_with_one_call_unless_it_is_a_single_event(form):
    log = EventLog("boot")
    cursor = log.cursor(form)
    for number in range(200):
        log.publish(fact(f"{number} " + "x" * 1000))
        if number % 50 == 0:
            log.publish(prompt(2**20, f"m{number}"))
    sizes = []
    while cursor.behind:
        batch = cursor.take()
        size = sum(len(entry.frame(form)) for entry in batch.entries)
        assert size <= JOINED or len(batch.entries) == 1
        assert len(batch.encode(form)) == size
        assert isinstance(batch.content(form), Pieces) == (size > JOINED)
        sizes.append(size)
    assert sum(size > 2**20 for size in sizes) == 4


@pytest.mark.parametrize("form", [*Form, None])
def test_a_reader_that_lost_its_place_is_told_its_endings_a_few_at_a_time(form):
    log = EventLog("boot", window=Window(events=4, endings=1000))
    cursor = log.cursor(form)
    for number in range(300):
        log.publish(ending(f"run-{number}"))
    told, batches = [], []
    while cursor.behind:
        assert cursor.lost
        batches.append(cursor.take())
        assert len(batches[-1].entries) <= Window().batch // 2
        told += [event.run.id for event in batches[-1].events]
    assert told == [f"run-{number}" for number in range(300)]
    assert [batch.resync is not None for batch in batches] == [*[False] * 4, True]
    assert all(batch.endings for batch in batches[:-1])
    assert not cursor.lost


@pytest.mark.parametrize("form", Form)
def test_a_reader_that_stalls_in_a_batch_holds_one_frame_and_reads_the_rest_again(form):
    log = EventLog("boot")
    everything, reader = log.cursor(form), log.cursor(form)
    for number in range(20):
        log.publish(fact(f"{number} " + "x" * (700 * (number % 5) + 20_000 * (number == 10))))
    whole = everything.take().encode(form)
    for sent in range(0, len(whole), 997):
        reader.after = 0
        batch = reader.take()
        after, pieces = batch.rest(form, sent)
        reader.rewind(after)
        held = b"".join(pieces)
        frame = max(len(entry.frame(form)) for entry in batch.entries)
        assert len(held) <= max(PIECE, frame)
        assert whole[:sent] + held + reader.take().encode(form) == whole
    assert batch.rest(form, len(whole)) == (log.head, ANY)


@pytest.mark.parametrize("form", Form)
def test_a_batch_for_which_the_form_has_no_word_is_over_when_nothing_is_sent(form):
    log = EventLog("boot")
    reader = log.cursor(form)
    message = GrowingMessage(Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SESSION))
    log.publish(MessageChange(change=EventType.CREATED, view=message.view()))
    reader.take()
    run = RunView(id=RunId("r"), session_id=SESSION, state=RunState.ACTIVE)
    log.publish(RunChange(run=run))
    message.append_text("superseded")
    log.publish(MessageChange(change=EventType.UPDATED, view=message.view(), plain=True))
    batch = reader.take()
    after, pieces = batch.rest(form, len(batch.encode(form)))
    assert (after, b"".join(pieces)) == (log.head, b"")


# ── What they are told later ───────────────────────────────────────────────────────────────────


@pytest.mark.heavy
@pytest.mark.parametrize("window", [Window(), Window(events=16, endings=10**6)])
def test_a_reader_that_goes_on_gets_everything_in_order_and_no_ending_twice(window):
    log = EventLog("boot", window=window)
    native, crush = log.cursor(Form.NATIVE), log.cursor(Form.CRUSH)
    replica, completed = Replica(), []
    published = []
    for number in range(400):
        log.publish(prompt(40_000, f"m{number}"))
        log.publish(ending(f"run-{number}", "x" * (100 if number % 7 else 100_000)))
        published.append(f"run-{number}")
        if number % 40 == 0:  # reads a little, and stalls again
            feed(replica, native)
            completed += completions(crush)
    while native.behind:
        feed(replica, native)
    while crush.behind:
        completed += completions(crush)
    assert list(replica.endings) == completed == published
    assert (replica.resyncs > 0) == (window.events == 16)
    if not replica.resyncs:
        assert len(replica.messages) == 400


def feed(replica, cursor):
    for piece in pieces_of(cursor.take().content(cursor.form)):
        replica.feed(piece)  # raises if an id does not grow or an ending is told twice


def completions(cursor):
    frames = b"".join(pieces_of(cursor.take().content(cursor.form))).split(b"\n\n")[:-1]
    events = [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames]
    return [e["payload"]["payload"]["run_id"] for e in events if e["type"] == "run_complete"]


def test_a_connection_cut_between_two_pieces_of_a_resync_is_taken_up_there():
    log = EventLog("boot", window=Window(events=4, endings=1000))
    start = log.position
    for number in range(200):
        log.publish(ending(f"run-{number}"))
    stream = all_of(log, start)
    frames = stream.split(b"\n\n")[:-1]
    for cut in range(0, len(frames), 7):
        replica = Replica()
        replica.feed(b"".join(frame + b"\n\n" for frame in frames[:cut]) + b"id: bo")
        replica.cut()
        place = start if replica.last_id is None else Position.parse(replica.last_id)
        replica.feed(all_of(log, place))
        assert len(replica.endings) == 200, "none is told twice: the replica would refuse"
        assert replica.resyncs == 1


def all_of(log, after):
    cursor, read = log.cursor(Form.NATIVE, after), b""
    while cursor.behind:
        read += cursor.take().encode(Form.NATIVE)
    return read


# ── Endings that are not stored yet ────────────────────────────────────────────────────────────


class KeepsEndings:
    """Remembers endings, for which readers have to wait; `flushed` is how often it was told to."""

    flushed = 0

    def keep(self, _seq, event):
        return isinstance(event, RunChange)

    def flush(self):
        self.flushed += 1


def test_endings_that_the_log_forgets_are_handed_over_first():
    keeper = KeepsEndings()
    log = EventLog("boot", window=Window(events=2, endings=3), keeper=keeper)
    while not log.forgotten:
        assert keeper.flushed == 0
        log.publish(ending("run"))
    assert keeper.flushed > 0


def test_a_reader_that_can_come_back_sees_an_ending_when_its_place_is_stored():
    log = EventLog("boot", keeper=KeepsEndings())
    native, crush, own = log.cursor(Form.NATIVE), log.cursor(Form.CRUSH), log.cursor()
    log.publish(fact("before"))
    log.publish(ending("one"))
    log.publish(fact("between"))
    log.publish(ending("two"))
    log.publish(fact("after"))
    assert [len(cursor.take().entries) for cursor in (own, crush, native)] == [5, 5, 1]
    assert not native.behind
    log.settle(2)
    assert [entry.id for entry in native.take().entries] == [2, 3]
    log.settle(4)
    assert [entry.id for entry in native.take().entries] == [4, 5]


def test_a_reader_is_told_what_the_log_has_forgotten_from_elsewhere_and_then_the_rest():
    log = EventLog("boot", window=Window(events=2, endings=3))
    for number in range(20):
        log.publish(ending(f"run-{number}"))
    reader = log.cursor(Form.CRUSH, Position(boot="boot", seq=5))
    assert reader.forgotten == log.forgotten > 10
    reader.skip_endings(log.forgotten)
    assert reader.forgotten == 0
    told = reader.take()
    assert told.resync is not None
    assert [entry.id for entry in told.entries] == list(range(log.forgotten + 1, 21))


def test_long_answers_make_a_log_forget_endings_sooner():
    log = EventLog("boot", window=Window(events=2, texts=10_000))
    for number in range(20):
        log.publish(ending(f"run-{number}", "x" * 1000))
    assert log.forgotten >= 6
