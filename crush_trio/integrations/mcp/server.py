"""`McpServer`: connects to one MCP server, follows its lists, and reconnects on demand after a failure.

One task owns a server until it is stopped, and with it the current connection: no other task opens or
closes one. Each connection attempt is an `Attempt`, which is settled once, by a session or by a failure,
so every waiting task is woken.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import trio
from attrs import define, evolve, field, frozen

from crush_trio.clock import Clock
from crush_trio.config.errors import ExpansionFailed
from crush_trio.config.redaction import redact_text
from crush_trio.events.facts import Fact
from crush_trio.integrations.mcp.plan import McpServerPlan, secrets_of
from crush_trio.integrations.mcp.session import (
    Connector,
    ListKind,
    LoginNeeded,
    McpFailure,
    McpSession,
    OfferedResource,
    OfferedTool,
)
from crush_trio.wire.events import EventType, PayloadType
from crush_trio.wire.fields import timestamp
from crush_trio.wire.integrations import McpClientInfo, McpEvent, McpEventType, McpPrompt, McpState

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE: Final = 0.2
"""Seconds between two reads of a changed list; some servers announce a change on every request."""

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds in which a server that failed twice in a row is not started again; doubled each time."""

_STOPPED: Final = "it was stopped"


@frozen(kw_only=True)
class Offer:
    """What a connected server offers to models and clients."""

    tools: tuple[OfferedTool, ...] = ()
    prompts: tuple[McpPrompt, ...] = ()
    resources: tuple[OfferedResource, ...] = ()
    instructions: str = ""


NOTHING: Final = Offer()


@define(eq=False)
class Attempt:
    """One attempt to connect, and its session while connected."""

    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    settled: trio.Event = field(factory=trio.Event, init=False, repr=False)
    session: McpSession | None = field(default=None, init=False)
    failure: McpFailure | None = field(default=None, init=False)
    uses: int = field(default=0, init=False)
    """How many requests of users the server has not answered yet."""

    def succeed(self, session: McpSession) -> None:
        """Settle the attempt with a session; from now on there is no deadline."""
        self.scope.deadline = math.inf
        self.session = session
        self.settled.set()

    def fail(self, failure: McpFailure) -> None:
        """Settle the attempt with a failure, or end its session. The first reason is kept."""
        self.session = None
        self.failure = self.failure or failure
        self.scope.cancel()
        self.settled.set()


