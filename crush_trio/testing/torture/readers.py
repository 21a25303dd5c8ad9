"""Checks of event streams: reconnecting, resuming, reading slowly and not at all."""

from typing import Final

import trio

from crush_trio.testing.torture.endings import compare
from crush_trio.testing.torture.kit import LONG, SHORT, Kit
from crush_trio.testing.torture.ledger import ENDED, Prompt, Talk, Violation
from crush_trio.testing.torture.target import Reader
from crush_trio.testing.torture.view import Json, difference, is_finished

VISITS: Final = 12
"""The most connections of the reader that is cut."""

QUIET: Final = 1.0
"""Seconds after which the reader that is cut disconnects in any case."""

FLOOD: Final = 600
"""Events for which slow readers are kept slow."""


async def reconnect(kit: Kit) -> None:
    """Disconnect a reader during a run; its ending is visible when the reader comes back."""
    talk, reader = await kit.talk(), Reader(kit.target)
    async with trio.open_nursery() as nursery:
        await reader.attach(nursery)
        prompt = await kit.prompt(talk)
        await kit.speaking(prompt)
        nursery.cancel_scope.cancel()
    await kit.ended_well(prompt)
    if kit.target.native:
        async with trio.open_nursery() as nursery:
            await nursery.start(reader.visit)
            await kit.known(reader, prompt)
            nursery.cancel_scope.cancel()
        path = f"{kit.target.base}/runs/{prompt.tag}"
        run = await kit.target.tell("GET", path)
        if run["state"] != prompt.state:
            raise Violation(f"{prompt.tag} {prompt.state} on the stream and is {run['state']}")
    await kit.poll(
        f"{prompt.tag} has ended, and the stored answer is not finished",
        f"{kit.target.base}/sessions/{talk.id}/messages",
        _is_answered,
    )
    await kit.poll(
        f"{prompt.tag} has ended, and its session is busy",
        f"{kit.target.base}/agent/sessions/{talk.id}",
        lambda session: not session.get("is_busy"),
    )


def _is_answered(messages: list[Json]) -> bool:
    return bool(messages) and messages[-1]["role"] == "assistant" and is_finished(messages[-1])


# ── Resuming ────────────────────────────────────────────────────────────────────────────────────


async def resume(kit: Kit) -> None:
    """Cut a reader again and again; in the end it knows what an uncut one knows."""
    talk, cut = await kit.talk(), Reader(kit.target)
    async with trio.open_nursery() as nursery:
        await cut.attach(nursery)
        nursery.cancel_scope.cancel()
    start = len(kit.watcher.view.events)
    prompts = [await kit.prompt(talk, words) for words in (SHORT, LONG)]
    await kit.ended(prompts[0])
    await kit.speaking(prompts[1])
    for _ in range(VISITS):
        await cut_once(cut, kit.random.randint(1, 12))
    await kit.cancel(talk)
    await kit.ended(*prompts)
    last = await kit.prompt(talk)
    await kit.ended(last)
    if not kit.target.native:
        await _read_again(kit, talk)
        return
    async with trio.open_nursery() as nursery:
        await nursery.start(cut.visit)
        await kit.known(cut, *prompts, last)
        nursery.cancel_scope.cancel()
    if not cut.view.resyncs:
        check_equal(cut.view.events, kit.watcher.view.events[start:])
    found = difference(cut.view.session_messages(talk.id), await kit.messages(talk))
    if found and not cut.view.resyncs:
        raise Violation(f"after resuming, {found}")


async def cut_once(reader: Reader, most: int) -> None:
    """Connect, read that many events, and disconnect; a quiet stream is left as well."""
    with trio.move_on_after(QUIET):
        await reader.visit(most)
    if reader.broken is not None:
        raise reader.broken


def check_equal(cut: list[tuple[str, str, bytes]], whole: list[tuple[str, str, bytes]]) -> None:
    """Raise if the events of a resumed stream are not those of an uncut one, where both have some.

    The two readers may begin and end at different places.
    """
    ids = {event[0] for event in whole} & {event[0] for event in cut}
    if not ids:
        raise Violation("a resumed stream has no event in common with an uncut one")
    first, last = _span(cut, ids), _span(whole, ids)
    for resumed, steady in zip(cut[first], whole[last], strict=False):
        if resumed != steady:
            raise Violation(
                f"a resumed stream has event {resumed[0]} ({resumed[1]}) "
                f"where an uncut one has {steady[0]} ({steady[1]})"
            )
    if len(cut[first]) != len(whole[last]):
        raise Violation(f"a resumed stream has {len(cut[first])} of {len(whole[last])} events")


def _span(events: list[tuple[str, str, bytes]], ids: set[str]) -> slice:
    """Return where the first and the last common event are."""
    common = [number for number, event in enumerate(events) if event[0] in ids]
    return slice(common[0], common[-1] + 1)


async def _read_again(kit: Kit, talk: Talk) -> None:
    """Check that a reader that comes back, and reads the messages, has what an uncut one has."""
    async with kit.reader():
        await compare(kit, talk)


# ── Slow readers ────────────────────────────────────────────────────────────────────────────────


async def slow_readers(kit: Kit) -> None:
    """Have one reader read slowly and one not at all: others are served, and both get the endings."""
    slow, stalled = Reader(kit.target, slow=True), Reader(kit.target, slow=True)
    async with trio.open_nursery() as nursery:
        await slow.attach(nursery)
        await stalled.attach(nursery)
        stalled.stalled = trio.Event()
        talks = [await kit.talk() for _ in range(3)]
        prompts = [await kit.prompt(talk, LONG) for talk in talks]
        upto = kit.watcher.view.heard + FLOOD
        await kit.watcher.until(
            "a run stopped while readers were slow",
            lambda: kit.watcher.view.heard >= upto or _all_ended(kit, prompts),
        )
        for talk in talks:
            await kit.cancel(talk)
        prompts.append(await kit.prompt(talks[0]))
        await kit.ended(*prompts)
        slow.slow = stalled.slow = False
        stalled.stalled.set()
        for reader in (slow, stalled):
            await _catch_up(kit, reader, prompts, nursery)
        nursery.cancel_scope.cancel()


def _all_ended(kit: Kit, prompts: list[Prompt]) -> bool:
    return all(kit.watcher.view.endings.get(prompt.tag) in ENDED for prompt in prompts)


async def _catch_up(kit: Kit, reader: Reader, prompts: list[Prompt], nursery: trio.Nursery) -> None:
    """Wait until a reader knows the endings; if the server has ended its stream, it comes back."""
    await trio.lowlevel.checkpoint()
    for _ in range(3):
        try:
            await kit.known(reader, *prompts)
        except Violation:
            if reader.broken is not None or not reader.over:
                raise
        else:
            return
        if not kit.target.native:
            return  # it is told that it has missed something, and reads the messages
        await nursery.start(reader.visit)
    raise Violation("the server ends the stream of a slow reader again and again")
