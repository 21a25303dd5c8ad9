"""The view of an attached session, and the queue of asks that this terminal may answer.

`SessionView` is plain data that events are applied to: prompts of all clients, answers, tool calls,
asks. It keeps the last state of each message, so that a message that is read again after a
disconnect adds only what was missed.

`AskQueue` shows one ask at a time, the oldest first. Another client may settle an ask while it is on
the screen. For a moment after an ask appears, keys are ignored: a key that was pressed before the
ask could be read must not answer it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field
from rich.text import Text

from crush_trio.cli.report.conversation import (
    ConversationView,
    ending_note,
    prompt_text,
    with_endings,
)
from crush_trio.cli.report.reporter import summary
from crush_trio.cli.terminal.dialogs import (
    Allow,
    AnswerQuestions,
    DeclineQuestions,
    Deny,
    Dialog,
    DialogAnswer,
    PermissionDialog,
    QuestionDialog,
    answer_text,
    dialog_for,
)
from crush_trio.cli.terminal.keyboard import Key
from crush_trio.cli.terminal.text import one_line
from crush_trio.client.events import (
    Disconnected,
    MessageEvent,
    Reconnected,
    RunEvent,
    WorkspaceEvent,
)
from crush_trio.client.messages import GrowingMessage
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.errors import RuleNotPossible
from crush_trio.wire.answers import ReceiptView
from crush_trio.wire.asks import (
    GrantScope,
    PermissionNotification,
    PermissionRequest,
    QuestionNotification,
    QuestionRequest,
)
from crush_trio.wire.events import AgentEvent, Entity, Envelope, EventType
from crush_trio.wire.ids import AskId, MessageId, RunId, SessionId, ToolCallId
from crush_trio.wire.integrations import FAILED, McpEvent, McpState, SkillsEvent
from crush_trio.wire.messages import Message, Role
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session

READING_TIME: Final = 0.25
"""Seconds for which a new ask ignores keys."""


@define(eq=False)
class AskQueue:
    """The asks that wait for an answer. They and their answers are shown in *conversation*."""

    conversation: ConversationView = field(repr=False)
    _waiting: deque[Dialog] = field(factory=deque, init=False)
    _since: float | None = field(default=None, init=False)
    """When the first of them was first painted."""
    _answered: set[AskId] = field(factory=set, init=False)

    @property
    def dialog(self) -> Dialog | None:
        """The dialog of the ask on the screen."""
        return self._waiting[0] if self._waiting else None

    def ask(self, request: PermissionRequest | QuestionRequest) -> None:
        """Add an ask, unless it is known."""
        known = {dialog.request.id for dialog in self._waiting} | self._answered
        if request.id not in known:
            self._waiting.append(dialog_for(request))
            if len(self._waiting) == 1:
                self._show()

    def settle(self, ask_id: AskId, *, granted: bool = False) -> None:
        """Remove an ask; add a note if another client has settled it."""
        dialog = next((each for each in self._waiting if each.request.id == ask_id), None)
        if dialog is None:
            return
        if dialog is self.dialog and ask_id not in self._answered:
            state = "allowed" if granted else "settled"
            self.conversation.note(Text(f"({state} by another client)", "dim"))
        self._drop(dialog)

    def keep(self, ids: set[AskId]) -> None:
        """Remove all asks but *ids*."""
        for dialog in list(self._waiting):
            if dialog.request.id not in ids:
                self.settle(dialog.request.id)

    def seen(self, now: float) -> None:
        """Record that the ask was painted."""
        if self.dialog is not None and self._since is None:
            self._since = now

    def press(self, key: Key, now: float) -> tuple[Dialog, DialogAnswer] | None:
        """Pass a key to the dialog on the screen; return the answer if the key completes it."""
        dialog = self.dialog
        if dialog is None or self._since is None or now - self._since < READING_TIME:
            return None
        answer = dialog.press(key)
        if answer is None:
            return None
        self._answered.add(dialog.request.id)
        self.conversation.note(answer_text(answer))
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


async def send_answer(workspace: RemoteWorkspace, dialog: Dialog, answer: DialogAnswer) -> bool:
    """Send an answer; return whether it settled the ask.

    What cannot be allowed always is allowed once, and the error is raised for the user to read.
    """
    match dialog, answer:
        case PermissionDialog(request=request), Allow(scope=scope):
            try:
                return await workspace.permissions.grant(request, scope)
            except RuleNotPossible as error:
                await workspace.permissions.grant(request, GrantScope.ONCE)
                raise RuleNotPossible(f"{error.detail}; it was allowed once") from None
        case PermissionDialog(request=request), Deny() | DeclineQuestions():
            return await workspace.permissions.deny(request)
        case QuestionDialog(request=batch), AnswerQuestions(responses=responses):
            return await workspace.questions.answer(batch.id, responses)
        case QuestionDialog(request=batch), Deny() | DeclineQuestions():
            return await workspace.questions.cancel(batch.id)
    raise AssertionError(f"{answer} does not answer {dialog}")


HISTORY: Final = 40
"""How many earlier messages are shown on attaching."""


@define(eq=False)
class SessionView:
    """The state of a session, and its conversation as lines."""

    session: Session
    conversation: ConversationView = field(factory=ConversationView, init=False, repr=False)
    asks: AskQueue = field(init=False, repr=False)
    offline: str = field(default="", init=False)
    """Why the client is disconnected; empty while it is connected."""
    progress: str = field(default="", init=False)
    """What the active run waits for, until something follows."""
    gone: bool = field(default=False, init=False)
    """Whether the session has been deleted."""
    _receipt: ReceiptView | None = field(default=None, init=False)
    """The receipt of a cancel, until the cancelled runs have ended."""
    _runs: dict[RunId, RunView] = field(factory=dict, init=False)
    """The runs that have not ended."""
    _seen: dict[MessageId, MessageEvent] = field(factory=dict, init=False, repr=False)
    _over: set[RunId] = field(factory=set, init=False)
    """The runs whose ending was shown, or left out with their messages."""
    _family: set[SessionId] = field(factory=set, init=False)
    """The ids of the session and of the sessions of its sub-agents."""
    _calls: dict[ToolCallId, AskId] = field(factory=dict, init=False)
    _flaws: set[str] = field(factory=set, init=False)
    """What was shown about skill files and MCP servers."""

    def __attrs_post_init__(self) -> None:
        self.asks = AskQueue(self.conversation)
        self._family.add(self.session.id)

    @property
    def busy(self) -> bool:
        """Whether a run of the session has not ended."""
        return bool(self._runs)

    @property
    def waiting(self) -> int:
        """How many runs are queued."""
        return sum(run.state is RunState.QUEUED for run in self._runs.values())

    # ── All at once ─────────────────────────────────────────────────────────────────────────────

    def catch_up(
        self,
        messages: Sequence[Message],
        runs: Iterable[RunView],
        asks: Iterable[PermissionRequest | QuestionRequest],
    ) -> None:
        """Apply the session as read from the server; at first only its last messages are shown."""
        found_runs = tuple(runs)
        skipped = 0 if self._seen else max(0, len(messages) - HISTORY)
        if skipped:
            self._skip(messages[:skipped], found_runs, messages[skipped].created_at)
        for each in with_endings(messages, found_runs):
            if isinstance(each, Message):
                self._message(MessageEvent(EventType.UPDATED, GrowingMessage(each).view()))
            else:
                self._ended(each)
        self._runs = {run.id: run for run in found_runs if not run.state.terminal}
        found = {ask.id: ask for ask in asks if self._is_ours(ask.session_id)}
        self.asks.keep(set(found))
        for ask in found.values():
            self._ask(ask)
        self._settle()

    def _skip(self, messages: Sequence[Message], runs: Iterable[RunView], shown: int) -> None:
        """Leave out *messages*, and the runs that ended in them or before the time *shown*."""
        for message in messages:
            view = GrowingMessage(message).view()
            self._seen[message.id] = MessageEvent(EventType.UPDATED, view)
        for run in runs:
            if run.message_id in self._seen or (not run.message_id and run.ended_at < shown):
                self._over.add(run.id)
        text = f"({len(messages)} earlier messages: crush-trio sessions show {self.session.id})"
        self.conversation.note(Text(text, "dim"))

    # ── Event by event ──────────────────────────────────────────────────────────────────────────

    def take(self, event: WorkspaceEvent) -> None:
        """Apply an event."""
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
                self.offline = reason or "the connection was lost"
            case Reconnected():
                self.offline = ""

    def _message(self, event: MessageEvent) -> None:
        self.progress = ""
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
        self.progress = ""
        self._ended(run)
        self._settle()

    def _ended(self, run: RunView) -> None:
        """Show how a run ended, once; the receipt of a cancel says it already."""
        if run.id in self._over:
            return
        self._over.add(run.id)
        note = ending_note(run)
        if note is not None and not (run.state is RunState.CANCELLED and self._receipt):
            self.conversation.note(note)

    def cancelled(self, receipt: ReceiptView) -> None:
        """Show the receipt of a cancel, once the cancelled runs have ended."""
        self._receipt = receipt
        self._settle()

    def _settle(self) -> None:
        """When no run is left, drop unfinished calls and show the receipt."""
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
                    self.asks.settle(self._calls.pop(call), granted=granted)
            case QuestionNotification(batch_id=batch):
                self.asks.settle(batch)
            case AgentEvent(progress=text, session_id=session_id) if text and session_id:
                if self.busy and self._is_ours(session_id):
                    self.progress = text
            case SkillsEvent() | McpEvent():
                self._flaws_of(entity)

    def _flaws_of(self, event: SkillsEvent | McpEvent) -> None:
        """Show what is wrong with a skill file or an MCP server, once."""
        found: list[str] = []
        match event:
            case SkillsEvent(states=states):
                wrong = [(skill.path, skill.error or skill.warning) for skill in states]
                found = [f"Skill {path}: {flaw}" for path, flaw in wrong if flaw]
            case McpEvent(state=McpState.ERROR | McpState.NEEDS_AUTH):
                found = [FAILED.format(name=event.name, error=event.error)]
        for text in found:
            if text not in self._flaws:
                self._flaws.add(text)
                self.conversation.note(Text(one_line(text), "yellow"))

    def _session(self, change: EventType, session: Session) -> None:
        if session.id == self.session.id:
            self.session = session
            self.gone = change is EventType.DELETED
        elif session.parent_session_id in self._family:
            self._family.add(session.id)

    def _ask(self, ask: PermissionRequest | QuestionRequest) -> None:
        if isinstance(ask, PermissionRequest):
            self._calls[ask.tool_call_id] = ask.id
        self.asks.ask(ask)

    def _is_ours(self, session_id: SessionId) -> bool:
        """Whether a session is this one or one of its sub-agents, whose ids begin with a message's id."""
        return session_id in self._family or session_id.partition("$$")[0] in self._seen
