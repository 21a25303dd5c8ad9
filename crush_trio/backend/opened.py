"""One directory, opened: its durable workspace, its agent's state, and what clients ask of both.

This is what the backend hosts. It knows no client and no HTTP: routes translate, this does.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from attrs import define, evolve, field

from crush_trio.agent.demo import DEMO_CHOICE, DEMO_MODEL, DEMO_PROVIDER, DemoTurn
from crush_trio.agent.transcript import Transcript
from crush_trio.backend.assemble import DurableWorkspace, open_durable_workspace
from crush_trio.backend.hosting import Hosted, OpenWorkspace, WorkspacePlan
from crush_trio.clock import Clock, IdSource, RandomIds, SystemClock
from crush_trio.errors import AgentNotInitialized
from crush_trio.events.facts import Fact
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Submission
from crush_trio.runtime.run import Turn
from crush_trio.store.base import Store
from crush_trio.store.changes import RunEdited, SessionCreated, SessionDeleted, SessionEdited
from crush_trio.store.sqlite.store import open_sqlite_store
from crush_trio.wire.config import Config, Options, ProviderConfig
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType
from crush_trio.wire.ids import RunId, SessionId, WorkspaceId
from crush_trio.wire.native import WhenUnclaimed
from crush_trio.wire.views import Session
from crush_trio.wire.workspaces import AgentInfo

MakeTurn = Callable[[Transcript], Turn]
"""What makes a workspace's turn function, given the transcript it writes to."""

OpenStore = Callable[[Path], AbstractAsyncContextManager[Store]]
"""What opens the store of a data directory."""


@define(eq=False)
class OpenedWorkspace:
    """A directory that clients work in."""

    id: WorkspaceId
    directory: Path
    data_dir: Path
    durable: DurableWorkspace
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    skip_permissions: bool = False
    agent_ready: bool = field(default=False, init=False)

    @property
    def store(self) -> Store:
        """The workspace's durable tables."""
        return self.durable.store

    # ── The agent ───────────────────────────────────────────────────────────────────────────────

    def init_agent(self) -> None:
        """Make the agent ready. Calling this on a live workspace touches no running work (L30)."""
        self.agent_ready = True

    def check_ready(self) -> None:
        """Raise `AgentNotInitialized` before the agent is ready."""
        if not self.agent_ready:
            raise AgentNotInitialized

    def agent_info(self) -> AgentInfo:
        """Whether the agent can be asked, and what would answer."""
        if not self.agent_ready:
            return AgentInfo()
        return AgentInfo(
            is_busy=self.durable.runs.busy,
            is_ready=True,
            model=DEMO_MODEL,
            model_cfg=DEMO_CHOICE,
        )

    def send(
        self, submission: Submission, released: Callable[[], None] = lambda: None
    ) -> AcceptedRun:
        """Accept a submission; raises `AgentNotInitialized` before the agent is ready (A1).

        *released* is called when a run that holds the workspace open has ended: the moment to look
        again whether anything still does.
        """
        self.check_ready()
        accepted = self.durable.runs.accept(submission)
        if _holds(accepted) and not accepted.ended:
            self.durable.runs.services.start_soon(_call_after, accepted, released)
        return accepted

    async def edit_queued(self, run_id: RunId, prompt: str | None, index: int | None) -> None:
        """Change the text of a waiting run, or its place, or both; durable when this returns.

        Both happen in one step. If the new text cannot be stored this raises, and the run has it
        all the same; a restart would know the old one.
        """
        runs = self.durable.runs
        changes = []
        if prompt is not None:
            changes.append(RunEdited(id=runs.edit_queued(run_id, prompt).id, prompt=prompt))
        if index is not None:
            runs.move_queued(run_id, index)
        await self.store.commit(*changes)

    # ── Configuration ───────────────────────────────────────────────────────────────────────────

    def config(self) -> Config:
        """The configuration as clients see it; there are no secrets in it."""
        demo = ProviderConfig(
            id=DEMO_PROVIDER, name="Offline demo", type="openai-compat", models=(DEMO_MODEL,)
        )
        return Config(
            models={"large": DEMO_CHOICE, "small": DEMO_CHOICE},
            providers={DEMO_PROVIDER: demo},
            options=Options(
                data_directory=str(self.data_dir),
                disable_metrics=True,
                disable_provider_auto_update=True,
                disable_default_providers=True,
                initialize_as="AGENTS.md",
            ),
        )

    def config_changed(self) -> None:
        """Tell the clients to read the configuration again (G7)."""
        self._publish(
            PayloadType.CONFIG_CHANGED, EventType.UPDATED, ConfigChanged(workspace_id=self.id)
        )

    # ── Sessions ────────────────────────────────────────────────────────────────────────────────

    async def create_session(self, title: str) -> Session:
        """Store a new session and tell everybody."""
        now = self.clock.unix()
        session = Session(id=SessionId(self.ids.new()), title=title, created_at=now, updated_at=now)
        await self.store.commit(SessionCreated(session=session))
        self._publish(PayloadType.SESSION, EventType.CREATED, session)
        return session

    async def edit_session(self, wanted: Session) -> Session:
        """Store what a client may change of a session, column by column, and tell everybody."""
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
        self._publish(PayloadType.SESSION, EventType.UPDATED, session)
        return session

    async def delete_session(self, session_id: SessionId) -> None:
        """Delete a session, its runs stopped first: none may write into what is gone (L19)."""
        session = await self.store.session(session_id)
        receipt = self.durable.runs.cancel(session_id)
        await receipt.settled()
        await self.store.commit(SessionDeleted(id=session_id))
        self._publish(PayloadType.SESSION, EventType.DELETED, session)

    def seen(self, session: Session, attached_clients: int) -> Session:
        """Return *session* as the answer to a question, with what only the present can tell."""
        return evolve(
            session,
            is_busy=self.durable.runs.session_busy(session.id),
            attached_clients=attached_clients,
        )

    def _publish(
        self, payload_type: PayloadType, change: EventType, entity: Session | ConfigChanged
    ) -> None:
        self.durable.events.publish(Fact(payload_type=payload_type, change=change, entity=entity))


