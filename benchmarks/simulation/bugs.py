"""Bugs that the simulation must find: each takes away one thing that keeps a promise."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import trio
from attrs import field, frozen

from crush_trio.backend.cluster import node
from crush_trio.runtime.workspace import Workspace
from crush_trio.store.memory.leased import LeasedMemoryStore
from crush_trio.store.memory.nodes import MemoryNodes
from crush_trio.wire.ids import SessionId


@frozen(kw_only=True)
class Bug:
    """What is wrong: something in the store, or *patches*, which are attributes and what they become."""

    fenced: bool = True
    guarded: bool = True
    answers_early: bool = False
    patches: tuple[tuple[Any, str, Callable[..., Any]], ...] = field(default=())

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug for the length of the block."""
        before = [(where, name, getattr(where, name)) for where, name, _ in self.patches]
        for where, name, wrong in self.patches:
            setattr(where, name, wrong)
        try:
            yield
        finally:
            for where, name, right in before:
                setattr(where, name, right)


_renewed, _claim, _cancel = node.HeldLease.renewed, MemoryNodes.claim, Workspace.cancel


def _renewed_late(self: node.HeldLease, _sent: float) -> None:
    _renewed(self, trio.current_time())


async def _claimed_late(self: MemoryNodes, number: int) -> Any:  # noqa: ANN401
    found = await _claim(self, number)
    if hasattr(found, "deadline"):
        found.deadline = trio.current_time() + self.ttl
    return found


async def _no_orphans(_self: LeasedMemoryStore) -> list[Any]:
    await trio.lowlevel.checkpoint()
    return []


async def _no_endings(*_: object, **__: object) -> list[Any]:
    await trio.lowlevel.checkpoint()
    return []


def _cancel_nothing(self: Workspace, _session: SessionId, **_: object) -> Any:  # noqa: ANN401
    return _cancel(self, SessionId("another"))


def _ignored(*_: object) -> None:
    """Do nothing."""


BUGS: Final[Mapping[str, Bug]] = {
    "": Bug(),
    "writes are not fenced": Bug(fenced=False),
    "claims are not guarded": Bug(guarded=False),
    "leases count from the answer": Bug(
        patches=(
            (node.HeldLease, "renewed", _renewed_late),
            (MemoryNodes, "claim", _claimed_late),
        )
    ),
    "runs are not recovered": Bug(patches=((LeasedMemoryStore, "orphans", _no_orphans),)),
    "an owner never stops": Bug(patches=((node.HeldLease, "follow", _ignored),)),
    "cancels do nothing": Bug(patches=((Workspace, "cancel", _cancel_nothing),)),
    "endings are told only once": Bug(patches=((LeasedMemoryStore, "endings_after", _no_endings),)),
    "writes are answered before they are stored": Bug(answers_early=True),
}
