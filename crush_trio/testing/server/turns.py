"""Scripted turns, and a journal in memory.

A script is a list of small steps. `ScriptedTurns` is a turn function that plays, for each run, the
script of its prompt. It records which runs became active, which were active at the same time, and
what each of them folded. Its messages go through the real event log.

```python
gate = Gate("thinking")
turns = ScriptedTurns({"hello": [Say("Hel"), Pause(gate), Say("lo")]})
async with open_test_workspace(turns) as bench:
    accepted = bench.accept("hello")
    await gate.reached()
```

`TranscriptJournal` is a journal that stores the messages of turns per session, and publishes them.
Tests read its `messages` where a deployment reads the database.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack

import trio
from attrs import define, field, frozen

from crush_trio.clock import Clock
from crush_trio.events.facts import MessageChange
from crush_trio.events.growing_message import GrowingMessage
from crush_trio.events.log import EventLog
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.journal import ImmediateEntry, JournalEntry
from crush_trio.runtime.outcome import Completion, Outcome, Submission
from crush_trio.runtime.run import Run
from crush_trio.testing.explore.checkpoints import Gate
from crush_trio.wire.codec import USER_CANCELLED
from crush_trio.wire.events import EventType
from crush_trio.wire.ids import MessageId, RunId, SessionId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Part, Role, TextPart
from crush_trio.wire.runs import RunState


@define(eq=False)
class TranscriptJournal:
    """A `Journal` in memory; `rows` and `messages` are what a restart would find."""

    events: EventLog
    clock: Clock
    rows: dict[RunId, RunState] = field(factory=dict, init=False)
    """The stored state of every accepted run."""
    endings: dict[RunId, Outcome] = field(factory=dict, init=False)
    messages: dict[SessionId, list[Message]] = field(factory=dict, init=False)
    """The stored messages of every session, in order."""
    _unpublished: list[Message] = field(factory=list, init=False)

    def accept(self, run: AcceptedRun, *, begins: bool) -> JournalEntry:
        """Store the acceptance, and the prompt of a run that begins at once."""

        def note() -> None:
            self.rows[run.id] = RunState.ACCEPTED
            if begins:
                self._write_prompt(run)

        return ImmediateEntry(note)

    def retract(self, run: AcceptedRun) -> None:
        """Remove an acceptance that was not confirmed."""
        self.rows.pop(run.id, None)
        kept = [m for m in self.messages.get(run.session_id, []) if m.id != _prompt_id(run)]
        self.messages[run.session_id] = kept

    def begin(self, run: AcceptedRun) -> JournalEntry:
        """Store the state, and the prompt as a user message."""

        def note() -> None:
            self.rows[run.id] = run.state
            self._write_prompt(run)

        return ImmediateEntry(note, self._publish)

    def fold(self, runs: Sequence[AcceptedRun], into: AcceptedRun) -> JournalEntry:
        """Store the prompts and the endings."""
        return self._ended(runs, Outcome.folded(into.id))

    def withdraw(self, runs: Sequence[AcceptedRun]) -> JournalEntry:
        """Store the prompts, and for each an answer that says it was cancelled (A21)."""
        accepted = [run for run in runs if run.id in self.rows]
        return self._ended(accepted, Outcome.cancelled())

    def end(self, run: AcceptedRun, outcome: Outcome) -> JournalEntry:
        """Store the ending, and complete the record of a cancelled turn (D20)."""
        return self._ended((run,), outcome)

    async def answers(self, within: float) -> bool:
        """Return True: everything is stored at once."""
        await trio.lowlevel.checkpoint()
        return within > 0

    def give_up(self) -> None:
        """Do nothing: everything is stored at once."""

    def _ended(self, runs: Sequence[AcceptedRun], outcome: Outcome) -> JournalEntry:
        def note() -> None:
            for run in runs:
                self._end(run, outcome)

        return ImmediateEntry(note, self._publish)

    def _end(self, run: AcceptedRun, outcome: Outcome) -> None:
        assert run.id not in self.endings, "a run ends once"
        self._write_prompt(run)
        if outcome.state is RunState.CANCELLED and not outcome.message_id:
            now = self.clock.unix()
            finish = FinishPart(reason=FinishReason.CANCELLED, time=now, message=USER_CANCELLED)
            self._write(run, MessageId(f"cancelled-{run.id}"), Role.ASSISTANT, finish)
        self.rows[run.id] = outcome.state
        self.endings[run.id] = outcome

    def _write_prompt(self, run: AcceptedRun) -> None:
        """Write the prompt, unless it was written."""
        if _prompt_id(run) not in {m.id for m in self.messages.get(run.session_id, [])}:
            text = TextPart(text=run.submission.prompt)
            stop = FinishPart(reason=FinishReason.STOP, time=0)
            self._write(run, _prompt_id(run), Role.USER, text, stop)

    def _write(self, run: AcceptedRun, identity: MessageId, role: Role, *parts: Part) -> None:
        now = self.clock.unix()
        message = Message(
            id=identity,
            role=role,
            session_id=run.session_id,
            parts=parts,
            created_at=now,
            updated_at=now,
        )
        self.messages.setdefault(run.session_id, []).append(message)
        self._unpublished.append(message)

    def _publish(self) -> None:
        """Publish the messages that were written since the last call, in order."""
        unpublished, self._unpublished = self._unpublished, []
        for message in unpublished:
            view = GrowingMessage(message).view()
            self.events.publish(MessageChange(change=EventType.CREATED, view=view))


def _prompt_id(run: AcceptedRun) -> MessageId:
    return MessageId(f"prompt-{run.id}")


@frozen
class Say:
    """Stream *text* as a piece of the answer."""

    text: str


@frozen
class Pause:
    """Wait at *gate* until the test opens it; a cancel ends the wait."""

    gate: Gate


@frozen
class Sleep:
    """Wait, in virtual time."""

    seconds: float


@frozen
class Fold:
    """Fold the queued prompts into this run, as before a model step."""


@frozen
class Fail:
    """Raise *error*."""

    error: Exception


@frozen
class Do:
    """Call *function* with the run."""

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
    """The assistant message of one scripted turn, created with its first text."""

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
    """Return a submission; a short form for tests."""
    return Submission(
        session_id=SessionId(session),
        prompt=text,
        run_id=None if run_id is None else RunId(run_id),
        **more,  # type: ignore[arg-type]  # the constructor checks what a test passes through
    )
