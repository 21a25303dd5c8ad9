"""`crush-trio attach`: watch a session live, send prompts and answer its asks.

Four tasks in one nursery: one reads events, one reads keys, one carries out the actions of keys in
order, one paints. A cancel skips that order. Leaving cancels all four and restores the terminal.
"""

import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import click
import trio
from attrs import define, field
from rich.console import Console
from rich.text import Text

from crush_trio.cli.exits import explain
from crush_trio.cli.names import find_session
from crush_trio.cli.options import (
    Invocation,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
    is_interactive,
    pass_invocation,
    write,
)
from crush_trio.cli.report.conversation import failure
from crush_trio.cli.report.reporter import short
from crush_trio.cli.report.session import SessionView, send_answer
from crush_trio.cli.report.terminal import LiveScreen, spinner
from crush_trio.cli.server_link import open_directory, open_link
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

Action: TypeAlias = Callable[[], Awaitable[object]]
"""What a key asks for and takes a while, such as submitting a prompt."""


LEAVING: Final = {"/quit", "/exit"}

HELP: Final = """\
Enter        send the prompt; while a run is active, it is queued
Alt-Enter    begin a new line
Esc, Ctrl-C  cancel the active and the queued runs
Up, Down     earlier prompts
Ctrl-Z       suspend the program
Ctrl-D       leave, on an empty line
/help        show this; it is not sent to the model
/quit, /exit leave"""


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
    """Watch SESSION live and take part in it.

    The default is the last session of the directory. Type a prompt and press Enter; Alt-Enter begins
    a new line. Permissions and questions are answered here. Escape or Ctrl-C cancels the runs of the
    session. Ctrl-D leaves.

    If no server is running, one is started in the background.
    """
    if session is not None and new:
        raise click.UsageError("--new begins a new session; leave out SESSION")
    if not is_interactive(invocation.environ):
        raise click.UsageError(
            "this needs a terminal; in scripts use: crush-trio run --session ID PROMPT"
        )

    place = host, directory_of(cwd, host)
    return invocation.run(attach_to, invocation.environ, place, session, new)


async def attach_to(
    environ: Mapping[str, str], place: tuple[str | None, str], session: str | None, new: bool
) -> int:
    """Attach to a session until the user leaves; return the exit code."""
    host, directory = place

    async def work(interrupts: Interrupts) -> int:
        async with (
            open_link(host, environ, start=True) as link,
            open_directory(link, directory, environ, interactive=True) as workspace,
        ):
            chosen = await _choose(workspace, session, new=new)
            attached = AttachedTerminal(workspace, SessionView(chosen))
            await attached.run(interrupts)
        write(farewell(attached.view, embedded=link.embedded) + "\n")
        return 0

    return await interruptible(work)


def farewell(view: SessionView, *, embedded: bool) -> str:
    """Return the text printed on leaving: what happens to the runs, and how to attach again."""
    back = f"Attach again with: crush-trio attach {short(view.session.id)}"
    if not view.busy:
        return back
    if embedded:
        return f"The run was cancelled, because its server shut down.\n{back}"
    return f"The run continues while other clients are attached.\n{back}"


async def _choose(workspace: RemoteWorkspace, text: str | None, *, new: bool) -> Session:
    """Return the session that was named, by default the last one; create one if there is none."""
    await trio.lowlevel.checkpoint()
    if text is not None:
        return await find_session(workspace, text)
    sessions = () if new else await workspace.sessions.list()
    return sessions[0] if sessions else await workspace.sessions.create()


