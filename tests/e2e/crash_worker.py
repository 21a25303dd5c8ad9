"""Runs the durable workspace in processes that are killed on the way.

A program of its own: it imports everything once, then reads one order per line on stdin, forks for
each, and answers with how the child ended. A child works on a data directory as a server would:
recover, accept, stream, cancel, finish. It kills itself with SIGKILL at the n-th Trio task step, or
at the n-th SQL statement, inside a transaction as likely as not. What a client would have been told
(the acceptance is durable; the run has ended) goes to a file beside the data, line by line.
"""

import json
import os
import signal
import sqlite3
import sys
from functools import partial
from pathlib import Path

import trio
import trio.abc

from crush_trio.agent.record.journal import open_recorded_runs
from crush_trio.clock import RandomIds
from crush_trio.runtime import Completion, Submission
from crush_trio.store.changes import SessionCreated
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    Role,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.wire.views import Session

SESSIONS = ("one", "two")
IDS = RandomIds()


class Countdown(trio.abc.Instrument):
    """Counts down task steps or statements, and kills the process at zero."""

    def __init__(self, n, before_the_kill=lambda: None):
        self.n = n
        self.seen = 0
        self.before_the_kill = before_the_kill

    def count(self):
        self.seen += 1
        if self.seen == self.n:
            self.before_the_kill()
            os.kill(os.getpid(), signal.SIGKILL)

    def before_task_step(self, _task):
        self.count()


class Told:
    """What clients were told, in a file that survives the process."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what, run_id):
        os.write(self.fd, f"{what} {run_id}\n".encode())


def make_turn(transcript):
    async def turn(run):
        await trio.lowlevel.checkpoint()
        await run.fold()
        record = transcript.turn(run.id, run.session_id)
        answer = await record.create(
            Message(id=IDS.new(), role=Role.ASSISTANT, session_id=run.session_id)
        )
        run.partial = lambda: Completion(message_id=answer.id)
        for word in ("some ", "words ", "in ", "pieces"):
            answer.append_text(word)
            await trio.sleep(0.0005)
        call = ToolCallPart(id=IDS.new(), name="view")
        await answer.put_tool_call(call)
        if run.prompt == "fail":
            raise ValueError("this one fails")
        await trio.sleep(0.5 if run.prompt == "long" else 0.001)
        result = ToolResultPart(tool_call_id=call.id, name="view", content="seen")
        await record.write(
            Message(id=IDS.new(), role=Role.TOOL, session_id=run.session_id, parts=(result,))
        )
        answer.seal(FinishPart(reason=FinishReason.END_TURN, time=1))
        return Completion(message_id=answer.id, text="some words in pieces")

    return turn


async def client(workspace, told, session_id, prompt, *, named):
    run_id = IDS.new() if named else None
    accepted = workspace.runs.accept(
        Submission(session_id=session_id, prompt=prompt, run_id=run_id)
    )
    await accepted.journaled()
    told.note("accepted", accepted.id)
    await accepted.wait()
    told.note("ended", accepted.id)


async def work(directory, told):
    async with (
        open_sqlite_store(Path(directory)) as store,
        open_recorded_runs(store, make_turn, pace=0.001) as workspace,
    ):
        known = {session.id for session in await store.sessions()}
        for session_id in SESSIONS:
            if session_id not in known:
                session = Session(id=session_id, title=session_id, created_at=1, updated_at=1)
                await store.commit(SessionCreated(session=session))
        async with trio.open_nursery() as nursery:
            for session_id in SESSIONS:
                nursery.start_soon(
                    partial(client, workspace, told, session_id, "hello", named=True)
                )
                nursery.start_soon(
                    partial(client, workspace, told, session_id, "more", named=False)
                )
            nursery.start_soon(partial(client, workspace, told, "one", "fail", named=True))
            nursery.start_soon(partial(client, workspace, told, "two", "long", named=True))
            nursery.start_soon(partial(client, workspace, told, "nowhere", "lost", named=True))
            await trio.sleep(0.02)
            workspace.runs.cancel("two")


def child(order):
    countdown = Countdown(order["n"])
    instruments = []
    if order["where"] == "step":
        instruments.append(countdown)
    else:
        connect = sqlite3.connect

        def traced(*args, **kwargs):
            connection = connect(*args, **kwargs)
            connection.set_trace_callback(lambda _statement: countdown.count())
            return connection

        sqlite3.connect = traced
    told = Told(Path(order["directory"]) / "told.txt")
    trio.run(work, Path(order["directory"]) / "data", told, instruments=instruments)
    return countdown.seen


def main():
    for line in sys.stdin:
        order = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, str(child(order)).encode())
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(pid, 0)
        seen = os.read(reading, 20).decode()
        os.close(reading)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        failed = not killed and status != 0
        answer = {"killed": killed, "failed": failed, "seen": int(seen or 0)}
        print(json.dumps(answer), flush=True)  # noqa: T201  # the answer is this program's output


if __name__ == "__main__":
    main()
