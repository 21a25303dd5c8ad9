"""trio-util: values that can be waited for. `pip install trio-util`."""

import trio
import trio.testing
import trio_util

PACKAGE = "trio-util"


async def triggering_value() -> int:
    """ "the specific value that triggered the wakeup is always returned"."""
    value = trio_util.AsyncValue(0)
    got: list[int] = []

    async def wait() -> None:
        got.append(await value.wait_value(lambda v: v >= 1))

    async def change() -> None:
        for number in (1, 2):
            value.value = number
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(change)
    assert got == [1], f"woken by 1, returned {got[0]}"
    return got[0]


async def eventual_values() -> int:
    """ "eventual consistency is ensured": the last value is seen."""
    value = trio_util.AsyncValue(0)
    seen: list[int] = []

    async def follow() -> None:
        async for number in value.eventual_values():
            seen.append(number)
            if number == 3:
                return
            await trio.lowlevel.checkpoint()

    async def change() -> None:
        for number in (1, 2, 3):
            value.value = number
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        nursery.start_soon(change)
    return seen[-1]


async def repeated_event() -> str:
    """ "you're ensured to eventually receive an event to process the most recent state"."""
    items: list[int] = []
    event = trio_util.RepeatedEvent()
    seen: list[int] = []

    async def follow() -> None:
        async for _ in event.events(repeat_last=True):
            await trio.lowlevel.checkpoint()
            seen.append(len(items))
            if len(items) == 2:
                return

    async def change() -> None:
        for number in range(2):
            items.append(number)
            event.set()
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        nursery.start_soon(change)
    return "seen"


SCENARIOS = (triggering_value, eventual_values, repeated_event)
