"""The view of one reader: messages, endings and their order, from the events of a stream in either form.

Plain data, no I/O. What cannot be true of a server that keeps its promises raises `Violation`: a second
ending of a run, a run that goes on after its ending, an event that does not fit the ones before it.
"""

from typing import Any, Final

import orjson
from attrs import define, field

from crush_trio.net.sse import SseEvent
from crush_trio.testing.server.client import OF_THE_STREAM, ReplicaMismatch, apply_change
from crush_trio.testing.torture.ledger import ENDED, Violation

Json = dict[str, Any]

ASKS: Final = frozenset({"permission_request", "question_batch_request"})
"""Events after which a run waits for a person."""


@define(eq=False)
class View:
    """What a reader knows after the events so far; it survives reconnects."""

    native: bool
    messages: dict[str, Json] = field(factory=dict, init=False)
    endings: dict[str, str] = field(factory=dict, init=False)
    """The state in which each run ended, by the caller's run id, in the order of the endings."""
    errors: dict[str, str] = field(factory=dict, init=False)
    """What the server said about runs that failed, by run id."""
    steps: list[tuple[str, str]] = field(factory=list, init=False)
    """Each step of a tool call once, in the order in which it was seen: `call`, `called` and `result`
    with the id of the call, `finish` with the id of the message."""
    asking: set[str] = field(factory=set, init=False)
    """The sessions in which a person was asked something."""
    place: str = field(default="", init=False)
    """What is sent as `Last-Event-ID`; empty in crush form."""
    events: list[tuple[str, str, bytes]] = field(factory=list, init=False)
    """Id, name and data of every event of the log; empty in crush form."""
    resyncs: int = field(default=0, init=False)
    heard: int = field(default=0, init=False)
    """How many events came that say something about the workspace."""

    def apply(self, event: SseEvent) -> bool:
        """Apply an event; return whether it says something about the workspace."""
        try:
            told = self._native(event) if self.native else self._crush(event)
        except ReplicaMismatch as exc:
            raise Violation(f"a stream has an event that does not fit: {exc}") from exc
        except (KeyError, TypeError, ValueError, IndexError) as exc:
            data = event.data[:200].decode(errors="replace")
            raise Violation(f"a stream has an event that cannot be read: {data}") from exc
        self.heard += told
        return told

    def session_messages(self, session: str) -> dict[str, Json]:
        """Return the messages of a session that are known, by id."""
        return {key: m for key, m in self.messages.items() if m["session_id"] == session}

    # ── Forms ───────────────────────────────────────────────────────────────────────────────────

    def _crush(self, event: SseEvent) -> bool:
        outer = orjson.loads(event.data)
        name, inner = outer["type"], outer["payload"]
        if name == "run_complete":
            complete = inner["payload"]
            state = "errored" if complete.get("error") else "completed"
            state = "cancelled" if complete.get("cancelled") else state
            self._end(complete.get("run_id") or "", state, complete.get("error") or "")
        else:
            self._other(name, inner)
        return True

    def _native(self, event: SseEvent) -> bool:
        if event.name == "ready":
            self.place = self.place or event.id or ""
        if event.name in OF_THE_STREAM:
            return False
        data = orjson.loads(event.data)
        match event.name:
            case "run":
                self._run(data)
            case "message_delta":
                self._delta(data)
            case "resync":
                self._resync(data)
            case name:
                self._other(name, data)
        if event.id is not None:
            self.place = event.id
            self.events.append((event.id, event.name, event.data))
        return True

    def _other(self, name: str, change: Json) -> None:
        if name == "message" and change["type"] == "deleted":
            self.messages.pop(change["payload"]["id"], None)
        elif name == "message":
            self._put(change["payload"])
        elif name in ASKS:
            self.asking.add(change["payload"].get("session_id", ""))

    # ── Messages ────────────────────────────────────────────────────────────────────────────────

    def _put(self, message: Json) -> None:
        message["parts"] = message["parts"] or []
        self.messages[message["id"]] = message
        self._note(message)

    def _delta(self, delta: Json) -> None:
        message = self.messages.get(delta["id"])
        if message is None:
            return  # it began before this reader came
        for change in delta["changes"]:
            apply_change(message["parts"], change)
        self._note(message)

    def _resync(self, state: Json) -> None:
        self.resyncs += 1
        for run in state["ended"]:
            self._run(run)
        for message in state["messages"]:
            self._put(message)

    def _note(self, message: Json) -> None:
        """Note the steps of tool calls that *message* shows for the first time."""
        for part in message["parts"]:
            data = part["data"]
            if part["type"] == "tool_call":
                self._step("call", data["id"])
                if data.get("finished"):
                    self._step("called", data["id"])
            elif part["type"] == "tool_result":
                self._step("result", data["tool_call_id"])
            elif part["type"] == "finish" and message["role"] == "assistant":
                self._step("finish", message["id"])

    def _step(self, what: str, which: str) -> None:
        if (what, which) not in self.steps:
            self.steps.append((what, which))

    # ── Runs ────────────────────────────────────────────────────────────────────────────────────

    def _run(self, run: Json) -> None:
        name, state = run.get("run_id") or "", run["state"]
        if state in ENDED:
            self._end(name, state, run.get("error") or "")
        elif name in self.endings:
            raise Violation(f"{name} is {state} after it had {self.endings[name]}")

    def _end(self, name: str, state: str, error: str) -> None:
        if not name:
            return
        if name in self.endings:
            raise Violation(f"{name} ended twice for one reader: {self.endings[name]}, {state}")
        self.endings[name] = state
        if error:
            self.errors[name] = error


def is_finished(message: Json) -> bool:
    """Whether a message has its finish part."""
    return any(part["type"] == "finish" for part in message["parts"])


def text_of(message: Json) -> str:
    """Return the text of a message."""
    return "".join(part["data"]["text"] for part in message["parts"] if part["type"] == "text")


def difference(streamed: dict[str, Json], stored: list[Json]) -> str:
    """Return how the messages of a stream differ from the stored ones; empty if they are equal."""
    kept = {message["id"]: message for message in stored}
    for key in {**kept, **streamed}:
        if key not in streamed:
            return f"message {key} is stored and was never streamed"
        if key not in kept:
            return f"message {key} was streamed and is not stored"
        seen, found = streamed[key], kept[key]
        if seen["role"] != found["role"]:
            return f"message {key} was streamed as {seen['role']} and stored as {found['role']}"
        if seen["parts"] != (found["parts"] or []):
            return (
                f"message {key} was streamed with {_short(seen['parts'])} "
                f"and stored with {_short(found['parts'])}"
            )
    return ""


def _short(parts: list[Json]) -> str:
    text = orjson.dumps(parts).decode()
    return text if len(text) <= 300 else f"{text[:140]} … {text[-140:]}"
