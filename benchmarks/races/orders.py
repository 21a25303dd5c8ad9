"""Bugs that an order of tasks shows: in the usual order each of these programs works."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import trio
import trio.lowlevel

from benchmarks.races.bugs import bug
from crush_trio.testing.explore import touches

checkpoint = trio.lowlevel.checkpoint


async def later(function: Callable[..., Awaitable[object]], *args: object) -> None:
    """Call *function* a few steps after other tasks have begun: in step with them, Trio finds too much."""
    for _ in range(3):
        await checkpoint()
    await function(*args)


class Office:
    """Sells one seat."""

    def __init__(self) -> None:
        self.seats = 1
        self.sold = 0

    async def sell(self, fixed: bool) -> None:
        if not self.seats:
            return
        if fixed:
            self.seats -= 1
        await checkpoint()  # charge the customer
        if not fixed:
            self.seats -= 1
        self.sold += 1


@bug
async def check_then_act(fixed: bool) -> None:
    """A seat is looked for, the customer charged, then the seat taken: it is sold twice."""
    office = Office()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(office.sell, fixed)
        nursery.start_soon(later, office.sell, fixed)
    assert office.sold == 1


class Mailbox:
    """Wakes one reader per letter."""

    def __init__(self) -> None:
        self.letters = 0
        self.waiting = trio.lowlevel.ParkingLot()

    async def read(self, fixed: bool) -> None:
        while not self.letters:
            if not fixed:
                await checkpoint()  # say "waiting" somewhere
            await self.waiting.park()
        self.letters -= 1

    def post(self) -> None:
        self.letters += 1
        self.waiting.unpark()


@bug
async def lost_wake_up(fixed: bool) -> None:
    """Between looking for a letter and waiting for one is a checkpoint: the wake-up finds no sleeper."""
    mailbox = Mailbox()

    async def post() -> None:
        mailbox.post()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.read, fixed)
        nursery.start_soon(later, post)


class Bell:
    """An event that can be rung again and again."""

    def __init__(self) -> None:
        self.event = trio.Event()

    def ring(self, fixed: bool) -> None:
        self.event.set()
        if not fixed:
            self.event = trio.Event()


@bug
async def notify_before_wait(fixed: bool) -> None:
    """A bell is rung before anybody listens, and is forgotten."""
    bell = Bell()

    async def listen() -> None:
        await bell.event.wait()

    async def ring() -> None:
        bell.ring(fixed)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        nursery.start_soon(later, ring)


class Lazy:
    """Connects when first used."""

    def __init__(self) -> None:
        self.connection: object | None = None
        self.connected = 0
        self.lock = trio.Lock()

    async def get(self, fixed: bool) -> object:
        if fixed:
            async with self.lock:
                return await self._get()
        return await self._get()

    async def _get(self) -> object:
        if self.connection is None:
            await checkpoint()
            self.connected += 1
            self.connection = object()
        return self.connection


@bug
async def unlocked_lazy_initialisation(fixed: bool) -> None:
    """Two tasks use a connection for the first time, and both open it."""
    lazy = Lazy()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lazy.get, fixed)
        nursery.start_soon(later, lazy.get, fixed)
    assert lazy.connected == 1


async def dine(forks: list[trio.Lock], seat: int, fixed: bool) -> None:
    """Take the fork on the left, then the one on the right; fixed, the one with the lower number first."""
    pair = [seat, (seat + 1) % len(forks)]
    first, second = sorted(pair) if fixed else pair
    async with forks[first]:
        await checkpoint()
        async with forks[second]:
            await checkpoint()


async def dinner(guests: int, fixed: bool) -> None:
    """Let so many guests eat."""
    forks = [trio.Lock() for _ in range(guests)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dine, forks, 0, fixed, name="guest 0")
        for seat in range(1, guests):
            nursery.start_soon(later, dine, forks, seat, fixed, name=f"guest {seat}")


@bug
async def deadlock_by_lock_order(fixed: bool) -> None:
    """Two tasks take two locks, each the other's first."""
    await dinner(2, fixed)


@bug
async def deadlock_of_five(fixed: bool) -> None:
    """Five tasks hold one lock each and wait for that of the next."""
    await dinner(5, fixed)


class Stack:
    """A linked stack whose `pop` compares the top with what it saw before; fixed, also a version."""

    def __init__(self, *names: str) -> None:
        self.below: dict[str, str | None] = {}
        self.top: str | None = None
        self.version = 0
        for name in names:
            self.push(name)

    def push(self, name: str) -> None:
        self.below[name] = self.top
        self.top = name
        self.version += 1

    async def pop(self, fixed: bool) -> str | None:
        while self.top is not None:
            seen, version = self.top, self.version
            below = self.below[seen]
            await checkpoint()
            if self.top == seen and (not fixed or version == self.version):
                self.top = below
                self.version += 1
                return seen
        return None


@bug
async def aba(fixed: bool) -> None:
    """While a task pops A, another pops A and B and puts A back: B is popped a second time."""
    stack = Stack("B", "A")
    popped: list[str | None] = []

    async def one() -> None:
        popped.append(await stack.pop(fixed))

    async def two() -> None:
        first = await stack.pop(fixed)
        popped.append(await stack.pop(fixed))
        if first is not None:
            stack.push(first)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        nursery.start_soon(two)
    popped.append(await stack.pop(fixed))
    assert popped.count("B") == 1, popped


