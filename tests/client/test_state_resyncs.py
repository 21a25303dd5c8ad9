"""`Picture` when connections break: nothing is told twice, and what is in doubt is asked for."""

import orjson
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.client.events import (
    Disconnected,
    MessageEvent,
    Reconnected,
    Resynced,
)
from crush_trio.client.http import StreamBroken
from crush_trio.client.state import NOWHERE, Picture
from crush_trio.testing.server.client import Replica
from crush_trio.wire.codec import encode, structure
from crush_trio.wire.ids import MessageId, RunId
from crush_trio.wire.messages import Message, Role, TextPart
from crush_trio.wire.runs import RunState
from tests.client.native_streams import (
    READY,
    SESSION,
    STEPS,
    apply,
    asks,
    frame,
    play,
    resync,
    run,
    run_view,
    stream_of,
    written,
)
from tests.client.test_event_window import read
from tests.client.test_state import (
    DONE,
    PERMISSION,
    grow,
    live,
    message,
    states,
    synced,
    texts,
    told,
)

# ── Connections that break ──────────────────────────────────────────────────────────────────────


def test_a_lost_connection_is_told_once_and_so_is_the_next_one():
    picture, reader = synced()
    picture.disconnected("cut")
    picture.disconnected("refused")
    apply(picture, READY)
    apply(picture, READY)
    assert read(reader) == [Disconnected("cut"), Reconnected()]


def test_events_that_were_applied_before_are_not_told_again():
    picture, reader = synced()
    apply(picture, run("active", place="boot-1"))
    apply(picture, grow_from_nothing("boot-2"))
    read(reader)
    apply(picture, run("active", place="boot-1"))
    apply(picture, grow_from_nothing("boot-2"))
    assert read(reader) == []
    assert picture.place == "boot-2"


def grow_from_nothing(place):
    return told("created", message("Hi"), place)


def test_after_a_restart_the_places_begin_anew():
    picture, reader = synced()
    apply(picture, run("active", place="boot-50"))
    apply(picture, run("cancelled", place="second-1"))
    assert states(read(reader)) == [("r", "active"), ("r", "cancelled")]


def test_a_resync_tells_the_state_of_now_and_then_the_endings_that_were_missed():
    picture, reader = synced(runs=[live("active"), live("queued", "r2")])
    apply(
        picture,
        READY
        + asks([PERMISSION])
        + resync("boot-9", runs=[live("active", "r2")], ended=[live("errored")]),
    )
    first, *rest = read(reader)
    assert isinstance(first, Resynced)
    assert [run.id for run in first.runs] == ["r2"]
    assert [request.id for request in first.permissions] == ["p1"]
    assert states(rest) == [("r", "errored")]
    assert picture.place == "boot-9"


def test_a_resync_in_pieces_tells_each_ending_as_it_comes_and_then_the_state():
    picture, reader = synced(runs=[live("active"), live("queued", "r2"), live("queued", "r3")])
    apply(
        picture,
        READY
        + run("errored", place="boot~-7")
        + run("cancelled", "r3", place="second~-2")
        + asks([PERMISSION])
        + resync("second-9", runs=[live("active", "r2")], ended=[live("cancelled", "r4")]),
    )
    told = read(reader)
    assert states(told) == [("r", "errored"), ("r3", "cancelled"), ("r4", "cancelled")]
    [now] = [event for event in told if isinstance(event, Resynced)]
    assert [run.id for run in now.runs] == ["r2"]
    assert not picture.in_doubt
    assert picture.place == "second-9"


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_resync_that_is_cut_between_two_pieces_goes_on_after_the_last_one(cut):
    names = ["a", "b", "c", "d", "e"]
    picture, reader = synced(runs=[live("active", name) for name in names])
    pieces = [run("completed", name, place=f"boot~-{n}") for n, name in enumerate(names)]
    apply(picture, READY + b"".join(pieces[:cut]))
    assert picture.place == f"boot~-{cut - 1}"
    picture.disconnected("cut")
    apply(picture, READY + b"".join(pieces[cut - 1 :]) + resync("boot-40"))
    assert states(read(reader)) == [(name, "completed") for name in names]
    assert not picture.in_doubt


