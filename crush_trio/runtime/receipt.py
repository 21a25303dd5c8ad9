"""`StopReceipt`: the runs that a cancel hit; `CloseReport`: how a workspace closed.

A cancel returns a receipt at once, with the state of each run at that moment. The receipt fills in
as the runs end; `settled` waits until all have.
"""

from collections.abc import Iterable

import trio
from attrs import define, field, frozen
from typing_extensions import override

from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Outcome
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunState


@define(eq=False)
class Hit:
    """One run that a cancel hit: its state at that moment, and how and when it ended."""

    run: AcceptedRun = field(repr=False)
    state: RunState = field(init=False)
    _since: float = field(factory=trio.current_time, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.state = self.run.state

    @property
    def run_id(self) -> RunId:
        """Our own id of the run."""
        return self.run.id

    @property
    def session_id(self) -> SessionId:
        """The session of the run."""
        return self.run.session_id

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended, or None while it has not.

        Not always `cancelled`: a run whose turn had returned when the cancel came is completed.
        """
        return self.run.outcome

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids that were stopped with the run; all of them are gone when it has ended."""
        return tuple(self.run.reaped)

    @property
    def left(self) -> tuple[int, ...]:
        """Process ids of the run that could not be stopped."""
        return tuple(self.run.left)

    @property
    def took(self) -> float | None:
        """Seconds from the cancel to the end of the run, or None while it has not ended."""
        ended = self.run.ended_time
        return None if ended is None else max(0.0, ended - self._since)


@frozen(eq=False)
class StopReceipt:
    """The runs that one cancel hit; none if there was nothing to stop."""

    hits: tuple[Hit, ...]

    @classmethod
    def of(cls, runs: Iterable[AcceptedRun]) -> "StopReceipt":
        """Record *runs* and their states; to be called before they are cancelled."""
        return cls(tuple(Hit(run) for run in runs))

    @property
    def complete(self) -> bool:
        """Whether every run that was hit has ended, and no process of it is left."""
        return all(hit.run.ended and not hit.left for hit in self.hits)

    @property
    def unfinished(self) -> tuple[Hit, ...]:
        """The runs that have not ended yet."""
        return tuple(hit for hit in self.hits if not hit.run.ended)

    async def settled(self) -> "StopReceipt":
        """Wait until every run that was hit has ended."""
        await trio.lowlevel.checkpoint()
        for hit in self.hits:
            await hit.run.wait_ended()
        return self


@frozen(eq=False)
class CloseReport:
    """How a workspace closed: the runs it stopped, how long that took, and which did not end.

    `unfinished` is empty unless a turn shields itself from cancellation for ever. Trio cannot
    abandon such a task, so the report names it.
    """

    receipt: StopReceipt
    took: float
    unfinished: tuple[Hit, ...] = ()

    @override
    def __str__(self) -> str:
        stopped = len(self.receipt.hits) - len(self.unfinished)
        text = f"{stopped} {'run' if stopped == 1 else 'runs'} stopped in {self.took:.2f} s"
        if not self.unfinished:
            return text
        names = ", ".join(f"{hit.run_id} ({hit.state})" for hit in self.unfinished)
        return f"{text}; did not end: {names}"
