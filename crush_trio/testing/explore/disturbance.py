"""What disturbs a scenario at one place, and where such places are.

A place is the moment after a step of one task. A `Survey` finds the places of a scenario, a
`Cancellation` cancels a scope at one, an `Injection` raises an exception there. Each is a Trio instrument
for one run, which `disturbed` puts into the scenario, so that everything that runs scenarios works with
a disturbed one as well.

Invariant: nothing happens that Trio could not do itself. A cancellation comes between two task steps, as
from another task; an exception is raised only where a `Cancelled` could be.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias, cast

import trio
from attrs import define, evolve, field, frozen
from outcome import Error
from trio.lowlevel import RunVar, Task

from crush_trio.testing.explore.checkpoints import is_full_checkpoint, was_cancelled
from crush_trio.testing.explore.places import place_of, short_name
from crush_trio.testing.explore.recorder import INJECTED, WAKER
from crush_trio.testing.explore.schedule import require, scheduler
from crush_trio.testing.explore.shrink import leaves
from crush_trio.testing.explore.walk import DEVIATED, ExplorerBroken

if TYPE_CHECKING:
    from trio._core._run import CancelStatus
    from trio.abc import Instrument

Scenario: TypeAlias = Callable[[], Awaitable[Hashable]]

Scopes: TypeAlias = Literal["scenario", "innermost", "all"]
"""Which scopes are cancelled: the one around the scenario, the innermost one of the task that ran last, or
every one that this task is in. A nursery has a scope."""

_NEEDED: Final = (
    *("Task._cancel_status", "Task._next_send", "Task._abort_func", "Task._attempt_abort"),
    *("CancelStatus._scope", "CancelStatus._parent"),
)
"""What of Trio's scheduler is used here: it has no public way to see a task's scopes and its wait."""

CANCELLED: Final = "cancelled"
"""The outcome of a scenario that was cancelled as a whole."""


class CancelSwallowed(Exception):
    """A task caught `Cancelled` and did not raise it again, so its scope went on as if not cancelled."""


class TasksLeft(Exception):
    """Tasks that the scenario started outlive it; undisturbed they do not."""


@frozen
class Spot:
    """A place of a scenario: the moment after one of its steps, and a scope that can be cancelled then."""

    step: int
    """The task steps before it; 0 is before the scenario begins."""
    scope: str = ""
    """Empty for the scenario's own scope, "t1" for its second `target`, "2" for the second scope inward
    that the task is in."""
    task: str = ""
    """The task whose step was the last."""
    where: str = ""
    """The line at which it waits, with its text; empty if it has ended."""

    @property
    def token(self) -> str:
        """Its name, for `cancelled_at` and `failing_at`: "12", "12.t0", "12.2"."""
        return f"{self.step}.{self.scope}" if self.scope else str(self.step)

    @classmethod
    def from_token(cls, token: str) -> "Spot":
        """Return the spot that *token* names; raises ValueError if it is not one."""
        step, _, scope = token.partition(".")
        number = scope.removeprefix("t") if "." in token else "0"
        if not step.isdecimal() or not number.isdecimal():
            raise ValueError(f"not a place: {token!r} (they look like 12, 12.t0 or 12.2)")
        return cls(int(step), scope)

    def sentence(self) -> str:
        """Say when it is."""
        if not self.step:
            return "before the first step"
        does = f"waits at {self.where}" if self.where else "has ended"
        return f"after step {self.step}, when {self.task} {does}"

    __str__ = sentence


@define(eq=False)
class _Steps:
    """Counts the steps of a scenario, and knows its scopes."""

    count: int = field(default=0, init=False)
    """The steps so far."""
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """The scenario's own scope."""
    targets: list[trio.CancelScope] = field(factory=list, init=False)
    closed: set[trio.CancelScope] = field(factory=set, init=False)
    """The targets that were left."""
    tasks: set[Task] = field(factory=set, init=False)
    """The main task of the scenario and those below it."""
    left: set[Task] = field(factory=set, init=False)
    """Living tasks of the scenario that belong to no nursery of it."""

    def task_spawned(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        parent = None if task.parent_nursery is None else task.parent_nursery.parent_task
        if parent in self.tasks:
            self.tasks.add(task)
        elif parent is trio.lowlevel.current_root_task():
            self.left.add(task)

    def task_exited(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        self.left.discard(task)

    def scopes_of(self, task: Task) -> list[trio.CancelScope]:
        """Return the scopes that *task* is in, or was until it ended, from the scenario's inward."""
        scopes: list[trio.CancelScope] = []
        status: CancelStatus | None = task._cancel_status
        if status is None and task.parent_nursery is not None:
            status = task.parent_nursery._cancel_status
        while status is not None:
            scopes.insert(0, status._scope)
            if status._scope is self.scope:
                return scopes
            status = status._parent
        return []

    def stepped(self, task: Task) -> list[trio.CancelScope]:
        """Count a step that *task* has made; returns its scopes, none for others' tasks."""
        if task not in self.tasks:
            return []
        self.count += 1
        return self.scopes_of(task)

    def refuse_missing(self, spot: "Spot", *, reached: bool) -> None:
        """Raise if the scenario has no such place in the usual order; in another one it may have none."""
        if not reached and not DEVIATED.get(bool)():
            raise ExplorerBroken(
                f"the scenario has no place {spot.token}: it has only {self.count} steps in the usual "
                "order, or other scopes there; it has changed, or is not deterministic"
            )

    def refuse_left(self) -> None:
        """Raise if a task is left."""
        if self.left:
            names = ", ".join(sorted(map(short_name, self.left)))
            raise TasksLeft(f"the scenario has ended, and these tasks of it have not: {names}")


@define(eq=False)
class Survey(_Steps):
    """Notes the places of a scenario that nothing disturbs."""

    _steps: list[tuple[Spot, int, list[int]]] = field(factory=list, init=False)
    """After each step: the place, how many scopes its task is in, and which targets are open."""
    checkpoints: list[Spot] = field(factory=list, init=False)
    """The places at which an exception can be raised."""

    def begin(self) -> None:
        """Do nothing yet."""

    def after_task_step(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        if not (scopes := self.stepped(task)):
            return
        place = place_of(task)
        where = "" if place is None else f"{place}: {place.source}"
        spot = Spot(self.count, "", short_name(task), where)
        open_targets = [n for n, scope in enumerate(self.targets) if scope not in self.closed]
        self._steps.append((spot, len(scopes), open_targets))
        if _can_fail(task):
            self.checkpoints.append(spot)

    def expects(self, _error: BaseException) -> bool:
        """Whether the scenario may raise this: never."""
        return False

    def judge(self) -> None:
        """Accept what is left: it is not for a disturbance."""

    def spots(self, scopes: Scopes) -> Iterator[Spot]:
        """Yield the places at which the scopes that were asked for can be cancelled."""
        if scopes == "scenario" and not self.targets:
            yield Spot(0)
        for spot, depth, targets in self._steps:
            inward = ["", *map(str, range(1, depth))]
            if scopes == "scenario":
                names = [f"t{n}" for n in targets] if self.targets else [""]
            else:
                names = inward[-1:] if scopes == "innermost" else inward
            yield from (evolve(spot, scope=name) for name in names)


@define(eq=False)
class Cancellation(_Steps):
    """Cancels a scope at a place, and sees whether the cancellation was swallowed."""

    _spot: Spot
    _strict: bool = True
    _reached: bool = field(default=False, init=False)
    _hit: trio.CancelScope | None = field(default=None, init=False)
    _raised: list[tuple[str, list[trio.CancelScope]]] = field(factory=list, init=False)
    """Where `Cancelled` was raised, and the scopes that could catch it there."""

    def begin(self) -> None:
        """Cancel before the first step, if that is the place."""
        if not self._spot.step:
            self._cancel(self.scope)

    def before_task_step(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        if self._hit is not None and was_cancelled(task._next_send):
            scopes = self.scopes_of(task)
            if self._hit in scopes:
                inner = scopes[scopes.index(self._hit) :]
                self._raised.append((f"{short_name(task)} at {place_of(task)}", inner))

    def after_task_step(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        scopes = self.stepped(task)
        if not scopes or self.count != self._spot.step:
            return
        name = self._spot.scope
        wanted = self.targets if name.startswith("t") else scopes
        number = int(name.removeprefix("t") or 0)
        if number < len(wanted):
            self._cancel(wanted[number])

    def _cancel(self, scope: trio.CancelScope) -> None:
        self._reached = True
        if scope.cancel_called:
            return
        self._hit = scope
        token = WAKER.set("cancelled here")
        scope.cancel(INJECTED)
        WAKER.reset(token)

    def expects(self, _error: BaseException) -> bool:
        """Whether the scenario may raise this: never."""
        return False

    def judge(self) -> None:
        """Raise if a task got `Cancelled` and no scope caught it, or if a task is left."""
        for place, scopes in self._raised:
            if not any(scope.cancelled_caught for scope in scopes):
                raise CancelSwallowed(f"Cancelled was raised in {place}, and no scope caught it")
        self.refuse_missing(self._spot, reached=self._reached)
        if self._strict:
            self.refuse_left()


@define(eq=False)
class Injection(_Steps):
    """Raises a copy of an exception at a place."""

    _spot: Spot
    _error: Exception
    _strict: bool = True
    _raised: Exception | None = field(default=None, init=False)

    def begin(self) -> None:
        """Do nothing yet."""

    def after_task_step(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        if not self.stepped(task) or self.count != self._spot.step or not _can_fail(task):
            return
        error = self._raised = _copied(self._error)

        def raise_error() -> NoReturn:
            raise error

        token = WAKER.set(f"{type(error).__name__} raised here")
        if task._abort_func is None:
            task._next_send = Error(error)
        else:
            task._attempt_abort(raise_error)
        WAKER.reset(token)

    def expects(self, error: BaseException) -> bool:
        """Whether *error* is the one that was raised, alone or in groups."""
        ours = [] if self._raised is None else leaves(self._raised)
        return all(any(leaf is own for own in ours) for leaf in leaves(error))

    def judge(self) -> None:
        """Raise if a task is left."""
        self.refuse_missing(self._spot, reached=self._raised is not None)
        if self._strict:
            self.refuse_left()


Disturbance: TypeAlias = Survey | Cancellation | Injection

_CURRENT: Final = RunVar[Disturbance | None]("crush_trio_disturbance", default=None)


def disturbed(scenario: Scenario, make: Callable[[], Disturbance]) -> Scenario:
    """Return *scenario* with a disturbance, made for each run anew, and its verdict in the end."""
    require(scheduler(), *_NEEDED)

    @wraps(scenario)
    async def with_disturbance() -> Hashable:
        disturbance = make()
        _CURRENT.set(disturbance)
        instrument = cast("Instrument", disturbance)
        disturbance.tasks.add(trio.lowlevel.current_task())
        trio.lowlevel.add_instrument(instrument)
        value: Hashable = CANCELLED
        try:
            with disturbance.scope:
                disturbance.begin()
                value = await scenario()
        except Exception as exc:
            if not disturbance.expects(exc):
                raise
            value = type(leaves(exc)[0]).__name__
        trio.lowlevel.remove_instrument(instrument)
        disturbance.judge()
        return value  # noqa: ASYNC910 - checkpoints as the scenario does

    return with_disturbance


@contextmanager
def target() -> Iterator[trio.CancelScope]:
    """Mark the part of a scenario that `cancel_everywhere` cancels; elsewhere a plain cancel scope.

    What comes after the block is the scenario's own check, and runs at every place:

    ```python
    async def scenario():
        account = Account(100)
        with target():
            await account.withdraw(30)
        assert account.balance in (70, 100)
    ```
    """
    disturbance = _CURRENT.get()
    with trio.CancelScope() as scope:
        if disturbance is not None:
            disturbance.targets.append(scope)
        try:
            yield scope
        finally:
            if disturbance is not None:
                disturbance.closed.add(scope)


def check_error(error: object) -> None:
    """Raise a `TypeError` for what cannot be raised at a checkpoint."""
    if isinstance(error, type) and issubclass(error, Exception):
        raise TypeError(f"the error is the class {error.__name__}: write {error.__name__}(…)")
    if not isinstance(error, Exception):
        raise TypeError(f"the error is a {type(error).__name__}, not an Exception")


def _copied(error: Exception) -> Exception:
    """Return a copy of *error*; `copy` calls its class, which may ask for other arguments than `args`."""
    try:
        return copy(error)
    except Exception:  # noqa: BLE001 - anything may be raised there
        made = type(error).__new__(type(error), *error.args)
        made.__dict__.update(vars(error))
        return made


def _can_fail(task: Task) -> bool:
    """Whether *task* waits where `Cancelled` could be raised, but for the end of a nursery block.

    An exception there would not be one of a wait: a nursery waits for its tasks alone.
    """
    abort = task._abort_func
    if abort is None:
        return is_full_checkpoint(task.coro)
    return not getattr(abort, "__qualname__", "").startswith("Nursery.")
