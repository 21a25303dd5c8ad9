"""A client in miniature: rebuilds state from the bytes of a native stream.

A `Replica` is given a stream in pieces, cut anywhere, and applies each whole frame as the
documentation says a client should. It refuses whatever does not fit: a delta at the wrong offset, an
id that does not grow, an ending seen twice. If a replica and the log disagree, a client would too.
"""

from collections.abc import Mapping
from typing import Any

import orjson
from attrs import define, field

Json = dict[str, Any]


OF_THE_STREAM = frozenset({"asks", "ready", "heartbeat", "end"})
"""Events that a server puts around those of the log; they change nothing that a replica knows."""


class StreamBroken(AssertionError):
    """The stream said something that a careful client cannot apply."""


@define(eq=False)
class Replica:
    """What a client knows that has applied every frame so far."""

    messages: dict[str, Json] = field(factory=dict, init=False)
    endings: dict[str, Json] = field(factory=dict, init=False)
    """The terminal `run` event of each run, by our id."""
    resyncs: int = field(default=0, init=False)
    last_id: str | None = field(default=None, init=False)
    """What a client sends as `Last-Event-ID` when it reconnects."""
    _rest: bytes = field(default=b"", init=False)

    def feed(self, data: bytes) -> None:
        """Apply the frames that *data* completes."""
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            self._apply(frame)

    def cut(self) -> None:
        """Lose the connection: an incomplete frame is forgotten."""
        self._rest = b""

    def _apply(self, frame: bytes) -> None:
        lines = dict(line.split(b": ", 1) for line in frame.split(b"\n"))
        name = lines[b"event"].decode()
        if name in OF_THE_STREAM:
            return
        data = orjson.loads(lines[b"data"])
        self._advance(lines[b"id"].decode(), anew=name == "resync")
        match name:
            case "message":
                self._message(data)
            case "message_delta":
                self._delta(data)
            case "run":
                self._run(data)
            case "resync":
                self._resync(data)

    def _advance(self, event_id: str, *, anew: bool) -> None:
        """Follow the ids: they grow, but a resync may repeat the place it was asked from."""
        if self.last_id is not None:
            (boot, place), (last_boot, last_place) = _split(event_id), _split(self.last_id)
            if boot == last_boot and place < last_place + (not anew):
                raise StreamBroken(f"event {event_id} came after {self.last_id}")
        self.last_id = event_id

    def _message(self, change: Json) -> None:
        message = change["payload"]
        if change["type"] == "deleted":
            self.messages.pop(message["id"], None)
        else:
            self.messages[message["id"]] = message

    def _delta(self, delta: Json) -> None:
        message = self.messages.get(delta["id"])
        if message is None:
            raise StreamBroken(f"delta for a message nobody mentioned: {delta['id']}")
        message["updated_at"] = delta["updated_at"]
        for change in delta["changes"]:
            apply_change(message["parts"], change)

    def _run(self, run: Json) -> None:
        if run["state"] not in {"accepted", "queued", "active", "ending"}:
            self._end(run)

    def _end(self, run: Json) -> None:
        if run["id"] in self.endings:
            raise StreamBroken(f"run {run['id']} ended twice")
        self.endings[run["id"]] = run

    def _resync(self, state: Json) -> None:
        self.resyncs += 1
        for run in state["ended"]:
            self._end(run)
        self.messages.update({message["id"]: message for message in state["messages"]})


def apply_change(parts: list[Json], change: Mapping[str, Any]) -> None:
    """Apply one change of a `message_delta` to the parts of a message, in place."""
    place = change["length"] if "length" in change else change["index"]
    if place > len(parts) or ("append" in change and place == len(parts)):
        raise StreamBroken(f"a change at part {place} of a message that has {len(parts)}")
    if "length" in change:
        del parts[place:]
    elif "append" in change:
        _append(parts, change)
    else:
        parts[place : place + 1] = [change["part"]]


def _append(parts: list[Json], change: Mapping[str, Any]) -> None:
    """Grow a text or reasoning part; `offset` counts the UTF-8 bytes that must be there already."""
    part = parts[change["index"]]
    key = "text" if part["type"] == "text" else "thinking"
    text = part["data"][key]
    if len(text.encode()) != change["offset"]:
        raise StreamBroken(f"delta at {change['offset']}, but the text has {len(text.encode())}")
    data = dict(change["part"]["data"]) if "part" in change else dict(part["data"])
    data[key] = text + change["append"]
    parts[change["index"]] = {"type": part["type"], "data": data}


def _split(event_id: str) -> tuple[str, int]:
    boot, _, place = event_id.rpartition("-")
    return boot, int(place)
