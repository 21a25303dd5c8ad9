"""The MCP server `everything` of npm over each transport: a server that we have not written."""

import os
import re
import subprocess
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from attrs import define, field

from crush_trio.integrations.mcp.session import CallContext
from crush_trio.tools.base import ToolCall
from crush_trio.wire.asks import QuestionResponse
from tests.config.homes import Home
from tests.integrations.mcp_real import open_real

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_clock,
    pytest.mark.needs("mcp-server-everything"),
    pytest.mark.item("I.4"),
    # The package leaves the iterators of closed answers to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
]

PROGRAM = "mcp-server-everything"


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@define(eq=False)
class Caller:
    """Calls the tools of a workspace as a model does; allows everything, and answers questions."""

    place: object
    progress: list = field(factory=list)
    asked: list = field(factory=list)

    async def __call__(self, tool, arguments="{}"):
        tools = {each.name: each for each in self.place.servers.tools()}
        call = ToolCall(
            id="c",
            name=tool,
            input=arguments,
            session_id="s",
            run_id="r",
            message_id="m",
            permit=self.permit,
            images=True,
            ask=self.answer,
            progress=self.progress.append,
        )
        return await tools[f"mcp_desk_{tool}"].run(call)

    async def permit(self, _wanted):
        await trio.lowlevel.checkpoint()

    async def answer(self, questions):
        await trio.lowlevel.checkpoint()
        self.asked.append(questions)
        return tuple(QuestionResponse(request_id=each.id, **_answer(each)) for each in questions)


def _answer(question):
    if question.type == "yes_no":
        return {"yes": True}
    if question.choices:
        return {"selected_ids": (question.choices[0].id,)}
    return {"fill_in_text": "7"}


@asynccontextmanager
async def stdio(_home):
    yield {"type": "stdio", "command": PROGRAM, "args": ["stdio"]}


@asynccontextmanager
async def at_url(home, mode, kind, path):
    """Run the server on a free port and yield its configuration."""
    with trio.socket.socket() as probe:
        await probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with trio.open_nursery() as nursery:
        command = partial(
            trio.run_process,
            [PROGRAM, mode],
            env={**os.environ, "PORT": str(port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        process = await nursery.start(command)
        heard = b""
        while str(port).encode() not in heard:
            data = await process.stderr.receive_some()
            assert data, heard
            heard += data
        yield {"type": kind, "url": f"http://127.0.0.1:{port}/{path}"}
        nursery.cancel_scope.cancel()


TRANSPORTS = {
    "stdio": stdio,
    "sse": partial(at_url, mode="sse", kind="sse", path="sse"),
    "http": partial(at_url, mode="streamableHttp", kind="http", path="mcp"),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_from_npm_works_over_each_transport(home, transport):
    async with TRANSPORTS[transport](home) as entry:
        home.write(home.user_file, {"mcp": {"desk": {**entry, "timeout": 30}}})
        async with open_real(home) as place:
            await place.servers.settled()
            info = place.servers.states()["desk"]
            assert (info.state, info.error) == ("connected", "")
            call = Caller(place)
            assert "5" in (await call("get-sum", '{"a": 2, "b": 3}')).content

            picture = await call("get-tiny-image")
            assert picture.media.mime_type == "image/png"

            assert home.project.as_uri() in (await call("get-roots-list")).content

            await call("trigger-long-running-operation", '{"duration": 0.2, "steps": 2}')
            assert re.fullmatch(r"the MCP server desk: .*\(1 of 2\)", call.progress[0])

            said = (await call("trigger-elicitation-request")).content
            [questions] = call.asked
            assert {each.type.value for each in questions} >= {"free_text", "yes_no"}
            assert all("desk (MCP server)" in each.question for each in questions)
            assert '"accept"' in said, said


async def test_a_cancelled_call_asks_nothing_any_more_and_leaves_the_server_usable(home):
    withdrawn = []

    async def asked(scope, _elicitation):
        scope.cancel()
        try:
            await trio.sleep_forever()
        finally:
            withdrawn.append(True)

    async with stdio(home) as entry:
        home.write(home.user_file, {"mcp": {"desk": {**entry, "timeout": 30}}})
        async with open_real(home) as place:
            server = place.servers.server("desk")
            with trio.CancelScope() as scope:
                context = CallContext(elicit=partial(asked, scope))
                await server.use(
                    lambda session: session.call("trigger-elicitation-request", {}, context)
                )
            assert withdrawn == [True]
            assert "5" in (await Caller(place)("get-sum", '{"a": 2, "b": 3}')).content
            assert place.told.words() == ["starting", "connected"]
