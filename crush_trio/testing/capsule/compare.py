"""Compares two capsules: a recording and the recording of its replay.

A story is what is compared: per session, the events in order; the requests to the model in order; what is
stored. Ids are replaced by names in the order of their appearance, and times are left out. What depends on how
fast something was is not compared: how the text of a message grows (its last state is), the title and the
counters of a session, and the events that tools cause beside their results. Events of different sessions, and of tool
calls that may run at the same time, have no order among each other; progress is compared by itself.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Final

import orjson
from attrs import define, field, frozen
from typing_extensions import override

from crush_trio.agent.record.capsule import Entry
from crush_trio.testing.capsule.file import CapsuleFile
from crush_trio.testing.capsule.player import MAIN, SessionNames
from crush_trio.wire.fields import Json
from crush_trio.wire.ids import SessionId

COMPARED: Final = frozenset(
    {
        *("message", "run", "agent_event"),
        *("permission_request", "permission_notification"),
        *("question_batch_request", "question_batch_notification"),
    }
)
"""The kinds of events that are compared."""

IGNORED: Final = frozenset(
    {
        *("created_at", "updated_at", "accepted_at", "started_at", "ended_at", "finished_at"),
        *("time", "seq", "session_title", "run_id"),
    }
)
"""Members that are times, or depend on them."""

REQUESTS: Final = "requests of"

LONG_ID: Final = re.compile(r"([0-9a-z]{8}(?:-[0-9a-z]{4}){3}-[0-9a-z]{7,12})(?:-[0-9]+)?")
"""The form of the ids that are replaced inside of a text: those of the program, and those of a replay."""

CONTEXT: Final = 3
"""How many items before a difference are shown."""

WIDTH: Final = 300
"""The most characters that are shown of a value."""

LEAD: Final = 60
"""How many characters before a difference in a long value are shown."""


@frozen
class Item:
    """One thing that happened: what it is, for people; its value, for the comparison; and when."""

    what: str
    value: Json = field(repr=False)
    at: float


@frozen
class Difference:
    """The first difference between a recording and its replay."""

    strand: str
    """Where: a session, its requests to the model, or what is stored."""
    number: int
    """The index of the first item that differs."""
    recorded: Item | None
    replayed: Item | None
    before: tuple[str, ...]
    """The items directly before it, which are the same."""
    where: str = ""
    """The path of the first value that differs inside the item."""

    @property
    def at(self) -> float:
        """When it happened, in seconds since the run began."""
        item = self.recorded or self.replayed
        return 0.0 if item is None else item.at

    @override
    def __str__(self) -> str:
        lines = [f"first difference: {self.strand}, item {self.number + 1}, at {self.at:.3f} s"]
        lines += [f"    the same: {what}" for what in self.before]
        for name, item in (("recorded", self.recorded), ("replayed", self.replayed)):
            lines.append(f"    {name}: {'nothing more' if item is None else item.what}")
        if self.recorded is not None and self.replayed is not None:
            lines.append(f"    at {self.where or 'its kind'}:")
            one, two = (
                _json(_at(each.value, self.where)) for each in (self.recorded, self.replayed)
            )
            start = max(0, _same(one, two) - LEAD)
            lines.append(f"        recorded: {_shown(one, start)}")
            lines.append(f"        replayed: {_shown(two, start)}")
        return "\n".join(lines)


def first_difference(recorded: CapsuleFile, replayed: CapsuleFile) -> Difference | None:
    """Return the difference that happened first; None if there is none."""
    ours, theirs = _Story(recorded).strands, _Story(replayed).strands
    if recorded.of("cancel"):
        # A replay stores in no time. So it may have sent a request that the cancel has prevented while the
        # message for its answer was being stored.
        for strand, items in theirs.items():
            if strand.startswith(REQUESTS):
                del items[len(ours.get(strand, ())) :]
    found = [
        difference
        for strand in dict.fromkeys((*ours, *theirs))
        if (difference := _compare(strand, ours.get(strand, []), theirs.get(strand, [])))
    ]
    return min(found, key=lambda each: each.at, default=None)


def _compare(strand: str, ours: list[Item], theirs: list[Item]) -> Difference | None:
    for number in range(max(len(ours), len(theirs))):
        mine = ours[number] if number < len(ours) else None
        other = theirs[number] if number < len(theirs) else None
        if mine is not None and other is not None:
            if mine.what == other.what and mine.value == other.value:
                continue
            where = next(_paths(mine.value, other.value), "") if mine.what == other.what else ""
        else:
            where = ""
        before = tuple(each.what for each in ours[max(0, number - CONTEXT) : number])
        return Difference(strand, number, mine, other, before, where)
    return None


# ── The story of a capsule ──────────────────────────────────────────────────────────────────────


@define(eq=False)
class _Story:
    """The strands of one capsule."""

    capsule: CapsuleFile
    strands: dict[str, list[Item]] = field(init=False)
    _sessions: SessionNames = field(init=False)
    _names: dict[str, str] = field(factory=dict, init=False)
    _counts: defaultdict[tuple[str, str], int] = field(factory=lambda: defaultdict(int), init=False)
    _calls: dict[str, str] = field(factory=dict, init=False)
    """The session of each tool call and of each batch of questions."""
    _parallel: set[str] = field(factory=set, init=False)
    """The tool calls that may run at the same time as others."""
    _runs: set[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        header = self.capsule.header
        self._sessions = SessionNames(SessionId(header["session"]["id"]))
        self._names[header["run"]] = "the run"
        for number, message in enumerate(header["history"], 1):
            self._names[message["id"]] = f"history {number}"
        self._runs = {header["run"], *(each["run"] for each in self.capsule.of("stored"))}
        self.strands = defaultdict(list)
        for entry in self.capsule.entries:
            for strand, item in self._items(entry):
                self.strands[strand].append(item)
        end = self.capsule.end
        value = {"state": end["state"], "error": self._plain(end.get("error", ""))}
        self.strands["the end"].append(Item(f"the run is {end['state']}", value, end["t"]))

    def _items(self, entry: Entry) -> Iterator[tuple[str, Item]]:
        match entry["k"]:
            case "tool":
                self._calls[entry["call"]] = entry["session"]
                if entry["parallel"]:
                    self._parallel.add(entry["call"])
            case "event" if self._is_compared(entry):
                yield self._event(entry)
            case "request":
                strand = f"{REQUESTS} {self._sessions.of(entry['session'])} for a {entry['for']}"
                shown = {name: entry.get(name) for name in ("model", "max_tokens", "kept")}
                value = {**shown, "messages": entry["messages"], "tools": entry.get("tools")}
                yield strand, Item("a request to the model", self._plain(value), entry["t"])
            case "stored":
                for message in entry["messages"]:
                    session, call = self._sessions.of(message["session_id"]), _call_of(message)
                    strand = f"stored messages of {session}"
                    if call in self._parallel:
                        strand = f"stored result of {call} in {session}"
                    what = f"a message of role {message['role']}"
                    yield strand, Item(what, self._plain(message), entry["t"])

    def _is_compared(self, entry: Entry) -> bool:
        """Whether an event is of the run itself, and does not depend on time."""
        if entry["type"] not in COMPARED or entry.get("change") == "growing":
            return False
        run = entry["value"]
        return entry["type"] != "run" or run["id"] in self._runs or run["state"] == "folded"

    def _event(self, entry: Entry) -> tuple[str, Item]:
        value, kind = entry["value"], entry["type"]
        session = value.get("session_id") or self._calls.get(
            value.get("tool_call_id") or value.get("batch_id", ""), ""
        )
        strand = f"events of {self._sessions.of(session)}"
        if (call := _call_of(value)) in self._parallel:
            strand = f"events of the call {call} in {self._sessions.of(session)}"
        elif value.get("progress"):
            strand = f"progress of {self._sessions.of(session)}"
        if "id" in value:
            self._name(
                value["id"], self._sessions.of(session), f"result of {call}" if call else kind
            )
            self._calls[value["id"]] = session
        for number, question in enumerate(value.get("questions", ()), 1):
            self._names.setdefault(question["id"], f"question {number}")
        what = {
            "message": lambda: f"message {entry.get('change')} ({value.get('role')})",
            "run": lambda: f"run {value.get('state')}",
        }.get(kind, lambda: f"{kind} {_about(value)}".strip())()
        return strand, Item(what, self._plain(value), entry["t"])

    def _name(self, known: str, session: str, kind: str) -> None:
        if known not in self._names:
            self._counts[session, kind] += 1
            prefix = "" if session == MAIN else f"{session}: "
            self._names[known] = f"{prefix}{kind} {self._counts[session, kind]}"

    def _plain(self, value: Json) -> Json:
        """Return *value* with names instead of ids, and without times."""
        match value:
            case str():
                return self._names.get(value) or self._text(value)
            case Mapping():
                return {
                    name: self._plain(each) for name, each in value.items() if name not in IGNORED
                }
            case list():
                return [self._plain(each) for each in value]
        return value

    def _renamed(self, found: re.Match[str]) -> str:
        """Return the name of an id that was found in a text; the id itself if it is not known."""
        whole, known = found[0], found[1]
        return self._names.get(whole) or self._names.get(known, known) + whole[len(known) :]

    def _text(self, text: str) -> str:
        """Return *text* with names instead of ids; only long ones are found inside of a text."""
        text = LONG_ID.sub(self._renamed, text)
        is_session = text == self._sessions.main or ("$$" in text and " " not in text)
        return self._sessions.of(text) if is_session else text


def _call_of(value: Entry) -> str:
    """Return the tool call that an event is about; empty if it is about none."""
    parts = value.get("parts") or [{}]
    return str(value.get("tool_call_id") or parts[0].get("data", {}).get("tool_call_id", ""))


def _about(value: Entry) -> str:
    said = (value.get("tool_name"), value.get("type"), value.get("progress"))
    decided = [name for name in ("granted", "denied", "withdrawn") if value.get(name) is True]
    return " ".join(str(each) for each in (*said, *decided) if each)


# ── Values ──────────────────────────────────────────────────────────────────────────────────────


def _paths(mine: Json, other: Json, way: str = "") -> Iterator[str]:
    """Yield the paths of the values that differ, the first one first."""
    if isinstance(mine, Mapping) and isinstance(other, Mapping):
        for name in dict.fromkeys((*mine, *other)):
            yield from _paths(mine.get(name), other.get(name), f"{way}/{name}")
    elif isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        for number, (one, two) in enumerate(zip(mine, other, strict=True)):
            yield from _paths(one, two, f"{way}/{number}")
    elif mine != other:
        yield way or "/"


def _at(value: Json, way: str) -> Json:
    for step in way.split("/")[1:]:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit():
            value = value[int(step)]
    return value


def _json(value: Json) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return "a value that is nested too deeply to be shown"


def _same(one: str, two: str) -> int:
    """Return how many characters at the beginning of two texts are the same."""
    pairs = zip(one, two, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _shown(text: str, start: int) -> str:
    """Return *text*, or of a long one the piece from *start*, a little before the difference."""
    if len(text) <= WIDTH:
        return text
    before, after = "…" if start else "", "…" if start + WIDTH < len(text) else ""
    return f"{before}{text[start : start + WIDTH]}{after} ({len(text)} characters)"
