"""Rounds of a scenario: clients at work, a fault in the middle, and the check of every promise."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from benchmarks.chaos.checks import check_answers, check_prompt, check_texts
from benchmarks.chaos.clients import Program, Reader, Round, Submitter, open_http
from benchmarks.chaos.cluster import Cluster, add_standby, open_cluster
from benchmarks.chaos.promises import Rows
from benchmarks.chaos.scenarios import SCENARIOS, Scene
from benchmarks.soak.ledger import Violation
from crush_trio.errors import CrushError
from crush_trio.testing.torture.view import text_of

ROUND_LIMIT: Final = 90.0
"""Seconds that a round may take on a busy machine; it usually takes three."""

READERS: Final = 3
SUBMITTERS: Final = 3
PROMPTS: Final = 4
"""Prompts that each submitter sends, besides those that the fault sends."""


@define(eq=False)
class Play:
    """A scenario that is played. `broken` says which promise was not kept, if one was not."""

    name: str
    seed: int
    rounds: int
    folder: Path
    say: Callable[[str], None]
    counts: Counter[str] = field(factory=Counter, init=False)
    broken: str = field(default="", init=False)

    async def run(self) -> None:
        """Play all rounds, until a promise is broken."""
        self.folder.mkdir()
        scenario = SCENARIOS[self.name]
        number = 0
        try:
            async with open_cluster(self.folder, failover=scenario.failover) as cluster:
                for number in range(1, self.rounds + 1):
                    began = trio.current_time()
                    await self._round(cluster, number)
                    self.counts["rounds"] += 1
                    self.say(f"{self.name} {number}: {trio.current_time() - began:.1f} s")
                await self._end(cluster)
        except* (Violation, CrushError, trio.TooSlowError) as group:
            why = "; ".join(str(each) or repr(each) for each in _leaves(group))
            self.broken = f"{self.name}, round {number}, seed {self.seed}: {why}"

    async def _round(self, cluster: Cluster, number: int) -> None:
        """Play one round. Its choices depend on the seed, the scenario and its number alone."""
        chance = random.Random(f"{self.seed}/{self.name}/{number}")
        path = cluster.workspace()
        with trio.fail_after(ROUND_LIMIT):
            async with open_http() as http:
                shared = Round(chance, http, str(path), cluster.nodes, self.counts)
                readers = [Reader(shared) for _ in range(READERS)]
                program = Program(shared)
                await self._work(cluster, shared, path, readers, program)
                await check_promises(cluster, shared, path, readers, program)
                for reader in readers:
                    await reader.leave()
            if SCENARIOS[self.name].failover:
                await add_standby(cluster)

    async def _work(
        self,
        cluster: Cluster,
        shared: Round,
        path: Path,
        readers: Sequence[Reader],
        program: Program,
    ) -> None:
        """Have clients work while the fault happens, until all know how everything ended."""
        async with trio.open_nursery() as reading:
            for reader in readers:
                await reader.create()
            for reader in readers:
                reading.start_soon(reader.run)
            await shared.until("readers attach", lambda: all(r.attached.is_set() for r in readers))
            submitters = [Submitter(shared, name=f"s{n}") for n in range(SUBMITTERS)]
            for submitter in submitters:
                await submitter.begin()
            async with trio.open_nursery() as working:
                await working.start(program.run, PROMPTS // 2)
                for submitter in submitters:
                    working.start_soon(_submit, submitter)
                await shared.until("an answer begins", lambda: any(map(_has_text, readers)))
                scene = Scene(cluster, shared, path, submitters, list(readers), working)
                await SCENARIOS[self.name].fault(scene)
            await submitters[0].say(0, words=2, pause=10)
            await self._settle(cluster, shared, path, readers)
            reading.cancel_scope.cancel()

    async def _settle(
        self, cluster: Cluster, shared: Round, path: Path, readers: Sequence[Reader]
    ) -> None:
        """Wait until every reader is told every ending; a violation says of which it was not."""
        prompts = [prompt for prompt in shared.prompts if prompt.accepted]
        try:
            await shared.until(
                "every reader is told every ending", lambda: all(r.knows(prompts) for r in readers)
            )
        except Violation as violation:
            rows = await cluster.rows(path)
            stored = {tag: [row.state for row in found] for tag, found in rows.runs.items()}
            untold = [
                f"reader {number} at {reader.through and reader.through.start_name}: {prompt.tag}"
                for number, reader in enumerate(readers)
                for prompt in prompts
                if not reader.knows([prompt])
            ]
            told = "\n  ".join(readers[0].told)
            raise Violation(
                f"{violation}; untold: {untold}; stored: {stored}; reader 0 was told\n  {told}"
            ) from violation

    async def _end(self, cluster: Cluster) -> None:
        """Stop the nodes in order, and look for writes under an old epoch once more."""
        for node in cluster.nodes:
            await node.drain()
        await cluster.check_fence()
        for node in cluster.nodes:
            for event in node.logged("error"):
                self.counts[f"logged as an error: {event}"] += 1


async def _submit(submitter: Submitter) -> None:
    """Send prompts, some before the fault and some after it."""
    chance = submitter.round.random
    for number in range(1, PROMPTS + 1):
        words, pause = chance.randint(5, 25), chance.choice((5, 10, 20))
        await submitter.say(number, words=words, pause=pause)
        await trio.sleep(chance.uniform(0.0, 0.4))


def _has_text(reader: Reader) -> bool:
    return any(m["role"] == "assistant" and text_of(m) for m in reader.view.messages.values())


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    found: list[Exception] = []
    for exc in group.exceptions:
        found += _leaves(exc) if isinstance(exc, BaseExceptionGroup) else [exc]
    return found


# ── Promises ────────────────────────────────────────────────────────────────────────────────────


async def check_promises(
    cluster: Cluster, shared: Round, path: Path, readers: Sequence[Reader], program: Program
) -> None:
    """Raise `Violation` for the first promise that was not kept in a round, and count what happened."""
    await cluster.check_fence()
    rows = await cluster.rows(path)
    for prompt in shared.prompts:
        check_prompt(prompt, rows, cluster.model.asks[prompt.tag], readers)
    unknown = rows.runs.keys() - {prompt.tag for prompt in shared.prompts}
    if unknown:
        raise Violation(f"runs that were never sent: {unknown}")
    for tag, told in program.ended.items():
        if told != rows.runs[tag][0].state:
            raise Violation(
                f"{tag} is {rows.runs[tag][0].state} on disk, and its client says {told}"
            )
    for reader in readers:
        check_texts(reader, rows, shared.counts)
    await check_answers(shared, readers[0], rows)
    cluster.model.asks.clear()
    _count(shared, rows, readers)


def _count(shared: Round, rows: Rows, readers: Sequence[Reader]) -> None:
    counts = shared.counts
    for state, number in rows.endings().items():
        counts[f"ended: {state}"] += number
    counts["takeovers"] += max(0, len(rows.claims) - 1)
    counts["reconnects"] += sum(max(0, reader.connections - 1) for reader in readers)
    counts["resyncs"] += sum(reader.view.resyncs for reader in readers)
    counts["requests"] += len(shared.answered)
    counts["forwarded requests"] += sum(
        rows.owner_at(at) not in {"", name} for at, name in shared.answered
    )
