"""Footprints: what Trio's objects, declared state and containers make steps depend on."""

import pytest
import trio
import trio.testing

from crush_trio.testing.explore import HoldBack, explore, touches, watch
from crush_trio.testing.explore.schedule import UnsupportedTrio, scheduler
from crush_trio.testing.explore.watched import watching


class Log:
    """A list that says when it is used."""

    def __init__(self) -> None:
        self._items: list[object] = []

    def add(self, item: object) -> None:
        touches("log")
        self._items.append(item)

    def all(self) -> tuple[object, ...]:
        touches("log", write=False)
        return tuple(self._items)


async def start_and_cancel(log: Log) -> None:
    """A task calls `started` while the nursery it moves to is cancelled."""

    async def child(task_status: trio.TaskStatus[int]) -> None:
        await trio.lowlevel.checkpoint()
        task_status.started(1)
        try:
            for step in range(2):
                await trio.lowlevel.checkpoint()
                log.add(step)
        finally:
            log.add("end")

    async def cancel() -> None:
        await trio.lowlevel.checkpoint()
        scope.cancel()

    async with trio.open_nursery() as outer:
        outer.start_soon(cancel)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                log.add(await nursery.start(child))
                await trio.lowlevel.checkpoint()
                log.add("body")
        log.add(scope.cancelled_caught)


async def stream(log: Log) -> None:
    """Two tasks send to one stream, a third receives."""
    ours, theirs = trio.testing.memory_stream_pair()

    async def send(data: bytes) -> None:
        try:
            await ours.send_all(data)
        except trio.BusyResourceError:
            log.add("busy")

    async def receive() -> None:
        while data := bytes(await theirs.receive_some()):
            log.add(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        nursery.start_soon(send, b"ab")
        nursery.start_soon(send, b"c")
        await trio.sleep(1)
        await ours.aclose()


async def condition(log: Log) -> None:
    """Tasks wait for a condition with a deadline, others notify one of them."""
    changed, one = trio.Condition(), trio.Semaphore(1)

    async def wait(name: int) -> None:
        async with changed:
            with trio.move_on_after(3) as scope:
                await changed.wait()
            log.add((name, scope.cancelled_caught))

    async def notify() -> None:
        async with one, changed:
            changed.notify()

    async with trio.open_nursery() as nursery:
        for name in range(2):
            nursery.start_soon(wait, name)
            nursery.start_soon(notify)


async def from_outside(log: Log) -> None:
    """A callback of `run_sync_soon` runs between the steps of the tasks."""
    event = trio.Event()
    soon = trio.lowlevel.current_trio_token().run_sync_soon
    soon(log.add, "first")

    async def call() -> None:
        await trio.lowlevel.checkpoint()
        soon(event.set)

    async def look() -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            log.add(event.is_set())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        nursery.start_soon(look)


@pytest.mark.explored
@pytest.mark.parametrize("body", [start_and_cancel, stream, condition, from_outside])
def test_what_trio_shares_is_recorded(body):
    async def scenario() -> tuple[object, ...]:
        log = Log()
        await body(log)
        return log.all()

    for deviations in (1, 2):
        everything = explore(scenario, deviations=deviations)
        reduced = explore(scenario, strategy=HoldBack(deviations, reduce=True))
        assert set(reduced.outcomes) == set(everything.outcomes)
    assert len(everything.outcomes) > 2


def test_declared_state_is_ordered():
    async def scenario() -> tuple[str, ...]:
        order = []

        async def work(name: str) -> None:
            await trio.lowlevel.checkpoint()
            touches("order")
            order.append(name)

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(work, name)
        touches("order", write=False)
        return tuple(order)

    assert len(explore(scenario, strategy=HoldBack(3, reduce=True)).outcomes) == 6


def test_a_container_in_an_attribute_is_written_only_if_its_content_changes():
    class Shelf:
        def __init__(self) -> None:
            self.books = {"a": [1]}

    def scenario_with(visit):
        async def scenario() -> int:
            shelf = watch(Shelf())

            async def work() -> None:
                for _ in range(3):
                    await trio.lowlevel.checkpoint()
                    visit(shelf.books)

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(work)
            return len(shelf.books["a"])

        return scenario

    strategy = HoldBack(2, reduce=True)
    reading = explore(scenario_with(lambda books: len(books["a"])), strategy=strategy)
    writing = explore(scenario_with(lambda books: books["a"].append(2)), strategy=strategy)
    assert reading.schedules * 3 < writing.schedules


def test_a_trio_without_the_names_that_are_recorded_is_refused(monkeypatch):
    monkeypatch.delattr(scheduler().Task, "_attempt_abort")
    with pytest.raises(UnsupportedTrio, match=r"has no Task\._attempt_abort"), watching(()):
        pass


class Numbers(list[int]):
    pass


class Owner:
    def __init__(self) -> None:
        self.numbers = Numbers([0])


def count_in_owner(owner: Owner, *, add: int) -> int:
    owner.numbers[0] += add
    return owner.numbers[0]


def count_when_missing(owner: Owner, *, add: int) -> int:
    value: int = getattr(owner, "late", 0) + add
    if add:
        owner.late = value
    return value


def count_in_dict(owner: Owner, *, add: int) -> int:
    vars(owner)["hidden"] = value = vars(owner).get("hidden", 0) + add
    return value


@pytest.mark.parametrize("count", [count_in_owner, count_when_missing, count_in_dict])
def test_what_is_reached_in_odd_ways_is_seen(count):
    async def scenario() -> int:
        owner, others = Owner(), (Owner(), Owner())

        async def update(thing: Owner) -> None:
            before = count(thing, add=0)
            await trio.lowlevel.checkpoint()
            count(thing, add=1 if count(thing, add=0) == before else 10)

        async with trio.open_nursery() as nursery:
            for thing in (others[0], owner, others[1], owner):
                nursery.start_soon(update, thing)
        return count(owner, add=0)

    reduced = explore(scenario, strategy=HoldBack(2, reduce=True, watched=[Owner, __name__]))
    assert reduced.outcomes.keys() == explore(scenario).outcomes.keys() == {2, 11}


@pytest.mark.parametrize("watched", [[Numbers], [Owner()], __name__])
def test_what_cannot_be_watched_is_told(watched):
    with pytest.raises(TypeError, match=r"cannot watch Numbers|watched is a list of classes"):
        explore(trio.lowlevel.checkpoint, strategy=HoldBack(1, reduce=True, watched=watched))
