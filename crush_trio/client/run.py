"""Handles of runs: wait for the end, cancel, follow.

A handle holds only the run's id. The run belongs to the server: it continues whatever happens to the handle.
Every wait asks the server again after every new connection, so none of them depends on an event that came
while there was no connection (L42).
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Self, TypeVar

import anyio
import anyio.lowlevel
from attrs import define, field

from crush_trio.client.attachment import Backoff, Calls, bounded
from crush_trio.client.events import EventReader, Resynced
from crush_trio.client.follower import Ask, Follower, RunEnded, RunPiece
from crush_trio.client.http import ClientClosed, RunNotCompleted, passes
from crush_trio.client.session_routes import RunRoutes, SessionRoutes
from crush_trio.client.state import Picture
from crush_trio.errors import CrushError
from crush_trio.wire.answers import ReceiptView
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunState, RunView

T = TypeVar("T")


@define(eq=False)
class RunHandle:
    """One run of the workspace. Made by `RemoteWorkspace.submit` and `RemoteWorkspace.run`."""

    run_id: RunId
    """The name the handle was made with: the caller's id of the run, or the server's."""
    _calls: Calls = field(repr=False)
    _session_id: SessionId | None = None
    _prompt: str | None = field(default=None, repr=False)
    _since: int | None = field(default=None, repr=False)
    """Where in the window the events of the run begin; None if that is not known."""

    @property
    def id(self) -> RunId:
        """The id of the run: the caller's or the server's; every route takes both."""
        return self.run_id

    async def view(self) -> RunView:
        """Return the run as it is now."""
        return await RunRoutes(self._calls).get(self.run_id)

    async def cancel(self) -> ReceiptView:
        """Cancel the run, wait until it has ended, and return what the cancel hit.

        A run that had already ended is not hit; the receipt is then empty.
        """
        return await RunRoutes(self._calls).cancel(self.run_id)

    async def wait(self) -> RunView:
        """Wait for the run to end, and return it.

        A broken connection or a restarted server only makes this wait longer: the ending is stored, and
        the server is asked for it once it can be reached. Raises only if there is no such run, if the
        workspace's patience is used up, or if the workspace is left.
        """
        backoff = Backoff()
        while True:
            with self._picture.news_of(self.run_id) as news:
                pause = float("inf")
                try:
                    run = await bounded(self.view)
                except CrushError as error:
                    if not passes(error):
                        raise
                    pause = backoff.next()
                else:
                    if run.state.terminal:
                        return run
                with anyio.move_on_after(pause):
                    await news.wait()

    async def result_text(self) -> str:
        """Wait for the answer and return its text.

        Raises `RunNotCompleted`, which has the run, if the run failed, was cancelled or was interrupted.
        The answer to a folded prompt is that of the run that absorbed it.
        """
        run = await self.wait()
        while run.state is RunState.FOLDED and run.folded_into is not None:
            run = await RunHandle(run.folded_into, self._calls).wait()
        if run.state is not RunState.COMPLETED:
            detail = f"{run.state.value}: {run.error}" if run.error else run.state.value
            raise RunNotCompleted(detail, run=run)
        return run.text

    @asynccontextmanager
    async def stream(self) -> AsyncIterator["RunStream"]:
        """Follow the run: iterate over what happens in it, from its beginning to `RunEnded`.

        It begins with what has happened already. Any number of streams can follow the same run.
        """
        session_id = self._session_id
        if session_id is None:
            session_id = (await self.view()).session_id
        else:
            await anyio.lowlevel.checkpoint()
        window = self._picture.window
        yield RunStream(
            self,
            self._calls,
            Follower(self.run_id, session_id, self._prompt),
            window.reader(self._since),
            behind=self._since is None,
        )

    @property
    def _picture(self) -> Picture:
        return self._calls.keeper.picture


@define(eq=False)
class RunStream:
    """What happens in one run, piece by piece; the last piece is `RunEnded`.

    It holds no resources, so it may be left at any piece. If the workspace is left, it ends without that piece.
    """

    _handle: RunHandle
    _calls: Calls = field(repr=False)
    _follower: Follower = field(repr=False)
    _reader: EventReader = field(repr=False)
    _behind: bool = field(kw_only=True)
    """Whether something was missed that the events will not tell any more."""
    _told: bool = field(default=False, init=False)
    _ready: deque[RunPiece] = field(factory=deque, init=False, repr=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunPiece:
        """Wait for the next piece and return it."""
        await anyio.lowlevel.checkpoint()
        while not self._ready:
            if self._told:
                raise StopAsyncIteration
            try:
                await self._read()
            except ClientClosed:  # the workspace has been left
                raise StopAsyncIteration from None
        return self._ready.popleft()

    async def _read(self) -> None:
        """Wait for the next event; it may be about another run."""
        if self._behind:
            self._ready.extend(await self._caught_up())
            self._behind = False
        elif self._follower.ended:
            self._ready.append(RunEnded(await self._handle.wait()))
            self._told = True
        else:
            event = await anext(self._reader)
            if isinstance(event, Resynced):
                self._behind = True
            else:
                self._ready.extend(self._follower.follow(event))

    async def _caught_up(self) -> tuple[RunPiece, ...]:
        """Read the run and its session again, and return the new pieces.

        The run is read first: if it has ended, the messages that are read after it are complete.
        """
        run = await _insist(self._handle.view)
        messages = await _insist(
            lambda: SessionRoutes(self._calls).messages(self._follower.session_id)
        )
        picture = self._calls.keeper.picture
        asks: tuple[Ask, ...] = (*picture.permissions.values(), *picture.questions.values())
        return self._follower.catch_up(run, messages, asks)


async def _insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request until it is answered; the workspace's patience bounds this."""
    backoff = Backoff()
    while True:
        try:
            return await bounded(ask)
        except CrushError as error:
            if not passes(error):
                raise
        await anyio.sleep(backoff.next())
