"""Claims against a model that does it the other way: with timers that fire.

The model arms a timer object for every window, never disarms one, lets each fire when its time has
come or later, and asks on firing whether it is still the one its claim waits for. The claims have
deadlines only. After every step the two must agree.
"""

from math import inf

from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from crush_trio.backend.claims import Claims, Graces, TearDown, WakeAt
from crush_trio.errors import ClientNotAttached
from crush_trio.wire.ids import NO_SESSION, SessionId
from tests.backend.hosts import A, B

CREATE, DETACH = 30.0, 10.0
CLIENTS = st.sampled_from([A, B])
SESSIONS = st.sampled_from([NO_SESSION, SessionId("s"), SessionId("t")])


@define(eq=False)
class Timer:
    owner: object
    at: float


@define(eq=False)
class ModelClaim:
    streams: list = field(factory=list)
    timer: Timer | None = None
    released: bool = False
    session: SessionId = NO_SESSION


class ClaimsMachine(RuleBasedStateMachine):
    detach_grace = DETACH

    def __init__(self):
        super().__init__()
        self.claims = Claims(Graces(create=CREATE, detach=self.detach_grace))
        self.now = 0.0
        self.model = {}
        self.timers = []
        self.streams = []
        self.closed = []

    def arm(self, client_id, seconds):
        claim = self.model[client_id]
        claim.timer = Timer((client_id, claim), self.now + seconds)
        self.timers.append(claim.timer)

    def fire(self, timer):
        client_id, claim = timer.owner
        current = self.model.get(client_id) is claim and claim.timer is timer
        if current and not claim.streams:
            del self.model[client_id]

    # ── What can happen ─────────────────────────────────────────────────────────────────────────

    @rule(client_id=CLIENTS)
    def create(self, client_id):
        self.claims.create(client_id, self.now)
        claim = self.model.setdefault(client_id, ModelClaim())
        claim.released = False
        if not claim.streams:
            self.arm(client_id, CREATE)

    @rule(client_id=CLIENTS)
    def attach(self, client_id):
        stream = self.claims.attach(client_id)
        claim = self.model.setdefault(client_id, ModelClaim())
        claim.streams.append(stream)
        claim.timer = None
        self.streams.append((client_id, stream))

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def detach(self, data):
        client_id, stream = pair = data.draw(st.sampled_from(self.streams))
        self.streams.remove(pair)
        self.closed.append(stream)
        self.claims.detach(stream, self.now)
        claim = self.model.get(client_id)
        if claim is None or stream not in claim.streams:
            return
        claim.streams.remove(stream)
        if claim.streams:
            return
        if claim.released or self.detach_grace == 0:
            del self.model[client_id]
        else:
            self.arm(client_id, self.detach_grace)

    @precondition(lambda self: self.closed)
    @rule(data=st.data())
    def detach_again(self, data):
        self.claims.detach(data.draw(st.sampled_from(self.closed)), self.now)

    @rule(client_id=CLIENTS)
    def release(self, client_id):
        self.claims.release(client_id)
        claim = self.model.get(client_id)
        if claim is not None and claim.streams:
            claim.released = True
        else:
            self.model.pop(client_id, None)

    @rule(client_id=CLIENTS)
    def retire(self, client_id):
        self.claims.retire(client_id)
        self.model.pop(client_id, None)

    @rule(client_id=CLIENTS, session_id=SESSIONS)
    def select(self, client_id, session_id):
        claim = self.model.get(client_id)
        try:
            self.claims.select(client_id, session_id)
        except ClientNotAttached:
            assert claim is None or not claim.streams
        else:
            claim.session = session_id

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 10.0, 29.0, 30.0]))
    def wait(self, seconds):
        """Let time pass; whoever watches the claims looks at them at the end only."""
        self.now += seconds

    @rule()
    def look_at_the_clock(self):
        due = [timer for timer in self.timers if timer.at <= self.now]
        self.timers = [timer for timer in self.timers if timer.at > self.now]
        before = set(self.model)
        for timer in due:
            self.fire(timer)
        assert set(self.claims.expire(self.now)) == before - set(self.model)

    # ── What always holds ───────────────────────────────────────────────────────────────────────

    @invariant()
    def the_same_clients_hold_the_workspace(self):
        assert set(self.claims.clients) == set(self.model)
        assert (self.claims.next_step == TearDown()) == (not self.model)

    @invariant()
    def every_claim_is_as_the_model_says(self):
        for client_id, expected in self.model.items():
            claim = self.claims.claim(client_id)
            assert claim.streams == len(expected.streams)
            assert claim.released == expected.released
            assert claim.current_session == expected.session
            assert claim.held_until == (None if expected.timer is None else expected.timer.at)

    @invariant()
    def a_claim_has_a_deadline_exactly_while_it_has_no_stream(self):
        for client_id in self.claims.clients:
            claim = self.claims.claim(client_id)
            assert (claim.held_until is None) == (claim.streams > 0)
            assert claim.streams > 0 or not claim.released

    @invariant()
    def one_is_woken_for_the_first_window_that_ends(self):
        if self.model:
            deadlines = [c.timer.at for c in self.model.values() if c.timer is not None]
            assert self.claims.next_step == WakeAt(min(deadlines, default=inf))

    @invariant()
    def presence_counts_streaming_clients_by_what_they_look_at(self):
        for session_id in ("s", "t"):
            looking = [c for c in self.model.values() if c.streams and c.session == session_id]
            assert self.claims.attached(SessionId(session_id)) == len(looking)


class WithoutGraceMachine(ClaimsMachine):
    detach_grace = 0.0


BOUNDED = settings(derandomize=True, max_examples=100, stateful_step_count=40, deadline=None)

TestClaimsModel = ClaimsMachine.TestCase
TestClaimsModel.settings = BOUNDED
TestClaimsModelWithoutGrace = WithoutGraceMachine.TestCase
TestClaimsModelWithoutGrace.settings = BOUNDED
