"""What every shared store promises its nodes: the table of nodes, leases, and writes under them."""

import pytest

from crush_trio.errors import SessionNotFound
from crush_trio.store.errors import LeaseLost
from crush_trio.store.lease import Lease
from crush_trio.store.shared import Standing
from crush_trio.wire.ids import workspace_id_of
from tests.store.stores import S, card, session

TTL = 30.0
PATH = "/srv/project"


async def claimed(node, path=PATH):
    """Claim the lease of a workspace, which has to be free."""
    found = await node.claim((await node.register(path, 100)).number)
    assert isinstance(found, Lease), found
    return found


# ── Nodes ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_that_entered_is_seen_by_all(cluster):
    async with cluster.node(card("a"), TTL) as a, cluster.node(card("b"), TTL) as b:
        assert await b.enter() is None
        assert await a.enter() is None
        rows = await a.nodes()
        assert [row.card for row in rows] == [card("a"), card("b")]
        assert all(row.alive and row.seconds <= TTL for row in rows)


async def test_an_id_is_taken_until_its_node_expires_or_leaves(cluster):
    later = card("a", boot="a-2")
    async with cluster.node(card("a"), TTL) as a, cluster.node(later, TTL) as again:
        await a.enter()
        assert await a.enter() is None  # the same start
        taken = await again.enter()
        assert taken.card == card("a")
        assert 0 < taken.seconds <= TTL
        cluster.pass_time(TTL + 1)
        assert await again.enter() is None
        assert await a.beat([], []) is None  # the row is another start's
        await a.leave()  # does nothing
        assert (await again.nodes())[0].alive
        await again.leave()
        assert await a.enter() is None


async def test_a_node_that_drains_is_seen_to_until_it_starts_again(cluster):
    again = card("a", boot="a-2")
    async with cluster.node(card("a"), TTL) as a, cluster.node(again, TTL) as later:
        await a.enter()
        await a.drain()
        [row] = await a.nodes()
        assert row.draining
        assert row.alive
        await a.leave()
        await later.enter()
        await a.drain()  # does nothing: the row is another start's
        assert not (await later.nodes())[0].draining


async def test_a_node_that_was_gone_for_a_day_is_forgotten(cluster):
    async with cluster.node(card("a"), TTL) as a, cluster.node(card("b"), TTL) as b:
        await a.enter()
        cluster.pass_time(86_400 + TTL + 1)
        await b.enter()
        assert [row.card.id for row in await b.nodes()] == ["b"]


# ── Workspaces and leases ───────────────────────────────────────────────────────────────────────


async def test_a_workspace_has_one_row_for_each_site(cluster):
    async with cluster.node(card("a"), TTL) as a, cluster.node(card("b"), TTL) as b:
        first = await a.register(PATH, 100)
        assert await b.register(PATH, 200) == first
        assert first == Standing(
            number=first.number,
            id=workspace_id_of("here", PATH),
            site="here",
            path=PATH,
            terms="",
            wanted=False,
            epoch=0,
            owner=None,
            seconds=0.0,
        )
        assert await a.find(first.id) == first
        assert await a.find(workspace_id_of("there", PATH)) is None
    async with cluster.node(card("c", site="there"), TTL) as c:
        assert (await c.register(PATH, 300)).number != first.number


async def test_a_lease_is_one_nodes_and_every_node_sees_whose(cluster):
    async with cluster.node(card("a"), TTL) as a, cluster.node(card("b"), TTL) as b:
        await a.enter()
        lease = await claimed(a)
        assert (lease.node, lease.epoch, lease.ttl) == ("a-1", 1, TTL)
        held = await b.claim(lease.workspace)
        assert (held.owner.boot, held.owner.node, held.owner.address) == (
            "a-1",
            card("a"),
            "tcp://a:1",
        )
        assert 0 < held.seconds <= TTL
        assert [each.number for each in await b.standings()] == [lease.workspace]
        cluster.pass_time(TTL + 1)
        assert await b.standings() == []
        assert (await b.claim(lease.workspace)).epoch == 2


async def test_its_holder_is_named_without_a_row_in_the_table_of_nodes(cluster):
    async with cluster.node(card("a"), TTL) as a:
        lease = await claimed(a)
        standing = await a.claim(lease.workspace)
        assert standing.owner.boot == "a-1"
        assert standing.owner.node is None
        assert "7" in standing.owner.description


