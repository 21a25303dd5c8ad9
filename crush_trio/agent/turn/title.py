"""`Titles`: makes the title of a session while its first run goes on, from the first word of its answer on.

It is a service task of the workspace: the run does not wait for it, and a cancel of the run does not
cancel it. It has a deadline, ends with the workspace, and changes only the title and the totals of its
session (D24 to D26, L35).
"""

import logging
import re
from collections.abc import Callable
from itertools import takewhile
from typing import Final

import trio
from attrs import define, field

from crush_trio.agent.record.recorded import recorded
from crush_trio.agent.turn.answer import AnswerBudget
from crush_trio.agent.turn.model import ChosenModel, ModelSource, side_usage
from crush_trio.agent.turn.model_call import TITLE
from crush_trio.agent.turn.plan import Desk
from crush_trio.agent.turn.prompt import affinity
from crush_trio.errors import CrushError, SessionNotFound
from crush_trio.events.facts import session_fact
from crush_trio.providers.base import (
    Finished,
    ModelRequest,
    PromptMessage,
    ReasoningDelta,
    StreamPart,
    TextDelta,
)
from crush_trio.providers.call import converse
from crush_trio.runtime.run import Run
from crush_trio.store.base import StoredConversation
from crush_trio.store.changes import Change, SessionEdited
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import FinishReason, Role, TextPart
from crush_trio.wire.requests import ModelType

log = logging.getLogger(__name__)

DEADLINE: Final = 60.0
"""Seconds that a title may take; after that the session stays untitled."""

HEAD_START: Final = 0.5
"""Seconds that a title waits for the first word of the run's answer; some models think for long."""

OUTPUT_TOKENS: Final = 40
WIDTH: Final = 50
UNTITLED: Final = "Untitled Session"

PLACEHOLDERS: Final = frozenset({"", "New Session", "non-interactive", UNTITLED})
"""Titles of sessions to which their caller gave none; the clients of Crush send the second and third."""

_OVER: Final = tuple(PLACEHOLDERS)
"""The titles that ours replaces; the store compares, so that a rename in the last moment counts."""

INSTRUCTIONS: Final = """\
Write a title for a coding session that begins with the message you are given. At most 50 characters, one
line, in the language of the message. No quotes, no colon, no full stop. Do not answer the message."""

_THOUGHTS: Final = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


@define(eq=False)
class Titles:
    """Makes titles for the sessions of a workspace."""

    desk: Desk
    models: ModelSource = field(repr=False)
    deadline: float = DEADLINE

    def begin(self, run: Run, said: StoredConversation) -> Callable[[], None]:
        """Make a title beside *run*, if that has the first prompt of a session without one.

        The title's request must not be in the way of the run's: what is returned is to be called once
        the model answers, and the title waits for that, but not for long.
        """
        answering = trio.Event()
        if run.prompt and said.session.title in PLACEHOLDERS and is_first_prompt(said, run):
            run.host.services.start_soon(self._give, run, answering, name="title")
        return answering.set

    async def _give(self, run: Run, answering: trio.Event) -> None:
        """Make a title and store it, unless the session was deleted or renamed meanwhile."""
        with trio.move_on_after(HEAD_START):
            await answering.wait()
        session_id = run.session_id
        try:
            await self.desk.transcript.commit(*await self._changes(session_id, run.prompt))
            session = await self.desk.store.session(session_id)
            run.events.publish(session_fact(session, busy=run.host.session_busy(session_id)))
        except SessionNotFound:
            log.info("title.too_late", extra={"session_id": session_id})
        except Exception:  # barrier: a failed title must not cancel the workspace
            log.exception("title.failed", extra={"session_id": session_id})

    async def _changes(self, session_id: SessionId, prompt: str) -> list[Change]:
        """Try the small model, then the large one; without an answer the session stays untitled."""
        await trio.lowlevel.checkpoint()
        now = self.desk.clock.unix()
        with trio.move_on_after(self.deadline):
            for slot in (ModelType.SMALL, ModelType.LARGE):
                try:
                    chosen = await self.models.choose(slot)
                    text, finished = await self._ask(session_id, chosen, prompt)
                except CrushError as error:
                    log.info("title.not_given", extra={"slot": slot.value, "code": error.code})
                    continue
                if finished.reason is not FinishReason.MAX_TOKENS:
                    title = (clean_title(text) or shorten_prompt(prompt))[: self.desk.sizes.title]
                    edited = SessionEdited(id=session_id, at=now, title=title, title_over=_OVER)
                    return [edited, side_usage(session_id, finished.usage, chosen, now)]
        return [SessionEdited(id=session_id, at=now, title=UNTITLED, title_over=_OVER)]

    async def _ask(
        self, session_id: SessionId, chosen: ChosenModel, prompt: str
    ) -> tuple[str, Finished]:
        asked = PromptMessage(role=Role.USER, parts=(TextPart(text=prompt),))
        request = ModelRequest(
            model=chosen.model,
            chosen=chosen.selected,
            system=(INSTRUCTIONS,),
            messages=(asked,),
            max_tokens=chosen.max_tokens if chosen.model.can_reason else OUTPUT_TOKENS,
            affinity=affinity(session_id),
            cache=False,
        )
        words = _TitleText(AnswerBudget(self.desk.sizes.answer))
        with self.desk.spans.model_call(session_id, request) as span:
            finished = await converse(
                recorded(chosen.provider, session_id, TITLE),
                request,
                words,
                patience=self.desk.patience.limited(chosen.limits),
                waiting=lambda _: None,
            )
            span.answered(finished, lambda: (TextPart(text=words.text),))
        return words.text, finished


@define(eq=False)
class _TitleText:
    """Collects the text of an answer. Raises `AnswerTooLong`; reasoning counts too."""

    budget: AnswerBudget
    text: str = field(default="", init=False)

    async def take(self, part: StreamPart) -> None:  # noqa: ASYNC910  # the stream is what waits
        if isinstance(part, TextDelta | ReasoningDelta):
            fitting = self.budget.fitting(part.text)
            self.budget.check()
            if isinstance(part, TextDelta):
                self.text += fitting

    async def reset(self) -> None:  # noqa: ASYNC910  # the stream is what waits
        self.text = ""
        self.budget.reset()


def is_first_prompt(said: StoredConversation, run: Run) -> bool:
    """Whether the session has no user text before *run* (D24)."""
    return not said.session.summary_message_id and not any(
        isinstance(part, TextPart) and part.text
        for message in takewhile(lambda message: message.id != MessageId(run.id), said.messages)
        if message.role is Role.USER
        for part in message.parts
    )


def clean_title(text: str) -> str:
    """Return a model's title as one line, without its reasoning."""
    return " ".join(_THOUGHTS.sub("", text).split())


def shorten_prompt(prompt: str) -> str:
    """Return the beginning of a prompt, short enough for a title."""
    line = " ".join(prompt.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1].rstrip() + "…"
