"""An agent that thinks, calls a tool, and answers in two steps, as a model's turn is written down."""

import trio
from attrs import define, field

from crush_trio import client
from crush_trio.runtime.outcome import Completion
from crush_trio.testing import Gate
from crush_trio.wire.ids import MessageId, ToolCallId
from crush_trio.wire.messages import (
    FinishPart,
    FinishReason,
    Message,
    Role,
    ToolCallPart,
    ToolResultPart,
)

CALL = ToolCallPart(
    id=ToolCallId("call-1"), name="bash", input='{"command":"ls"}', type="function", finished=True
)
RESULT = ToolResultPart(tool_call_id=ToolCallId("call-1"), name="bash", content="a.py\nb.py")


def finish(reason):
    return FinishPart(reason=reason, time=1)


@define(eq=False)
class Actor:
    """Plays the same turn for every prompt, standing still at the gates that are given."""

    gates: dict[str, Gate] = field(factory=dict)
    """`called`: the tool is called; `answering`: half of the answer has been said."""
    restart: bool = False
    """Whether the model fails once in the middle of its answer, and is asked again."""

    def __call__(self, transcript):
        async def turn(run):
            return await self._turn(transcript, run)

        return turn

    async def _stand(self, name):
        if name in self.gates:
            await self.gates[name].wait()

    async def _turn(self, transcript, run):
        await trio.lowlevel.checkpoint()
        turn = transcript.turn(run.id, run.session_id)
        step = await turn.create(self._message(run, transcript, "step"))
        step.append_reasoning("I should ")
        step.append_reasoning("look.")
        await step.close_reasoning("signed")
        await step.put_tool_call(ToolCallPart(id=CALL.id, name="bash", type="function"))
        await step.put_tool_call(CALL)
        await step.finish(finish(FinishReason.TOOL_USE))
        await self._stand("called")
        now = transcript.clock.unix()
        await turn.write(
            Message(
                id=MessageId(f"result-{run.id}"),
                role=Role.TOOL,
                session_id=run.session_id,
                parts=(RESULT, finish(FinishReason.STOP)),
                created_at=now,
                updated_at=now,
            )
        )
        answer = await turn.create(self._message(run, transcript, "answer"))
        if self.restart:
            answer.append_text("Oops")
            await trio.sleep(1)
            await answer.reset()
        answer.append_text("Two ")
        await answer.flush()
        await self._stand("answering")
        answer.append_text("files.")
        await answer.finish(finish(FinishReason.END_TURN))
        return Completion(message_id=answer.id, text="Two files.")

    def _message(self, run, transcript, name):
        now = transcript.clock.unix()
        return Message(
            id=MessageId(f"{name}-{run.id}"),
            role=Role.ASSISTANT,
            session_id=run.session_id,
            created_at=now,
            updated_at=now,
        )


def told(pieces):
    """Return what a program that prints pieces shows: one word per kind, and joined text."""
    return joined([_word(piece) for piece in pieces])


def _word(piece):
    match piece:
        case client.TextPiece(text=text):
            return f"text:{text}"
        case client.ReasoningPiece(text=text):
            return f"thought:{text}"
        case client.RunEvent(run=run):
            return f"run:{run.state.value}"
        case client.RunEnded(run=run):
            return f"ended:{run.state.value}:{run.text}"
    return _other(piece)


def _other(piece):
    match piece:
        case client.ToolCallBegun():
            return "call"
        case client.ToolCallFinished(call=call):
            return f"called:{call.input}"
        case client.ToolResult(result=result):
            return f"result:{result.content}"
        case client.MessageFinished(finish=end):
            return f"finish:{end.reason.value}"
        case client.MessageRestarted():
            return "restart"
        case client.Asked(request=request):
            return f"asked:{request.id}"
        case client.Settled(request=request, granted=granted):
            return f"settled:{request.id}:{granted}"
    raise AssertionError(piece)


def joined(shown):
    """Put together what was said in pieces of any size."""
    whole = []
    for word in shown:
        kind, _, text = word.partition(":")
        if kind in {"text", "thought"} and whole and whole[-1].startswith(f"{kind}:"):
            whole[-1] += text
        else:
            whole.append(word)
    return whole


TOLD = [
    "thought:I should look.",
    "call",
    'called:{"command":"ls"}',
    "finish:tool_use",
    "result:a.py\nb.py",
    "finish:stop",
    "text:Two files.",
    "finish:end_turn",
    "ended:completed:Two files.",
]
"""What a stream of such a run tells, apart from its states."""


def without_states(shown):
    return [word for word in shown if not word.startswith("run:")]
