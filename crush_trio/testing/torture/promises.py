"""The promises, their checks, and the verdicts: runs the checks one after another and says what was found.

A verdict is `kept`, `broken` with the first evidence, `not applicable` in this profile or for this model, or
`undecided` if the check could not be carried out.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio
from attrs import asdict, define, field, frozen

from crush_trio.testing.torture import cancels, endings, readers
from crush_trio.testing.torture.kit import POLL, Kit, NotApplicable, Undecided
from crush_trio.testing.torture.ledger import Violation
from crush_trio.testing.torture.target import Reader, Target
from crush_trio.testing.torture.view import Json

KEPT: Final = "kept"
BROKEN: Final = "broken"
NOT_APPLICABLE: Final = "not applicable"
UNDECIDED: Final = "undecided"


CLEAN_LIMIT: Final = 5.0
"""Seconds that cancelling what a check has left may take."""


RELEASE_LIMIT: Final = 15.0
"""Seconds that a server may take to close the workspace after the last check."""


class CannotRun(Exception):
    """The kit cannot begin; the text says what to do."""


@frozen
class Promise:
    """A promise and its check."""

    name: str
    sentence: str
    check: Callable[[Kit], Awaitable[None]]
    native_only: bool = False


PROMISES: Final = (
    Promise("endings", "every accepted run ends exactly once on each stream", endings.one_ending),
    Promise(
        "queue-order", "prompts of a session run in the order of acceptance", endings.queue_order
    ),
    Promise("cancel-ends", "a cancel at any instant of a run's life ends it", cancels.cancel_ends),
    Promise("cancel-later", "a cancel never hits a prompt sent after it", cancels.cancel_later),
    Promise("cancel-storm", "a storm of cancels loses none and leaves nothing", cancels.storm),
    Promise("reconnect", "an ending is visible after a reconnect", readers.reconnect),
    Promise("resume", "a reader that was cut knows what an uncut one knows", readers.resume),
    Promise(
        "slow-readers",
        "slow and stalled readers block nobody and get every ending",
        readers.slow_readers,
    ),
    Promise("disconnect", "a disconnect during a submission changes nothing", endings.disconnect),
    Promise(
        "repeat", "submissions with the same run id are one run", endings.repeat, native_only=True
    ),
    Promise("tool-order", "a tool call comes before its result and finish", endings.tool_order),
    Promise("stored", "stored messages equal streamed ones", endings.stored),
)
"""In the order in which they are checked."""


@frozen
class Verdict:
    """What was found about one promise."""

    name: str
    promise: str
    verdict: str
    evidence: str = ""
    seconds: float = 0.0


@define(eq=False)
class Trial:
    """One run of the kit against one server; `verdicts` grows while it works."""

    target: Target
    seed: int
    nonce: str
    directory: str
    limit: float
    """Seconds that all checks may take together."""
    say: Callable[[str], None]
    """Called with every line of progress."""
    verdicts: list[Verdict] = field(factory=list, init=False)

    async def run(self, promises: Sequence[Promise]) -> None:
        """Check *promises*; raises `CannotRun` if the server cannot be used at all."""
        deadline = trio.current_time() + self.limit
        try:
            await self._open()
            for promise in promises:
                await self._judge(promise, deadline)
        finally:
            with trio.move_on_after(RELEASE_LIMIT, shield=True):
                await self._release()

    async def _judge(self, promise: Promise, deadline: float) -> None:
        began = trio.current_time()
        self.say(f"{promise.name}: {promise.sentence} …")
        verdict, evidence = UNDECIDED, f"the time limit of {self.limit:g} s was over"
        with trio.CancelScope(deadline=deadline):
            verdict, evidence = await self._check(promise)
        seconds = round(trio.current_time() - began, 1)
        self.verdicts.append(Verdict(promise.name, promise.sentence, verdict, evidence, seconds))
        self.say(f"{promise.name}: {verdict}{evidence and ': '}{evidence} ({seconds:g} s)")

    async def _check(self, promise: Promise) -> tuple[str, str]:
        await trio.lowlevel.checkpoint()
        if promise.native_only and not self.target.native:
            return NOT_APPLICABLE, "the crush wire does not promise this"
        found: list[Exception] = []
        try:
            async with self._kit(promise.name) as kit:
                await promise.check(kit)
                if kit.watcher.broken is not None:
                    raise kit.watcher.broken
        except* (Violation, NotApplicable, Undecided) as group:
            found += _leaves(group)
        except* (LookupError, TypeError, ValueError, AttributeError) as group:
            odd = _leaves(group)[0]
            found.append(Violation(f"an answer does not have the form of the wire: {odd!r}"))
        for kind, verdict in (
            (Violation, BROKEN),
            (NotApplicable, NOT_APPLICABLE),
            (Undecided, UNDECIDED),
        ):
            for exc in found:
                if isinstance(exc, kind):
                    return verdict, str(exc)
        return KEPT, ""

    @asynccontextmanager
    async def _kit(self, name: str) -> AsyncIterator[Kit]:
        """Attach a watcher; the choices of a check depend on the seed and its name alone."""
        watcher = Reader(self.target)
        tags = f"{self.nonce}-{name}"
        kit = Kit(self.target, watcher, random.Random(f"{self.seed}/{name}"), tags)
        async with trio.open_nursery() as nursery:
            await nursery.start(watcher.visit)
            try:
                yield kit
            finally:
                with trio.move_on_after(CLEAN_LIMIT, shield=True), suppress(Violation):
                    await kit.clean()
            nursery.cancel_scope.cancel()

    # ── Before and after ────────────────────────────────────────────────────────────────────────

    async def _open(self) -> None:
        """Open a workspace, and see whether a prompt is answered in it."""
        target = self.target
        body = {"path": self.directory, "client_id": target.client_id}
        try:
            reply = await target.ask("POST", "/v1/workspaces", body)
        except Violation as exc:
            raise CannotRun(
                f"the server at {target.address} does not answer: {exc}; start it, or name another "
                "with --url"
            ) from None
        if reply.status != 200:
            advice = "name a directory that the server may use with --directory"
            if reply.status in {401, 403}:
                advice = "pass a token that may open workspaces with --token"
            raise CannotRun(f"the server opened no workspace: {reply.sentence()}; {advice}")
        target.base = f"/v1/workspaces/{_id_of(reply.json())}"
        self.say(f"workspace {self.directory}; trying a prompt …")
        await self._try()

    async def _try(self) -> None:
        await trio.lowlevel.checkpoint()
        found: list[Exception] = []
        try:
            async with self._kit("try") as kit:
                prompt = await kit.prompt(await kit.talk())
                await kit.ended_well(prompt)
        except* (Violation, Undecided) as group:
            found += _leaves(group)
        if found:
            raise CannotRun(
                f"the first prompt was not answered: {found[0]}; see that the server has a model that "
                "works (--model starts one), and that --profile is right"
            )

    async def _release(self) -> None:
        """Release the workspace, and wait until it is closed, so that its directory can be removed.

        It stays open if others use it. A server that is gone needs no farewell.
        """
        await trio.lowlevel.checkpoint()
        if not self.target.base:
            return
        with suppress(Violation):
            query = f"?client_id={self.target.client_id}"
            await self.target.ask("DELETE", f"{self.target.base}{query}")
            while (await self.target.ask("GET", self.target.base)).status != 404:  # noqa: ASYNC110
                await trio.sleep(POLL)

    # ── Results ─────────────────────────────────────────────────────────────────────────────────

    @property
    def exit_code(self) -> int:
        """0 if every promise was kept, 1 if one was broken, 2 if one could not be checked."""
        found = {verdict.verdict for verdict in self.verdicts}
        return 1 if BROKEN in found else 2 if UNDECIDED in found else 0

    def report(self) -> Json:
        """Return everything as JSON."""
        return {
            "url": str(self.target.address),
            "profile": "native" if self.target.native else "crush",
            "seed": self.seed,
            "exit_code": self.exit_code,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
        }


def _id_of(workspace: Json) -> str:
    try:
        return str(workspace["id"])
    except (KeyError, TypeError):
        raise CannotRun("the answer to POST /v1/workspaces has no id; is it a server?") from None


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    found: list[Exception] = []
    for exc in group.exceptions:
        found += _leaves(exc) if isinstance(exc, BaseExceptionGroup) else [exc]
    return found
