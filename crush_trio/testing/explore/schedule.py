"""Control over the order in which Trio runs tasks.

Trio runs every runnable task once per pass and has no public way to choose the order. It has an
internal switch, made for Hypothesis, that sorts each pass and hands it to a `random.Random` to
shuffle. This module replaces that shuffle; nothing else in the project uses private names of Trio's
scheduler. They are looked up when a block is entered, so importing this module works with any Trio,
and `UnsupportedTrio` says what is missing when an order is asked for.

Invariant: when a `controlled` block ends, Trio schedules as it did before the block, except that a
deterministic mode that Hypothesis switched on meanwhile stays on. Only `trio.run` calls of the
thread that entered the block are controlled; several threads may have blocks at the same time, and
end them in any order.
"""

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from random import Random
from types import ModuleType
from typing import Any, Final, TypeAlias, TypeVar

import trio
from attrs import define, field
from trio.abc import Clock
from trio.lowlevel import Task, current_root_task

T = TypeVar("T")

_RUNNER: Final = ("runq", "init_task", "main_task")
_DETERMINISTIC: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
_SHUFFLE: Final = "shuffle"

Chooser: TypeAlias = Callable[[Sequence[Task]], Sequence[Task]]
"""Decides which of the runnable tasks run in this pass, and in which order.

It is given the tasks in line order: those held back before, in the order they were held, then those
that became runnable since, oldest task first. It returns at least one of them; the others stay
runnable and are offered again in the next pass. It is given an empty sequence, and returns one,
when no task can run at all. Trio's own tasks are never offered: they run as soon as they can, so
that no chooser can starve them.
"""


class UnsupportedTrio(RuntimeError):
    """The installed Trio schedules in a way that this module does not know."""


def scheduler() -> ModuleType:
    """Return Trio's scheduler module; raises `UnsupportedTrio` if it lacks what is needed here."""
    try:
        from trio._core import _run  # noqa: PLC2701  # the only place that does
    except ImportError:
        raise _unsupported(["trio._core._run"]) from None
    runner = getattr(getattr(_run, "Runner", None), "__annotations__", {})
    missing = [
        *(name for name in (_DETERMINISTIC, "GLOBAL_RUN_CONTEXT") if not hasattr(_run, name)),
        *(f"Runner.{name}" for name in _RUNNER if name not in runner),
        *(["_r"] if not isinstance(getattr(_run, "_r", None), Random) else []),
        *(["Task._counter"] if not hasattr(Task, "_counter") else []),
    ]
    if missing:
        raise _unsupported(missing)
    return _run


def require(module: ModuleType, *names: str) -> None:
    """Raise `UnsupportedTrio` unless *module* has *names*, such as "Task._attempt_abort"."""
    missing = []
    for name in names:
        owner, _, attribute = name.partition(".")
        if not hasattr(getattr(module, owner, None), attribute or "__name__"):
            missing.append(name)
    if missing:
        raise _unsupported(missing)


def virtual_clock() -> Clock:
    """Return a clock that jumps ahead when all tasks wait.

    `trio.testing` has it, too, but imports pytest where that is installed, which takes longer than
    Trio itself.
    """
    try:
        from trio._core._mock_clock import MockClock
    except ImportError:
        from trio.testing import MockClock
    return MockClock(autojump_threshold=0)


def waits_in(task: Task) -> str | None:
    """Return the module of Trio that can end the wait of *task*; None if it does not wait, or unknown."""
    return getattr(getattr(task, "_abort_func", None), "__module__", None)


def slow_down() -> None:
    """Let this run's virtual clock wait a moment of real time before it jumps.

    For the end of a run that has begun something outside of Trio: a process needs that to end.
    """
    clock = trio.lowlevel.current_clock()
    if hasattr(clock, "autojump_threshold"):
        clock.autojump_threshold = 0.1


def _unsupported(missing: list[str]) -> UnsupportedTrio:
    return UnsupportedTrio(
        f"Trio {trio.__version__} has no {', '.join(missing)}, which controlling the order of tasks "
        "needs; use a Trio version that crush_trio is tested with (see its pyproject.toml), or "
        "report this version. Everything but seeds and schedule exploration works without."
    )


