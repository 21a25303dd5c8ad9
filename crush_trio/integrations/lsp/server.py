"""One language server: whether it runs, and how it is doing.

A server is started when it is needed, and then belongs to the workspace, not to the run or the request that
needed it, which may be cancelled (T13). Whoever needs it waits for it as long as suits them. If it fails, at
its start or later, that is a state and never the error of a run, and for a while nobody tries again.

A server that is stopped and started again has two lives for a moment. Only the newest has a say in how the
server is doing.
"""

from math import inf
from typing import Final

import trio
from attrs import define, field

from crush_trio.integrations.lsp.known import ServerSpec
from crush_trio.integrations.lsp.life import Conversation, Host, Life, ServerUnavailable
from crush_trio.wire.events import LspEvent, LspEventType
from crush_trio.wire.integrations import LspClientInfo, LspState
from crush_trio.wire.times import timestamp

PAUSE: Final = 30.0
"""Seconds before a server that failed is tried again (I.4)."""


@define(eq=False)
class Server:
    """A language server of a workspace, whether it runs or not."""

    spec: ServerSpec
    host: Host = field(repr=False)
    state: LspState = field(init=False)
    error: str = field(default="", init=False)
    _connected_at: int = field(default=0, init=False)
    _failed_at: float = field(default=-inf, init=False)
    _life: Life | None = field(default=None, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        off = self.spec.config.disabled or bool(self.spec.refused)
        self.state = LspState.DISABLED if off else LspState.UNSTARTED
        self.error = self.spec.refused

    @property
    def name(self) -> str:
        """What it is called."""
        return self.spec.name

    @property
    def usable(self) -> bool:
        """Whether it may be started at all."""
        return self.state is not LspState.DISABLED

    @property
    def conversation(self) -> Conversation | None:
        """The server itself, if it is ready."""
        return None if self._life is None else self._life.conversation

    def info(self) -> LspClientInfo:
        """Return what clients are told."""
        return LspClientInfo(
            name=self.name,
            state=self.state,
            error=self.error,
            diagnostic_count=self._count,
            connected_at=timestamp(self._connected_at),
        )

    @property
    def _count(self) -> int:
        return 0 if self.conversation is None else self.conversation.documents.count

    # ── Starting and stopping ───────────────────────────────────────────────────────────────────

    def wake(self, *, asked: bool = False) -> None:
        """Start it unless it runs, may not, or failed a moment ago.

        One that somebody has stopped is started only if somebody *asked* for that.
        """
        soon = self.host.clock.monotonic() < self._failed_at + PAUSE
        unwanted = self.state is LspState.STOPPED and not asked
        if self._life is None and self.usable and not soon and not unwanted:
            self._begin()

    def _begin(self) -> None:
        self._life = Life(self)
        self._become(LspState.STARTING)
        self.host.lives.start_soon(self._life.run, name=f"language server {self.name}")

    async def get_ready(self) -> Conversation:
        """Start it if need be, and return it when it is ready; raises `ServerUnavailable`."""
        await trio.lowlevel.checkpoint()
        self.wake()
        if self._life is not None:
            await self._life.decided.wait()
        if self.conversation is None:
            why = self.error or self.state.name.lower()
            raise ServerUnavailable(f"the language server {self.name} is not available: {why}")
        return self.conversation

    def stop(self) -> Life | None:
        """Stop it, from now on; return the life that is ending, if it ran."""
        life, self._life = self._life, None
        if life is not None:
            life.leave()
            self._connected_at = 0
        if self.usable and self.state is not LspState.STOPPED:
            self._become(LspState.STOPPED)
        return life

    def close(self) -> None:
        """Stop it for good."""
        self.stop()
        self.state = LspState.DISABLED

    async def restart(self) -> None:
        """Start it afresh, however it is doing, and wait until it is ready or has failed."""
        await trio.lowlevel.checkpoint()
        life = self.stop()
        if life is not None:
            await life.ended.wait()
        self._failed_at = -inf
        self.wake(asked=True)
        if self._life is not None:
            await self._life.decided.wait()

    # ── From a life ─────────────────────────────────────────────────────────────────────────────

    def ready(self, life: Life) -> None:
        """Take note that a start succeeded."""
        if life is self._life:
            self._connected_at = self.host.clock.unix()
            self._become(LspState.READY)

    def ended(self, life: Life, failure: str) -> None:
        """Take note that a life is over, and why; no failure means that it was asked to end."""
        if life is not self._life:
            return
        self._life, self._connected_at = None, 0
        if failure:
            self._failed_at = self.host.clock.monotonic()
        self._become(LspState.ERROR if failure else LspState.STOPPED, failure)

    def tell(self, what: LspEventType) -> None:
        """Tell the clients about it."""
        self.host.tell(
            LspEvent(
                type=what,
                name=self.name,
                state=self.state,
                error=self.error,
                diagnostic_count=self._count,
            )
        )

    def _become(self, state: LspState, error: str = "") -> None:
        self.state, self.error = state, self.host.redacted(error)
        self.tell(LspEventType.STATE_CHANGED)
