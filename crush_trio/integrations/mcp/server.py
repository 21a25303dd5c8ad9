"""The life of one MCP server: it is started, it answers, it fails, and whoever needs it has it started again.

One task owns a server from the moment it is wanted until it is stopped, and with it the connection of
the moment: nobody else opens or closes one. Each try is an `Attempt`, which is settled once, by a
session or by a failure, so whoever waits for a server waits for something that comes.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import trio
from attrs import define, evolve, field, frozen

from crush_trio.clock import Clock
from crush_trio.config.errors import ExpansionFailed
from crush_trio.config.redaction import redact_text, worth_finding
from crush_trio.config.snapshot import Resolved
from crush_trio.events.facts import Fact
from crush_trio.integrations.mcp.session import (
    Connector,
    ListKind,
    LoginNeeded,
    McpFailure,
    McpSession,
    McpTarget,
    OfferedResource,
    OfferedTool,
)
from crush_trio.wire.config import McpServerConfig
from crush_trio.wire.events import EventType, McpEvent, McpEventType, PayloadType
from crush_trio.wire.fields import timestamp
from crush_trio.wire.integrations import McpClientInfo, McpPrompt, McpState

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT: Final = 10
"""Seconds that a server has to introduce itself, and to answer what takes no work."""

PAUSE: Final = 0.2
"""Seconds before a server is believed again that a list has changed; some say so to every question."""

_STOPPED: Final = "it was stopped"


@frozen(kw_only=True)
class McpServerPlan:
    """What a server is to be, as the configuration of one moment has it.

    Two plans are equal if a server that follows the one need not be disturbed for the other.
    """

    name: str
    entry: McpServerConfig
    refused: str = ""
    """Why it must not be started, whatever it is."""
    env: Mapping[str, str] = field(factory=dict, repr=False)
    """The variables that the configuration sets."""
    resolve: Callable[[], Awaitable[Resolved[McpServerConfig]]] = field(eq=False, repr=False)
    target: Callable[[McpServerConfig], McpTarget] = field(eq=False, repr=False)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.entry.disabled or bool(self.refused)

    @property
    def seconds(self) -> int:
        """How long the server may take to answer."""
        return self.entry.timeout if self.entry.timeout > 0 else TIMEOUT

    def allows(self, tool: str) -> bool:
        """Whether a tool is to be used: one on the list, if there is a list, and on no other."""
        wanted, unwanted = self.entry.enabled_tools, self.entry.disabled_tools
        return (not wanted or tool in wanted) and tool not in unwanted


@frozen(kw_only=True)
class Offer:
    """What a connected server has for models and people."""

    tools: tuple[OfferedTool, ...] = ()
    prompts: tuple[McpPrompt, ...] = ()
    resources: tuple[OfferedResource, ...] = ()
    instructions: str = ""


NOTHING: Final = Offer()


@define(eq=False)
class Attempt:
    """One try at a connection, and the connection if there is one."""

    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    settled: trio.Event = field(factory=trio.Event, init=False, repr=False)
    session: McpSession | None = field(default=None, init=False)
    failure: McpFailure | None = field(default=None, init=False)

    def succeed(self, session: McpSession) -> None:
        """Say that the server is there; it may take as long as it likes from now on."""
        self.scope.deadline = math.inf
        self.session = session
        self.settled.set()

    def fail(self, failure: McpFailure) -> None:
        """Say that there is no server, or none any more. The first reason counts."""
        self.session = None
        self.failure = self.failure or failure
        self.scope.cancel()
        self.settled.set()


@define(eq=False, kw_only=True)
class McpServer:
    """One server. `info` and `offer` are what is known of it now."""

    plan: McpServerPlan
    connector: Connector = field(repr=False)
    publish: Callable[[Fact], None] = field(repr=False)
    clock: Clock = field(repr=False)
    info: McpClientInfo = field(init=False)
    offer: Offer = field(default=NOTHING, init=False)
    _told_offer: Offer = field(default=NOTHING, init=False, repr=False)
    """The same as the clients last heard of it: whoever asks for a list again tells nobody."""
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False, repr=False)
    _attempt: Attempt = field(factory=Attempt, init=False, repr=False)
    _next: Attempt | None = field(default=None, init=False, repr=False)
    _asked: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )
    _secrets: frozenset[str] = field(default=frozenset(), init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        plan = self.plan
        state = McpState.STARTING
        if plan.idle:
            state = McpState.DISABLED if plan.entry.disabled else McpState.ERROR
            self._attempt.fail(McpFailure(plan.refused or "it is disabled"))
        error = "" if plan.entry.disabled else plan.refused
        self.info = McpClientInfo(name=plan.name, state=state, error=error)

    # ── For whoever uses it ─────────────────────────────────────────────────────────────────────

    async def use(self, ask: Callable[[McpSession], Awaitable[T]]) -> T:
        """Return what *ask* gets from the session, or raise `McpFailure`.

        A session that does not answer a ping is made anew first, once. So is one that has failed.
        What is asked is asked once: nobody knows what half a call has done.
        """
        attempt = self._next or self._attempt
        await attempt.settled.wait()
        if not await self._answers(attempt):
            attempt = self._after(attempt)
            await attempt.settled.wait()
        if attempt.session is None:
            raise McpFailure(str(attempt.failure))
        try:
            return await ask(attempt.session)
        except McpFailure as failure:
            raise McpFailure(self._told(failure)) from None

    async def use_briefly(self, ask: Callable[[McpSession], Awaitable[T]]) -> T:
        """Return what `use` does, for what takes a server no work: within its time, or not at all."""
        with trio.move_on_after(2 * self.plan.seconds):
            return await self.use(ask)
        raise McpFailure(self._too_slow())

    def retry(self) -> None:
        """Have it started again if it has failed."""
        if self.info.state in {McpState.ERROR, McpState.NEEDS_AUTH} and not self.plan.idle:
            self._after(self._attempt)

    async def settled(self) -> None:
        """Wait until it is not being started, however that ended."""
        await (self._next or self._attempt).settled.wait()

    @property
    def starting(self) -> bool:
        """Whether it is being started, or about to be."""
        return not (self._next or self._attempt).settled.is_set()

    async def refresh(self, listing: ListKind) -> None:
        """Ask for one of its lists again, if it is connected. Tells nobody."""
        await trio.lowlevel.checkpoint()
        attempt = self._attempt
        if attempt.session is None:
            return
        try:
            offer = await self._listed_again(attempt.session, listing)
        except McpFailure as failure:
            attempt.fail(failure)
        else:
            if attempt.session is not None:
                self._take(offer)

    def _after(self, failed: Attempt) -> Attempt:
        """Return the attempt after one that failed. All who saw that one fail get the same."""
        if self._attempt is failed and self._next is None and not self._scope.cancel_called:
            self._next = Attempt()
            self._asked.unpark_all()
        return self._next or self._attempt

    async def _answers(self, attempt: Attempt) -> bool:
        """Whether a session is alive. One that is not is given up."""
        await trio.lowlevel.checkpoint()
        session = attempt.session
        if session is None:
            return self.plan.idle  # there is nothing to be made anew
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
        """Be what the plan says, until stopped."""
        try:
            with self._scope:
                self._tell(McpEventType.STATE_CHANGED)
                if self.plan.idle:
                    await trio.sleep_forever()
                while True:
                    await self._hold(self._attempt)
                    self._attempt = await self._asked_again()
                    self._become(McpState.STARTING)
        finally:
            self.stop()

    def stop(self) -> None:
        """End it; takes effect at once for whoever uses it. Nothing brings it back."""
        self._scope.cancel()
        for attempt in (self._attempt, self._next):
            if attempt is not None:
                attempt.fail(McpFailure(_STOPPED))

    async def _asked_again(self) -> Attempt:
        """Wait until somebody wants a server that failed, and return what is awaited."""
        await trio.lowlevel.checkpoint()
        while self._next is None:
            await self._asked.park()
        attempt, self._next = self._next, None
        return attempt

    async def _hold(self, attempt: Attempt) -> None:
        """Connect, and stay connected until that fails."""
        await trio.lowlevel.checkpoint()
        failure: McpFailure | None = None
        try:
            await self.connector.load()
            with attempt.scope:
                attempt.scope.deadline = trio.current_time() + self.plan.seconds
                await self._converse(attempt)
        except* McpFailure as failures:
            failure = _first(failures, McpFailure)
        except* ExpansionFailed as failures:
            failure = McpFailure(str(_first(failures, ExpansionFailed)))
        except* Exception as errors:  # noqa: BLE001 - it is about this server, and no other
            failure = McpFailure(_described(_first(errors, Exception)))
        attempt.fail(failure or McpFailure(self._too_slow()))
        self._failed(attempt)

    async def _converse(self, attempt: Attempt) -> None:
        resolved = (await self.plan.resolve()).config
        self._secrets = _secrets(self.plan.entry, resolved)
        async with self.connector.open(self.plan.target(resolved)) as session:
            offer = Offer(instructions=session.instructions)
            for listing in ListKind:
                offer = evolve(offer, **await self._list(session, listing))
            attempt.succeed(session)
            self.offer = offer
            self._become(McpState.CONNECTED)
            while True:
                await self._follow(session, await session.changed())

    async def _follow(self, session: McpSession, listing: ListKind) -> None:
        """Read a list that is said to have changed, and tell the clients if it has."""
        self._take(await self._listed_again(session, listing))
        if self.offer != self._told_offer:
            self._tell(listing.value)
        await trio.sleep(PAUSE)

    async def _listed_again(self, session: McpSession, listing: ListKind) -> Offer:
        with trio.move_on_after(self.plan.seconds):
            lists = await self._list(session, listing)
            return evolve(self.offer, **lists)
        raise McpFailure(self._too_slow())

    async def _list(self, session: McpSession, listing: ListKind) -> dict[str, Any]:
        """Return one of the lists of a server, under its name in an `Offer`."""
        await trio.lowlevel.checkpoint()
        match listing:
            case ListKind.TOOLS:
                found = await session.tools()
                return {"tools": tuple(each for each in found if self.plan.allows(each.name))}
            case ListKind.PROMPTS:
                return {"prompts": await session.prompts()}
            case ListKind.RESOURCES:
                return {"resources": await session.resources()}

    # ── What is known ───────────────────────────────────────────────────────────────────────────

    def _failed(self, attempt: Attempt) -> None:
        """Let go of what the server offered, and say what became of it."""
        self.offer = NOTHING
        failure = attempt.failure
        state = McpState.NEEDS_AUTH if isinstance(failure, LoginNeeded) else McpState.ERROR
        error = self._told(failure)
        attempt.failure = McpFailure(error)
        log.warning("mcp.failed", extra={"server": self.plan.name, "error": error})
        self._become(state, error)

    def _become(self, state: McpState, error: str = "") -> None:
        at = self.clock.unix() if state is McpState.CONNECTED else 0
        self.info = McpClientInfo(
            name=self.plan.name, state=state, error=error, connected_at=timestamp(at)
        )
        self._take(self.offer)
        self._tell(McpEventType.STATE_CHANGED)

    def _take(self, offer: Offer) -> None:
        self.offer = offer
        self.info = evolve(
            self.info,
            tool_count=len(offer.tools),
            prompt_count=len(offer.prompts),
            resource_count=len(offer.resources),
        )

    def _tell(self, what: McpEventType) -> None:
        self._told_offer = self.offer
        self.publish(mcp_event(what, self.info))

    def _told(self, failure: McpFailure | None) -> str:
        """Return what went wrong, without what nobody is to read."""
        return redact_text(str(failure), secrets=self._secrets)

    def _too_slow(self) -> str:
        return f"it did not answer within {self.plan.seconds} seconds"


def mcp_event(what: McpEventType, info: McpClientInfo) -> Fact:
    """Return what clients are told when something is different about a server."""
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
    """Return the first error in a group of groups."""
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, kind)
    return first


def _described(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _secrets(entry: McpServerConfig, resolved: McpServerConfig) -> frozenset[str]:
    """Return the values that nobody is to read in what is said about a server."""
    address = "" if resolved.url == entry.url else resolved.url
    token = "" if resolved.oauth_token is None else resolved.oauth_token.access_token
    named = (*resolved.headers.values(), *resolved.env.values())
    return worth_finding((*named, address, token, resolved.oauth_client_secret))
