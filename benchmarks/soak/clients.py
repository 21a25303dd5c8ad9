"""Clients of a soak: they talk, come in herds, cancel, and edit queues.

Each is a task with a connection and a random source of its own. Whatever a request is answered with
goes through `Desk.judge`, which knows the answers that are in order.
"""

import random
import time
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final

import trio
from attrs import define, field

from benchmarks.driver.http import Reply
from benchmarks.soak.ledger import Ledger, Prompt, Stop, Talk, Violation
from benchmarks.soak.server import Line, Site

ACCEPT_LIMIT: Final = 15.0
"""Seconds in which a prompt is answered: `Limits.accept`, and a busy machine."""

PROMPTS_PER_TALK: Final = 40
"""A session is left after so many prompts: the model is sent all of them with each request."""

BUSY: Final = frozenset({"session_busy"})
DISK: Final = frozenset(
    {"acceptance_not_stored", "no_room_for_prompt", "disk_full", "disk_failed", "store_busy", "store_slow"}
)
MOVING: Final = frozenset({"server_shutting_down", "workspace_closing", "workspace_not_found"})
ENDED: Final = frozenset({"run_not_queued", "run_not_found"})

_numbers: Final = count(1)


@define(eq=False)
class Desk:
    """What the clients of one workspace share."""

    site: Site
    ledger: Ledger
    workspace: int
    talks: list[Talk] = field(factory=list, init=False)
    """Sessions that are in use."""

    @property
    def base(self) -> str:
        """The path of the workspace in the server that runs now."""
        return self.site.bases[self.workspace]

    def judge(self, what: str, reply: Reply, good: int, codes: Iterable[str] = ()) -> str:
        """Return "" if *reply* is what was asked for, or the code of a refusal that is in order."""
        if reply.status == good:
            return ""
        try:
            said = reply.json()
            code, message = said["code"], said["message"]
        except (ValueError, KeyError, TypeError):
            raise Violation(f"{what}: {reply.status} without code and sentence: {reply.body!r}") from None
        moving = time.monotonic() < self.site.changing + 10 or not self.site.up.is_set()
        known = {*codes, *(DISK if self.site.troubled else ()), *(MOVING if moving else ())}
        if code not in known or not message:
            raise Violation(f"{what}: {reply.status} {code}: {message}")
        return str(code)

    async def talk(self, line: Line, *, ordered: bool) -> Talk:
        """Make a session."""
        while True:
            await self.site.up.wait()
            reply = await line.ask("POST", f"{self.base}/sessions", {"title": "soak"})
            if reply is not None and not self.judge("create session", reply, 200):
                talk = self.ledger.talk(reply.json()["id"], self.workspace, ordered=ordered)
                self.talks = [*self.talks[-20:], talk]
                self.site.counts.add("sessions")
                return talk
            await trio.sleep(0.2)

    # ── Prompts ─────────────────────────────────────────────────────────────────────────────────

    async def prompt(
        self, line: Line, talk: Talk, words: str, policy: str = "", *, named: bool = True
    ) -> Prompt:
        """Send a prompt; one whose answer was lost is sent again, if it has a run id."""
        tag = f"w{self.workspace}-{next(_numbers)}"
        await self.site.up.wait()
        prompt = Prompt(tag, talk, [f"{words} #{tag}"], named, time.monotonic(), policy)
        self.site.counts.add("prompts")
        stop = self.ledger.send(prompt)
        body = {"session_id": talk.id, "prompt": prompt.text}
        if named:
            body["run_id"] = tag
        if policy:
            body["when_busy"] = policy
        if words.startswith("shell"):
            body = {**body, "permissions": {"mode": "allow"}}  # type: ignore[dict-item]
        await self._submit(line, prompt, body, stop)
        while prompt.verdict == "unknown" and named:
            self.site.counts.add("prompts sent again")
            await self._submit(line, prompt, body, stop)
        return prompt

    async def _submit(
        self, line: Line, prompt: Prompt, body: dict[str, str], stop: Stop | None
    ) -> None:
        site = self.site
        await site.up.wait()
        reply = await line.ask("POST", f"{self.base}/agent", body)
        now = time.monotonic()
        if reply is None:
            self.ledger.settle(prompt, "unknown", now, stop)
            return
        site.counts.accepting.append(reply.seconds)
        if reply.seconds > ACCEPT_LIMIT:
            raise Violation(f"{prompt.tag} was answered after {reply.seconds:.1f} s")
        busy = BUSY if prompt.policy == "reject" else ()
        code = self.judge(f"prompt {prompt.tag}", reply, 202, busy)
        if code and prompt.verdict == "unknown" and code in MOVING | DISK:
            await trio.sleep(0.2)  # it may have been accepted before: only a 202 can say
            return
        if code:
            site.counts.add("refused")
            site.counts.refused[f"{reply.status} {code}"] += 1
        else:
            site.counts.add("accepted")
            if reply.body:
                site.counts.add("repetitions recognised")
        self.ledger.settle(prompt, code or "accepted", now, stop)

    async def repeat(self, line: Line, prompt: Prompt) -> None:
        """Send an accepted prompt again: it has to be known."""
        body = {"session_id": prompt.talk.id, "prompt": prompt.original, "run_id": prompt.tag}
        reply = await line.ask("POST", f"{self.base}/agent", body)
        edited = () if prompt.texts == [prompt.original] else ("run_id_taken",)
        if reply is None or self.judge(f"repetition of {prompt.tag}", reply, 202, edited):
            return
        if not reply.body or not reply.json().get("repeated"):
            raise Violation(f"{prompt.tag} was accepted twice")
        self.site.counts.add("repetitions recognised")

    # ── Stops ───────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, line: Line, talk: Talk, *, receipt: bool = False) -> bool:
        """Cancel a session; return whether that was answered."""
        stop = self.ledger.stop(talk, "cancel", time.monotonic())
        before = [prompt for prompt in talk.prompts if prompt.accepted and not prompt.state]
        query = "?receipt=1" if receipt else ""
        target = f"{self.base}/agent/sessions/{talk.id}/cancel{query}"
        reply = await line.ask("POST", target)
        if reply is None or self.judge("cancel", reply, 200):
            return False
        self.site.counts.add("cancels")
        self.ledger.stopped(stop, before, time.monotonic())
        if receipt:
            self._read_receipt(reply)
        return True

    async def cancel_run(self, line: Line, prompt: Prompt, *, receipt: bool = False) -> bool:
        """Cancel one run; return whether that was answered."""
        stop = self.ledger.stop_one(prompt, "cancel", time.monotonic())
        query = "?receipt=1" if receipt else ""
        reply = await line.ask("POST", f"{self.base}/runs/{prompt.tag}/cancel{query}")
        known = () if prompt.accepted else ("run_not_found",)
        if reply is None or self.judge(f"cancel of {prompt.tag}", reply, 200, known):
            return False
        self.site.counts.add("cancels")
        self.ledger.stopped(stop, [prompt], time.monotonic())
        if receipt:
            self._read_receipt(reply)
        return True

    def _read_receipt(self, reply: Reply) -> None:
        receipt = reply.json()
        self.site.counts.add("receipts")
        if not receipt["complete"] and not self.site.troubled:
            raise Violation(f"a receipt that is not complete: {reply.body[:1000]!r}")
        for hit in receipt["hits"]:
            prompt = self.ledger.prompts.get(hit.get("run_id") or "")
            before = hit["state"] in {"queued", "accepted"}
            if prompt is not None and before and hit.get("ended") == "cancelled":
                self.ledger.withdrawn(prompt, f"its cancel met it as {hit['state']}")
                self.site.counts.add("prompts withdrawn for certain")

    async def clear(self, line: Line, talk: Talk) -> None:
        """Clear the queue of a session."""
        stop = self.ledger.stop(talk, "clear", time.monotonic())
        reply = await line.ask("POST", f"{self.base}/agent/sessions/{talk.id}/prompts/clear")
        if reply is not None and not self.judge("clear", reply, 200):
            stop.answered = time.monotonic()
            self.site.counts.add("queue edits")

    async def remove(self, line: Line, prompt: Prompt) -> None:
        """Take a prompt out of its queue."""
        stop = self.ledger.stop_one(prompt, "remove", time.monotonic())
        target = f"{self.base}/agent/sessions/{prompt.talk.id}/queue/{prompt.tag}"
        reply = await line.ask("DELETE", target)
        if reply is None:
            return
        if self.judge(f"removal of {prompt.tag}", reply, 200, ENDED):
            stop.void = True
            return
        self.site.counts.add("queue edits")
        self.ledger.stopped(stop, [prompt], time.monotonic())
        self.ledger.withdrawn(prompt, "it was removed from the queue")
        self.site.counts.add("prompts withdrawn for certain")

    async def edit(self, line: Line, prompt: Prompt, words: str | None, index: int | None) -> None:
        """Give a waiting prompt another text, another place, or both."""
        body: dict[str, object] = {}
        if words is not None:
            prompt.texts.append(f"{words} #{prompt.tag}")
            body["prompt"] = prompt.text
        if index is not None:
            body["index"] = index
        target = f"{self.base}/agent/sessions/{prompt.talk.id}/queue/{prompt.tag}"
        reply = await line.ask("PATCH", target, body)
        if reply is None:
            return
        code = self.judge(f"edit of {prompt.tag}", reply, 200, ENDED)
        if not code:
            self.site.counts.add("queue edits")
        if words is not None and not code:
            prompt.texts[:] = [prompt.text]
        elif words is not None and code in ENDED:
            prompt.texts.pop()


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
        """Return what a prompt asks for; nothing that does not end by itself."""
        kind = self.random.random()
        if kind < 0.7:
            return f"say {self.random.randint(1, 60)}"
        if kind < 0.97:
            return f"drip {self.random.randint(2, 25)} {self.random.randint(1, 60)}"
        return f"shell {self.random.choice((0, 0, 1))}"


