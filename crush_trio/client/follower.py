"""Picks the pieces of one run out of all events of its workspace.

Messages do not say which run they belong to, but a session has at most one active run at a time. So the
messages that are created in the session while the run is active are the run's. A follower that starts late,
or has missed something, is given the messages of the session and finds the run's turn among them. Plain data;
`RunStream` in `run.py` does the waiting.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from attrs import define, field, frozen

from crush_trio.client.events import MessageEvent, RunEvent, WorkspaceEvent
from crush_trio.client.messages import (
    GrowingMessage,
    MessagePiece,
    MessageView,
    is_older,
    pieces_between,
)
from crush_trio.wire.asks import (
    PermissionNotification,
    PermissionRequest,
    QuestionNotification,
    QuestionRequest,
)
from crush_trio.wire.events import AgentEvent, Entity, Envelope, EventType
from crush_trio.wire.ids import AskId, MessageId, RunId, SessionId
from crush_trio.wire.messages import Message, Role, TextPart
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session

Ask: TypeAlias = PermissionRequest | QuestionRequest
"""Something that waits for a person."""


@frozen
class Asked:
    """The run, or one that it started, waits for an ask; answer with `permissions` or `questions`."""

    request: Ask


@frozen
class Settled:
    """An ask was answered, by this client or another, or was withdrawn."""

    request: Ask
    granted: bool = False
    """Whether a permission was given; questions are never granted."""


@frozen
class Progress:
    """What the run waits for: a retry of its model call, or what a tool tells about its progress.

    It is for people, of the moment: what was told during a disconnect is not told later.
    """

    text: str


@frozen
class RunEnded:
    """The last piece of every run: how it ended, with the text of its answer."""

    run: RunView


RunPiece: TypeAlias = MessagePiece | RunEvent | Asked | Settled | Progress | RunEnded
"""Anything that a stream of a run is made of. A `RunEvent` is a state on the way: queued, active."""


@define(eq=False)
class Follower:
    """The state of following one run: what was reported so far."""

    run_id: RunId
    """The server's id of the run, or the caller's."""
    session_id: SessionId
    prompt: str | None = None
    """What was submitted, if this side did it."""
    active: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    _seen: dict[MessageId, MessageView] = field(factory=dict, init=False)
    _sessions: set[SessionId] = field(factory=set, init=False)
    _asks: dict[AskId, Ask] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._sessions.add(self.session_id)

    # ── Event by event ──────────────────────────────────────────────────────────────────────────

    def follow(self, event: WorkspaceEvent) -> tuple[RunPiece, ...]:
        """Return the pieces of the run in *event*."""
        match event:
            case RunEvent(run=run):
                return self._run(event) if self.run_id in {run.id, run.run_id} else ()
            case MessageEvent():
                return self._message(event)
            case Envelope(event_type=change, entity=entity):
                return self._entity(change, entity)
        return ()

    def _run(self, event: RunEvent) -> tuple[RunPiece, ...]:
        state = event.run.state
        self.active = self.active or state is RunState.ACTIVE
        self.ended = self.ended or state.terminal
        return () if state.terminal else (event,)

    def _message(self, event: MessageEvent) -> tuple[RunPiece, ...]:
        if event.session_id != self.session_id or not self.active:
            return ()
        if event.message_id not in self._seen and event.change is not EventType.CREATED:
            return ()
        if event.change is EventType.DELETED:
            return ()
        return self._tell(event.view)

    def _tell(self, view: MessageView) -> tuple[RunPiece, ...]:
        """Return the new pieces of a message of the run; prompts have none."""
        seen = self._seen.get(view.id)
        if seen is not None and is_older(view, than=seen):
            return ()
        self._seen[view.id] = view
        return () if view.head.role is Role.USER else pieces_between(seen, view)

    # ── Asks ────────────────────────────────────────────────────────────────────────────────────

    def _entity(self, change: EventType, entity: Entity) -> tuple[RunPiece, ...]:
        match entity:
            case Session() if change is EventType.CREATED:
                if entity.parent_session_id in self._sessions:
                    self._sessions.add(entity.id)
            case PermissionRequest() | QuestionRequest():
                return self._asked(entity)
            case PermissionNotification(granted=granted, denied=denied) if granted or denied:
                return self._settled(
                    [
                        ask
                        for ask in self._asks.values()
                        if isinstance(ask, PermissionRequest)
                        and ask.tool_call_id == entity.tool_call_id
                    ],
                    granted=granted,
                )
            case AgentEvent(progress=text, session_id=session_id) if text and session_id:
                if self.active and self._is_ours(session_id):
                    return (Progress(text),)
            case QuestionNotification():
                return self._settled(
                    [ask for ask in self._asks.values() if ask.id == entity.batch_id]
                )
        return ()

    def _asked(self, ask: Ask) -> tuple[RunPiece, ...]:
        if ask.id in self._asks or not (self.active and self._is_ours(ask.session_id)):
            return ()
        self._asks[ask.id] = ask
        return (Asked(ask),)

    def _is_ours(self, session_id: SessionId) -> bool:
        """Whether a session is the run's own, or that of a sub-agent of the run.

        The session of a sub-agent is named after the message that called it.
        """
        return session_id in self._sessions or session_id.partition("$$")[0] in self._seen

    def _settled(self, asks: Sequence[Ask], *, granted: bool = False) -> tuple[RunPiece, ...]:
        for ask in asks:
            del self._asks[ask.id]
        return tuple(Settled(ask, granted) for ask in asks)

    # ── All at once ─────────────────────────────────────────────────────────────────────────────

    def catch_up(
        self, run: RunView, messages: Sequence[Message], asks: Iterable[Ask]
    ) -> tuple[RunPiece, ...]:
        """Return the new pieces, given the run, the messages of its session and the pending asks as they are now."""
        told: list[RunPiece] = []
        if not self.active and not run.state.terminal:
            told.append(RunEvent(run))
        self.active = self.active or run.state is RunState.ACTIVE or run.state.terminal
        for message in self._turn(run, messages):
            told += self._tell(GrowingMessage(message).view())
        waiting = {ask.id: ask for ask in asks}
        told += self._settled([ask for ask in self._asks.values() if ask.id not in waiting])
        for ask in waiting.values():
            told += self._asked(ask)
        self.ended = self.ended or run.state.terminal
        return tuple(told)

    def _turn(self, run: RunView, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages of the run's turn: from its prompt to the prompt after its answer."""
        begin = next(
            (place for place, each in enumerate(messages) if self._begins(run, each)), len(messages)
        )
        turn = messages[begin:]
        answer = [place for place, each in enumerate(turn) if each.id == run.message_id]
        if not (run.state.terminal and answer):
            return turn
        for place in range(answer[0], len(turn)):
            if turn[place].role is Role.USER:
                return turn[:place]
        return turn

    def _begins(self, run: RunView, message: Message) -> bool:
        """Whether the turn of the run begins with *message*, as far as that is known."""
        if self._seen:
            return message.id in self._seen
        if (
            message.role is not Role.USER
            or not run.started_at
            or message.created_at < run.started_at
        ):
            return False
        return self.prompt is None or self.prompt == _text_of(message)


def _text_of(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))
