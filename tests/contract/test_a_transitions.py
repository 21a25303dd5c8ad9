"""Table A.8: whatever state a run is in and whatever happens to it, it ends once and as expected.

One run, P, is brought into a state; then one thing happens; then everything that still can go on is
let go. A row of `TABLE` is a state, a column is what happens, a cell is the ending P must have. The
test moves before every other task, so the state is exactly the one that the row names. A run that
is not accepted yet has no row here: nothing can happen to it (see `test_a_accept`).

States beyond the words of A.8: a run is `preparing` while its turn has not written the prompt yet
(pre-run steps, A8), `thinking` between that and the first output, `finishing` when its turn has
returned and the ending is being stored, `folded` while the host's turn is taking its prompt in.
Beyond its columns: `close` asks the workspace to close, `abort` cancels everything around it.

Cells in which the Go program does something else, and the weakness that this corrects:

* accepted, covered, promoted x close, abort: it would vanish without a record or an ending (L5);
* accepted, covered, promoted x cancel_all: it would be passed over (L6);
* covered x failure: it would be announced as failed, not as cancelled (L9);
* preparing x cancel and all that cancel: the cancel would wait for the pre-run steps (L9);
* queued x cancel, clear_queue, cancel_all, close, abort: no record of the prompt would be left (L43), and
  no ending be announced unless the caller gave a run id (L8);
* queued x failure: it would stay in the queue with nobody to run it (L2);
* every cell that ends without a caller's run id: the ending might not be announced at all (L8).
"""

from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from crush_trio.errors import WorkspaceClosing
from crush_trio.runtime import AcceptedRun, Completion, MemoryJournal, Run, StopReceipt
from crush_trio.testing import Gate, controlled
from crush_trio.testing.server.faults import FaultyJournal, JournalFault
from crush_trio.testing.server.turns import Do, Fold, Pause, Say, ScriptedTurns
from crush_trio.testing.server.workspace import Bench, check_promises, open_test_workspace
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunState

TABLE: Final = """
state      cancel     clear_queue  cancel_all  close      abort      submitter_gone  failure
accepted   cancelled  completed    cancelled   cancelled  cancelled  completed       errored
covered    cancelled  cancelled    cancelled   cancelled  cancelled  cancelled       cancelled
queued     cancelled  cancelled    cancelled   cancelled  cancelled  completed       completed
promoted   cancelled  completed    cancelled   cancelled  cancelled  completed       errored
preparing  cancelled  completed    cancelled   cancelled  cancelled  completed       errored
thinking   cancelled  completed    cancelled   cancelled  cancelled  completed       errored
streaming  cancelled  completed    cancelled   cancelled  cancelled  completed       errored
waiting    cancelled  completed    cancelled   cancelled  cancelled  completed       errored
finishing  completed  completed    completed   completed  completed  completed       -
folded     folded     folded       folded      folded     folded     folded          folded
terminal   completed  completed    completed   completed  completed  completed       -
"""

SESSION: Final = SessionId("s")
PHASES: Final = ("preparing", "thinking", "streaming", "waiting")
HELD_WRITES: Final = {"finishing": "end", "folded": "fold"}
WITH_A_RUN_BEFORE: Final = frozenset({"queued", "promoted", "folded"})
STATE_OF_P: Final = {
    "accepted": RunState.ACCEPTED,
    "covered": RunState.ACCEPTED,
    "queued": RunState.QUEUED,
    "promoted": RunState.ACTIVE,
    "preparing": RunState.ACTIVE,
    "thinking": RunState.ACTIVE,
    "streaming": RunState.ACTIVE,
    "waiting": RunState.ACTIVE,
    "finishing": RunState.ACTIVE,
    "folded": RunState.QUEUED,
    "terminal": RunState.COMPLETED,
}
CANCELLED, COMPLETED = RunState.CANCELLED, RunState.COMPLETED
FATE_OF_ACTIVE: Final = {
    "cancel": CANCELLED,
    "clear_queue": COMPLETED,
    "cancel_all": CANCELLED,
    "close": CANCELLED,
    "abort": CANCELLED,
    "submitter_gone": COMPLETED,
    "failure": RunState.ERRORED,
}
FATE_OF_BYSTANDER: Final = {
    **dict.fromkeys(FATE_OF_ACTIVE, COMPLETED),
    **dict.fromkeys(("cancel_all", "close", "abort"), CANCELLED),
}


