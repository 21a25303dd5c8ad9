"""Waiting for the runs of a workspace that closes."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from crush_trio.nursery import open_hidden_nursery
from crush_trio.runtime.journal import Journal
from crush_trio.runtime.limits import Limits
from crush_trio.runtime.receipt import StopReceipt
from crush_trio.wire.native import RunState

GIVE_UP: Final = 1.0
"""Seconds for runs to end once it is certain that their endings will not be stored."""


async def wait_for_runs(
    receipt: StopReceipt, overdue: trio.Event, limits: Limits, journal: Journal
) -> None:
    """Wait for the runs of *receipt*, for a while with the store, and then without it.

    The while is over after `Limits.join`, or when *overdue* is set; afterwards it is.
    """
    async with open_hidden_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + limits.join
        nursery.start_soon(_cancel_after, receipt.settled, nursery.cancel_scope)
        await overdue.wait()
        nursery.cancel_scope.cancel()
    overdue.set()
    if not receipt.complete and not await _can_store(receipt, journal):
        journal.give_up()
        with trio.move_on_after(limits.retry + GIVE_UP):
            await receipt.settled()


async def _can_store(receipt: StopReceipt, journal: Journal) -> bool:
    """Whether it is not the journal's fault that there are runs which have not ended."""
    if any(hit.run.state is RunState.ENDING for hit in receipt.hits):
        return False  # noqa: ASYNC910  # stopping waits before and after this
    return await journal.answers(within=GIVE_UP)


async def _cancel_after(wait: Callable[[], Awaitable[object]], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()
