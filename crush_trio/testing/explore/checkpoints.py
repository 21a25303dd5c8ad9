"""Faults at the k-th checkpoint of a coroutine, and gates at which it waits for the test.

Code can be interrupted at every checkpoint, and usually only a few of them are tested. A
`CheckpointFaults` drives a coroutine, counts its checkpoints, and makes the one that a `Fault` names
fail, be cancelled or be delayed. Count the checkpoints of a normal run first, then loop over them:

```python
for k in range(await checkpoints_of(partial(save, Store()))):
    store, fault = Store(), Fault(k, Raise(OSError("disk full")))
    with suppress(OSError):
        await CheckpointFaults([fault]).drive(save(store))
    store.check()
```

Only the driven coroutine is affected, with everything it awaits. Child tasks are not: wrap the
function given to `start_soon` to reach them.

Invariant: nothing happens that Trio could not do itself. An exception is raised only where a
cancellation could be, and the wait is aborted as a cancellation aborts it. Where Trio guarantees not
to interrupt, the fault does not fire, and its `fired` stays false.

A `Gate` lets a test look at an intermediate state without sleeping: the code under test waits at the
gate, the test waits until it is reached, checks the state, and opens the gate. An arrival is counted
before the task can be cancelled, so `reached` never misses one.
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
    """A named place where tasks wait until `open` is called.

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
    """The name in task dumps and assertions."""
    arrivals: int = field(default=0, init=False)
    """How often a task arrived at this gate."""
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
        """How many tasks wait at the gate."""
        return self._opened.statistics().tasks_waiting

    def open(self) -> None:
        """Let all tasks pass, those that wait and those that arrive later."""
        self._opened.set()

    async def wait(self) -> None:
        """Arrive, and wait until the gate is open; a checkpoint also when it already is."""
        self.arrivals += 1
        self._watchers.unpark_all()
        await self._opened.wait()

    async def reached(self, times: int = 1) -> None:
        """Wait until tasks have arrived at least *times* times."""
        await trio.lowlevel.checkpoint()
        while self.arrivals < times:
            await self._watchers.park()


P = ParamSpec("P")
T = TypeVar("T")


@frozen
class Raise:
    """Make the wait raise *error*, as a cancellation would.

    Not every wait can be interrupted: `cancel_shielded_checkpoint`, for example, or a thread that must
    not be abandoned. There the fault does not fire, and the wait continues.
    """

    error: BaseException


@frozen
class Call:
    """Call *function* when the task has just begun to wait, as another task could.

    For example `scope.cancel` or `event.set`. If it raises, the driven code gets the exception at the
    end of its wait.
    """

    function: Callable[[], object]


@frozen
class Stall:
    """Await *until* after the wait has ended, as if the task were woken late.

    A cancellation ends the stall and does not raise there: the wait has succeeded, and its result, such
    as an item from a channel, must not be lost. For the same reason a wait that was cancelled is not
    stalled; `trio.sleep` ends that way at its deadline.
    """

    until: Callable[[], Awaitable[object]] = trio.sleep_forever


Action: TypeAlias = Raise | Call | Stall


@define(eq=False)
class Fault:
    """A fault: *action* at checkpoint *at*, counted from 0."""

    at: int
    action: Action
    fired: bool = field(default=False, init=False)
    """Whether it occurred."""


def _as_tuple(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(faults)


@define(eq=False)
class CheckpointFaults:
    """Drives coroutines and carries out *faults* at their checkpoints.

    Checkpoints are counted over all coroutines that one object drives, in sequence or concurrently.
    """

    faults: tuple[Fault, ...] = field(default=(), converter=_as_tuple)
    count: int = field(default=0, init=False)
    """The number of checkpoints so far."""

    async def drive(self, coro: Coroutine[Any, Any, T]) -> T:  # noqa: ASYNC910 - coro's own
        """Await *coro* with the faults; returns its result or raises its exception."""
        return await self._trampoline(coro)

    def wrap(
        self, async_fn: Callable[P, Coroutine[Any, Any, T]]
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return *async_fn* so that its calls are driven, for `start_soon` and similar functions.

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
        """Pass messages from *coro* to Trio, and replies back."""
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
        """Pass a message to Trio, with the fault of this checkpoint if there is one; return the reply."""
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
                fault.fired = not was_cancelled(reply)
                return (yield from _linger(until, reply)) if fault.fired else reply
            case _:
                return (yield message)


async def checkpoints_of(async_fn: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Run *async_fn* once without faults, and return its number of checkpoints."""
    faults = CheckpointFaults()
    await faults.drive(async_fn())
    return faults.count


@define(eq=False)
class _AfterThisStep:
    """A Trio instrument that calls a function once, after the current task step.

    Not within the step: a task must not be woken between registering for a wake-up and yielding.
    """

    _function: Callable[[], object]
    result: Error | None = field(default=None, init=False)
    """The exception of the function, if any; Trio would only log it."""

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
        fault.fired = is_full_checkpoint(coro)
        return Error(error) if fault.fired else reply

    def raise_error() -> NoReturn:
        fault.fired = True
        raise error

    if abort(raise_error) is Abort.SUCCEEDED:
        fault.fired = True
        trio.lowlevel.current_task().custom_sleep_data = None
        # A generator has no `await`.
        yield from trio.lowlevel.cancel_shielded_checkpoint().__await__()  # noqa: ASYNC105
        return Error(error)
    # The wait continues, and may raise the error later by itself, as a nursery does. Trio calls an
    # abort function at most once per wait, and this was the call.
    same_kind = cast("Callable[[object], object]", type(message))
    return (yield same_kind(lambda _: Abort.FAILED))


def is_full_checkpoint(coro: object) -> bool:
    """Whether *coro* waits in `trio.lowlevel.checkpoint`, which may be cancelled.

    The scheduler cannot tell it from `cancel_shielded_checkpoint`, which may not.
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


def was_cancelled(reply: object) -> bool:
    """Whether *reply*, with which a wait ends, is a `Cancelled`."""
    return isinstance(reply, Error) and isinstance(reply.error, trio.Cancelled)


def _linger(
    until: Callable[[], Awaitable[object]], reply: object
) -> Generator[object, Any, object]:
    """Await *until*, then return *reply*."""
    try:
        yield from until().__await__()
    except trio.Cancelled:  # noqa: ASYNC103 - the next checkpoint raises it again
        pass
    except Exception as exc:  # noqa: BLE001 - raised in the driven code
        return Error(exc)
    return reply
