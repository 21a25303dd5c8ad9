"""Submitting a prompt: its name, its policies, and what happens if the answer is lost."""

import pytest
import trio

from crush_trio.client import (
    AnswerLost,
)
from crush_trio.errors import (
    PromptTooLong,
    RunIdTaken,
    SessionBusy,
)
from crush_trio.limits import SizeLimits
from crush_trio.testing import Gate
from crush_trio.testing.server.server import WrittenTurns, open_test_server
from crush_trio.testing.server.turns import Pause
from crush_trio.wire.asks import PermissionMode, PermissionPolicy
from crush_trio.wire.ids import RunId
from crush_trio.wire.requests import Attachment
from crush_trio.wire.runs import RunState, WhenBusy, WhenUnclaimed
from tests.client.places import open_place


async def test_a_run_is_named_by_the_client_and_known_by_either_name():
    async with open_place() as place:
        run = await place.submit("hello")
        assert run.run_id == run.id == "run-1-1"
        ended = await run.wait()
        assert (ended.run_id, ended.state, ended.text) == ("run-1-1", "completed", "done")
        assert await place.workspace.runs.get(ended.id) == ended
        assert await place.workspace.run(ended.id).wait() == ended


async def test_the_same_submission_twice_is_one_run_and_another_one_is_refused():
    turns = WrittenTurns()
    async with open_place(turns) as place:
        first = await place.submit("hello", run_id=RunId("mine"))
        second = await place.submit("hello", run_id=RunId("mine"))
        assert await first.wait() == await second.wait()
        assert turns.started == ["hello"]
        with pytest.raises(RunIdTaken) as taken:
            await place.submit("another", run_id=RunId("mine"))
        assert (taken.value.code, taken.value.detail) == ("run_id_taken", "mine")


async def test_a_prompt_that_is_too_long_is_the_error_that_the_library_raises():
    async with open_test_server(sizes=SizeLimits(prompt=10)) as server:
        async with open_place(server=server) as place:
            with pytest.raises(PromptTooLong) as refused:
                await place.submit("hello, are you there?")
    assert "it has 21 bytes, the limit is 10 bytes" in str(refused.value)


async def test_every_policy_reaches_the_server():
    gate = Gate()
    async with open_place(WrittenTurns({"think": [Pause(gate)]})) as place:
        first = await place.submit("think")
        await gate.reached()
        with pytest.raises(SessionBusy):
            await place.submit("hello", when_busy=WhenBusy.REJECT)
        last = await place.submit(
            "hello",
            when_busy=WhenBusy.INTERRUPT,
            when_unclaimed=WhenUnclaimed.CONTINUE,
            permissions=PermissionPolicy(mode=PermissionMode.DENY, allow_list=("view",)),
            interactive=True,
            attachments=[
                Attachment(file_path="a", file_name="a", mime_type="text/plain", content=b"x")
            ],
        )
        [opened] = place.server.backend.workspaces()
        submission = opened.runs.find(last.id).submission
        assert submission.permissions.mode is PermissionMode.DENY
        assert submission.when_unclaimed is WhenUnclaimed.CONTINUE
        assert submission.interactive
        assert (await first.wait()).state is RunState.CANCELLED
        assert (await last.wait()).state is RunState.COMPLETED


@pytest.mark.parametrize("interactive", [True, False])
async def test_whether_a_person_is_there_is_said_once_for_all_runs(interactive):
    gate = Gate()
    async with open_place(WrittenTurns({"think": [Pause(gate)]}), interactive=interactive) as place:
        run = await place.submit("think")
        [opened] = place.server.backend.workspaces()
        assert opened.runs.find(run.id).submission.interactive is interactive


@pytest.mark.parametrize("silently", [False, True])
async def test_a_lost_answer_makes_the_submission_be_sent_again_and_it_is_the_same_run(silently):
    turns = WrittenTurns()
    async with open_place(turns) as place:
        place.network.lose_answer("POST", "/agent", silently=silently)
        assert await (await place.submit("hello")).result_text() == "done"
        assert turns.started == ["hello"]
        posts = [sent for sent in place.network.requests if sent.endswith("/agent")]
        assert len(posts) == 2


async def test_a_submission_that_nobody_answers_is_given_up():
    async with open_place(patience=5) as place:
        for _ in range(50):
            place.network.lose_answer("POST", "/agent")
        began = trio.current_time()
        with pytest.raises(AnswerLost):
            await place.submit("hello")
        assert 5 < trio.current_time() - began < 15
