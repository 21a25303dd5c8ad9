"""The attachment to a workspace: keeps the event stream open, and sends requests to its routes.

Two tasks. One listens: it reads the event stream into the picture, and when the stream ends it opens another
one from where the first stopped. If the workspace is gone, it is created again, for the same client. The
other settles doubts: it asks the server about what a resync left open.

A server that cannot be reached is tried again, with growing pauses, until the patience is used up. An error
that a retry cannot repair, such as a token that is not accepted, ends the block at once.

A request to a workspace that is gone, because its server was restarted or gave the client up, creates the
workspace again and is repeated. That is safe for every request: one that was answered with "workspace not
found" has done nothing.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
from attrs import define, field

from crush_trio.client.events import Bell
from crush_trio.client.http import (
    AnswerLost,
    ApiError,
    ClientClosed,
    Link,
    Query,
    ServerUnreachable,
    StreamBroken,
    passes,
    segment,
)
from crush_trio.client.state import Picture
from crush_trio.errors import CrushError, NotFound, WorkspaceNotFound
from crush_trio.net.errors import EventTooLarge
from crush_trio.net.sse import SseDecoder
from crush_trio.wire.config import WorkspaceView
from crush_trio.wire.ids import NO_WORKSPACE, RunId, SessionId, WorkspaceId
from crush_trio.wire.messages import Message
from crush_trio.wire.requests import AgentInitRequest, WorkspaceRequest
from crush_trio.wire.runs import RunView

T = TypeVar("T")

FIRST_PAUSE: Final = 0.25
"""Seconds before the first retry; each further pause is twice as long."""

LONGEST_PAUSE: Final = 10.0
"""Seconds of the longest pause."""

ANSWER_LIMIT: Final = 30.0
"""Seconds that a request of the attachment itself may take."""

FRAME_MOST: Final = 64 * 1024 * 1024
"""Bytes that an incomplete event of a stream may have."""

log = logging.getLogger(__name__)


@define(eq=False)
class Backoff:
    """The pauses between attempts."""

    _pause: float = field(default=FIRST_PAUSE, init=False)

    def next(self, *, after: float = 0.0) -> float:
        """Return the pause before the next attempt, in seconds.

        *after* is how many seconds the last attempt lasted. If that was longer than the pause before
        it, the attempt succeeded and the pauses start again. A shorter one counts as a failure: a server
        that ends every stream at once must not be asked in a tight loop.
        """
        if after > self._pause:
            self._pause = FIRST_PAUSE
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause


@define(eq=False)
class Keeper:
    """One client's claim on one workspace, and its event stream."""

    link: Link = field(repr=False)
    picture: Picture = field(repr=False)
    request: WorkspaceRequest = field(repr=False)
    interactive: bool
    init: bool
    patience: float
    """Seconds for which the server may be unreachable."""
    id: WorkspaceId = field(default=NO_WORKSPACE, init=False)
    _heard: bool = field(default=False, init=False, repr=False)
    _decoder: SseDecoder = field(factory=lambda: SseDecoder(FRAME_MOST), init=False, repr=False)
    _flaw: StreamBroken | None = field(default=None, init=False, repr=False)
    _doubting: Bell = field(factory=Bell, init=False, repr=False)

    # ── The claim ───────────────────────────────────────────────────────────────────────────────

    async def create(self) -> WorkspaceView:
        """Create the workspace or join it, and say whether a user can answer its asks.

        Repeating it is harmless: the same directory is the same workspace.
        """
        workspace = await self.link.ask("POST", "/v1/workspaces", WorkspaceView, body=self.request)
        if self.init:
            await self._init_agent(workspace.id)
        self.id = workspace.id
        return workspace

    async def _init_agent(self, workspace_id: WorkspaceId) -> None:
        """Say whether a user can answer asks; a token that may only watch need not: it sends no prompts."""
        await anyio.lowlevel.checkpoint()
        path = f"/v1/workspaces/{segment(workspace_id)}/agent/init"
        try:
            body = AgentInitRequest(interactive=self.interactive)
            await self.link.tell("POST", path, body=body)
        except ApiError as error:
            if error.code != "right_missing":
                raise

    async def release(self) -> None:
        """Release the claim. If the server cannot be told, the claim expires a little later."""
        await anyio.lowlevel.checkpoint()
        try:
            await self.link.tell("DELETE", self.path(""), query=self._who)
        except CrushError as error:
            log.info("claim.not_released", extra={"reason": str(error)})

    def path(self, rest: str) -> str:
        """Return the path of a route of the workspace."""
        return f"/v1/workspaces/{segment(self.id)}{rest}"

    @property
    def _who(self) -> dict[str, str]:
        return {"client_id": self.request.client_id}

    @property
    def _person(self) -> dict[str, str]:
        return {"interactive": "1"} if self.interactive else {}

    # ── Listening ───────────────────────────────────────────────────────────────────────────────

    async def listen(self) -> None:
        """Read the event stream for ever; raises errors that a retry cannot repair or that last too long.

        Before the first state of the workspace has come there are no retries: a caller that opens a
        workspace wants to know at once that there is no server.
        """
        backoff, away_since = Backoff(), anyio.current_time()
        while True:
            began, self._heard = anyio.current_time(), False
            why = await self._attend()
            now = anyio.current_time()
            if self._heard:
                away_since = now
            self.picture.disconnected(str(why))
            log.info("stream.lost", extra={"reason": str(why)})
            if now - away_since > self.patience:
                raise ServerUnreachable(f"gave up after {self.patience:g} seconds: {why}") from why
            await anyio.sleep(backoff.next(after=now - began))

    async def _attend(self) -> CrushError:
        """Read one stream until it ends; return why it ended."""
        await anyio.lowlevel.checkpoint()
        why: CrushError
        try:
            await self._stream()
        except CrushError as error:
            if not passes(error):
                raise
            why = error
        else:
            why = self._flaw or AnswerLost(self.picture.farewell or "the server ended the stream")
        if self._flaw is not None:
            self.picture.mislay()
        if not self.picture.synced.is_set():
            raise why
        return why

    async def _stream(self) -> None:
        """Open a stream and read it; create the workspace again if it is gone."""
        try:
            await self._read()
        except WorkspaceNotFound:
            await bounded(self.create, self.patience)
            await self._read()

    async def _read(self) -> None:
        self._decoder, self._flaw = SseDecoder(FRAME_MOST), None
        await self.link.listen(
            self.path("/events"),
            self._take,
            query={**self._who, **self._person, "form": "native"},
            place=self.picture.place,
        )

    def _take(self, data: bytes) -> float | None:
        """Apply a piece of the stream; return the longest silence to accept, None if it does not fit."""
        self._heard = True
        try:
            for frame in self._decoder.feed(data):
                self.picture.apply(frame)
        except (StreamBroken, EventTooLarge) as error:
            flaw = error if isinstance(error, StreamBroken) else StreamBroken(error.detail)
            log.warning("stream.broken", extra={"reason": str(flaw)})
            self._flaw = flaw
            return None
        if self.picture.in_doubt:
            self._doubting.ring()
        return self.picture.silence

    # ── Doubts ──────────────────────────────────────────────────────────────────────────────────

    async def settle(self) -> None:
        """Ask the server about doubts, for ever."""
        while True:
            while not self.picture.in_doubt:
                await self._doubting.wait()
            backoff = Backoff()
            while self.picture.in_doubt:
                try:
                    await self._settle_one()
                except CrushError as error:
                    log.info("doubt.not_settled", extra={"reason": str(error)})
                    await anyio.sleep(backoff.next())

    async def _settle_one(self) -> None:
        await anyio.lowlevel.checkpoint()
        picture = self.picture
        if picture.doubtful_runs:
            run_id = next(iter(picture.doubtful_runs))
            picture.settle_run(run_id, await self._run(run_id))
        else:
            growing = next(iter(picture.doubtful_messages.values()))
            session_id = growing.view().head.session_id
            picture.settle_messages(session_id, await self._messages(session_id))

    async def _run(self, run_id: RunId) -> RunView | None:
        path = self.path(f"/runs/{segment(run_id)}")
        ask = partial(self.link.ask, "GET", path, RunView)
        return await _unless_gone(lambda: bounded(ask))

    async def _messages(self, session_id: SessionId) -> tuple[Message, ...]:
        path = self.path(f"/sessions/{segment(session_id)}/messages")
        ask = partial(self.link.ask, "GET", path, tuple[Message, ...])
        return await _unless_gone(lambda: bounded(ask)) or ()


