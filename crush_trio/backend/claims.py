"""Claims: which clients hold a workspace. Also the ids of clients, and the idle time of a backend.

Claims are plain data, without tasks, timers or `await`: each method is one indivisible step, so a race
between an attach and a teardown has a winner and no third outcome (E10).

A claim lasts as long as its open streams or, while it has none, until a deadline. A grace window is only
that deadline: assigning another one cancels the old window, and the task that is woken at the old time
looks at the current value. There is no timer that could fire for a claim that has changed since (T11).

Invariant between any two steps: a claim has a deadline exactly while it has no stream.

A server without workspaces waits a while for the next create and then decides to end. From that step on
every create is refused, so no client gets a workspace that is about to close (E20). The time of the
decision is a deadline too; the one task that waits for it lives as long as the backend.

A client names itself with a UUID. However it is spelt, one UUID is one client, so everything behind
`client_id_of` sees the canonical form only.
"""

import re
from collections import Counter
from math import inf
from typing import Final, TypeAlias

import trio
from attrs import define, field, frozen

from crush_trio.clock import Clock
from crush_trio.errors import ClientIdInvalid, ClientNotAttached
from crush_trio.wire.ids import NO_SESSION, ClientId, SessionId


@define(eq=False)
class Linger:
    """Waits out idle time. The owner says when it is idle and when it is not."""

    seconds: float
    _clock: Clock = field(repr=False)
    decided: trio.Event = field(factory=trio.Event, init=False, repr=False)
    """Set when the decision to end has been made."""
    _until: float = field(default=inf, init=False)
    _alarm: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)

    @property
    def over(self) -> bool:
        """Whether the decision has been made."""
        return self.decided.is_set()

    def begin(self) -> None:
        """Start to wait, from now; without anything to wait for, decide at once."""
        if self.seconds <= 0:
            self.decide()
        else:
            self._move(self._clock.monotonic() + self.seconds)

    def interrupt(self) -> None:
        """Stop waiting: there is work again."""
        self._move(inf)

    def decide(self) -> None:
        """End now. Deciding again does nothing."""
        self.decided.set()

    async def watch(self) -> None:
        """Decide when the idle time is over; returns once it is decided, here or elsewhere."""
        await trio.lowlevel.checkpoint()
        while not self.over:
            with trio.CancelScope(deadline=self._until) as self._alarm:
                await self.decided.wait()
            # Woken for a deadline that was moved meanwhile: then the value says so.
            if self._until <= self._clock.monotonic():
                self.decide()

    def _move(self, until: float) -> None:
        self._until = until
        self._alarm.deadline = until


_CANONICAL: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UUID: Final = re.compile(
    rf"(?:urn:uuid:)?({_CANONICAL})|\{{({_CANONICAL})\}}|([0-9a-f]{{32}})",
    re.IGNORECASE | re.ASCII,
)


def client_id_of(text: str) -> ClientId:
    """Return the client that *text* names, or raise `ClientIdInvalid`.

    Accepts what the wire accepts: the canonical form, 32 hexadecimal digits, braces around the
    canonical form, and `urn:uuid:` before it.
    """
    match = _UUID.fullmatch(text)
    if match is None:
        raise ClientIdInvalid
    digits = next(group for group in match.groups() if group).replace("-", "").lower()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return ClientId("-".join(parts))


def version_notice(client: str, server: str) -> str:
    """Say that the two programs are of different versions; empty if not, or if one is unknown.

    For the answer to a create: as an event it would come before its reader has a stream (L41).
    """
    if not client or not server or client == server:
        return ""
    return f"the client is version {client}, the server is version {server}"


@define(eq=False)
class RetiredClients:
    """Clients whose creates are refused, because they have already left.

    An id is remembered for as long as a create that was sent before the goodbye may still be on its
    way, and then forgotten, so that the memory this takes does not grow for ever (L23).
    """

    remembered_for: float
    _until: dict[ClientId, float] = field(factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self._until)

    def add(self, client_id: ClientId, now: float) -> None:
        """Remember the client from now on; doing it again starts the time anew."""
        self._forget_before(now)
        self._until.pop(client_id, None)  # to the end of the line: it stays sorted by time
        self._until[client_id] = now + self.remembered_for

    def has(self, client_id: ClientId, now: float) -> bool:
        """Whether the client said goodbye not too long ago."""
        self._forget_before(now)
        return client_id in self._until

    def _forget_before(self, now: float) -> None:
        while self._until:
            oldest = next(iter(self._until))
            if self._until[oldest] > now:
                return
            del self._until[oldest]


CREATE_GRACE: Final = 30.0
"""Seconds in which a client that created a workspace must open a stream."""

DETACH_GRACE: Final = 10.0
"""Seconds for which a claim survives the loss of its last stream."""


@frozen(kw_only=True)
class Graces:
    """How long a claim lasts without a stream, in seconds."""

    create: float = CREATE_GRACE
    detach: float = DETACH_GRACE
    """Zero or less: a claim goes with its last stream."""


@frozen
class WakeAt:
    """There is a claim. Call `expire` at *deadline*, unless the claims change before."""

    deadline: float


@frozen
class TearDown:
    """There is no claim left."""


Next: TypeAlias = WakeAt | TearDown
"""What the owner of a set of claims has to see to."""


