"""The kit of a check: sessions, prompts, cancels and readers of one workspace, all in one ledger.

Prompts are plain sentences that any model can answer. They also have a meaning for the offline demo, whose
answers are as long as the prompt.
"""

import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import trio
from attrs import define, field

from crush_trio.testing.torture.ledger import Ledger, Prompt, Stop, Talk, Violation
from crush_trio.testing.torture.target import Reader, Reply, Target
from crush_trio.testing.torture.view import Json, is_finished, text_of

SHORT: Final = "think about the word ok and answer with this word alone, {tag}"
"""A prompt with a short answer."""

_NUMBERS: Final = (
    "think about {tag} and write each of these numbers as an English word, one per line: "
)

LONG: Final = _NUMBERS + " ".join(map(str, range(1, 201)))
"""A prompt whose answer takes some seconds, so that a cancel comes in time."""

MEDIUM: Final = _NUMBERS + " ".join(map(str, range(1, 41)))
"""A prompt whose answer takes long enough for others to queue up."""

TOOL: Final = "please use the ls tool on ."
"""A prompt that makes a model call a tool that needs no permission."""

ACCEPTED: Final = (200, 202)
"""How a submission is accepted; 200 says that a run with this id was there before."""

POLL: Final = 0.2
"""Seconds between two questions about the same thing."""


class NotApplicable(Exception):
    """The promise says nothing about this server; the text says why."""


class Undecided(Exception):
    """The check could not be carried out; the text says why."""


