"""Clients of a soak: they submit prompts, singly and in herds, cancel, and edit queues.

Each is a task with its own connection and random source.
"""

import random
from collections.abc import Sequence
from typing import Final

import trio
from attrs import define, field

from benchmarks.soak.desk import Desk
from benchmarks.soak.ledger import Prompt, Talk
from benchmarks.soak.server import Line

PROMPTS_PER_TALK: Final = 40
"""The most prompts in a session: each model request has all of them."""

FILE: Final = 500_000
"""Bytes of a file that is attached now and then."""


@define(eq=False)
class Client:
    """One client of a workspace: a connection and a random source."""

    desk: Desk
    random: random.Random
    pace: float
    line: Line = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.line = Line(self.desk.site)

    async def pause(self, upto: float) -> None:
        """Wait for a random time."""
        await trio.sleep(self.random.uniform(0, upto * self.pace))

    def words(self) -> str:
        """Return a prompt for the model whose answer ends by itself."""
        kind = self.random.random()
        if kind < 0.7:
            return f"say {self.random.randint(1, 60)}"
        if kind < 0.97:
            return f"drip {self.random.randint(2, 25)} {self.random.randint(1, 60)}"
        return f"shell {self.random.choice((0, 0, 1))}"


@define(eq=False)
class Talker(Client):
    """Submits prompts in its own sessions: with and without waiting, run ids and cancels."""

    async def run(self) -> None:
        """Submit prompts until cancelled."""
        while True:
            talk = await self.desk.talk(self.line, ordered=self.random.random() < 0.5)
            for _ in range(PROMPTS_PER_TALK):
                await self._say(talk)
                await self.pause(0.4)

    async def _say(self, talk: Talk) -> None:
        chance, desk, line = self.random.random(), self.desk, self.line
        if chance < 0.06:
            await self._hold(talk)
        elif chance < 0.12:
            await desk.prompt(line, talk, self.words(), "interrupt")
        elif chance < 0.18:
            await desk.prompt(line, talk, self.words(), "reject")
        elif chance < 0.4:
            await desk.prompt(line, talk, self.words(), named=False)
        elif chance < 0.41:
            await desk.prompt(line, talk, self.words(), attached=self.random.randbytes(FILE))
        elif chance < 0.45:
            prompt = await desk.prompt(line, talk, "shell 30")
            await self.pause(1.5)
            await _insist(desk, line, prompt, receipt=True)
        else:
            prompt = await desk.prompt(line, talk, self.words())
            if prompt.accepted and self.random.random() < 0.1:
                await desk.repeat(line, prompt)

    async def _hold(self, talk: Talk) -> None:
        """Send a prompt that only a cancel ends, with some queued behind it, and cancel it."""
        held = await self.desk.prompt(self.line, talk, "hold")
        behind = self.random.choice((0, 1, 5, 12))
        for _ in range(behind):
            named = self.random.random() < 0.7
            await self.desk.prompt(self.line, talk, self.words(), named=named)
        await self.pause(3.0 if behind > 1 else 0.5)
        await _insist(self.desk, self.line, held, receipt=self.random.random() < 0.5)


async def _insist(desk: Desk, line: Line, prompt: Prompt, *, receipt: bool) -> None:
    """Cancel a run, and again if the answer was lost, unless it has ended."""
    while prompt.accepted and not prompt.state:
        if await desk.cancel_run(line, prompt, receipt=receipt):
            return
        await trio.sleep(0.1)


