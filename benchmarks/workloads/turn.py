"""(k) How long a person waits for the model to be asked, and for the end once the model has finished.

The time from the first byte of a prompt until the model has the whole request; and the time from the
model's last bytes until a client has the last event of the run. Model and client are in the same
process, so there is one clock.
"""

from typing import Final

import trio
from attrs import define, field

from benchmarks.bench import Bench
from benchmarks.driver.stage import RUN_LIMIT, Stage, run_name
from benchmarks.figures import MS, Figure, Notes, percentile, ratio_at_most

LETTER: Final = "k"
TITLE: Final = "Where a person waits"

ASKED: Final = "prompt sent to model asked, p50"
ENDED: Final = "model finished to last event at client, p50"
FIRST: Final = "first prompt of a session"

PROMPT: Final = "drip 2 12"
"""Two words and an end, so that each of them comes alone."""


@define(eq=False)
class Waits:
    """What was measured in some turns, in seconds."""

    asked: list[float] = field(factory=list, init=False)
    ended: list[float] = field(factory=list, init=False)


async def measure(bench: Bench) -> list[Figure]:
    """Time turns, alternating between servers: later ones of a session, and first ones."""
    notes = bench.notes(LETTER)
    async with bench.stages() as stages:
        for _ in range(bench.rounds):
            for stage in stages:
                await _note(notes, "", stage, [await stage.warm_session()] * bench.size(40, 20))
            for stage in stages:
                fresh = [await stage.new_session() for _ in range(bench.size(20, 5))]
                await _note(notes, f"{FIRST}: ", stage, fresh)
    return [
        *notes.figure(ASKED, MS, ratio_at_most(2.4)),
        *notes.figure(ENDED, MS, ratio_at_most(1.5)),
        *notes.figure(f"{FIRST}: {ASKED}", MS),
        *notes.figure(f"{FIRST}: {ENDED}", MS),
    ]


async def _note(notes: Notes, what: str, stage: Stage, sessions: list[str]) -> None:
    waits = Waits()
    for session in sessions:
        await _play(stage, session, waits)
    notes.add(f"{what}{ASKED}", stage.name, percentile(waits.asked, 0.5) * 1e3)
    notes.add(f"{what}{ENDED}", stage.name, percentile(waits.ended, 0.5) * 1e3)


async def _play(stage: Stage, session: str, waits: Waits) -> None:
    """Play a turn, and note its times."""
    name = run_name()
    call = stage.provider.call(name)
    with trio.fail_after(RUN_LIMIT):
        reply = await stage.submit(session, f"{PROMPT} #{name}", name)
        ended, _ = await stage.witness.ended(name)
    assert call.heard is not None
    assert call.finished is not None
    waits.asked.append(call.heard - reply.began)
    waits.ended.append(ended - call.finished)
    del stage.provider.calls[name]
