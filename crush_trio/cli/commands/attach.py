"""`crush-trio attach`: a session as it lives, and a place to take part.

What `crush-trio attach` does: watch one session, and take part in it.

Four tasks, all below one nursery: one watches, one reads keys, one does in order what keys have asked
for, one paints. A cancel does not wait in that order. Leaving cancels them all, and the terminal is as
it was, however one leaves.
"""

import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

import click
import trio
from attrs import define, field
from rich.console import Console
from rich.text import Text

from crush_trio.cli.exits import explain
from crush_trio.cli.options import (
    Invocation,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
    is_interactive,
    pass_invocation,
)
from crush_trio.cli.report.conversation import failure
from crush_trio.cli.report.reporter import short
from crush_trio.cli.report.session import SessionView, send_answer
from crush_trio.cli.report.terminal import Stage, spinner
from crush_trio.cli.server_link import find_session, open_directory, open_server
from crush_trio.cli.terminal.editor import LineEditor, layout
from crush_trio.cli.terminal.keyboard import Key, Keyboard, open_keyboard
from crush_trio.cli.terminal.screen import Bottom, Renderer
from crush_trio.cli.terminal.signals import Interrupts, interruptible
from crush_trio.cli.terminal.text import one_line
from crush_trio.client.events import EventReader, Resynced
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.errors import CrushError
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.events import ConfigChanged, Envelope
from crush_trio.wire.views import Session

Deed: TypeAlias = Callable[[], Awaitable[object]]
"""Something that was asked for and takes a while."""


async def attach_to(
    environ: Mapping[str, str], place: tuple[str | None, str], session: str | None, new: bool
) -> int:
    """Attach to a session until somebody leaves; return the exit code."""
    host, directory = place

    async def work(interrupts: Interrupts) -> int:
        async with (
            open_server(host, environ, embed=True) as reached,
            open_directory(reached, directory, environ, interactive=True) as workspace,
        ):
            chosen = await _choose(workspace, session, new=new)
            attached = Attached(workspace, SessionView(chosen))
            await attached.attend(interrupts)
        print(farewell(attached.view, embedded=reached.embedded))
        return 0

    return await interruptible(work)


def farewell(view: SessionView, *, embedded: bool) -> str:
    """Return what is said to somebody who leaves: what goes on, and how to come back."""
    back = f"Come back with: crush-trio attach {short(view.session.id)}"
    if not view.busy:
        return back
    if embedded:
        return f"What ran was stopped with its server.\n{back}"
    return f"What runs goes on as long as others are attached.\n{back}"


async def _choose(workspace: RemoteWorkspace, text: str | None, *, new: bool) -> Session:
    """Return the session that is meant; the last one, or a new one if there is none."""
    await trio.lowlevel.checkpoint()
    if text is not None:
        return await find_session(workspace, text)
    sessions = () if new else await workspace.sessions.list()
    return sessions[0] if sessions else await workspace.sessions.create()