@define(eq=False)
class Kit:
    """What the checks share."""

    target: Target
    watcher: Reader
    random: random.Random
    nonce: str
    """Begins every tag. A run id is unique in a workspace for ever, so it is new in every run of the kit."""
    ledger: Ledger = field(factory=Ledger, init=False)
    _numbers: "count[int]" = field(factory=lambda: count(1), init=False)

    def __attrs_post_init__(self) -> None:
        self.watcher.on_ending = self._ended

    def _ended(self, name: str, state: str) -> None:
        if name.startswith(self.nonce):  # in a directory that others use, there are more
            self.ledger.end(name, state, trio.current_time())

    # ── Sending ─────────────────────────────────────────────────────────────────────────────────

    async def talk(self) -> Talk:
        """Create a session."""
        answer = await self.target.tell(
            "POST", f"{self.target.base}/sessions", {"title": "torture"}
        )
        return self.ledger.talk(answer["id"])

    def write(self, talk: Talk, words: str = SHORT) -> Prompt:
        """Enter a prompt that is about to be sent."""
        tag = f"{self.nonce}-{next(self._numbers)}"
        prompt = Prompt(tag, talk, [words.format(tag=tag)], True, trio.current_time())
        self.ledger.send(prompt)
        return prompt

    async def prompt(self, talk: Talk, words: str = SHORT) -> Prompt:
        """Send a prompt, which must be accepted."""
        prompt = self.write(talk, words)
        await self.send(prompt)
        return prompt

    async def send(self, prompt: Prompt) -> None:
        """Send a prompt that was written, which must be accepted."""
        reply = await self.submit(prompt)
        if reply.status not in ACCEPTED:
            raise Undecided(f"the server refused a prompt: {reply.sentence()}")

    async def submit(self, prompt: Prompt) -> Reply:
        """Send a prompt that was written; note the answer."""
        reply = await self.target.ask("POST", f"{self.target.base}/agent", body_of(prompt))
        prompt.answered = min(prompt.answered, trio.current_time())
        if not prompt.verdict:
            prompt.verdict = "accepted" if reply.status in ACCEPTED else f"http_{reply.status}"
        return reply

    async def cancel(self, talk: Talk) -> Stop:
        """Cancel a session; return when that was answered."""
        stop = self.ledger.stop(talk, "cancel", trio.current_time())
        await self.target.tell("POST", f"{self.target.base}/agent/sessions/{talk.id}/cancel")
        stop.answered = trio.current_time()
        return stop

    async def messages(self, talk: Talk) -> list[Json]:
        """Return the stored messages of a session."""
        path = f"{self.target.base}/sessions/{talk.id}/messages"
        found: list[Json] = await self.target.tell("GET", path) or []
        return found

    async def copies(self, prompt: Prompt) -> int:
        """Return how many user messages *prompt* has left in its session."""
        stored = await self.messages(prompt.talk)
        said = [text_of(message) for message in stored if message["role"] == "user"]
        return sum(text == prompt.text for text in said)

    # ── Waiting ─────────────────────────────────────────────────────────────────────────────────

    async def ended(self, *prompts: Prompt) -> None:
        """Wait until the watcher knows the endings of *prompts*."""
        await self.known(self.watcher, *prompts)

    async def known(self, reader: Reader, *prompts: Prompt) -> None:
        """Wait until *reader* knows the endings of *prompts*, and check that all say the same."""
        tags = [prompt.tag for prompt in prompts]
        endings = reader.view.endings
        missing: Callable[[], list[str]] = lambda: [tag for tag in tags if tag not in endings]  # noqa: E731
        try:
            await reader.until("", lambda: not missing())
        except Violation as exc:
            if not (left := missing()) or reader.broken is not None:
                raise
            raise Violation(f"no ending of {_list(left)}{exc}") from None
        for prompt in prompts:
            if prompt.state and endings[prompt.tag] != prompt.state:
                told = f"{prompt.state} for one reader and {endings[prompt.tag]} for another"
                raise Violation(f"{prompt.tag} ended as {told}")

    async def ended_well(self, *prompts: Prompt) -> None:
        """Wait for the endings of *prompts* that nothing has cancelled; the ledger checks that."""
        await self.ended(*prompts)
        failed = [prompt for prompt in prompts if prompt.state == "errored"]
        if failed:
            why = self.watcher.view.errors.get(failed[0].tag, "")
            raise Undecided(f"{failed[0].tag} ended with an error of the model or server: {why}")

    async def speaking(self, prompt: Prompt) -> None:
        """Wait until the answer to *prompt* has begun."""
        await self._answer(prompt, "began", lambda message: bool(message["parts"]))

    async def finishing(self, prompt: Prompt) -> None:
        """Wait until the answer to *prompt* has its finish part; the run may not have ended yet."""
        await self._answer(prompt, "was finished", is_finished)

    async def _answer(self, prompt: Prompt, what: str, good: Callable[[Json], bool]) -> None:
        """Wait until an assistant message after the one of *prompt* is *good*, or the run has ended."""

        def done() -> bool:
            known = list(self.watcher.view.session_messages(prompt.talk.id).values())
            asked = (m["role"] == "user" and text_of(m) == prompt.text for m in known)
            place = next((number for number, found in enumerate(asked) if found), len(known))
            answers = [m for m in known[place:] if m["role"] == "assistant"]
            return any(map(good, answers)) or bool(prompt.state)

        await self.watcher.until(f"no answer to {prompt.tag} {what}", done)

    async def poll(self, what: str, path: str, good: Callable[[Any], bool]) -> None:
        """Ask for *path* until the answer is *good*; raise `Violation` if it does not become so."""
        answer = None
        with trio.move_on_after(self.target.patience):
            while not good(answer := await self.target.tell("GET", path)):  # noqa: ASYNC110
                await trio.sleep(POLL)
            return
        raise Violation(f"{what}: the last answer was {str(answer)[:200]}")

    @asynccontextmanager
    async def reader(self, *, slow: bool = False) -> AsyncIterator[Reader]:
        """Attach a further reader for the length of a block."""
        reader = Reader(self.target, slow=slow)
        async with trio.open_nursery() as nursery:
            await reader.attach(nursery)
            yield reader
            nursery.cancel_scope.cancel()
        if reader.broken is not None:
            raise reader.broken

    # ── Judging ─────────────────────────────────────────────────────────────────────────────────

    def check_cancelled(self, stop: Stop, prompts: Iterable[Prompt]) -> None:
        """Raise if *stop* was lost on one of *prompts*."""
        for prompt in prompts:
            if stop.was_lost_on(prompt):
                after = prompt.ended_at - stop.answered
                raise Violation(
                    f"{prompt.tag} completed {after:.1f} s after the answer to its cancel"
                )

    async def clean(self) -> None:
        """Cancel what a check has left, so that the next one begins in a quiet workspace."""
        await trio.lowlevel.checkpoint()
        for talk in {prompt.talk.id: prompt.talk for prompt in self.ledger.unsettled()}.values():
            await self.cancel(talk)


def body_of(prompt: Prompt) -> Json:
    """Return the body of a submission."""
    return {"session_id": prompt.talk.id, "run_id": prompt.tag, "prompt": prompt.text}


def _list(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
