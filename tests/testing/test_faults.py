"""`FaultyJournal`: what it spoils, when, and what it leaves alone."""

import pytest
import trio

from crush_trio.runtime import AcceptedRun, Lane, MemoryJournal, Outcome
from crush_trio.testing.faults import FaultyJournal, JournalFault, Moment
from crush_trio.testing.scripted import prompt
from crush_trio.wire.ids import RunId
from crush_trio.wire.native import RunState, RunView

WRITES = ["accept", "record_prompt", "end"]


def bare_run(name: str = "a") -> AcceptedRun:
    """Return a token that no workspace knows."""
    submission = prompt("hello")
    view = RunView(id=RunId(name), session_id=submission.session_id, state=RunState.ACTIVE)
    return AcceptedRun(view, submission, Lane(), lambda _run: None)


async def write(journal, method, run):
    run.prompt_recorded = method == "end"
    more = (Outcome.cancelled(),) if method == "end" else ()
    await getattr(journal, method)(run, *more)


def written(journal):
    """The methods of the real journal that have written something."""
    places = (journal.accepted, journal.prompts, journal.endings)
    return [method for method, place in zip(WRITES, places, strict=True) if place]


async def test_without_faults_every_call_is_passed_on():
    inner, run = MemoryJournal(), bare_run()
    journal = FaultyJournal(inner)
    for method in WRITES:
        await write(journal, method, run)
    journal.moved(run)
    assert (inner.accepted, inner.prompts, inner.endings) == (
        ["a"],
        ["a"],
        {"a": Outcome.cancelled()},
    )
    assert inner.states == [("a", RunState.ACTIVE)]
    journal.retract(run)
    assert inner.accepted == []
    assert journal.struck == []


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("moment", list(Moment))
async def test_a_fault_strikes_before_the_write_or_after_it(method, moment):
    error = OSError("disk full")
    fault = JournalFault(method=method, error=error, moment=moment)
    inner = MemoryJournal()
    journal = FaultyJournal(inner, (fault,))
    with pytest.raises(OSError, match="disk full") as caught:
        await write(journal, method, bare_run())
    assert caught.value is error
    assert written(inner) == ([method] if moment is Moment.AFTER else [])
    assert journal.struck == [fault]


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("moment", list(Moment))
async def test_a_fault_without_an_error_hangs_until_it_is_cancelled(method, moment):
    inner = MemoryJournal()
    journal = FaultyJournal(inner, (JournalFault(method=method, moment=moment),))
    with trio.move_on_after(3600) as patience:
        await write(journal, method, bare_run())
    assert patience.cancelled_caught
    assert trio.current_time() >= 3600
    assert written(inner) == ([method] if moment is Moment.AFTER else [])


@pytest.mark.parametrize("spoiled", WRITES)
async def test_only_the_named_method_is_spoiled(spoiled):
    inner, run = MemoryJournal(), bare_run()
    journal = FaultyJournal(inner, (JournalFault(method=spoiled, error=OSError()),))
    others = [method for method in WRITES if method != spoiled]
    for method in others:
        await write(journal, method, run)
    assert written(inner) == others
    assert journal.struck == []


async def test_a_fault_befalls_only_the_runs_it_wants():
    inner = MemoryJournal()
    fault = JournalFault(method="accept", error=OSError(), wanted=lambda run: run.id == "b")
    journal = FaultyJournal(inner, (fault,))
    await journal.accept(bare_run("a"))
    with pytest.raises(OSError):  # noqa: PT011  # it has no message
        await journal.accept(bare_run("b"))
    await journal.accept(bare_run("c"))
    assert inner.accepted == ["a", "c"]
    assert journal.struck == [fault]


async def test_of_several_faults_the_first_that_fits_strikes():
    faults = tuple(JournalFault(method="accept", error=OSError(text)) for text in ("one", "two"))
    journal = FaultyJournal(MemoryJournal(), faults)
    with pytest.raises(OSError, match="one"):
        await journal.accept(bare_run())
    assert journal.struck == [faults[0]]


@pytest.mark.parametrize("method", WRITES)
async def test_an_unspoiled_call_is_still_a_checkpoint(method):
    with trio.testing.assert_checkpoints():
        await write(FaultyJournal(MemoryJournal()), method, bare_run())