@define(eq=False)
class Claim:
    """One client's hold on one workspace; an identity, so that a stream can know its own."""

    client_id: ClientId
    streams: int = field(default=0, init=False)
    held_until: float | None = field(default=None, init=False)
    """When the claim ends if no stream opens; None while one is open."""
    released: bool = field(default=False, init=False)
    """Whether the client gave up the workspace and only its open streams still hold it."""
    current_session: SessionId = field(default=NO_SESSION, init=False)
    attended: bool = field(default=False, init=False)
    """Whether a person at this client can answer asks: it said so, or has shown a session."""


@define(eq=False)
class Stream:
    """One open stream: what `attach` gives and `detach` takes back, once."""

    claim: Claim
    open: bool = field(default=True, init=False)


@define(eq=False)
class Claims:
    """The claims on one workspace. The transitions are the table E.3 of the contract."""

    graces: Graces = field(factory=Graces)
    _by_client: dict[ClientId, Claim] = field(factory=dict, init=False, repr=False)

    # ── Looking ─────────────────────────────────────────────────────────────────────────────────

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Who has a claim, oldest claim first."""
        return tuple(self._by_client)

    def claim(self, client_id: ClientId) -> Claim | None:
        """Return the client's claim, if it has one."""
        return self._by_client.get(client_id)

    @property
    def next_step(self) -> Next:
        """What must happen next, given who holds the workspace now.

        It is derived from the state and not handed out as an event, so it cannot be missed.
        """
        if not self._by_client:
            return TearDown()
        held = [c.held_until for c in self._by_client.values() if c.held_until is not None]
        return WakeAt(min(held, default=inf))

    def attached(self, session_id: SessionId) -> int:
        """How many clients look at the session, each over an open stream (E16)."""
        if session_id == NO_SESSION:
            return 0
        return sum(
            claim.streams > 0 and claim.current_session == session_id
            for claim in self._by_client.values()
        )

    def attached_clients(self) -> Counter[SessionId]:
        """How many clients look at each session; see `attached`."""
        return Counter(
            claim.current_session
            for claim in self._by_client.values()
            if claim.streams > 0 and claim.current_session != NO_SESSION
        )

    @property
    def people(self) -> int:
        """At how many clients a person can answer asks, each over an open stream."""
        return sum(claim.attended and claim.streams > 0 for claim in self._by_client.values())

    @property
    def expects_people(self) -> bool:
        """Whether a client at which a person can answer asks has a claim, with a stream or without."""
        return any(claim.attended for claim in self._by_client.values())

    # ── What clients do ─────────────────────────────────────────────────────────────────────────

    def create(self, client_id: ClientId, now: float) -> None:
        """Give the client a claim, or its claim a new full window to open a stream in.

        Takes back an earlier release. What the client looked at stays as it was.
        """
        claim = self._claim_of(client_id)
        claim.released = False
        if not claim.streams:
            claim.held_until = now + self.graces.create

    def attach(self, client_id: ClientId, *, attended: bool = False) -> Stream:
        """Count one more stream of the client. It need not have created anything before.

        *attended* says that a person at the client can answer asks; that holds for its claim.
        """
        claim = self._claim_of(client_id)
        claim.streams += 1
        claim.attended = claim.attended or attended
        claim.held_until = None
        return Stream(claim)

    def detach(self, stream: Stream, now: float) -> None:
        """Count a stream out; the last one leaves a grace window or takes the claim with it.

        Doing it again does nothing. Neither does a stream that outlived its claim: the client may
        have a new claim by now, which is none of this stream's business.
        """
        if not stream.open:
            return
        stream.open = False
        claim = stream.claim
        claim.streams -= 1
        if claim.streams or self._by_client.get(claim.client_id) is not claim:
            return
        if claim.released or self.graces.detach <= 0:
            del self._by_client[claim.client_id]
        else:
            claim.held_until = now + self.graces.detach

    def release(self, client_id: ClientId) -> None:
        """Give up the claim, at once or with its last stream. Nothing to give up is fine (E13)."""
        claim = self._by_client.get(client_id)
        if claim is None:
            return
        if claim.streams:
            claim.released = True
        else:
            del self._by_client[client_id]

    def retire(self, client_id: ClientId) -> None:
        """Drop the claim, open streams or not (E18)."""
        self._by_client.pop(client_id, None)

    def select(self, client_id: ClientId, session_id: SessionId, *, answers: bool = True) -> None:
        """Note what the client looks at; the empty id for nothing.

        Only a client that shows sessions to a person selects one, so the claim counts as attended if
        the client *answers* asks at all.
        Raises `ClientNotAttached` unless the client has a stream open (E15). Whether there is such
        a session is not asked.
        """
        claim = self._by_client.get(client_id)
        if claim is None or not claim.streams:
            raise ClientNotAttached
        claim.current_session = session_id
        claim.attended = claim.attended or (answers and session_id != NO_SESSION)

    # ── What time does ──────────────────────────────────────────────────────────────────────────

    def expire(self, now: float) -> tuple[ClientId, ...]:
        """Drop the claims whose window is over, and say whose they were."""
        over = tuple(
            claim.client_id
            for claim in self._by_client.values()
            if claim.held_until is not None and claim.held_until <= now
        )
        for client_id in over:
            del self._by_client[client_id]
        return over

    def _claim_of(self, client_id: ClientId) -> Claim:
        return self._by_client.setdefault(client_id, Claim(client_id))
