"""`TurnPlan`: model, tools and system prompt of one turn. `Desk`: what all turns of a workspace share."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

import trio
from attrs import define, field, frozen

from crush_trio.agent.record.transcript import NewMessage, Transcript, TurnRecord
from crush_trio.agent.spans import Spans, configured_spans
from crush_trio.agent.turn.context_window import Windows
from crush_trio.agent.turn.model import ChosenModel
from crush_trio.agent.turn.tool_calls import NO_HOOKS, RunPermissions, RunQuestions, ToolHooks
from crush_trio.clock import Clock, IdSource
from crush_trio.config.secrets.known import KnownSecrets
from crush_trio.errors import CrushError
from crush_trio.events.log import EventLog
from crush_trio.limits import DEFAULTS, SizeLimits
from crush_trio.providers.call import Patience
from crush_trio.runtime.run import Run
from crush_trio.store.base import Changes, MessageReads, SessionReads, StoredConversation
from crush_trio.tools.base import Tool
from crush_trio.wire.ids import MessageId
from crush_trio.wire.messages import Message, Role

Tools = Mapping[str, Tool]
"""The tools that a run may use, by name."""

StandIn = Callable[[Tools], Tools]
"""Returns what runs use instead of the tools of their workspace; for replays."""


def no_stand_in(tools: Tools) -> Tools:
    """Return the tools themselves."""
    return tools


@frozen(kw_only=True)
class TurnPlan:
    """The model, the tools and the system prompt of one turn, fixed when it begins.

    `tools` is called before every step, so a new tool can be used in the next one (H2). `remind` puts
    the reminder about the todo list at the beginning of the conversation (D22).
    """

    model: ChosenModel
    tools: Callable[[], Tools] = field(repr=False)
    system: tuple[str, ...] = field(default=(), repr=False)
    remind: bool = True
    interactive: bool = True
    auto_summarize: bool = True


Opening = Callable[[StoredConversation], Callable[[], None]]
"""Called with the conversation of the first step; must not keep a reference to it.

What it returns is called once the model has begun to answer, or has failed to.
"""


class Planner(Protocol):
    """Makes plans."""

    async def plan(self, run: Run) -> TurnPlan:
        """Return the plan of *run*; raises a `CrushError` if the configuration lacks something."""
        ...


class AgentStore(Changes, SessionReads, MessageReads, Protocol):
    """What an agent needs from a store."""


@define(eq=False)
class Desk:
    """The services that all turns of a workspace share."""

    transcript: Transcript
    events: EventLog
    store: AgentStore = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    permissions: RunPermissions = field(repr=False)
    patience: Patience = field(factory=Patience)
    spans: Spans = field(factory=configured_spans, repr=False)
    hooks: ToolHooks = field(default=NO_HOOKS, repr=False)
    questions: RunQuestions | None = field(default=None, repr=False)
    sizes: SizeLimits = field(default=DEFAULTS, repr=False)
    secrets: KnownSecrets = field(factory=KnownSecrets, repr=False)
    windows: Windows = field(factory=Windows, repr=False)

    def turn(self, run: Run) -> TurnRecord:
        """Return the record of a run's turn."""
        return self.transcript.turn(run.id, run.session_id)

    def begin_answer(self, run: Run, model: ChosenModel, *, summary: bool = False) -> NewMessage:
        """Begin the message that a model is about to write (D13)."""
        now = self.clock.unix()
        return self.turn(run).begin(
            Message(
                id=MessageId(self.ids.new()),
                role=Role.ASSISTANT,
                session_id=run.session_id,
                model=model.model.id,
                provider=model.provider_id,
                is_summary_message=summary,
                created_at=now,
                updated_at=now,
            )
        )


@define(eq=False)
class EarlyRead:
    """The conversation of a run, read while other parts of its first request are prepared."""

    said: StoredConversation | None = field(default=None, init=False, repr=False)

    async def read(self, desk: Desk, run: Run) -> None:
        """Read it. A read that fails is repeated where the conversation is needed, and raises there."""
        with suppress(CrushError):
            self.said = await desk.store.conversation(run.session_id, run.id)
        await trio.lowlevel.checkpoint()
