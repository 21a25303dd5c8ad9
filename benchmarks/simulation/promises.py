"""What must be true at the end of a simulation, whatever went wrong in it."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio
from attrs import define, field

from benchmarks.chaos.checks import check_answers, check_prompt, check_texts
from benchmarks.simulation.trace import Trace
from benchmarks.simulation.workload import PATH
from benchmarks.soak.ledger import Violation

if TYPE_CHECKING:
    from benchmarks.simulation.world import World


@define(eq=False)
class Model:
    """What the model was asked, and when it last spoke, by the tags of prompts."""

    _owns: Callable[[str], bool]
    _trace: Trace = field(repr=False)
    asks: Counter[str] = field(factory=Counter, init=False)
    spoke: dict[str, float] = field(factory=dict, init=False)
    """When the model last said something for the start that had the workspace then."""

    def asked(self, tag: str, boot: str) -> None:
        """Note a request."""
        self.asks[tag] += 1
        self._trace.note("model", f"is asked about {tag} by {boot}")
        self.speaks(tag, boot)

    def speaks(self, tag: str, boot: str) -> None:
        """Note a word."""
        if self._owns(boot):
            self.spoke[tag] = trio.current_time()


async def check_promises(world: "World") -> None:
    """Raise `Violation` for the first promise that was not kept."""
    shared, readers = world.workload.shared, world.workload.readers
    rows = world.database.rows(PATH)
    if world.database.broken:
        raise Violation(world.database.broken[0])
    for prompt in shared.prompts:
        check_prompt(prompt, rows, world.model.asks[prompt.tag], readers)
        if len(world.database.endings[prompt.tag]) != 1:
            raise Violation(f"{prompt.tag} has ended {world.database.endings[prompt.tag]}")
    unknown = rows.runs.keys() - {prompt.tag for prompt in shared.prompts}
    if unknown:
        raise Violation(f"runs that were never sent: {unknown}")
    for reader in readers:
        check_texts(reader, rows, shared.counts)
    for cancel in world.workload.cancels:
        for tag in cancel.tags:
            spoke = world.model.spoke.get(tag, 0.0)
            if spoke > cancel.answered:
                raise Violation(
                    f"{tag} was cancelled, which was answered at {cancel.answered:.3f}, and the"
                    f" model spoke at {spoke:.3f}"
                )
    await check_answers(shared, readers[0], rows)
    _count(world, rows.endings())


def _count(world: "World", endings: Counter[str]) -> None:
    counts = world.counts
    for state, number in endings.items():
        counts[f"ended: {state}"] += number
    counts["takeovers"] += max(0, counts.pop("claims") - 1)
    counts["cancels"] += len(world.workload.cancels)
    counts["writes"] += world.database.writes
    counts["reconnects"] += sum(max(0, each.connections - 1) for each in world.workload.readers)
    counts["resyncs"] += sum(each.view.resyncs for each in world.workload.readers)
    counts["virtual seconds"] += int(trio.current_time())
