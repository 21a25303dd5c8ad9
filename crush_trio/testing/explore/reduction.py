"""Partial-order reduction: schedules that differ only in the order of independent steps run once.

A step of a task depends on what it touches (`footprints.py`) and on nothing else. So the same task
does the same step again wherever everything that the step touches was last written by the same
steps. A `Model` learns the steps from the runs and plays schedules in advance, without running them:
it knows which task a step wakes, hence which tasks could run next and which of them the default
order chooses. A schedule is run only if the model does not know one of its steps, or if the set of
its steps, each with all that came before it, is not that of a run.

Two prefixes of schedules with the same set of steps and the same queue of runnable tasks have the
same continuations. One of them is enough, the one with fewer deviations, which is found first.

Invariant: what the model knows is checked in every run, and some schedules that it would leave out
are run nevertheless. A difference raises `ExplorerBroken`: shared state is not watched or declared.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Final, Self, TypeAlias, cast

from attrs import define, field, frozen
from trio.abc import Instrument
from trio.lowlevel import Task

from crush_trio.testing.explore.footprints import Recorder, recording
from crush_trio.testing.explore.walk import ExplorerBroken, Plan, Walk, in_default_order

Footprint: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The keys that a step reads, and those that it writes."""
Deviations: TypeAlias = tuple[tuple[int, int], ...]

_IDLE: Final = 0
"""The number of the task that stands for Trio waking tasks when none can run."""

_UNTOUCHED: Final = (0, 0)
_NOTHING: Final[tuple[int, ...]] = ()

_HINT: Final = (
    "some state that tasks share is neither watched nor declared (see watch and touches), "
    "or the scenario is not deterministic"
)


@frozen
class Step:
    """A step of a task, as it happens whenever what it touches is in the same state."""

    event: int
    """A hash of the task, the footprint and the steps that wrote what is touched."""
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    everything: bool
    spawned: tuple[int, ...]
    """The tasks it starts, in order."""
    woken: frozenset[int]
    """The tasks that can run after it and could not before, itself included."""
    exits: bool
    after: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """The queue and the living tasks after a step that touches everything: it may be many steps."""


@define(eq=False)
class State:
    """The state of a run between two steps, as far as the order of steps matters."""

    touched: dict[int, tuple[int, int]] = field(factory=dict)
    """For each key the last step that wrote it, and the sum of those that read it since."""
    epoch: int = 0
    """The last step that touched everything."""
    steps: int = 0
    """The sum of the steps so far: equal if and only if the same steps came in an equivalent order."""
    line: tuple[int, ...] = ()
    current: int = -1
    in_a_row: int = 0
    alive: tuple[int, ...] = ()
    """The tasks in order of birth, in which Trio offers those that wake together."""

    def copy(self) -> Self:
        """Return an independent copy."""
        return type(self)(
            self.touched.copy(),
            self.epoch,
            self.steps,
            self.line,
            self.current,
            self.in_a_row,
            self.alive,
        )

    @property
    def place(self) -> tuple[object, ...]:
        """What decides how a run continues; see the module for why."""
        if len(self.line) == 1:
            return self.steps, self.line, self.alive
        if self.current not in self.line and self.line:
            return self.steps, self.line, self.alive, 0
        return self.steps, self.line, self.alive, self.current, self.in_a_row

    def whole(self, task: int) -> int:
        """Return a hash of all that a step of *task* that touches everything depends on."""
        return self.steps if task == _IDLE else hash(self.place)

    def options(self) -> Sequence[int]:
        """Return the tasks that can run, the default first; the idle task if there is none."""
        return in_default_order(self.line, self.current, self.in_a_row) or (_IDLE,)

    def versions(self, reads: tuple[int, ...], writes: tuple[int, ...]) -> int:
        """Return a hash of the steps that a step with this footprint depends on."""
        get = self.touched.get
        return hash(
            (
                tuple([get(key, _UNTOUCHED)[0] for key in reads]),
                tuple([get(key, _UNTOUCHED) for key in writes]),
            )
        )

    def take(self, task: int, step: Step) -> None:
        """Advance by *step* of *task*."""
        event, touched = step.event, self.touched
        if step.everything:
            touched.clear()
            self.epoch = event
        else:
            for key in step.reads:
                writer, readers = touched.get(key, _UNTOUCHED)
                touched[key] = (writer, readers + event)
            last = (event, 0)
            for key in step.writes:
                touched[key] = last
        self.steps += event
        if task != _IDLE:
            if len(self.line) == 1:
                self.in_a_row = 0
            else:
                self.in_a_row = self.in_a_row + 1 if task == self.current else 1
            self.current = task
        if step.after is not None:
            self.line, self.alive = step.after
            return
        if step.spawned:
            self.alive += step.spawned
        held = [other for other in self.line if other != task]
        self.line = (*held, *[other for other in self.alive if other in step.woken])
        if step.exits:
            self.alive = tuple([other for other in self.alive if other != task])


