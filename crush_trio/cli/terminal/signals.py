"""Signals that stop a command: the first cancels, the second ends the process.

The first SIGINT, SIGTERM or SIGHUP calls the current reaction, which cancels in order and reports
what was cancelled. A second one ends the process by that signal, with the terminal restored.
Unfinished runs are then ended at the next start. Shell commands do not outlive the process, because
each has a guard process that stops it.
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
    """The first signal that arrived."""
    _react: Callable[[], object] = field(default=lambda: None, init=False, repr=False)
    _undo: ExitStack = field(factory=ExitStack, init=False, repr=False)

    @contextmanager
    def reacting(self, react: Callable[[], object]) -> Iterator[None]:
        """Call *react* at the first signal during the block, at once if one has arrived before."""
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
        """The exit code for the signal, as in shells: 128 + its number."""
        return 128 + (self.number or signal.SIGINT)

    async def watch(self, task_status: trio.TaskStatus[None]) -> None:
        """Receive signals, until cancelled."""
        with trio.open_signal_receiver(*_SIGNALS) as arrivals:
            task_status.started()
            async for number in arrivals:
                self.receive(number)

    def receive(self, number: int) -> None:
        """Handle a signal: the first calls the reaction, the second ends the process.

        SIGHUP counts once: a closed terminal may send it several times.
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
    """Run *work* and return its exit code; the first signal cancels it, unless it sets a reaction."""
    interrupts, code = Interrupts(), None
    async with open_hidden_nursery() as nursery:
        await nursery.start(interrupts.watch)
        with trio.CancelScope() as scope, interrupts.reacting(scope.cancel):
            code = await work(interrupts)
        nursery.cancel_scope.cancel()
    return interrupts.exit_code if code is None else code
