"""Footprints: what a task step reads and writes, recorded while a scenario runs.

Two steps of different tasks commute if neither writes what the other touches; `reduction.py` then
need not run both orders. Recorded are attributes of watched objects (`watched.py`). What cannot be
watched, such as a list that is shared without an owner, is declared with `touches`.

Invariants: reading an attribute whose value can be changed in place counts as writing it, unless it is
a builtin container whose content is the same after the step. Waking, cancelling or starting a task
writes that task, and each step writes its own. Aborting a wait touches what the waiting task's last
step touched. A step in which Trio's own tasks ran touches everything.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from operator import is_
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, TypeVar

from attrs import define, field
from trio.lowlevel import Task

T = TypeVar("T")

VALUES: Final = (
    *(int, float, complex, str, bytes, range, tuple, frozenset, type(None), type, Enum),
    *(BaseException, BuiltinFunctionType, ModuleType, Task),
)
"""Types of values that do not change, or whose changes are recorded elsewhere."""


def touches(*names: str, write: bool = True) -> None:
    """Declare that the current task step reads and, unless *write* is false, changes *names*.

    For shared state that cannot be watched. Outside a reducing exploration it does nothing.

    ```python
    touches("queue")
    queue.append(item)
    ```
    """
    if (recorder := active.recorder) is not None:
        for name in names:
            recorder.touch(recorder.number(("declared", name)), write=write)


@define(eq=False)
class Recorder:
    """Records the footprint of the current step of one run."""

    numbers: dict[object, int]
    """Small numbers for names of tasks, objects and attributes, the same in every run."""
    reads: set[int] = field(factory=set, init=False)
    writes: set[int] = field(factory=set, init=False)
    everything: bool = field(default=False, init=False)
    got: set[tuple[int, str]] = field(factory=set, init=False)
    """The attributes that the step has got already, by the id of their object."""
    spawned: list[int] = field(factory=list, init=False)
    exited: bool = field(default=False, init=False)
    tasks: dict[Task, int] = field(factory=dict, init=False)
    """The tasks of the scenario that live, by number."""
    _objects: dict[int, tuple[object, int, dict[str, int]]] = field(factory=dict, init=False)
    _steps: dict[int, int] = field(factory=dict, init=False)
    _last: dict[int, frozenset[int]] = field(factory=dict, init=False)
    _task: int = field(default=0, init=False)
    _births: int = field(default=0, init=False)
    _containers: dict[int, tuple[object, list[object] | None]] = field(factory=dict, init=False)
    """The containers that the step got, with what was in them."""

    def number(self, name: object) -> int:
        """Return the number of *name*."""
        return self.numbers.setdefault(name, len(self.numbers) + 1)

    def touch(self, key: int, *, write: bool) -> None:
        """Add *key* to the footprint."""
        (self.writes if write else self.reads).add(key)

    def begin(self, task: int) -> None:
        """Start the step of *task*; 0 for what happens when no task can run."""
        self.reads, self.writes, self.got = set(), {task} if task else set(), set()
        self.everything, self.spawned, self.exited = not task, [], False
        self._task, self._births, self._containers = task, 0, {}
        self._steps[task] = self._steps.get(task, 0) + 1

    def end(self) -> None:
        """End the step: see which containers it changed."""
        for key, (container, content) in self._containers.items():
            same = content is not None and _same(content, _content(container))
            (self.reads if same else self.writes).add(key)
        # For when the task is aborted where it now waits.
        if self.everything:
            self._last.pop(self._task, None)
        else:
            self._last[self._task] = frozenset(self.reads | self.writes)

    def created(self) -> int:
        """Return a number for what the current step has just created."""
        self._births += 1
        return self.number((self._task, self._steps.get(self._task, 0), self._births))

    def adopt(self, thing: object) -> None:
        """Give *thing* a number as something that the current step created."""
        if id(thing) not in self._objects:
            self._objects[id(thing)] = (thing, self.created(), {})  # kept: ids are used again

    def knows(self, thing: object) -> bool:
        """Whether *thing* was created or adopted in this run."""
        return id(thing) in self._objects

    def access(self, thing: object, name: str, *, write: bool, value: object = None) -> None:
        """Add the attribute *name* of *thing* to the footprint, with its *value* if that was read."""
        if name == "__dict__":
            self.everything = True  # what is done with it is not seen
            return
        entry = self._objects.get(id(thing))
        if entry is None:  # it is older than the run: one number for all of its class
            older = self.number(("older", type(thing).__module__, type(thing).__qualname__))
            entry = self._objects[id(thing)] = (thing, older, {})
        key = entry[2].get(name)
        if key is None:
            key = entry[2][name] = self.number((entry[1], name))
        if key in self.writes:
            return
        if write and type(value) in _CONTAINERS:
            if key not in self._containers:
                self._containers[key] = (value, _content(value))
        else:
            (self.writes if write else self.reads).add(key)

    def aborts(self, task: Task, _raise_cancel: object = None) -> None:
        """Add what *task* waits for: a cancellation takes it out of there."""
        if (number := self.tasks.get(task)) is not None:
            self.writes.add(number)
            if (last := self._last.get(number)) is None:
                self.everything = True
            else:
                self.writes |= last

    def scope_created(self, status: Any) -> None:  # noqa: ANN401  # a private class of Trio
        """Add that a scope is entered inside another."""
        self.adopt(status)
        self._joins(status._parent)

    def scope_moved(self, status: Any, to: Any) -> None:  # noqa: ANN401
        """Add that a scope is left, or is now inside that of *to*."""
        self._joins(status._parent)
        self._joins(to)

    def moved(self, task: Task, to: Any) -> None:  # noqa: ANN401
        """Add that *task* is now directly inside the scope of *to*."""
        self._joins(task._cancel_status)
        self._joins(to)

    def _joins(self, status: object) -> None:
        if status is not None:
            self.access(status, "tree", write=False)

    def reaches(self, status: Any) -> None:  # noqa: ANN401
        """Add the scopes from *status* inwards, and the tasks in them: their cancellation may change."""
        todo = [status]
        while todo:
            current = todo.pop()
            self.access(current, "tree", write=True)
            self.writes.update(self.tasks[task] for task in current._tasks if task in self.tasks)
            todo.extend(current._children)

    def alive(self) -> tuple[int, ...]:
        """Return the tasks that live, oldest first."""
        oldest = sorted(self.tasks, key=lambda task: task._counter)
        return tuple([self.tasks[task] for task in oldest])

    def task_spawned(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        nursery = task.parent_nursery
        parent = None if nursery is None else nursery.parent_task
        if parent in self.tasks:
            self.tasks[task] = number = self.created()
            self.spawned.append(number)
        else:
            self.everything = True  # a task of Trio itself

    def task_exited(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        if self.tasks.pop(task, None) is not None:
            self.exited = True

    def task_scheduled(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        if task not in self.tasks and self.tasks and self._steps:
            self.everything = True  # a task of Trio itself, which runs before the next step

    def before_task_step(self, task: Task) -> None:
        """Implement Trio's instrument hook."""
        number = self.tasks.get(task, 0)
        starting = not number and len(self._steps) == 1  # Trio's tasks start beside the first step
        if self.tasks and number != self._task and not starting:
            self.everything = True  # a task of Trio itself, or a `controlled` block in the scenario
            self._last.pop(number, None)


