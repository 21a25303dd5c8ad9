"""(e) Time from a cancel until the model's connection is closed and until a client has the ending.

First single cancels, in the middle of an answer. Then a storm of a thousand cancels, each at a
random moment within 5 ms of its 202, whatever the run does then. Each run must end exactly once, as
cancelled.
"""

import random
from typing import Final

import trio
from attrs import define, field

from benchmarks.bench import Bench
from benchmarks.driver.http import Caller
from benchmarks.driver.stage import SETTLE, Stage, run_name
from benchmarks.figures import COUNT, MS, Figure, Notes, at_most, percentile

LETTER: Final = "e"
TITLE: Final = "Time to cancel"

STORM: Final = 1000
LANES: Final = 8
"""The number of sessions of the storm."""

LATEST: Final = 0.005
LOST_AFTER: Final = 10.0
"""Seconds after which a run that has not ended is counted as lost."""

LET_GO: Final = "cancel to model's connection closed"
TOLD: Final = "cancel to last event at client"
LOST: Final = "storm: cancels without an ending"
TWICE: Final = "storm: runs with a wrong or second ending"
STORM_TOLD: Final = "storm: cancel to last event"


@define(eq=False)
class Storm:
    """The results of many cancels."""

    fired: int = field(default=0, init=False)
    lost: int = field(default=0, init=False)
    wrong: int = field(default=0, init=False)
    """Runs with more than one ending, or with an ending other than cancelled."""
    times: list[float] = field(factory=list, init=False)


async def measure(bench: Bench) -> list[Figure]:
    """Time single cancels, alternating between servers; then run the storm on each server."""
    notes = bench.notes(LETTER)
    async with bench.stages() as stages:
        for _ in range(bench.rounds):
            for stage in stages:
                await _note_singles(stage, await stage.warm_session(), bench.size(80, 15), notes)
        for stage in stages:
            note_storm(await storm(stage, bench.size(STORM, 60)), stage, notes)
    return figures(notes)


def figures(notes: Notes) -> list[Figure]:
    """Return the figures with their promises."""
    return [
        *notes.figure(f"{LET_GO}, p50", MS),
        *notes.figure(f"{LET_GO}, p99", MS),
        *notes.figure(f"{TOLD}, p50", MS, at_most(6)),
        *notes.figure(f"{TOLD}, p99", MS, at_most(25)),
        *notes.figure(LOST, COUNT, at_most(0)),
        *notes.figure(TWICE, COUNT, at_most(0)),
        *notes.figure(f"{STORM_TOLD}, p50", MS),
        *notes.figure(f"{STORM_TOLD}, p99", MS),
    ]


async def _note_singles(stage: Stage, session: str, count: int, notes: Notes) -> None:
    let_go, told = await singles(stage, session, count)
    for name, times in ((LET_GO, let_go), (TOLD, told)):
        notes.add(f"{name}, p50", stage.name, percentile(times, 0.5) * 1e3)
        notes.add(f"{name}, p99", stage.name, percentile(times, 0.99) * 1e3)


async def singles(stage: Stage, session: str, count: int) -> tuple[list[float], list[float]]:
    """Cancel *count* answers in the middle; return the times until model and client were told."""
    let_go, told = [], []
    for _ in range(count):
        run_id = run_name()
        call = stage.provider.call(run_id)
        stage.witness.expect_text(session)
        with trio.fail_after(LOST_AFTER):
            await stage.submit(session, f"hold #{run_id}", run_id)
            await stage.witness.first_text(session)
            await trio.sleep(SETTLE / 10)
            fired = trio.current_time()
            await stage.cancel(session)
            let_go.append(await call.when_closed() - fired)
            told.append((await stage.witness.ended(run_id))[0] - fired)
        del stage.provider.calls[run_id]
    return let_go, told


async def storm(stage: Stage, count: int) -> Storm:
    """Send *count* cancels, each at a random moment after its run was accepted."""
    result, moments = Storm(), random.Random(5)
    async with trio.open_nursery() as nursery:
        for lane in range(LANES):
            session = await stage.warm_session()
            share = count // LANES + (lane < count % LANES)
            delays = [moments.uniform(0, LATEST) for _ in range(share)]
            nursery.start_soon(_lane, stage, session, delays, result)
    await trio.sleep(SETTLE)
    for name, endings in stage.witness.endings.items():
        if name.startswith("storm-") and [state for _, state in endings] != ["cancelled"]:
            result.wrong += 1
    return result


async def _lane(stage: Stage, session: str, delays: list[float], result: Storm) -> None:
    """Send the cancels of one session, one run after the other."""
    caller = Caller(stage.served.place)
    for delay in delays:
        run_id = f"storm-{run_name()}"
        await stage.submit(session, "hold", run_id, caller)
        await trio.sleep(delay)
        fired = trio.current_time()
        await stage.cancel(session, caller)
        result.fired += 1
        with trio.move_on_after(LOST_AFTER):
            result.times.append((await stage.witness.ended(run_id))[0] - fired)
            continue
        result.lost += 1
        await stage.cancel(session, caller)  # so that the next run can begin
    await caller.aclose()


def note_storm(result: Storm, stage: Stage, notes: Notes) -> None:
    """Note the results of a storm."""
    notes.add(LOST, stage.name, result.lost)
    notes.add(TWICE, stage.name, result.wrong)
    if result.times:
        notes.add(f"{STORM_TOLD}, p50", stage.name, percentile(result.times, 0.5) * 1e3)
        notes.add(f"{STORM_TOLD}, p99", stage.name, percentile(result.times, 0.99) * 1e3)
