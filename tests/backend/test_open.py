"""What a program brings along for the agents of its workspaces: tools and models of its own."""

from contextlib import asynccontextmanager

import orjson
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.settings import Terms, WorkspacePlan, WorkspaceSettings
from crush_trio.runtime.outcome import Submission
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Say
from crush_trio.testing.server.agent import ScriptedTool
from crush_trio.testing.server.config import no_commands
from crush_trio.tools.base import ToolResult
from crush_trio.tools.recent_logs import keep_recent_logs
from crush_trio.tools.shell.guard.placeholder import MODE
from crush_trio.wire.ids import ClientId, WorkspaceId
from crush_trio.wire.requests import Scope
from crush_trio.wire.runs import RunState

# Configurations are read in threads, and the virtual clock does not see those.
pytestmark = pytest.mark.real_clock


@asynccontextmanager
async def in_memory(_settings, _data_dir):
    await trio.lowlevel.checkpoint()
    yield MemoryStore()


@asynccontextmanager
async def open_project(
    directory, answers=(), provider_id="mine", entry=None, data_dir="", **brought
):
    """Open a workspace of a user whose configuration names the provider *provider_id*."""
    config = {
        "providers": {provider_id: {"models": [{"id": "m1", "name": "M One"}], **(entry or {})}}
    }
    own = directory / ".config" / "crush"
    own.mkdir(parents=True, exist_ok=True)
    (own / "crush.json").write_bytes(orjson.dumps(config))
    model = ScriptedProvider(_without_titles(answers))
    settings = WorkspaceSettings(
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
        terms=Terms(data_dir=data_dir),
        created_by=ClientId("c"),
    )
    async with open_hosted_workspace(plan, settings) as opened:
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
    entry = {"base_url": "ftp://models.invalid"}
    async with open_project(tmp_path / "p", provider_id="other", entry=entry) as (opened, model):
        outcome = await outcome_of(opened)
    assert outcome.state is RunState.ERRORED
    assert "base URL" in outcome.error
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
        await opened.config.set(Scope.WORKSPACE, "options.disabled_tools", ["weather"])
        await outcome_of(opened)
    [asked] = [request for request in model.requests if request.tools]
    assert "weather" not in {spec.name for spec in asked.tools}


# ── What is said about it ───────────────────────────────────────────────────────────────────────


def told_by(model, name):
    """Return what the tool *name* told the model."""
    results = (part for request in model.requests for part in request.messages[-1].parts)
    return next(part.content for part in results if getattr(part, "name", "") == name)


async def test_the_report_tells_keys_variables_tools_and_notices_and_no_secret(tmp_path):
    script = [[CallTool("crush_info", {})], [Say("done")]]
    entry = {"api_key": "hidden-key-1", "base_url": "https://models.invalid/v1?k=hidden-too"}
    async with open_project(tmp_path / "p", script, entry=entry) as (opened, model):
        await opened.config.set(Scope.WORKSPACE, "options.disabled_tools", ["fetch"])
        await opened.config.set(Scope.WORKSPACE, "nonsense", 1)
        await opened.config.set(Scope.GLOBAL, "env.A_NAME", "hidden-value")
        await outcome_of(opened)
    text = told_by(model, "crush_info")
    [tools] = [line for line in text.split("\n") if line.startswith("available = ")]
    assert {"agent", "bash", "crush_info"} <= set(tools.removeprefix("available = ").split(", "))
    assert "fetch" not in tools
    assert ", has a key" in text
    assert "[env]\nA_NAME" in text
    assert "nonsense" in text.partition("[notices]")[2].partition("\n\n")[0]
    assert "hidden" not in text


async def test_the_data_and_the_configuration_of_the_user_are_private(tmp_path):
    async with open_project(tmp_path / "p") as (opened, _model):
        bench = opened.agent.bench()
        for path in (".crush/crush.json", ".config/crush/crush.json", ".local/share/crush/x"):
            assert not bench.shared(bench.resolve(path)), path
        assert bench.shared(bench.resolve("crush.json"))


async def test_data_in_the_workspace_itself_leaves_the_rest_of_it_open(tmp_path):
    async with open_project(tmp_path / "p", data_dir=".") as (opened, _model):
        bench = opened.agent.bench()
        assert not bench.shared(bench.resolve("crush.json"))
        assert bench.shared(bench.resolve("src/a.py"))


async def test_what_the_configuration_has_to_say_is_logged_once_and_again_only_if_new(tmp_path):
    with keep_recent_logs() as logs:
        async with open_project(tmp_path / "p", entry={"nonsense": 1}) as (opened, _model):
            revision = opened.config.current.revision
            await opened.config.set(Scope.WORKSPACE, "other_nonsense", 1)
            await opened.config.newer_than(revision)
            await wait_all_tasks_blocked()
        lines = logs.tail(99, workspace_id="w")
        assert logs.tail(99, workspace_id="another") == []
    notices = [line for line in lines if " config.notice: " in line]
    assert len([line for line in notices if ".nonsense" in line]) == 1
    assert len([line for line in notices if "other_nonsense" in line]) == 1
    assert all(" workspace_id='w'" in line for line in notices)


async def test_the_failure_of_a_run_is_logged_for_its_workspace_whoever_started_it(tmp_path):
    """The task of a request starts the run, and belongs to no workspace."""

    async def fail(_run):
        await trio.lowlevel.checkpoint()
        raise RuntimeError("a secret of w")

    async def hold(task_status):
        async with open_project(tmp_path / "p", make_turn=lambda _transcript: fail) as (opened, _):
            task_status.started(opened)
            await done.wait()

    done = trio.Event()
    with keep_recent_logs() as logs:
        async with trio.open_nursery() as nursery:
            opened = await nursery.start(hold)
            await outcome_of(opened)
            done.set()
        assert "a secret of w" in "\n".join(logs.tail(99, workspace_id="w"))
        assert logs.tail(99, workspace_id="another") == []


async def test_what_killed_guards_left_in_a_project_is_removed_when_it_is_opened(tmp_path):
    left, kept = tmp_path / "crush.json", tmp_path / ".git" / "info"
    for path in (left, tmp_path / ".git" / "hooks", kept):
        path.mkdir(parents=True)
        path.chmod(MODE)
    plan = WorkspacePlan(
        id=WorkspaceId("w"),
        key=str(tmp_path),
        path=str(tmp_path),
        terms=Terms(),
        created_by=ClientId("c"),
    )
    async with open_hosted_workspace(plan, WorkspaceSettings(home=tmp_path / "home")):
        assert [*(tmp_path / ".git").iterdir()] == [kept]
        assert not left.exists()