async def bounded(ask: Callable[[], Awaitable[T]], limit: float = ANSWER_LIMIT) -> T:
    """Return the answer; raises `AnswerLost` if it does not come in time.

    A network can fail silently: then no answer comes and no connection breaks.
    """
    with anyio.move_on_after(limit):
        return await ask()
    raise AnswerLost(f"there was no answer for {limit:g} seconds")


async def _unless_gone(ask: Callable[[], Awaitable[T]]) -> T | None:
    """Return the answer, or None if its subject does not exist.

    A missing workspace is raised: it will be created again, and the question repeated.
    """
    await anyio.lowlevel.checkpoint()
    try:
        return await ask()
    except WorkspaceNotFound:
        raise
    except NotFound:
        return None


@define(eq=False)
class Calls:
    """Requests to the routes of one workspace; paths are relative to it."""

    keeper: Keeper = field(repr=False)

    async def get(self, path: str, answer: type[T], **query: str) -> T:
        """Send a GET and return its answer."""
        return await self.ask("GET", path, answer, query=query)

    async def post(self, path: str, answer: type[T], body: object = None) -> T:
        """Send a POST and return its answer."""
        return await self.ask("POST", path, answer, body=body)

    async def ask(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: object = None,
        query: Query | None = None,
    ) -> T:
        """Send a request and return its answer."""
        keeper = self.keeper
        return await self._sent(
            lambda: keeper.link.ask(method, keeper.path(path), answer, body=body, query=query)
        )

    async def tell(
        self, method: str, path: str, body: object = None, query: Query | None = None
    ) -> bytes:
        """Send a request and return the body of its answer, which is often empty."""
        keeper = self.keeper
        return await self._sent(
            lambda: keeper.link.tell(method, keeper.path(path), body=body, query=query)
        )

    async def _sent(self, send: Callable[[], Awaitable[T]]) -> T:
        """Send; if the workspace is gone, create it again unless that was done meanwhile, and send again."""
        if self.keeper.picture.closed:
            raise ClientClosed("the workspace has been left")
        asked = self.keeper.id
        try:
            return await send()
        except WorkspaceNotFound:
            if self.keeper.id == asked:
                await self.keeper.create()
            return await send()
