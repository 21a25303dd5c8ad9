"""What the clients of a simulation do: send prompts, read event streams, cancel; each request through any node.

The clients are those of the chaos test. They differ only in what their requests travel over.
"""

import random
from typing import Any, Final

import trio
from attrs import define, field, frozen
from typing_extensions import override

from benchmarks.chaos.clients import Prompt, Reader, Round, Submitter
from benchmarks.simulation.trace import Trace
from benchmarks.soak.ledger import Violation
from crush_trio.net.address import Origin
from crush_trio.net.sse import SseEvent

PATH: Final = "/srv/project"


@frozen
class Address:
    """A node, as clients know it."""

    name: str

    @property
    def origin(self) -> Origin:
        """Where it is reached."""
        return Origin(self.name, 1, secure=False)

    @property
    def start_name(self) -> str:
        """How messages name it."""
        return self.name


@frozen
class Cancel:
    """A cancel of a session that was answered."""

    session: str
    tags: tuple[str, ...]
    """The prompts of the session whose acceptance was answered before this was sent."""
    answered: float


@define(eq=False)
class TracedReader(Reader):
    """A reader that notes how runs end."""

    trace: Trace = field(kw_only=True, repr=False)

    @override
    def _apply(self, node: Any, event: SseEvent) -> None:
        before = len(self.view.endings)
        super()._apply(node, event)
        for tag in list(self.view.endings)[before:]:
            told = f"is told by {node.name} that {tag} is {self.view.endings[tag]}"
            self.trace.note(self.id, told)

    @override
    def _begun(self, node: Any) -> None:
        super()._begun(node)
        self.trace.note(self.id, f"reads from {node.name} on")


@define(eq=False)
class Workload:
    """The clients of one simulation."""

    shared: Round
    trace: Trace = field(repr=False)
    readers: list[TracedReader] = field(factory=list, init=False)
    submitters: list[Submitter] = field(factory=list, init=False)
    cancels: list[Cancel] = field(factory=list, init=False)

    @property
    def chance(self) -> random.Random:
        """Where choices come from."""
        return self.shared.random

    async def begin(self, readers: int, submitters: int) -> None:
        """Have the workspace opened by all clients, at the same moment."""
        for number in range(readers):
            self.readers.append(TracedReader(self.shared, _id("reader", number), trace=self.trace))
        for number in range(submitters):
            who = Submitter(self.shared, _id("sender", number), name=f"s{number}")
            self.submitters.append(who)
        async with trio.open_nursery() as nursery:
            for client in (*self.readers, *self.submitters):
                nursery.start_soon(client.create)

    async def submit(self, submitter: Submitter, prompts: int) -> None:
        """Send prompts, with cancels now and then."""
        await submitter.begin()
        for number in range(prompts):
            words, pause = self.chance.randint(1, 8), self.chance.choice((10, 100, 400))
            await self.say(submitter, number, words, pause)
            if self.chance.random() < 0.25:
                await trio.sleep(self.chance.uniform(0, 0.5))
                await self.cancel(submitter)
            await trio.sleep(self.chance.uniform(0, 1.5))

    async def say(self, submitter: Submitter, number: int, words: int, pause: int) -> Prompt:
        """Send a prompt until it is accepted."""
        prompt = await submitter.say(number, words=words, pause=pause)
        self.trace.note(submitter.id, f"has its acceptance of {prompt.tag}: {prompt.text}")
        return prompt

    async def cancel(self, submitter: Submitter) -> None:
        """Cancel the session of a submitter."""
        session = submitter.session
        tags = tuple(
            prompt.tag
            for prompt in self.shared.prompts
            if prompt.session == session and prompt.accepted
        )
        self.trace.note(submitter.id, f"cancels {', '.join(tags)}")
        await submitter.tell("POST", f"{self.shared.base}/agent/sessions/{session}/cancel")
        self.cancels.append(Cancel(session, tags, trio.current_time()))
        self.trace.note(submitter.id, "has its answer to the cancel")

    async def wander(self) -> None:
        """Have readers leave their nodes for others now and then, until cancelled."""
        while True:
            await trio.sleep(self.chance.uniform(0.05, 1.0))
            self.chance.choice(self.readers).reconnect()

    async def settle(self) -> None:
        """Wait until every reader knows every ending."""
        prompts = [each for each in self.shared.prompts if each.accepted]
        try:
            await self.shared.until(
                "every reader is told every ending",
                lambda: all(reader.knows(prompts) for reader in self.readers),
            )
        except Violation as violation:
            untold = [
                f"{prompt.tag} to {reader.id} at {reader.through and reader.through.start_name}"
                for reader in self.readers
                for prompt in prompts
                if not reader.knows([prompt])
            ]
            raise Violation(f"{violation}; untold: {', '.join(untold)}") from violation


def _id(kind: str, number: int) -> str:
    """Return the id of a client: a UUID, the same in every replay."""
    first = {"reader": "aaaaaaaa", "sender": "bbbbbbbb"}[kind]
    return f"{first}-0000-4000-8000-{number:012d}"
