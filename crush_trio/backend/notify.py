"""`Notifier`: calls a command or a webhook of the user when a person is needed, and when a run ends.

For people who are away. `crush_trio.notify` of the user's own files names what is called; see
docs/configuration.md. Nothing waits for it: what happens is noted synchronously, and tasks of their own
tell it, a few at once and each for a limited time. A failure is one line of the log.

A workspace that closes gives the tasks a moment, so that the end of its last run is told, too.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Final
from urllib.parse import quote

import trio
from attrs import define, evolve, field, frozen

from crush_trio.agent.asks.pending import Publish
from crush_trio.clock import Clock
from crush_trio.config.files import NotifyConfig, NotifyEvent
from crush_trio.config.live import Configuration
from crush_trio.events.facts import Event, Fact
from crush_trio.net.address import Url
from crush_trio.net.client import Request, open_http_client
from crush_trio.net.dial import Dial, Dialer
from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.run import describe
from crush_trio.runtime.workspace import Workspace
from crush_trio.store.base import SessionReads
from crush_trio.tools.shell.environment import shell_argv, unattended_env
from crush_trio.tools.shell.jobs import OpenCommand
from crush_trio.tools.shell.output import BoundedOutput
from crush_trio.tools.shell.process import Command, CommandEnd
from crush_trio.wire.asks import PermissionRequest, QuestionRequest
from crush_trio.wire.codec import encode
from crush_trio.wire.ids import NO_SESSION, SessionId, WorkspaceId
from crush_trio.wire.runs import RunState

log = logging.getLogger(__name__)

TIME: Final = 10.0
"""Seconds that a command or a webhook may take."""

CLOSING: Final = 3.0
"""Seconds that a closing workspace waits for what is being told."""

AT_ONCE: Final = 4
MOST_WAITING: Final = 100
"""How many are told at once, and how many may wait for that; more are dropped."""

GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL for a command that takes too long."""

OUTPUT: Final = 4096
"""How many bytes of a command's output are read; they are not used."""

DESCRIPTION: Final = 500
"""The characters of a description; a notification is for a small screen."""


@frozen(kw_only=True)
class Notification:
    """What a command gets on its standard input, and a webhook as its body."""

    event: NotifyEvent
    workspace: WorkspaceId
    path: str
    session_id: SessionId = NO_SESSION
    title: str = ""
    run_id: str = ""
    state: str = ""
    tool_name: str = ""
    description: str = ""
    url: str = ""


