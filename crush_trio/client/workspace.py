"""`RemoteWorkspace`: a claim on a server's workspace, for as long as a block lasts.

`open_remote_workspace` holds the claim: it creates the workspace or joins it, keeps one event stream open, and
releases the claim at the end. The tasks that do so live in a nursery of the block; nothing is left when
it is over.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from attrs import define, field

from crush_trio.client.attachment import Backoff, Calls, Keeper, bounded
from crush_trio.client.events import EventReader
from crush_trio.client.http import Link, NoAnswer
from crush_trio.client.run import RunHandle
from crush_trio.client.session_routes import (
    AgentRoutes,
    PermissionRoutes,
    QuestionRoutes,
    QueueRoutes,
    RunRoutes,
    SessionRoutes,
    session_path,
)
from crush_trio.client.state import Picture
from crush_trio.client.workspace_routes import (
    ConfigRoutes,
    LspRoutes,
    McpRoutes,
    ProjectRoutes,
    SkillRoutes,
)
from crush_trio.clock import IdSource
from crush_trio.nursery import unwrapped
from crush_trio.wire.answers import ReceiptView, ShellResult, TaskTree
from crush_trio.wire.asks import PermissionPolicy
from crush_trio.wire.config import CatalogProvider, SelectedModel, WorkspaceView
from crush_trio.wire.ids import NO_SESSION, RunId, SessionId, WorkspaceId
from crush_trio.wire.messages import Message
from crush_trio.wire.requests import (
    AgentMessage,
    Attachment,
    CurrentSessionRequest,
    ShellRequest,
    WorkspaceRequest,
)
from crush_trio.wire.runs import WhenBusy, WhenUnclaimed

PATIENCE: Final = 60.0
"""Seconds for which a server may be unreachable before a client gives up."""

RELEASE_LIMIT: Final = 2.0
"""Seconds that releasing a claim may take."""


@define(eq=False)
class RemoteWorkspace:
    """A directory that a server hosts, for one client. Made by `Client.open_workspace` only.

    The routes of one subject form a group: `workspace.sessions.create("a title")`.
    """

    created: WorkspaceView = field(repr=False)
    """The workspace as it was when it was opened."""
    _calls: Calls = field(repr=False)
    _ids: IdSource = field(repr=False)
    agent: AgentRoutes = field(init=False, repr=False)
    config: ConfigRoutes = field(init=False, repr=False)
    lsp: LspRoutes = field(init=False, repr=False)
    mcp: McpRoutes = field(init=False, repr=False)
    permissions: PermissionRoutes = field(init=False, repr=False)
    project: ProjectRoutes = field(init=False, repr=False)
    questions: QuestionRoutes = field(init=False, repr=False)
    queue: QueueRoutes = field(init=False, repr=False)
    runs: RunRoutes = field(init=False, repr=False)
    sessions: SessionRoutes = field(init=False, repr=False)
    skills: SkillRoutes = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        calls = self._calls
        self.agent, self.runs, self.queue = AgentRoutes(calls), RunRoutes(calls), QueueRoutes(calls)
        self.sessions = SessionRoutes(calls)
        self.permissions, self.questions = PermissionRoutes(calls), QuestionRoutes(calls)
        self.config, self.project = ConfigRoutes(calls), ProjectRoutes(calls)
        self.lsp, self.mcp, self.skills = LspRoutes(calls), McpRoutes(calls), SkillRoutes(calls)

    @property
    def id(self) -> WorkspaceId:
        """The server's id of the workspace; it changes when the workspace is created again."""
        return self._calls.keeper.id

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    async def submit(
        self,
        prompt: str,
        *,
        session: SessionId,
        run_id: RunId | None = None,
        attachments: Iterable[Attachment] = (),
        when_busy: WhenBusy = WhenBusy.ENQUEUE,
        when_unclaimed: WhenUnclaimed = WhenUnclaimed.CANCEL,
        permissions: PermissionPolicy | None = None,
        interactive: bool | None = None,
        model: SelectedModel | None = None,
        record: bool = False,
    ) -> RunHandle:
        """Submit a prompt. When this returns, the run is stored and will end, even if this client leaves.

        *run_id* is the caller's id of the run, by default a new one. It makes the submission safe to repeat,
        which happens here if its answer is lost. *interactive* says whether a user is shown the run's asks;
        by default as given when the workspace was opened. *model* is the model of this run; by default
        the one that the workspace has selected. With *record* the run is recorded; `runs.capsule` returns
        the recording.
        """
        keeper = self._calls.keeper
        name = RunId(self._ids.new()) if run_id is None else run_id
        message = AgentMessage(
            session_id=session,
            run_id=name,
            prompt=prompt,
            attachments=tuple(attachments),
            when_busy=when_busy,
            when_unclaimed=when_unclaimed,
            permissions=permissions,
            interactive=keeper.interactive if interactive is None else interactive,
            model=model,
            record=record,
        )
        since = keeper.picture.window.head
        await self._send(message)
        return RunHandle(name, self._calls, session, prompt, since)

    async def _send(self, message: AgentMessage) -> None:
        """Post a submission, again and again until it is answered: it is the same run."""
        backoff, began = Backoff(), anyio.current_time()
        while True:
            try:
                await bounded(lambda: self._calls.tell("POST", "/agent", message))
                return
            except NoAnswer:
                if anyio.current_time() - began > self._calls.keeper.patience:
                    raise
            await anyio.sleep(backoff.next())

    def run(self, run_id: RunId) -> RunHandle:
        """Return a handle of any client's run, by the server's id or the submitter's."""
        return RunHandle(run_id, self._calls)

    async def cancel(self, session: SessionId, *, keep_queue: bool = False) -> ReceiptView:
        """Cancel every run of a session, and return what the cancel hit and how each ended.

        With *keep_queue* the queued runs stay, and the first of them is next. Every other run is cancelled at
        once. The server bounds the wait for their endings; `complete` is false if something still runs then.
        """
        path = session_path(session, "/cancel")
        query = {"receipt": "1", **({"queue": "keep"} if keep_queue else {})}
        return await self._calls.ask("POST", path, ReceiptView, query=query)

    async def summarize(self, session: SessionId) -> None:
        """Summarise a session, and wait until that is done."""
        await self._calls.tell("POST", session_path(session, "/summarize"))

    async def shell(self, session: SessionId, command: str, *, width: int = 0) -> ShellResult:
        """Run a shell command in the workspace; a failing command raises nothing."""
        body = ShellRequest(session_id=session, command=command, term_width=width)
        return await self._calls.post(session_path(session, "/shell"), ShellResult, body)

    # ── Watching ────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def events(self) -> AsyncIterator[EventReader]:
        """Watch the workspace: iterate over everything that happens from now on.

        Any number of readers share one connection, and each has its own place. A slow one delays none of the
        others: it gets the newest state of a message, and a `Resynced` if it falls too far behind.
        """
        await anyio.lowlevel.checkpoint()
        yield self._calls.keeper.picture.window.reader()

    # ── The workspace itself ────────────────────────────────────────────────────────────────────

    async def show(self) -> WorkspaceView:
        """Return the workspace as it is now."""
        return await self._calls.get("", WorkspaceView)

    async def select(self, session: SessionId | None) -> None:
        """Tell other clients which session this client shows; None for none."""
        body = CurrentSessionRequest(session_id=session or NO_SESSION)
        query = {"client_id": self._calls.keeper.request.client_id}
        await self._calls.tell("POST", "/current-session", body, query)

    async def providers(self) -> tuple[CatalogProvider, ...]:
        """Return the providers of the catalogue."""
        return await self._calls.get("/providers", tuple[CatalogProvider, ...])

    async def prompts(self) -> tuple[Message, ...]:
        """Return the prompts of all sessions, the newest first."""
        return await self._calls.get("/messages/user", tuple[Message, ...])

    async def tasks(self) -> TaskTree:
        """Return the live tasks of the workspace and what each one waits on."""
        return await self._calls.get("/tasks", TaskTree)


