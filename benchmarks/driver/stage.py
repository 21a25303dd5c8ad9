"""`Stage`: a server under test with a workspace and a witness, ready for a workload."""

import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final
from uuid import UUID

import trio
from attrs import define, frozen

from benchmarks.driver.frames import CRUSH, NATIVE
from benchmarks.driver.http import Caller, Reply
from benchmarks.driver.listeners import Crowd, Witness, open_crowd, open_witness
from benchmarks.driver.provider import Provider, parse_prompt
from benchmarks.driver.targets import Served, Target, trust_workspaces, write_config

READY_LIMIT: Final = 30.0
RUN_LIMIT: Final = 120.0
"""Seconds that a run may take; longer means that something is broken."""

GREETING_LIMIT: Final = 2.0
"""Seconds in which a server with the native form sends `ready` on a new stream."""

SETTLE: Final = 0.03
"""Seconds for the server's work after the last event, before its CPU clock is read."""

_random: Final = random.Random(20)
_numbers: Final = count(1)

Prepare = Callable[[Path], Awaitable[None]]
"""Prepares a workspace directory before the server opens it."""


class RunWentWrong(Exception):
    """A run did not end as expected, so the measurement is not valid."""


def client_id() -> str:
    """Return a client's id; the sequence is the same in every run of the program."""
    return str(UUID(int=_random.getrandbits(128), version=4))


def run_name() -> str:
    """Return a unique run id."""
    return f"bench-{next(_numbers)}-{_random.getrandbits(32):08x}"


@frozen(kw_only=True)
class Turn:
    """The measurements of one turn."""

    wall: float
    """Seconds from the prompt's first byte until the last client has the last event."""
    cpu: float | None
    """Seconds of the server's CPU time."""
    streaming_cpu: float | None
    """The same from the model's first word on, without building the model request."""
    bytes: int
    """Bytes of events that one client received."""
    updates: int
    """The number of message deltas, in native form."""
    overhead: int
    """Bytes of the largest delta without its text."""
    driver: float
    """The share of a core that the driver used: near 1, the driver was the bottleneck."""


