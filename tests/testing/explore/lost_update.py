"""A scenario with a race, whose outcomes are known for every number of tasks."""

from collections.abc import Awaitable, Callable

import trio


def lost_update(tasks: int, times: int) -> Callable[[], Awaitable[int]]:
    """Several tasks add to one number, with a checkpoint between reading and writing it."""

    async def scenario() -> int:
        value = 0

        async def add() -> None:
            nonlocal value
            for _ in range(times):
                seen = value
                await trio.lowlevel.checkpoint()
                value = seen + 1

        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(add)
        return value

    return scenario