@asynccontextmanager
async def open_remote_workspace(
    link: Link,
    request: WorkspaceRequest,
    ids: IdSource,
    *,
    interactive: bool = False,
    init: bool = True,
    patience: float = PATIENCE,
) -> AsyncIterator[RemoteWorkspace]:
    """Hold a claim on a workspace for as long as the block lasts.

    The state of the workspace is known when the block is entered. Leaving it ends the event stream and
    then releases the claim, in this order whatever the reason for leaving; other readers then end, and
    calls raise `ClientClosed`. An error is raised into the block only if a retry cannot repair
    it: `ServerUnreachable` after *patience*, or a refusal.
    """
    keeper = Keeper(link, Picture(), request, interactive, init, patience)
    created = await keeper.create()
    try:
        async with _open_hidden_group() as tasks:
            ends = tuple(_started(tasks, work) for work in (keeper.listen, keeper.settle))
            await keeper.picture.synced.wait()
            try:
                yield RemoteWorkspace(created, Calls(keeper), ids)
            finally:
                keeper.picture.close()
                for scope in ends:
                    scope.cancel()
    finally:
        with anyio.move_on_after(RELEASE_LIMIT, shield=True):
            await keeper.release()


def _started(tasks: TaskGroup, work: Callable[[], Awaitable[None]]) -> anyio.CancelScope:
    """Start a task; return the scope that ends it.

    The scope of the group is that of the caller too, and in asyncio a cancel of it would leave the block: after an
    error in an `asyncio.TaskGroup`, Python before 3.13 counts the task as cancelled, and anyio respects that.
    """
    scope = anyio.CancelScope()

    async def until_cancelled() -> None:
        with scope:
            await work()

    tasks.start_soon(until_cancelled, name=work)
    return scope


@asynccontextmanager
async def _open_hidden_group() -> AsyncIterator[TaskGroup]:
    """Open a task group that raises a single exception unwrapped, as `open_hidden_nursery` does."""
    with unwrapped(anyio.get_cancelled_exc_class()):
        async with anyio.create_task_group() as tasks:
            yield tasks
