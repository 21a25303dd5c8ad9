"""Strategies: which schedules of a scenario an exploration runs.

`HoldBack` enumerates every schedule within a bound on deviations from the default order, `Random` and
`PCT` sample with a seed. What a sampled schedule chose is recorded as deviations from the default, so
that its token replays it as any other.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from itertools import islice
from random import Random as Source
from typing import ClassVar, Final, Protocol

from attrs import define, field, frozen
from trio.lowlevel import Task

from crush_trio.testing.explore.reduction import Reduction
from crush_trio.testing.explore.walk import Plan, Walk
from crush_trio.testing.explore.watched import watching

_FAIR: Final = 100
"""Steps in a row after which PCT lowers a task that others wait for: it may be polling for them."""


class Strategy(Protocol):
    """Chooses the schedules of an exploration."""

    @property
    def exhaustive(self) -> bool:
        """Whether the walks are all the schedules within the bound."""
        ...

    @property
    def bound(self) -> str:
        """The bound as the end of a sentence: " at 2 deviations"."""
        ...

    def walks(self, plan: Plan) -> Generator[Walk, None, None]:
        """Yield the walks of one part; each is run before the next is asked for."""
        ...


def _not_negative(_self: object, attribute: object, value: int | None) -> None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"deviations must be a whole number, or None for all: {value!r}")
    if value is not None and value < 0:
        raise ValueError(f"deviations must be 0 or more, or None for all: {value}")


def _positive(_self: object, attribute: "_Named", value: int) -> None:
    if value < 1:
        raise ValueError(f"{attribute.name} must be 1 or more: {value}")


class _Named(Protocol):
    name: str


@frozen
class HoldBack:
    """Every schedule with at most *deviations* deviations; None for every schedule.

    Fewest deviations first, so that a failure is a simple one, and so that a `limit` cuts off the
    schedules with the most.

    With *reduce*, schedules that differ only in the order of steps that touch nothing in common are
    run once, which makes one more deviation affordable. Trio's own objects are recorded. By setting
    it you say that all other state which the tasks share is watched or declared: objects of the
    *watched* classes or packages, and what the scenario passes to `watch` and `touches`.
    """

    deviations: int | None = field(default=2, validator=_not_negative)
    reduce: bool = field(default=False, kw_only=True)
    watched: Collection[type | str] = field(default=(), kw_only=True)
    exhaustive: ClassVar[bool] = True

    @property
    def bound(self) -> str:
        """The bound as the end of a sentence."""
        if self.deviations is None:
            return ""
        return f" at {self.deviations} deviation{'' if self.deviations == 1 else 's'}"

    def walks(self, plan: Plan) -> Generator[Walk, None, None]:
        """Yield a walk for every schedule within the bound.

        A part has every n-th of the schedules with one deviation, and what descends from these.
        """
        if self.reduce:
            # The first runs may import modules and fill caches: they are not compared with others.
            yield Walk((), max_steps=plan.max_steps)
            with watching(self.watched):
                yield Walk((), max_steps=plan.max_steps)
                yield from Reduction(self.deviations, plan).walks()
            return
        root = Walk((), max_steps=plan.max_steps)
        yield root
        frontier = deque([root] if self.deviations != 0 else [])
        while frontier:
            # Without a bound, fewest deviations first could need much memory: depth first then.
            parent = frontier.popleft() if self.deviations is not None else frontier.pop()
            children = parent.children()
            for child in (
                islice(children, plan.part[0], None, plan.part[1]) if parent is root else children
            ):
                yield child
                if len(child.deviations) != self.deviations:
                    frontier.append(child)


@frozen
class Random:
    """*schedules* schedules in which each decision is taken at random, all choices equally likely.

    Finds likely orders soon, also those with many deviations; a race that needs one task to wait
    while another takes many steps is unlikely.
    """

    schedules: int = field(default=1000, validator=_positive)
    seed: int = 0
    exhaustive: ClassVar[bool] = False

    @property
    def bound(self) -> str:
        """The bound as the end of a sentence."""
        return f" at random with seed {self.seed}"

    def walks(self, plan: Plan) -> Generator[Walk, None, None]:
        """Yield the walks; schedule n depends on the seed and n alone."""
        for number in range(plan.part[0], self.schedules, plan.part[1]):
            source = _source(self.seed, number)
            yield Walk.picked(_at_random(source), max_steps=plan.max_steps)


@frozen
class PCT:
    """*schedules* schedules by random task priorities that change at *depth* - 1 random steps.

    Of the runnable tasks, the one with the highest priority runs. With n tasks and k steps, each
    schedule has a chance of at least 1 / (n * k ** (depth - 1)) to show a bug that *depth* ordered
    steps make up (Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding
    Bugs", 2010), however far apart these are. k is learnt from the default schedule, which runs
    first. A task that takes 100 steps in a row while others are ready gets the lowest priority:
    without that, a polling loop would never end.
    """

    schedules: int = field(default=1000, validator=_positive)
    depth: int = field(default=3, validator=_positive)
    seed: int = 0
    exhaustive: ClassVar[bool] = False

    @property
    def bound(self) -> str:
        """The bound as the end of a sentence."""
        return f" by PCT of depth {self.depth} with seed {self.seed}"

    def walks(self, plan: Plan) -> Generator[Walk, None, None]:
        """Yield the default walk, then the sampled ones."""
        first = Walk((), max_steps=plan.max_steps)
        yield first
        for number in range(1 + plan.part[0], self.schedules, plan.part[1]):
            source = _source(self.seed, number)
            picker = _Priorities(source, self.depth, max(first.steps, self.depth))
            yield Walk.picked(picker.pick, max_steps=plan.max_steps)


def _source(seed: int, number: int) -> Source:
    return Source(f"{seed}.{number}")


def _at_random(source: Source) -> Callable[[Sequence[Task]], int]:
    return lambda options: source.randrange(len(options)) if len(options) > 1 else 0


@define(eq=False)
class _Priorities:
    """The priorities of one PCT schedule."""

    _source: Source
    _depth: int
    _steps: int
    _priority: dict[Task, float] = field(factory=dict, init=False)
    _changes: dict[int, int] = field(init=False)
    _step: int = field(default=0, init=False)
    _lowest: int = field(default=0, init=False)
    _last: Task | None = field(default=None, init=False)
    _in_a_row: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        points = self._source.sample(range(1, self._steps + 1), self._depth - 1)
        # The i-th change gives priority i, below every initial one.
        self._changes = {point: index for index, point in enumerate(points)}

    def pick(self, options: Sequence[Task]) -> int:
        """Return the option with the highest priority, then change its priority if it is time."""
        for task in options:
            if task not in self._priority:
                self._priority[task] = self._depth + self._source.random()
        chosen = max(options, key=self._priority.__getitem__)
        self._step += 1
        if (change := self._changes.get(self._step)) is not None:
            self._priority[chosen] = change
            chosen = max(options, key=self._priority.__getitem__)
        self._in_a_row = self._in_a_row + 1 if chosen is self._last and len(options) > 1 else 0
        if self._in_a_row >= _FAIR:
            self._lowest -= 1
            self._priority[chosen] = self._lowest
            self._in_a_row = 0
        self._last = chosen
        return options.index(chosen)
