"""Partial-order reduction: it leaves out schedules, never outcomes, and notices what it was not told."""

from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from crush_trio.testing import ExplorerBroken, find_violation, replay
from crush_trio.testing.explore import HoldBack, explore, touches, watch


class Cell:
    """A watched number."""

    def __init__(self) -> None:
        self.value = 0


class Program:
    """A small random program: tasks that share cells, an event, a channel, a lock and scopes."""

    KINDS = (
        *("read", "read", "write", "add", "checkpoint", "checkpoint", "sleep"),
        *("set", "wait", "send", "receive", "hold", "cancel", "spawn", "fail", "push"),
    )

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        kinds = random.sample(self.KINDS, 6)
        self.tasks = [
            [(random.choice(kinds), random.randrange(2)) for _ in range(random.randint(1, 4))]
            for _ in range(random.randint(2, 3))
        ]

    async def run(self) -> tuple[Any, ...]:
        """Run the program, and return all that its tasks saw."""
        self.cells = [watch(Cell()), watch(Cell())]
        self.events = [trio.Event(), trio.Event()]
        self.sender, self.receiver = trio.open_memory_channel[int](1)
        self.lock = trio.Lock()
        self.scopes = [trio.CancelScope() for _ in self.tasks]
        self.items: list[int] = []
        logs: list[list[object]] = [[] for _ in self.tasks]
        raised: object = None
        try:
            async with trio.open_nursery() as self.nursery:
                for number, log in enumerate(logs):
                    self.nursery.start_soon(self.task, number, log)
        except* (ValueError, trio.WouldBlock) as group:
            raised = tuple(sorted(repr(error) for error in group.exceptions))
        touches("items")
        cells = tuple(cell.value for cell in self.cells)
        return raised, cells, tuple(self.items), tuple(map(tuple, logs)), trio.current_time()

    async def task(self, number: int, log: list[object]) -> None:
        with self.scopes[number]:
            for kind, which in self.tasks[number]:
                with trio.move_on_after(2) as limit:
                    log.append((kind, await getattr(self, kind)(number, which)))
                log.append(limit.cancelled_caught)
        log.append(self.scopes[number].cancelled_caught)

    async def read(self, number: int, which: int) -> int:
        return self.cells[which].value

    async def write(self, number: int, which: int) -> None:
        self.cells[which].value = number + 10

    async def add(self, number: int, which: int) -> None:
        seen = self.cells[which].value
        await trio.lowlevel.checkpoint()
        self.cells[which].value = seen + 1

    async def checkpoint(self, number: int, which: int) -> None:
        await trio.lowlevel.checkpoint()

    async def sleep(self, number: int, which: int) -> None:
        await trio.sleep(which + 1)

    async def set(self, number: int, which: int) -> None:
        self.events[which].set()

    async def wait(self, number: int, which: int) -> None:
        await self.events[which].wait()

    async def send(self, number: int, which: int) -> None:
        await self.sender.send(number)

    async def receive(self, number: int, which: int) -> int:
        return await self.receiver.receive()

    async def hold(self, number: int, which: int) -> int:
        async with self.lock:
            await trio.lowlevel.checkpoint()
            return self.cells[which].value

    async def cancel(self, number: int, which: int) -> None:
        self.scopes[which].cancel()

    async def spawn(self, number: int, which: int) -> None:
        self.nursery.start_soon(self.add, number, which)

    async def fail(self, number: int, which: int) -> None:
        if self.cells[which].value:
            raise ValueError(number)

    async def push(self, number: int, which: int) -> None:
        touches("items")
        self.items.append(number)


def steps_until_cancelled(log):
    """A task counts its steps until another cancels it."""

    async def count(scope):
        with scope:
            for step in range(4):
                await trio.lowlevel.checkpoint()
                log.append(step)

    async def scenario(nursery):
        scope = trio.CancelScope()
        nursery.start_soon(count, scope)
        nursery.start_soon(act, scope.cancel)

    return scenario


def receiver_cancelled_as_it_is_served(log):
    """Two tasks wait for an item; the first is cancelled as the item is sent."""

    async def receive(scope, receiver, name):
        with scope:
            log.append((name, await receiver.receive()))

    async def scenario(nursery):
        sender, receiver = trio.open_memory_channel[str](0)
        scopes = trio.CancelScope(), trio.CancelScope()
        for name, scope in enumerate(scopes):
            nursery.start_soon(receive, scope, receiver, name)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(act, scopes[0].cancel)
        nursery.start_soon(act, lambda: sender.send_nowait("item"))
        await trio.testing.wait_all_tasks_blocked()
        scopes[1].cancel()

    return scenario


