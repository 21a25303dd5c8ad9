"""A server for load tests: real store, real sockets, and a turn that streams what it is asked for.

Prints its address and then serves until SIGTERM. A prompt is a number: so many pieces are streamed.
"""

import sys
from functools import partial

import trio

from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.net.address import parse_address
from crush_trio.runtime import Completion
from crush_trio.server.http.serve import wait_for_signal
from crush_trio.server.run import run_server
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role

GRACE = 3.0


def make_turn(transcript):
    async def turn(run):
        await trio.lowlevel.checkpoint()
        answer = await transcript.turn(run.id, run.session_id).create(
            Message(id=f"answer-{run.id}", role=Role.ASSISTANT, session_id=run.session_id)
        )
        for n in range(int(run.prompt)):
            answer.append_text(f"piece {n} ")
            await trio.sleep(0.001)
        answer.seal(FinishPart(reason=FinishReason.END_TURN, time=1))
        return Completion(message_id=answer.id, text="done")

    return turn


async def main():
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(
            partial(
                run_server,
                [parse_address("tcp://127.0.0.1:0")],
                workspaces=WorkspaceSettings(make_turn=make_turn),
                shutdown=wait_for_signal,
                grace=GRACE,
            )
        )
        sys.stdout.write(f"{addresses[0].port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main)
