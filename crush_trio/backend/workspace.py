"""A hosted workspace: one directory in this process, with its configuration, store, runs and agent.

It is what a backend keeps, and what every request of a client is about. It knows neither clients nor
HTTP: the routes translate, and the work is done here.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from attrs import define, evolve, field

from crush_trio.agent.record.event_reader import ResumableReader, new_reader
from crush_trio.agent.record.event_tail import StoredEventCache
from crush_trio.agent.record.recovery import Recovery
from crush_trio.agent.record.transcript import Transcript
from crush_trio.backend.settings import WorkspacePlan
from crush_trio.clock import Clock, IdSource
from crush_trio.config.files import NotifyEvent
from crush_trio.config.live import Configuration
from crush_trio.config.snapshot import shown_config
from crush_trio.errors import (
    ServerShuttingDown,
    SessionNotFound,
    TitleTooLong,
    TooManyCommands,
)
from crush_trio.events.facts import Fact, Position, session_fact
from crush_trio.events.frames import Form
from crush_trio.events.log import EventLog
from crush_trio.integrations.base import Integrations
from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.log_context import logged_for
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Submission
from crush_trio.runtime.workspace import Workspace
from crush_trio.store.base import SessionReads, Store
from crush_trio.store.changes import (
    RunEdited,
    SessionCreated,
    SessionDeleted,
    SessionEdited,
    SessionPruned,
)
from crush_trio.tools.base import ToolError
from crush_trio.tools.shell.environment import ShellAnswer, run_shell
from crush_trio.wire.config import AgentInfo, Config
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType
from crush_trio.wire.ids import NO_SESSION, MessageId, RunId, SessionId, WorkspaceId
from crush_trio.wire.messages import Message, Role, ShellCommandPart
from crush_trio.wire.requests import SessionUpdate
from crush_trio.wire.runs import RunView, WhenUnclaimed
from crush_trio.wire.views import Session

if TYPE_CHECKING:  # the agent is imported late, see `server.hosting.host.LateOpener`
    from crush_trio.agent.asks.asks import Asks
    from crush_trio.agent.coordinator import Coordinator
    from crush_trio.backend.notify import Notifier

INITS_KEPT: Final = 64
"""How many processes of clients are remembered with what they said in `agent/init`."""


@define(eq=False)
class Family:
    """Which session each subagent's session belongs to. That never changes, so it is read once."""

    _store: SessionReads
    _parents: dict[SessionId, SessionId] = field(factory=dict, init=False)

    async def learn(self, session_ids: Iterable[SessionId]) -> None:  # noqa: ASYNC910
        """Find out the parents of the sessions; an unknown session has none. Waits only for new ones."""
        for session_id in session_ids:
            while session_id and session_id not in self._parents:
                parent = NO_SESSION
                with suppress(SessionNotFound):
                    parent = (await self._store.session(session_id)).parent_session_id
                self._parents[session_id] = parent
                session_id = parent

    def within(self, session_id: SessionId, top: SessionId) -> bool:
        """Whether a session is *top*, or belongs to a subagent below it."""
        while session_id and session_id != top:
            session_id = self._parents.get(session_id, NO_SESSION)
        return session_id == top

    def root(self, session_id: SessionId) -> SessionId:
        """Return the session without a parent that a session belongs to."""
        while parent := self._parents.get(session_id, NO_SESSION):
            session_id = parent
        return session_id


