"""One session as somebody sees it who is attached to it: plain data that events are applied to.

Everything that happens in the session is shown, whoever caused it: prompts of others, what the agent
says and does, what it asks. What is known of a message is kept, so that a message which is read anew
after a broken connection adds only what was missed.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field
from rich.text import Text

from crush_trio.cli.asking import Asking
from crush_trio.cli.conversation import Conversation, failure
from crush_trio.cli.receipts import summary
from crush_trio.cli.session_commands import prompt_text
from crush_trio.client.events import (
    Disconnected,
    MessageEvent,
    Reconnected,
    RunEvent,
    WorkspaceEvent,
)
from crush_trio.client.growing import GrowingMessage
from crush_trio.wire.asks import (
    PermissionNotification,
    PermissionRequest,
    QuestionNotification,
    QuestionRequest,
)
from crush_trio.wire.events import Entity, Envelope, EventType
from crush_trio.wire.ids import AskId, MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.native import ReceiptView, RunState, RunView
from crush_trio.wire.views import Session

HISTORY: Final = 40
"""How many messages of the past are shown."""


@define(eq=False)
class SessionView:
    """What is known of a session, and what it looks like."""

    session: Session
    conversation: Conversation = field(factory=Conversation, init=False, repr=False)
    asking: Asking = field(init=False, repr=False)
    offline: str = field(default="", init=False)
    """Why there is no connection; empty while there is one."""
    gone: bool = field(default=False, init=False)
    """Whether the session has been deleted."""
    _receipt: ReceiptView | None = field(default=None, init=False)
    """What a cancel hit, until everything that was hit is seen to have ended."""
    _runs: dict[RunId, RunView] = field(factory=dict, init=False)
    """Those that have not ended."""
    _seen: dict[MessageId, MessageEvent] = field(factory=dict, init=False, repr=False)
    _family: set[SessionId] = field(factory=set, init=False)
    """The session, and those of the tasks that it has others do."""
    _calls: dict[ToolCallId, AskId] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.asking = Asking(self.conversation)
        self._family.add(self.session.id)

    @property
    def busy(self) -> bool:
        """Whether a run of the session has not ended."""
        return bool(self._runs)

    @property
    def waiting(self) -> int:
        """How many runs wait for their turn."""
        return sum(run.state is RunState.QUEUED for run in self._runs.values())

    # ── All at once ─────────────────────────────────────────────────────────────────────────────

    def catch_up(
        self,
        messages: Sequence[Message],
        runs: Iterable[RunView],
        asks: Iterable[PermissionRequest | QuestionRequest],
    ) -> None:
        """Take over the session as it is now; of a past that nobody has seen only the end is shown."""
        views = [
            MessageEvent(EventType.UPDATED, GrowingMessage(message).view()) for message in messages
        ]
        if not self._seen and len(views) > HISTORY:
            self._skip(views[:-HISTORY])
        for view in views:
            self._message(view)
        self._runs = {run.id: run for run in runs if not run.state.terminal}
        found = {ask.id: ask for ask in asks if self._is_ours(ask.session_id)}
        self.asking.keep(set(found))
        for ask in found.values():
            self._ask(ask)
        self._settle()

    def _skip(self, views: Sequence[MessageEvent]) -> None:
        self._seen.update((view.message_id, view) for view in views)
        text = f"({len(views)} earlier messages: crush-trio sessions show {self.session.id})"
        self.conversation.note(Text(text, "dim"))

    # ── Event by event ──────────────────────────────────────────────────────────────────────────

    def take(self, event: WorkspaceEvent) -> None:
        """Apply what *event* says about the session."""
        match event:
            case MessageEvent():
                if event.session_id == self.session.id and event.change is not EventType.DELETED:
                    self._message(event)
            case RunEvent(run=run):
                if run.session_id == self.session.id:
                    self._run(run)
            case Envelope(event_type=change, entity=entity):
                self._entity(change, entity)
            case Disconnected(reason=reason):
                self.offline = reason or "the connection is gone"
            case Reconnected():
                self.offline = ""

    def _message(self, event: MessageEvent) -> None:
        earlier = self._seen.get(event.message_id)
        self._seen[event.message_id] = event
        if event.role is Role.USER:
            if earlier is None:
                self.conversation.prompt(prompt_text(event.message))
            return
        for piece in event.pieces_since(earlier):
            self.conversation.tell(piece)

    def _run(self, run: RunView) -> None:
        if not run.state.terminal:
            self._runs[run.id] = run
            return
        self._runs.pop(run.id, None)
        if run.state is RunState.CANCELLED and self._receipt is None:
            self.conversation.note(Text("(cancelled)", "yellow"))
        elif run.state is RunState.ERRORED and not run.message_id:
            self.conversation.note(failure(run.error))
        self._settle()

    def cancelled(self, receipt: ReceiptView) -> None:
        """Show what a cancel has hit, below the last words of what it hit."""
        self._receipt = receipt
        self._settle()

    def _settle(self) -> None:
        """If nothing runs any more, let go of what will not be finished, and say what was stopped."""
        if self._runs:
            return
        self.conversation.give_up()
        if self._receipt is not None:
            self.conversation.note(Text(summary(self._receipt), "yellow"))
            self._receipt = None

    def _entity(self, change: EventType, entity: Entity) -> None:
        match entity:
            case Session():
                self._session(change, entity)
            case PermissionRequest() | QuestionRequest():
                if self._is_ours(entity.session_id):
                    self._ask(entity)
            case PermissionNotification(tool_call_id=call, granted=granted, denied=denied):
                if (granted or denied) and call in self._calls:
                    self.asking.settle(self._calls.pop(call), granted=granted)
            case QuestionNotification(batch_id=batch):
                self.asking.settle(batch)

    def _session(self, change: EventType, session: Session) -> None:
        if session.id == self.session.id:
            self.session = session
            self.gone = change is EventType.DELETED
        elif session.parent_session_id in self._family:
            self._family.add(session.id)

    def _ask(self, ask: PermissionRequest | QuestionRequest) -> None:
        if isinstance(ask, PermissionRequest):
            self._calls[ask.tool_call_id] = ask.id
        self.asking.ask(ask)

    def _is_ours(self, session_id: SessionId) -> bool:
        """Whether a session is this one, or that of a task named after a message of this one."""
        return session_id in self._family or session_id.partition("$$")[0] in self._seen
