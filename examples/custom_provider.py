"""A custom provider: anything that can stream text can be the model of an agent.

A provider opens a stream per request and yields parts; the last one is `Finished`. It has nothing
to do with runs or sessions: the caller leaves the block when it has enough, or is cancelled. The
program provides the model, and the configuration selects it.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from tempfile import TemporaryDirectory

import trio

from crush_trio import (
    Finished,
    FinishReason,
    ModelRequest,
    Parts,
    StreamPart,
    TextDelta,
    TextPart,
    WorkspaceSettings,
    open_server,
)
from crush_trio.client import open_client

CONFIG = {"providers": {"parrot": {"models": [{"id": "grey", "name": "Grey Parrot"}]}}}


class Parrot:
    """Satisfies `crush_trio.Provider`: repeats what was said last, word by word."""

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Parts]:
        """Open one answer."""
        async with aclosing(self._speak(request)) as parts:
            yield parts

    async def _speak(self, request: ModelRequest) -> AsyncGenerator[StreamPart]:
        said = [part.text for part in request.messages[-1].parts if isinstance(part, TextPart)]
        for word in " ".join(said).split():
            await trio.sleep(0.01)
            yield TextDelta(f"{word.upper()} ")
        yield Finished(reason=FinishReason.END_TURN)


async def main(place: str) -> None:
    """Serve agents that have the model, for a user whose configuration names it."""
    await trio.Path(place, "crush.json").write_text(json.dumps(CONFIG))
    workspaces = WorkspaceSettings(
        providers={"parrot": Parrot()}, environment={"CRUSH_GLOBAL_CONFIG": place}
    )
    async with open_server(f"unix://{place}/socket", workspaces=workspaces) as [address]:
        async with open_client(address) as client, client.open_workspace(place) as workspace:
            print((await workspace.agent.info()).model.name)
            session = await workspace.sessions.create("talk")
            run = await workspace.submit("who is a pretty bird", session=session.id)
            print(await run.result_text())


with TemporaryDirectory() as folder:
    trio.run(main, folder)
