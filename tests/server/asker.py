"""A server whose scripted agent asks: prompts name what it does.

`allow?` asks for a permission and says what came of it; `question?` asks a question. Both write what
a tool would tell the model as the answer of the run, so that clients can read it.
"""

from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import trio
from attrs import define

from crush_trio.agent.asks.questions import QuestionTool
from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.runtime.outcome import Completion
from crush_trio.testing.server.server import Served, ServedWorkspace, client_id, open_test_server
from crush_trio.tools.base import ToolCall, ToolError, Wanted
from crush_trio.wire.ids import MessageId, ToolCallId, WorkspaceId
from crush_trio.wire.messages import ToolCallPart

A, B = client_id(1), client_id(2)
WANTED = Wanted(
    action="execute",
    description="Execute command: ls",
    params={"command": "ls"},
    path=Path("/srv/project"),
)
ASKED = {
    "questions": [
        {"id": "go", "type": "yes_no", "question": "Go on?", "description": "It takes an hour."}
    ]
}


@define(eq=False)
class Asker:
    """The agent of every workspace of one server."""

    server: Served | None = None

    def __call__(self, _transcript):
        return self.turn

    async def turn(self, run):
        await trio.lowlevel.checkpoint()
        [opened] = [
            hosted
            for hosted in self.server.backend.workspaces()
            if any(accepted.id == run.id for accepted in hosted.runs.runs)
        ]
        ask = self.permission if run.prompt.startswith("allow") else self.question
        try:
            said = await ask(opened, run)
        except ToolError as error:
            said = error.result.content
        return Completion(message_id=MessageId(f"answer-{run.id}"), text=said)

    async def permission(self, opened: HostedWorkspace, run):
        call = ToolCallPart(id=ToolCallId(f"call-{run.id}"), name="bash", input="{}")
        with opened.asks.permissions.granting(run.id):
            await opened.asks.permissions.permit_call(run, call)(WANTED)
        return "allowed"

    async def question(self, opened: HostedWorkspace, run):
        result = await QuestionTool(opened.asks.questions).run(
            ToolCall(
                id=ToolCallId(f"call-{run.id}"),
                name="question",
                input=orjson.dumps(ASKED).decode(),
                session_id=run.session_id,
                run_id=run.id,
                message_id=MessageId("m"),
                permit=None,
            )
        )
        return result.content


@define(eq=False)
class Room:
    """A workspace of such a server, with one session in it."""

    server: Served
    place: ServedWorkspace
    session: str

    @property
    def opened(self) -> HostedWorkspace:
        return self.server.backend.workspace(WorkspaceId(self.place.id))

    async def submit(self, prompt, run_id, **more):
        body = {"session_id": self.session, "prompt": prompt, "run_id": run_id}
        body |= {"interactive": True, **more}
        answer = await self.place.request("POST", "/agent", body)
        assert answer.status in {200, 202}, answer

    async def get(self, target):
        answer = await self.place.request("GET", target)
        assert answer.status == 200, answer
        return answer.json()

    async def settle(self, target, body=b"", method="POST"):
        """Send what may settle something; return whether it did."""
        answer = await self.place.request(method, target, body)
        assert answer.status == 200, answer
        return answer.json()["resolved"]

    async def grant(self, permission, action="allow", **more):
        body = {"permission": permission, "action": action, **more}
        return await self.settle("/permissions/grant", body)

    async def text(self, run_id):
        return (await self.get(f"/runs/{run_id}")).get("text")


@asynccontextmanager
async def open_room(**more):
    asker = Asker()
    async with open_test_server(asker, **more) as server:
        asker.server = server
        place = await server.create(A)
        yield Room(server, place, await place.create_session())


def payload(event):
    """Return what a crush event is about."""
    return event["payload"]["payload"]


def of_type(*types):
    """Return a test for events of some types."""
    return lambda event: event["type"] in types


def words(events):
    """Return what a crush client was told about permissions, as short as can be."""
    told = []
    for event in events:
        if event["type"] == "permission_request":
            told.append("request")
        elif event["type"] == "permission_notification":
            flags = [
                name for name in ("granted", "denied", "withdrawn") if payload(event).get(name)
            ]
            told.append(" ".join(flags) or "asked")
    return told
