"""aioresult: results of tasks. `pip install aioresult`."""

import aioresult
import trio

from crush_trio.testing.explore import target

PACKAGE = "aioresult"


async def work(number: int) -> int:
    """Return a number after that many checkpoints."""
    for _ in range(number):
        await trio.lowlevel.checkpoint()
    return number


async def any_of_two() -> int:
    """`wait_any` returns a task that is done."""
    async with trio.open_nursery() as nursery:
        results = [aioresult.ResultCapture.start_soon(nursery, work, n) for n in (2, 1)]
        done = await aioresult.wait_any(results)
        assert done.is_done()
        return int(done.result())


async def results_in_a_channel() -> int:
    """Every result is sent to the channel, which is closed in the end, also after a cancel."""
    send, receive = trio.open_memory_channel[aioresult.ResultBase[int]](0)
    got: list[int] = []
    cancelled = True
    async with trio.open_nursery() as nursery:

        async def forward() -> None:
            nonlocal cancelled
            with target():
                results = [aioresult.ResultCapture.start_soon(nursery, work, n) for n in (1, 2)]
                await aioresult.results_to_channel(results, send)
                cancelled = False
            send.close()

        nursery.start_soon(forward)
        got.extend([result.result() async for result in receive])
    assert cancelled or sorted(got) == [1, 2]
    return len(got)


async def done_however_it_ends() -> str:
    """ "eventually both true regardless of when and how the routine finished": start and end."""

    async def serve(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await trio.lowlevel.checkpoint()
        task_status.started()
        await trio.lowlevel.checkpoint()

    both: list[aioresult.ResultBase[object]] = []
    with target():
        async with trio.open_nursery() as nursery:
            both.extend(aioresult.ResultCapture.capture_start_and_done_results(nursery, serve))
    assert all(result.is_done() for result in both)
    return "done"


SCENARIOS = (any_of_two, results_in_a_channel, done_however_it_ends)
