"""Connections that break, servers that go away: what is told is whole, and told once."""

from itertools import pairwise

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.client import (
    AnswerLost,
    Disconnected,
    MessageEvent,
    Reconnected,
    Resynced,
    RunEvent,
    ServerUnreachable,
)
from crush_trio.client.attachment import Backoff
from crush_trio.client.http import StreamBroken, open_link
from crush_trio.client.workspace import open_remote_workspace
from crush_trio.clock import CountingIds
from crush_trio.net.address import parse_address
from crush_trio.testing import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause, Say, Sleep
from crush_trio.wire.requests import WorkspaceRequest
from crush_trio.wire.runs import RunState, WhenUnclaimed
from tests.client.fake_transport import FakeTransport, answered
from tests.client.native_streams import READY, asks, frame, resync
from tests.client.places import collected, open_place

FOREVER = WhenUnclaimed.CONTINUE


def kinds(events):
    return [type(event).__name__ for event in events]


def endings(events):
    return [e.run.state.value for e in events if isinstance(e, RunEvent) if e.run.state.terminal]


def streams(network):
    return [sent for sent in network.requests if "/events?" in sent]


# ── Resuming ────────────────────────────────────────────────────────────────────────────────────


async def test_a_stream_that_is_cut_goes_on_where_it_stopped():
    gate, seen = Gate(), []
    async with open_place(WrittenTurns({"hi": [Say("Hel"), Pause(gate), Say("lo")]})) as place:
        async with trio.open_nursery() as nursery:
            async with place.workspace.events() as reader:
                nursery.start_soon(collected, reader, seen)
            handle = await place.submit("hi")
            await gate.reached()
            await trio.sleep(1)
            place.network.cut()
            gate.open()
            await handle.wait()
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert len(streams(place.network)) == 2
    assert kinds(seen).count("Disconnected") == kinds(seen).count("Reconnected") == 1
    assert Resynced.__name__ not in kinds(seen)
    assert endings(seen) == ["completed"]
    messages = [event for event in seen if isinstance(event, MessageEvent)]
    assert messages[-1].message.parts[0].text == "Hello"


@pytest.mark.parametrize("seed", range(20))
async def test_however_often_a_stream_is_cut_every_state_is_told_once(seed):
    script = [step for n in range(20) for step in (Say(f"{n} "), Sleep(0.3))]
    seen = []
    async with open_place(WrittenTurns({"count": script})) as place:
        async with trio.open_nursery() as nursery:
            async with place.workspace.events() as reader:
                nursery.start_soon(collected, reader, seen)
            handle = await place.submit("count")
            async with trio.open_nursery() as breaking:
                breaking.start_soon(cut_again_and_again, place.network, 0.7)
                await handle.wait()
                breaking.cancel_scope.cancel()
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
    assert [e.run.state.value for e in seen if isinstance(e, RunEvent)] == [
        "accepted",
        "active",
        "completed",
    ]
    texts = [
        e.message.parts[0].text for e in seen if isinstance(e, MessageEvent) and e.message.parts
    ]
    assert texts[-1] == "".join(f"{n} " for n in range(20))
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts[1:]))


async def cut_again_and_again(network, pause):
    while True:
        await trio.sleep(pause)
        network.cut()


# ── Backing off ─────────────────────────────────────────────────────────────────────────────────


def test_pauses_double_up_to_ten_seconds_and_begin_anew_after_a_success():
    backoff = Backoff()
    assert [backoff.next() for _ in range(8)] == [0.25, 0.5, 1, 2, 4, 8, 10, 10]
    assert backoff.next(after=11) == 0.25
    assert backoff.next(after=0.3) == 0.5


async def test_a_server_that_is_away_is_tried_again_and_found_when_it_is_back():
    seen = []
    async with open_place() as place:
        async with trio.open_nursery() as nursery:
            async with place.workspace.events() as reader:
                nursery.start_soon(collected, reader, seen)
            await wait_all_tasks_blocked()
            place.network.away = True
            place.network.cut()
            await trio.sleep(6)
            place.network.away = False
            await trio.sleep(6)
            nursery.cancel_scope.cancel()
    assert kinds(seen) == ["Disconnected", "Reconnected"]


