"""Parser of event streams, in either form.

Plain data, no I/O. A `Reader` takes bytes that may be cut anywhere and yields `Grew` and `Ended`,
the two events that the workloads wait for. It reads the crush form and the native form, so that a
server with either of them can be measured.
"""

from collections.abc import Iterator
from typing import Any, Final

import orjson
from attrs import define, field, frozen

CRUSH: Final = "crush"
NATIVE: Final = "native"

ENDINGS: Final = frozenset({"completed", "cancelled", "errored", "folded", "interrupted"})
"""The terminal states of a run."""

Json = dict[str, Any]


@frozen
class Grew:
    """The model's message of a session has this text now."""

    session_id: str
    message_id: str
    text: str


@frozen
class Ended:
    """A run has ended. `state` is that of the native form, also if the crush form was read."""

    run_id: str
    state: str


Told = Grew | Ended


@define(eq=False)
class Reader:
    """Parses a stream. Keeps the text of unfinished messages."""

    form: str
    frames: int = field(default=0, init=False)
    """The number of frames."""
    updates: int = field(default=0, init=False)
    """The number of frames with a message delta."""
    overhead: int = field(default=0, init=False)
    """Bytes of the largest delta frame without its text."""
    greeted: bool = field(default=False, init=False)
    """Whether the stream began with `ready`, as native streams do."""
    _rest: bytes = field(default=b"", init=False)
    _texts: dict[str, str] = field(factory=dict, init=False)

    def feed(self, data: bytes) -> Iterator[Told]:
        """Yield the events of the frames that *data* completes."""
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            self.frames += 1
            yield from self._native(frame) if self.form == NATIVE else self._crush(frame)

    # ── The crush form ──────────────────────────────────────────────────────────────────────────

    def _crush(self, frame: bytes) -> Iterator[Told]:
        _, data = split_frame(frame)
        if not data:
            return
        told = orjson.loads(data)
        inner = told["payload"].get("payload")
        if told["type"] == "run_complete":
            yield Ended(inner.get("run_id", ""), _crush_state(inner))
        elif told["type"] == "message" and told["payload"]["type"] != "deleted":
            yield from self._whole(inner)

    # ── The native form ─────────────────────────────────────────────────────────────────────────

    def _native(self, frame: bytes) -> Iterator[Told]:
        name, data = split_frame(frame)
        if name == b"run":
            run = orjson.loads(data)
            if run["state"] in ENDINGS:
                yield Ended(run.get("run_id") or run["id"], run["state"])
        elif name == b"message_delta":
            delta = orjson.loads(data)
            self._weigh(len(frame) + len(b"\n\n"), delta)
            yield from self._delta(delta)
        elif name == b"message":
            yield from self._whole(orjson.loads(data)["payload"])
        elif name == b"ready":
            self.greeted = True

    def _weigh(self, size: int, delta: Json) -> None:
        appended = (change["append"] for change in delta["changes"] if "append" in change)
        text = sum(len(orjson.dumps(piece)) - 2 for piece in appended)
        if text:
            self.updates += 1
            self.overhead = max(self.overhead, size - text)

    def _delta(self, delta: Json) -> Iterator[Grew]:
        text, finished = self._texts.get(delta["id"], ""), False
        for change in delta["changes"]:
            part = change.get("part", {})
            if "append" in change:
                text += change["append"]
            elif part.get("type") == "text":
                text = part["data"]["text"]
            finished |= part.get("type") == "finish"
        self._keep(delta["id"], text, finished=finished)
        if text:
            yield Grew(delta["session_id"], delta["id"], text)

    def _whole(self, message: Json) -> Iterator[Grew]:
        if message["role"] == "assistant":
            kinds = {part["type"] for part in message["parts"]}
            text = "".join(p["data"]["text"] for p in message["parts"] if p["type"] == "text")
            self._keep(message["id"], text, finished="finish" in kinds)
            if text:
                yield Grew(message["session_id"], message["id"], text)

    def _keep(self, message_id: str, text: str, *, finished: bool) -> None:
        if finished:
            self._texts.pop(message_id, None)
        else:
            self._texts[message_id] = text


def _crush_state(complete: Json) -> str:
    """Return the terminal state of a run from its `run_complete`."""
    if complete.get("cancelled"):
        return "cancelled"
    return "errored" if complete.get("error") else "completed"


def split_frame(frame: bytes) -> tuple[bytes, bytes]:
    """Return the name and the data of a frame; it has at most one line of data."""
    name = data = b""
    for line in frame.split(b"\n"):
        if line.startswith(b"data: "):
            data = line[6:]
        elif line.startswith(b"event: "):
            name = line[7:]
    return name, data
