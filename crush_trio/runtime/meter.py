"""Who counts the runs of a workspace, if anybody does.

A run is told twice: when it is accepted and when it is over. What can be seen by looking, such as how
many are active now, is not told to anybody.
"""

from typing import Final, Protocol

from attrs import define

from crush_trio.runtime.accepted import AcceptedRun


class RunMeter(Protocol):
    """Is told of every run. Both methods are called in the midst of a step: they only count."""

    def run_accepted(self, run: AcceptedRun) -> None:
        """*run* was accepted just now."""
        ...

    def run_ended(self, run: AcceptedRun) -> None:
        """*run* is over; without an outcome if its acceptance could not be stored."""
        ...


@define(eq=False)
class _Nobody:
    """Satisfies `RunMeter`, for a workspace that nobody looks at."""

    def run_accepted(self, run: AcceptedRun) -> None:
        pass

    def run_ended(self, run: AcceptedRun) -> None:
        pass


NOBODY: Final[RunMeter] = _Nobody()
"""Counts nothing."""
