"""`StoreLink`: how one process reaches the store, with delays, outages and answers that are lost.

What is on its way does not belong to the process: a write that was sent before a crash, or before the process
was suspended, may arrive afterwards. Writes are handed over to one writer, in order and in groups, which has to
find out what a commit has come to whose answer was lost, as `store.postgres.writer` does.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import trio
from attrs import define, field
from outcome import Error, Outcome, Value, capture

from crush_trio.store.errors import StoreUnreachable
from crush_trio.store.memory.leased import LinkedWrite

T = TypeVar("T")

ATTEMPTS: Final = 5
"""How often the writer asks what a commit has come to."""


@define(eq=False)
class Parcel:
    """A transaction on its way to the store, and its result on its way back."""

    work: Callable[[], Any] = field(repr=False)
    result: Outcome[Any] | None = field(default=None, init=False)
    """What it has come to in the store; None if it has not been run."""
    answer: Outcome[Any] | None = field(default=None, init=False)
    """What its sender was told."""
    _back: trio.Event = field(factory=trio.Event, init=False)

    def run(self) -> None:
        """Run it in the store, unless its sender has given it up."""
        if self.answer is None:
            self.result = capture(self.work)

    def tell(self, answer: Outcome[Any]) -> None:
        """Have its sender go on; only the first call counts."""
        if self.answer is None:
            self.answer = answer
            self._back.set()

    async def wait(self) -> Any:  # noqa: ANN401
        """Wait for the answer."""
        await self._back.wait()
        assert self.answer is not None
        return self.answer.unwrap()


@define(eq=False)
class StoreLink:
    """The connections of one process to the store."""

    chance: random.Random
    latency: float
    carriers: trio.Nursery = field(repr=False)
    """Where parcels travel; not the process's own."""
    answers_early: bool = False
    """A bug: writes are answered before they are stored."""
    dead: bool = field(default=False, init=False)
    """Whether the process has crashed: nothing that it sends any more has an effect."""
    away: bool = field(default=False, init=False)
    late: float = field(default=0.0, init=False)
    """Seconds by which answers are late, after what they are about has been stored."""
    _parcels: dict[Parcel, None] = field(factory=dict, init=False)
    _queue: list[LinkedWrite[Any]] = field(factory=list, init=False)
    _more: trio.Event = field(factory=trio.Event, init=False)

    # ── Faults ──────────────────────────────────────────────────────────────────────────────────

    def cut(self) -> None:
        """Break the connections: what is under way may or may not have been stored."""
        for parcel in list(self._parcels):
            parcel.tell(Error(StoreUnreachable("the connection broke")))

    def crash(self) -> None:
        """Have nothing that is sent from now on arrive."""
        self.dead = True

    # ── For the process ─────────────────────────────────────────────────────────────────────────

    async def call(self, work: Callable[[], T]) -> T:
        """Run a transaction in the store."""
        found: T = await self._send(work).wait()
        return found

    def write(self, request: LinkedWrite[Any]) -> None:
        """Hand a write over."""
        if self.dead:
            request.settle(Error(StoreUnreachable("crashed")))
            return
        self._queue.append(request)
        self._more.set()

    async def keep_writing(self) -> None:
        """Write what is handed over. The body of a task of the process; its end fails what is left."""
        group: list[LinkedWrite[Any]] = []
        try:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                group, self._queue = self._queue, []
                if self.answers_early:
                    self.carriers.start_soon(self._write_late, group)
                    continue
                for request, result in zip(group, await self._write(group), strict=True):
                    request.settle(result)
        finally:
            self.dead = True
            for request in (*group, *self._queue):
                request.settle(Error(StoreUnreachable("the process has ended")))

    # ── On the way ──────────────────────────────────────────────────────────────────────────────

    def _send(self, work: Callable[[], Any]) -> Parcel:
        parcel = Parcel(work)
        if self.dead:
            parcel.tell(Error(StoreUnreachable("crashed")))
        else:
            self._parcels[parcel] = None
            self.carriers.start_soon(self._carry, parcel)
        return parcel

    def _delay(self) -> float:
        return self.chance.uniform(0, self.latency)

    async def _carry(self, parcel: Parcel) -> None:
        try:
            await trio.sleep(self._delay())
            if self.away:
                parcel.tell(Error(StoreUnreachable("the store is away")))
                return
            parcel.run()
            await trio.sleep(self._delay() + self.late)
            if parcel.result is not None:
                parcel.tell(parcel.result)
        finally:
            del self._parcels[parcel]

    async def _write(self, group: list[LinkedWrite[Any]]) -> list[Value[Any] | Error]:
        """Write a group in one transaction; once more if the connection broke before it was stored."""
        lost = Error(StoreUnreachable("the connection broke"))
        for _ in range(2):
            parcel = self._send(partial(_run_all, group))
            try:
                await parcel.wait()
                return _results(parcel)
            except StoreUnreachable:
                if not await self._reaches():
                    break
                if parcel.result is not None:
                    return _results(parcel)
        return [lost for _ in group]

    async def _reaches(self) -> bool:
        """Whether the store comes back within a while, to be asked what a commit has come to."""
        for _ in range(ATTEMPTS):
            await trio.sleep(0.2)
            try:
                await self.call(lambda: None)
            except StoreUnreachable:
                continue
            return True
        return False

    async def _write_late(self, group: list[LinkedWrite[Any]]) -> None:
        for request in group:
            request.settle(Value(None))
        await trio.sleep(self._delay() * 20)
        if not self.dead:
            _run_all(group)


def _run_all(group: list[LinkedWrite[Any]]) -> list[Value[Any] | Error]:
    return [request.run() for request in group]


def _results(parcel: Parcel) -> list[Value[Any] | Error]:
    assert isinstance(parcel.result, Value)
    found: list[Value[Any] | Error] = parcel.result.value
    return found
