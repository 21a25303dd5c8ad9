"""One model call: time limits, notices while waiting, and retries.

A provider knows no deadlines and no retries; both are here, once, for every provider. Time counts only
while we wait for the provider. The time that a sink takes to store a part does not count, and no
deadline interrupts it. Any bytes of the answer are a sign of life, also comments and empty events: the
limit of the current wait begins anew with them.

A model that has sent nothing may still be thinking. It is not called again when its time is over: both
calls would be billed. A call that is repeated after it had begun to answer says so in its notice.

Invariants: before a deadline ends a wait, a `Waiting` notice is sent. A sink has the parts of one attempt
only: it is reset before the next one. What came last is kept, also when the last attempt fails in the
middle (D14a). A cancel passes through at every point.
"""

import logging
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Final, Protocol

import trio
from attrs import define, evolve, field, frozen
from typing_extensions import override

from crush_trio.log_context import hide_secrets
from crush_trio.net.errors import ConnectFailed
from crush_trio.nursery import open_hidden_nursery
from crush_trio.providers.base import (
    Finished,
    ModelRequest,
    Parts,
    Provider,
    StreamPart,
    check_part,
    open_answer,
)
from crush_trio.providers.errors import (
    ProviderError,
    ProviderGarbled,
    ProviderRateLimited,
    ProviderTooSlow,
)

log = logging.getLogger(__name__)

MODEL: Final = "the model"
MORE: Final = "more of the answer"
END: Final = "the end of the answer"
BILLED: Final = "another attempt after {title}; the broken answer may be billed as well"
WORKED_AFTER: Final = 5.0
"""Seconds after which a provider that fails without a byte has probably worked on the request."""

RAISE_LIMIT: Final = "{said}; raise providers.{provider}.limits.{name} if the model needs longer"


@frozen(kw_only=True)
class Patience:
    """Time limits of a model call in seconds, and the number of attempts.

    `first_part` covers connecting, queueing and reading the prompt, `between_parts` any later silence,
    `whole` all attempts and the pauses between them. The configuration of a provider can change them;
    see `limited`.
    """

    first_part: float = 300.0
    between_parts: float = 120.0
    whole: float = inf
    notice_after: float = 10.0
    """Silence after which the first notice is sent, at the latest halfway to a deadline."""
    notice_every: float = 15.0
    attempts: int = 4
    slow_attempts: int = 2
    """How many attempts may end with `ProviderTooSlow` in the middle of an answer."""
    first_pause: float = 1.0
    """The pause after the first failure; each one after that is twice as long."""
    longest_pause: float = 60.0
    """If the provider asks for a longer pause, the call fails."""

    def limited(self, limits: Mapping[str, float]) -> "Patience":
        """Return the time limits with those that `providers.<id>.limits` sets."""
        return evolve(
            self,
            first_part=limits.get("first", self.first_part),
            between_parts=limits.get("idle", self.between_parts),
            whole=limits.get("turn", self.whole),
        )


@frozen(kw_only=True)
class Waiting:
    """A notice that a call is still waiting.

    `seconds` is how long it has waited already. In the pause before another attempt, `cause` is the
    failure of the last one. `attempt` is the one that is under way or has just failed.
    """

    what: str
    seconds: float
    attempt: int = 1
    cause: ProviderError | None = None
    billed: bool = False
    """Whether the attempt that failed may be billed, beside the next one."""

    @override
    def __str__(self) -> str:
        return f"waiting for {self.what}, {self.seconds:.0f} s"


class Sink(Protocol):
    """Receives the parts of an answer."""

    async def take(self, part: StreamPart) -> None:
        """Take the next part. The last one is `Finished`."""
        ...

    async def reset(self) -> None:
        """Discard every part so far: another attempt begins."""
        ...


async def converse(
    provider: Provider,
    request: ModelRequest,
    sink: Sink,
    *,
    patience: Patience,
    waiting: Callable[[Waiting], None],
) -> Finished:
    """Call a model, with retries, and return the end of its answer.

    Raises the `ProviderError` of the last attempt. *waiting* is called with every notice; it must not
    block. Errors of the sink pass through and cause no retry.
    """
    watch = _Watch(patience, waiting)
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(watch.keep, name="silence watch")
        finished = await _Call(provider, request, sink, patience, watch).answer()
        nursery.cancel_scope.cancel()
    return finished