async def numbers() -> AsyncGenerator[int, None]:
    """Yield a few numbers, each after a checkpoint."""
    for number in range(3):
        touches("numbers")
        await checkpoint()
        touches("numbers")
        yield number


@bug
async def shared_iterator(fixed: bool) -> None:
    """Two tasks take from one asynchronous generator, which can only be asked by one at a time."""
    lock = trio.Lock()

    async def take() -> None:
        touches("numbers")
        if fixed:
            async with lock:
                await anext(source, None)
        else:
            await anext(source, None)

    async with aclosing(numbers()) as source, trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(later, take)


class File:
    """Must be closed once, and not be written to afterwards."""

    def __init__(self) -> None:
        self.closed = 0
        self.closing = False
        self.written = 0

    async def close(self, fixed: bool) -> None:
        if self.closing:
            return
        if fixed:
            self.closing = True
        await checkpoint()  # flush
        self.closing = True
        self.closed += 1

    async def write(self) -> None:
        await checkpoint()
        assert not self.closed, "written after it was closed"
        self.written += 1


@bug
async def double_close(fixed: bool) -> None:
    """Two tasks close a file, and both find it open."""
    file = File()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.close, fixed)
        nursery.start_soon(later, file.close, fixed)
    assert file.closed == 1


class Job:
    """Work that can be cancelled from outside."""

    def __init__(self, fixed: bool) -> None:
        self.scope = trio.CancelScope() if fixed else None
        self.finished = False
        self.cancelled = False

    async def run(self) -> None:
        scope = self.scope = self.scope or trio.CancelScope()
        with scope:
            await trio.sleep(1)
            self.finished = True

    def cancel(self) -> None:
        self.cancelled = True
        if self.scope is not None:
            self.scope.cancel()


@bug
async def lost_cancel_before_start(fixed: bool) -> None:
    """A job is cancelled before its task has made its scope, and runs to its end."""
    job = Job(fixed)

    async def cancel() -> None:
        job.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(job.run)
        nursery.start_soon(later, cancel)
    assert not job.finished


@bug
async def wrong_nursery_lifetime(fixed: bool) -> None:
    """A file is closed by the block that opened it, while a task of an outer nursery writes to it."""
    file = File()

    async def write(done: trio.Event) -> None:
        await file.write()
        await file.write()
        done.set()

    async with trio.open_nursery() as outer:
        done = trio.Event()
        outer.start_soon(write, done)
        if fixed:
            await done.wait()
        else:
            await trio.lowlevel.checkpoint()  # it will have been written by then
            while not file.written:
                await checkpoint()
        await file.close(fixed)


class Buffer:
    """Holds one item; a second has to wait."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.largest = 0
        self.space = trio.lowlevel.ParkingLot()

    async def put(self, item: int, fixed: bool) -> None:
        await checkpoint()
        while self.items:
            await self.space.park()
            if not fixed:
                break
        self.items.append(item)
        self.largest = max(self.largest, len(self.items))

    def take(self) -> None:
        if self.items:
            self.items.pop()
            self.space.unpark()


@bug
async def woken_and_not_looked_again(fixed: bool) -> None:
    """A task that waited for space takes it without looking: another was quicker, and both put."""
    buffer = Buffer()

    async def take() -> None:
        for _ in range(3):
            buffer.take()
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for item in range(3):
            nursery.start_soon(buffer.put, item, fixed)
        nursery.start_soon(take)
    assert buffer.largest == 1


class Books:
    """Two pages that are written one after the other."""

    def __init__(self) -> None:
        self.debit = self.credit = 0
        self.lock = trio.Lock()

    async def book(self) -> None:
        async with self.lock:
            self.debit += 1
            await checkpoint()
            self.credit += 1

    async def balance(self, fixed: bool) -> int:
        if fixed:
            async with self.lock:
                return self.debit - self.credit
        await checkpoint()
        return self.debit - self.credit


@bug
async def read_without_the_lock(fixed: bool) -> None:
    """The writer holds a lock and the reader does not: it sees half an entry."""
    books = Books()

    async def look() -> None:
        assert await books.balance(fixed) == 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(books.book)
        nursery.start_soon(look)


class Pair:
    """Two numbers that are always written together."""

    def __init__(self) -> None:
        self.version = self.one = self.two = 0

    def write(self) -> None:
        self.version += 1
        self.one += 1
        self.two += 1

    async def read(self, fixed: bool) -> tuple[int, int]:
        attempts = 0
        while True:
            attempts += 1
            version, one = self.version, self.one
            await checkpoint()
            if version == self.version or (attempts == 2 and not fixed):
                return one, self.two


@bug
async def read_that_gives_up(fixed: bool) -> None:
    """A read starts again if it was disturbed, but only once: the second time it returns what it has."""
    pair = Pair()

    async def write() -> None:
        pair.write()
        await checkpoint()
        pair.write()

    async def read() -> None:
        one, two = await pair.read(fixed)
        assert one == two

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(write)


ORDERS = (
    check_then_act,
    lost_wake_up,
    notify_before_wait,
    unlocked_lazy_initialisation,
    deadlock_by_lock_order,
    deadlock_of_five,
    aba,
    shared_iterator,
    double_close,
    lost_cancel_before_start,
    wrong_nursery_lifetime,
    woken_and_not_looked_again,
    read_without_the_lock,
    read_that_gives_up,
)
