"""Events as values, and positions in a log.

There are three kinds of events. A `MessageChange` is a message at one moment, a `RunChange` is a
run in a new state, and a `Fact` is any other change of something that the wire has a type for.
`events.frames` turns them into bytes. The functions at the end make the facts that an agent
publishes.
"""

from typing import Final

from attrs import Factory, evolve, field, frozen
from typing_extensions import override

from crush_trio.events.growing_message import MessageView
from crush_trio.wire.codec import encode_change
from crush_trio.wire.events import (
    ENTITIES,
    AgentEvent,
    AgentEventType,
    Entity,
    EventType,
    PayloadType,
)
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import Session

_UNSYNCED: Final = "~"


@frozen(kw_only=True)
class Fact:
    """Something was created, updated or deleted; `entity` is its present value.

    Encoded when it is made, once for all forms. So a value without JSON raises at the publisher,
    not at a reader.
    """

    payload_type: PayloadType
    change: EventType
    entity: Entity = field()
    encoded: bytes = field(
        init=False,
        eq=False,
        repr=False,
        default=Factory(lambda self: encode_change(self.change, self.entity), takes_self=True),
    )

    @entity.validator
    def _must_fit(self, _attribute: object, entity: object) -> None:
        expected = ENTITIES[self.payload_type]
        if not isinstance(entity, expected):
            raise TypeError(f"{self.payload_type} events carry a {expected.__name__}: {entity!r}")


@frozen(eq=False, kw_only=True)
class MessageChange:
    """A message at the moment of a change.

    A *plain* change appends to a growing answer: the next change of the same message includes it,
    so a reader that has not seen it yet may skip it. All other changes (creation, tool calls,
    finish, deletion) are structural and are never skipped.

    A plain change that is *kept* is stored for readers after a restart like a structural one. The
    step that publishes it also publishes the change that includes it, so only native readers, which
    need every change, get it.
    """

    change: EventType
    view: MessageView
    plain: bool = False
    kept: bool = False

    @property
    def message_id(self) -> MessageId:
        """The message's id."""
        return self.view.head.id

    @property
    def message(self) -> Message:
        """The whole message, built on demand."""
        return self.view.message()


@frozen(kw_only=True)
class RunChange:
    """A run in a new state. The change to an ending is the run's one terminal event."""

    run: RunView

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self.run.state.terminal


Event = Fact | MessageChange | RunChange
"""Any event of a log."""


@frozen(kw_only=True)
class Position:
    """A place in a log, valid across restarts: the boot (one start of the program) and the event.

    A reader that lost its place gets the endings it missed, and then the present state. In between,
    its positions are not `synced`: it knows the endings up to there and nothing else. As text, such
    a position has a `~` after the boot.
    """

    boot: str
    seq: int
    synced: bool = True

    @override
    def __str__(self) -> str:
        return f"{self.boot}-{self.seq}" if self.synced else f"{self.boot}{_UNSYNCED}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "Position | None":
        """Parse the text of a position; return None if it is not one."""
        name, dash, seq = text.rpartition("-")
        boot = name.removesuffix(_UNSYNCED)
        if not (boot and dash and seq.isascii() and seq.isdigit()) or len(seq) > 18:
            return None
        return cls(boot=boot, seq=int(seq), synced=boot == name)


@frozen(eq=False, kw_only=True)
class Resync:
    """The state at `position`, for a reader whose own place in the log is gone.

    State and position are taken in the same step, so a reader that takes this state and reads on
    from the position has missed history, but no state.
    """

    position: Position
    runs: tuple[RunView, ...] = ()
    messages: tuple[MessageView, ...] = field(default=())


def called_change(view: MessageView) -> MessageChange:
    """Return the change that shows the calls of an answer as finished, before their results (D17).

    The step that publishes it also publishes the results and the finished answer.
    """
    return MessageChange(change=EventType.UPDATED, view=view, plain=True, kept=True)


def agent_error(session_id: SessionId, run_id: RunId | None, error: str) -> Fact:
    """Return the notice that a run failed (B7a)."""
    return Fact(
        payload_type=PayloadType.AGENT_EVENT,
        change=EventType.CREATED,
        entity=AgentEvent(
            type=AgentEventType.ERROR, error=error, run_id=run_id, session_id=session_id
        ),
    )


def finished_notice(session: Session) -> Fact:
    """Return the notice after which clients read the state of a session again (D28)."""
    finished = AgentEventType.AGENT_FINISHED
    return _agent_fact(
        AgentEvent(type=finished, session_id=session.id, session_title=session.title)
    )


def progress_notice(session_id: SessionId, run_id: RunId | None, progress: str) -> Fact:
    """Return the notice of what a run waits for: a retry of its model call, or the progress of a tool."""
    return _agent_fact(
        AgentEvent(
            type=AgentEventType.RESPONSE,
            run_id=run_id,
            session_id=session_id,
            progress=progress,
        )
    )


def session_fact(
    session: Session, change: EventType = EventType.UPDATED, *, busy: bool = False
) -> Fact:
    """Return the fact that a session has changed and is now *session*; *busy* if a run is active."""
    entity = evolve(session, is_busy=True) if busy else session
    return Fact(payload_type=PayloadType.SESSION, change=change, entity=entity)


def _agent_fact(event: AgentEvent) -> Fact:
    return Fact(payload_type=PayloadType.AGENT_EVENT, change=EventType.CREATED, entity=event)