@define(eq=False)
class Model:
    """The steps that are known from the runs of one exploration."""

    numbers: dict[object, int] = field(factory=lambda: {"main": 1})
    main: ClassVar[int] = 1
    """The number of the scenario's main task."""
    ended: dict[int, tuple[str, object]] = field(factory=dict)
    """The token and the outcome of the runs, by the sum of their steps."""
    _known: dict[tuple[int, int, tuple[int, int]], dict[Footprint | None, dict[int, Step]]] = field(
        factory=dict
    )

    def start(self) -> State:
        """Return the state before the first step."""
        return State(line=(self.main,), alive=(self.main,))

    def step(self, state: State, task: int) -> Step | None:
        """Return the next step of *task* in *state*, if it is known."""
        near = self._known.get((task, state.epoch, state.touched.get(task, _UNTOUCHED)))
        if near is None:
            return None
        for footprint, steps in near.items():
            at = state.whole(task) if footprint is None else state.versions(*footprint)
            if (step := steps.get(at)) is not None:
                return step
        return None

    def learn(self, state: State, task: int, recorder: Recorder, line: list[int]) -> Step:
        """Return the step that was recorded and led to *line*; it is known, or becomes known."""
        woken = frozenset(line).difference([held for held in state.line if held != task])
        if recorder.everything:
            footprint, reads, writes = None, _NOTHING, _NOTHING
            at, after = state.whole(task), (tuple(line), recorder.alive())
        else:
            writes = tuple(sorted(recorder.writes | woken))
            reads = tuple(sorted(recorder.reads.difference(writes)))
            footprint, after = (reads, writes), None
            at = state.versions(reads, writes)
        step = Step(
            event=hash((task, state.epoch, footprint, at)),
            reads=reads,
            writes=writes,
            everything=recorder.everything,
            spawned=tuple(recorder.spawned),
            woken=woken,
            exits=recorder.exited,
            after=after,
        )
        known = self.step(state, task)
        if known is None:
            near = (task, state.epoch, state.touched.get(task, _UNTOUCHED))
            self._known.setdefault(near, {}).setdefault(footprint, {})[at] = step
        elif known != step:
            raise ExplorerBroken(f"a step differs from what it was in an equivalent run: {_HINT}")
        return step


@define(eq=False)
class _Learner:
    """Observes one run for a model."""

    _model: Model
    _recorder: Recorder = field(init=False)
    _state: State = field(init=False)
    _task: int | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._recorder = Recorder(self._model.numbers)
        self._state = self._model.start()

    @property
    def instruments(self) -> Sequence[Instrument]:
        """The instruments of the recorder."""
        return (cast("Instrument", self._recorder),)

    def run(self) -> AbstractContextManager[None]:
        """Return a context manager for the time of the run."""
        return recording(self._recorder)

    def between(self, runnable: Sequence[Task]) -> None:
        """End the last step, and compare the queue with the one that the model predicts."""
        if self._task is None:
            self._recorder.tasks.update(dict.fromkeys(runnable, self._model.main))
        elif self._state.alive and (runnable or self._task != _IDLE):
            self._end([self._recorder.tasks[task] for task in runnable])
            if not runnable and self._state.alive:
                self._begin(_IDLE)

    def chosen(self, task: Task) -> None:
        """Begin the step of *task*."""
        self._begin(self._recorder.tasks[task])

    def finish(self, walk: Walk) -> int:
        """End the last step of a run and note its outcome; return the sum of its steps."""
        if self._state.alive:
            self._end([])
        steps = self._state.steps
        token, outcome = self._model.ended.setdefault(steps, (walk.token, walk.value))
        if outcome != walk.value:
            raise ExplorerBroken(
                f"the schedules {token} and {walk.token} should be equivalent, but their outcomes are "
                f"{outcome!r} and {walk.value!r}: {_HINT}"
            )
        return steps

    def _begin(self, task: int) -> None:
        self._task = task
        self._recorder.begin(task)

    def _end(self, line: list[int]) -> None:
        task, state = self._task, self._state
        assert task is not None
        self._recorder.end()
        state.take(task, self._model.learn(state, task, self._recorder, line))
        if state.line != tuple(line):
            raise ExplorerBroken("Trio did not queue its tasks as expected; is it a new version?")


