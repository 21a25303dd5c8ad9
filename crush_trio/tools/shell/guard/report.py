"""What the guard of a command reports, read line by line. Plain data, no I/O."""

import signal
from contextlib import suppress
from enum import Enum
from typing import Final

from attrs import define, field, frozen

from crush_trio.tools.shell.guard.process_table import ProcessId

NOTHING: Final = "-"


class GuardOutcome(Enum):
    """How the guarding of a command came to its end."""

    ENDED = "ended"
    """The command ended by itself."""
    STOPPED = "stopped"
    """It was told to stop."""
    KILLED = "killed"
    """Its guard was killed, and it with its guard."""


@frozen
class GuardEnd:
    """The last line of a report: the leader's wait status, what was stopped, and what could not be."""

    how: GuardOutcome
    status: int = signal.SIGKILL
    reaped: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


@define(eq=False)
class GuardReport:
    """What the guard of one command has reported so far.

    `leader` is the command's first process, once there is one. `failure` is the error number if the
    command could not be executed. `end` is set when the guard has done its work.
    """

    leader: ProcessId | None = field(default=None, init=False)
    started: bool = field(default=False, init=False)
    failure: int | None = field(default=None, init=False)
    end: GuardEnd | None = field(default=None, init=False)
    _rest: bytes = field(default=b"", init=False, repr=False)

    @property
    def over(self) -> bool:
        """Whether this was the last line: nothing of the command is there, but for what `end` names."""
        return self.failure is not None or self.end is not None

    def feed(self, data: bytes) -> None:
        """Take what has come from the guard, whole lines or not. Other lines than its own say nothing."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                self._take(line.decode().split())

    def _take(self, words: list[str]) -> None:
        match words:
            case ["forked", pid]:
                self.leader = ProcessId(int(pid))
            case ["started"]:
                self.started = True
            case ["failed", number]:
                self.leader, self.failure = None, int(number)
            case ["withdrawn"]:
                self.end = GuardEnd(GuardOutcome.STOPPED)
            case [how, status, reaped, left]:
                self.end = GuardEnd(GuardOutcome(how), int(status), _pids(reaped), _pids(left))


def _pids(text: str) -> tuple[int, ...]:
    return () if text == NOTHING else tuple(map(int, text.split(",")))