async def test_the_ending_of_a_run_that_somebody_waits_for_may_be_in_any_piece():
    picture, _ = synced(runs=[live("active")])
    with picture.news_of(RunId("r")) as news:
        apply(picture, run("completed", "other", place="boot~-3"))
        assert not news.is_set()
        apply(picture, run("completed", place="boot~-4"))
        assert news.is_set()


def test_endings_from_before_a_client_came_are_no_news_to_it():
    picture = Picture()
    reader = picture.window.reader()
    apply(picture, READY + run("completed", "old", place="boot~-3") + resync("boot-4"))
    assert picture.synced.is_set()
    apply(picture, run("completed", "old", place="boot-5") + run("completed", place="boot-6"))
    assert states(read(reader)) == [("r", "completed")]


def test_an_ending_that_was_told_is_not_told_again_by_a_resync():
    picture, reader = synced(ended=[live("completed", "old")])
    apply(picture, run("completed", place="boot-1"))
    apply(picture, resync("boot-9", ended=[live("completed"), live("completed", "old")]))
    assert states(read(reader)) == [("r", "completed")]


def test_nothing_is_told_of_a_run_after_its_ending():
    picture, reader = synced()
    apply(picture, run("completed", place="boot-1") + run("active", place="boot-2"))
    apply(picture, resync("boot-9", runs=[live("active")]))
    assert states(read(reader)) == [("r", "completed")]
    assert picture.runs == {}


def test_a_broken_stream_begins_anew_from_nowhere():
    picture, _ = synced()
    with pytest.raises(StreamBroken, match="unknown message"):
        apply(picture, grow("x", 0, "boot-1"))
    picture.mislay()
    assert picture.place == NOWHERE


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'data: {"type":"session"}\n\n', "not the native form"),
        (frame("run", {"id": "r", "session_id": "s", "state": "asleep"}), "asleep"),
        (frame("run", b"{"), "no JSON"),
        (frame("message", {"type": "created"}), "KeyError"),
        (frame("message", {"type": "exploded", "payload": {}}), "exploded"),
        (frame("message", [1]), "TypeError"),
        (frame("session", {"type": "created", "payload": {"id": 7}}), "expected a string"),
        (frame("resync", {"ended": [], "runs": []}), "messages"),
        (frame("ready", {}), "heartbeat"),
    ],
)
def test_a_frame_that_makes_no_sense_breaks_the_stream(data, why):
    picture, _ = synced(place="boot-3")
    with pytest.raises(StreamBroken, match=why):
        apply(picture, data)
    assert picture.place == "boot-3"


# ── Doubts ──────────────────────────────────────────────────────────────────────────────────────


def test_a_run_of_which_a_resync_says_nothing_is_in_doubt_until_somebody_asks():
    picture, reader = synced(runs=[live("active")])
    apply(picture, resync("second-1"))
    assert list(picture.doubtful_runs) == ["r"]
    assert picture.in_doubt
    read(reader)
    picture.settle_run(RunId("r"), run_view("interrupted"))
    assert states(read(reader)) == [("r", "interrupted")]
    assert not picture.in_doubt


def test_a_doubt_that_the_stream_itself_settles_is_not_told_twice():
    picture, reader = synced(runs=[live("active")])
    apply(picture, resync("second-1"))
    apply(picture, run("interrupted", place="second-2"))
    picture.settle_run(RunId("r"), run_view("interrupted"))
    assert states(read(reader)) == [("r", "interrupted")]


def test_a_run_that_nobody_knows_any_more_is_forgotten():
    picture, reader = synced(runs=[live("active")])
    apply(picture, resync("second-1"))
    picture.settle_run(RunId("r"), None)
    assert states(read(reader)) == []
    assert not picture.in_doubt


def stored(text, name="m"):
    return Message(
        id=MessageId(name),
        role=Role.ASSISTANT,
        session_id=SESSION,
        parts=(TextPart(text=text), DONE),
    )