@frozen
class _Path:
    """A schedule whose decisions from *first* up to *last* are at places that were new."""

    deviations: Deviations
    first: int
    last: int


@define(eq=False)
class Reduction:
    """The walks of a reducing exploration within *bound* deviations."""

    _bound: int | None
    _plan: Plan
    _model: Model = field(factory=Model, init=False)
    _seen: set[tuple[object, ...]] = field(factory=set, init=False)

    def walks(self) -> Generator[Walk, None, None]:
        """Yield the walks, those with fewest deviations first."""
        root = yield from self._follow(self._model.start(), 0, (), ())
        paths, level = [root], 0
        while paths and level != self._bound:
            level += 1
            further = []
            for path in paths:
                for child in self._children(path, root):
                    found = yield from self._follow(*child)
                    if found.last > found.first:
                        further.append(found)
            paths = further

    def _children(
        self, path: _Path, root: _Path
    ) -> Iterator[tuple[State, int, Deviations, Sequence[int]]]:
        """Play *path* again, and yield the schedules that deviate from it once more."""
        choices, state, count = dict(path.deviations), self._model.start(), 0
        widths: list[int] = []
        while len(widths) < path.last:
            options, index = state.options(), len(widths)
            if len(options) > 1:
                widths.append(len(options))
                for choice in range(1, len(options)) if index >= path.first else ():
                    if path is not root or count % self._plan.part[1] == self._plan.part[0]:
                        yield state.copy(), choice, (*path.deviations, (index, choice)), widths
                    count += 1
            task = options[choices.get(index, 0) if len(options) > 1 else 0]
            step = self._model.step(state, task)
            assert step is not None
            state.take(task, step)

    def _follow(
        self, state: State, choice: int, deviations: Deviations, widths: Sequence[int]
    ) -> Generator[Walk, None, _Path]:
        """Play a schedule on from its last deviation; run it unless an equivalent one has run."""
        first = last = len(widths)
        task, ran = state.options()[choice], False
        while True:
            step = self._model.step(state, task)
            if step is None:
                if ran:
                    raise ExplorerBroken(f"the run of {deviations} took another way: {_HINT}")
                yield from self._run(deviations, widths)
                ran = True
                continue
            state.take(task, step)
            if not state.alive:
                if state.steps not in self._model.ended:
                    yield from self._run(deviations, widths, expected=state.steps)
                    ran = True
                break
            options = state.options()
            if len(options) > 1:
                place = state.place
                if place in self._seen:
                    break
                self._seen.add(place)
                last += 1
            task = options[0]
        if not ran:
            yield from self._leave_out(deviations, widths)
        return _Path(deviations, first, last)

    def _leave_out(
        self, deviations: Deviations, widths: Sequence[int]
    ) -> Generator[Walk, None, None]:
        """Count a schedule that need not run; run the first, second, fourth, … to check that."""
        self._plan.equivalent += 1
        if self._plan.equivalent.bit_count() == 1:
            before = len(self._model.ended)
            yield from self._run(deviations, widths)
            if len(self._model.ended) != before:
                raise ExplorerBroken(
                    f"schedule {deviations} should be equivalent to another: {_HINT}"
                )

    def _run(
        self, deviations: Deviations, widths: Sequence[int], expected: int | None = None
    ) -> Generator[Walk, None, None]:
        learner = _Learner(self._model)
        walk = Walk(
            deviations, max_steps=self._plan.max_steps, expected=list(widths), observer=learner
        )
        yield walk
        steps = learner.finish(walk)
        if expected not in {None, steps}:
            raise ExplorerBroken(f"schedule {walk.token} took other steps than foreseen: {_HINT}")