async def test_a_beat_renews_the_leases_that_are_its_own(cluster):
    async with cluster.node(card("a"), TTL) as a, cluster.node(card("b"), TTL) as b:
        await a.enter()
        kept, gone = await claimed(a), await claimed(a, "/srv/other")
        cluster.pass_time(TTL - 1)
        beat = await a.beat([kept], [gone.workspace])
        assert beat.own == {kept.workspace}
        assert beat.watched[gone.workspace].epoch == 1
        cluster.pass_time(2)
        assert (await b.claim(gone.workspace)).epoch == 2
        assert isinstance(await b.claim(kept.workspace), Standing)
        assert (await a.beat([kept, gone], [])).own == {kept.workspace}


async def test_a_lease_that_expired_is_renewed_if_no_node_has_claimed_it(cluster):
    async with cluster.node(card("a"), TTL) as a, cluster.node(card("b"), TTL) as b:
        await a.enter()
        lease = await claimed(a)
        cluster.pass_time(TTL + 1)
        assert (await a.beat([lease], [])).own == {lease.workspace}
        assert isinstance(await b.claim(lease.workspace), Standing)


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_released_lease_is_free_at_once_and_its_epoch_stays(cluster, wanted):
    async with cluster.node(card("a"), TTL) as a, cluster.node(card("b"), TTL) as b:
        lease = await claimed(a)
        await a.note(lease, "terms")
        await a.release(lease, wanted=wanted)
        standing = await b.find(workspace_id_of("here", PATH))
        assert (standing.owner, standing.epoch) == (None, 1)
        assert (standing.terms, standing.wanted) == ("terms", wanted)
        later = await claimed(b)
        assert later.epoch == 2
        await a.release(lease, wanted=False)  # does nothing, like the next
        await a.note(lease, "other terms")
        standing = await b.find(workspace_id_of("here", PATH))
        assert (standing.owner.boot, standing.terms, standing.wanted) == ("b-1", "terms", wanted)


# ── Writing ─────────────────────────────────────────────────────────────────────────────────────


async def test_nothing_is_written_after_another_node_has_claimed(cluster):
    async with cluster.node(card("a"), TTL) as a, cluster.node(card("b"), TTL) as b:
        lease = await claimed(a)
        async with a.open(lease) as old:
            await old.commit(session("before"))
            cluster.pass_time(TTL + 1)
            await old.commit(session("late"))  # no node has claimed it
            async with b.open(await claimed(b)) as new:
                assert not lease.taken
                with pytest.raises(LeaseLost, match="taken the workspace over"):
                    await old.commit(session("after"))
                assert lease.taken
                with pytest.raises(LeaseLost):
                    await old.commit(session("after that"))
                assert {each.id for each in await new.sessions()} == {"before", "late"}
                assert {each.id for each in await old.sessions()} == {"before", "late"}


async def test_a_node_whose_lease_ran_out_by_its_own_clock_sends_nothing(cluster):
    async with cluster.node(card("a"), TTL) as a:
        lease = await claimed(a)
        async with a.open(lease) as store:
            lease.deadline = 0.0
            with pytest.raises(LeaseLost, match="could not be renewed in time"):
                await store.commit(session())
            store.post(session("posted"))
            assert "renewed in time" in store.degraded
            assert not lease.taken
            assert await store.sessions() == []


async def test_any_node_reads_without_a_lease_and_writes_nothing(cluster):
    async with cluster.node(card("a"), TTL) as a, cluster.node(card("b"), TTL) as b:
        lease = await claimed(a)
        async with a.open(lease) as store:
            reads = b.reads(lease.workspace)
            with pytest.raises(SessionNotFound):
                await reads.session(S)
            await store.commit(session())
            assert (await reads.session(S)).id == S
            with pytest.raises(LeaseLost):
                await reads.commit(session("another"))


async def test_the_next_owner_finds_the_start_before_it(cluster):
    async with cluster.node(card("a"), TTL) as a, cluster.node(card("b"), TTL) as b:
        lease = await claimed(a)
        async with a.open(lease) as old:
            await old.commit(session())
        await a.release(lease, wanted=True)
        async with b.open(await claimed(b)) as new:
            assert new.boot_id != old.boot_id
            assert (await new.session(S)).id == S
