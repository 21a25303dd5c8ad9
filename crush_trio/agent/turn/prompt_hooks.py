"""Hooks of prompts and turns: `SessionStart`, `UserPromptSubmit` and `Stop`.

`SessionStart` hooks run with the first run of a session since the workspace was opened; what they say is
in the system prompt of every run of that session. `UserPromptSubmit` hooks run before a prompt reaches the
model, also one that is folded into a running turn; they may refuse it or add context. `Stop` hooks run
when the model has finished and may have it go on. Runs of sub-agents have none of them.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field

from crush_trio.agent.turn.plan import Desk
from crush_trio.config.checks import HookEvent
from crush_trio.errors import CrushError
from crush_trio.integrations.hook_answers import HookAnswer
from crush_trio.integrations.hook_input import Occasion
from crush_trio.runtime.run import Run
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunKind

log = logging.getLogger(__name__)

MAX_SESSIONS: Final = 256
"""Sessions whose start is remembered; a session beyond that is started again as resumed."""

MAX_CONTINUED: Final = 8
"""How often `Stop` hooks may have the model go on in one turn."""

HEADING: Final = "# Hooks\n\nCommands that the user has configured say:"

GO_ON: Final = "A hook wants you to go on: this is not finished yet."


class PromptRefused(CrushError):
    """A hook has refused a prompt; the detail is its reason."""

    code = "prompt_refused"
    message = "a hook has refused this prompt"


async def ask_event(
    desk: Desk, run: Run, event: HookEvent, details: JsonObject, subject: str = ""
) -> HookAnswer | None:
    """Run the hooks of an event of *run*; None if it has none."""
    if run.kind is not RunKind.PROMPT or not (hooks := desk.hooks.matching(subject, event)):
        return None  # noqa: ASYNC910  # a run without hooks does not yield here

    def reaped(stopped: Iterable[int], left: Iterable[int] = ()) -> None:
        run.accepted.reaped.extend(stopped)
        run.accepted.left.extend(left)

    occasion = Occasion(event=event, session_id=run.session_id, details=details, reaped=reaped)
    return (await desk.hooks.ask_about(hooks, occasion, subject)).combined


async def prompt_context(desk: Desk, run: Run, prompt: str) -> str:
    """Return what hooks add to a prompt; raise `PromptRefused` if one refuses it."""
    said = await ask_event(desk, run, HookEvent.USER_PROMPT_SUBMIT, {"prompt": prompt})
    if said is None:
        return ""
    if said.refuses:
        raise PromptRefused(said.reason)
    return said.context


async def reason_to_go_on(desk: Desk, run: Run, text: str, continued: int) -> str:
    """Return why hooks want the turn to go on after the model has said *text*; empty if they do not.

    *continued* is how often they wanted that already in this turn.
    """
    details = {"stop_hook_active": continued > 0, "last_assistant_message": text}
    said = await ask_event(desk, run, HookEvent.STOP, details)
    if said is None or not said.refuses or said.halt:
        return ""
    if continued >= MAX_CONTINUED:
        log.warning("hook.stop_ignored", extra={"run_id": run.id, "times": continued})
        return ""
    return said.reason or GO_ON


@define(eq=False)
class SessionStarts:
    """The sessions that have begun since the workspace was opened, and what hooks said then."""

    desk: Desk = field(repr=False)
    _said: dict[SessionId, str] = field(factory=dict, init=False, repr=False)

    async def context(self, run: Run) -> str:
        """Return what the hooks of the session's start and of the prompt say to the model."""
        prompt = await prompt_context(self.desk, run, run.prompt)
        return "\n".join(filter(None, (await self._started(run), prompt)))

    async def _started(self, run: Run) -> str:
        if run.session_id in self._said or run.kind is not RunKind.PROMPT:
            return self._said.get(run.session_id, "")  # noqa: ASYNC910  # as in `ask_event`
        words = ("startup", "resume")
        if not any(self.desk.hooks.matching(each, HookEvent.SESSION_START) for each in words):
            return ""  # noqa: ASYNC910
        session = await self.desk.store.session(run.session_id)
        source = words[session.message_count > 1]
        said = await ask_event(self.desk, run, HookEvent.SESSION_START, {"source": source}, source)
        while len(self._said) >= MAX_SESSIONS:
            del self._said[next(iter(self._said))]
        self._said[run.session_id] = "" if said is None else said.context
        return self._said[run.session_id]


def hooks_section(said: Sequence[str]) -> tuple[str, ...]:
    """Return what hooks said as system messages: one, or none."""
    texts = [each for each in said if each]
    return ("\n\n".join((HEADING, *texts)),) if texts else ()
