"""`open_hidden_nursery`: a nursery inside a context manager; `Interrupt`: ends many waits; `check_trio`.

`open_workspace()` and similar context managers hold a nursery open around their `yield`. Trio wraps
every exception that leaves a nursery in an exception group, so a plain `ValueError` raised in the
caller's block would come back to the caller as a group. A manager that hides its nursery therefore
unwraps a single exception and leaves groups of several alone.
"""

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio
from attrs import define, field


@define(eq=False)
class Interrupt:
    """Ends all registered waits with one synchronous call, and all later ones at once."""

    called: bool = field(default=False, init=False)
    _waiting: set[trio.CancelScope] = field(factory=set, init=False, repr=False)

    def call(self) -> None:
        """End the registered waits; later ones end at once."""
        self.called = True
        for scope in self._waiting:
            scope.cancel()

    @contextmanager
    def ends(self, scope: trio.CancelScope) -> Iterator[None]:
        """Register *scope* during the block: `call` cancels it."""
        self._waiting.add(scope)
        try:
            if self.called:
                scope.cancel()
            yield
        finally:
            self._waiting.discard(scope)


@asynccontextmanager
async def open_hidden_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery that raises a single exception unwrapped, with its traceback.

    Two or more exceptions still leave as a group, so that none is lost; except that several
    cancellations leave as one `trio.Cancelled`. Only the nursery's own wrapping is removed: a group
    that the caller raised stays a group.
    """
    with unwrapped(trio.Cancelled):
        async with trio.open_nursery() as nursery:
            yield nursery


@contextmanager
def unwrapped(cancelled: type[BaseException]) -> Generator[None]:
    """Raise a single exception that comes in a group as itself; several *cancelled* count as one."""
    try:
        yield
    except BaseExceptionGroup as group:
        lone = group.exceptions[0]
        if len(group.exceptions) != 1 and not all(
            isinstance(each, cancelled) for each in group.exceptions
        ):
            raise
        context = lone.__context__
        try:
            raise lone
        finally:
            # `raise` sets the context to the group, which Trio made only as a wrapper; restore it.
            lone.__context__ = context


def check_trio(name: str) -> None:
    """Raise a `RuntimeError` if *name* was opened outside of Trio, such as under asyncio."""
    if not trio.lowlevel.in_trio_task():
        raise RuntimeError(
            f"{name} needs Trio: start the program with trio.run(main). A program on asyncio can talk to "
            "a server instead, see docs/client.md"
        )
