"""The promises of the run core, as one check.

Whatever happened in a scenario, and in whatever order, `check_promises` holds for the runs it
accepted, once they have ended. It looks in the three places where a broken promise shows: what was
stored, what readers saw, and what was left behind.
"""

from collections import Counter
from collections.abc import Iterable

from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.testing.harness import Bench
from crush_trio.wire.messages import Role
from crush_trio.wire.native import RunState


def check_promises(bench: Bench, runs: Iterable[AcceptedRun]) -> None:
    """Raise AssertionError unless every one of *runs* ended exactly once, everywhere.

    Each run has one stored ending and one terminal event, and they agree; its prompt is stored
    once; a cancelled run has a complete record; and its session is neither busy nor queued for it.
    """
    runs = list(runs)
    seen = bench.recorder
    for run in runs:
        assert run.outcome is not None, f"{run} has not ended"
        assert seen.endings_per_run[run.id] == 1, (
            f"{run} has {seen.endings_per_run[run.id]} endings"
        )
        stored = bench.transcript.endings.get(run.id)
        assert stored == run.outcome, f"{run} is stored differently: {stored}"
        assert bench.transcript.rows.get(run.id) is run.outcome.state
        _check_prompt_stored_once(bench, run)
        _check_cancelled_record(bench, run)
        assert not _still_held(bench, run), f"{run} has ended but is still held"
    announced = {view.id: view for view in seen.endings}
    for run in runs:
        assert announced[run.id] == run.view, (
            f"{run} was announced differently: {announced[run.id]}"
        )


def _check_prompt_stored_once(bench: Bench, run: AcceptedRun) -> None:
    stored = Counter(str(message.id) for message in bench.messages(run.session_id))
    assert stored[f"prompt-{run.id}"] == 1, f"{run} has its prompt stored {stored} times"


def _check_cancelled_record(bench: Bench, run: AcceptedRun) -> None:
    """A run that was cancelled before it said anything has an answer that says so (A21, D20)."""
    outcome = run.outcome
    assert outcome is not None
    expected = int(outcome.state is RunState.CANCELLED and not outcome.message_id)
    records = [
        message
        for message in bench.messages(run.session_id)
        if message.role is Role.ASSISTANT and message.id == f"cancelled-{run.id}"
    ]
    assert len(records) == expected, f"{run} has {len(records)} cancelled records"


def _still_held(bench: Bench, run: AcceptedRun) -> bool:
    return run in bench.workspace.runs or run in bench.workspace.queue(run.session_id)
