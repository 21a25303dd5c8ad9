"""An agent in a program: own tools, a permission callback, streaming, a conversation, a cancel.

No server and no socket. The offline demo model stands in for a real one: leave `provider` out and set
ANTHROPIC_API_KEY or OPENAI_API_KEY, or name a model, such as `provider="anthropic/claude-sonnet-4-5"`.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from crush_trio import PermissionRequest, ToolCall, ToolError, Wanted, open_agent

TICKETS = {"T-7": "The door squeaks."}


async def read_ticket(ticket: str) -> str:
    """Returns the text of a ticket."""
    if ticket not in TICKETS:
        raise ToolError(f"there is no ticket {ticket}")  # the model can act on it
    return TICKETS[ticket]


async def close_ticket(ticket: str, call: ToolCall) -> str:
    """Closes a ticket."""
    about = f"Close {ticket}"
    await call.permit(Wanted(action="close", description=about, params={}, path=Path.cwd()))
    del TICKETS[ticket]
    return f"{ticket} is closed"


async def permit(request: PermissionRequest) -> bool:
    """Answer a tool that asks for permission; an application would show it to a person."""
    print(f"permit {request.tool_name}? {request.description}")
    return request.tool_name == "close_ticket"


async def main(folder: Path) -> None:
    """Use the agent in all the ways it has."""
    async with open_agent(
        tools=[read_ticket, close_ticket], provider="demo", permit=permit, directory=folder
    ) as agent:
        session = await agent.new_session("tickets")
        for prompt in ("use read_ticket on T-7", "use close_ticket on T-7"):
            print((await agent.ask(prompt, session=session)).splitlines()[2].strip())
        async for piece in await agent.submit("long 8"):
            print(piece, end="")
        print()
        with trio.move_on_after(0.2):
            await agent.ask("long 5000")  # leaving the scope cancels the run
        await agent.ask("write hello to a.txt")
        print("written:", (folder / "a.txt").exists())
        print(len(await agent.sessions()), "conversations")


with TemporaryDirectory() as place:
    trio.run(main, Path(place))