@define(eq=False)
class AttachedTerminal:
    """A terminal that is attached to a session. It draws its own `Footer`."""

    workspace: RemoteWorkspace = field(repr=False)
    view: SessionView
    model: str = field(default="", init=False)
    hint: str = field(default="", init=False)
    _editor: LineEditor = field(factory=LineEditor, init=False, repr=False)
    _screen: LiveScreen = field(init=False, repr=False)
    _leave: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._screen = LiveScreen(Console(), self.view.conversation, self, self._seen)

    def _seen(self) -> None:
        self.view.asks.seen(trio.current_time())

    # ── Tasks ───────────────────────────────────────────────────────────────────────────────────

    async def run(self, interrupts: Interrupts) -> None:
        """Show the session and obey keys until the user leaves."""
        with open_keyboard(sys.stdin.fileno(), signals=False) as keyboard:
            interrupts.before_leaving(keyboard.leave)
            try:
                with self._leave:
                    async with self._open_actions() as actions, self.workspace.events() as events:
                        actions.nursery.start_soon(self._screen.keep_painted)
                        actions.nursery.start_soon(self._read_keys, keyboard, actions)
                        await self._watch(events)
                        self._leave.cancel()
            finally:
                self._screen.close()

    @asynccontextmanager
    async def _open_actions(self) -> AsyncIterator["_ActionQueue"]:
        sender, receiver = trio.open_memory_channel[Action](math.inf)
        async with open_hidden_nursery() as nursery:
            actions = _ActionQueue(nursery, sender, self._try)
            nursery.start_soon(actions.work, receiver)
            yield actions

    async def _watch(self, events: EventReader) -> None:
        """Apply events to the view, until cancelled."""
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
            self._screen.touch()

    async def _catch_up(self) -> None:
        """Read the whole session: at the start, and when events were missed."""
        workspace, session_id = self.workspace, self.view.session.id
        await self._learn_model()
        messages = await workspace.sessions.messages(session_id)
        runs = await workspace.runs.list(session_id)
        permissions = await workspace.permissions.pending()
        questions = await workspace.questions.pending()
        self.view.catch_up(messages, runs, (*permissions, *questions))
        self._screen.touch()

    async def _learn_model(self) -> None:
        selected = (await self.workspace.agent.info()).model_cfg
        self.model = f"{selected.provider}/{selected.model}"

    async def _read_keys(self, keyboard: Keyboard, actions: "_ActionQueue") -> None:
        while True:
            for key in await keyboard.read():
                if key.name == "ctrl-z":
                    self._screen.withdraw()
                    keyboard.suspend()
                else:
                    self._press(key, actions)
            self._screen.touch()

    async def _try(self, action: Action) -> None:
        """Carry out an action; show its error, if any, in the conversation."""
        await trio.lowlevel.checkpoint()
        try:
            await action()
        except CrushError as error:
            self.view.conversation.note(failure(*explain(error)))
        self._screen.touch()

    # ── Keys ────────────────────────────────────────────────────────────────────────────────────

    def _press(self, key: Key, actions: "_ActionQueue") -> None:
        """Handle a key."""
        self.hint = ""
        asks, busy = self.view.asks, self.view.busy
        if key.name == "hangup" or (key.name == "ctrl-d" and not self._editor.text):
            self._leave.cancel()
        elif key.name == "ctrl-c" or (key.name == "escape" and asks.dialog is None):
            self._stop(actions) if busy else self._clear()
        elif asks.dialog is not None:
            if given := asks.press(key, trio.current_time()):
                actions.soon(lambda: send_answer(self.workspace, *given))
        elif key.name == "enter":
            self._submit(actions)
        else:
            self._editor.press("delete" if key.name == "ctrl-d" else key.name, key.text)

    def _submit(self, actions: "_ActionQueue") -> None:
        prompt = self._editor.take().strip()
        if prompt in LEAVING:
            self._leave.cancel()
        elif prompt == "/help":
            self.view.conversation.note(Text(HELP, "dim"))
        elif prompt:
            session_id = self.view.session.id
            actions.soon(lambda: self.workspace.submit(prompt, session=session_id))

    def _stop(self, actions: "_ActionQueue") -> None:
        self.hint = "cancelling"
        actions.now(self._cancel)

    async def _cancel(self) -> None:
        try:
            self.view.cancelled(await self.workspace.cancel(self.view.session.id))
        finally:
            self.hint = ""

    def _clear(self) -> None:
        if self._editor.text:
            self._editor.take()
        else:
            self.hint = "no run is active; ctrl-d leaves"

    # ── The footer ──────────────────────────────────────────────────────────────────────────────

    @property
    def moving(self) -> bool:
        """Whether a run is active and not waiting for an answer from this terminal."""
        return self.view.busy and self.view.asks.dialog is None

    def bottom(self, renderer: Renderer, width: int, room: int) -> Bottom:
        """Return the status line, and the input line for a prompt or an answer."""
        if self._leave.cancel_called:
            return Bottom()
        dialog = self.view.asks.dialog
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
            return "/help, ctrl-d leaves"
        waiting = f"{self.view.waiting} waiting, " if self.view.waiting else ""
        progress = f"{one_line(self.view.progress, 60)}, " if self.view.progress else ""
        return f"{progress}{waiting}esc cancels"


@define(eq=False)
class _ActionQueue:
    """Carries out actions one at a time, in order; `now` skips the queue."""

    nursery: trio.Nursery = field(repr=False)
    _queue: trio.MemorySendChannel[Action] = field(repr=False)
    _do: Callable[[Action], Awaitable[None]] = field(repr=False)

    def soon(self, action: Action) -> None:
        """Carry out *action* after the ones queued before it."""
        self._queue.send_nowait(action)

    def now(self, action: Action) -> None:
        """Carry out *action* at once."""
        self.nursery.start_soon(self._do, action)

    async def work(self, receiver: trio.MemoryReceiveChannel[Action]) -> None:
        """Carry out queued actions, until cancelled."""
        async for action in receiver:
            await self._do(action)
