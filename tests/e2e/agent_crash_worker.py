"""Runs a whole agent in processes that are killed on the way, with real commands below them.

A program of its own: it imports everything once, then reads one order per line on stdin, forks for
each, and answers with how the child ended. A child works on a data directory as a server would: the
real coordinator on a real store, with shell commands, a task, a summary, titles, a question to
nobody. It is killed with SIGKILL at the n-th Trio task step, at the n-th SQL statement, or after n
milliseconds. What a client would have been told goes to a file beside the data, line by line.

Every command has the order's token in its environment; whoever looks for it finds what is left.
"""

import json
import logging
import os
import select
import signal
import sqlite3
import sys
from functools import partial
from pathlib import Path
from time import monotonic

import trio
from attrs import define, field

from crush_trio.agent.asks.asks import withdraw_orphans
from crush_trio.agent.asks.permissions import Permissions
from crush_trio.agent.coordinator import AgentTurn
from crush_trio.agent.record.journal import open_recorded_runs
from crush_trio.agent.turn.plan import Desk
from crush_trio.agent.turn.summary import INSTRUCTIONS as SUMMARIZE
from crush_trio.agent.turn.title import INSTRUCTIONS as TITLE
from crush_trio.agent.turn.title import Titles
from crush_trio.clock import RandomIds, SystemClock
from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime import Submission
from crush_trio.store.changes import SessionCreated
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.testing.model.provider import ScriptedProvider
from crush_trio.testing.model.script import CallTool, Refuse, Say, Sleep, Think, text_of
from crush_trio.testing.server.agent import ScriptedAgent, ScriptedTool
from crush_trio.tools.base import ToolResult
from crush_trio.tools.shell.bash import BashTool
from crush_trio.tools.shell.jobs import Jobs
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.asks import PermissionMode, PermissionPolicy
from crush_trio.wire.messages import Role
from crush_trio.wire.runs import RunKind
from crush_trio.wire.views import Session
from tests.e2e.crash_worker import Countdown, Told

SESSIONS = ("one", "two")
TOKEN = "CRASH_TOKEN"
ALLOWED = PermissionPolicy(mode=PermissionMode.ALLOW)
IDS, CLOCK = RandomIds(), SystemClock()


# ── What the model says ─────────────────────────────────────────────────────────────────────────


def shell(command, **more):
    return CallTool("bash", {"command": command, "description": "a test", **more}, id=IDS.new())


FIRST_STEPS = {
    "shell": lambda: [Think("hm"), Say("I run "), Say("it."), shell("sleep 0.02; echo hello")],
    "stay": lambda: [
        Say("This takes long."),
        shell("sleep 997 & (setsid sleep 998 &) ; sleep 999"),
    ],
    "leave": lambda: [shell("echo begun; sleep 996", run_in_background=True)],
    "ask": lambda: [Say("May I?"), shell("touch a_file")],
    "task": lambda: [
        CallTool("agent", {"prompt": "find it"}, id=IDS.new()),
        shell("echo beside; true"),
    ],
    "find it": lambda: [Say("Looking."), CallTool("view", {}, id=IDS.new())],
    "fail": lambda: [Say("I was"), Refuse(400, "no")],
}


def answer(request):
    """Return what the model says next: the first step of what was asked, or that it is done."""
    if request.system == (TITLE,):
        return [Sleep(0.01), Say("A title")]
    if request.system == (SUMMARIZE,):
        return [Say("So "), Sleep(0.005), Say("far.")]
    asked = request.messages[-1].role is Role.USER
    first = FIRST_STEPS.get(text_of(request)) if asked else None
    return [Say("All "), Sleep(0.002), Say("done.")] if first is None else first()


# ── What runs it ────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Agent(ScriptedAgent):
    """The agent of a directory, on the machine's clock."""

    directory: Path = field(kw_only=True)

    def make_turn(self, transcript, store, ids):
        self.permissions = Permissions(
            directory=self.directory,
            store=store,
            publish=transcript.events.publish,
            clock=CLOCK,
            ids=ids,
            attendance=self.attendance,
        )
        self.desk = Desk(transcript, transcript.events, store, CLOCK, ids, self.permissions)
        return AgentTurn(self.desk, self, Titles(self.desk, self))


async def look(_call):
    await trio.sleep(0.005)
    return ToolResult(content="seen")


def make_agent(directory, store, jobs, token):
    """Return the agent of a directory; its commands bear *token*."""
    env = {"PATH": os.environ["PATH"], TOKEN: token}
    bench = Workbench(directory, store, lambda _event: None, CLOCK, IDS, env)
    tools = {"bash": BashTool(bench, Jobs(jobs, CLOCK)), "view": ScriptedTool("view", look)}
    return Agent(ScriptedProvider(answer), tools, directory=directory)