@define(eq=False, kw_only=True)
class McpServer:
    """One MCP server. `info` and `offer` are its current state."""

    plan: McpServerPlan
    connector: Connector = field(repr=False)
    publish: Callable[[Fact], object] = field(repr=False)
    clock: Clock = field(repr=False)
    info: McpClientInfo = field(init=False)
    offer: Offer = field(default=NOTHING, init=False)
    _published_offer: Offer = field(default=NOTHING, init=False, repr=False)
    """The offer at the last event. A refresh by a client changes `offer` without an event."""
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    _attempt: Attempt = field(factory=Attempt, init=False, repr=False)
    _next: Attempt | None = field(default=None, init=False, repr=False)
    _asked: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )
    _secrets: frozenset[str] = field(default=frozenset(), init=False, repr=False)
    _failures: int = field(default=0, init=False)
    """How many attempts in a row have not connected."""
    _paused_until: float = field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        plan = self.plan
        state = McpState.STARTING
        if plan.idle:
            state = McpState.DISABLED if plan.entry.disabled else McpState.ERROR
            self._attempt.fail(McpFailure(plan.refused or "it is disabled"))
        error = "" if plan.entry.disabled else plan.refused
        self.info = McpClientInfo(name=plan.name, state=state, error=error)

    # ── For its users ───────────────────────────────────────────────────────────────────────────

    async def use(self, ask: Callable[[McpSession], Awaitable[T]]) -> T:
        """Return the result of *ask* with a live session, or raise `McpFailure`.

        A session that failed or does not answer a ping is replaced first, once. A server that could not
        be started several times in a row is left alone for a while. *ask* itself is never repeated: a
        call that failed halfway may have had effects.
        """
        attempt = self._next or self._attempt
        await attempt.settled.wait()
        if not await self._answers(attempt):
            if (seconds := self._pause()) and self._next is None and self._attempt is attempt:
                raise McpFailure(f"{attempt.failure}; it can be tried again in {seconds:.0f} s")
            attempt = self._after(attempt)
            await attempt.settled.wait()
        if attempt.session is None:
            raise McpFailure(str(attempt.failure))
        attempt.uses += 1
        try:
            return await ask(attempt.session)
        except McpFailure as failure:
            raise McpFailure(self._redacted(failure)) from None
        finally:
            attempt.uses -= 1

    async def use_briefly(self, ask: Callable[[McpSession], Awaitable[T]]) -> T:
        """Like `use`, with the server's time limit; for requests other than tool calls."""
        with trio.move_on_after(self.plan.start_seconds + self.plan.seconds):
            return await self.use(ask)
        raise McpFailure(self._too_slow())

    def retry(self) -> None:
        """Connect again if it has failed."""
        if self.info.state in {McpState.ERROR, McpState.NEEDS_AUTH} and not self.plan.idle:
            self._after(self._attempt)

    def revive(self) -> None:
        """Connect again if it could never be started and the pause after its failure is over.

        A server that was connected before is started again by the next use of its tools.
        """
        if self.info.state is McpState.ERROR and self.offer is NOTHING and not self._pause():
            self.retry()

    def _pause(self) -> float:
        """Return the seconds for which it is not started again; 0 if it may be."""
        return max(0.0, self._paused_until - trio.current_time())

    async def settled(self) -> None:
        """Wait until it is not starting, whether it is connected or failed."""
        await (self._next or self._attempt).settled.wait()

    @property
    def starting(self) -> bool:
        """Whether it is starting or about to."""
        return not (self._next or self._attempt).settled.is_set()

    async def refresh(self, listing: ListKind) -> None:
        """Read one of its lists again, if it is connected. Publishes no event."""
        await trio.lowlevel.checkpoint()
        attempt = self._attempt
        if attempt.session is None:
            return
        try:
            offer = await self._listed_again(attempt.session, listing)
        except McpFailure as failure:
            if not attempt.uses:
                attempt.fail(failure)
        else:
            if attempt.session is not None:
                self._take(offer)

    def _after(self, failed: Attempt) -> Attempt:
        """Return the attempt after one that failed; all users of the failed one share it."""
        if self._attempt is failed and self._next is None and not self._scope.cancel_called:
            self._next = Attempt()
            self._asked.unpark_all()
        return self._next or self._attempt

    async def _answers(self, attempt: Attempt) -> bool:
        """Whether a session answers a ping. One that does not is ended.

        A server with an open call is not pinged: many do one thing at a time, and to end the session
        would end that call.
        """
        await trio.lowlevel.checkpoint()
        session = attempt.session
        if session is None:
            return self.plan.idle  # a disabled server is not started again
        if attempt.uses:
            return True
        with trio.move_on_after(self.plan.seconds):
            try:
                await session.ping()
            except McpFailure as failure:
                attempt.fail(failure)
            return attempt.session is not None
        attempt.fail(McpFailure(self._too_slow()))
        return False

    # ── For the task that owns it ───────────────────────────────────────────────────────────────

    async def live(self) -> None:
        """Connect and reconnect as the plan says until stopped: the server's task."""
        try:
            with self._scope:
                self._publish(McpEventType.STATE_CHANGED)
                if self.plan.idle:
                    await trio.sleep_forever()
                while True:
                    await self._hold(self._attempt)
                    self._attempt = await self._asked_again()
                    self._become(McpState.STARTING)
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop it for good; its users fail at once."""
        self._scope.cancel()
        for attempt in (self._attempt, self._next):
            if attempt is not None:
                attempt.fail(McpFailure(_STOPPED))

    async def _asked_again(self) -> Attempt:
        """Wait until a user asks for the failed server again; return the new attempt."""
        await trio.lowlevel.checkpoint()
        while self._next is None:
            await self._asked.park()
        attempt, self._next = self._next, None
        return attempt

    async def _hold(self, attempt: Attempt) -> None:
        """Connect, and stay connected until the connection fails."""
        await trio.lowlevel.checkpoint()
        failure: McpFailure | None = None
        try:
            await self.connector.load()
            with attempt.scope:
                attempt.scope.deadline = trio.current_time() + self.plan.start_seconds
                await self._converse(attempt)
        except* McpFailure as failures:
            failure = _first(failures, McpFailure)
        except* ExpansionFailed as failures:
            failure = McpFailure(str(_first(failures, ExpansionFailed)))
        except* Exception as errors:  # noqa: BLE001 - barrier: one bad server must not stop others
            failure = McpFailure(_describe(_first(errors, Exception)))
        attempt.fail(failure or McpFailure(self._too_slow(self.plan.start_seconds)))
        self._failed(attempt)

    async def _converse(self, attempt: Attempt) -> None:
        resolved = (await self.plan.resolve()).config
        self._secrets = secrets_of(self.plan.entry, resolved)
        async with self.connector.open(self.plan.target(resolved)) as session:
            offer = Offer(instructions=session.instructions)
            for listing in ListKind:
                offer = evolve(offer, **await self._list(session, listing))
            attempt.succeed(session)
            self._failures = 0
            self.offer = offer
            self._become(McpState.CONNECTED)
            while True:
                await self._follow(attempt, session, await session.changed())

    async def _follow(self, attempt: Attempt, session: McpSession, listing: ListKind) -> None:
        """Read a list that was announced as changed, and publish an event if it has."""
        self._take(await self._listed_again(session, listing, while_used=attempt))
        if self.offer != self._published_offer:
            self._publish(listing.value)
        await trio.sleep(PAUSE)

    async def _listed_again(
        self, session: McpSession, listing: ListKind, while_used: Attempt | None = None
    ) -> Offer:
        """Return the offer with one list read again; ask repeatedly while a call is open."""
        while True:
            with trio.move_on_after(self.plan.seconds):
                lists = await self._list(session, listing)
                return evolve(self.offer, **lists)
            if while_used is None or not while_used.uses:
                raise McpFailure(self._too_slow())

    async def _list(self, session: McpSession, listing: ListKind) -> dict[str, Any]:
        """Return one list of a server, under its name in `Offer`."""
        await trio.lowlevel.checkpoint()
        match listing:
            case ListKind.TOOLS:
                found = await session.tools()
                return {"tools": tuple(each for each in found if self.plan.allows(each.name))}
            case ListKind.PROMPTS:
                return {"prompts": await session.prompts()}
            case ListKind.RESOURCES:
                return {"resources": await session.resources()}

    # ── State and events ────────────────────────────────────────────────────────────────────────

    def _failed(self, attempt: Attempt) -> None:
        """Publish the failure. What it offered stays offered: the next use starts it again."""
        failure = attempt.failure
        state = McpState.ERROR
        if isinstance(failure, LoginNeeded):
            state, self.offer = McpState.NEEDS_AUTH, NOTHING
        self._failures += 1
        pause = min(FIRST_PAUSE * 2 ** (self._failures - 2), LONGEST_PAUSE)
        self._paused_until = trio.current_time() + (pause if self._failures > 1 else 0)
        error = self._redacted(failure)
        attempt.failure = McpFailure(error)
        name = self.plan.name
        log.warning("mcp.failed: %s: %s", name, error, extra={"server": name, "error": error})
        self._become(state, error)

    def _become(self, state: McpState, error: str = "") -> None:
        at = self.clock.unix() if state is McpState.CONNECTED else 0
        self.info = McpClientInfo(
            name=self.plan.name, state=state, error=error, connected_at=timestamp(at)
        )
        self._take(self.offer)
        self._publish(McpEventType.STATE_CHANGED)

    def _take(self, offer: Offer) -> None:
        self.offer = offer
        self.info = evolve(
            self.info,
            tool_count=len(offer.tools),
            prompt_count=len(offer.prompts),
            resource_count=len(offer.resources),
        )

    def _publish(self, what: McpEventType) -> None:
        self._published_offer = self.offer
        self.publish(mcp_event(what, self.info))

    def _redacted(self, failure: McpFailure | None) -> str:
        """Return the text of a failure without secrets."""
        return redact_text(str(failure), secrets=self._secrets)

    def _too_slow(self, seconds: int = 0) -> str:
        limit = seconds or self.plan.seconds
        return f"it did not answer within {limit} seconds; raise its timeout if it needs longer"


def mcp_event(what: McpEventType, info: McpClientInfo) -> Fact:
    """Return the event for clients about a changed server."""
    entity = McpEvent(
        type=what,
        name=info.name,
        state=info.state,
        error=info.error,
        tool_count=info.tool_count,
        prompt_count=info.prompt_count,
        resource_count=info.resource_count,
    )
    return Fact(payload_type=PayloadType.MCP_EVENT, change=EventType.UPDATED, entity=entity)


E = TypeVar("E", bound=Exception)


def _first(errors: BaseExceptionGroup[E], kind: type[E]) -> E:
    """Return the first error in nested exception groups."""
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, kind)
    return first


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