def keeps_open(hosted: Hosted[OpenedWorkspace]) -> bool:
    """Whether a run of the workspace is to go on without clients; for `open_backend`.

    While one is, the whole workspace stays as it is, its other runs included. When the last of them
    has ended the workspace closes, and what then is left in it is cancelled (E12).
    """
    return any(_holds(run) for run in hosted.opened.durable.runs.runs)


def _holds(run: AcceptedRun) -> bool:
    return run.submission.when_unclaimed is WhenUnclaimed.CONTINUE


async def _call_after(run: AcceptedRun, released: Callable[[], None]) -> None:
    await run.wait_ended()
    released()


def workspace_opener(
    *,
    make_turn: MakeTurn | None = None,
    open_store: OpenStore = open_sqlite_store,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> OpenWorkspace[OpenedWorkspace]:
    """Return what opens workspaces for a backend; without *make_turn* they run the demo."""
    the_clock = SystemClock() if clock is None else clock
    the_ids = RandomIds() if ids is None else ids

    def demo(transcript: Transcript) -> Turn:
        return DemoTurn(transcript, the_clock, the_ids)

    @asynccontextmanager
    async def opened(plan: WorkspacePlan) -> AsyncIterator[OpenedWorkspace]:
        directory = Path(plan.key)
        data_dir = directory / (plan.terms.data_dir or ".crush")
        async with (
            open_store(data_dir) as store,
            open_durable_workspace(
                store, demo if make_turn is None else make_turn, clock=the_clock, ids=the_ids
            ) as durable,
        ):
            yield OpenedWorkspace(
                plan.id, directory, data_dir, durable, the_clock, the_ids, plan.terms.yolo
            )

    return opened
