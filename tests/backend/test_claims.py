"""The table E.3 of the contract, cell by cell, and what else a set of claims promises."""

from math import inf

import pytest

from crush_trio.backend.claims import Claims, Graces, TearDown, WakeAt
from crush_trio.errors import ClientNotAttached
from crush_trio.wire.ids import NO_SESSION, SessionId
from tests.backend.hosts import A, B, C

S, T = SessionId("s"), SessionId("t")
CREATE, DETACH = 30.0, 10.0


def no_claim():
    return Claims(), []


def held():
    claims = Claims()
    claims.create(A, 0.0)
    return claims, []


def streaming(streams=1):
    claims = Claims()
    claims.create(A, 0.0)
    return claims, [claims.attach(A) for _ in range(streams)]


def released():
    claims, streams = streaming()
    claims.release(A)
    return claims, streams


def state(claims, client_id=A):
    """Return a claim as (streams, deadline, released), or None."""
    claim = claims.claim(client_id)
    return None if claim is None else (claim.streams, claim.held_until, claim.released)


# ── The table ───────────────────────────────────────────────────────────────────────────────────
# Every change happens at time 5. `after` is (streams, deadline, released), None for no claim.

CELLS = {
    "create, absent": (no_claim, lambda c, _: c.create(A, 5.0), (0, 35.0, False)),
    "create, held": (held, lambda c, _: c.create(A, 5.0), (0, 35.0, False)),
    "create, streaming": (streaming, lambda c, _: c.create(A, 5.0), (1, None, False)),
    "create, released": (released, lambda c, _: c.create(A, 5.0), (1, None, False)),
    "stream opens, absent": (no_claim, lambda c, _: c.attach(A), (1, None, False)),
    "stream opens, held": (held, lambda c, _: c.attach(A), (1, None, False)),
    "stream opens, streaming": (streaming, lambda c, _: c.attach(A), (2, None, False)),
    "stream opens, released": (released, lambda c, _: c.attach(A), (2, None, True)),
    "not the last stream closes": (
        lambda: streaming(2),
        lambda c, streams: c.detach(streams[0], 5.0),
        (1, None, False),
    ),
    "the last stream closes": (
        streaming,
        lambda c, streams: c.detach(streams[0], 5.0),
        (0, 15.0, False),
    ),
    "the last stream closes, released": (
        released,
        lambda c, streams: c.detach(streams[0], 5.0),
        None,
    ),
    "release, absent": (no_claim, lambda c, _: c.release(A), None),
    "release, held": (held, lambda c, _: c.release(A), None),
    "release, streaming": (streaming, lambda c, _: c.release(A), (1, None, True)),
    "release, released": (released, lambda c, _: c.release(A), (1, None, True)),
    "time is up, held": (held, lambda c, _: c.expire(30.0), None),
    "time is not up, held": (held, lambda c, _: c.expire(29.9), (0, 30.0, False)),
    "time is up, streaming": (streaming, lambda c, _: c.expire(1e9), (1, None, False)),
    "retire, absent": (no_claim, lambda c, _: c.retire(A), None),
    "retire, held": (held, lambda c, _: c.retire(A), None),
    "retire, streaming": (lambda: streaming(2), lambda c, _: c.retire(A), None),
}


@pytest.mark.item("E10", "E11")
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_table(cell):
    before, change, after = CELLS[cell]
    claims, streams = before()
    change(claims, streams)
    assert state(claims) == after
    deadline = inf if after is None or after[1] is None else after[1]
    assert claims.next_step == (TearDown() if after is None else WakeAt(deadline))


@pytest.mark.parametrize("grace", [0.0, -1.0])
def test_without_a_grace_a_claim_goes_with_its_last_stream(grace):
    claims = Claims(Graces(detach=grace))
    first, second = claims.attach(A), claims.attach(A)
    claims.detach(first, 5.0)
    assert state(claims) == (1, None, False)
    claims.detach(second, 5.0)
    assert claims.next_step == TearDown()


# ── Time ────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_create_takes_the_power_from_a_deadline_that_has_already_passed():
    claims, _ = held()
    claims.create(A, 30.0)
    assert claims.expire(30.0) == ()
    assert claims.expire(60.0) == (A,)


def test_a_stream_that_comes_back_in_time_keeps_the_claim():
    claims, [stream] = streaming()
    claims.detach(stream, 5.0)
    again = claims.attach(A)
    assert claims.expire(15.0) == ()
    claims.detach(again, 20.0)
    assert claims.next_step == WakeAt(30.0)


def test_only_the_claims_whose_window_is_over_expire():
    claims = Claims()
    claims.create(A, 0.0)
    claims.create(B, 1.0)
    claims.attach(C)
    assert claims.next_step == WakeAt(30.0)
    assert claims.expire(30.5) == (A,)
    assert claims.next_step == WakeAt(31.0)
    assert claims.expire(100.0) == (B,)
    assert claims.next_step == WakeAt(inf)
    assert claims.clients == (C,)


# ── Streams ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.item("E13")
def test_a_stream_is_counted_out_once():
    claims, [first, _] = streaming(2)
    claims.detach(first, 5.0)
    claims.detach(first, 6.0)
    assert state(claims) == (1, None, False)


def test_a_stream_that_outlived_its_claim_does_not_touch_the_next_one():
    claims, [old] = streaming()
    claims.retire(A)
    claims.attach(A)
    claims.detach(old, 5.0)
    assert state(claims) == (1, None, False)


def test_a_stream_that_outlived_its_claim_does_not_bring_it_back():
    claims, [old] = streaming()
    claims.retire(A)
    claims.detach(old, 5.0)
    assert claims.next_step == TearDown()


@pytest.mark.item("E14")
def test_clients_do_not_disturb_each_others_claims():
    claims, [stream] = streaming()
    claims.attach(B)
    claims.select(B, S)
    claims.release(A)
    claims.detach(stream, 5.0)
    assert claims.clients == (B,)
    assert claims.attached(S) == 1


# ── What clients look at ────────────────────────────────────────────────────────────────────────


@pytest.mark.item("E15")
@pytest.mark.parametrize("before", [no_claim, held])
def test_only_a_client_with_a_stream_can_select_a_session(before):
    claims, _ = before()
    with pytest.raises(ClientNotAttached):
        claims.select(A, S)


@pytest.mark.item("E15")
def test_a_selection_outlives_a_lost_stream_and_a_new_create_but_not_the_claim():
    claims, [stream] = streaming()
    claims.select(A, S)
    claims.detach(stream, 5.0)
    claims.create(A, 6.0)
    assert claims.claim(A).current_session == S
    claims.expire(36.0)
    claims.attach(A)
    assert claims.claim(A).current_session == NO_SESSION


@pytest.mark.item("E16")
def test_a_client_counts_for_the_session_it_looks_at_while_it_has_a_stream():
    claims, [stream] = streaming()
    claims.attach(B)
    claims.attach(B)
    claims.attach(C)
    claims.select(A, S)
    claims.select(B, S)
    assert (claims.attached(S), claims.attached(T)) == (2, 0)
    claims.select(B, T)
    assert (claims.attached(S), claims.attached(T)) == (1, 1)
    claims.detach(stream, 5.0)
    assert (claims.attached(S), claims.attached(T)) == (0, 1)
    claims.select(B, NO_SESSION)
    assert (claims.attached(T), claims.attached(NO_SESSION)) == (0, 0)
