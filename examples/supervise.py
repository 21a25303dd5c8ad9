"""Two clients of one workspace: one works; the other grants permissions and cancels slow runs."""

from tempfile import TemporaryDirectory

import trio

from crush_trio import Envelope, PermissionRequest, RunId, RunState, open_server
from crush_trio.client import RemoteWorkspace, RunEvent, open_client

PROMPTS = ["write hello to hello.txt", "run `touch evil.txt`", "long 5000"]


async def supervise(workspace: RemoteWorkspace) -> None:
    """Answer permission requests, and start a time limit when a run begins."""
    async with trio.open_nursery() as nursery, workspace.events() as events:
        async for event in events:
            match event:
                case Envelope(entity=PermissionRequest(tool_name="write") as request):
                    print("supervisor: files may be written")
                    await workspace.permissions.grant(request)
                case Envelope(entity=PermissionRequest() as request):
                    print(f"supervisor: no {request.tool_name}, please")
                    await workspace.permissions.deny(request)
                case RunEvent(run=run) if run.state is RunState.ACTIVE:
                    nursery.start_soon(limit, workspace, run.id)


async def limit(workspace: RemoteWorkspace, run_id: RunId) -> None:
    """Cancel a run that has not ended after three seconds."""
    with trio.move_on_after(3) as clock:
        await workspace.run(run_id).wait()
    if clock.cancelled_caught:
        receipt = await workspace.run(run_id).cancel()
        print(f"supervisor: that is enough; {len(receipt.hits)} run stopped")


async def work(workspace: RemoteWorkspace) -> None:
    """Submit prompts, one after the other."""
    session = await workspace.sessions.create("work")
    for prompt in PROMPTS:
        run = await workspace.submit(prompt, session=session.id)
        print(f"worker: {prompt}: {(await run.wait()).state}")


async def main(place: str) -> None:
    """Connect both clients, and run them until the work is done."""
    async with open_server(f"unix://{place}/socket") as [address], trio.open_nursery() as nursery:
        async with (
            open_client(address) as boss,
            boss.open_workspace(place, interactive=True) as theirs,
        ):
            async with open_client(address) as client, client.open_workspace(place) as ours:
                nursery.start_soon(supervise, theirs)
                await work(ours)
            nursery.cancel_scope.cancel()


with TemporaryDirectory() as folder:
    trio.run(main, folder)
