"""What a program brings along for the agents of its workspaces: tools and models of its own."""

from contextlib import asynccontextmanager

import orjson
import pytest
import trio

from crush_trio.backend.hosting import Terms, WorkspacePlan
from crush_trio.backend.opening import workspace_opener
from crush_trio.runtime.outcome import Submission
from crush_trio.store.memory import MemoryStore
from crush_trio.testing import ScriptedProvider
from crush_trio.testing.agents import ScriptedTool
from crush_trio.testing.model_script import CallTool, Say
from crush_trio.testing.no_commands import no_commands
from crush_trio.tools.base import ToolResult
from crush_trio.wire.ids import ClientId, WorkspaceId
from crush_trio.wire.native import RunState
from crush_trio.wire.requests import Scope

# Configurations are read in threads, and the virtual clock does not see those.
pytestmark = pytest.mark.real_clock


@asynccontextmanager
async def in_memory(_data_dir):
    await trio.lowlevel.checkpoint()
    yield MemoryStore()


@asynccontextmanager
async def open_project(directory, answers=(), provider_id="mine", entry=None, **brought):
    """Open a workspace whose configuration names the provider *provider_id*, and a session in it."""
    config = {
        "providers": {provider_id: {"models": [{"id": "m1", "name": "M One"}], **(entry or {})}}
    }
    directory.mkdir(exist_ok=True)
    (directory / "crush.json").write_bytes(orjson.dumps(config))
    model = ScriptedProvider(_without_titles(answers))
    opener = workspace_opener(
        home=directory,
        providers={"mine": model},
        open_store=in_memory,
        opens=no_commands,
        **brought,
    )
    plan = WorkspacePlan(
        id=WorkspaceId("w"),
        key=str(directory),
        path=str(directory),
        terms=Terms(),
        created_by=ClientId("c"),
    )
    async with opener(plan) as opened:
        opened.init_agent()
        yield opened, model


def _without_titles(answers):
    """Return a script for what people ask; the title of a session is asked for at any time."""
    given = iter(answers)

    def choose(request):
        return next(given) if request.tools else [Say("A title")]

    return choose


async def outcome_of(opened, prompt="go"):
    session = await opened.create_session("a session")
    with trio.fail_after(30):
        return await opened.send(Submission(session_id=session.id, prompt=prompt)).wait()


# ── Models ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_provider_of_the_program_answers_where_the_configuration_names_it(tmp_path):
    async with open_project(tmp_path / "p", [[Say("from my own model")]]) as (opened, model):
        outcome = await outcome_of(opened)
    assert outcome.text == "from my own model"
    assert {request.chosen.provider for request in model.requests} == {"mine"}
    assert {request.model.id for request in model.requests} == {"m1"}


async def test_a_provider_of_the_program_is_not_asked_where_the_configuration_names_another(
    tmp_path,
):
    entry = {"type": "bedrock", "base_url": "https://models.invalid"}
    async with open_project(tmp_path / "p", provider_id="other", entry=entry) as (opened, model):
        outcome = await outcome_of(opened)
    assert outcome.state is RunState.ERRORED
    assert "bedrock" in outcome.error
    assert model.requests == []


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


def calling(name):
    return [[CallTool(name, {"city": "Oslo"})], [Say("done")]]


def forecast(content="rain"):
    return ScriptedTool("weather", lambda _call: ToolResult(content=content))


async def test_a_tool_of_the_program_is_offered_beside_the_others_and_can_be_called(tmp_path):
    tool = forecast()
    async with open_project(
        tmp_path / "p", calling("weather"), extra_tools=lambda _bench: [tool]
    ) as (opened, model):
        assert (await outcome_of(opened)).text == "done"
    [asked, answered] = [request for request in model.requests if request.tools]
    assert {"weather", "bash", "view"} <= {spec.name for spec in asked.tools}
    assert [orjson.loads(call.input) for call in tool.calls] == [{"city": "Oslo"}]
    assert answered.messages[-1].parts[0].content == "rain"


async def test_a_tool_of_the_program_takes_the_place_of_a_built_in_one_of_the_same_name(tmp_path):
    tool = ScriptedTool("ls")
    async with open_project(tmp_path / "p", calling("ls"), extra_tools=lambda _bench: [tool]) as (
        opened,
        model,
    ):
        await outcome_of(opened)
    [asked, _] = [request for request in model.requests if request.tools]
    assert [spec.description for spec in asked.tools if spec.name == "ls"] == ["The tool ls."]
    assert len(tool.calls) == 1


async def test_the_tools_of_the_program_are_made_once_per_workspace_for_its_directory(tmp_path):
    made = []

    def make(bench):
        made.append(bench.directory)
        return [forecast()]

    script = [*calling("weather"), *calling("weather")]
    async with open_project(tmp_path / "p", script, extra_tools=make) as (opened, _model):
        await outcome_of(opened)
        await outcome_of(opened)
    async with open_project(tmp_path / "q", extra_tools=make):
        pass
    assert made == [tmp_path / "p", tmp_path / "q"]


async def test_a_tool_of_the_program_can_be_disabled_like_any_other(tmp_path):
    async with open_project(
        tmp_path / "p", [[Say("done")]], extra_tools=lambda _bench: [forecast()]
    ) as (opened, model):
        await opened.live.set(Scope.WORKSPACE, "options.disabled_tools", ["weather"])
        await outcome_of(opened)
    [asked] = [request for request in model.requests if request.tools]
    assert "weather" not in {spec.name for spec in asked.tools}
