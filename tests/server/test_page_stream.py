"""The stream of a page beside the roster: a workspace, or one session of it with its subagents."""

import pytest
import trio

from crush_trio.events.facts import MessageChange
from crush_trio.events.frames import Form
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.server.roster.feeds import SessionFeed
from crush_trio.store.changes import SessionCreated
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Pause, Say
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.views import Session
from tests.server.page_client import Page, open_page

A, B = client_id(1), client_id(2)
OWN = {"roster", "roster_session", "roster_workspace"}


def query(place, session=None, client=A):
    more = "" if session is None else f"&session={session}"
    return f"workspace={place.id}&client_id={client}{more}"


async def open_plain(place, client=B):
    exchange = place.driver.open("GET", f"{place.path}/events?client_id={client}&form=native")
    assert await exchange.head() == 200
    return Page(exchange)


def run_ended(page, count=1):
    ended = [d for name, _, d in page.seen if name == "run" and d["state"] == "completed"]
    return len(ended) == count


def sessions_told(page):
    """Return the sessions whose transcripts a page was told about."""
    told = {d["session_id"] for name, _, d in page.seen if name == "message_delta"}
    return told | {d["payload"]["session_id"] for name, _, d in page.seen if name == "message"}


async def test_a_page_gets_what_a_native_stream_gets_with_the_same_ids():
    async with open_test_server() as server:
        place = await server.create(A)
        session = await place.create_session()
        with await open_page(server, query(place)) as page, await open_plain(place) as plain:
            await place.submit(session, "hello")
            for each in (page, plain):
                await each.until(run_ended)
            await page.shows(session, "idle")
        told = [frame for frame in page.seen if frame[0] not in OWN]
        assert told == plain.seen
        assert page.names()[:3] == ["roster", "asks", "ready"]
        assert page.numbered()
        assert all(place is None for name, place, _ in page.seen if name in OWN)


async def test_a_page_of_one_session_is_spared_the_transcripts_of_others():
    async with open_test_server() as server:
        place = await server.create(A)
        mine, other = await place.create_session("mine"), await place.create_session("other")
        with (
            await open_page(server, query(place, mine)) as page,
            await open_page(server, query(place)) as whole,
        ):
            for session in (other, mine):
                await place.submit(session, "hello")
            for each in (page, whole):
                await each.until(lambda each: run_ended(each, 2))
            assert sessions_told(page) == {mine}
            assert sessions_told(whole) == {mine, other}
            runs = {data["session_id"] for name, _, data in page.seen if name == "run"}
            assert runs == {mine, other}
            numbers = [place for _, place, _ in page.numbered()]
            assert set(numbers) < {place for _, place, _ in whole.numbered()}


async def test_a_page_of_one_session_gets_its_subagents():
    async with open_test_server() as server:
        place = await server.create(A)
        mine, other = await place.create_session("mine"), await place.create_session("other")
        hosted = server.backend.workspaces()[0]
        for parent in (mine, other):
            for child, above in ((f"{parent}-1", parent), (f"{parent}-2", f"{parent}-1")):
                session = Session(id=SessionId(child), parent_session_id=SessionId(above))
                await hosted.store.commit(SessionCreated(session=session))
        with await open_page(server, query(place, mine)) as page:
            for parent in (other, mine):
                for child in (f"{parent}-1", f"{parent}-2"):
                    publish(hosted, child)
            await page.until(lambda page: f"{mine}-2" in sessions_told(page))
            assert sessions_told(page) == {f"{mine}-1", f"{mine}-2"}


def publish(hosted, session_id, name="m"):
    message = Message(
        id=MessageId(f"{name}-{session_id}"), role=Role.ASSISTANT, session_id=SessionId(session_id)
    )
    view = GrowingMessage(message).view()
    hosted.events.publish(MessageChange(change=EventType.CREATED, view=view))


@pytest.mark.parametrize("narrow", [False, True])
async def test_a_page_that_is_cut_anywhere_misses_nothing_and_gets_nothing_twice(narrow):
    async with open_test_server() as server:
        place = await server.create(A)
        mine, other = await place.create_session("mine"), await place.create_session("other")
        target = query(place, mine if narrow else None)
        with await open_page(server, target) as whole:
            for number in range(3):
                for session in (mine, other):
                    await place.submit(session, f"hello {number}")
            await whole.until(lambda page: run_ended(page, 6))
        expected = whole.numbered()
        for cut in range(len(expected)):
            with await open_page(server, target, after=expected[cut][1]) as page:
                while len(page.numbered()) < len(expected) - cut - 1:
                    await page.next()
                assert page.numbered() == expected[cut + 1 :]
                assert "resync" not in page.names()
                assert page.sessions.keys() == {mine, other}


async def test_a_page_that_lost_its_place_gets_a_resync_of_its_session():
    gate = Gate("writing")
    turns = WrittenTurns(default=[Say("half"), Pause(gate), Say(" done")])
    async with open_test_server(turns) as server:
        place = await server.create(A)
        mine, other = await place.create_session("mine"), await place.create_session("other")
        for session in (mine, other):
            await place.submit(session, "hello")
            await gate.reached()
        await trio.sleep(1)
        with await open_page(server, query(place, mine), after="gone-1") as page:
            told = await page.event("resync")
            assert {message["session_id"] for message in told["messages"]} == {mine}
            assert {run["session_id"] for run in told["runs"]} == {mine, other}
            gate.open()
            await page.until(lambda page: run_ended(page, 2))
            assert sessions_told(page) == {mine}


async def test_a_page_ends_with_its_workspace():
    async with open_test_server() as server:
        place = await server.create(A)
        page = await open_page(server, query(place))
        server.backend.retire(A)
        server.backend.close()
        assert (await page.rest())[-1][0] == "end"


async def test_a_page_holds_its_workspace_and_lets_go_when_it_closes():
    async with open_test_server() as server:
        place = await server.create(A)
        with await open_page(server, query(place)) as page:
            await place.request("DELETE", f"?client_id={A}")
            assert server.backend.workspaces()
        await page.exchange.ended()
        await trio.sleep(60)
        assert server.backend.workspaces() == ()


async def test_a_page_that_stalls_gets_the_newest_roster_and_every_event():
    async with open_test_server() as server:
        place = await server.create(A)
        session = await place.create_session()
        page = await open_page(server, query(place, session))
        for number in range(40):
            await place.submit(session, f"hello {number}")
            await trio.sleep(0.3)
        await page.until(lambda page: run_ended(page, 40))
        await page.until(lambda page: page.sessions[session]["message_count"] == 80)
        page.exchange.hang_up()


async def test_a_read_that_is_cancelled_while_parents_are_looked_up_loses_nothing():
    async with open_test_server() as server:
        place = await server.create(A)
        mine = SessionId(await place.create_session())
        hosted = server.backend.workspaces()[0]
        feed = SessionFeed(await hosted.new_reader(Form.NATIVE), mine, hosted.family)
        for name in ("a", "b"):
            publish(hosted, mine, name)
            await trio.sleep(1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await feed.read()
        assert feed.behind
        told = (await feed.read()).entries
        assert [entry.owner for entry in told] == [mine, mine]
        assert not feed.behind
