"""Checks of cancels: at any instant, in storms, and never too late."""

from collections.abc import Sequence
from typing import Final

import trio

from crush_trio.testing.torture.kit import LONG, SHORT, Kit
from crush_trio.testing.torture.ledger import Prompt, Stop, Talk, Violation

SESSIONS: Final = 4
QUEUED: Final = 3
"""Prompts behind the first one in each session of a storm."""

CANCELS: Final = 100
SENDERS: Final = 10
"""Connections over which the cancels of a storm come."""

STORM: Final = 1.0
"""Seconds over which the cancels of a storm are spread."""


async def cancel_ends(kit: Kit) -> None:
    """Cancel at five instants of a run's life; each run ends, and a prompt after it runs."""
    async with trio.open_nursery() as nursery:
        for instant in (_together, _at_once, _queued, _active, _ending):
            talk = await kit.talk()
            nursery.start_soon(instant, kit, talk)


async def _together(kit: Kit, talk: Talk) -> None:
    """Cancel while the prompt is on its way: it may end either way, but once."""
    prompt = kit.write(talk)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kit.send, prompt)
        await trio.sleep(kit.random.uniform(0, 0.01))
        await kit.cancel(talk)
    await kit.ended(prompt)
    await _goes_on(kit, talk)


async def _at_once(kit: Kit, talk: Talk) -> None:
    """Cancel as soon as the prompt is accepted."""
    prompt = await kit.prompt(talk, LONG)
    await _stopped(kit, await kit.cancel(talk), prompt)
    await _goes_on(kit, talk)


async def _active(kit: Kit, talk: Talk) -> None:
    """Cancel while the answer is being written."""
    prompt = await kit.prompt(talk, LONG)
    await kit.speaking(prompt)
    await _stopped(kit, await kit.cancel(talk), prompt)
    await _goes_on(kit, talk)


async def _queued(kit: Kit, talk: Talk) -> None:
    """Cancel an active run with others behind it."""
    front = await kit.prompt(talk, LONG)
    behind = [await kit.prompt(talk) for _ in range(2)]
    await _stopped(kit, await kit.cancel(talk), front, *behind)
    await _goes_on(kit, talk)


async def _ending(kit: Kit, talk: Talk) -> None:
    """Cancel when the answer is complete and the run is about to end: it may end either way."""
    prompt = await kit.prompt(talk)
    await kit.finishing(prompt)
    await kit.cancel(talk)
    await kit.ended(prompt)
    await _goes_on(kit, talk)


async def _stopped(kit: Kit, stop: Stop, front: Prompt, *behind: Prompt) -> None:
    """Wait until all prompts of a session have ended, and check that *stop* reached each."""
    await kit.ended(front, *behind)
    check_queue(stop, front, behind)
    kit.check_cancelled(stop, [front, *behind])


async def _goes_on(kit: Kit, talk: Talk) -> None:
    """Check that a prompt after everything else in a session is not cancelled."""
    await kit.ended(await kit.prompt(talk))


def check_queue(stop: Stop, front: Prompt, behind: Sequence[Prompt]) -> None:
    """Raise if a prompt survived a cancel that hit the one in front of it."""
    for prompt in behind:
        hit = front.state == "cancelled" and prompt.answered <= stop.sent
        if hit and prompt.state == "completed":
            waited = f"it waited behind {front.tag} when that was cancelled"
            raise Violation(f"{prompt.tag} completed, and {waited}")


async def cancel_later(kit: Kit) -> None:
    """Send prompts right after cancels were answered: none of them is cancelled."""
    async with trio.open_nursery() as nursery:
        for scenario in (_idle_cancel, _cancel_then_prompt, _many_cancels_then_prompt):
            talk = await kit.talk()
            nursery.start_soon(scenario, kit, talk)


async def _idle_cancel(kit: Kit, talk: Talk) -> None:
    await kit.cancel(talk)
    await _goes_on(kit, talk)
    await kit.cancel(talk)
    await _goes_on(kit, talk)


async def _cancel_then_prompt(kit: Kit, talk: Talk) -> None:
    """The first run may still be ending when the second is accepted."""
    first = await kit.prompt(talk, LONG)
    await kit.speaking(first)
    await kit.cancel(talk)
    second = await kit.prompt(talk)
    await kit.ended(first, second)


async def _many_cancels_then_prompt(kit: Kit, talk: Talk) -> None:
    first = await kit.prompt(talk, LONG)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(kit.cancel, talk)
    second = await kit.prompt(talk)
    await kit.ended(first, second)


async def storm(kit: Kit) -> None:
    """Send many cancels over many connections at sessions with queues."""
    talks = [await kit.talk() for _ in range(SESSIONS)]
    queues: list[list[Prompt]] = []
    for talk in talks:
        words = [LONG, *[SHORT] * QUEUED]
        queues.append([await kit.prompt(talk, text) for text in words])
    firsts: dict[str, Stop] = {}
    async with trio.open_nursery() as nursery:
        for _ in range(SENDERS):
            nursery.start_soon(_cancels, kit, talks, firsts)
    for talk in talks:  # chance may have left one out
        firsts.setdefault(talk.id, await kit.cancel(talk))
    for talk, (front, *behind) in zip(talks, queues, strict=True):
        await _stopped(kit, firsts[talk.id], front, *behind)
    for talk in talks:
        await _goes_on(kit, talk)


async def _cancels(kit: Kit, talks: list[Talk], firsts: dict[str, Stop]) -> None:
    await trio.lowlevel.checkpoint()
    share = CANCELS // SENDERS
    for _ in range(share):
        await trio.sleep(kit.random.uniform(0, 2 * STORM / share))
        talk = kit.random.choice(talks)
        stop = await kit.cancel(talk)
        firsts.setdefault(talk.id, stop)