@define(eq=False)
class Herd(Client):
    """Sends hundreds of prompts at once into one session, and stops them in one of several ways."""

    size: int = 200
    lines: int = 8

    async def run(self) -> None:
        """Send herds until cancelled."""
        while True:
            await self._come()
            await self.pause(12.0)

    async def _come(self) -> None:
        desk, line = self.desk, self.line
        talk = await desk.talk(line, ordered=True)
        way = self.random.choice(("cancel", "cancel", "interrupt", "clear", "run", "fold"))
        few = way in {"run", "fold"}
        size = (
            self.random.randint(10, 40) if few else self.random.randint(self.size // 4, self.size)
        )
        desk.site.counts.add("herds")
        desk.site.note(f"herd of {size} in {talk.id}: {way}")
        first = "drip 10 30" if few else "hold"
        held = await desk.prompt(line, talk, first)
        async with trio.open_nursery() as nursery:
            for share in _shares(size, self.lines):
                nursery.start_soon(self._send, talk, share, way)
            if way == "cancel" and self.random.random() < 0.5:  # while prompts are still being sent
                await self.pause(1.0)
                await desk.cancel(line, talk)
        await self._stop(way, talk, held)

    async def _send(self, talk: Talk, number: int, way: str) -> None:
        line = Line(self.desk.site)
        for _ in range(number):
            words = f"say {self.random.randint(1, 20)}"
            await self.desk.prompt(line, talk, words, named=way != "fold")
        await line.aclose()

    async def _stop(self, way: str, talk: Talk, held: Prompt) -> None:
        desk, line = self.desk, self.line
        if way == "interrupt":
            await desk.prompt(line, talk, "say 3", "interrupt")
        if way == "clear":
            await desk.clear(line, talk)
        if way == "cancel" or self.random.random() < 0.2:
            await desk.cancel(line, talk, receipt=self.random.random() < 0.5)
            await desk.cancel(line, talk)
            await desk.prompt(line, talk, "say 2")
        await _insist(desk, line, held, receipt=False) if held.text.startswith("hold") else None


def _shares(whole: int, parts: int) -> Sequence[int]:
    return [whole // parts + (number < whole % parts) for number in range(parts)]


@define(eq=False)
class Canceller(Client):
    """Cancels runs and sessions of other clients at any instant."""

    async def run(self) -> None:
        """Cancel until cancelled."""
        while True:
            await self.pause(1.6)
            if not self.desk.talks:
                continue
            talk = self.random.choice(self.desk.talks)
            receipt, twice = self.random.random() < 0.3, self.random.random() < 0.3
            live = [p for p in talk.prompts if p.named and not p.refused and not p.state]
            for _ in range(1 + twice):
                chance = self.random.random()
                if chance < 0.15:
                    await self.desk.cancel_active(self.line, talk)
                elif live and chance < 0.7:
                    await self.desk.cancel_run(self.line, self.random.choice(live), receipt=receipt)
                else:
                    await self.desk.cancel(self.line, talk, receipt=receipt)


@define(eq=False)
class Editor(Client):
    """Edits queues: removes, moves, changes texts, clears. Also reads runs and lists."""

    async def run(self) -> None:
        """Edit until cancelled."""
        while True:
            await self.pause(0.3)
            found = [(talk, _waiting(talk)) for talk in self.desk.talks if not talk.ordered]
            queues = [(talk, waiting) for talk, waiting in found if len(waiting) > 1]
            if queues:
                await self._edit(*self.random.choice(queues))
            if self.desk.talks:
                await self._look(self.random.choice(self.desk.talks))

    async def _edit(self, talk: Talk, waiting: list[Prompt]) -> None:
        desk, line, chance = self.desk, self.line, self.random.random()
        prompt = self.random.choice(waiting)
        if chance < 0.05:
            await desk.clear(line, talk)
        elif chance < 0.35:
            await desk.remove(line, prompt)
        elif chance < 0.7 and prompt.text.startswith("say"):
            await desk.edit(line, prompt, f"say {self.random.randint(1, 60)}", None)
        else:
            await desk.edit(line, prompt, None, self.random.randint(0, 3))

    async def _look(self, talk: Talk) -> None:
        desk, line, chance = self.desk, self.line, self.random.random()
        named = [prompt for prompt in talk.prompts if prompt.named]
        if chance < 0.3 and named:
            await desk.look(line, self.random.choice(named))
        elif chance < 0.6:
            await desk.look_at_queue(line, talk)
        elif chance < 0.8:
            messages = f"/sessions/{talk.id}/messages?limit=20"
            await desk.look_at(line, self.random.choice((messages, "/runs?limit=50", "/tasks")))


def _waiting(talk: Talk) -> list[Prompt]:
    """Return the prompts of a session that can probably be edited."""
    return [p for p in talk.prompts if p.named and p.accepted and not p.state and not p.asked]
