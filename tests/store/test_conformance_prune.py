"""Sessions that are deleted for their age: with all that belongs to them, and never one that is used."""

import pytest
from attrs import evolve

from crush_trio.errors import SessionNotFound
from crush_trio.store.changes import AskOpened, AskResolved, RunEnded, SessionEdited, SessionPruned
from crush_trio.wire.ids import AskId, RunId, SessionId, ToolCallId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunState
from tests.store.stores import S, ids, message, run, session, text

pytestmark = pytest.mark.real_clock

SECRET = "what the user wrote"


def ended(accepted, at=101):
    view = evolve(accepted.run, state=RunState.COMPLETED, text=SECRET, error="", ended_at=at)
    return RunEnded(run=view)


@pytest.mark.item("J4")
async def test_an_unused_session_goes_with_its_tasks_and_the_text_of_their_runs(openings):
    file = Attachment(file_path="f", file_name="f", mime_type="text/plain", content=SECRET.encode())
    mine = run("r", run_id="mine", prompt=SECRET, attachments=(file,))
    task = run("t", session="child", seq=2, prompt=SECRET)
    async with openings.open() as store:
        await store.commit(session("s"), session("child", parent="s"), session("other"))
        await store.commit(message("m", text(SECRET)), message("n", text(SECRET), session="child"))
        await store.commit(mine, task, ended(mine), ended(task))
        opened = AskOpened(
            id=AskId("a"),
            kind="permission",
            session_id=S,
            run_id=RunId("r"),
            tool_call_id=ToolCallId("c"),
            payload=SECRET,
            at=100,
        )
        await store.commit(opened, AskResolved(id=AskId("a"), resolution="deny", at=101))
        await store.commit(SessionPruned(id=S, before=102))
        for gone in ("s", "child"):
            with pytest.raises(SessionNotFound):
                await store.session(SessionId(gone))
            assert await store.messages(SessionId(gone)) == []
        assert ids(await store.sessions()) == ["other"]
        for name in ("r", "t"):
            stored = await store.run(RunId(name))
            assert (stored.prompt, stored.attachments, stored.view.text) == ("", (), "")
            assert stored.view.state is RunState.COMPLETED
        assert (await store.run(RunId("mine"))).view.id == "r", "its id stays taken"


@pytest.mark.parametrize("used", ["s", "child"])
async def test_a_session_that_was_used_since_stays_whole(openings, used):
    async with openings.open() as store:
        await store.commit(session("s"), session("child", parent="s"))
        await store.commit(message("m", text("kept")))
        await store.commit(SessionEdited(id=SessionId(used), at=500, title="used"))
        await store.commit(SessionPruned(id=S, before=500))
        assert ids(await store.messages(S)) == ["m"]
        await store.commit(SessionPruned(id=S, before=501))
        assert await store.sessions() == []


@pytest.mark.parametrize("of", ["s", "child"])
async def test_a_session_with_a_run_that_has_not_ended_stays_whole(openings, of):
    live = run("r", session=of, prompt="go on")
    async with openings.open() as store:
        await store.commit(session("s"), session("child", parent="s"), live)
        await store.commit(SessionPruned(id=S, before=1000))
        assert ids(await store.sessions()) == ["s"]
        assert (await store.run(RunId("r"))).prompt == "go on"
        await store.commit(ended(live), SessionPruned(id=S, before=1000))
        assert await store.sessions() == []


async def test_pruning_what_is_not_there_changes_nothing(openings):
    async with openings.open() as store:
        await store.commit(session("other"), SessionPruned(id=S, before=1000))
        assert ids(await store.sessions()) == ["other"]
