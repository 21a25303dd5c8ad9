"""A turn that needs no model, no key and no network.

What a workspace runs when nothing else is configured: it says what it is, how to go on from here,
and what it was asked. It streams like a model would, so that clients can be tried out, and it can
be cancelled at any word.
"""

from collections.abc import Iterator

import trio
from attrs import define

from crush_trio.agent.transcript import OpenMessage, Transcript
from crush_trio.clock import Clock, IdSource
from crush_trio.events.facts import Fact
from crush_trio.runtime.outcome import Completion
from crush_trio.runtime.run import Run
from crush_trio.wire.catalog import CatalogModel, SelectedModel
from crush_trio.wire.events import AgentEvent, AgentEventType, EventType, PayloadType
from crush_trio.wire.ids import MessageId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart
from crush_trio.wire.native import RunKind

DEMO_PROVIDER = "demo"
DEMO_MODEL = CatalogModel(
    id="demo", name="Offline demo", context_window=8192, default_max_tokens=1024
)
DEMO_CHOICE = SelectedModel(model=DEMO_MODEL.id, provider=DEMO_PROVIDER)

_ANSWER = (
    "I am the offline demo of crush_trio: no model is behind me, and nothing leaves this machine. "
    "Everything else you see is real: this run was stored before it was accepted, each word "
    "reaches every attached client, and anybody may cancel me while I speak. "
)


@define(eq=False)
class DemoTurn:
    """Says its piece, word by word, at *pace* seconds a word."""

    transcript: Transcript
    clock: Clock
    ids: IdSource
    pace: float = 0.02

    async def __call__(self, run: Run) -> Completion:
        """Answer one prompt; a session has nothing to summarise that a demo could tell."""
        if run.kind is not RunKind.PROMPT:
            await trio.lowlevel.checkpoint()
            return Completion()
        await run.record_prompt()
        prompts = [run.prompt, *(s.prompt for s in await run.fold())]
        answer = await self._begin(run)
        run.partial = lambda: _said(answer)
        for word in _words(prompts):
            answer.append_text(word)
            await trio.sleep(self.pace)
        done = _said(answer)
        answer.seal(FinishPart(reason=FinishReason.END_TURN, time=self.clock.unix()))
        return Completion(message_id=done.message_id, text=done.text, notices=(_finished(run),))

    async def _begin(self, run: Run) -> OpenMessage:
        now = self.clock.unix()
        return await self.transcript.create(
            Message(
                id=MessageId(self.ids.new()),
                role=Role.ASSISTANT,
                session_id=run.session_id,
                model=DEMO_MODEL.id,
                provider=DEMO_PROVIDER,
                created_at=now,
                updated_at=now,
            )
        )


def _words(prompts: list[str]) -> Iterator[str]:
    asked = " And then: ".join(f"“{prompt}”" for prompt in prompts)
    for word in f"{_ANSWER}You asked: {asked}".split(" "):
        yield f"{word} "


def _said(answer: OpenMessage) -> Completion:
    message = answer.message()
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    return Completion(message_id=message.id, text=text)


def _finished(run: Run) -> Fact:
    """Return the notice that clients re-read the state of a session by (D28)."""
    event = AgentEvent(type=AgentEventType.AGENT_FINISHED, session_id=run.session_id)
    return Fact(payload_type=PayloadType.AGENT_EVENT, change=EventType.CREATED, entity=event)
