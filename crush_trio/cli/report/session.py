"""One session as somebody sees it who is attached to it: plain data that events are applied to.

Everything that happens in the session is shown, whoever caused it: prompts of others, what the agent
says and does, what it asks. What is known of a message is kept, so that a message which is read anew
after a broken connection adds only what was missed.

The asks of a workspace that somebody at this terminal may answer.

They are shown one at a time, the oldest first. Anybody else may answer too, so one may be settled
while it is on the screen. A key that was pressed before its question could be read is no answer to
it: for a moment after a question appears, keys mean nothing.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field
from rich.text import Text

from crush_trio.cli.commands.sessions import prompt_text
from crush_trio.cli.report.conversation import Conversation, failure
from crush_trio.cli.report.reporter import summary
from crush_trio.cli.terminal.dialogs import (
    Allow,
    Answer,
    Deny,
    Dialog,
    PermissionDialog,
    QuestionDialog,
    Refuse,
    Reply,
    dialog_for,
    told,
)
from crush_trio.cli.terminal.keyboard import Key
from crush_trio.client.events import (
    Disconnected,
    MessageEvent,
    Reconnected,
    RunEvent,
    WorkspaceEvent,
)
from crush_trio.client.messages import GrowingMessage
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.wire.asks import (
    PermissionNotification,
    PermissionRequest,
    QuestionNotification,
    QuestionRequest,
)
from crush_trio.wire.events import Entity, Envelope, EventType
from crush_trio.wire.ids import AskId, MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.runs import ReceiptView, RunState, RunView
from crush_trio.wire.views import Session

READING_TIME: Final = 0.25
"""Seconds for which a new question takes no answer."""


@define(eq=False)
class Asking:
    """What waits for an answer. *conversation* is where questions and answers are shown."""

    conversation: Conversation = field(repr=False)
    _waiting: deque[Dialog] = field(factory=deque, init=False)
    _since: float | None = field(default=None, init=False)
    """When the first of them was first seen on the screen."""
    _answered: set[AskId] = field(factory=set, init=False)

    @property
    def dialog(self) -> Dialog | None:
        """What is being asked now."""
        return self._waiting[0] if self._waiting else None

    def ask(self, request: PermissionRequest | QuestionRequest) -> None:
        """Ask this too, unless it is being asked."""
        known = {dialog.request.id for dialog in self._waiting} | self._answered
        if request.id not in known:
            self._waiting.append(dialog_for(request))
            if len(self._waiting) == 1:
                self._show()

    def settle(self, ask_id: AskId, *, granted: bool = False) -> None:
        """Ask this no longer; if nobody here has answered it, say so."""
        dialog = next((each for each in self._waiting if each.request.id == ask_id), None)
        if dialog is None:
            return
        if dialog is self.dialog and ask_id not in self._answered:
            verdict = "allowed" if granted else "settled"
            self.conversation.note(Text(f"({verdict} elsewhere)", "dim"))
        self._drop(dialog)

    def keep(self, ids: set[AskId]) -> None:
        """Ask nothing but *ids* any longer: that is all that waits."""
        for dialog in list(self._waiting):
            if dialog.request.id not in ids:
                self.settle(dialog.request.id)

    def seen(self, now: float) -> None:
        """Note that the screen shows what is asked."""
        if self.dialog is not None and self._since is None:
            self._since = now

    def press(self, key: Key, now: float) -> tuple[Dialog, Answer] | None:
        """Give a key to the question on the screen; return the answer that it completes."""
        dialog = self.dialog
        if dialog is None or self._since is None or now - self._since < READING_TIME:
            return None
        answer = dialog.press(key)
        if answer is None:
            return None
        self._answered.add(dialog.request.id)
        self.conversation.note(told(answer))
        self._drop(dialog)
        return dialog, answer

    def _drop(self, dialog: Dialog) -> None:
        first = dialog is self.dialog
        self._waiting.remove(dialog)
        if first:
            self._show()

    def _show(self) -> None:
        self._since = None
        if self.dialog is not None:
            self.conversation.note(self.dialog.body())


async def send_answer(workspace: RemoteWorkspace, dialog: Dialog, answer: Answer) -> bool:
    """Send an answer; return whether it was the one that counted."""
    match dialog, answer:
        case PermissionDialog(request=request), Allow(scope=scope):
            return await workspace.permissions.grant(request, scope)
        case PermissionDialog(request=request), Deny() | Refuse():
            return await workspace.permissions.deny(request)
        case QuestionDialog(request=batch), Reply(responses=responses):
            return await workspace.questions.answer(batch.id, responses)
        case QuestionDialog(request=batch), Deny() | Refuse():
            return await workspace.questions.cancel(batch.id)
    raise AssertionError(f"{answer} is no answer to {dialog}")


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