@define(eq=False, kw_only=True)
class Notifier:
    """Tells what happens in one workspace. Made by `open_notifier`."""

    workspace_id: WorkspaceId
    directory: Path
    live: Configuration = field(repr=False)
    store: SessionReads = field(repr=False)
    clock: Clock = field(repr=False)
    opens: OpenCommand = field(repr=False)
    page: str = ""
    """The address of the server's page, which links begin with."""
    dial: Dial | None = field(default=None, repr=False)
    """Opens connections to webhooks; by default those that the environment of the workspace describes."""
    _nursery: trio.Nursery = field(repr=False)
    _places: trio.Semaphore = field(factory=lambda: trio.Semaphore(AT_ONCE), init=False, repr=False)
    _waiting: int = field(default=0, init=False)

    # ── What happens: synchronous ───────────────────────────────────────────────────────────────

    def watched(self, publish: Publish, runs: Callable[[], Workspace]) -> Publish:
        """Return *publish*, which notes the asks that pass; *runs* returns the runs of the workspace."""

        def published(event: Event) -> object:
            given = publish(event)
            if isinstance(event, Fact) and self.wants(NotifyEvent.NEEDS_PERSON):
                self._asked(event.entity, runs)
            return given

        return published

    def wants(self, event: NotifyEvent) -> bool:
        """Whether the user's files name anything to call for *event*."""
        return self.live.current.notify.wants(event)

    def _asked(self, entity: object, runs: Callable[[], Workspace]) -> None:
        match entity:
            case PermissionRequest(session_id=session_id, tool_name=tool, description=description):
                pass
            case QuestionRequest(session_id=session_id, questions=questions):
                tool, description = "question", " ".join(each.question for each in questions)
            case _:
                return
        asking = (run for run in runs().runs if run.session_id == session_id)
        run = next((run for run in asking if run.state is RunState.ACTIVE), None)
        self.tell(
            Notification(
                event=NotifyEvent.NEEDS_PERSON,
                workspace=self.workspace_id,
                path=str(self.directory),
                session_id=session_id,
                run_id="" if run is None else run.id,
                state="" if run is None else run.state.value,
                tool_name=tool,
                description=description,
            )
        )

    async def tell_end(self, run: AcceptedRun) -> None:
        """Wait until *run* has ended and tell that, unless another run took its prompt in."""
        await run.wait_ended()
        if run.outcome is not None and run.outcome.state is not RunState.FOLDED:
            self.tell(
                Notification(
                    event=NotifyEvent.RUN_ENDED,
                    workspace=self.workspace_id,
                    path=str(self.directory),
                    session_id=run.session_id,
                    run_id=run.id,
                    state=run.state.value,
                    description=run.outcome.error or run.outcome.text,
                )
            )

    def tell(self, notification: Notification) -> None:
        """Tell *notification* as the user's files want it; never waits."""
        wanted = self.live.current.notify
        if not wanted.wants(notification.event):
            return
        if self._waiting >= MOST_WAITING:
            log.warning("notify.dropped", extra={"event": notification.event.value})
            return
        self._waiting += 1
        self._nursery.start_soon(self._tell, notification, wanted, name="notification")

    # ── Telling it ──────────────────────────────────────────────────────────────────────────────

    async def _tell(self, notification: Notification, wanted: NotifyConfig) -> None:
        try:
            async with self._places:
                told = await self._complete(notification)
                if wanted.command:
                    await self._attempt("command", partial(self._run, wanted.command, told))
                if wanted.webhook:
                    await self._attempt("webhook", partial(self._post, wanted.webhook, told))
        finally:
            self._waiting -= 1

    async def _complete(self, short: Notification) -> Notification:
        """Return *short* with the title of its session and a link, and without secrets."""
        hide = self.live.current.secrets.redact
        title = ""
        with suppress(Exception):  # it was deleted, or the store is lost: tell the rest
            title = (await self.store.session(short.session_id)).title
        # The store was asked, so there was a checkpoint.
        place = f"/w/{quote(short.workspace, safe='')}/s/{quote(short.session_id, safe='')}"
        return evolve(  # noqa: ASYNC910
            short,
            title=hide(title),
            description=hide(short.description)[:DESCRIPTION],
            url=f"{self.page.rstrip('/')}{place}",
        )

    async def _attempt(  # noqa: ASYNC910 - a failed attempt has waited, too
        self, what: str, tell: Callable[[], Awaitable[str]]
    ) -> None:
        """Do it for a limited time; one line of the log says what went wrong."""
        problem = f"it took longer than {TIME:g} seconds"
        with trio.move_on_after(TIME):
            try:
                problem = await tell()
            except Exception as error:  # noqa: BLE001  # barrier: it must not end the workspace
                problem = describe(error)
        if problem:
            hidden = self.live.current.secrets.redact(problem)
            log.warning("notify.failed: %s: %s", what, hidden, extra={"what": what})

    async def _run(self, command: str, told: Notification) -> str:
        """Run a command with *told* on its standard input; return what went wrong."""
        ended: list[CommandEnd] = []
        env = unattended_env(self.live.current.environment)
        async with self.opens(
            Command(argv=shell_argv(command), working_dir=self.directory, env=env),
            clock=self.clock,
            stdin=PIPE,
            stdout=BoundedOutput(OUTPUT),
            stderr=BoundedOutput(OUTPUT),
            grace=GRACE,
            on_ended=ended.append,
        ) as group:
            if group.stdin is not None:
                try:
                    async with group.stdin as stdin:
                        await stdin.send_all(encode(told))
                except trio.BrokenResourceError:
                    pass  # it does not want to know
            await group.wait()
        status = ended[0].status if ended else 0
        return f"it ended with {status}" if status else ""

    async def _post(self, url: str, told: Notification) -> str:
        """Send *told* to a webhook; return what went wrong. The address may be a secret: it is not told."""
        parsed = Url.parse(url)
        dial = self.dial or Dialer(self.live.current.environment)
        headers = {"content-type": "application/json", "user-agent": "crush-trio"}
        request = Request(
            method="POST",
            origin=parsed.origin,
            target=parsed.target,
            headers=headers,
            body=encode(told),
        )
        async with open_http_client(dial, idle_most=0) as http, http.open(request) as response:
            return "" if response.status < 300 else f"{parsed.host} answered {response.status}"


@asynccontextmanager
async def open_notifier(
    *,
    workspace_id: WorkspaceId,
    directory: Path,
    live: Configuration,
    store: SessionReads,
    clock: Clock,
    opens: OpenCommand,
    page: str = "",
    dial: Dial | None = None,
) -> AsyncIterator[Notifier]:
    """Open the notifier of a workspace; leave the block after its runs have ended."""
    async with open_hidden_nursery() as nursery:
        yield Notifier(
            workspace_id=workspace_id,
            directory=directory,
            live=live,
            store=store,
            clock=clock,
            opens=opens,
            page=page,
            dial=dial,
            nursery=nursery,
        )
        nursery.cancel_scope.deadline = trio.current_time() + CLOSING
