"""A seeded bug: a scenario that can be run with the bug and without."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from attrs import frozen

Scenario: TypeAlias = Callable[[], Awaitable[object]]


@frozen
class Bug:
    """One small program; its docstring says what is wrong with it."""

    name: str
    _program: Callable[[bool], Awaitable[object]]

    @property
    def about(self) -> str:
        """What is wrong, in one sentence."""
        return (self._program.__doc__ or "").strip().split("\n")[0]

    @property
    def broken(self) -> Scenario:
        """The program with the bug."""
        return self._as(fixed=False)

    @property
    def fixed(self) -> Scenario:
        """The program without it."""
        return self._as(fixed=True)

    def _as(self, *, fixed: bool) -> Scenario:
        program = partial(self._program, fixed)
        program.__name__ = self._program.__name__  # type: ignore[attr-defined]
        return program


def bug(program: Callable[[bool], Awaitable[object]]) -> Bug:
    """Make a bug of an async function that is told whether to run fixed."""
    return Bug(program.__name__.replace("_", " "), program)