@define(eq=False)
class Stage:
    """A server under test, ready for work. `open_stage` makes one."""

    name: str
    served: Served
    provider: Provider
    caller: Caller
    base: str
    """The path of the workspace."""
    witness: Witness

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that the server's streams can have."""
        return (CRUSH,) if self.witness.form == CRUSH else (NATIVE, CRUSH)

    def cpu(self) -> float | None:
        """Seconds of CPU time the server has used; None if its process is not known."""
        return None if self.served.gauge is None else self.served.gauge.cpu()

    def rss(self) -> int | None:
        """Bytes of the server in memory; None if its process is not known."""
        return None if self.served.gauge is None else self.served.gauge.rss()

    # ── Requests ────────────────────────────────────────────────────────────────────────────────

    async def new_session(self) -> str:
        """Create a session."""
        reply = await self.caller.ask("POST", f"{self.base}/sessions", {"title": "benchmark"})
        return str(reply.json()["id"])

    async def warm_session(self) -> str:
        """Create a session and complete its first run, which makes its title, as a warm-up."""
        session = await self.new_session()
        await self.play(session, "say 1")
        await trio.sleep(SETTLE)
        return session

    async def submit(
        self, session: str, prompt: str, run_id: str, caller: Caller | None = None
    ) -> Reply:
        """Send a prompt; return once it is accepted."""
        body = {"session_id": session, "prompt": prompt, "run_id": run_id}
        return await (caller or self.caller).ask("POST", f"{self.base}/agent", body, expect=202)

    async def cancel(self, session: str, caller: Caller | None = None) -> Reply:
        """Cancel the runs of a session."""
        target = f"{self.base}/agent/sessions/{session}/cancel"
        return await (caller or self.caller).ask("POST", target)

    async def play(self, session: str, prompt: str, caller: Caller | None = None) -> Reply:
        """Submit a prompt and wait for its ending; return the reply to the submission."""
        run_id = run_name()
        self.witness.expect_text(session)
        with trio.fail_after(RUN_LIMIT):
            reply = await self.submit(session, prompt, run_id, caller)
            _, state = await self.witness.ended(run_id)
        self._check(session, prompt, state)
        return reply

    def _check(self, session: str, prompt: str, state: str) -> None:
        """Raise if an answer is not what the model sent."""
        text, said = self.witness.texts.get(session, ""), parse_prompt(prompt).text
        if state != "completed" or text != said:
            raise RunWentWrong(
                f"{self.name}: {prompt!r} {state}, {len(text)} of {len(said)} characters came"
            )

    # ── Streams ─────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def crowd(self, clients: int, form: str) -> AsyncIterator[Crowd]:
        """Attach *clients* clients in *form*, one of them a witness, during the block.

        The first witness stays attached, so that the workspace stays open: it is one more client,
        in both servers that are compared.
        """
        place = self.served.place
        async with open_witness(place, events_target(self.base, form), form) as witness:
            before, self.witness = self.witness, witness
            try:
                targets = [events_target(self.base, form) for _ in range(clients - 1)]
                async with open_crowd(place, targets, form) as crowd:
                    yield crowd
            finally:
                self.witness = before

    async def measure_turn(self, session: str, prompt: str, crowd: Crowd) -> Turn:
        """Submit a prompt and measure its turn, with a crowd and the witness attached."""
        tag, marks = run_name(), list[float | None]()
        self.provider.call(tag).on_first_word = lambda: marks.append(self.cpu())
        bytes_before, updates_before = self.witness.received, self.witness.reader.updates
        crowd.expect_ending()
        before, own, began = self.cpu(), time.process_time(), trio.current_time()
        await self.play(session, f"{prompt} #{tag}")
        with trio.fail_after(RUN_LIMIT):
            await crowd.all_done()
        wall, own = trio.current_time() - began, time.process_time() - own
        await trio.sleep(SETTLE)
        after = self.cpu()
        del self.provider.calls[tag]
        seats = crowd.seats.values()
        return Turn(
            wall=wall,
            cpu=_less(after, before),
            streaming_cpu=_less(after, marks[0]),
            bytes=max((s.received for s in seats), default=self.witness.received - bytes_before),
            updates=self.witness.reader.updates - updates_before,
            overhead=self.witness.reader.overhead,
            driver=own / wall,
        )


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def events_target(base: str, form: str) -> str:
    """Return the events path of the workspace at *base*, for a new client."""
    query = "" if form == CRUSH else f"&form={form}"
    return f"{base}/events?client_id={client_id()}{query}"


@asynccontextmanager
async def open_stage(
    target: Target, provider: Provider, prepare: Prepare | None = None
) -> AsyncIterator[Stage]:
    """Start *target* and open a workspace in it, with a witness, during the block."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crush-bench-")))
        workspace = folder / "workspace"
        workspace.mkdir()
        write_config(workspace, provider.base_url)
        trust_workspaces(folder)
        if prepare is not None:
            await prepare(workspace)
        served = await stack.enter_async_context(target.serve(folder))
        caller = Caller(served.place)
        stack.push_async_callback(caller.aclose)
        base = f"/v1/workspaces/{await open_workspace(caller, workspace)}"
        native = open_witness(served.place, events_target(base, NATIVE), NATIVE)
        witness = await stack.enter_async_context(native)
        if not await witness.greeted(GREETING_LIMIT):
            crush = open_witness(served.place, events_target(base, CRUSH), CRUSH)
            witness = await stack.enter_async_context(crush)
        yield Stage(target.name, served, provider, caller, base, witness)


async def open_workspace(caller: Caller, folder: Path) -> str:
    """Create a workspace as a starting client does; return its id."""
    body = {"path": str(folder), "client_id": client_id()}
    workspace = str((await caller.ask("POST", "/v1/workspaces", body)).json()["id"])
    base = f"/v1/workspaces/{workspace}/agent"
    await caller.ask("POST", f"{base}/init", {"interactive": False})
    with trio.fail_after(READY_LIMIT):
        while not (await caller.ask("GET", base)).json()["is_ready"]:  # noqa: ASYNC110 - as clients do
            await trio.sleep(0.05)
    return workspace
