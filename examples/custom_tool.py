"""A custom tool: the agent closes tickets, which only your program can do.

The model gets the schema of the arguments. `permit` asks a person, unless permissions are
skipped, as here. The model can act on a `ToolError`; any other exception fails the run.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import trio
from attrs import define, frozen

from crush_trio import (
    About,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
    WorkspaceSettings,
    open_server,
    read_arguments,
    schema_of,
)
from crush_trio.client import open_client


@frozen(kw_only=True)
class Arguments:
    """The arguments of the tool."""

    ticket: Annotated[str, About("The id of an open ticket, such as T-7.")]


@define(eq=False)
class CloseTicket:
    """Satisfies `crush_trio.Tool`."""

    place: Path
    tickets: set[str]
    name, description, parallel = "close_ticket", "Closes a ticket of this project.", False
    parameters = schema_of(Arguments)

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Close a ticket, if it exists and the permission is given."""
        ticket = read_arguments(call.input, Arguments).ticket
        if ticket not in self.tickets:
            raise ToolError(f"there is no open ticket {ticket}")
        about = f"Close the ticket {ticket}"
        await call.permit(Wanted(action="close", description=about, params={}, path=self.place))
        self.tickets.remove(ticket)
        return ToolResult(content=f"{ticket} is closed; {len(self.tickets)} left")


async def main(place: str, tickets: set[str]) -> None:
    """Serve agents with the tool; the demo model uses it twice, and the second call fails."""
    settings = WorkspaceSettings(extra_tools=lambda b: [CloseTicket(b.directory, tickets)])
    async with open_server(f"unix://{place}/socket", workspaces=settings) as [address]:
        async with open_client(address) as client, client.open_workspace(place, yolo=True) as here:
            session = await here.sessions.create("tickets")
            for prompt in ["use close_ticket on T-7"] * 2:
                run = await here.submit(prompt, session=session.id)
                print(await run.result_text())


with TemporaryDirectory() as folder:
    trio.run(main, folder, {"T-7", "T-8"})