async def test_a_server_that_stays_away_ends_the_block_when_the_patience_is_used_up():
    began = trio.current_time()
    async with open_test_server() as server:
        with pytest.raises(ServerUnreachable, match="gave up after 60 seconds"):
            await lose_the_server(server)
    assert 60 < trio.current_time() - began < 75


async def lose_the_server(server):
    async with open_place(server=server) as place:
        place.network.away = True
        place.network.cut()
        await trio.sleep_forever()


async def test_a_connection_that_falls_silent_is_given_up_and_another_one_opened():
    """No heartbeat comes: something between the two has died without a word."""
    seen = []
    async with open_place() as place:
        async with trio.open_nursery() as nursery:
            async with place.workspace.events() as reader:
                nursery.start_soon(collected, reader, seen)
            await wait_all_tasks_blocked()
            place.network.deafen()
            await trio.sleep(50)
            nursery.cancel_scope.cancel()
    [lost, back] = seen
    assert lost == Disconnected(
        "the connection to the server broke: nothing was heard from the server for too long"
    )
    assert back == Reconnected()


# ── Losing one's place ──────────────────────────────────────────────────────────────────────────


async def test_a_workspace_that_was_closed_meanwhile_is_opened_again_and_its_runs_have_ended():
    gate, seen = Gate(), []
    async with open_place(WrittenTurns({"hi": [Say("Hel"), Pause(gate)]})) as place:
        before = place.workspace.id
        async with trio.open_nursery() as nursery:
            async with place.workspace.events() as reader:
                nursery.start_soon(collected, reader, seen)
            handle = await place.submit("hi")
            await gate.reached()
            await trio.sleep(1)
            place.network.away = True
            place.network.cut()
            await trio.sleep(20)
            place.network.away = False
            assert (await handle.wait()).state is RunState.CANCELLED
            await trio.sleep(20)
            nursery.cancel_scope.cancel()
        assert place.workspace.id == before
    assert endings(seen) == ["cancelled"]
    messages = [event for event in seen if isinstance(event, MessageEvent)]
    assert messages[-1].finished


async def test_a_run_that_went_on_without_us_is_told_when_we_are_back():
    gate, seen = Gate(), []
    async with open_place(WrittenTurns({"hi": [Say("Hel"), Pause(gate), Say("lo")]})) as place:
        async with trio.open_nursery() as nursery:
            async with place.workspace.events() as reader:
                nursery.start_soon(collected, reader, seen)
            handle = await place.submit("hi", when_unclaimed=FOREVER)
            await gate.reached()
            await trio.sleep(1)
            place.network.away = True
            place.network.cut()
            gate.open()
            await trio.sleep(20)
            place.network.away = False
            assert (await handle.wait()).text == "Hello"
            await trio.sleep(20)
            nursery.cancel_scope.cancel()
    assert endings(seen) == ["completed"]
    messages = [event for event in seen if isinstance(event, MessageEvent)]
    assert messages[-1].message.parts[0].text == "Hello"


@pytest.mark.parametrize("when", ["during", "after"])
async def test_a_place_that_is_lost_is_answered_with_the_state_and_the_rest_is_asked_for(when):
    """As if the log had moved on so far that it does not know our place any more."""
    gate, seen = Gate(), []
    async with open_place(WrittenTurns({"hi": [Say("Hel"), Pause(gate), Say("lo")]})) as place:
        async with trio.open_nursery() as nursery:
            async with place.workspace.events() as reader:
                nursery.start_soon(collected, reader, seen)
            handle = await place.submit("hi")
            await gate.reached()
            await trio.sleep(1)
            place.workspace._calls.keeper.picture.mislay()
            place.network.away = True
            place.network.cut()
            if when == "after":
                gate.open()
                await trio.sleep(1)
            place.network.away = False
            await trio.sleep(3)
            gate.open()
            await handle.wait()
            await trio.sleep(3)
            nursery.cancel_scope.cancel()
    assert kinds(seen).count("Resynced") == 1
    assert endings(seen) == ["completed"]
    messages = [event for event in seen if isinstance(event, MessageEvent)]
    assert (messages[-1].message.parts[0].text, messages[-1].finished) == ("Hello", True)
    [now] = [event for event in seen if isinstance(event, Resynced)]
    assert len(now.messages) == len(now.runs) == (1 if when == "during" else 0)


