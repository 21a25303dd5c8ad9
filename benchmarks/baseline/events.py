"""Events of the baseline: a queue per client, and the frames that are sent."""

import asyncio  # noqa: TID251 - this is the other way to do it
import json
from collections.abc import AsyncIterator
from typing import Any

from attrs import define, field, frozen

Json = dict[str, Any]


@frozen
class Event:
    """An event in both forms; None if a form does not have it."""

    crush: Json | None
    native: tuple[str, Json] | None


@define(eq=False)
class Broadcast:
    """Sends the events of a workspace to its clients."""

    _queues: "set[asyncio.Queue[Event]]" = field(factory=set, init=False)

    def publish(self, event: Event) -> None:
        """Put *event* into the queue of each client."""
        for queue in self._queues:
            queue.put_nowait(event)

    async def stream(self, form: str) -> AsyncIterator[str]:
        """Yield the frames of one client while it is connected."""
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield "event: ready\ndata: {}\n\n" if form == "native" else "\n"
            while True:
                frame = encode(await queue.get(), form)
                if frame:
                    yield frame
        finally:
            self._queues.discard(queue)


def encode(event: Event, form: str) -> str:
    """Return a frame for one client."""
    if form == "native" and event.native is not None:
        name, data = event.native
        return f"event: {name}\ndata: {json.dumps(data)}\n\n"
    if form != "native" and event.crush is not None:
        return f"data: {json.dumps(event.crush)}\n\n"
    return ""


# ── What there is to say ────────────────────────────────────────────────────────────────────────


def message_event(change: str, message: Json) -> Event:
    """A whole message, in both forms."""
    told = {"type": change, "payload": message}
    return Event({"type": "message", "payload": told}, ("message", told))


def growth_event(message: Json, changes: list[Json]) -> Event:
    """An answer that has grown: the delta in native form, the whole message in crush form."""
    delta = {"id": message["id"], "session_id": message["session_id"], "changes": changes}
    told = {"type": "updated", "payload": message}
    return Event({"type": "message", "payload": told}, ("message_delta", delta))


def run_event(session_id: str, run_id: str, state: str, text: str = "", error: str = "") -> Event:
    """A run in a new state; the crush form has terminal states only."""
    native = ("run", {"id": run_id, "run_id": run_id, "session_id": session_id, "state": state})
    if state == "active":
        return Event(None, native)
    complete = {
        "session_id": session_id,
        "run_id": run_id,
        "text": text,
        "error": error,
        "cancelled": state == "cancelled",
    }
    told = {"type": "updated", "payload": complete}
    return Event({"type": "run_complete", "payload": told}, native)
