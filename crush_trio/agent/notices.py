"""What an agent tells its readers besides messages and endings."""

from crush_trio.events.facts import Fact
from crush_trio.wire.events import AgentEvent, AgentEventType, EventType, PayloadType
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.views import Session


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
