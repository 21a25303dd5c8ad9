"""A server inside a Trio program, during a block.

Inside the block the server answers clients: other programs, or this one, as below. Leaving the
block cancels the runs, which write their endings, sends the endings to clients, and then stops the
server. The other tasks of the program are not affected.
"""

import os
from tempfile import TemporaryDirectory

import trio

from crush_trio import Address, ServerSettings, open_server
from crush_trio.client import RunEnded, TextPiece, open_client


async def ask(address: Address, directory: str) -> None:
    """Submit a prompt and print the answer as it comes."""
    async with open_client(address) as client, client.open_workspace(directory) as workspace:
        session = await workspace.sessions.create("embedded")
        run = await workspace.submit("long 24", session=session.id)
        async with run.stream() as pieces:
            async for piece in pieces:
                match piece:
                    case TextPiece(text=text):
                        print(text, end="", flush=True)
                    case RunEnded(run=ended):
                        print(f"\nthe run is {ended.state}")


async def tick(beats: list[float]) -> None:
    """Stand in for the program's own work."""
    while True:
        beats.append(trio.current_time())
        await trio.sleep(0.1)


async def main() -> None:
    """Do the program's own work; meanwhile serve, submit one prompt, and stop the server."""
    beats: list[float] = []
    async with trio.open_nursery() as program:
        program.start_soon(tick, beats)
        with TemporaryDirectory() as place:
            settings = ServerSettings(environment={"HOME": place, "PATH": os.environ["PATH"]})
            async with open_server(f"unix://{place}/socket", settings=settings) as [address]:
                await ask(address, place)
        print(f"the server is gone; the program went on beside it: {len(beats) > 3}")
        program.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
