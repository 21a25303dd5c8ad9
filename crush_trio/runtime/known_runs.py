"""The runs that a workspace knows by name: all that live, and the last ones that have ended."""

from collections import OrderedDict
from typing import Final

from attrs import define, field

from crush_trio.errors import RunIdTaken, RunNotFound
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Submission
from crush_trio.wire.ids import RunId

REMEMBERED: Final = 256
"""How many runs are remembered after their end."""


@define(eq=False)
class KnownRuns:
    """Runs by our own ids and by those of their callers."""

    _live: dict[RunId, AcceptedRun] = field(factory=dict, init=False)
    _ended: "OrderedDict[RunId, AcceptedRun]" = field(factory=OrderedDict, init=False)

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._live or run_id in self._ended

    def find(self, run_id: RunId) -> AcceptedRun:
        """Return a run, or raise `RunNotFound`."""
        run = self._live.get(run_id) or self._ended.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    def repeated(self, submission: Submission) -> AcceptedRun | None:
        """Return the run that *submission* repeats; raise `RunIdTaken` if its id names another."""
        if submission.run_id is None or submission.run_id not in self:
            return None
        run = self.find(submission.run_id)
        if run.fingerprint != hash(submission):
            raise RunIdTaken(submission.run_id)
        return run

    def add(self, run: AcceptedRun) -> None:
        """Take in a run that was accepted just now."""
        for name in _names(run):
            self._live[name] = run

    def end(self, run: AcceptedRun) -> None:
        """Note that a run has ended; one that was refused is forgotten at once."""
        names = _names(run)
        for name in names:
            self._live.pop(name, None)
        if run.outcome is not None:
            run.forget_prompt()
            self._ended.update(dict.fromkeys(names, run))
            while len(self._ended) > 2 * REMEMBERED:
                self._ended.popitem(last=False)


def _names(run: AcceptedRun) -> set[RunId]:
    return {run.id, run.submission.run_id or run.id}
