"""Watched classes and objects: their attribute access is recorded in footprints.

Trio's events, channels, locks, parking lots, scopes and nurseries are watched in every reducing
exploration, other classes where `HoldBack(watched=…)` names them or their package, single objects
where the scenario calls `watch`.

Invariant: when a `watching` block ends, all classes are as they were before it.
"""

import sys
from abc import ABCMeta
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cached_property, wraps
from types import MemberDescriptorType, ModuleType
from typing import Any, Final, TypeVar

from crush_trio.testing.explore.footprints import VALUES, Recorder, active, is_value
from crush_trio.testing.explore.schedule import require, scheduler

T = TypeVar("T")

_TRIO: Final = (
    "trio._sync",
    "trio._channel",
    "trio._util",
    "trio._core._parking_lot",
    "trio._core._unbounded_queue",
    "trio._core._local",
    "trio._highlevel_generic",
    "trio.testing._memory_streams",
    "trio.testing._sequencer",
)
"""Modules of Trio whose classes hold what tasks share; those of the scheduler are named below."""

_PUBLIC: Final = ("trio", "trio.lowlevel", "trio.testing")
"""Where Trio's public classes say that they are from."""

_UNRECORDED: Final = ("_parent_task", "_registered_deadline")
"""Attributes of nurseries and scopes that the scheduler reads between steps: the first never changes,
the second has an effect only when no task can run."""

_SCHEDULER: Final = ("CancelScope", "Nursery", "_TaskStatus")
_TREE: Final = (
    *("CancelStatus.__attrs_post_init__", "CancelStatus.parent", "CancelStatus.recalculate"),
    *("Task._activate_cancel_status", "Task._attempt_abort"),
)
"""What changes and traverses the tree of scopes."""

_HEAP_TYPE: Final = 1 << 9
"""The flag of classes that were made by a class statement (Py_TPFLAGS_HEAPTYPE)."""


def watch(thing: T) -> T:
    """Record reads and writes of *thing*'s attributes, in a reducing exploration; return *thing*.

    Reading an attribute whose value is a container or an unwatched object counts as changing it.
    Raises TypeError for an object whose attributes cannot be watched: declare it with `touches`.
    """
    kind = type(thing)
    if not kind.__flags__ & _HEAP_TYPE or isinstance(thing, VALUES):
        raise TypeError(f'cannot watch a {kind.__name__}; declare it instead: touches("name")')
    _refuse_container(kind)
    if (recorder := active.recorder) is not None:
        recorder.adopt(thing)
        if kind not in active.originals:
            _cover(kind, creation=False)
    return thing


@contextmanager
def watching(watched: Collection[type | str]) -> Iterator[None]:
    """Watch Trio's classes and *watched*, which are classes and names of packages, in this block."""
    if active.originals:
        raise RuntimeError("a reducing exploration is running; end it before the next one starts")
    run = scheduler()
    require(run, *_SCHEDULER, *_TREE)
    named = [kind for kind in watched if isinstance(kind, type)]
    things: Collection[object] = watched
    if isinstance(things, str) or not all(isinstance(thing, type | str) for thing in things):
        raise TypeError(
            f"watched is a list of classes and names of packages, not {watched!r:.80}; for one object, "
            "call watch(thing) in the scenario"
        )
    for kind in named:
        _refuse_container(kind)
        if not kind.__flags__ & _HEAP_TYPE:
            raise TypeError(f"cannot watch {kind.__name__}: it is not made by a class statement")
    packages = [name for name in watched if isinstance(name, str)]
    try:
        for kind in dict.fromkeys([*_trio_classes(run), *named, *_classes_of(packages)]):
            _cover(kind, creation=True)
        with _plumbing(run):
            yield
    finally:
        for kind, originals in active.originals.items():
            for name, original in originals.items():
                if original is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, original)
        active.originals = {}


def _refuse_container(kind: type) -> None:
    if issubclass(kind, (list, dict, set, bytearray, deque)):
        raise TypeError(
            f"cannot watch {kind.__name__}: what is in it is not in attributes; keep it in an attribute of a "
            'watched object, or declare it: touches("name")'
        )


def _classes_of(packages: Collection[str]) -> Iterator[type]:
    """Yield the classes of *packages*, as far as imported, that can hold shared state.

    The classes of this package, save one, are not part of the scenario.
    """
    for name in packages:
        if name not in sys.modules:
            raise ValueError(f"cannot watch the package {name!r}: nothing has imported it")
    inside = tuple(f"{name}." for name in packages)
    ours = __name__.rpartition(".")[0]
    for module, content in list(sys.modules.items()):
        for kind in list(vars(content).values()) if f"{module}.".startswith(inside) else ():
            mine = isinstance(kind, type) and kind.__module__ == module and _holds_state(kind)
            if mine and (module.rpartition(".")[0] != ours or kind.__name__ == "Gate"):
                yield kind


def _trio_classes(run: ModuleType) -> Iterator[type]:
    for name in _TRIO:
        for value in vars(sys.modules.get(name, object())).values() if name in sys.modules else ():
            if (
                isinstance(value, type)
                and value.__module__ in {name, *_PUBLIC}
                and _holds_state(value)
            ):
                yield value
    for name in _SCHEDULER:
        yield getattr(run, name)