async def client(workspace, told, session_id, prompt, **more):
    accepted = workspace.runs.accept(Submission(session_id=session_id, prompt=prompt, **more))
    await accepted.journaled()
    told.note("accepted -", accepted.id)
    outcome = await accepted.wait()
    told.note(f"ended {outcome.state.value}", accepted.id)


async def work(directory, told, token):
    async with (
        open_sqlite_store(directory / "data") as store,
        open_hidden_nursery() as jobs,
    ):
        agent = make_agent(directory, store, jobs, token)
        async with open_recorded_runs(
            store, lambda transcript: agent.make_turn(transcript, store, IDS), pace=0.001
        ) as workspace:
            await withdraw_orphans(store, workspace.events.publish, CLOCK)
            await open_sessions(store)
            await talk(workspace, told)
        jobs.cancel_scope.cancel()


async def open_sessions(store):
    known = {session.id for session in await store.sessions()}
    for name in SESSIONS:
        if name not in known:
            session = Session(id=name, title="New Session", created_at=1, updated_at=1)
            await store.commit(SessionCreated(session=session))


async def talk(workspace, told):
    """Be several clients at once, and one that has had enough of the second session."""
    sends = partial(client, workspace, told)
    async with trio.open_nursery() as nursery:
        for prompt in ("shell", "task", "fail", "leave"):
            nursery.start_soon(partial(sends, "one", prompt, run_id=IDS.new(), permissions=ALLOWED))
        nursery.start_soon(partial(sends, "one", "more"))
        nursery.start_soon(partial(sends, "one", "", kind=RunKind.SUMMARIZE))
        nursery.start_soon(partial(sends, "two", "stay", run_id=IDS.new(), permissions=ALLOWED))
        await trio.sleep(0.15)
        workspace.runs.cancel("two")
        nursery.start_soon(partial(sends, "two", "ask", run_id=IDS.new()))
        nursery.start_soon(partial(sends, "two", "more"))
        await trio.sleep(0.15)
        workspace.runs.cancel("two")


# ── Killing ─────────────────────────────────────────────────────────────────────────────────────


def trace_statements(countdown):
    """Have every SQL statement of this process counted."""
    connect = sqlite3.connect

    def traced(*args, **kwargs):
        connection = connect(*args, **kwargs)
        connection.set_trace_callback(lambda _statement: countdown.count())
        return connection

    sqlite3.connect = traced


def bearers(token):
    """Return the processes that have *token* in their environment."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                environment = (directory / "environ").read_bytes()
            except OSError:
                continue  # it has ended
            if f"{TOKEN}={token}".encode() in environment:
                found.append(int(directory.name))
    return found


def child(order, note):
    """Work, and return how many steps or statements it took; *note* is called before a kill."""
    countdown = Countdown(order["n"], note)
    if order["where"] == "statement":
        trace_statements(countdown)
    instruments = [countdown] if order["where"] == "step" else []
    directory = Path(order["directory"])
    told = Told(directory / "told.txt")
    trio.run(work, directory, told, order["token"], instruments=instruments)
    return countdown.seen


def wait_for(pid, limit, note):
    """Wait until a child has ended; kill it after *limit* milliseconds, if there is a limit."""
    descriptor = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    if not poller.poll(limit):
        note()
        os.kill(pid, signal.SIGKILL)
    os.close(descriptor)
    return os.waitpid(pid, 0)[1]


def carry_out(order):
    """Have a child carry out an order, and return how it ended.

    The commands that it leaves are counted just before it is killed: afterwards they are gone so
    soon that a busy machine sees none of them.
    """
    reading, writing = os.pipe()

    def note():
        os.write(writing, f"{len(bearers(order['token']))} killed".encode())

    began = monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.write(writing, str(child(order, note)).encode())
        os._exit(0)
    timed = order["where"] == "time"
    status = wait_for(pid, order["n"] if timed and order["n"] else None, note)
    os.close(writing)
    number, *noted = os.read(reading, 20).decode().split() or ["0"]
    os.close(reading)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return {
        "killed": killed,
        "failed": not killed and status != 0,
        "seen": round((monotonic() - began) * 1000) if timed else int(number),
        "processes": int(number) if noted else 0,
    }


def main():
    logging.basicConfig(handlers=[logging.NullHandler()])  # runs fail here on purpose
    for line in sys.stdin:
        answer = carry_out(json.loads(line))
        print(json.dumps(answer), flush=True)  # noqa: T201  # the answer is this program's output


if __name__ == "__main__":
    main()