def started_as_it_is_cancelled(log):
    """A task is started in a nursery whose scope is cancelled, by a task outside."""

    async def child():
        for step in range(2):
            log.append(step)
            await trio.lowlevel.checkpoint()

    async def scenario(nursery):
        scope = trio.CancelScope()

        async def parent():
            with scope:
                async with trio.open_nursery() as inner:
                    started = trio.Event()
                    nursery.start_soon(act, lambda: inner.start_soon(child), started.set)
                    nursery.start_soon(act, scope.cancel)
                    with trio.CancelScope(shield=True):
                        while not started.is_set():
                            await trio.lowlevel.checkpoint()

        nursery.start_soon(parent)

    return scenario


def taken_off_a_list_of_its_own(log):
    """As above, with a list of waiting tasks that is declared where tasks join and leave it."""

    async def wait(scope, waiting, name):
        def abort(_):
            waiting.remove(trio_task)
            return trio.lowlevel.Abort.SUCCEEDED

        trio_task = trio.lowlevel.current_task()
        with scope:
            touches("waiting")
            waiting.append(trio_task)
            await trio.lowlevel.wait_task_rescheduled(abort)
            log.append(name)

    def wake(waiting):
        touches("waiting")
        if waiting:
            trio.lowlevel.reschedule(waiting.pop(0))

    async def scenario(nursery):
        waiting = []
        scopes = trio.CancelScope(), trio.CancelScope()
        for name, scope in enumerate(scopes):
            nursery.start_soon(wait, scope, waiting, name)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(act, scopes[0].cancel)
        nursery.start_soon(act, lambda: wake(waiting))
        await trio.testing.wait_all_tasks_blocked()
        scopes[1].cancel()

    return scenario


async def act(*actions):
    await trio.lowlevel.checkpoint()
    for action in actions:
        action()
    await trio.lowlevel.checkpoint()  # so that the end of the task is another step


DIRECTED = [
    steps_until_cancelled,
    receiver_cancelled_as_it_is_served,
    started_as_it_is_cancelled,
    taken_off_a_list_of_its_own,
]


@pytest.mark.parametrize("make", DIRECTED)
def test_a_cancellation_is_ordered_with_all_that_it_reaches(make):
    async def scenario():
        log = []
        async with trio.open_nursery() as nursery:
            await make(log)(nursery)
        return tuple(log)

    for deviations in (1, 2, 3):
        assert_nothing_is_missed(scenario, deviations)


def assert_nothing_is_missed(scenario, deviations):
    """Compare the outcomes with those of all schedules; return how many were run of each."""
    everything = explore(scenario, deviations=deviations, limit=2000)
    if everything.stopped:
        return 0, 0
    reduced = explore(scenario, strategy=HoldBack(deviations, reduce=True))
    assert set(reduced.outcomes) == set(everything.outcomes)
    assert reduced.exhaustive
    return everything.schedules, reduced.schedules


@pytest.mark.heavy
@pytest.mark.explored
@pytest.mark.parametrize("seeds", [range(8), range(8, 16)], ids=str)
def test_random_programs_have_the_same_outcomes(seeds):
    for seed in seeds:
        for deviations in (1, 2):
            assert_nothing_is_missed(Program(seed).run, deviations)


@pytest.mark.heavy
@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 180, 20))
def test_more_random_programs_have_the_same_outcomes(first):
    counts = [
        assert_nothing_is_missed(Program(seed).run, deviations)
        for seed in range(first, first + 20)
        for deviations in (1, 2, 3)
    ]
    everything, reduced = map(sum, zip(*counts, strict=True))
    assert reduced < 0.75 * everything


def counters(tasks: int, *, shared: bool, watched: bool = True):
    """Tasks that add to one cell, or each to its own."""

    async def scenario() -> tuple[int, ...]:
        cells = [Cell()] * tasks if shared else [Cell() for _ in range(tasks)]
        for cell in cells if watched else ():
            watch(cell)

        async def add(cell: Cell) -> None:
            for _ in range(2):
                seen = cell.value
                await trio.lowlevel.checkpoint()
                cell.value = seen + 1

        async with trio.open_nursery() as nursery:
            for cell in cells:
                nursery.start_soon(add, cell)
        return tuple(cell.value for cell in cells)

    return scenario


