"""A call that ends waits: those that go on, and those that would begin after it."""

from collections.abc import Iterator
from contextlib import contextmanager

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
