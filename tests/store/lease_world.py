"""Nodes, their clocks, and a store, as a state machine: everything that can happen to a lease, one step at a time.

The decisions are the product's: `Lease` decides what an owner may believe, `MemoryDatabase` what the store
does with a request (the conformance tests compare it with PostgreSQL). The world around them is as bad as it
may be: requests and answers are late, lost and out of order, nodes are paused, and clocks run at rates of
their own. `World.steps` names what may happen next, `World.do` does it, and `World.do` raises `Broken` if that
breaks a promise.
"""

from copy import copy

from attrs import define, field, frozen

from crush_trio.store.errors import LeaseLost
from crush_trio.store.lease import Lease
from crush_trio.store.memory.nodes import MemoryDatabase
from tests.store.stores import card

WORKSPACE = 1


class Broken(AssertionError):
    """A promise was broken."""


@frozen
class Letter:
    """A request on its way to the store, or its answer on its way back."""

    kind: str
    node: int
    sent: float
    """By the clock of the node."""
    epoch: int = 0
    """Of the lease it is about; of a claim's answer, the one that was claimed."""
    answer: bool | None = None


@define(eq=False)
class Owner:
    """A node: what it believes of its lease, and whether its workspace runs."""

    rate: float = 1.0
    ahead: float = 0.0
    """What its clock shows at the beginning."""
    lease: Lease | None = None
    runs: bool = False
    paused: bool = False
    woken: bool = False
    """Whether it goes on after a pause and its timers have not fired yet."""

    def now(self, time):
        """Return what its clock shows."""
        return self.ahead + time * self.rate

    def claimed(self, name, epoch, sent, now, ttl):
        """Take the answer to a claim."""
        deadline = sent + ttl
        self.lease = Lease(workspace=WORKSPACE, node=name, epoch=epoch, ttl=ttl, deadline=deadline)
        self.runs = now < self.lease.stop_at  # a scope whose deadline has passed ends at once

    def renewed(self, sent, _now):
        """Take the answer to a renewal."""
        self.lease.renewed(sent)

    def fire_timers(self, now):
        """Stop the workspace if it is time."""
        self.woken = False
        if self.lease is not None and now >= self.lease.stop_at:
            self.runs = False