def test_tasks_that_share_nothing_need_few_schedules():
    apart = explore(counters(3, shared=False), strategy=HoldBack(3, reduce=True))
    together = explore(counters(3, shared=True), strategy=HoldBack(3, reduce=True))
    assert explore(counters(3, shared=False), deviations=3).schedules == 214
    assert apart.schedules < 25 < 150 < together.schedules
    assert apart.equivalent > 100
    assert set(together.outcomes) == {(n, n, n) for n in range(2, 7)}


def test_all_interleavings_can_be_reduced():
    everything = explore(counters(2, shared=True), deviations=None)
    reduced = explore(counters(2, shared=True), strategy=HoldBack(None, reduce=True))
    assert set(reduced.outcomes) == set(everything.outcomes)
    assert reduced.exhaustive


def test_the_parts_of_a_reduced_exploration_are_the_whole():
    scenario = counters(3, shared=True)
    strategy = HoldBack(2, reduce=True)
    parts = [explore(scenario, strategy=strategy, part=(n, 3)) for n in range(3)]
    outcomes = set().union(*(part.outcomes for part in parts))
    assert outcomes == set(explore(scenario, strategy=strategy).outcomes)


def test_a_failure_of_a_reduced_exploration_replays_without_it():
    async def scenario() -> None:
        assert await counters(3, shared=True)() != (2, 2, 2)

    failure = find_violation(scenario, strategy=HoldBack(2, reduce=True))
    with pytest.raises(AssertionError):
        replay(scenario, failure.token)


@pytest.mark.parametrize("watched", [(Cell,), [Cell, "trio"]], ids=["class", "class and package"])
def test_whole_classes_can_be_watched(watched):
    scenario = counters(3, shared=True, watched=False)
    result = explore(scenario, strategy=HoldBack(2, reduce=True, watched=watched))
    assert {value for value, *_ in result.outcomes} == {2, 3, 4, 5, 6}


def test_shared_state_that_is_not_watched_is_noticed():
    with pytest.raises(ExplorerBroken, match="neither watched nor declared"):
        explore(counters(3, shared=True, watched=False), strategy=HoldBack(2, reduce=True))


def test_a_step_that_is_different_for_no_known_reason_is_noticed():
    """Unwatched state decides whether a task waits once more."""

    async def scenario() -> None:
        ready = False

        async def set_ready() -> None:
            nonlocal ready
            await trio.lowlevel.checkpoint()
            ready = True

        async def poll() -> None:
            while not ready:
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_ready)
            nursery.start_soon(poll)

    with pytest.raises(ExplorerBroken, match="neither watched nor declared"):
        explore(scenario, strategy=HoldBack(2, reduce=True))


def test_trios_classes_are_as_before_when_the_exploration_ends():
    before = {name: trio.Event.__dict__.get(name) for name in ("__init__", "__getattribute__")}

    async def scenario() -> None:
        assert trio.Event.__dict__["__init__"] is not None
        raise ValueError

    assert find_violation(scenario, strategy=HoldBack(1, reduce=True)) is not None
    explore(counters(2, shared=True), strategy=HoldBack(1, reduce=True))
    assert {name: trio.Event.__dict__.get(name) for name in before} == before
    assert "__setattr__" not in vars(Cell)


def test_what_cannot_be_watched_is_refused_with_what_to_do_instead():
    with pytest.raises(
        TypeError, match=r'cannot watch a list; declare it instead: touches\("name"\)'
    ):
        watch([])
    with pytest.raises(TypeError, match="cannot watch dict"):
        explore(counters(2, shared=True), strategy=HoldBack(1, reduce=True, watched=(dict,)))
    with pytest.raises(ValueError, match="nothing has imported it"):
        explore(counters(2, shared=True), strategy=HoldBack(1, reduce=True, watched=("absent",)))


def test_outside_a_reducing_exploration_declarations_do_nothing():
    touches("anything")
    cell = Cell()
    assert watch(cell) is cell
    assert explore(counters(2, shared=True)).outcomes