@define(eq=False)
class Attached:
    """Somebody at a terminal, attached to a session. It is its own `Bottoms`."""

    workspace: RemoteWorkspace = field(repr=False)
    view: SessionView
    model: str = field(default="", init=False)
    hint: str = field(default="", init=False)
    _editor: LineEditor = field(factory=LineEditor, init=False, repr=False)
    _stage: Stage = field(init=False, repr=False)
    _leave: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._stage = Stage(Console(), self.view.conversation, self, self._seen)

    def _seen(self) -> None:
        self.view.asking.seen(trio.current_time())

    # ── Tasks ───────────────────────────────────────────────────────────────────────────────────

    async def attend(self, interrupts: Interrupts) -> None:
        """Be attached until somebody leaves."""
        with open_keyboard(sys.stdin.fileno(), signals=False) as keyboard:
            interrupts.before_leaving(keyboard.leave)
            try:
                with self._leave:
                    async with self._deeds() as hands, self.workspace.events() as events:
                        hands.nursery.start_soon(self._stage.perform)
                        hands.nursery.start_soon(self._read_keys, keyboard, hands)
                        await self._watch(events)
                        self._leave.cancel()
            finally:
                self._stage.close()

    @asynccontextmanager
    async def _deeds(self) -> AsyncIterator["_Hands"]:
        sender, receiver = trio.open_memory_channel[Deed](math.inf)
        async with open_hidden_nursery() as nursery:
            hands = _Hands(nursery, sender, self._try)
            nursery.start_soon(hands.work, receiver)
            yield hands

    async def _watch(self, events: EventReader) -> None:
        """Show what happens, for ever."""
        await self._catch_up()
        async for event in events:
            if isinstance(event, Resynced):
                await self._catch_up()
            elif isinstance(event, Envelope) and isinstance(event.entity, ConfigChanged):
                await self._try(self._learn_model)
            else:
                self.view.take(event)
            if self.view.gone:
                self.view.conversation.note(Text("The session was deleted.", "yellow"))
                self._leave.cancel()
            self._stage.touch()

    async def _catch_up(self) -> None:
        """Read everything anew: at the beginning, and when something was missed."""
        workspace, session_id = self.workspace, self.view.session.id
        await self._learn_model()
        messages = await workspace.sessions.messages(session_id)
        runs = await workspace.runs.list(session_id)
        permissions = await workspace.permissions.pending()
        questions = await workspace.questions.pending()
        self.view.catch_up(messages, runs, (*permissions, *questions))
        self._stage.touch()

    async def _learn_model(self) -> None:
        selected = (await self.workspace.agent.info()).model_cfg
        self.model = f"{selected.provider}/{selected.model}"

    async def _read_keys(self, keyboard: Keyboard, hands: "_Hands") -> None:
        while True:
            for key in await keyboard.read():
                if key.name == "ctrl-z":
                    self._stage.withdraw()
                    keyboard.suspend()
                else:
                    self._press(key, hands)
            self._stage.touch()

    async def _try(self, deed: Deed) -> None:
        """Do something; if that fails, say so and go on."""
        await trio.lowlevel.checkpoint()
        try:
            await deed()
        except CrushError as error:
            self.view.conversation.note(failure(*explain(error)))
        self._stage.touch()

    # ── Keys ────────────────────────────────────────────────────────────────────────────────────

    def _press(self, key: Key, hands: "_Hands") -> None:
        """Do what a key means."""
        self.hint = ""
        asking, busy = self.view.asking, self.view.busy
        if key.name == "hangup" or (key.name == "ctrl-d" and not self._editor.text):
            self._leave.cancel()
        elif key.name == "ctrl-c" or (key.name == "escape" and asking.dialog is None):
            self._stop(hands) if busy else self._clear()
        elif asking.dialog is not None:
            if given := asking.press(key, trio.current_time()):
                hands.soon(lambda: send_answer(self.workspace, *given))
        elif key.name == "enter":
            self._submit(hands)
        else:
            self._editor.press("delete" if key.name == "ctrl-d" else key.name, key.text)

    def _submit(self, hands: "_Hands") -> None:
        if prompt := self._editor.take().strip():
            session_id = self.view.session.id
            hands.soon(lambda: self.workspace.submit(prompt, session=session_id))

    def _stop(self, hands: "_Hands") -> None:
        self.hint = "cancelling"
        hands.now(self._cancel)

    async def _cancel(self) -> None:
        try:
            self.view.cancelled(await self.workspace.cancel(self.view.session.id))
        finally:
            self.hint = ""

    def _clear(self) -> None:
        if self._editor.text:
            self._editor.take()
        else:
            self.hint = "nothing runs; ctrl-d leaves"

    # ── The bottom ──────────────────────────────────────────────────────────────────────────────

    @property
    def moving(self) -> bool:
        """Whether something runs, and does not wait for us."""
        return self.view.busy and self.view.asking.dialog is None

    def bottom(self, renderer: Renderer, width: int, room: int) -> Bottom:
        """Return what the session does, and the line that takes a prompt or an answer."""
        if self._leave.cancel_called:
            return Bottom()
        dialog = self.view.asking.dialog
        if dialog is not None:
            line = dialog.bottom(width)
        else:
            line = layout("> ", self._editor.text, self._editor.cursor, width)
        first = max(0, line.row + 1 - room)
        shown = line.lines[first : first + room]
        above = ["", *renderer.lines(self._status(), width)[:1]][: max(0, room - len(shown))]
        return Bottom((*above, *shown), (line.row - first + len(above), line.column))

    def _status(self) -> Text:
        title = one_line(self.view.session.title or "new session", 40)
        facts = [self._doing(), title, short(self.view.session.id), self.model]
        text = Text(" · ".join(filter(None, facts)), "dim")
        if self.moving:
            text = Text.assemble((f"{spinner(trio.current_time())} ", "cyan"), text)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text

    def _doing(self) -> str:
        if self.view.offline:
            return f"no connection: {one_line(self.view.offline, 40)}"
        if self.hint:
            return self.hint
        if not self.view.busy:
            return "ctrl-d leaves"
        waiting = f"{self.view.waiting} waiting, " if self.view.waiting else ""
        return f"{waiting}esc cancels"


@define(eq=False)
class _Hands:
    """What was asked for is done in this order, one after the other; only a cancel goes ahead."""

    nursery: trio.Nursery = field(repr=False)
    _queue: trio.MemorySendChannel[Deed] = field(repr=False)
    _do: Callable[[Deed], Awaitable[None]] = field(repr=False)

    def soon(self, deed: Deed) -> None:
        """Do it after what was asked for before."""
        self._queue.send_nowait(deed)

    def now(self, deed: Deed) -> None:
        """Do it at once."""
        self.nursery.start_soon(self._do, deed)

    async def work(self, receiver: trio.MemoryReceiveChannel[Deed]) -> None:
        """Do what is asked for, for ever."""
        async for deed in receiver:
            await self._do(deed)


@click.command()
@click.argument("session", required=False, metavar="[SESSION]")
@host_option
@cwd_option
@click.option("--new", is_flag=True, help="Begin a new session.")
@debug_option
@pass_invocation
def attach(
    invocation: Invocation, session: str | None, host: str | None, cwd: str, new: bool
) -> int:
    """Watch SESSION live and take part in it; by default the last one of the directory.

    Type and press Enter to prompt, also while others do. Alt-Enter begins a new line. What the agent
    asks is answered here. Escape or Ctrl-C cancels what runs. Ctrl-D leaves.

    Without a server, one is started that ends when you leave.
    """
    if session is not None and new:
        raise click.UsageError("--new begins a session of its own; leave out SESSION")
    if not is_interactive(invocation.environ):
        raise click.UsageError(
            "this needs a terminal; in scripts use: crush-trio run --session ID PROMPT"
        )

    place = host, directory_of(cwd, host)
    return invocation.run(attach_to, invocation.environ, place, session, new)
