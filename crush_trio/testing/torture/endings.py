"""Checks of runs: one ending each, in order, stored as streamed, whatever happens to the submission."""

from itertools import pairwise

import trio

from crush_trio.net.errors import NetworkError
from crush_trio.testing.torture.kit import (
    ACCEPTED,
    LONG,
    MEDIUM,
    SHORT,
    TOOL,
    Kit,
    NotApplicable,
    body_of,
)
from crush_trio.testing.torture.ledger import Prompt, Talk, Violation, check_sequence
from crush_trio.testing.torture.view import Json, difference, text_of


async def one_ending(kit: Kit) -> None:
    """Run prompts in several sessions at once; two readers get each ending once."""
    async with kit.reader() as second:
        talks = [await kit.talk() for _ in range(3)]
        prompts = [await kit.prompt(talk) for talk in talks for _ in range(2)]
        stopped = await kit.prompt(talks[0], LONG)
        await kit.ended(*prompts[:2])
        await kit.cancel(talks[0])
        await kit.ended(*prompts, stopped)
        last = await kit.prompt(talks[1])  # an ending that comes again comes before this one
        await kit.ended_well(last)
        await kit.known(second, *prompts, stopped, last)


async def queue_order(kit: Kit) -> None:
    """Send prompts one after another into one session; they run in that order."""
    talk = await kit.talk()
    prompts = [await kit.prompt(talk, words) for words in (MEDIUM, *[SHORT] * 4)]
    await kit.ended_well(*prompts)
    told = list(kit.watcher.view.endings)
    order = sorted(prompts, key=lambda prompt: told.index(prompt.tag))
    check_sequence("the endings on the stream", order)
    texts = [text_of(message) for message in await kit.messages(talk) if message["role"] == "user"]
    stored = [prompt for text in texts for prompt in prompts if prompt.text == text]
    if len(stored) != len(prompts):
        raise Violation(f"{len(prompts)} prompts were accepted, and {len(stored)} are stored")
    check_sequence("the stored prompts", stored)


async def stored(kit: Kit) -> None:
    """Compare the messages of the stream with the stored ones: complete and cancelled answers."""
    talk = await kit.talk()
    first = await kit.prompt(talk)
    await kit.ended(first)
    second = await kit.prompt(talk, LONG)
    await kit.speaking(second)
    await kit.cancel(talk)
    await kit.ended(second)
    await compare(kit, talk)


async def compare(kit: Kit, talk: Talk) -> None:
    """Check that the watcher's messages of a session become equal to the stored ones.

    The wire gives no order between an ending and the last state of a message, so that may come later.
    """
    kept = await kit.messages(talk)

    def differs() -> str:
        return difference(kit.watcher.view.session_messages(talk.id), kept)

    try:
        await kit.watcher.until("", lambda: not differs())
    except Violation:
        raise Violation(differs() or "the event stream ended") from None


async def tool_order(kit: Kit) -> None:
    """Have the model call a tool; the call comes before its result, and both before their finish."""
    view = kit.watcher.view
    start, talk = len(view.steps), await kit.talk()
    prompt = await kit.prompt(talk, TOOL)
    await kit.watcher.until(
        f"no ending of {prompt.tag}", lambda: prompt.tag in view.endings or talk.id in view.asking
    )
    if prompt.tag not in view.endings:
        await kit.cancel(talk)
        await kit.ended(prompt)
        raise NotApplicable("the server asks a person before it uses a tool")
    await compare(kit, talk)
    check_steps(view.steps[start:], view.session_messages(talk.id))


def check_steps(steps: list[tuple[str, str]], messages: dict[str, Json]) -> None:
    """Raise if a step of a tool call came before one that it depends on."""
    place = {step: number for number, step in enumerate(steps)}
    calls = [
        (part["data"]["id"], key)
        for key, message in messages.items()
        for part in message["parts"]
        if part["type"] == "tool_call"
    ]
    if not calls:
        raise NotApplicable("the model called no tool")
    for call, message in calls:
        chain = [("call", call), ("called", call), ("result", call), ("finish", message)]
        for step in chain:
            if step not in place:
                raise Violation(f"tool call {call}: its {step[0]} was never streamed")
        for before, after in pairwise(chain):
            if place[before] > place[after]:
                raise Violation(f"tool call {call}: {after[0]} came before {before[0]}")


# ── Submissions ─────────────────────────────────────────────────────────────────────────────────


async def disconnect(kit: Kit) -> None:
    """Close connections during a POST: what was sent whole runs, what was sent in part does not."""
    path, talk = f"{kit.target.base}/agent", await kit.talk()
    whole, half = kit.write(talk), kit.write(talk)
    await kit.target.hang_up(path, body_of(whole))
    await kit.target.hang_up(path, body_of(half), share=0.5)
    await kit.ended(whole)
    torn = [await _torn(kit, talk) for _ in range(4)]
    last = await kit.prompt(talk)
    await kit.ended_well(last)
    await _settled(kit, torn)
    if whole.state == "cancelled" or await kit.copies(whole) != 1:
        raise Violation(f"{whole.tag} was sent whole; it {whole.state}, and is not stored once")
    if half.tag in kit.watcher.view.endings or await kit.copies(half):
        raise Violation(f"{half.tag} was sent in part, and the server ran it")


async def _torn(kit: Kit, talk: Talk) -> Prompt:
    """Send a prompt and disconnect at some instant; whether it was accepted is not known."""
    await trio.lowlevel.checkpoint()
    prompt = kit.write(talk)
    request = kit.target.request("POST", f"{kit.target.base}/agent", body_of(prompt))
    with trio.move_on_after(kit.random.uniform(0, 0.02)):
        try:
            async with kit.target.http.open(request) as response:
                await response.read(65536)
        except NetworkError:
            pass
    return prompt


async def _settled(kit: Kit, torn: list[Prompt]) -> None:
    """Wait for the endings of prompts that may have been accepted, and check each."""
    await trio.lowlevel.checkpoint()
    for prompt in torn:
        if kit.target.native:
            # Sending it again is harmless there, and then it is accepted for sure.
            reply = await kit.submit(prompt)
            if reply.status not in ACCEPTED:
                raise Violation(f"{prompt.tag} could not be sent again: {reply.sentence()}")
        elif not await kit.copies(prompt):
            continue
        await kit.ended(prompt)
        if (copies := await kit.copies(prompt)) != 1:
            raise Violation(f"{prompt.tag} is stored {copies} times")


async def repeat(kit: Kit) -> None:
    """Submit a prompt several times with one run id: at once, while it runs, and after it has ended."""
    talk = await kit.talk()
    prompt = kit.write(talk)
    replies = []

    async def send() -> None:
        replies.append(await kit.submit(prompt))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(send)
    await send()
    await kit.ended(prompt)
    await send()
    await kit.ended(await kit.prompt(talk))  # a second run would end before this one
    for reply in replies:
        if reply.status not in ACCEPTED:
            raise Violation(f"a repeated submission was answered with {reply.sentence()}")
    if (copies := await kit.copies(prompt)) != 1:
        raise Violation(
            f"{prompt.tag} was submitted {len(replies)} times and is stored {copies} times"
        )