@define(eq=False, kw_only=True)
class HostedWorkspace:
    """A directory that clients work in. Made by `open_hosted_workspace` only."""

    plan: WorkspacePlan
    """Its id, its path as the first client spelt it, and the terms of that client."""
    directory: Path
    config: Configuration = field(repr=False)
    store: Store = field(repr=False)
    events: EventLog = field(repr=False)
    runs: Workspace
    transcript: Transcript = field(repr=False)
    recovery: Recovery = field(repr=False)
    recall: StoredEventCache = field(init=False, repr=False)
    family: Family = field(init=False, repr=False)
    asks: "Asks" = field(repr=False)
    agent: "Coordinator" = field(repr=False)
    integrations: Integrations = field(repr=False)
    notifier: "Notifier" = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    sizes: SizeLimits = field(default=DEFAULTS, repr=False)
    interactive: bool = field(default=False, init=False)
    """Whether the client that last sent `init` shows asks to a person."""
    draining: bool = field(default=False, init=False)
    """Whether new submissions are refused because the server is about to end; accepted runs go on."""
    _inits: dict[int, bool] = field(factory=dict, init=False)
    """What the processes of clients said in their last `agent/init`, oldest first."""

    @recall.default
    def _recall(self) -> StoredEventCache:
        return StoredEventCache(self.store)

    @family.default
    def _family(self) -> Family:
        return Family(self.store)

    @property
    def id(self) -> WorkspaceId:
        """The id under which clients reach it."""
        return self.plan.id

    @property
    def data_dir(self) -> Path:
        """The directory of the workspace's data."""
        return self.config.current.data_dir

    @property
    def recovered(self) -> tuple[RunView, ...]:
        """The runs that an earlier start left without an ending, as far as they are ended."""
        return tuple(self.recovery.ended)

    @property
    def degraded(self) -> str | None:
        """What is wrong with the store, in a sentence; None while nothing is."""
        return self.store.degraded

    async def new_reader(
        self, form: Form | None = None, after: Position | None = None
    ) -> ResumableReader:
        """Return a reader of events that continues after *after*, also from before a restart.

        Without a position it begins with what is published from now on.
        """
        return await new_reader(self.events, self.store, self.recall, after, form)

    # ── The agent ───────────────────────────────────────────────────────────────────────────────

    def init_agent(self, *, interactive: bool = False, process: int | None = None) -> None:
        """Note whether clients show asks to a person, for submissions that do not say so themselves.

        *process* is the client's, where it is known: then a client has its own answer, whatever
        another one says. The agent is ready when its workspace is, and running work goes on (L30).
        """
        self.interactive = interactive
        if process:
            self._inits.pop(process, None)
            self._inits[process] = interactive
            if len(self._inits) > INITS_KEPT:
                del self._inits[next(iter(self._inits))]

    def is_interactive(self, process: int | None) -> bool:
        """Whether the client in *process* shows asks to a person; the last client to say, if unknown."""
        return self._inits.get(process or 0, self.interactive)

    def agent_info(self) -> AgentInfo:
        """What would answer, and whether it works at the moment.

        The agent is ready from the start: where no provider is configured, the offline demo answers.
        """
        large = self.config.current.large
        return AgentInfo(
            is_busy=self.runs.busy,
            is_ready=True,
            model=large.model,
            model_cfg=large.shown,
        )

    def send(
        self, submission: Submission, released: Callable[[], None] = lambda: None
    ) -> AcceptedRun:
        """Accept a submission (A1).

        A submission that names an unknown model is refused here, not when its run begins. While the server
        is draining, one that was not accepted before is refused (`ServerShuttingDown`). *released* is
        called when a run that keeps the workspace open has ended: the moment for
        `Backend.reconsider`.
        """
        if submission.model is not None:
            self.config.current.named_model(submission.model)
        new = submission.run_id is None or not self.runs.knows(submission.run_id)
        if new and self.draining:
            raise ServerShuttingDown
        with logged_for(
            self.id, self.config.current.secrets.redact
        ):  # the run inherits it from here, not from its nursery
            accepted = self.runs.accept(submission)
        if new and self.notifier.wants(NotifyEvent.RUN_ENDED):
            self.runs.services.start_soon(self.notifier.tell_end, accepted, name="notification")
        if _holds(accepted) and not accepted.ended:
            self.runs.services.start_soon(_call_after, accepted, self.runs, released)
        return accepted

    async def edit_queued(
        self, run_id: RunId, prompt: str | None, index: int | None, *, interrupt: bool = False
    ) -> None:
        """Change the text of a waiting run, or its place, or both; durable when this returns.

        With *interrupt* it also cancels the run that this one waits for. All happens in one step. If the new text cannot be stored this raises, and the run has it
        all the same; a restart would know the old one.
        """
        runs = self.runs
        changes = []
        if prompt is not None:
            changes.append(RunEdited(id=runs.edit_queued(run_id, prompt).id, prompt=prompt))
        if index is not None:
            runs.move_queued(run_id, index)
        if interrupt:
            runs.run_now(run_id)
        await self.store.commit(*changes)

    async def run_shell(self, session_id: SessionId, command: str, columns: int = 0) -> ShellAnswer:
        """Run a command that a person typed, and keep it in the session, if there is one (D34)."""
        bench = self.agent.bench()
        try:
            with logged_for(self.id, self.config.current.secrets.redact):
                ran = await run_shell(bench, self.agent.jobs, command, columns=columns)
        except ToolError as refused:
            raise TooManyCommands(str(refused)) from refused
        if session_id:
            now = self.clock.unix()
            part = ShellCommandPart(command=command, output=ran.output, exit_code=ran.exit_code)
            message = Message(
                id=MessageId(self.ids.new()),
                role=Role.USER,
                session_id=session_id,
                parts=(part,),
                created_at=now,
                updated_at=now,
            )
            with suppress(SessionNotFound):  # the session was deleted while the command ran
                await self.transcript.write(message)
        return ran

    # ── Configuration ───────────────────────────────────────────────────────────────────────────

    def shown_config(self) -> Config:
        """The configuration as clients see it; there are no secrets in it."""
        return shown_config(self.config.current)

    def config_changed(self) -> None:
        """Tell the clients to read the configuration again (G7)."""
        self.events.publish(
            Fact(
                payload_type=PayloadType.CONFIG_CHANGED,
                change=EventType.UPDATED,
                entity=ConfigChanged(workspace_id=self.id),
            )
        )

    # ── Sessions ────────────────────────────────────────────────────────────────────────────────

    async def create_session(self, title: str) -> Session:
        """Store and publish a new session; raises `TitleTooLong`."""
        self._check_title(title)
        now = self.clock.unix()
        session = Session(id=SessionId(self.ids.new()), title=title, created_at=now, updated_at=now)
        await self.store.commit(SessionCreated(session=session))
        self.events.publish(session_fact(session, EventType.CREATED))
        return session

    async def edit_session(self, wanted: SessionUpdate) -> Session:
        """Store what a client may change of a session, column by column, and publish it.

        Raises `TitleTooLong` for a new title. One that the session has is no reason to refuse the rest.
        """
        if len(wanted.title) > self.sizes.title:
            stored = await self.store.session(wanted.id)
            if wanted.title != stored.title:
                self._check_title(wanted.title)
        await self.store.commit(
            SessionEdited(
                id=wanted.id,
                at=self.clock.unix(),
                title=wanted.title,
                prompt_tokens=wanted.prompt_tokens,
                completion_tokens=wanted.completion_tokens,
                summary_message_id=wanted.summary_message_id,
                cost=wanted.cost,
                todos=wanted.todos,
            )
        )
        session = await self.store.session(wanted.id)
        busy = self.runs.session_busy(session.id)
        self.events.publish(session_fact(session, busy=busy))
        return session

    def _check_title(self, title: str) -> None:
        if len(title) > self.sizes.title:
            raise TitleTooLong(
                f"it has {len(title):,} characters, the limit is {self.sizes.title:,}"
            )

    async def delete_session(self, session_id: SessionId) -> None:
        """Delete a session, its runs stopped first: none may write into what is gone (L19)."""
        session = await self.store.session(session_id)
        receipt = self.runs.cancel(session_id)
        await receipt.settled()
        await self.store.commit(SessionDeleted(id=session_id))
        self.asks.permissions.forget_session(session_id)
        self.events.publish(session_fact(session, EventType.DELETED))

    async def prune_session(self, session: Session, before: int) -> bool:
        """Delete a session that was not used since *before* and has no runs; return whether it is gone.

        The check and the write are one step: a run that is accepted later is stored after it, and one that was
        accepted before keeps its session.
        """
        if self.runs.session_runs(session.id):
            await trio.lowlevel.checkpoint()
            return False
        write = self.store.submit(SessionPruned(id=session.id, before=before), session=session.id)
        if await write.wait() is not None:
            return False
        self.asks.permissions.forget_session(session.id)
        self.events.publish(session_fact(session, EventType.DELETED))
        return True

    def seen(self, session: Session, attached_clients: int) -> Session:
        """Return *session* with what is not stored: whether it is busy, and how many clients look at it."""
        return evolve(
            session,
            is_busy=self.runs.session_busy(session.id),
            attached_clients=attached_clients,
        )


def keeps_open(workspace: HostedWorkspace) -> bool:
    """Whether a run of the workspace is to go on without clients; for `open_backend`.

    While there is such a run, the whole workspace stays open, its other runs included. When the last of
    them has ended the workspace closes, and the runs that are left are cancelled (E12).
    """
    return any(_holds(run) for run in workspace.runs.runs)


def note_people(workspace: HostedWorkspace, count: int, expected: bool) -> None:
    """Tell the asks of a workspace at how many clients a person can answer; for `open_backend`.

    *expected* says whether one that lost its stream may come back.
    """
    workspace.asks.attendance.set_people(count, expected=expected)


def _holds(run: AcceptedRun) -> bool:
    return run.submission.when_unclaimed is WhenUnclaimed.CONTINUE


async def _call_after(run: AcceptedRun, runs: Workspace, released: Callable[[], None]) -> None:
    """Call *released* when the run has ended; if another run has folded it, when that one has."""
    await run.wait_ended()
    while run.outcome is not None and run.outcome.folded_into is not None:
        run = runs.find(run.outcome.folded_into)
        await run.wait_ended()
    released()