@define(eq=False)
class _Active:
    """What is being recorded now, and the classes that are covered for it."""

    recorder: Recorder | None = None
    originals: dict[type, dict[str, Any]] = field(factory=dict)


active: Final = _Active()


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Record accesses in *recorder*; inside `watching`."""
    active.recorder = recorder
    try:
        yield
    finally:
        active.recorder = None


def is_value(value: object) -> bool:
    """Whether *value* cannot change, or its changes are recorded where they happen."""
    kind = type(value)
    answer = _kinds.get(kind)
    if answer is None:
        answer = _kinds[kind] = issubclass(kind, VALUES)
    if kind is FunctionType:
        return value.__closure__ is None  # type: ignore[attr-defined]
    if answer and isinstance(value, tuple):
        return all(map(is_value, value))
    if answer or kind not in active.originals:
        return answer
    if issubclass(kind, (list, dict, set, bytearray, deque)):
        return False  # only its attributes are watched, not what is in it
    covers_all = "__init__" in active.originals[kind]
    return covers_all or (active.recorder is not None and active.recorder.knows(value))


def _content(container: Any) -> list[object] | None:  # noqa: ANN401
    """Return what is in *container* and in the containers in it; None if that can change unseen."""
    found: list[object] = []
    todo = [container]
    while todo:
        value = todo.pop()
        kind = type(value)
        found.append(value)
        if kind in _CONTAINERS:
            found.append(len(value))
            if len(value) > _LARGE or len(found) > _LARGE:
                return None
            todo.extend(value)
            if isinstance(value, dict):
                todo.extend(value.values())
        elif not is_value(value):
            return None
    return found


def _same(one: list[object], other: list[object] | None) -> bool:
    return other is not None and len(one) == len(other) and all(map(is_, one, other))


_CONTAINERS: Final = {list, dict, set, deque, OrderedDict, defaultdict, Counter}
_LARGE: Final = 250
"""How many values are compared at most; the small numbers up to there are the same object."""

_kinds: Final[dict[type, bool]] = {}