def _holds_state(kind: type) -> bool:
    if not kind.__flags__ & _HEAP_TYPE or getattr(kind, "_is_protocol", False):
        return False
    return not issubclass(kind, (*VALUES, type, ABCMeta))


@contextmanager
def _plumbing(run: ModuleType) -> Iterator[None]:
    """Record the tree of scopes, which scopes and tasks enter and leave, and cancellations traverse.

    Entering and leaving count as reading the scope around: siblings that do so commute. Traversing
    counts as writing it.
    """
    status, task = run.CancelStatus, run.Task
    parent = status.parent
    covers = [
        (status, "__attrs_post_init__", _noted(Recorder.scope_created, status.__attrs_post_init__)),
        (status, "parent", property(parent.fget, _noted(Recorder.scope_moved, parent.fset))),
        (status, "recalculate", _noted(Recorder.reaches, status.recalculate)),
        (task, "_activate_cancel_status", _noted(Recorder.moved, task._activate_cancel_status)),
        (task, "_attempt_abort", _noted(Recorder.aborts, task._attempt_abort)),
    ]
    originals = [(kind, name, vars(kind)[name]) for kind, name, _ in covers]
    for kind, name, cover in covers:
        setattr(kind, name, cover)
    try:
        yield
    finally:
        for kind, name, original in originals:
            setattr(kind, name, original)


def _noted(note: Callable[..., None], method: Callable[..., None]) -> Callable[..., None]:
    def noted(*args: object) -> None:
        if (recorder := active.recorder) is not None:
            note(recorder, *args)
        method(*args)

    return noted


def _cover(kind: type, *, creation: bool) -> None:
    """Replace the attribute access of *kind*; with *creation*, all its objects are watched."""
    covers = _accesses(kind, creation=creation)
    if creation:
        covers["__init__"] = _creation(kind)
    if hasattr(kind, "__del__"):
        covers["__del__"] = _deletion(kind)
    active.originals[kind] = {name: vars(kind).get(name) for name in covers}
    for name, cover in covers.items():
        setattr(kind, name, cover)


def _accesses(kind: Any, *, creation: bool) -> dict[str, Callable[..., Any]]:  # noqa: ANN401
    get, change, remove = kind.__getattribute__, kind.__setattr__, kind.__delattr__
    stored, frozen = _Stored(kind), _is_frozen(kind)

    def getattribute(self: object, name: str) -> Any:  # noqa: ANN401
        recorder = active.recorder
        try:
            value = get(self, name)
        except AttributeError:
            _read_missing(self, name, stored, creation=creation)
            raise
        if recorder is None or recorder.everything or not stored[name]:
            return value
        if (got := (id(self), name)) in recorder.got or not (creation or recorder.knows(self)):
            return value
        recorder.got.add(got)
        changeable = not is_value(value)
        if changeable or not frozen:
            recorder.access(self, name, write=changeable, value=value)
        return value

    def setattribute(self: object, name: str, value: object) -> None:
        if (recorder := active.recorder) is not None and (creation or recorder.knows(self)):
            recorder.access(self, name, write=True)
        change(self, name, value)

    def delattribute(self: object, name: str) -> None:
        if (recorder := active.recorder) is not None and (creation or recorder.knows(self)):
            recorder.access(self, name, write=True)
        remove(self, name)

    return {
        "__getattribute__": getattribute,
        "__setattr__": setattribute,
        "__delattr__": delattribute,
    }


def _read_missing(thing: object, name: str, stored: "_Stored", *, creation: bool) -> None:
    """Record that *thing* has no attribute *name* yet, which is something that a step can depend on."""
    recorder = active.recorder
    if recorder is not None and stored[name] and (creation or recorder.knows(thing)):
        recorder.access(thing, name, write=False)


def _is_frozen(kind: Any) -> bool:  # noqa: ANN401
    """Whether attributes of objects of *kind* are never set again, as attrs and dataclasses know it."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return kind.__setattr__.__name__ == "_frozen_setattrs" or getattr(parameters, "frozen", False)


def _creation(kind: Any) -> Callable[..., None]:  # noqa: ANN401
    make = kind.__init__

    @wraps(make)
    def initialise(self: object, *args: object, **kwargs: object) -> None:
        if (recorder := active.recorder) is not None:
            recorder.adopt(self)
        make(self, *args, **kwargs)

    return initialise


def _deletion(kind: Any) -> Callable[[object], None]:  # noqa: ANN401
    """Cover the finaliser, which the collector calls in whatever step it happens to run."""
    finalise = kind.__del__

    def finalised(self: object) -> None:
        recorder, active.recorder = active.recorder, None
        try:
            finalise(self)
        finally:
            active.recorder = recorder

    return finalised


class _Stored(dict[str, bool]):
    """Whether a name is an attribute that objects of a class store, not a method or property."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, name: str) -> bool:
        found = next((vars(base)[name] for base in self._kind.__mro__ if name in vars(base)), None)
        data = isinstance(found, MemberDescriptorType | cached_property)
        method = hasattr(type(found), "__get__") and not data
        hidden = name.startswith("__") or method or name in _UNRECORDED
        self[name] = answer = not hidden or name == "__dict__"
        return answer
