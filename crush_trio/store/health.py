"""The failures that a store has now: what `degraded` says."""

import logging
from typing import Final, Literal

from attrs import define, field

from crush_trio.store.errors import StoreCorrupt, StoreLost, StoreUnavailable

log = logging.getLogger(__name__)

WorkKind = Literal["write", "post", "read", "lease"]

_LASTING: Final = "file"


@define(eq=False)
class Health:
    """The failures that a store has now. Used by Trio's thread only, so it has no lock.

    A failure is kept per kind of work and ends with the next success of that kind: a read that
    works says nothing about a full disk. A damaged or lost file is kept until the store is
    reopened: it does not repair itself, and most statements would still succeed. A change is logged
    once, however many writes a full disk refuses.
    """

    _failures: dict[str, str] = field(factory=dict, init=False)

    @property
    def degraded(self) -> str | None:
        """One sentence about the oldest failure, or None if there is none."""
        return next(iter(self._failures.values()), None)

    def failed(self, kind: WorkKind, exc: BaseException) -> None:
        """Note that work of this *kind* has failed."""
        key = _LASTING if isinstance(exc, StoreCorrupt | StoreLost) else kind
        reason = str(exc) or type(exc).__name__
        if self._failures.get(key) != reason:
            log.error("store.degraded", extra={"kind": key, "reason": reason})
        self._failures[key] = reason

    def succeeded(self, kind: WorkKind) -> None:
        """Note that work of this *kind* has succeeded."""
        if self._failures.pop(kind, None) is not None:
            log.info("store.recovered", extra={"kind": kind})

    def lost(self, exc: BaseException) -> None:
        """Log the failure of a write that no task waits for.

        Faults of the store itself are left out: they were noted when the write was answered.
        """
        if not isinstance(exc, StoreUnavailable):
            log.error("store.write_lost", exc_info=exc)
            self.failed("post", exc)