@define(eq=False)
class World:
    """The store, the nodes, and the letters between them."""

    owners: list[Owner]
    rate: float = 1.0
    """How fast the clock of the store runs."""
    make_database: type = MemoryDatabase
    letters_most: int = 2
    ttl: float = 5.0
    pauses: bool = True
    time: float = field(default=0.0, init=False)
    letters: list[Letter] = field(factory=list, init=False)
    database: MemoryDatabase = field(init=False)

    def __attrs_post_init__(self):
        self.database = self.make_database(lambda: 100.0 + self.time * self.rate)
        self.database.register("here", "/srv/project")

    @property
    def row(self):
        return self.database.workspaces[WORKSPACE]

    # ── What may happen ─────────────────────────────────────────────────────────────────────────

    def steps(self):
        """Return everything that may happen next."""
        found = [("tick",)]
        for place in range(len(self.letters)):
            found.append(("lose", place))
            letter = self.letters[place]
            if letter.answer is None or not self.owners[letter.node].paused:
                found.append(("deliver", place))
        for number, owner in enumerate(self.owners):
            if owner.paused:
                found.append(("wake", number))
                continue
            if self.pauses:
                found.append(("pause", number))
            if len(self.letters) < self.letters_most:
                found += [("send", number, kind) for kind in self._sendable(number, owner)]
        return found

    def _sendable(self, number, owner):
        if owner.lease is None:
            claims = any((each.kind, each.node) == ("claim", number) for each in self.letters)
            return [] if claims else ["claim"]
        kinds = ["beat", "release"]
        if owner.lease.refusal(owner.now(self.time)) is None:
            kinds.append("write")
        return kinds

    def do(self, step):
        """Have one thing happen."""
        match step:
            case ("tick",):
                self.time += 1.0
                for owner in self.owners:
                    if not owner.paused:
                        owner.fire_timers(owner.now(self.time))
            case ("lose", place):
                del self.letters[place]
            case ("deliver", place):
                letter = self.letters.pop(place)
                getattr(self, f"_{letter.kind}" if letter.answer is None else "_answered")(letter)
            case ("pause", number):
                self.owners[number].paused = True
            case ("wake", number):
                self.owners[number].paused, self.owners[number].woken = False, True
            case ("send", number, kind):
                self._send(number, kind)

    def _send(self, number, kind):
        owner = self.owners[number]
        epoch = 0 if owner.lease is None else owner.lease.epoch
        self.letters.append(Letter(kind, number, owner.now(self.time), epoch))
        if kind == "release":
            owner.lease, owner.runs = None, False

    # ── In the store ────────────────────────────────────────────────────────────────────────────

    def _lease_of(self, letter):
        return Lease(
            workspace=WORKSPACE,
            node=f"n{letter.node}",
            epoch=letter.epoch,
            ttl=self.ttl,
            deadline=0,
        )

    def _claim(self, letter):
        before = self.row.epoch
        found = self.database.claim(
            WORKSPACE, card(f"n{letter.node}", boot=f"n{letter.node}"), self.ttl
        )
        if not isinstance(found, int):
            return
        if found != before + 1:
            raise Broken(f"epoch {found} was claimed after {before}")
        for number, other in enumerate(self.owners):
            if number != letter.node:
                self._check_stopped(number, other)
        self._answer(letter, epoch=found)

    def _check_stopped(self, number, owner):
        """Check a node when another one has claimed: its workspace has stopped, unless it could not know."""
        now = owner.now(self.time)
        if owner.runs and not owner.paused and not owner.woken:
            raise Broken(f"n{number} runs a workspace that another node has claimed")
        even = owner.rate == self.rate
        if even and owner.lease is not None and owner.lease.holds(now):
            raise Broken(f"n{number} may still write what another node has claimed")

    def _beat(self, letter):
        owner, epoch = self.row.node, self.row.epoch
        lease = self._lease_of(letter)
        self.database.nodes.clear()
        sender = card(f"n{letter.node}", boot=f"n{letter.node}")
        self.database.enter(sender, self.ttl)
        before = self.row.expires
        own = self.database.beat(sender, self.ttl, [lease], []).own
        if (lease.node, lease.epoch) != (owner, epoch) and self.row.expires != before:
            raise Broken(f"n{letter.node} renewed the lease of {owner}")
        self._answer(letter, renewed=bool(own))

    def _release(self, letter):
        owner, epoch, before = self.row.node, self.row.epoch, self.row.expires
        self.database.release(self._lease_of(letter), wanted=True)
        if (owner, epoch) != (f"n{letter.node}", letter.epoch):
            if self.row.expires != before:
                raise Broken(f"n{letter.node} released the lease of {owner}")
        elif self.database.standing(WORKSPACE).owner is not None:
            raise Broken("a lease was released, and cannot be claimed")

    def _write(self, letter):
        try:
            self.row.check(self._lease_of(letter))
        except LeaseLost:
            return
        if letter.epoch != self.row.epoch or self.row.node != f"n{letter.node}":
            raise Broken(f"n{letter.node} wrote under epoch {letter.epoch} of {self.row.epoch}")

    def _answer(self, letter, *, epoch=None, renewed=True):
        epoch = letter.epoch if epoch is None else epoch
        self.letters.append(Letter(letter.kind, letter.node, letter.sent, epoch, renewed))

    # ── At a node ───────────────────────────────────────────────────────────────────────────────

    def _answered(self, letter):
        owner = self.owners[letter.node]
        now = owner.now(self.time)
        if letter.kind == "claim" and owner.lease is None:
            owner.claimed(f"n{letter.node}", letter.epoch, letter.sent, now, self.ttl)
        elif letter.kind == "beat" and owner.lease and owner.lease.epoch == letter.epoch:
            if letter.answer:
                owner.renewed(letter.sent, now)
            else:
                owner.lease.lost()
                owner.runs = False

    # ── States ──────────────────────────────────────────────────────────────────────────────────

    def copy(self):
        """Return a world in the same state, in which other things can happen."""
        world = World(
            [copy(owner) for owner in self.owners],
            self.rate,
            self.make_database,
            self.letters_most,
            self.ttl,
            self.pauses,
        )
        world.time, world.letters = self.time, list(self.letters)
        for owner in world.owners:
            owner.lease = copy(owner.lease)
        world.database.workspaces[WORKSPACE] = copy(self.row)
        return world

    def state(self):
        """Return what distinguishes this world from others: times and epochs count from now."""
        row = self.row
        left = max(-1.0, min(self.ttl, row.expires - self.database.now()))
        owners = []
        for owner in self.owners:
            lease = owner.lease
            held = lease and (
                max(lease.deadline - owner.now(self.time), -1.0),
                max(lease.epoch - row.epoch, -3),
                lease.taken,
            )
            owners.append((held, owner.runs, owner.paused, owner.woken))
        letters = sorted(
            (
                each.kind,
                each.node,
                max(each.sent - self.owners[each.node].now(self.time), -self.ttl - 1),
                max(each.epoch - row.epoch, -3),
                each.answer is not None,
                bool(each.answer),
            )
            for each in self.letters
        )
        return (row.node, left, tuple(owners), tuple(letters))
