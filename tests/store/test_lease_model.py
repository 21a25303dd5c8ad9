"""Leases in every world of `lease_world`: all states of a small one, and many runs of larger ones."""

import random
from functools import partial

import pytest

from crush_trio.store.memory.nodes import MemoryDatabase, WorkspaceRow
from tests.store.lease_world import Broken, Owner, World

SEEDS = 500
STEPS = 300
SKEW = 0.1
"""By how much the clocks of nodes and store may run fast or slow: an owner still stops in time."""


def walk(world, seed, steps=STEPS):
    """Have *steps* things happen that the seed chooses; a broken promise tells how it came about."""
    chance, done = random.Random(seed), []
    for _ in range(steps):
        choices = world.steps()
        weights = [4 if step[0] == "deliver" else 2 if step[0] == "send" else 1 for step in choices]
        [step] = chance.choices(choices, weights)
        done.append(step)
        try:
            world.do(step)
        except Broken as broken:
            raise Broken(f"seed {seed}: {broken}, after {done[-25:]}") from broken
    return world


def even(make_owner=Owner, make_database=MemoryDatabase):
    """Return a world of three nodes whose clocks differ, and run equally fast."""
    owners = [make_owner(ahead=1000.0 * number) for number in range(3)]
    return World(owners, make_database=make_database, letters_most=4)


def skewed(seed, make_owner=Owner, make_database=MemoryDatabase):
    """Return a world whose clocks run fast and slow."""
    chance = random.Random(seed)
    rates = [chance.uniform(1 - SKEW, 1 + SKEW) for _ in range(4)]
    owners = [make_owner(rate=rate, ahead=chance.uniform(0, 1e6)) for rate in rates[1:]]
    return World(owners, rate=rates[0], make_database=make_database, letters_most=4)


def explore(world, most=1_000_000):
    """Go through every state that can be reached; return how many there are."""
    seen, open_ = {world.state()}, [world]
    while open_:
        here = open_.pop()
        for step in here.steps():
            there = here.copy()
            there.do(step)
            if (state := there.state()) not in seen:
                seen.add(state)
                assert len(seen) < most
                open_.append(there)
    return len(seen)


def test_leases_hold_with_clocks_that_run_equally_fast():
    assert all(walk(even(), seed).row.epoch >= 2 for seed in range(SEEDS))


def test_owners_stop_in_time_with_clocks_that_run_fast_and_slow():
    for seed in range(SEEDS):
        walk(skewed(seed), seed)


WORLDS = [  # letters under way at most, whether nodes are paused, how many states there are
    (1, False, 2_874),
    pytest.param(1, True, 75_190, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("letters", "pauses", "states"), WORLDS)
def test_every_state_of_two_nodes_is_a_good_one(letters, pauses, states):
    owners = [Owner(), Owner(ahead=1000.0)]
    world = World(owners, letters_most=letters, ttl=2.0, pauses=pauses)
    assert explore(world) == states


# ── Bugs that these worlds have to find ─────────────────────────────────────────────────────────


class ClaimCountsFromTheAnswer(Owner):
    def claimed(self, name, epoch, _sent, now, ttl):
        super().claimed(name, epoch, now, now, ttl)


class RenewalCountsFromTheAnswer(Owner):
    def renewed(self, _sent, now):
        super().renewed(now, now)


class NeverStops(Owner):
    def fire_timers(self, now):
        self.woken = False


class StopsAtTheVeryEnd(Owner):
    def fire_timers(self, now):
        self.woken = False
        if self.lease is not None and now >= self.lease.deadline:
            self.runs = False


class ClaimIsNotGuarded(MemoryDatabase):
    def claim(self, number, card, ttl):
        self.workspaces[number].expires = 0.0
        return super().claim(number, card, ttl)


class ClaimKeepsTheEpoch(MemoryDatabase):
    def claim(self, number, card, ttl):
        found = super().claim(number, card, ttl)
        if isinstance(found, int):
            self.workspaces[number].epoch = found = max(1, found - 1)
        return found


class RowWithoutEpoch(WorkspaceRow):
    def belongs_to(self, lease):
        return self.node == lease.node


class RowWithoutFence(WorkspaceRow):
    def check(self, lease):
        pass


class AnyLeaseIsRenewed(RowWithoutFence):
    def belongs_to(self, lease):
        return True


class ReleaseDoesNothing(MemoryDatabase):
    def release(self, lease, *, wanted):
        pass


def rows_of(kind):
    """Return a database whose rows are of this kind."""

    class Database(MemoryDatabase):
        def register(self, site, path):
            self.workspaces[1] = kind(1, site, path)

    return Database


BUGS = {
    "a claim counts from its answer": partial(even, ClaimCountsFromTheAnswer),
    "a renewal counts from its answer": partial(even, RenewalCountsFromTheAnswer),
    "the owner never stops": partial(even, NeverStops),
    "a claim is not guarded": partial(even, Owner, ClaimIsNotGuarded),
    "a claim keeps the epoch": partial(even, Owner, ClaimKeepsTheEpoch),
    "the epoch is not checked": partial(even, Owner, rows_of(RowWithoutEpoch)),
    "writes are not fenced": partial(even, Owner, rows_of(RowWithoutFence)),
    "any lease is renewed": partial(even, Owner, rows_of(AnyLeaseIsRenewed)),
    "a release does nothing": partial(even, Owner, ReleaseDoesNothing),
}


@pytest.mark.parametrize("make", BUGS.values(), ids=BUGS.keys())
def test_a_bug_is_found(make):
    assert finds(lambda _seed: make())


def test_without_time_to_stop_a_slow_clock_is_found():
    assert finds(lambda seed: skewed(seed, StopsAtTheVeryEnd))


def finds(make):
    """Return after how many seeds a promise is broken; 0 if never."""
    for seed in range(SEEDS):
        try:
            walk(make(seed), seed)
        except Broken:
            return seed + 1
    return 0
