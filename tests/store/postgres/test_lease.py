"""The lease: its decisions about time, and its row."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crush_trio.store.errors import LeaseLost
from crush_trio.store.lease import Lease
from crush_trio.store.postgres.lease import HeldBy, Holder, claim, release, renew
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


@pytest.mark.parametrize("row", ["", "{", "[]", json.dumps({"pid": 1})])
def test_a_holder_that_cannot_be_read_is_still_a_holder(row):
    assert HeldBy(holder=row, seconds=1.0, expires="").describe() == "an unknown process"