# ── A server that makes no sense ────────────────────────────────────────────────────────────────


def halves(data):
    """Return a body that comes in two pieces."""
    half = len(data) // 2
    return [piece for piece in (data[:half], data[half:]) if piece]


class Stage:
    """A server that answers with what is written: one stream after the other."""

    def __init__(self, *bodies, run=None):
        self.bodies, self.sent, self.view = list(bodies), [], run or {"state": "active"}

    def __call__(self, request):
        path = request.path
        self.sent.append((trio.current_time(), f"{request.method} {path}", request))
        if path.endswith("/events"):
            return answered(halves(self.bodies.pop(0) if self.bodies else b""))
        if "/runs/" in path:
            return answered(self.view)
        if path.endswith("/messages"):
            return answered(b"[]")
        return answered({"id": "w", "path": "/p"})

    @property
    def places(self):
        return [each.headers["last-event-id"] for _, what, each in self.sent if "/events" in what]

    @property
    def times(self):
        return [time for time, what, _ in self.sent if "/events" in what]

    async def play(self, watch, patience=100):
        address = parse_address("unix:///memory")
        request = WorkspaceRequest(path="/p", client_id=client_id(1))
        async with (
            open_link(address, transport=FakeTransport(self)) as link,
            open_remote_workspace(
                link, request, CountingIds("run"), patience=patience
            ) as workspace,
        ):
            return await watch(workspace)


async def nothing(_workspace):
    raise AssertionError("the workspace cannot have been opened")


STATE = READY + asks() + resync("boot-1")


async def test_a_server_without_the_native_form_is_refused_at_once():
    with pytest.raises(StreamBroken, match="not the native form"):
        await Stage(b'data: {"type":"session"}\n\n').play(nothing)


async def test_a_stream_that_ends_before_it_has_said_anything_is_no_beginning():
    with pytest.raises(AnswerLost, match="the server ended the stream"):
        await Stage(READY).play(nothing)


async def test_a_server_that_ends_every_stream_at_once_is_asked_more_and_more_rarely():
    stage = Stage(*[STATE] * 20)

    async def watch(_):
        await trio.sleep(30)

    await stage.play(watch)
    pauses = [later - now for now, later in pairwise(stage.times)]
    assert pauses == [0.25, 0.5, 1, 2, 4, 8, 10]


async def test_a_stream_that_does_not_fit_is_begun_anew_from_the_state_of_now():
    stage = Stage(STATE + frame("message_delta", {"id": "m", "changes": []}, "boot-2"), STATE)

    async def watch(workspace):
        async with workspace.events() as reader:
            return [await anext(reader) for _ in range(2)]

    assert kinds(await stage.play(watch)) == ["Reconnected", "Resynced"]
    assert stage.places == ["0-0", "0-0"]


async def test_a_run_that_nobody_mentions_any_more_is_asked_for():
    """The server was killed after the run had ended, and before we heard of it."""
    ended = {"id": "r", "session_id": "s", "state": "completed", "text": "Hello"}
    live = {"id": "r", "session_id": "s", "state": "active"}
    stage = Stage(
        READY + asks() + resync("one-1", runs=[live]), READY + asks() + resync("two-1"), run=ended
    )

    seen = []

    async def watch(workspace):
        async with workspace.events() as reader:
            while not seen or not isinstance(seen[-1], RunEvent):
                seen.append(await anext(reader))

    await stage.play(watch)
    assert kinds(seen)[:2] == ["Reconnected", "Resynced"]
    assert endings(seen) == ["completed"]
    assert stage.places[:2] == ["0-0", "one-1"]