@define(eq=False)
class Talker(Client):
    """Talks in sessions of its own: waits or not, names its runs or not, holds and lets go."""

    async def run(self) -> None:
        """Talk until cancelled."""
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
        elif chance < 0.45:
            prompt = await desk.prompt(line, talk, "shell 30")
            await self.pause(1.5)
            await _insist(desk, line, prompt, receipt=True)
        else:
            prompt = await desk.prompt(line, talk, self.words())
            if prompt.accepted and self.random.random() < 0.1:
                await desk.repeat(line, prompt)

    async def _hold(self, talk: Talk) -> None:
        """Send a prompt that ends by a cancel only, some behind it perhaps, and cancel it."""
        held = await self.desk.prompt(self.line, talk, "hold")
        for _ in range(self.random.choice((0, 0, 1, 5))):
            named = self.random.random() < 0.7
            await self.desk.prompt(self.line, talk, self.words(), named=named)
        await self.pause(1.0)
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
        """Come again and again until cancelled."""
        while True:
            await self._come()
            await self.pause(12.0)

    async def _come(self) -> None:
        desk, line = self.desk, self.line
        talk = await desk.talk(line, ordered=True)
        way = self.random.choice(("cancel", "cancel", "interrupt", "clear", "run", "fold"))
        few = way in {"run", "fold"}
        size = self.random.randint(10, 40) if few else self.random.randint(self.size // 4, self.size)
        desk.site.counts.add("herds")
        desk.site.note(f"herd of {size} in {talk.id}: {way}")
        first = "drip 10 30" if few else "hold"
        held = await desk.prompt(line, talk, first)
        async with trio.open_nursery() as nursery:
            for share in _shares(size, self.lines):
                nursery.start_soon(self._send, talk, share, way)
            if way == "cancel" and self.random.random() < 0.5:  # in the midst of it
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
                if live and self.random.random() < 0.7:
                    await self.desk.cancel_run(self.line, self.random.choice(live), receipt=receipt)
                else:
                    await self.desk.cancel(self.line, talk, receipt=receipt)


@define(eq=False)
class Editor(Client):
    """Edits queues: removes, moves, changes texts, clears. Looks at lists too."""

    async def run(self) -> None:
        """Edit until cancelled."""
        while True:
            await self.pause(0.5)
            talks = [talk for talk in self.desk.talks if not talk.ordered]
            if talks:
                await self._edit(self.random.choice(talks))
            await self._look()

    async def _edit(self, talk: Talk) -> None:
        desk, line, chance = self.desk, self.line, self.random.random()
        if chance < 0.05:
            await desk.clear(line, talk)
            return
        waiting = [p for p in talk.prompts if p.named and p.accepted and not p.state]
        if not waiting:
            return
        prompt = self.random.choice(waiting)
        if chance < 0.4:
            await desk.remove(line, prompt)
        elif chance < 0.7 and prompt.text.startswith("say"):
            await desk.edit(line, prompt, f"say {self.random.randint(1, 60)}", None)
        else:
            await desk.edit(line, prompt, None, self.random.randint(0, 3))

    async def _look(self) -> None:
        desk = self.desk
        if not desk.talks or self.random.random() > 0.5:
            return
        session = self.random.choice(desk.talks).id
        target = self.random.choice(
            (
                f"{desk.base}/agent/sessions/{session}/queue",
                f"{desk.base}/sessions/{session}/messages?limit=20",
                f"{desk.base}/runs?limit=50",
                f"{desk.base}/agent",
                f"{desk.base}/tasks",
            )
        )
        reply = await self.line.ask("GET", target)
        if reply is not None:
            desk.judge(f"GET {target}", reply, 200)
