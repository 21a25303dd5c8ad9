"""`FaultyJournal`: what it spoils, when, and what it leaves alone."""

import pytest

from crush_trio.runtime import AcceptedRun, Lane, MemoryJournal, Outcome
from crush_trio.store.errors import StoreFailed, StoreSlow
from crush_trio.testing.server.faults import METHODS, FaultyJournal, JournalFault, Moment
from crush_trio.testing.server.turns import prompt
from crush_trio.wire.ids import RunId
from crush_trio.wire.runs import RunState, RunView


def bare_run(name: str = "a", session: str = "s") -> AcceptedRun:
    """Return a token that no workspace knows."""
    submission = prompt("hello", session)
    view = RunView(id=RunId(name), session_id=submission.session_id, state=RunState.ACTIVE)
    return AcceptedRun(view, submission, Lane(), lambda _run: None, lambda _run: None)


def write(journal, method, run):
    match method:
        case "accept":
            return journal.accept(run, begins=False)
        case "begin":
            return journal.begin(run)
        case "fold":
            return journal.fold([run], bare_run("host"))
        case "withdraw":
            return journal.withdraw([run])
        case "end":
            return journal.end(run, Outcome.cancelled())


def written(journal):
    """Whether the real journal has written anything."""
    return bool(journal.accepted or journal.prompts or journal.endings)


@pytest.mark.parametrize("method", METHODS)
async def test_without_faults_every_call_is_passed_on(method):
    inner, run = MemoryJournal(), bare_run()
    journal = FaultyJournal(inner)
    entry = write(journal, method, run)
    assert entry.commit.stored
    assert written(inner)
    journal.retract(run)
    assert inner.accepted == []
    assert await journal.answers(within=1)
    assert journal.struck == []


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("moment", list(Moment))
async def test_a_fault_strikes_before_the_write_or_after_it(method, moment):
    error = OSError("disk full")
    fault = JournalFault(method=method, error=error, moment=moment)
    inner = MemoryJournal()
    journal = FaultyJournal(inner, [fault])
    entry = write(journal, method, bare_run())
    with pytest.raises(OSError, match="disk full") as caught:
        await entry.commit.certain()
    assert caught.value is error
    assert written(inner) is (moment is Moment.AFTER)
    assert journal.struck == [fault]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("moment", list(Moment))
async def test_a_fault_without_an_error_hangs_until_the_journal_is_healed(method, moment):
    inner = MemoryJournal()
    journal = FaultyJournal(inner, [JournalFault(method=method, moment=moment, times=1)])
    entry = write(journal, method, bare_run())
    assert not await entry.commit.known_within(3600)
    assert not await journal.answers(within=1)
    assert written(inner) is (moment is Moment.AFTER)
    journal.heal()
    await entry.commit.certain()
    assert written(inner)


async def test_a_call_that_hangs_can_be_withdrawn_and_does_not_take_place_then():
    inner = MemoryJournal()
    journal = FaultyJournal(inner, [JournalFault(method="accept")])
    entry = write(journal, "accept", bare_run())
    with pytest.raises(StoreSlow):
        await entry.commit.certain(within=1)
    journal.heal()
    assert not written(inner)


async def test_a_call_that_failed_can_be_made_again():
    inner = MemoryJournal()
    journal = FaultyJournal(inner, [JournalFault(method="end", error=OSError(), times=1)])
    entry = write(journal, "end", bare_run())
    assert not entry.reduce(OSError())
    entry.again()
    await entry.commit.certain()
    assert inner.endings == {"a": Outcome.cancelled()}


async def test_calls_of_a_session_wait_for_one_that_hangs_and_those_of_others_do_not():
    inner = MemoryJournal()
    journal = FaultyJournal(inner, [JournalFault(method="accept", wanted=lambda r: r.id == "a")])
    entries = [
        write(journal, "accept", bare_run(name, session))
        for name, session in (("a", "s"), ("b", "s"), ("c", "t"))
    ]
    assert [entry.commit.known for entry in entries] == [False, False, True]
    journal.heal()
    assert inner.accepted == ["c", "a", "b"]


async def test_a_journal_that_was_given_up_fails_what_hangs_and_all_that_comes_later():
    journal = FaultyJournal(MemoryJournal(), [JournalFault(method="accept")])
    entries = [write(journal, "accept", bare_run())]
    journal.give_up()
    entries.append(write(journal, "end", bare_run("b", "t")))
    for entry in entries:
        with pytest.raises(StoreFailed):
            await entry.commit.certain()


@pytest.mark.parametrize("spoiled", METHODS)
async def test_only_the_named_method_is_spoiled(spoiled):
    inner = MemoryJournal()
    journal = FaultyJournal(inner, [JournalFault(method=spoiled, error=OSError())])
    for method in METHODS:
        entry = write(journal, method, bare_run(method, method))
        assert entry.commit.stored is (method != spoiled)


async def test_a_fault_befalls_only_the_runs_it_wants():
    inner = MemoryJournal()
    fault = JournalFault(method="accept", error=OSError(), wanted=lambda run: run.id == "b")
    journal = FaultyJournal(inner, [fault])
    stored = [write(journal, "accept", bare_run(name)).commit.stored for name in "abc"]
    assert stored == [True, False, True]
    assert inner.accepted == ["a", "c"]
    assert journal.struck == [fault]


async def test_of_several_faults_the_first_that_fits_strikes():
    faults = [JournalFault(method="accept", error=OSError(text)) for text in ("one", "two")]
    journal = FaultyJournal(MemoryJournal(), faults)
    with pytest.raises(OSError, match="one"):
        await write(journal, "accept", bare_run()).commit.certain()
    assert journal.struck == [faults[0]]
