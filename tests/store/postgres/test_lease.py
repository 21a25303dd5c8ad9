"""The lease: its decisions about time, and its row."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.store.errors import LeaseLost
from crush_trio.store.lease import Lease
from crush_trio.store.postgres.connection import WRITER_PREFIX, begin_write
from crush_trio.store.postgres.lease import HeldBy, Holder, claim, release, renew, renew_all
from crush_trio.store.postgres.migrations import known_migrations, migrate
from crush_trio.store.postgres.place import Place
from crush_trio.store.postgres.workspaces import WorkspaceKey, register
from tests.store.postgres.server import connect, shared_database_url

HOLDER = Holder(host="here", pid=7, version="1.2.3", started=86_400)
TTL = 15.0


def lease(**fields):
    return Lease(**{"workspace": 1, "node": "a", "epoch": 1, "deadline": 100.0, **fields})


# ── Times ───────────────────────────────────────────────────────────────────────────────────────


def test_a_lease_holds_until_its_deadline():
    held = lease()
    assert held.holds(99.9)
    assert held.refusal(99.9) is None
    assert not held.holds(100.0)
    assert isinstance(held.refusal(100.0), LeaseLost)
    assert "could not be renewed in time" in str(held.refusal(100.0))


def test_a_renewal_counts_from_before_it_was_sent():
    held = lease()
    held.renewed(sent=95.0)
    assert held.deadline == 95.0 + TTL
    held.renewed(sent=90.0)  # the answers of two renewals came in another order
    assert held.deadline == 95.0 + TTL


def test_a_lease_that_was_late_holds_again_once_it_is_renewed():
    held = lease()
    assert not held.holds(120.0)
    held.renewed(sent=120.0)
    assert held.holds(120.1)


def test_a_lease_that_was_taken_never_holds_again():
    held = lease()
    held.lost()
    held.renewed(sent=50.0)
    assert held.taken
    assert not held.holds(51.0)
    assert "taken the workspace over" in str(held.refusal(51.0))


def test_a_lease_is_renewed_three_times_in_its_life():
    held = lease(deadline=15.0)
    assert held.pause(0.0) == 5.0
    assert held.pause(4.0) == 1.0
    assert held.pause(6.0) == 1.0  # the renewal failed: the next one is sooner
    assert held.pause(1000.0) == 1.0


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20), st.booleans()), max_size=20))
def test_its_owner_never_believes_longer_in_a_lease_than_the_database(steps):
    """Whatever the network does, the deadline comes before the end that the database knows."""
    now, expires, held = 0.0, TTL, lease(deadline=TTL)
    for before, after, answered in steps:
        sent = now
        now += before
        expires = now + TTL  # the row is changed when the statement arrives
        now += after
        if answered:
            held.renewed(sent)
        assert held.deadline <= expires


# ── The row ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def connection():
    url = shared_database_url()
    with connect(url) as connection:
        migrate(connection, Place.of(url), known_migrations())
        yield connection


@pytest.fixture
def workspace(connection, tmp_path):
    return register(connection, WorkspaceKey(site="test", path=str(tmp_path)), 100)


def expire(connection, workspace):
    connection.execute(
        "UPDATE leases SET expires_at = clock_timestamp() WHERE workspace = %s", (workspace,)
    )


@pytest.mark.slow
def test_a_workspace_has_the_same_number_ever_after(connection, workspace, tmp_path):
    key = WorkspaceKey(site="test", path=str(tmp_path))
    assert register(connection, key, 200) == workspace
    elsewhere = WorkspaceKey(site="elsewhere", path=str(tmp_path))
    assert register(connection, elsewhere, 200) != workspace


@pytest.mark.slow
def test_nodes_that_register_a_workspace_at_the_same_moment_get_one_number(connection, tmp_path):
    """Both of its unique constraints may find the row of another transaction."""
    nodes, rounds = 8, 200
    together = threading.Barrier(nodes)

    def node(_):
        with closing(connect(shared_database_url())) as own:
            found = []
            for number in range(rounds):
                key = WorkspaceKey(site="test", path=str(tmp_path / str(number)))
                together.wait(30)
                found.append(register(own, key, 100))
            return found

    with ThreadPoolExecutor(nodes) as pool:
        numbers = list(pool.map(node, range(nodes)))
    assert len(set(map(tuple, numbers))) == 1
    assert len(set(numbers[0])) == rounds


@pytest.mark.slow
def test_a_lease_is_claimed_once_and_its_holder_is_named(connection, workspace):
    ours = claim(connection, workspace, "a", HOLDER, sent=1000.0)
    assert (ours.epoch, ours.deadline) == (1, 1000.0 + TTL)
    theirs = claim(connection, workspace, "b", HOLDER, sent=0.0)
    assert isinstance(theirs, HeldBy)
    assert 14 < theirs.seconds <= TTL
    assert theirs.describe() == (
        "process 7 on here, version 1.2.3, started 1970-01-02 00:00:00 UTC"
    )


@pytest.mark.slow
def test_a_lease_that_has_expired_goes_to_the_next_with_another_epoch(connection, workspace):
    ours = claim(connection, workspace, "a", HOLDER, sent=0.0)
    expire(connection, workspace)
    theirs = claim(connection, workspace, "b", HOLDER, sent=0.0)
    assert theirs.epoch == 2
    assert not renew(connection, ours)
    release(connection, ours)  # does nothing
    assert renew(connection, theirs)


@pytest.mark.slow
def test_a_lease_that_nobody_claimed_can_be_renewed_after_its_end(connection, workspace):
    ours = claim(connection, workspace, "a", HOLDER, sent=0.0)
    expire(connection, workspace)
    assert renew(connection, ours)
    assert isinstance(claim(connection, workspace, "b", HOLDER, sent=0.0), HeldBy)


@pytest.mark.slow
def test_a_released_lease_is_free_at_once_and_keeps_its_epoch(connection, workspace):
    release(connection, claim(connection, workspace, "a", HOLDER, sent=0.0))
    assert claim(connection, workspace, "b", HOLDER, sent=0.0).epoch == 2


@pytest.mark.slow
def test_a_renewal_that_comes_after_the_release_does_nothing(connection, workspace):
    lease = claim(connection, workspace, "a", HOLDER, sent=0.0)
    release(connection, lease)
    assert not renew(connection, lease)
    assert renew_all(connection, "a", [lease], lease.ttl) == set()
    assert claim(connection, workspace, "b", HOLDER, sent=0.0).epoch == 2


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_claim_ends_a_write_that_outlives_the_lease_and_never_waits_for_it(
    connection, workspace, pipelined
):
    """Its client is suspended, or its machine is gone. In a pipeline no time limit of the database runs."""
    claim(connection, workspace, "a", HOLDER, sent=0.0, ttl=0.5)
    with closing(connect(shared_database_url())) as other:
        other.execute(begin_write("a"))
        if pipelined:
            other.pgconn.enter_pipeline_mode()
            query = "SELECT 1 FROM leases WHERE workspace = $1 FOR SHARE"
            other.pgconn.send_query_params(query.encode(), [str(workspace).encode()])
            other.pgconn.send_flush_request()
            other.pgconn.flush()
            while b"FOR SHARE" not in last_statement(connection, "a"):
                pass
        else:
            query = "SELECT 1 FROM leases WHERE workspace = %s FOR SHARE"
            other.execute(query, (workspace,))
        connection.execute("SET lock_timeout = 1")  # ms
        began, held = time.monotonic(), 0
        while isinstance(found := claim(connection, workspace, "b", HOLDER, sent=0.0), HeldBy):
            held += found.seconds == 0
            assert time.monotonic() < began + 20
        assert held, "it had expired and was locked"
        assert found.epoch == 2
        while last_statement(connection, "a"):  # the connection of the write is gone
            assert time.monotonic() < began + 20


def last_statement(connection, writer):
    query = "SELECT query FROM pg_stat_activity WHERE application_name = %s"
    row = connection.execute(query, (f"{WRITER_PREFIX}{writer}",)).fetchone()
    return row[0].encode() if row else b""


@pytest.mark.slow
def test_writes_under_way_do_not_hold_up_who_opens_the_workspace(connection, workspace, tmp_path):
    with connect(shared_database_url()) as other, other.transaction():
        other.execute(
            "INSERT INTO boots (workspace, n, id, started_at, holder) VALUES (%s, 1, 'b', 1, '')",
            (workspace,),
        )
        connection.execute("SET lock_timeout = 1")  # ms
        assert register(connection, WorkspaceKey(site="test", path=str(tmp_path)), 200) == workspace


@pytest.mark.parametrize("row", ["", "{", "[]", json.dumps({"pid": 1})])
def test_a_holder_that_cannot_be_read_is_still_a_holder(row):
    assert HeldBy(holder=row, seconds=1.0, expires="").describe() == "an unknown process"