# ── Attempts ────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class _Call:
    """One call with all its attempts."""

    provider: Provider
    request: ModelRequest
    sink: Sink
    patience: Patience
    watch: "_Watch"
    _number: int = field(default=1, init=False)
    _slow: int = field(default=0, init=False)
    _since: float = field(default=inf, init=False)
    """When the current attempt began."""
    _took: bool = field(default=False, init=False)
    """Whether the sink has parts of this attempt."""

    async def answer(self) -> Finished:
        while True:
            try:
                return await self._attempt()
            except ProviderError as exc:
                cause, pause = exc, self._pause_after(exc)
            await self._rest(pause, cause)
            self._number += 1
            self.watch.heard = False
            if self._took:
                self._took = False
                await self.sink.reset()

    async def _attempt(self) -> Finished:
        """Read one answer to its end. Every wait has a limit; taking a part has none."""
        self._since = trio.current_time()
        model, more = (
            Waiting(what=what, seconds=0.0, attempt=self._number) for what in (MODEL, MORE)
        )
        with self.watch.minding():
            self.watch.expect(model, limit=self.patience.first_part)
            async with open_answer(self.provider, self._listening) as parts:
                while True:
                    part = await _next(parts)
                    await self._hand_over(part)
                    if isinstance(part, Finished):
                        return part
                    self.watch.expect(more, limit=self.patience.between_parts)
        raise self._too_slow()

    @property
    def _listening(self) -> ModelRequest:
        """The request, with our callback for signs of life."""
        return evolve(self.request, heard=self.watch.alive)

    async def _hand_over(self, part: StreamPart) -> None:
        """Give *part* to the sink, without a time limit."""
        self.watch.arrived()
        await trio.lowlevel.checkpoint_if_cancelled()
        self._took = True
        await self.sink.take(part)

    def _too_slow(self) -> ProviderTooSlow:
        if trio.current_time() >= self.watch.end:
            return self._limit("turn", f"no end after {self.patience.whole:.0f} s")
        self._slow += 1
        if self._took:
            return self._limit("idle", f"nothing more for {self.patience.between_parts:.0f} s")
        return self._limit("first", f"nothing for {self.patience.first_part:.0f} s")

    def _limit(self, name: str, said: str) -> ProviderTooSlow:
        provider = self.request.chosen.provider
        return ProviderTooSlow(RAISE_LIMIT.format(said=said, provider=provider, name=name))

    # ── Retries ──────────────────────────────────────────────────────────

    def _pause_after(self, exc: ProviderError) -> float:
        """Return the pause before the next attempt; raises *exc* if there is none."""
        if not self._worth_another(exc):
            raise exc
        asked = exc.retry_after
        if asked is not None and asked > self.patience.longest_pause:
            detail = f"{exc.detail} (it asks for a pause of {asked:.0f} s)".strip()
            raise type(exc)(detail, status=exc.status, retry_after=asked) from exc
        pause = self._backoff() if asked is None else asked + self._jitter()
        if trio.current_time() + pause >= self.watch.end:
            raise exc
        self._log_retry(exc, pause)
        return pause

    def _worth_another(self, exc: ProviderError) -> bool:
        if self._number >= self.patience.attempts:
            return False
        if isinstance(exc, ProviderTooSlow):
            return self._took and self._slow < self.patience.slow_attempts
        return exc.retryable

    def _backoff(self) -> float:
        doubled = self.patience.first_pause * 2.0 ** (self._number - 1)
        return min(doubled * (1 + self._jitter() / 4), self.patience.longest_pause)

    def _jitter(self) -> float:
        """Return a number from 0 to 1 that depends on the conversation and the attempt only.

        Conversations that failed together retry at different times, and a replayed test pauses as
        long as the first time.
        """
        return zlib.crc32(f"{self.request.affinity}/{self._number}".encode()) / 2**32

    def _billed(self, exc: ProviderError) -> bool:
        """Whether the attempt that ended with *exc* may be billed: the provider had begun to answer.

        A request that was dropped after a while counts too: a model has probably worked on it.
        """
        not_asked = isinstance(exc, ProviderRateLimited) or isinstance(exc.__cause__, ConnectFailed)
        worked = trio.current_time() - self._since > WORKED_AFTER and not not_asked
        return self._took or self.watch.heard or worked

    async def _rest(self, pause: float, cause: ProviderError) -> None:
        billed = self._billed(cause)
        what = (BILLED if billed else "another attempt after {title}").format(title=cause.title)
        wait = Waiting(what=what, seconds=0.0, attempt=self._number, cause=cause, billed=billed)
        with self.watch.minding():
            self.watch.expect(wait, notice=0.0)
            await trio.sleep(pause)

    def _log_retry(self, exc: ProviderError, pause: float) -> None:
        log.warning(
            "provider.retry: %s; attempt %d failed, the next one in %.1f s",
            hide_secrets(str(exc)),
            self._number,
            pause,
            extra={
                "code": exc.code,
                "status": exc.status,
                "attempt": self._number,
                "billed": self._billed(exc),
                "pause": round(pause, 3),
                "provider": self.request.chosen.provider,
                "model": self.request.model.id,
            },
        )