def test_a_message_of_which_a_resync_says_nothing_is_asked_for():
    picture, reader = synced(messages=[message("Hel"), message("x", name="gone")])
    apply(picture, resync("boot-9"))
    assert set(picture.doubtful_messages) == {"m", "gone"}
    read(reader)
    picture.settle_messages(SESSION, [stored("Hello"), stored("not ours", "n")])
    updated, deleted = read(reader)
    assert (updated.change, texts([updated])) == ("updated", ["Hello"])
    assert (deleted.change, deleted.message_id) == ("deleted", "gone")
    assert not picture.in_doubt


def test_a_message_that_still_grows_is_not_in_doubt():
    picture, reader = synced(messages=[message("Hel")])
    apply(picture, resync("boot-9", messages=[message("Hello")]))
    assert not picture.in_doubt
    [now] = read(reader)
    assert [each.parts for each in now.messages] == [(TextPart(text="Hello"),)]
    apply(picture, grow("!", 5, "boot-10"))
    assert texts(read(reader)) == ["Hello!"]


def test_the_messages_of_a_deleted_session_are_neither_kept_nor_asked_for():
    picture, _ = synced(messages=[message("a"), message("b", name="n")])
    apply(picture, resync("boot-5", messages=[message("a")]))
    apply(picture, told("deleted", {"id": SESSION}, "boot-6", "session"))
    assert picture.snapshot().messages == ()
    assert not picture.in_doubt


# ── News ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["r", "mine"])
async def test_whoever_waits_for_a_run_hears_of_its_ending_under_either_name(name):
    picture, _ = synced()
    with picture.news_of(RunId(name)) as news:
        apply(picture, run("active", run_id="mine", place="boot-1"))
        assert not news.is_set()
        apply(picture, run("completed", run_id="mine", place="boot-2"))
        assert news.is_set()


async def test_whoever_waits_for_a_run_looks_again_after_every_connection():
    picture, _ = synced()
    with picture.news_of(RunId("r")) as one, picture.news_of(RunId("r")) as other:
        picture.disconnected("cut")
        assert not one.is_set()
        apply(picture, READY)
        assert one.is_set()
        assert other.is_set()


async def test_nobody_is_remembered_who_does_not_wait_any_more():
    picture, _ = synced()
    with trio.CancelScope() as scope, picture.news_of(RunId("r")) as news:
        scope.cancel()
        await news.wait()
    assert picture._news == {}


# ── Any stream, cut anywhere ────────────────────────────────────────────────────────────────────


@given(st.lists(STEPS, max_size=12), st.lists(st.integers(0, 15), max_size=4), st.booleans())
def test_a_stream_cut_after_any_frame_and_resumed_is_the_whole_stream(steps, cuts, finish):
    """After every cut the stream begins again at our place, or a frame or two before it."""
    log, _ = written(steps, finish=finish)
    picture, reader = synced()
    events = []
    for cut in [*cuts, None]:
        after = int(picture.place.rpartition("-")[2])
        pieces = stream_of(log, max(0, after - len(cuts))).split(b"\n\n")[:-1]
        apply(picture, b"".join(piece + b"\n\n" for piece in pieces[:cut]))
        events += read(reader)
    replica = Replica()
    replica.feed(stream_of(log))
    last = [event for event in events if isinstance(event, MessageEvent)][-1]
    assert orjson.loads(encode(last.message)) == replica.messages["m"]
    ended = [state for _, state in states(events) if RunState(state).terminal]
    assert ended == (["completed"] if finish else [])
    assert picture.place == replica.last_id


@given(st.lists(STEPS, min_size=1, max_size=10), st.integers(0, 10))
def test_a_resync_anywhere_leaves_the_same_message_as_the_whole_stream(steps, place):
    log, author = written([], finish=False)
    picture, reader = synced()
    for number, step in enumerate(steps):
        play(author, step)
        if number == place:
            now = log.snapshot()
            data = [orjson.loads(view.json()) for view in now.messages]
            apply(picture, resync(str(now.position), messages=data, runs=[live("active")]))
        else:
            apply(picture, stream_of(log, int(picture.place.rpartition("-")[2])))
    [view] = picture.snapshot().messages
    assert view == structure(orjson.loads(author.growing.view().json()), Message)
    assert read(reader)
