"""`open_node`: entering the table of nodes while it has a row of a former start, or of another process."""

import pytest
import trio

from crush_trio.backend.cluster.node import open_node
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.store.memory.nodes import MemoryDatabase, MemoryNodes
from crush_trio.store.shared import NodeTaken
from tests.store.stores import card

TTL = 15.0


def shared(database, boot):
    return MemoryNodes(card("a", boot=boot), TTL, database, CountingIds(boot))


async def test_a_node_waits_until_its_former_start_has_expired():
    database = MemoryDatabase()
    await shared(database, "a-1").enter()
    began = trio.current_time()
    async with open_node(shared(database, "a-2"), clock=TrioClock()):
        assert TTL <= trio.current_time() - began < TTL + 1
        assert [row.card.boot for row in database.node_rows()] == ["a-2"]


async def test_a_renewal_that_arrives_after_the_end_of_its_node_is_no_sign_of_life():
    """It was on its way to the store when the process was killed, and its next start asks at once."""
    database = MemoryDatabase()
    killed = shared(database, "a-1")
    await killed.enter()
    began = trio.current_time()

    async def late_renewal():
        await trio.sleep(TTL / 2)
        await killed.beat([], [])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(late_renewal)
        async with open_node(shared(database, "a-2"), clock=TrioClock()):
            assert trio.current_time() - began >= TTL * 1.5


async def test_a_node_whose_id_another_one_uses_is_refused():
    database = MemoryDatabase()
    async with open_node(shared(database, "a-1"), clock=TrioClock()):
        began = trio.current_time()
        with pytest.raises(NodeTaken, match="host of a"):
            async with open_node(shared(database, "a-2"), clock=TrioClock()):
                pass
        assert trio.current_time() - began < TTL
