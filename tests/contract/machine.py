"""A user's machine: a home with a configuration, projects beside it, and a model of the test's own."""

from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import trio
from attrs import define, field

from crush_trio.testing import ScriptedProvider
from crush_trio.testing.model.script import Say
from crush_trio.testing.server.server import client_id
from tests.server.brought import open_server_with
from tests.server.scenarios import ending_of, entity

A = client_id(1)
LIMIT = 60
"""Seconds of real time that a scenario may take."""

MINE = {"providers": {"mine": {"models": [{"id": "m1", "name": "M One"}]}}}


@define(eq=False)
class Machine:
    """Where everything lies on a real disk. The agent's answers are taken from *answers*, in order."""

    root: Path
    answers: list = field(factory=list)
    model: ScriptedProvider = field(init=False)

    def __attrs_post_init__(self):
        self.root = self.root.resolve()
        self.model = ScriptedProvider(self._answer)
        self.configure({})

    def _answer(self, request):
        return self.answers.pop(0) if request.tools else [Say("A title")]

    @property
    def home(self):
        return self.root / "home"

    def project(self, name="project"):
        (self.root / name).mkdir(exist_ok=True)
        return self.root / name

    def configure(self, config):
        """Write the user's own configuration anew."""
        file = self.home / ".config" / "crush" / "crush.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(orjson.dumps(MINE | config))

    @asynccontextmanager
    async def serve(self, **brought):
        """Have a server for the user; *brought* is for `WorkspaceSettings`."""
        with trio.fail_after(LIMIT):
            async with open_server_with(
                make_turn=None,
                open_config=None,
                home=self.home,
                providers={"mine": self.model},
                **brought,
            ) as server:
                yield server

    async def ask(self, place, *answers):
        """Let the agent answer one prompt; return the results of its tools, and the events meanwhile."""
        self.answers += answers
        session = await place.create_session()
        with await place.watch(A) as events:
            await place.submit(session, "go", f"run in {session}")
            ending = await events.until(ending_of(f"run in {session}"))
            assert not entity(ending).get("error"), ending
        parts = [part for message in await place.messages(session) for part in message["parts"]]
        return [part["data"] for part in parts if part["type"] == "tool_result"], events.seen
