"""An agent inside a program: asks, tools, callbacks, sessions, stores, and how it closes."""

import logging
import signal
from enum import StrEnum
from typing import Annotated

import pytest
import trio
from attrs import Factory, frozen

from crush_trio import (
    About,
    GrantScope,
    QuestionResponse,
    RunFailed,
    RunState,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
    open_agent,
    open_server,
    open_workspace,
)
from crush_trio.agent.asks.permit import RULED_OUT
from crush_trio.config.errors import ConfigInvalid
from crush_trio.errors import PathInvalid, PromptEmpty, SessionNotFound, WorkspaceClosing
from crush_trio.store.errors import StoreUnavailable
from crush_trio.store.open import StoreUnknown
from crush_trio.testing import CallTool, Fail, Gate, Pause, Say, ScriptedProvider
from crush_trio.testing.model.script import Refuse
from crush_trio.wire.messages import ToolResultPart

pytestmark = pytest.mark.real_clock  # the directory and SQLite are looked at in threads


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The current directory, in which agents work if they are not told another one."""
    monkeypatch.chdir(tmp_path)


async def add(a: int, b: int = 2) -> int:
    """Adds two numbers."""
    await trio.lowlevel.checkpoint()
    return a + b


def calling(name, arguments=None, *more):
    """Return a model that calls a tool and then says "done", in every conversation."""

    def choose(request):
        answered = any(
            isinstance(part, ToolResultPart) for m in request.messages for part in m.parts
        )
        return [Say("done")] if answered else [CallTool(name, arguments or {}), *more]

    return ScriptedProvider(choose)


def result_in(messages):
    return next(
        part for message in messages for part in message.parts if isinstance(part, ToolResultPart)
    )


async def only_result(agent):
    """Return the result of the one tool call of the one session."""
    [session] = await agent.sessions()
    return result_in(await agent.messages(session))


# ── Asking ──────────────────────────────────────────────────────────────────────────────────────


async def test_an_ask_returns_the_answer_and_leaves_no_task():
    before = trio.lowlevel.current_task().parent_nursery.child_tasks
    async with open_agent(provider=ScriptedProvider([[Say("four")]]), environment={}) as agent:
        assert await agent.ask("two and two?") == "four"
        [session] = await agent.sessions()
        assert session.title == "two and two?"  # no model was asked for it
    assert trio.lowlevel.current_task().parent_nursery.child_tasks == before


async def test_asks_of_one_session_are_a_conversation():
    model = ScriptedProvider([[Say("hello Ann")], [Say("Ann")]])
    async with open_agent(provider=model) as agent:
        session = await agent.new_session("names")
        await agent.ask("I am Ann", session=session)
        assert await agent.ask("who am I?", session=session.id) == "Ann"
    said = [part.text for each in model.requests[1].messages for part in each.parts]
    assert said[-3:] == ["I am Ann", "hello Ann", "who am I?"]


@pytest.mark.heavy
async def test_two_hundred_asks_at_once_all_have_their_own_answer():
    def echo(request):
        return [Say(request.messages[-1].parts[-1].text.upper())]

    answers = {}

    async def ask(agent, text):
        answers[text] = await agent.ask(text)

    async with open_agent(provider=ScriptedProvider(echo)) as agent, trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(ask, agent, f"word {number}")
    assert answers == {f"word {number}": f"WORD {number}" for number in range(200)}


async def test_the_pieces_of_an_answer_come_while_it_is_written():
    gate = Gate("half")
    model = ScriptedProvider([[Say("one "), Pause(gate), Say("two")]])
    async with open_agent(provider=model) as agent:
        run = await agent.submit("count")
        heard = []
        async for piece in run:
            heard.append(piece)
            if heard == ["one "]:
                assert run.state is RunState.ACTIVE
                gate.open()
        assert "".join(heard) == "one two" == await run.text()
        assert "".join([piece async for piece in run]) == "one two"  # and again from the start


async def test_pieces_are_those_of_this_run_alone():
    gate = Gate("first")
    model = ScriptedProvider([[Say("first"), Pause(gate)], [Say("second")]])
    async with open_agent(provider=model) as agent:
        session = await agent.new_session()
        first = await agent.submit("one", session=session)
        second = await agent.submit("two", session=session)
        gate.open()
        assert "".join([piece async for piece in second]) == "second"
        assert "".join([piece async for piece in first]) == "first"


async def test_a_failed_run_raises_where_its_text_is_wanted(caplog):
    model = ScriptedProvider(lambda _: [Fail(ValueError("my bug"))])
    async with open_agent(provider=model) as agent:
        with pytest.raises(RunFailed, match="errored: my bug") as failed:
            await agent.ask("hello")
        assert failed.value.outcome.state is RunState.ERRORED
        with pytest.raises(RunFailed, match="my bug"):
            async for _ in await agent.submit("again"):
                pass
    traces = [line for line in caplog.records if line.exc_info]
    assert [line.message.partition(" (run")[0] for line in traces] == ["run.failed: my bug"] * 2


async def test_a_providers_error_is_one_line_without_a_traceback(caplog):
    async with open_agent(provider=ScriptedProvider([[Refuse(401, "no such key")]])) as agent:
        with pytest.raises(RunFailed, match="no such key"):
            await agent.ask("hello")
    [line] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert line.exc_info is None
    assert "no such key" in line.message
    assert line.run_id in line.message


async def test_cancelling_an_ask_cancels_its_run_and_waits_for_its_end():
    model = ScriptedProvider([[Say("begun"), Pause(Gate("never"))]])
    async with open_agent(provider=model) as agent:
        with trio.move_on_after(0.1) as scope:
            await agent.ask("hello")
        assert scope.cancelled_caught
        assert not agent.workspace.runs.busy
        [run] = await agent.workspace.store.runs()
        assert run.state is RunState.CANCELLED
    assert model.open == 0


async def test_a_run_is_cancelled_by_its_handle_or_with_its_session():
    never = Gate("never")
    async with open_agent(provider=ScriptedProvider(lambda _: [Pause(never)])) as agent:
        session = await agent.new_session()
        first, second = [await agent.submit("wait", session=session) for _ in range(2)]
        receipt = await second.cancel().settled()
        assert [hit.run_id for hit in receipt.hits] == [second.id]
        await agent.cancel(session).settled()
        assert (await first.wait()).state is RunState.CANCELLED
        assert first.cancel().hits == ()  # it has ended


async def test_events_are_read_from_a_cursor():
    async with open_agent(provider=ScriptedProvider([[Say("hi")]])) as agent:
        cursor = agent.events()
        await agent.ask("hello")
        batch = await cursor.read()
        assert batch.events


async def test_a_slow_reader_gets_the_whole_text_although_the_log_has_forgotten_it():
    async with open_agent(provider=ScriptedProvider([[Say("one "), Say("two")]])) as agent:
        run = await agent.submit("count")
        pieces = aiter(run)
        await run.wait()
        pieces._cursor.skip_endings(0)  # its place in the log is lost from here on
        assert "".join([piece async for piece in pieces]) == "one two"


async def test_a_sub_agent_does_a_task_with_the_same_model():
    def choose(request):
        last = request.messages[-1].parts[-1]
        if isinstance(last, ToolResultPart):
            return [Say(f"it says: {last.content}")]
        text = last.text
        return [Say("found")] if text == "look" else [CallTool("agent", {"prompt": "look"})]

    async with open_agent(provider=ScriptedProvider(choose)) as agent:
        assert await agent.ask("delegate it") == "it says: found"


async def test_a_conversation_is_summarised_and_goes_on_from_there():
    model = ScriptedProvider([[Say("hi")], [Say("they said hello")], [Say("bye")]])
    async with open_agent(provider=model) as agent:
        session = await agent.new_session()
        await agent.ask("hello", session=session)
        await agent.summarize(session)
        assert await agent.ask("and now?", session=session) == "bye"
    said = [part.text for each in model.requests[2].messages for part in each.parts]
    assert "they said hello" in said
    assert "hello" not in said


async def test_a_cancel_around_the_agent_ends_runs_and_callbacks(tmp_path):
    tool, opened = opening(tmp_path)
    begun, runs = trio.Event(), []

    async def permit(_request):
        begun.set()
        await trio.sleep_forever()

    async def keep(*, task_status):
        async with open_agent(tools=[tool], provider=calling("open_door"), permit=permit) as agent:
            runs.extend([await agent.submit("open") for _ in range(3)])
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as program:
        await program.start(keep)
        await begun.wait()
        program.cancel_scope.cancel()
    assert {run.state for run in runs} == {RunState.CANCELLED}
    assert opened == []


async def test_a_prompt_that_is_none_is_refused():
    async with open_agent(provider=ScriptedProvider()) as agent:
        with pytest.raises(PromptEmpty):
            await agent.ask("")
        with pytest.raises(TypeError, match="the prompt is a int"):
            await agent.ask(7)
        with pytest.raises(SessionNotFound):
            await agent.ask("hello", session="nonsense")


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


class Colour(StrEnum):
    RED = "red"


@frozen(kw_only=True)
class Point:
    x: int
    y: int = 0


async def paint(
    where: Point,
    colours: list[Colour],
    call: ToolCall,
    note: Annotated[str | None, About("What to write on it.")] = None,
) -> str:
    """Paints a point."""
    await trio.lowlevel.checkpoint()
    return f"{call.name} {where.x}/{where.y} {colours!r} {note}"


async def test_a_function_is_a_tool_with_the_schema_of_its_parameters():
    model = calling("paint", {"where": {"x": 1}, "colours": ["red"]})
    async with open_agent(tools=[add, paint], provider=model, builtin_tools=False) as agent:
        assert await agent.ask("paint") == "done"
        assert (await only_result(agent)).content == f"paint 1/0 {[Colour.RED]!r} None"
    specs = {tool.name: tool for tool in model.requests[0].tools}
    assert set(specs) == {"add", "paint"}  # neither the built-in ones nor `question`
    assert specs["add"].description == "Adds two numbers."
    assert specs["add"].parameters["required"] == ["a"]
    assert specs["paint"].parameters["properties"] == {
        "where": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "colours": {"type": "array", "items": {"type": "string", "enum": ["red"]}},
        "note": {"type": "string", "description": "What to write on it."},
    }


@frozen
class Shape:
    points: "list[Point]"
    names: list[str] = Factory(list)


async def draw(_shape: Shape, rows: list[list[int]]) -> str:
    """Draws."""
    await trio.lowlevel.checkpoint()
    return f"{_shape.points[0].x} {_shape.names} {rows}"


async def test_arguments_may_be_lists_of_lists_and_classes_with_lists():
    given = {"_shape": {"points": [{"x": 1}], "names": ["a"]}, "rows": [[1], []]}
    model = calling("draw", given)
    async with open_agent(tools=[draw], provider=model, builtin_tools=False) as agent:
        await agent.ask("draw")
        assert (await only_result(agent)).content == "1 ['a'] [[1], []]"
    shape = model.requests[0].tools[0].parameters["properties"]["_shape"]["properties"]
    assert shape["names"] == {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        ("caf\udce9", "caf?"),
        (7, "7"),
        ([1, {"a": None}], '[1,{"a":null}]'),
        (None, "done"),
    ],
)
async def test_what_a_function_returns_is_text_or_json(value, content):
    async def give() -> object:
        """Gives it."""
        await trio.lowlevel.checkpoint()
        return value

    async with open_agent(tools=[give], provider=calling("give")) as agent:
        await agent.ask("give")
        assert (await only_result(agent)).content == content


async def test_wrong_arguments_are_told_to_the_model_and_the_function_is_not_called():
    async with open_agent(tools=[add], provider=calling("add", {"a": "x"})) as agent:
        assert await agent.ask("add") == "done"
        result = await only_result(agent)
        assert (result.is_error, "a: " in result.content) == (True, True)


async def test_a_tool_error_is_for_the_model_and_another_error_fails_the_run():
    async def lookup(what: str) -> str:
        """Looks it up."""
        await trio.lowlevel.checkpoint()
        raise ToolError("not there") if what == "gone" else KeyError(what)

    async with open_agent(tools=[lookup], provider=calling("lookup", {"what": "gone"})) as agent:
        assert await agent.ask("look") == "done"
    async with open_agent(tools=[lookup], provider=calling("lookup", {"what": "x"})) as agent:
        with pytest.raises(RunFailed, match="'x'"):
            await agent.ask("look")


async def test_instructions_are_the_beginning_of_the_system_prompt():
    model = ScriptedProvider([[Say("yes")]])
    async with open_agent(provider=model, instructions="Answer in rhymes.") as agent:
        await agent.ask("hello")
    assert model.requests[0].system[0].startswith("Answer in rhymes.")


# ── Permissions ─────────────────────────────────────────────────────────────────────────────────


def opening(tmp_path):
    """Return a tool that asks for permission, and how often it was allowed."""
    opened = []

    async def open_door(call: ToolCall, door: str = "front") -> str:
        """Opens a door."""
        about = f"Open the {door} door"
        await call.permit(Wanted(action="open", description=about, params={}, path=tmp_path))
        opened.append(door)
        return "open"

    return open_door, opened


@pytest.mark.parametrize(
    ("permit", "times", "said"),
    [
        (True, 1, "done"),
        (False, 0, "permission"),
        (lambda _: True, 1, "done"),
        (lambda _: False, 0, ""),
    ],
    ids=["allow", "refuse", "callback allows", "callback refuses"],
)
async def test_permissions_are_allowed_or_refused_and_a_refusal_ends_the_turn(
    permit, times, said, tmp_path
):
    tool, opened = opening(tmp_path)
    async with open_agent(tools=[tool], provider=calling("open_door"), permit=permit) as agent:
        answer = await agent.ask("open")
        assert (said in answer) if said else answer == ""
        assert (await only_result(agent)).is_error is not bool(times)
    assert len(opened) == times


async def test_a_callback_may_wait_and_sees_what_is_asked(tmp_path):
    tool, opened = opening(tmp_path)
    asked = []

    async def permit(request):
        await trio.lowlevel.checkpoint()
        asked.append((request.tool_name, request.action, request.description))
        return GrantScope.SESSION

    async with open_agent(tools=[tool], provider=calling("open_door"), permit=permit) as agent:
        session = await agent.new_session()
        await agent.ask("open", session=session)
        model_says_again = await agent.ask("open", session=await agent.new_session())
        assert model_says_again == "done"
    assert asked == [("open_door", "open", "Open the front door")] * 2  # once for each session
    assert len(opened) == 2


@pytest.mark.parametrize("said", [None, "yes", 1, GrantScope.ALWAYS])
async def test_nonsense_from_the_callback_fails_the_run_and_says_what_to_return(said, tmp_path):
    tool, opened = opening(tmp_path)
    async with open_agent(
        tools=[tool], provider=calling("open_door"), permit=lambda _: said
    ) as agent:
        with pytest.raises(RunFailed, match=r"permit returned .*: return True, False or a GrantSc"):
            await agent.ask("open")
        assert agent.workspace.asks.permissions.pending == ()
    assert opened == []


async def test_a_callback_that_raises_fails_its_run_and_no_other(tmp_path, caplog):
    tool, opened = opening(tmp_path)

    async def permit(_request):
        await trio.lowlevel.checkpoint()
        raise LookupError("no such person")

    async with open_agent(tools=[tool], provider=calling("open_door"), permit=permit) as agent:
        with pytest.raises(RunFailed, match="no such person"):
            await agent.ask("open")
        with pytest.raises(RunFailed, match="no such person"):
            await agent.ask("once more")  # the agent still works
    assert opened == []
    assert "LookupError" in caplog.text
    assert "in permit" in caplog.text  # where it was raised


async def test_a_cancel_in_the_middle_of_a_callback_ends_the_callback_and_the_run(tmp_path):
    tool, opened = opening(tmp_path)
    begun, ended = trio.Event(), trio.Event()

    async def permit(_request):
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_agent(tools=[tool], provider=calling("open_door"), permit=permit) as agent:
        run = await agent.submit("open")
        await begun.wait()
        await run.cancel().settled()
        assert (await run.wait()).state is RunState.CANCELLED
        with trio.fail_after(5):
            await ended.wait()
    assert opened == []


async def test_a_callback_that_raises_when_it_is_cancelled_is_logged(tmp_path, caplog):
    tool, _opened = opening(tmp_path)
    begun, ended = trio.Event(), trio.Event()

    async def permit(_request):
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
            raise LookupError("too late")

    async with open_agent(tools=[tool], provider=calling("open_door"), permit=permit) as agent:
        run = await agent.submit("open")
        await begun.wait()
        run.cancel()
        assert (await run.wait()).state is RunState.CANCELLED
        await ended.wait()
    [line] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert (line.message, line.session_id) == ("ask.callback_failed: too late", run.session_id)
    assert line.exc_info


async def test_leaving_the_block_in_the_middle_of_a_callback_ends_both(tmp_path):
    tool, opened = opening(tmp_path)
    begun = trio.Event()

    async def permit(_request):
        begun.set()
        await trio.sleep_forever()

    async with open_agent(tools=[tool], provider=calling("open_door"), permit=permit) as agent:
        run = await agent.submit("open")
        await begun.wait()
    assert (await run.wait()).state is RunState.CANCELLED
    assert opened == []


async def test_many_runs_are_answered_at_once(tmp_path):
    tool, opened = opening(tmp_path)
    together = 0
    gate = trio.Event()

    async def permit(_request):
        nonlocal together
        together += 1
        if together == 20:
            gate.set()
        await gate.wait()
        return True

    async with open_agent(tools=[tool], provider=calling("open_door"), permit=permit) as agent:
        runs = [await agent.submit("open") for _ in range(20)]
        assert {(await run.wait()).state for run in runs} == {RunState.COMPLETED}
    assert len(opened) == 20


# ── Questions ───────────────────────────────────────────────────────────────────────────────────

QUESTIONS = {
    "questions": [
        {"type": "yes_no", "label": "a", "question": "Go on?", "description": "It matters."},
        {
            "type": "single_choice",
            "label": "b",
            "question": "Which?",
            "description": "It matters.",
            "choices": [{"id": "r", "label": "Red"}, {"id": "g", "label": "Green"}],
        },
        {
            "type": "multi_choice",
            "label": "c",
            "question": "Which ones?",
            "description": "It matters.",
            "choices": [{"id": "1", "label": "One"}, {"id": "2", "label": "Two"}],
        },
        {"type": "free_text", "label": "d", "question": "Why?", "description": "It matters."},
    ]
}


async def test_a_callback_answers_the_questions_of_the_model():
    answers = iter([True, "Green", ["1", "Three"], "because"])
    model = calling("question", QUESTIONS)
    async with open_agent(provider=model, answer=lambda _: next(answers)) as agent:
        assert await agent.ask("ask me") == "done"
        content = (await only_result(agent)).content
    assert content.split("\n\n") == [
        "Q1: Go on?\nUser answered: yes",
        'Q2: Which?\nUser selected: ["g"]',
        'Q3: Which ones?\nUser selected: ["1"]\nUser provided: Three',
        "Q4: Why?\nUser provided: because",
    ]


async def test_an_answer_in_the_form_of_the_wire_is_taken_as_it_is():
    async def answer(question):
        await trio.lowlevel.checkpoint()
        return QuestionResponse(request_id=question.id, fill_in_text="so")

    async with open_agent(provider=calling("question", QUESTIONS), answer=answer) as agent:
        assert await agent.ask("ask me") == "done"


async def test_declined_questions_end_the_turn():
    async with open_agent(provider=calling("question", QUESTIONS), answer=lambda _: None) as agent:
        await agent.ask("ask me")
        assert (await only_result(agent)).is_error


async def test_nonsense_as_an_answer_fails_the_run():
    async with open_agent(provider=calling("question", QUESTIONS), answer=lambda _: "x") as agent:
        with pytest.raises(RunFailed, match="of type yes_no: return True or False"):
            await agent.ask("ask me")


async def test_without_a_callback_the_model_has_no_way_to_ask():
    model = ScriptedProvider([[Say("fine")]])
    async with open_agent(provider=model) as agent:
        await agent.ask("hello")
    assert "question" not in {tool.name for tool in model.requests[0].tools}
    assert {"agent", "bash", "view"} <= {tool.name for tool in model.requests[0].tools}


# ── Models ──────────────────────────────────────────────────────────────────────────────────────


async def refused(**given):
    async with open_agent(**{"environment": {}, **given}):
        raise AssertionError("it opened")


async def test_without_a_model_the_error_says_what_can_be_done():
    with pytest.raises(ConfigInvalid, match=r'ANTHROPIC_API_KEY.*provider="demo"'):
        await refused()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("nonsense/model", "there is no provider 'nonsense': name one of .*anthropic"),
        ("nonsense", "names no model"),
        ("", "names no model"),
    ],
)
async def test_a_name_that_cannot_be_used_is_refused_with_what_it_lacks(name, told):
    with pytest.raises(ConfigInvalid, match=told):
        await refused(provider=name)


@pytest.mark.parametrize("name", ["anthropic", "anthropic/claude-opus-9", None])
async def test_a_key_in_the_environment_is_enough_for_a_named_model_or_none(name):
    async with open_agent(
        provider=name, environment={"ANTHROPIC_API_KEY": "k"}, instructions="Be kind."
    ) as agent:
        config = agent.workspace.config.current
    assert config.large.selected.provider == "anthropic"
    assert config.config.providers["anthropic"].system_prompt_prefix == "Be kind."
    if name and "/" in name:
        assert config.large.model.id == "claude-opus-9"


async def test_values_of_the_configuration_describe_a_model_of_ones_own():
    values = {
        "providers": {
            "here": {
                "base_url": "http://127.0.0.1:1/v1",
                "models": [{"id": "m", "name": "M", "context_window": 5}],
            }
        }
    }
    async with open_agent(provider="here/m", environment={}, config=values) as agent:
        assert agent.workspace.config.current.large.model.context_window == 5


async def test_values_of_the_configuration_bring_rules_hooks_and_servers(tmp_path):
    tool, opened = opening(tmp_path)
    values = {
        "permissions": {"rules": [{"decision": "deny", "tool": "open_door"}]},
        "mcp": {"notes": {"type": "stdio", "command": "/nonsense", "disabled": True}},
        "options": {"disabled_tools": ["bash"]},
    }
    model = calling("open_door")
    async with open_agent(tools=[tool], provider=model, permit=True, config=values) as agent:
        await agent.ask("open")
        assert set(agent.workspace.integrations.mcp.states()) == {"notes"}
    assert opened == []
    assert "bash" not in {tool.name for tool in model.requests[0].tools}


@pytest.mark.item("F19")
async def test_a_rule_that_denies_holds_for_a_command_that_only_reads():
    values = {"permissions": {"rules": [{"decision": "deny", "tool": "bash"}]}}
    model = calling("bash", {"command": "echo done", "description": "say it"})
    async with open_agent(provider=model, permit=True, config=values) as agent:
        await agent.ask("go")
        assert (await only_result(agent)).content == RULED_OUT


@pytest.mark.parametrize(
    "values",
    [
        {"nonsense": 1},
        {"options": 7},
        {"options": {"odd": 1}},
        {"options": {"disabled_tools": "bash"}},
        {"options": {"disabled_tools": 7}},
    ],
)
async def test_values_that_no_configuration_has_are_refused(values):
    with pytest.raises(ConfigInvalid, match="config: "):
        await refused(provider="demo", config=values)


# ── Stores ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_durable_store_has_the_sessions_of_the_program_before(tmp_path):
    for said in ("one", "two"):
        async with open_agent(
            provider=ScriptedProvider([[Say(said)]]), store=tmp_path / "data"
        ) as agent:
            assert await agent.ask(said) == said
    async with open_agent(provider="demo", store=tmp_path / "data") as agent:
        assert {each.title for each in await agent.sessions()} == {"one", "two"}
        await agent.delete_session((await agent.sessions())[0])
        assert len(await agent.sessions()) == 1


async def test_no_built_in_tool_is_there_although_the_configuration_leaves_the_list_empty():
    model, values = ScriptedProvider([[Say("done")]]), {"options": {"disabled_tools": None}}
    async with open_agent(provider=model, builtin_tools=False, config=values) as agent:
        await agent.ask("hello")
    assert model.requests[0].tools == ()


async def test_paths_of_trio_are_paths(tmp_path):
    place = trio.Path(tmp_path)
    async with open_agent(provider="demo", directory=place, store=place / "data"):
        assert await (place / "data").is_dir()


@pytest.mark.parametrize(
    ("store", "error", "told"),
    [
        ("nonsense:", StoreUnknown, "use `sqlite:`, `memory:` or"),
        ("/data", StoreUnknown, r"for a directory write store=Path\('/data'\)"),
        ("postgresql:db", StoreUnknown, "// and the address follow postgresql:"),
        ("sqlite:///x.db", StoreUnknown, r"only \?synchronous=full or .* may follow sqlite:"),
        (7, TypeError, "store is a int: write 'memory:'"),
    ],
)
async def test_a_wrong_store_is_refused_with_what_to_write(store, error, told):
    with pytest.raises(error, match=told):
        await refused(provider="demo", store=store)


async def test_a_directory_that_is_none_is_refused(tmp_path):
    with pytest.raises(PathInvalid, match="nowhere is no directory; make it"):
        await refused(provider="demo", directory=tmp_path / "nowhere")


async def test_a_second_agent_on_the_same_data_is_refused(tmp_path):
    async with open_agent(provider="demo", store=tmp_path / "d"):
        with pytest.raises(StoreUnavailable, match=str(tmp_path / "d")):
            await refused(provider="demo", store=tmp_path / "d")
    async with open_agent(provider="demo", store="memory:"), open_agent(provider="demo"):
        pass  # agents in memory share nothing


# ── The block ───────────────────────────────────────────────────────────────────────────────────


async def test_what_the_block_raises_comes_out_as_itself_with_runs_under_way():
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012
        async with open_agent(provider=ScriptedProvider(lambda _: [Pause(Gate("n"))])) as agent:
            run = await agent.submit("wait")
            raise KeyError("mine")
    assert (await run.wait()).state is RunState.CANCELLED
    with pytest.raises(WorkspaceClosing):
        await agent.ask("too late")


@pytest.fixture
def interruptible():
    """Have SIGINT interrupt the program, also if the shell that started the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_program_and_its_runs(tmp_path):
    ended = []

    async def main():
        try:
            async with open_agent(
                provider=ScriptedProvider(lambda _: [Pause(Gate("n"))]), directory=tmp_path
            ) as agent:
                run = await agent.submit("wait")
                try:
                    signal.raise_signal(signal.SIGINT)
                    await trio.sleep_forever()
                finally:
                    ended.append(run)
        finally:
            assert run.ended

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert [run.state for run in ended] == [RunState.CANCELLED]


