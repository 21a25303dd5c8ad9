"""What a log carries: facts that have already happened.

Three kinds are enough. A `MessageChange` is a message seen at one moment, a `RunChange` a run in a
new state, and a `Fact` any other change of something the wire knows. What each looks like in bytes
is the business of `events.forms`.

What an agent tells its readers besides messages and endings.
"""

from typing import Final

from attrs import Factory, field, frozen
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
    """Something was created, updated or deleted; `entity` is what it is now.

    Encoded when it is made, once for all forms: a fact that has no JSON is the mistake of whoever
    states it, not of a reader.
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
    """A message as it is now.

    A *plain* change is one more piece of a growing answer: the next change of the same message
    says everything it said, so a reader who has not seen it yet may skip it. All other changes
    (creation, tool calls, finish, deletion) are structural and are never skipped.
    """

    change: EventType
    view: MessageView
    plain: bool = False

    @property
    def message_id(self) -> MessageId:
        """The message's id."""
        return self.view.head.id

    @property
    def message(self) -> Message:
        """The whole message, put together on demand."""
        return self.view.message()


@frozen(kw_only=True)
class RunChange:
    """A run is in a new state. The change into an ending is the run's one terminal event."""

    run: RunView

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self.run.state.terminal


Event = Fact | MessageChange | RunChange
"""Anything that a log can carry."""


@frozen(kw_only=True)
class Position:
    """A place in a log, across restarts: which start of the program, and which event of it.

    A reader that lost its place is told the endings it missed, and then the state of now. Between the
    two it has places that are not `synced`: it knows the endings up to there and nothing else. In
    text these have a `~` after the boot.
    """

    boot: str
    seq: int
    synced: bool = True

    @override
    def __str__(self) -> str:
        return f"{self.boot}-{self.seq}" if self.synced else f"{self.boot}{_UNSYNCED}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "Position | None":
        """Read what `str` wrote; None if it is something else."""
        name, dash, seq = text.rpartition("-")
        boot = name.removesuffix(_UNSYNCED)
        if not (boot and dash and seq.isascii() and seq.isdigit()) or len(seq) > 18:
            return None
        return cls(boot=boot, seq=int(seq), synced=boot == name)


@frozen(eq=False, kw_only=True)
class Resync:
    """The state at `position`, for a reader whose own place in the log is gone.

    Taken in the same synchronous step as the position: a reader that starts from here and reads on
    from there has missed no state, only history.
    """

    position: Position
    runs: tuple[RunView, ...] = ()
    messages: tuple[MessageView, ...] = field(default=())


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
    """Return the notice by which clients re-read the state of a session (D28)."""
    finished = AgentEventType.AGENT_FINISHED
    return _agent_fact(
        AgentEvent(type=finished, session_id=session.id, session_title=session.title)
    )


def waiting_notice(session_id: SessionId, run_id: RunId | None, progress: str) -> Fact:
    """Return the notice that a run waits for its model, and for how long it has."""
    return _agent_fact(
        AgentEvent(
            type=AgentEventType.RESPONSE,
            run_id=run_id,
            session_id=session_id,
            progress=progress,
        )
    )


def session_fact(session: Session, change: EventType = EventType.UPDATED) -> Fact:
    """Return the news that a session is now as *session*."""
    return Fact(payload_type=PayloadType.SESSION, change=change, entity=session)


def _agent_fact(event: AgentEvent) -> Fact:
    return Fact(payload_type=PayloadType.AGENT_EVENT, change=EventType.CREATED, entity=event)