@define(eq=False)
class _Switch:
    """Replaces Trio's shuffle: arranges one batch as the chooser decides."""

    _run: ModuleType
    _choose: Chooser
    _pass_by: Callable[[], None]
    _line: list[Task] = field(factory=list, init=False)

    def shuffle(self, batch: list[Task]) -> None:
        """Rearrange *batch*, which Trio empties from its end; the held go back to the run queue."""
        runner = self._run.GLOBAL_RUN_CONTEXT.runner
        runnable = [task for task in self._line if task in batch] if self._line else []
        system: list[Task] = []
        for task in batch:
            if task not in runnable:  # those that were held back are not Trio's
                (system if _is_system(task, runner) else runnable).append(task)
        chosen: Sequence[Task] = ()
        if runnable or not batch:
            chosen = self._choose(runnable)
        else:
            self._pass_by()
        self._line = [task for task in runnable if task not in chosen]
        if len(chosen) + len(self._line) != len(runnable) or (runnable and not chosen):
            raise RuntimeError(f"{self._choose!r} chose {chosen}, which is not some of {runnable}")
        runner.runq.extend(self._line)
        batch[:] = [*reversed(chosen), *system]


def _is_system(task: Task, runner: Any) -> bool:  # noqa: ANN401  # a private class of Trio
    """Whether *task* belongs to Trio itself: the init task and its children, save the main task."""
    nursery = task.parent_nursery
    if nursery is None:
        return True
    return nursery.parent_task is runner.init_task and task is not runner.main_task