@define(eq=False)
class Stage:
    """P, the run before it in its session, and a bystander in another session.

    P's turn comes past one gate for each phase, so P is in a phase while it stands at that gate.
    """

    run_id: str | None
    gates: dict[str, Gate] = field(init=False)
    turns: ScriptedTurns = field(init=False)
    bench: Bench = field(init=False)
    p: AcceptedRun = field(init=False)
    before: AcceptedRun | None = field(default=None, init=False)
    bystander: AcceptedRun = field(init=False)
    around: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    doomed: str = field(default="", init=False)
    abandoned: list[str] = field(factory=list, init=False)
    submitter: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    submitted: trio.Event = field(factory=trio.Event, init=False)
    journal: FaultyJournal = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.gates = {name: Gate(name) for name in (*PHASES, "before", "bystander")}
        fail_if_doomed = Do(self.stumble)
        self.turns = ScriptedTurns(
            {
                "P": [
                    *(Pause(self.gates["thinking"]), fail_if_doomed, Say("so far")),
                    *(Pause(self.gates["streaming"]), fail_if_doomed),
                    *(Do(self.ask), fail_if_doomed, Say(", all")),
                ],
                "predecessor": [Pause(self.gates["before"]), fail_if_doomed],
                "host": [Pause(self.gates["before"]), Fold(), fail_if_doomed],
                "bystander": [Pause(self.gates["bystander"])],
            }
        )

    # ── What the runs do ────────────────────────────────────────────────────────────────────────

    async def turn(self, run: Run) -> Completion:
        if run.prompt == "P":
            await self.gates["preparing"].wait()
            await self.stumble(run)
        return await self.turns(run)

    async def stumble(self, run: Run) -> None:
        await trio.lowlevel.checkpoint()
        if run.prompt == self.doomed:
            raise RuntimeError("the model broke")

    async def ask(self, _run: Run) -> None:
        """Wait for an answer from outside, in a task of the turn's own, as a tool call would."""

        async def wait_for_answer() -> None:
            try:
                await self.gates["waiting"].wait()
            except trio.Cancelled:
                self.abandoned.append("answer")
                raise

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_answer)

    # ── How P gets into a state ─────────────────────────────────────────────────────────────────

    async def submit(self) -> None:
        """Be the caller: submit P, wait for the answer, and stay connected."""
        with self.submitter:
            self.p = self.bench.accept("P", run_id=self.run_id)
            self.submitted.set()
            await self.p.journaled()
            await trio.sleep_forever()

    async def reach(self, state: str, callers: trio.Nursery) -> None:
        self.bystander = self.bench.accept("bystander", session="elsewhere")
        await self.gates["bystander"].reached()
        if state in WITH_A_RUN_BEFORE:
            self.before = self.bench.accept("host" if state == "folded" else "predecessor")
            await self.gates["before"].reached()
        callers.start_soon(self.submit)
        await self.submitted.wait()
        if state in PHASES:
            self.open(*PHASES[: PHASES.index(state)])
            await self.gates[state].reached()
        else:
            await getattr(self, f"reach_{state}")()

    async def reach_accepted(self) -> None:
        assert self.turns.started == ["bystander"], "P has already moved"

    async def reach_covered(self) -> None:
        self.bench.cancel()

    async def reach_queued(self) -> None:
        await wait_all_tasks_blocked()

    async def reach_promoted(self) -> None:
        await wait_all_tasks_blocked()
        self.open("before")
        assert self.before is not None
        await self.before.wait_ended()
        assert self.turns.started == ["bystander", "predecessor"]

    async def reach_finishing(self) -> None:
        self.open(*PHASES)
        await wait_all_tasks_blocked()
        assert self.journal.struck

    async def reach_folded(self) -> None:
        await wait_all_tasks_blocked()
        self.open("before")
        await wait_all_tasks_blocked()
        assert self.journal.struck

    async def reach_terminal(self) -> None:
        self.open(*PHASES)
        await self.p.wait()

    def open(self, *gates: str) -> None:
        for gate in gates:
            self.gates[gate].open()

    # ── What happens to it ──────────────────────────────────────────────────────────────────────

    def cancel(self) -> StopReceipt:
        return self.bench.cancel()

    def clear_queue(self) -> StopReceipt:
        return self.bench.workspace.clear_queue(SESSION)

    def cancel_all(self) -> StopReceipt:
        return self.bench.workspace.cancel_all()

    def close(self) -> StopReceipt:
        receipt = self.bench.workspace.close()
        with pytest.raises(WorkspaceClosing):
            self.bench.accept("too late")
        return receipt

    def abort(self) -> StopReceipt:
        self.around.cancel()
        return StopReceipt(())

    def submitter_gone(self) -> StopReceipt:
        self.submitter.cancel()
        return StopReceipt(())

    def failure(self) -> StopReceipt:
        """The run that is active, or will be next, fails."""
        running = self.p if self.before is None or self.before.ended else self.before
        self.doomed = running.submission.prompt
        return StopReceipt(())


