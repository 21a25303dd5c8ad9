"""The whole thing in a quarter of a minute: a server, two clients, a cancel, a permission, a crash.

`make demo` runs it. Everything is real but the model, which is the offline demo: the server is a
process of its own on a private socket, with a home directory that is gone afterwards; the clients
are those of `crush_trio.client`; what is shown at the end was read from disk by another server.
Needs no key.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import Final

import trio
from attrs import define, field
from rich.console import Console
from rich.text import Text

from crush_trio import (
    FinishPart,
    Message,
    PermissionRequest,
    ReceiptView,
    SessionId,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from crush_trio.client import (
    Asked,
    RemoteWorkspace,
    RunEnded,
    RunHandle,
    Settled,
    TextPiece,
    open_client,
)

ENOUGH: Final = 320
"""How many characters of a long answer are read before the next action."""

SLEEPERS: Final = 2
"""How many processes the cancelled command starts."""

WIDTH: Final = 80
"""The width of printed text."""

LIMIT: Final = 60
"""The time limit of the demo, in seconds."""


# ── Output ──────────────────────────────────────────────────────────────────────────────────────

COLOURS: Final = {
    "server": "blue",
    "anna": "green",
    "ben": "magenta",
    "disk": "yellow",
    "": "dim",
    # those of cluster_demo.py
    "database": "yellow",
    "door": "red",
    "cleo": "cyan",
    "node 1": "blue",
    "node 2": "blue",
    "node 3": "blue",
}


@define(eq=False)
class Screen:
    """Prints one line per action; streamed text is wrapped between words."""

    console: Console
    column: int = 0
    """The column of the streamed line; 0 if there is none."""

    def chapter(self, title: str) -> None:
        """Begin a new chapter."""
        self.end_line()
        self.console.print(Text(f"\n── {title} ".ljust(WIDTH + 13, "─"), "bold"))

    def line(self, who: str, what: str, style: str = "") -> None:
        """Print a line of its own."""
        self.end_line()
        self.console.print(_name(who), Text(what, style), sep="")

    def speak(self, who: str, text: str) -> None:
        """Print more streamed text."""
        for word in text.split():
            if self.column + len(word) > WIDTH:
                self.end_line()
            if self.column == 0:
                self.console.print(_name(who), end="")
            self.console.print(Text(f"{word} "), end="")
            self.column += len(word) + 1

    def end_line(self) -> None:
        """End the streamed line."""
        if self.column:
            self.console.print()
        self.column = 0


def _name(who: str) -> Text:
    return Text(f"{who:>9} │ ", COLOURS[who])


screen = Screen(Console(highlight=False, soft_wrap=True))


def show_receipt(receipt: ReceiptView, left: int) -> None:
    """Print the receipt of a cancel."""
    screen.line("ben", f"has the receipt; complete: {'yes' if receipt.complete else 'no'}")
    for hit in receipt.hits:
        took = "" if hit.seconds is None else f" after {hit.seconds * 1000:.0f} ms"
        screen.line("", f"run {hit.id[:8]} was {hit.state}, is {hit.ended}{took}", "bold")
        stopped = " ".join(map(str, hit.processes)) or "none"
        screen.line("", f"processes stopped: {stopped}; processes left: {left}", "bold")


def show_message(message: Message) -> None:
    """Show a stored message, one line for each part."""
    for part in message.parts:
        match part:
            case TextPart(text=text):
                screen.line("disk", _cut(f"{message.role}: {text}"))
            case ToolCallPart(name=name, input=arguments):
                screen.line("disk", _cut(f"{message.role} calls {name} {arguments}"), "cyan")
            case ToolResultPart(name=name, content=content):
                screen.line("disk", _cut(f"{message.role}: {name} answers: {content}"), "cyan")
            case FinishPart(reason=reason) if message.model:
                screen.line("disk", f"    finished: {reason}", "dim")


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


# ── A server of its own ─────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Place:
    """A directory for everything: the server's home, its socket, and a project to work in."""

    home: Path

    @property
    def address(self) -> str:
        """Where the server listens."""
        return f"unix://{self.home}/crush.sock"

    @property
    def project(self) -> Path:
        """The directory that the agent works in."""
        return self.home / "project"

    async def serve(self, nursery: trio.Nursery) -> trio.Process:
        """Start `crush-trio serve`; return when it answers."""
        command = [sys.executable, "-m", "crush_trio", "serve", "--host", self.address]
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        start = partial(trio.run_process, command, env=environment, check=False)
        process: trio.Process = await nursery.start(partial(start, stdout=PIPE, stderr=PIPE))
        assert process.stdout is not None
        screen.line("server", bytes(await process.stdout.receive_some()).decode().strip())
        return process

    def commands(self, server: trio.Process) -> dict[int, str]:
        """Return the processes that agents have started, with their names.

        They are found by their environment, so that none is missed because its parent is gone.
        """
        mark = f"HOME={self.home}\0".encode()
        found = {int(each.name): _name_in(each, mark) for each in Path("/proc").glob("[0-9]*")}
        return {pid: name for pid, name in found.items() if name and pid != server.pid}


def _name_in(process: Path, mark: bytes) -> str:
    """Return the name of a process if *mark* is in its environment."""
    try:
        marked = mark in (process / "environ").read_bytes()
        return (process / "comm").read_text().strip() if marked else ""
    except OSError:  # it has ended, or belongs to another user
        return ""


