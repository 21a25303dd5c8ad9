"""Section G.1 as the log replaces it: no buffer per reader, so nobody's slowness loses an ending.

G1 to G3 describe buffers that overflow. What is kept of them is what a reader could rely on, and L1
adds the rest: a reader that fell behind is told so, and still learns how every run ended.
"""

import orjson
import pytest
import trio

from crush_trio.errors import LogClosed
from crush_trio.events import EventLog, Fact, Form, RunChange, Window, open_event_log
from crush_trio.testing.server.client import Replica
from crush_trio.wire.codec import encode
from crush_trio.wire.events import AgentEvent, AgentEventType, ConfigChanged, EventType, PayloadType
from crush_trio.wire.ids import RunId, SessionId, WorkspaceId
from crush_trio.wire.runs import RunState, RunView


def fact(name):
    return Fact(
        payload_type=PayloadType.CONFIG_CHANGED,
        change=EventType.UPDATED,
        entity=ConfigChanged(workspace_id=WorkspaceId(str(name))),
    )


def ending(name):
    run = RunView(
        id=RunId(f"run-{name}"),
        run_id=RunId(str(name)),
        session_id=SessionId("s"),
        state=RunState.COMPLETED,
    )
    return RunChange(run=run)


def names(batch):
    return [event.entity.workspace_id for event in batch.events if isinstance(event, Fact)]


def crush_endings(data):
    events = [orjson.loads(f.removeprefix(b"data: ")) for f in data.split(b"\n\n")[:-1]]
    return [e["payload"]["payload"]["run_id"] for e in events if e["type"] == "run_complete"]


@pytest.mark.item("G1")
def test_everybody_gets_everything_published_after_they_came_and_nothing_from_before():
    log = EventLog("boot")
    early = log.cursor()
    log.publish(fact("a"))
    late = log.cursor()
    log.publish(fact("b"))
    log.publish(fact("c"))
    assert names(early.take()) == ["a", "b", "c"]
    assert names(late.take()) == ["b", "c"]


@pytest.mark.item("G2")
def test_a_publisher_never_waits_and_a_reader_it_left_behind_is_told():
    log = EventLog("boot", window=Window(events=8))
    slow, fast = log.cursor(), log.cursor()
    seen = []
    for number in range(1000):
        log.publish(fact(number))  # a plain function: there is nothing in it to wait for
        seen += names(fast.take())
    assert seen == [str(number) for number in range(1000)]
    batch = slow.take()
    assert batch.resync is not None
    assert batch.resync.position == log.position
    log.publish(fact("next"))
    assert names(slow.take()) == ["next"]


@pytest.mark.item("G3")
def test_the_slowest_reader_learns_every_ending_once_and_in_order():
    log = EventLog("boot", window=Window(events=4))
    crush, native = log.cursor(Form.CRUSH), log.cursor(Form.NATIVE)
    for number in range(100):
        log.publish(ending(number))
        for filler in range(20):
            log.publish(fact(filler))
    expected = [str(number) for number in range(100)]
    assert crush_endings(all_of(crush)) == expected
    replica = Replica()
    replica.feed(all_of(native))
    assert [run["run_id"] for run in replica.endings.values()] == expected
    assert crush_endings(all_of(crush)) == []


def all_of(cursor):
    """Return everything there is to read, batch by batch."""
    read = b""
    while cursor.behind:
        read += cursor.take().encode(cursor.form)
    return read


@pytest.mark.item("G3")
async def test_a_publisher_that_is_cancelled_still_reaches_every_reader():
    async with open_event_log("boot") as log:
        readers = [log.cursor() for _ in range(10)]
        with trio.CancelScope() as scope:
            scope.cancel()
            log.publish(ending("mine"))
            await trio.sleep_forever()
        for reader in readers:
            assert (await reader.read()).events[0].terminal


@pytest.mark.item("G4")
async def test_a_reader_that_goes_away_leaves_the_others_alone():
    async with open_event_log("boot") as log:
        stays, goes = log.cursor(), log.cursor()
        with trio.move_on_after(60):
            await goes.read()
        log.publish(fact("a"))
        assert names(await stays.read()) == ["a"]


@pytest.mark.item("G4")
async def test_closing_the_log_ends_every_reader_after_what_is_left():
    async with open_event_log("boot") as log:
        reader = log.cursor()
        log.publish(fact("a"))
        log.publish(fact("b"))
        log.close()
        log.close()
        assert [names(batch) async for batch in reader] == [["a", "b"]]
        with pytest.raises(LogClosed):
            await log.cursor().read()


@pytest.mark.item("G4")
async def test_what_is_published_to_a_closed_log_reaches_nobody():
    async with open_event_log("boot") as log:
        reader = log.cursor()
        log.publish(fact("a"))
        log.close()
        assert names(await reader.read()) == ["a"]
        log.publish(fact("too late"))
        with pytest.raises(LogClosed):
            await reader.read()


@pytest.mark.item("G5")
@pytest.mark.parametrize("form", Form)
def test_every_reader_sees_events_of_all_kinds_in_the_one_order_of_publication(form):
    log = EventLog("boot")
    eager, lazy = log.cursor(form), log.cursor(form)
    streamed = b""
    for number in range(20):
        log.publish(ending(number) if number % 3 else fact(number))
        streamed += eager.take().encode(form)
    assert lazy.take().encode(form) == streamed
    positions = [streamed.index(b'"%d"' % number) for number in range(20)]
    assert positions == sorted(positions)


@pytest.mark.item("G6")
def test_an_agent_reports_in_the_words_that_clients_know():
    known = {"agent_finished", "error", "re_authenticate", "aws_sso_auth", "aws_sso_auth_result"}
    assert known <= {kind.value for kind in AgentEventType}
    told = orjson.loads(encode(AgentEvent(type=AgentEventType.ERROR, error="boom")))
    assert (told["type"], told["error"]) == ("error", "boom")


@pytest.mark.item("G11")
def test_a_fact_is_of_the_kind_it_says_or_does_not_come_to_be():
    with pytest.raises(TypeError, match="session events carry a Session"):
        Fact(
            payload_type=PayloadType.SESSION,
            change=EventType.UPDATED,
            entity=AgentEvent(type=AgentEventType.ERROR),
        )
