"""Signals that mean stop: the first one asks, the second one does not.

The first SIGINT, SIGTERM or SIGHUP is told to whoever is at work, who stops in order and says what
was stopped. A second one ends the process as signals do, with the terminal put back. What it leaves
unfinished is found at the next start; commands do not outlive it, for their guards see to that.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import trio
from attrs import define, field

from crush_trio.nursery import open_hidden_nursery

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@define(eq=False)
class Interrupts:
    """The signals of one command. Made by `interruptible`."""

    number: int | None = field(default=None, init=False)
    """The first signal that came."""
    _react: Callable[[], object] = field(default=lambda: None, init=False, repr=False)
    _undo: ExitStack = field(factory=ExitStack, init=False, repr=False)

    @contextmanager
    def reacting(self, react: Callable[[], object]) -> Iterator[None]:
        """Call *react* if the first signal comes during the block, at once if it has come already."""
        before, self._react = self._react, react
        try:
            if self.number is not None:
                react()
            yield
        finally:
            self._react = before

    def before_leaving(self, undo: Callable[[], object]) -> None:
        """Call *undo* before a second signal ends the process."""
        self._undo.callback(undo)

    @property
    def exit_code(self) -> int:
        """What shells make of the signal."""
        return 128 + (self.number or signal.SIGINT)

    async def watch(self, task_status: trio.TaskStatus[None]) -> None:
        """Wait for signals, for ever."""
        with trio.open_signal_receiver(*_SIGNALS) as arrivals:
            task_status.started()
            async for number in arrivals:
                self.receive(number)

    def receive(self, number: int) -> None:
        """Do what a signal means: the first one is told to whoever is at work, the second ends us.

        A terminal that is gone says so more than once, and means no more by it.
        """
        if number == self.number == signal.SIGHUP:
            return
        if self.number is not None:
            self._leave(number)
        self.number = number
        self._react()

    def _leave(self, number: int) -> None:
        self._undo.close()
        with suppress(OSError):
            sys.stdout.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


async def interruptible(work: Callable[[Interrupts], Awaitable[int]]) -> int:
    """Do *work* and return its exit code; the first signal cancels it, unless it reacts otherwise."""
    interrupts, code = Interrupts(), None
    async with open_hidden_nursery() as nursery:
        await nursery.start(interrupts.watch)
        with trio.CancelScope() as scope, interrupts.reacting(scope.cancel):
            code = await work(interrupts)
        nursery.cancel_scope.cancel()
    return interrupts.exit_code if code is None else code
