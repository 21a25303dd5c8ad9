"""Two clients of one workspace: anna submits a prompt, ben cancels it before it has started.

Run it with `python examples/cancel_anywhere.py`. Accepting a prompt and cancelling a session never
wait, so there is no moment between the two at which a cancel could be lost.
"""

import trio

from crush_trio import (
    Completion,
    Cursor,
    Run,
    RunChange,
    SessionId,
    Submission,
    Workspace,
    open_workspace,
)

SESSION = SessionId("shared")


async def turn(run: Run) -> Completion:
    """Stand in for an agent; in this program no run gets this far."""
    await trio.sleep(60)
    return Completion(text=f"an answer to {run.prompt}")


async def anna(workspace: Workspace, submitted: trio.Event) -> None:
    """Submit a prompt and wait for its one ending."""
    cursor = workspace.events.cursor()
    run = workspace.accept(Submission(session_id=SESSION, prompt="rewrite everything"))
    submitted.set()
    await run.wait()
    print("anna saw her run", states(cursor))


async def ben(workspace: Workspace, submitted: trio.Event) -> None:
    """Cancel all runs of the session, and read the receipt after all of them have ended."""
    cursor = workspace.events.cursor()
    await submitted.wait()
    receipt = await workspace.cancel(SESSION).settled()
    print("ben saw it", states(cursor))
    for hit in receipt.hits:
        print(f"receipt: {hit.state} when hit, {hit.run.state} after {hit.took:.0f} s")


def states(cursor: Cursor) -> str:
    """Read what has been published since the cursor was taken, without waiting."""
    return " then ".join(e.run.state for e in cursor.take().events if isinstance(e, RunChange))


async def main() -> None:
    """Open a workspace and run both clients."""
    submitted = trio.Event()
    async with open_workspace(turn) as workspace, trio.open_nursery() as clients:
        clients.start_soon(anna, workspace, submitted)
        clients.start_soon(ben, workspace, submitted)


if __name__ == "__main__":
    trio.run(main)
