"""Turns that do what a test wrote, and nothing else.

A script is a list of small steps. `ScriptedTurns` is a turn function that plays, for each run, the
script its prompt names, and keeps book: which runs became active, which ran at the same time, what
each of them folded. Every message it says goes through the real event log, as a model's would.

```python
gate = Gate("thinking")
turns = ScriptedTurns({"hello": [Say("Hel"), Pause(gate), Say("lo")]})
async with open_test_workspace(turns) as bench:
    accepted = bench.accept("hello")
    await gate.reached()
```
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack

import trio
from attrs import define, field, frozen

from crush_trio.events.facts import MessageChange
from crush_trio.events.growing import GrowingMessage
from crush_trio.runtime.outcome import Completion, Submission
from crush_trio.runtime.run import Run
from crush_trio.testing.gates import Gate
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, TextPart


@frozen
class Say:
    """Stream *text* as one more piece of the answer."""

    text: str


@frozen
class Pause:
    """Stand at *gate* until the test opens it; a cancel ends the wait."""

    gate: Gate


@frozen
class Sleep:
    """Let virtual time pass."""

    seconds: float


@frozen
class Fold:
    """Take in the prompts that wait behind this run, as before a model step."""


@frozen
class Fail:
    """Raise *error*."""

    error: Exception


@frozen
class Do:
    """Do anything else with the run."""

    function: Callable[[Run], Awaitable[object]]


Step = Say | Pause | Sleep | Fold | Fail | Do
Script = Sequence[Step]

ECHO: Script = (Say("done"),)


@define(eq=False)
class ScriptedTurns:
    """A turn function: plays the script of the run's prompt, or *default* if it has none."""

    scripts: Mapping[str, Script] = field(factory=dict)
    default: Script = ECHO
    started: list[str] = field(factory=list, init=False)
    """The prompts of the runs that became active, in that order."""
    folded: dict[RunId, list[str]] = field(factory=dict, init=False)
    """The prompts each run folded, in that order."""
    overlaps: list[SessionId] = field(factory=list, init=False)
    """Sessions in which two runs were seen active at once; must stay empty (A12)."""
    _active: set[SessionId] = field(factory=set, init=False)

    async def __call__(self, run: Run) -> Completion:
        """Play the run's script and finish its answer."""
        with ExitStack() as stack:
            self._note_active(run, stack)
            await trio.lowlevel.checkpoint()
            answer = _Answer(run)
            run.partial = answer.completion
            for step in self.scripts.get(run.prompt, self.default):
                await self._play(step, run, answer)
            await trio.lowlevel.checkpoint()
            answer.finish()
            return answer.completion()

    def _note_active(self, run: Run, stack: ExitStack) -> None:
        self.started.append(run.prompt)
        if run.session_id in self._active:
            self.overlaps.append(run.session_id)
        self._active.add(run.session_id)
        stack.callback(self._active.discard, run.session_id)

    async def _play(self, step: Step, run: Run, answer: "_Answer") -> None:
        match step:
            case Say(text=text):
                answer.say(text)
                await trio.lowlevel.checkpoint()
            case Pause(gate=gate):
                await gate.wait()
            case Sleep(seconds=seconds):
                await trio.sleep(seconds)
            case Fold():
                taken = await run.fold()
                self.folded.setdefault(run.id, []).extend(s.prompt for s in taken)
            case Fail(error=error):
                await trio.lowlevel.checkpoint()
                raise error
            case Do(function=function):
                await function(run)
        await trio.lowlevel.checkpoint_if_cancelled()


@define(eq=False)
class _Answer:
    """The assistant message of one scripted turn, created when it first says something."""

    run: Run
    growing: GrowingMessage | None = field(default=None, init=False)

    def say(self, text: str) -> None:
        if self.growing is None:
            self.growing = GrowingMessage(
                Message(
                    id=MessageId(f"answer-{self.run.id}"),
                    role=Role.ASSISTANT,
                    session_id=self.run.session_id,
                )
            )
            self._publish(EventType.CREATED)
        self.growing.append_text(text)
        self._publish(EventType.UPDATED, plain=True)

    def finish(self) -> None:
        if self.growing is not None:
            self.growing.put(FinishPart(reason=FinishReason.END_TURN, time=1))
            self._publish(EventType.UPDATED)

    def completion(self) -> Completion:
        if self.growing is None:
            return Completion()
        message = self.growing.view().message()
        text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
        return Completion(message_id=message.id, text=text)

    def _publish(self, change: EventType, *, plain: bool = False) -> None:
        assert self.growing is not None
        self.run.publish(MessageChange(change=change, view=self.growing.view(), plain=plain))


def prompt(text: str, session: str = "s", run_id: str | None = None, **more: object) -> Submission:
    """Return a submission with as little typing as a test wants."""
    return Submission(
        session_id=SessionId(session),
        prompt=text,
        run_id=None if run_id is None else RunId(run_id),
        **more,  # type: ignore[arg-type]  # the constructor checks what a test passes through
    )