async def _next(parts: Parts) -> StreamPart:
    if not hasattr(parts, "__anext__"):
        raise TypeError(
            f"stream of the provider yielded a {type(parts).__name__}: yield an async iterator of parts, once"
        )
    try:
        part = await anext(parts)
    except StopAsyncIteration:
        raise ProviderGarbled("the answer ended early; its last part is Finished(…)") from None
    check_part(part)
    return part


# ── Notices and time limits ───────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class _Watch:
    """Sends notices about long waits, and cancels waits that exceed their limit.

    The call says what it waits for, and when it does not wait. One task sleeps until a notice or a
    limit is due. Its alarm is a cancel scope whose deadline the call moves: nothing is polled, and
    while the call does not wait there is no timer.
    """

    patience: Patience
    waiting: Callable[[Waiting], None]
    heard: bool = field(default=False, init=False)
    """Whether the current attempt has brought bytes of an answer."""
    end: float = field(init=False)
    """When the limit of the whole call is reached."""
    _begun: float = field(factory=trio.current_time, init=False)
    _ending: float = field(init=False)
    _wait: Waiting | None = field(default=None, init=False)
    _since: float = field(default=inf, init=False)
    _next: float = field(default=inf, init=False)
    _until: float = field(default=inf, init=False)
    _limit: float = field(default=inf, init=False)
    _minded: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    _alarm: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.end = self._begun + self.patience.whole
        self._ending = self._begun + 0.9 * self.patience.whole

    @contextmanager
    def minding(self) -> Generator[None]:
        """Watch the waits of a block; the block is cancelled if one takes too long."""
        try:
            with trio.CancelScope() as self._minded:
                yield
        finally:
            self.rest()

    def expect(self, wait: Waiting, *, limit: float = inf, notice: float = inf) -> None:
        """Start a wait of at most *limit* seconds.

        The first notice is sent after *notice* seconds, else after the usual time, halfway at the latest.
        """
        now = trio.current_time()
        self._wait, self._since, self._limit = wait, now, limit
        self._until = min(now + limit, self.end)
        self._next = now + min(notice, self.patience.notice_after, limit / 2)
        self._alarm.deadline = self._due

    def alive(self) -> None:
        """Restart the limit of the current wait: bytes came, perhaps without a part in them."""
        now, self.heard = trio.current_time(), True
        if self._wait is not None and now < self._until:
            self._until = min(now + self._limit, self.end)
            self._alarm.deadline = self._due

    def arrived(self) -> None:
        """End a wait: something came. If it came at the deadline, it is too late."""
        if trio.current_time() >= self._until:
            self._minded.cancel()
        self.rest()

    def rest(self) -> None:
        """Stop watching: the call does not wait for the provider now."""
        self._wait = None
        self._alarm.deadline = inf

    async def keep(self) -> None:
        """Send notices that are due, one of them near the end of the whole call; cancel what exceeds a limit."""
        while True:
            with trio.CancelScope(deadline=self._due) as self._alarm:
                await trio.sleep_forever()
            if self._wait is not None:
                self._ring(self._wait, trio.current_time())

    @property
    def _due(self) -> float:
        return inf if self._wait is None else min(self._next, self._ending, self._until)

    def _ring(self, wait: Waiting, now: float) -> None:
        if now >= self._next:
            self._next = now + self.patience.notice_every
            self.waiting(evolve(wait, seconds=now - self._since))
        if now >= self._ending:
            self._ending = inf
            self.waiting(evolve(wait, what=END, seconds=now - self._begun, cause=None))
        if now >= self._until:
            self._until = inf
            self._minded.cancel()
