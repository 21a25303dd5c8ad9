"""Faults at checkpoints: make the k-th wait of some code fail, be cancelled, or take its time.

Code that awaits can be interrupted at every checkpoint, and usually only a few of them are tested.
A `CheckpointFaults` drives a coroutine by hand, counts each time it yields to Trio, and acts at the
one that a `Fault` names. Count the checkpoints of a clean run first, then loop over them:

```python
for k in range(await checkpoints_of(partial(save, Store()))):
    store, fault = Store(), Fault(k, Raise(OSError("disk full")))
    with suppress(OSError):
        await CheckpointFaults([fault]).drive(save(store))
    store.check()
```

Only the driven coroutine is intercepted, with everything it awaits. The tasks of a nursery that it
opens are tasks of their own: wrap the function given to `start_soon` to reach them.

Invariant: nothing happens that Trio could not do itself. An exception appears only where a
cancellation could, and takes the wait off whatever it was registered with; where Trio promises not
to interrupt, the fault does not fire, and says so.

Gates: places where code under test stands still until the test has looked around.

A test that wants to see the middle of something should not sleep and hope. It puts a gate there,
waits until the code has reached it, checks what it came to check, and opens the gate.

Invariant: an arrival is counted before anything can be cancelled, so `reached` never misses one,
also when the arriving task is cancelled at the gate.
"""

import gc
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from functools import partial, wraps
from types import FrameType, coroutine
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeAlias, TypeVar, cast

import trio
from attrs import define, field, frozen
from outcome import Error, capture
from trio.lowlevel import Abort

if TYPE_CHECKING:
    from trio.abc import Instrument


_AWAITS: Final = {"cr_frame": "cr_await", "gi_frame": "gi_yieldfrom", "ag_frame": "ag_await"}
"""Where coroutines, generators and asynchronous generators keep what they wait for."""


@define(eq=False)
class Gate:
    """A named place to wait at, closed until `open` is called and open from then on.

    ```python
    gate = Gate("before commit")
    store = ScriptedStore(before_commit=gate.wait)
    nursery.start_soon(save, store)
    await gate.reached()
    assert not store.rows
    gate.open()
    ```
    """

    name: str = "gate"
    """Says in a task dump, or an assertion, which gate this is."""
    arrivals: int = field(default=0, init=False)
    """How often a task came to this gate, whether or not it has passed."""
    _opened: trio.Event = field(factory=trio.Event, init=False, repr=False)
    _watchers: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    @property
    def is_open(self) -> bool:
        """Whether a task that arrives now passes at once."""
        return self._opened.is_set()

    @property
    def waiting(self) -> int:
        """How many tasks stand at the gate now."""
        return self._opened.statistics().tasks_waiting

    def open(self) -> None:
        """Let everyone pass who waits here or arrives later."""
        self._opened.set()

    async def wait(self) -> None:
        """Arrive, and wait until the gate is open; a checkpoint also when it already is."""
        self.arrivals += 1
        self._watchers.unpark_all()
        await self._opened.wait()

    async def reached(self, times: int = 1) -> None:
        """Wait until tasks have come to this gate at least *times* times in all."""
        await trio.lowlevel.checkpoint()
        while self.arrivals < times:
            await self._watchers.park()


P = ParamSpec("P")
T = TypeVar("T")


@frozen
class Raise:
    """Make the wait raise *error*, as a cancellation would.

    Not everything that yields to Trio can be interrupted: `cancel_shielded_checkpoint`, a thread
    that is not to be abandoned, and the like. There the fault does not fire, and the wait goes on
    as usual.
    """

    error: BaseException


@frozen
class Call:
    """Call *function*, at the moment when the task has gone to sleep.

    It is as if another task had done so right then, so anything goes: `scope.cancel`, `event.set`.
    If it raises, the driven code gets the exception when its wait is over.
    """

    function: Callable[[], object]


@frozen
class Stall:
    """Let the wait end, but await *until* before going on, as if the task were woken late.

    A cancellation cuts the stall short. It does not raise there: the wait has succeeded, and what
    it returned, an item from a channel perhaps, must not get lost. For the same reason a wait that
    ends because it was cancelled is not stalled; `trio.sleep` ends like that when its time is up.
    """

    until: Callable[[], Awaitable[object]] = trio.sleep_forever


Action: TypeAlias = Raise | Call | Stall


@define(eq=False)
class Fault:
    """One thing to go wrong: *action*, at checkpoint *at*, counting from 0."""

    at: int
    action: Action
    fired: bool = field(default=False, init=False)
    """Whether it came to pass."""