def is_p(run: AcceptedRun) -> bool:
    return run.submission.prompt == "P"


@asynccontextmanager
async def open_stage(state: str, run_id: str | None):
    """Open a workspace and bring P into *state*; the test's task goes first from here on.

    The workspace lives in a task of its own, so that it can be cut down from outside (`abort`).
    """
    stage = Stage(run_id)
    held = [
        JournalFault(method=method, wanted=is_p)
        for of, method in HELD_WRITES.items()
        if of == state
    ]
    stage.journal = FaultyJournal(MemoryJournal(), held)

    async def keep(task_status: "trio.TaskStatus[Bench]") -> None:
        with stage.around:
            async with open_test_workspace(stage.turn, journal=stage.journal) as bench:
                stage.journal.inner = bench.transcript
                task_status.started(bench)
                await trio.sleep_forever()

    me = trio.lowlevel.current_task()
    with trio.fail_after(60), controlled(lambda tasks: [t for t in tasks if t is me] or tasks):
        async with trio.open_nursery() as nursery:
            stage.bench = await nursery.start(keep)
            await stage.reach(state, nursery)
            yield stage
            nursery.cancel_scope.cancel()


def cells() -> Iterator[object]:
    """Yield every cell of the table, for a run with a caller's id and for one without."""
    (_, *columns), *rows = [line.split() for line in TABLE.strip().splitlines()]
    for state, *endings in rows:
        for event, ending in zip(columns, endings, strict=True):
            for run_id in (None, "mine"):
                if ending != "-" and not (state == "folded" and run_id):
                    name = f"{state} x {event}{' (named)' if run_id else ''}"
                    yield pytest.param(state, event, RunState(ending), run_id, id=name)


@pytest.mark.item("A.8", "A13", "A19", "A30", "A31", "A32", "A33", "B1", "B3", "B4", "B9")
@pytest.mark.parametrize(("state", "event", "ending", "run_id"), [*cells()])
async def test_transition(state, event, ending, run_id):
    async with open_stage(state, run_id) as stage:
        assert stage.p.state is STATE_OF_P[state]
        expected = {stage.p: ending, stage.bystander: FATE_OF_BYSTANDER[event]}
        if stage.before is not None:
            ended = stage.before.outcome
            expected[stage.before] = FATE_OF_ACTIVE[event] if ended is None else ended.state

        receipt = getattr(stage, event)()
        if event == "abort":
            await wait_all_tasks_blocked()  # it takes effect when the workspace begins to stop
        stage.open(*stage.gates)
        stage.journal.heal()
        for run in expected:
            await run.wait()

        assert {run: run.state for run in expected} == expected
        check_answer(stage, state)
        check_receipt(stage, state, event, receipt)
        failed = [run.submission.run_id for run in expected if run.state is RunState.ERRORED]
        assert [error.run_id for error in stage.bench.recorder.errors] == failed
        check_promises(stage.bench, expected)
        assert stage.bench.workspace.runs == ()
        assert stage.bench.workspace._lanes == {}
        assert stage.turns.overlaps == []


def check_answer(stage: Stage, state: str) -> None:
    """A run that had said something ends with it; a cancel is named once P's turn had begun (B3)."""
    outcome = stage.p.outcome
    assert outcome is not None
    stopped = outcome.state in {CANCELLED, RunState.ERRORED}
    said = outcome.state is COMPLETED or (stopped and state in {"streaming", "waiting"})
    assert bool(outcome.message_id) == said
    assert outcome.text.startswith("so far" if said else "")
    if outcome.state is CANCELLED and state != "promoted":  # an abort lets its turn begin, barely
        assert bool(outcome.error) == (state in PHASES)
    cut_off = state == "waiting" and outcome.state is CANCELLED
    assert stage.abandoned == (["answer"] if cut_off else [])


def check_receipt(stage: Stage, state: str, event: str, receipt: StopReceipt) -> None:
    """The receipt of a cancel lists P if it had not ended, and says what it was doing."""
    hits = {hit.run: hit.state for hit in receipt.hits}
    reached = {
        "clear_queue": state == "queued",
        "abort": False,
        "submitter_gone": False,
        "failure": False,
    }.get(event, state != "terminal")
    assert (stage.p in hits) == reached
    assert hits.get(stage.p, STATE_OF_P[state]) is STATE_OF_P[state]
    assert receipt.complete


def test_the_table_has_every_state_and_every_event():
    seen = {cell.id.removesuffix(" (named)") for cell in cells()}
    assert len(seen) == len(STATE_OF_P) * len(FATE_OF_ACTIVE) - 2
