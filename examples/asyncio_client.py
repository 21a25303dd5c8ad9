"""The client in an asyncio program: two prompts at once, beside a task of the program's own.

The server is another process. `asyncio.timeout` bounds the whole, as it would any other work; a
timeout or a cancel leaves no connection behind, and the server keeps what was submitted.
"""

import asyncio  # noqa: TID251  # this program runs in it
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

from crush_trio.client import RemoteWorkspace, RunEnded, TextPiece, open_client


@asynccontextmanager
async def server(address: str) -> AsyncIterator[None]:
    """Have `crush-trio serve` run during a block."""
    words = f"-m crush_trio serve --log-level error --host {address}".split()
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=pipe)
    assert process.stdout is not None
    try:
        await process.stdout.readline()  # it says where it listens
        yield
    finally:
        process.terminate()
        await process.communicate()


async def ask(workspace: RemoteWorkspace, prompt: str) -> None:
    """Submit a prompt in a session of its own, and count the words of the answer as they come."""
    session = await workspace.sessions.create(prompt)
    run = await workspace.submit(prompt, session=session.id)
    text = ""
    async with run.stream() as pieces:
        async for piece in pieces:
            match piece:
                case TextPiece():
                    text += piece.text
                case RunEnded(run=ended):
                    print(f"{prompt}: {len(text.split())} words, {ended.state}")


async def tick(beats: list[float]) -> None:
    """Stand in for the program's own work."""
    while True:
        beats.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)


async def main(address: str, place: str, beats: list[float]) -> None:
    """Ask twice at the same time, while another task of the program works."""
    async with asyncio.timeout(60), server(address), open_client(address) as client:
        ticking = asyncio.create_task(tick(beats))
        async with client.open_workspace(place) as workspace, asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(workspace, "long 5"))
            tasks.create_task(ask(workspace, "long 25"))
        ticking.cancel()
    print(f"the program went on beside it: {len(beats) > 3}")


with TemporaryDirectory() as folder:
    asyncio.run(main(f"unix://{folder}/socket", folder, []))