def _as_tuple(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(faults)


@define(eq=False)
class CheckpointFaults:
    """Drives coroutines and brings about *faults* at their checkpoints.

    Checkpoints are counted over everything that one object drives, one after the other or at the
    same time.
    """

    faults: tuple[Fault, ...] = field(default=(), converter=_as_tuple)
    count: int = field(default=0, init=False)
    """How many checkpoints have been met so far."""

    async def drive(self, coro: Coroutine[Any, Any, T]) -> T:  # noqa: ASYNC910 - coro's own
        """Await *coro*, with the faults; returns or raises what it does."""
        return await self._trampoline(coro)

    def wrap(
        self, async_fn: Callable[P, Coroutine[Any, Any, T]]
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return *async_fn* with every call of it driven, for `start_soon` and the like.

        ```python
        nursery.start_soon(faults.wrap(worker), channel)
        ```
        """

        @wraps(async_fn)
        async def driven(*args: P.args, **kwargs: P.kwargs) -> T:  # noqa: ASYNC910 - as async_fn
            return await self._trampoline(async_fn(*args, **kwargs))

        return driven

    @coroutine
    def _trampoline(self, coro: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Stand between *coro* and Trio, passing messages one way and replies the other."""
        step: Callable[[], object] = partial(coro.send, None)
        while True:
            try:
                message = step()
            except StopIteration as stop:
                value: T = stop.value
                return value
            try:
                step = partial(coro.send, (yield from self._meet(coro, message)))
            except BaseException as exc:  # noqa: ASYNC103, BLE001 - thrown in: coro gets it
                step = partial(coro.throw, exc)

    def _meet(
        self, coro: Coroutine[Any, Any, object], message: object
    ) -> Generator[object, Any, object]:
        """Pass one message on to Trio, with the fault that belongs here; return the reply."""
        fault = next((fault for fault in self.faults if fault.at == self.count), None)
        self.count += 1
        match fault:
            case Fault(action=Raise(error)):
                return (yield from _interrupt(fault, error, coro, message))
            case Fault(action=Call(function)):
                fault.fired = True
                after = _AfterThisStep(function)
                trio.lowlevel.add_instrument(cast("Instrument", after))
                reply = yield message
                return reply if after.result is None else after.result
            case Fault(action=Stall(until)):
                reply = yield message
                fault.fired = not _was_cancelled(reply)
                return (yield from _linger(until, reply)) if fault.fired else reply
            case _:
                return (yield message)


async def checkpoints_of(async_fn: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Run *async_fn* once, undisturbed, and return how many checkpoints it met."""
    faults = CheckpointFaults()
    await faults.drive(async_fn())
    return faults.count


@define(eq=False)
class _AfterThisStep:
    """A Trio instrument that calls a function once, as soon as the current task step is over.

    Not from within the step: between registering for a wake-up and yielding, a task must not be
    woken.
    """

    _function: Callable[[], object]
    result: Error | None = field(default=None, init=False)
    """What the function raised, if it did; Trio would only log it."""

    def after_task_step(self, _task: trio.lowlevel.Task) -> None:
        """Implement Trio's instrument hook."""
        trio.lowlevel.remove_instrument(cast("Instrument", self))
        called = capture(self._function)
        self.result = called if isinstance(called, Error) else None


def _interrupt(
    fault: Fault, error: BaseException, coro: Coroutine[Any, Any, object], message: object
) -> Generator[object, Any, object]:
    """Make the wait behind *message* raise *error*, if Trio could make it raise `Cancelled`."""
    abort = getattr(message, "abort_func", None)
    if abort is None:
        reply = yield message
        fault.fired = _is_full_checkpoint(coro)
        return Error(error) if fault.fired else reply

    def raise_error() -> NoReturn:
        fault.fired = True
        raise error

    if abort(raise_error) is Abort.SUCCEEDED:
        fault.fired = True
        trio.lowlevel.current_task().custom_sleep_data = None
        # A generator has no `await`, hence the long way round to a schedule point.
        yield from trio.lowlevel.cancel_shielded_checkpoint().__await__()  # noqa: ASYNC105
        return Error(error)
    # It goes on sleeping, perhaps to raise the error later of its own accord, as a nursery does.
    # Trio calls an abort function at most once for each wait, and this was the time.
    same_kind = cast("Callable[[object], object]", type(message))
    return (yield same_kind(lambda _: Abort.FAILED))


def _is_full_checkpoint(coro: object) -> bool:
    """Whether *coro* sleeps in `trio.lowlevel.checkpoint`, which may be cancelled.

    To the scheduler it looks just like `cancel_shielded_checkpoint`, which may not.
    """
    return any(frame.f_code is trio.lowlevel.checkpoint.__code__ for frame in _awaited(coro))


def _awaited(awaited: Any) -> Iterator[FrameType]:  # noqa: ANN401  # any awaitable
    """Yield the frames of *awaited* and of what it waits for, the outermost first.

    `runtime.tasks` has the same walk for task dumps; this package imports nothing of ours, so that it
    can be used without the rest. An awaitable that drives another by hand is seen through if it keeps
    that as `inner`.
    """
    while awaited is not None:
        if type(awaited).__name__ in {"async_generator_asend", "async_generator_athrow"}:
            # A step of an asynchronous generator has no attribute for it; the collector knows.
            awaited = next((r for r in gc.get_referents(awaited) if hasattr(r, "ag_frame")), None)
        name = next((name for name in _AWAITS if hasattr(awaited, name)), None)
        frame = None if name is None else getattr(awaited, name)
        if name is None or frame is None:
            return
        yield frame
        driver = frame.f_locals.get("self") if frame.f_code.co_name == "__await__" else None
        awaited = getattr(driver, "inner", None) or getattr(awaited, _AWAITS[name])


def _was_cancelled(reply: object) -> bool:
    return isinstance(reply, Error) and isinstance(reply.error, trio.Cancelled)


def _linger(
    until: Callable[[], Awaitable[object]], reply: object
) -> Generator[object, Any, object]:
    """Wait a little longer, then come back with *reply* all the same."""
    try:
        yield from until().__await__()
    except trio.Cancelled:  # noqa: ASYNC103 - the next checkpoint raises it again
        pass
    except Exception as exc:  # noqa: BLE001 - the driven code is the one to hear of it
        return Error(exc)
    return reply
