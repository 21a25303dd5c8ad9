"""Opening a workspace: the claim, the stream, the end of both, and what ends the block early."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.client import (
    ApiError,
    MessageEvent,
    RunEvent,
    ServerUnreachable,
)
from crush_trio.errors import (
    ClientRetired,
    DecodeError,
    SessionNotFound,
    WorkspaceNotFound,
)
from crush_trio.server.settings import GuardSettings
from crush_trio.testing import Gate
from crush_trio.testing.server.client import MemoryTransport, open_test_client
from crush_trio.testing.server.server import WrittenTurns, open_test_server
from crush_trio.testing.server.turns import Pause, Say
from crush_trio.wire.events import Envelope, PayloadType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from tests.client.places import FOLDER, collected, open_place


async def hosted(server):
    return [
        workspace["path"] for workspace in (await server.request("GET", "/v1/workspaces")).json()
    ]


# ── The claim ───────────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_is_open_for_as_long_as_the_block_lasts():
    async with open_test_server() as server, open_test_client(server) as client:
        async with client.open_workspace(FOLDER) as workspace:
            assert [each.id for each in await client.workspaces()] == [workspace.id]
            assert workspace.created.path == FOLDER
            assert (await workspace.agent.info()).is_ready
        await wait_all_tasks_blocked()
        assert await hosted(server) == []


async def test_a_relative_path_is_taken_from_where_the_client_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with open_test_server() as server, open_test_client(server) as client:
        async with client.open_workspace("project") as workspace:
            assert workspace.created.path == str(tmp_path / "project")


async def test_a_long_session_can_be_read_part_by_part():
    async with open_test_server() as server, open_test_client(server) as client:
        async with client.open_workspace(FOLDER) as workspace:
            session = (await workspace.sessions.create("long")).id
            for number in range(3):
                await (await workspace.submit(f"prompt {number}", session=session)).wait()
            everything = await workspace.sessions.messages(session)
            assert len(everything) == 6
            newest = await workspace.sessions.messages(session, limit=2)
            assert newest == everything[4:]
            earlier = await workspace.sessions.messages(session, limit=3, before=newest[0].id)
            assert earlier == everything[1:4]
            with pytest.raises(DecodeError, match="has no message nobody"):
                await workspace.sessions.messages(session, before=MessageId("nobody"))


@pytest.mark.item("A1.2")
async def test_the_agent_is_ready_without_being_initialised():
    async with open_place(init=False) as place:
        info = await place.workspace.agent.info()
        assert (info.is_ready, info.model.id) == (True, info.model_cfg.model)
        await (await place.submit("hello")).wait()


async def test_two_clients_of_one_directory_are_in_one_workspace_and_the_last_one_closes_it():
    async with open_test_server() as server:
        async with open_place(server=server) as one:
            async with open_place(server=server, number=2) as two:
                assert one.workspace.id == two.workspace.id
            assert await hosted(server) == [FOLDER]
        assert await hosted(server) == []


@pytest.mark.parametrize("leave", ["error", "cancel"])
async def test_the_claim_is_given_up_however_the_block_is_left(leave):
    class Mine(Exception):
        pass

    async with open_test_server() as server, open_test_client(server) as client:
        with trio.CancelScope() as scope:
            if leave == "cancel":
                async with client.open_workspace(FOLDER):
                    scope.cancel()
                    await trio.sleep_forever()
            else:
                with pytest.raises(Mine):
                    async with client.open_workspace(FOLDER):
                        raise Mine
        await wait_all_tasks_blocked()
        assert await hosted(server) == []


async def test_a_server_that_does_not_answer_the_goodbye_holds_nobody_up():
    async with open_place() as place:
        place.network.away = True
        began = trio.current_time()
    assert trio.current_time() - began <= 2


async def test_the_streams_of_a_client_that_left_are_closed():
    async with open_test_server() as server:
        async with open_place(server=server) as place:
            [stream] = place.network._open
        await stream.ended()
        assert place.network._open == set()


async def test_an_id_that_was_used_before_takes_up_its_own_claim():
    async with open_test_server() as server:
        async with open_place(server=server) as first, open_place(server=server) as again:
            assert first.client.id == again.client.id
            assert first.workspace.id == again.workspace.id


# ── What cannot be mended ───────────────────────────────────────────────────────────────────────


async def test_without_a_server_the_error_says_how_to_start_one():
    async with open_test_server() as server:
        network = MemoryTransport(server.driver)
        network.away = True
        async with open_test_client(server, transport=network) as client:
            with pytest.raises(
                ServerUnreachable, match=r"start one with: crush-trio serve --host unix:///memory"
            ):
                async with client.open_workspace(FOLDER):
                    raise AssertionError("there is no server")


async def test_a_token_that_is_missing_is_a_refusal_and_not_tried_again():
    guard = GuardSettings(token="a token of some length")
    async with open_test_server(guard=guard) as server:
        async with open_test_client(server) as client:
            with pytest.raises(ApiError) as refused:
                await client.version()
            assert (refused.value.code, refused.value.status) == ("unauthorized", 401)
            assert str(refused.value) == "a valid token is required"
        async with open_test_client(server, token="a token of some length") as client:
            await client.version()


async def test_a_client_that_said_goodbye_for_good_opens_nothing_any_more():
    async with open_test_server() as server, open_test_client(server) as client:
        await client.retire()
        with pytest.raises(ClientRetired):
            async with client.open_workspace(FOLDER):
                raise AssertionError("the client has been retired")


async def test_a_client_that_is_retired_in_the_middle_loses_its_block():
    async with open_test_server() as server, open_test_client(server) as client:
        with pytest.raises(ClientRetired):
            await retire_inside(client, wait_for_ever)


async def wait_for_ever(_workspace):
    await trio.sleep_forever()


async def retire_inside(client, then):
    async with client.open_workspace(FOLDER) as workspace:
        await client.retire()
        await then(workspace)


# ── Calls ───────────────────────────────────────────────────────────────────────────────────────


async def test_what_the_server_refuses_is_the_error_it_raised():
    async with open_place() as place:
        with pytest.raises(SessionNotFound) as missing:
            await place.workspace.sessions.get(SessionId("nowhere"))
        assert missing.value.code == "session_not_found"
        assert str(missing.value).startswith("session not found")


async def test_a_session_is_renamed_and_keeps_everything_else():
    async with open_place() as place:
        before = await place.workspace.sessions.get(place.session)
        after = await place.workspace.sessions.rename(place.session, "another title")
        assert after.title == "another title"
        assert (after.id, after.created_at) == (before.id, before.created_at)


async def test_the_queue_is_read_edited_moved_and_cleared():
    gate = Gate()
    async with open_place(WrittenTurns({"think": [Pause(gate)]})) as place:
        queue, session = place.workspace.queue, place.session
        await place.submit("think")
        await gate.reached()
        for name in ("a", "b", "c"):
            await place.submit(name, run_id=RunId(name))
        await wait_all_tasks_blocked()
        assert await queue.prompts(session) == ("a", "b", "c")
        moved = await queue.move(session, RunId("c"), 0)
        assert [item.prompt for item in moved] == ["c", "a", "b"]
        edited = await queue.edit(session, RunId("a"), prompt="changed")
        assert [item.prompt for item in edited] == ["c", "changed", "b"]
        await queue.delete(session, RunId("b"))
        assert await queue.count(session) == 2
        await queue.clear(session)
        assert await queue.list(session) == ()
        assert [run.state.value for run in await place.workspace.runs.list(session)] == [
            *["cancelled"] * 3,
            "active",
        ]


async def test_a_cancel_says_what_it_hit_and_how_it_ended():
    gate = Gate()
    async with open_place(WrittenTurns({"think": [Say("Hm"), Pause(gate)]})) as place:
        await place.submit("think")
        await gate.reached()
        await place.submit("later")
        await wait_all_tasks_blocked()
        receipt = await place.workspace.cancel(place.session)
        assert receipt.complete
        assert [(hit.state, hit.ended) for hit in receipt.hits] == [
            ("active", "cancelled"),
            ("queued", "cancelled"),
        ]
        assert (await place.workspace.cancel(place.session)).hits == ()


async def test_a_cancel_that_keeps_the_queue_lets_the_next_prompt_run():
    gate = Gate()
    async with open_place(WrittenTurns({"think": [Pause(gate)]})) as place:
        await place.submit("think")
        await gate.reached()
        later = await place.submit("later", run_id=RunId("later"))
        await wait_all_tasks_blocked()
        receipt = await place.workspace.cancel(place.session, keep_queue=True)
        assert [hit.state for hit in receipt.hits] == ["active"]
        assert (await later.wait()).state.value == "completed"


async def test_others_see_which_session_a_client_looks_at():
    async with open_place() as place:
        await place.workspace.select(place.session)
        assert (await place.workspace.sessions.get(place.session)).attached_clients == 1
        await place.workspace.select(None)
        assert (await place.workspace.sessions.get(place.session)).attached_clients == 0


async def test_a_workspace_that_is_gone_is_created_again_and_the_call_repeated():
    async with open_place() as place:
        before = place.workspace.id
        for each in place.server.backend.workspaces():
            place.server.backend.release(each.id, place.client.id)
        place.network.cut()
        place.network.away = True
        await trio.sleep(20)  # longer than the grace of a claim that has no stream
        place.network.away = False
        assert await hosted(place.server) == []
        assert [session.id for session in await place.workspace.sessions.list()] == [place.session]
        assert place.workspace.id == before


async def test_a_call_to_a_workspace_that_cannot_come_back_says_so():
    async with open_test_server() as server, open_test_client(server) as client:
        with pytest.raises((WorkspaceNotFound, ClientRetired)):
            await retire_inside(client, lambda workspace: workspace.sessions.list())


# ── Watching ────────────────────────────────────────────────────────────────────────────────────


async def test_everything_that_happens_is_seen_by_every_reader():
    seen = [], []
    async with open_place(WrittenTurns({"hello": [Say("Hel"), Say("lo")]})) as place:
        async with trio.open_nursery() as nursery:
            for events in seen:
                async with place.workspace.events() as reader:
                    nursery.start_soon(collected, reader, events)
            await (await place.submit("hello")).wait()
            await place.workspace.sessions.rename(place.session, "new")
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
    assert seen[0] == seen[1]
    runs = [event.run.state.value for event in seen[0] if isinstance(event, RunEvent)]
    assert runs == ["accepted", "active", "completed"]
    messages = [event.message for event in seen[0] if isinstance(event, MessageEvent)]
    assert messages[-1].parts[0].text == "Hello"
    [renamed] = [event for event in seen[0] if isinstance(event, Envelope)]
    assert (renamed.payload_type, renamed.entity.title) == (PayloadType.SESSION, "new")


async def test_readers_end_when_the_workspace_is_left():
    seen = []
    async with trio.open_nursery() as nursery:
        async with open_place() as place:
            async with place.workspace.events() as reader:
                nursery.start_soon(collected, reader, seen)
            await (await place.submit("hello")).wait()
            await trio.sleep(1)
    assert [event for event in seen if isinstance(event, RunEvent)]


async def test_any_number_of_readers_share_one_connection():
    async with open_place() as place:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                async with place.workspace.events() as reader:
                    nursery.start_soon(collected, reader, [])
            await (await place.submit("hello")).wait()
            nursery.cancel_scope.cancel()
        streams = [sent for sent in place.network.requests if "/events?" in sent]
        assert len(streams) == 1


# ── After the end ───────────────────────────────────────────────────────────────────────────────


async def test_a_workspace_that_was_left_is_not_to_be_used_and_says_so():
    async with open_test_server() as server, open_test_client(server) as client:
        async with client.open_workspace(FOLDER) as workspace:
            session = (await workspace.sessions.create("a session")).id
        with pytest.raises(trio.ClosedResourceError, match="the workspace has been left"):
            await workspace.submit("hello", session=session)
    with pytest.raises(trio.ClosedResourceError, match="the client has been closed"):
        await client.health()


async def test_whoever_waits_for_a_run_hears_that_the_workspace_is_left():
    gate, raised = Gate(), []

    async def wait(handle):
        try:
            await handle.wait()
        except trio.ClosedResourceError as error:
            raised.append(error)

    async with open_test_server(WrittenTurns({"think": [Pause(gate)]})) as server:
        async with trio.open_nursery() as nursery:
            async with open_place(server=server) as place:
                nursery.start_soon(wait, await place.submit("think"))
                await gate.reached()
                await trio.sleep(1)
    assert len(raised) == 1