@pytest.mark.parametrize(
    "opens",
    [
        lambda: open_agent(provider="demo"),
        lambda: open_server("tcp://127.0.0.1:0"),
        lambda: open_workspace(trio.sleep),
    ],
    ids=["open_agent", "open_server", "open_workspace"],
)
def test_without_trio_the_error_says_so(opens, request):
    import asyncio  # noqa: TID251

    async def main():
        async with opens():
            pass

    told = rf"{request.node.callspec.id} needs Trio: start the program with trio\.run"
    with pytest.raises(RuntimeError, match=told):
        asyncio.run(main())


async def test_a_result_that_a_tool_object_returns_is_checked():
    class Odd:
        name, description, parallel, parameters = "odd", "Odd.", False, {"type": "object"}

        async def run(self, call):
            await trio.lowlevel.checkpoint()
            return "text"

    async with open_agent(tools=[Odd()], provider=calling("odd")) as agent:
        with pytest.raises(RunFailed, match=r"odd returned a str: write `return ToolResult"):
            await agent.ask("odd")


async def test_a_result_that_json_cannot_hold_is_told():
    async def give() -> object:
        """Gives."""
        await trio.lowlevel.checkpoint()
        return object()

    async with open_agent(tools=[give], provider=calling("give")) as agent:
        with pytest.raises(RunFailed, match="give returned a object: return text, a ToolResult"):
            await agent.ask("give")


def test_a_tool_result_is_passed_on():
    from crush_trio.agent.function_tool import result_of

    result = ToolResult(content="x", is_error=True)
    assert result_of("t", result) is result
