"""Bugs that a cancellation or a deadline shows."""

import trio

from benchmarks.races.bugs import bug
from crush_trio.testing.explore import target

checkpoint = trio.lowlevel.checkpoint


class Account:
    """Money in two places."""

    def __init__(self) -> None:
        self.here, self.there = 100, 0

    async def move(self, amount: int, fixed: bool) -> None:
        await checkpoint()
        self.here -= amount
        with trio.CancelScope(shield=fixed):
            await checkpoint()
        self.there += amount


@bug
async def cancelled_half_update(fixed: bool) -> None:
    """A transfer is cancelled when the money has left one account and not reached the other."""
    account = Account()
    with target():
        await account.move(30, fixed)
    assert account.here + account.there == 100


@bug
async def lost_item_of_a_cancelled_receive(fixed: bool) -> None:
    """A worker is cancelled after it has received an item and before it has kept it."""
    send, receive = trio.open_memory_channel[int](1)
    kept: list[int] = []

    async def work() -> None:
        item = await receive.receive()
        if not fixed:
            await checkpoint()  # ask for a slot
        kept.append(item)

    send.send_nowait(1)
    with target():
        await work()
    left = receive.statistics().current_buffer_used
    assert len(kept) + left == 1


class Server:
    """Knows who is connected."""

    def __init__(self) -> None:
        self.connected = 0

    async def serve(self, fixed: bool) -> None:
        self.connected += 1
        try:
            await trio.sleep(1)
        finally:
            with trio.CancelScope(shield=fixed):
                await checkpoint()  # say goodbye
                self.connected -= 1


@bug
async def cleanup_in_a_cancelled_scope(fixed: bool) -> None:
    """The clean-up awaits something first, which raises Cancelled again, and the rest is left out."""
    server = Server()
    with target():
        await server.serve(fixed)
    assert server.connected == 0


@bug
async def swallowed_cancellation(fixed: bool) -> None:
    """A retry takes Cancelled for a failed attempt, and the caller believes that it got an answer."""
    with target():
        for _attempt in range(2):
            try:
                await trio.sleep(1)
                break
            except Exception if fixed else BaseException:  # noqa: B030 - that is the bug
                break


class Semaphore:
    """Hands a permit to the task that has waited longest."""

    def __init__(self) -> None:
        self.free = 1
        self.waiting: list[trio.Event] = []

    async def acquire(self, fixed: bool) -> None:
        await checkpoint()
        if self.free:
            self.free -= 1
            return
        turn = trio.Event()
        self.waiting.append(turn)
        try:
            await turn.wait()
        except trio.Cancelled:
            if fixed:
                self.waiting.remove(turn)
            raise

    def release(self) -> None:
        if self.waiting:
            self.waiting.pop(0).set()
        else:
            self.free += 1


@bug
async def permit_for_a_cancelled_task(fixed: bool) -> None:
    """A cancelled task stays in line; it is handed the permit, and nobody gives it back."""
    semaphore = Semaphore()

    async def hold() -> None:
        await semaphore.acquire(fixed)
        try:
            await trio.sleep(1)
        finally:
            semaphore.release()

    async def impatient() -> None:
        with target():
            await hold()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        nursery.start_soon(impatient)
    with trio.fail_after(10):
        await semaphore.acquire(fixed)


class Post:
    """One letter for a receiver who waits a second for it."""

    def __init__(self) -> None:
        self.waiting = False
        self.letter: str | None = None
        self.arrived = trio.Event()
        self.refused = False

    async def receive(self, fixed: bool) -> str | None:
        self.waiting = True
        with trio.move_on_after(1) as scope:
            await self.arrived.wait()
        self.waiting = False
        if scope.cancelled_caught and not (fixed and self.letter):
            return None
        return self.letter

    def send(self) -> None:
        if self.waiting:
            self.letter = "letter"
            self.arrived.set()
        else:
            self.refused = True


@bug
async def missed_deadline(fixed: bool) -> None:
    """A letter comes in the instant in which the receiver gives up: both believe the other has it."""
    post = Post()
    got: list[str | None] = []

    async def receive() -> None:
        got.append(await post.receive(fixed))

    async def send() -> None:
        await trio.sleep(1)
        post.send()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        nursery.start_soon(receive)
    assert post.refused or got == ["letter"]


class Line:
    """A telephone line on which an attempt takes 0.4 seconds, and longer while another task uses it."""

    def __init__(self) -> None:
        self.users = 0
        self.answered = False

    async def attempt(self) -> None:
        self.users += 1
        try:
            if self.users > 1:
                await trio.sleep(2)
            await trio.sleep(0.4)
            self.answered = True
        finally:
            self.users -= 1

    async def hold(self) -> None:
        self.users += 1
        await trio.sleep(3)
        self.users -= 1


@bug
async def time_limit_of_each_attempt(fixed: bool) -> None:
    """Each attempt has a second, where the caller was promised a second for all of them."""
    line = Line()

    async def call() -> None:
        began = trio.current_time()
        with trio.move_on_after(1 if fixed else 10):
            while not line.answered:
                with trio.move_on_after(1):
                    await line.attempt()
        assert trio.current_time() - began <= 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        nursery.start_soon(line.hold)


@bug
async def lock_held_by_a_cancelled_task(fixed: bool) -> None:
    """A flag is used as a lock and given back without `finally`: after a cancel it stays taken."""
    busy = False

    async def use() -> None:
        nonlocal busy
        while busy:  # noqa: ASYNC110 - part of the bug
            await trio.sleep(0.1)
        busy = True
        try:
            await trio.sleep(1)
            busy = False
        finally:
            if fixed:
                busy = False

    with target():
        await use()
    with trio.fail_after(10):
        await use()


ENDINGS = (
    cancelled_half_update,
    lost_item_of_a_cancelled_receive,
    cleanup_in_a_cancelled_scope,
    swallowed_cancellation,
    permit_for_a_cancelled_task,
    missed_deadline,
    time_limit_of_each_attempt,
    lock_held_by_a_cancelled_task,
)
