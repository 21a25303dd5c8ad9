"""A nursery that its caller cannot see.

`open_workspace()` and its kin hold a nursery open around their `yield`. Trio wraps whatever leaves
a nursery in an exception group, so without care a plain `ValueError` raised by the caller's own
code would come back to the caller as a group it never asked for. A manager that hides its nursery
therefore unwraps a lone exception again, and leaves real groups alone.

A call that ends waits: those that go on, and those that would begin after it.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio
from attrs import define, field


@define(eq=False)
class Interrupt:
    """Ends every wait that was put under it, once and for all. It needs no task to do so."""

    called: bool = field(default=False, init=False)
    _waiting: set[trio.CancelScope] = field(factory=set, init=False, repr=False)

    def call(self) -> None:
        """End the waits there are; later ones end at once."""
        self.called = True
        for scope in self._waiting:
            scope.cancel()

    @contextmanager
    def ends(self, scope: trio.CancelScope) -> Iterator[None]:
        """Cancel *scope* when this is called while the body waits in it."""
        self._waiting.add(scope)
        try:
            if self.called:
                scope.cancel()
            yield
        finally:
            self._waiting.discard(scope)


@asynccontextmanager
async def open_hidden_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose lone exception leaves as itself, with its traceback.

    Two or more exceptions still leave as a group: hiding one of them would lose it. Cancellations
    are the exception: however many tasks were cancelled, it is one cancellation that passes through,
    and callers may say `except trio.Cancelled`. Only the nursery's own wrapping is removed; a group
    that the caller raised on purpose stays one.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        lone = group.exceptions[0]
        if len(group.exceptions) != 1 and not _only_cancelled(group):
            raise
        context = lone.__context__
        try:
            raise lone
        finally:
            # Trio made the group only to carry this exception; how it came about is its own affair.
            lone.__context__ = context


def _only_cancelled(group: BaseExceptionGroup[BaseException]) -> bool:
    return all(isinstance(each, trio.Cancelled) for each in group.exceptions)