# ── Two clients ─────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Stage:
    """Two clients in one workspace, and the sessions they have had so far."""

    anna: RemoteWorkspace
    ben: RemoteWorkspace
    sessions: list[SessionId] = field(factory=list, init=False)

    async def ask(self, prompt: str, nursery: trio.Nursery) -> RunHandle:
        """Let anna submit a prompt in a new session and follow its run."""
        screen.line("anna", f"asks: {prompt}")
        session = await self.anna.sessions.create("demo")
        self.sessions.append(session.id)
        run = await self.anna.submit(prompt, session=session.id, interactive=True)
        nursery.start_soon(watch, run)
        return run

    async def hear(self, run: RunHandle) -> None:
        """Let ben read the stream of anna's run for a while."""
        heard = 0
        async with self.ben.run(run.id).stream() as pieces:
            async for piece in pieces:
                heard += len(piece.text) if isinstance(piece, TextPiece) else 0
                if heard > ENOUGH:
                    return

    async def allow(self, run: RunHandle) -> None:
        """Let ben wait until anna's run asks for permission, and grant it."""
        async with self.ben.run(run.id).stream() as pieces:
            async for piece in pieces:
                if isinstance(piece, Asked) and isinstance(piece.request, PermissionRequest):
                    screen.line("ben", f"allows it, once: {piece.request.description}")
                    await self.ben.permissions.grant(piece.request)
                    return


async def watch(run: RunHandle) -> None:
    """Follow a run word by word to its ending, as anna."""
    async with run.stream() as pieces:
        async for piece in pieces:
            match piece:
                case TextPiece(text=text):
                    screen.speak("anna", text)
                case Settled(granted=granted):
                    screen.line("anna", f"is told: {'allowed' if granted else 'not allowed'}")
                case RunEnded(run=ended):
                    screen.line("anna", f"sees her run end: {ended.state}", "bold")


@asynccontextmanager
async def open_stage(place: Place) -> AsyncIterator[Stage]:
    """Connect both clients."""
    async with (
        open_client(place.address) as hers,
        open_client(place.address) as his,
        hers.open_workspace(place.project, interactive=True) as anna,
        his.open_workspace(place.project, interactive=True) as ben,
    ):
        yield Stage(anna, ben)


# ── What happens ────────────────────────────────────────────────────────────────────────────────


async def cancel_an_answer(stage: Stage, place: Place, server: trio.Process) -> None:
    """Let ben cancel an endless answer while anna reads it."""
    screen.chapter("A streaming answer, cancelled by the other client")
    async with trio.open_nursery() as nursery:
        run = await stage.ask("long 2000", nursery)
        await stage.hear(run)
        screen.line("ben", "cancels")
        receipt = await stage.ben.cancel(stage.sessions[-1])
    show_receipt(receipt, len(place.commands(server)))


async def use_a_tool(stage: Stage, place: Place) -> None:
    """Let ben give the permission that anna's run needs."""
    screen.chapter("A tool that needs permission, which the other client gives")
    async with trio.open_nursery() as nursery:
        await stage.allow(await stage.ask("write hello from anna to hello.txt", nursery))
    text = await trio.Path(place.project / "hello.txt").read_text()
    screen.line("disk", f"hello.txt has: {text}")


async def cancel_processes(stage: Stage, place: Place, server: trio.Process) -> None:
    """Let ben cancel a run that has processes."""
    screen.chapter("A command with a child of its own, cancelled with its run")
    async with trio.open_nursery() as nursery:
        await stage.allow(await stage.ask("run `sleep 600 & sleep 600`", nursery))
        while list(place.commands(server).values()).count("sleep") < SLEEPERS:  # noqa: ASYNC110 - processes cannot be waited for here
            await trio.sleep(0.05)
        running = ", ".join(f"{name} {pid}" for pid, name in place.commands(server).items())
        screen.line("server", f"has started: {running}")
        screen.line("ben", "cancels")
        receipt = await stage.ben.cancel(stage.sessions[-1])
    show_receipt(receipt, len(place.commands(server)))


async def crash(
    stage: Stage, place: Place, server: trio.Process, servers: trio.Nursery
) -> trio.Process:
    """Kill the server in the middle of an answer and start another; the clients stay attached."""
    screen.chapter("The server is killed in the middle of an answer")
    async with trio.open_nursery() as nursery:
        await stage.hear(await stage.ask("long 2000", nursery))
        screen.line("server", "is killed (SIGKILL); another one is started")
        server.kill()
        await server.wait()
        return await place.serve(servers)


async def read_back(stage: Stage) -> None:
    """Show what is stored of everything that happened."""
    screen.chapter("What is stored")
    for session in stage.sessions:
        for message in await stage.ben.sessions.messages(session):
            show_message(message)
    endings = ", ".join(run.state for run in reversed(await stage.ben.runs.list()))
    screen.line("disk", f"four runs, four endings: {endings}", "bold")


async def main() -> None:
    """Run the whole demo in a temporary home directory."""
    with TemporaryDirectory(prefix="crush-") as folder, trio.fail_after(LIMIT):
        place = Place(Path(folder))
        await trio.Path(place.project).mkdir()
        async with trio.open_nursery() as servers:
            server = await place.serve(servers)
            async with open_stage(place) as stage:
                await cancel_an_answer(stage, place, server)
                await use_a_tool(stage, place)
                await cancel_processes(stage, place, server)
                server = await crash(stage, place, server, servers)
                await read_back(stage)
            server.terminate()
            screen.line("server", f"ends with exit code {await server.wait()}")


if __name__ == "__main__":
    trio.run(main)