@define(eq=False)
class _Blocks:
    """The open blocks of all threads. Covers Trio's shuffle, for which there is one place, while there are any."""

    _by_thread: dict[int, list[_Switch]] = field(factory=dict, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _undo: Callable[[], None] = field(default=lambda: None, init=False)

    @contextmanager
    def open(self, run: ModuleType, switch: _Switch) -> Iterator[None]:
        """Let *switch* decide in the current thread, for the length of the block."""
        thread = threading.get_ident()
        with self._lock:
            if not self._by_thread:
                self._undo = _covered(run, self._shuffle)
            self._by_thread.setdefault(thread, []).append(switch)
        try:
            yield
        finally:
            with self._lock:
                self._by_thread[thread].remove(switch)
                if not self._by_thread[thread]:
                    del self._by_thread[thread]
                if not self._by_thread:
                    self._undo()

    def _shuffle(self, batch: list[Task]) -> None:
        """Let the innermost block of this thread decide; other threads have Trio's order."""
        if switches := self._by_thread.get(threading.get_ident()):
            switches[-1].shuffle(batch)


_BLOCKS: Final = _Blocks()


def _covered(run: ModuleType, shuffle: Callable[[list[Task]], None]) -> Callable[[], None]:
    """Put *shuffle* in the place of Trio's; return what puts everything back."""
    source = run._r
    # Trio's Random object itself stays in place: Hypothesis keeps a weak reference to it, and may
    # be imported, and register it, while the block is open. Only this one method is covered up.
    before_shuffle = vars(source).get(_SHUFFLE)
    setattr(source, _SHUFFLE, shuffle)
    before = getattr(run, _DETERMINISTIC)
    ours = object()  # true, and recognisable: if it is gone at the end, other code set the mode
    setattr(run, _DETERMINISTIC, ours)

    def undo() -> None:
        if getattr(run, _DETERMINISTIC) is ours:
            setattr(run, _DETERMINISTIC, before)
        if before_shuffle is None:
            delattr(source, _SHUFFLE)
        else:
            setattr(source, _SHUFFLE, before_shuffle)

    return undo


@contextmanager
def controlled(chooser: Chooser, pass_by: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Let *chooser* decide the task order of every `trio.run` inside this block.

    *pass_by* is called in its place where only tasks of Trio itself are runnable.

    May be entered around `trio.run`, or inside it, where it takes effect from the next pass on.
    Blocks nest; the innermost decides.

    ```python
    with controlled(lambda runnable: runnable[:1]):  # one step per pass, first come first served
        trio.run(main)
    ```
    """
    run = scheduler()
    with _BLOCKS.open(run, _Switch(run, chooser, pass_by)):
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make task order a function of *seed*, the same in every process.

    Each `trio.run` inside the block starts the sequence anew. Order within a pass is shuffled, and
    tasks are held back for a few passes at a time, as if their wake-up were slow: shuffling alone
    keeps tasks in lock-step and cannot show, say, one task finishing before another has begun. How
    much is held back differs between seeds, so that a range of seeds covers both calm and rough
    schedules. No task is held for ever.

    ```python
    with seeded(7):
        trio.run(main)
    ```
    """
    with controlled(_Seeded(seed).choose):
        yield


@define(eq=False)
class _Seeded:
    """A random walk with bounded delays."""

    _seed: int
    _root: Task | None = field(default=None, init=False)
    _random: Random = field(factory=Random, init=False)
    _chance: float = field(default=0.0, init=False)
    _longest: int = field(default=1, init=False)
    _pass: int = field(default=0, init=False)
    _due: dict[Task, int] = field(factory=dict, init=False)

    def choose(self, runnable: Sequence[Task]) -> Sequence[Task]:
        """Shuffle, then hold back the slow ones; if that is everyone, let the first due go."""
        if not runnable:
            return ()
        if self._root is not (root := current_root_task()):
            self._root = root
            self._begin()
        self._pass += 1
        order = sorted(runnable, key=birth)
        self._random.shuffle(order)
        chosen = [task for task in order if not self._hold(task)]
        if not chosen:
            chosen = [min(order, key=self._due.__getitem__)]
        for task in chosen:
            self._due.pop(task, None)
        return chosen

    def _begin(self) -> None:
        self._random = Random(self._seed)
        self._chance = self._random.choice((0.1, 0.3, 0.6))
        self._longest = self._random.choice((2, 6, 18))
        self._pass = 0
        self._due = {}

    def _hold(self, task: Task) -> bool:
        due = self._due.get(task)
        if due is not None:
            return self._pass < due
        if self._random.random() >= self._chance:
            return False
        self._due[task] = self._pass + self._random.randint(1, self._longest)
        return True


def birth(task: Task) -> tuple[str, int]:
    """Sort key that is the same in every process: spawn order, but fixtures by name.

    pytest-trio starts the fixtures of a test in the order of a set, which differs between
    processes.
    """
    by_name = task.name.startswith(("<fixture ", "<test "))
    return (task.name if by_name else "", task._counter)


# ── Suspension ──────────────────────────────────────────────────────────────────────────────────

_GROUP: "ContextVar[Suspendable | None]" = ContextVar("suspendable", default=None)


@define(eq=False)
class Suspendable:
    """A group of tasks that can be suspended together, as SIGSTOP suspends a process.

    The group is every task that `start_soon` starts, and every task that those start. While it is
    suspended none of them runs: time passes, deadlines expire, what they wait for happens, and they
    find out when it is resumed. The order in which they go on is that of the run, like any other.
    """

    suspended: bool = field(default=False, init=False)
    _held: list[Task] = field(factory=list, init=False)

    def start_soon(
        self,
        nursery: trio.Nursery,
        async_fn: Callable[..., Awaitable[object]],
        *args: object,
        name: str | None = None,
    ) -> None:
        """Start a task of the group in *nursery*."""
        self.run(lambda: nursery.start_soon(async_fn, *args, name=name))

    def run(self, start: Callable[[], T]) -> T:
        """Call *start*; the tasks that it starts belong to the group."""
        runner = scheduler().GLOBAL_RUN_CONTEXT.runner
        if not isinstance(runner.runq, _RunQueue):
            runner.runq = _RunQueue(runner.runq)
        context = copy_context()
        context.run(_GROUP.set, self)
        return context.run(start)

    def suspend(self) -> None:
        """Have no task of the group run from its next step on."""
        self.suspended = True

    def resume(self) -> None:
        """Let the tasks of the group go on."""
        self.suspended = False
        held, self._held = self._held, []
        scheduler().GLOBAL_RUN_CONTEXT.runner.runq.extend(held)

    def holds(self, task: Task) -> bool:
        """Keep a task that became runnable, if the group is suspended."""
        if self.suspended:
            self._held.append(task)
        return self.suspended


class _RunQueue(deque[Task]):
    """Trio's queue of runnable tasks, without those that are suspended."""

    def append(self, task: Task, /) -> None:  # type: ignore[explicit-override]
        group = task.context.get(_GROUP)
        if group is None or not group.holds(task):
            super().append(task)

    def extend(  # type: ignore[explicit-override]
        self, tasks: Iterable[Task], /
    ) -> None:
        for task in tasks:
            self.append(task)
