"""Secrets of the user around an agent whose commands really run: what it gets, and what is kept."""

import base64
import io
import logging
import os
from contextlib import asynccontextmanager

import orjson
import pytest
import trio
from attrs import define, frozen

from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.settings import Terms, WorkspacePlan, WorkspaceSettings
from crush_trio.runtime.outcome import Submission
from crush_trio.server.logging import LogFormat, open_log
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Say
from crush_trio.tools.base import BuiltIn
from crush_trio.wire.asks import PermissionMode, PermissionPolicy
from crush_trio.wire.ids import ClientId, WorkspaceId

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

KEY = "sk-live-9f8e7d6c5b4a39281706"
TOKEN = "server-token-5e4d3c2b1a0f9e8d"
USER = {
    "providers": {"mine": {"api_key": KEY, "models": [{"id": "m1", "name": "M One"}]}},
    "crush_trio": {"command_env": {"pass": ["HARMLESS_TOKEN"], "drop": ["NOISE"]}},
}
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GITHUB_TOKEN": "ghp_1a2b3c4d5e6f7a8b9c0d",
    "UNSUSPICIOUS": f"key={KEY}",
    "HARMLESS_TOKEN": "passed on",
    "NOISE": "noise",
    "SSH_AUTH_SOCK": "/run/agent",
}


@frozen(kw_only=True)
class NoArguments:
    """No arguments."""


@asynccontextmanager
async def in_memory(_settings, _data_dir):
    await trio.lowlevel.checkpoint()
    yield MemoryStore()


@asynccontextmanager
async def open_workspace(tmp_path, answers, tools=()):
    home, project = tmp_path / "home", tmp_path / "project"
    (home / ".config" / "crush").mkdir(parents=True)
    project.mkdir()
    (home / ".config" / "crush" / "crush.json").write_bytes(orjson.dumps(USER))
    given = iter(answers)
    model = ScriptedProvider(lambda request: next(given) if request.tools else [Say("Title")])
    settings = WorkspaceSettings(
        home=home,
        environment=ENVIRONMENT,
        providers={"mine": model},
        open_store=in_memory,
        secrets=(TOKEN,),
        extra_tools=lambda _bench: tools,
    )
    plan = WorkspacePlan(
        id=WorkspaceId("w"),
        key=str(project),
        path=str(project),
        terms=Terms(),
        created_by=ClientId("c"),
    )
    with trio.fail_after(30):
        async with open_hosted_workspace(plan, settings) as opened:
            opened.init_agent()
            yield opened, project


async def results(opened, prompt="go"):
    """Let the agent answer a prompt; return the results of its tools, as they are stored."""
    session = await opened.create_session("a session")
    policy = PermissionPolicy(mode=PermissionMode.ALLOW)
    sent = Submission(session_id=session.id, prompt=prompt, permissions=policy)
    assert (await opened.send(sent).wait()).text == "done"
    messages = await opened.store.messages(session.id)
    return [part for message in messages for part in message.parts if hasattr(part, "tool_call_id")]


def bash(command):
    return CallTool("bash", {"command": command, "description": "x"})


async def test_commands_do_not_get_secrets_and_their_output_shows_none(tmp_path):
    padded = "head -c 14990 /dev/zero | tr '\\0' x; cat secret; seq 20000; cat secret"
    answers = [
        [bash("env")],
        [bash("cat secret; base64 -w0 secret")],
        [bash(padded)],
        [CallTool("view", {"file_path": "secret"})],
        [CallTool("grep", {"pattern": "live"})],
        [CallTool("write", {"file_path": "secret", "content": "key=[redacted]\n"})],
        [CallTool("edit", {"file_path": "secret", "old_string": "last", "new_string": "end"})],
        [Say("done")],
    ]
    async with open_workspace(tmp_path, answers) as (opened, project):
        (project / "secret").write_text(f"key={KEY}\ntoken={TOKEN}\nlast\n")
        env, read, cut, viewed, found, written, edited = await results(opened)
        given = dict(line.split("=", 1) for line in env.content.splitlines() if "=" in line)
        assert {"GITHUB_TOKEN", "UNSUSPICIOUS", "NOISE"}.isdisjoint(given)
        assert (given["HARMLESS_TOKEN"], given["SSH_AUTH_SOCK"]) == ("passed on", "/run/agent")
        assert read.content.startswith("key=[redacted]\ntoken=[redacted]")
        assert base64.b64encode(KEY.encode()).decode()[4:-4] not in read.content
        for result in (read, cut, viewed, found, written, edited):
            assert KEY[:12] not in result.content + result.metadata
            assert TOKEN[:16] not in result.content + result.metadata
        assert "has a secret in it" in written.content
        assert (project / "secret").read_text() == f"key={KEY}\ntoken={TOKEN}\nend\n"


async def test_a_person_gets_the_whole_environment_but_no_secret_is_recorded(tmp_path):
    async with open_workspace(tmp_path, []) as (opened, _):
        shown = await opened.run_shell("", 'test -n "$GITHUB_TOKEN" && echo got $GITHUB_TOKEN')
        assert shown.output == "got [redacted]\n"


@define(eq=False)
class LeakyTool(BuiltIn):
    """A tool of the program's own that says what it should not."""

    name = "leak"
    description = "x"
    arguments = NoArguments

    async def run(self, _call):
        await trio.lowlevel.checkpoint()
        logging.getLogger("crush_trio.leak").warning("tool.said", extra={"text": f"it is {KEY}"})
        raise RuntimeError(f"bad key {KEY}")


async def test_neither_logs_nor_errors_show_a_secret(tmp_path):
    stream = io.StringIO()
    with open_log(LogFormat.JSON, stream=stream):
        async with open_workspace(tmp_path, [[CallTool("leak", {})]], [LeakyTool()]) as (opened, _):
            session = await opened.create_session("a session")
            run = opened.send(Submission(session_id=session.id, prompt="go"))
            assert (await run.wait()).error == "bad key [redacted]"
    lines = [orjson.loads(line) for line in stream.getvalue().splitlines()]
    assert {"tool.said", "run.failed"} <= {line["event"] for line in lines}
    assert "RuntimeError: bad key [redacted]" in stream.getvalue()
    assert KEY not in stream.getvalue()
