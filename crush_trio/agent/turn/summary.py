"""`Summarizer`: summarises a session so that it fits the model's context again.

The summary is an assistant message that streams like any other. When it is complete, the session's
history begins with it (D21). If it is cancelled, it is deleted (D32).
"""

from collections.abc import Iterable
from typing import Final

import trio
from attrs import define

from crush_trio.agent.turn.answer import AnswerBudget, StepAnswer
from crush_trio.agent.turn.context_window import fitted, size_of
from crush_trio.agent.turn.model import estimate_tokens, side_usage
from crush_trio.agent.turn.model_call import SUMMARY, call_model
from crush_trio.agent.turn.plan import Desk, TurnPlan
from crush_trio.agent.turn.prompt import ModelAbilities, affinity, build_prompt
from crush_trio.providers.base import Finished, ModelRequest, PromptMessage
from crush_trio.providers.errors import ProviderContextFull
from crush_trio.runtime.outcome import Completion
from crush_trio.runtime.run import Run
from crush_trio.store.changes import SessionEdited
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart
from crush_trio.wire.views import Session, Todo

INSTRUCTIONS: Final = """\
You write the summary by which a coding session goes on after its history has become too long. Whoever
continues has this summary and nothing else, so be specific: names, paths, commands, numbers. Write
Markdown with these parts, and leave out a part that has nothing in it.

1. What the user wants, in their own words where the wording matters, with every constraint they gave.
2. What was done: files created or changed and how, commands run and what they showed.
3. What was found out: how the project is built, tested and laid out; causes of problems.
4. Where the work stands: what is half done, what fails, what was being tried last.
5. What comes next, in order.

Do not call tools. Do not address the user."""

REQUEST: Final = "Summarise our session so far, as instructed."

CONTINUE: Final = (
    "The session was interrupted because its history had become too long; the summary above stands "
    "for it. Go on with the work. What I had asked for was:\n\n{prompt}"
)
"""The user message with which a turn continues after a summary (C9)."""

FAILED: Final = "Summarization Error"

SHORTER_ATTEMPTS: Final = 3
"""How often a summary is asked for again with less of the history."""


@define(eq=False)
class Summarizer:
    """Summarises the session of one run, as part of that run."""

    run: Run
    plan: TurnPlan
    desk: Desk

    async def summarize(self) -> Completion:
        """Write the summary and make it the beginning of the history; nothing if that is empty."""
        said = await self.desk.store.conversation(self.run.session_id, self.run.id)
        if not said.messages:
            return Completion()
        request = self._request(said.session, said.messages)
        del said  # the request has all of it; see `Steps`
        new = self.desk.begin_answer(self.run, self.plan.model, summary=True)
        await new.store()
        answer = StepAnswer(
            new.opened,
            budget=AnswerBudget(self.desk.sizes.answer),
        )
        try:
            ending = await self._ask_within(request, answer)
        except trio.Cancelled:
            self.desk.turn(self.run).discard(answer.opened)
            raise
        except Exception as error:
            finish = FinishPart(
                reason=FinishReason.ERROR,
                time=self.desk.clock.unix(),
                message=FAILED,
                details=str(error),
            )
            await answer.drop_incomplete()
            await answer.opened.close_reasoning()
            await answer.opened.finish(finish)
            raise
        await self._adopt(answer, ending)
        return answer.said()

    async def _ask_within(self, request: ModelRequest, answer: StepAnswer) -> Finished:
        """Ask for the summary; what is too long for the model is asked again with less history."""
        window = self.desk.windows.of(self.plan.model)
        for _ in range(SHORTER_ATTEMPTS):
            shown = fitted(request, window) if window else request
            try:
                return await call_model(
                    self.run, self.plan, self.desk, shown, answer, purpose=SUMMARY
                )
            except ProviderContextFull as full:
                self.desk.windows.learn(self.plan.model, shown, full)
                known = full.window or size_of(shown)
                window = min(known, window or known) * 2 // 3
                await answer.reset()
        shown = fitted(request, window)
        return await call_model(self.run, self.plan, self.desk, shown, answer, purpose=SUMMARY)

    def _request(self, session: Session, messages: list[Message]) -> ModelRequest:
        model = self.plan.model
        can = ModelAbilities(
            images=model.model.supports_attachments, media_results=model.media_results
        )
        history = build_prompt(messages, session.summary_message_id, can, remind=False)
        asked = TextPart(text=REQUEST + _todo_list(session.todos))
        return ModelRequest(
            model=model.model,
            chosen=model.selected,
            system=(INSTRUCTIONS,),
            messages=(*history, PromptMessage(role=Role.USER, parts=(asked,))),
            max_tokens=model.max_tokens,
            affinity=affinity(session.id),
        )

    async def _adopt(self, answer: StepAnswer, ending: Finished) -> None:
        """Finish the summary and make it the beginning of the history, in one commit."""
        now = self.desk.clock.unix()
        usage = ending.usage
        size = usage.output_tokens or estimate_tokens(answer.message().parts)
        edited = SessionEdited(
            id=self.run.session_id,
            at=now,
            summary_message_id=answer.opened.id,
            prompt_tokens=0,
            completion_tokens=size,
        )
        await answer.opened.finish(
            FinishPart(reason=FinishReason.END_TURN, time=now),
            edited,
            side_usage(self.run.session_id, usage, self.plan.model, now),
        )


def _todo_list(todos: Iterable[Todo]) -> str:
    """Return the session's todo list with its states, for the summary (D32)."""
    lines = [f"- [{todo.status}] {todo.content}" for todo in todos]
    if not lines:
        return ""
    return "\n\nThe todo list as it stands; whoever continues has to restore it:\n" + "\n".join(
        lines
    )
