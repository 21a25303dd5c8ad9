"""`entry_fault`, `header_fault`: check that the lines of a capsule have the members that a replay uses, of the right types.

A capsule may come from anyone, or have been edited. What is wrong is told with the number of its line, before
anything is played. Only the outer members are checked here; values of the wire are checked when they are used.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from crush_trio.agent.record.capsule import Entry

Types = tuple[type, ...]

TEXT: Final = (str,)
NUMBER: Final = (int, float)
OBJECT: Final = (dict,)
LIST: Final = (list,)
FLAG: Final = (bool,)

_CALL: Final[Mapping[str, Types]] = {"session": TEXT, "call": TEXT}
_EXCHANGE: Final[Mapping[str, Types]] = {"x": (int,)}

HEADER: Final[Mapping[str, Types]] = {
    **dict.fromkeys(("run", "kind", "prompt", "directory"), TEXT),
    **dict.fromkeys(("session", "config", "limits"), OBJECT),
    **dict.fromkeys(("attachments", "history", "rules"), LIST),
    **dict.fromkeys(("interactive", "skip_permissions", "granted", "refuses"), FLAG),
    "run_id": (str, type(None)),
    "permissions": (dict, type(None)),
    "model": (dict, type(None)),
}

MEMBERS: Final[Mapping[str, Mapping[str, Types]]] = {
    "request": {**_EXCHANGE, "session": TEXT, "for": TEXT, "messages": LIST},
    "parts": {**_EXCHANGE, "part": TEXT, "pieces": LIST},
    "part": {**_EXCHANGE, "part": TEXT},
    "heard": _EXCHANGE,
    "failed": {**_EXCHANGE, "error": OBJECT},
    "tool": {**_CALL, "name": TEXT, "parallel": FLAG},
    "permit": {**_CALL, "wanted": OBJECT},
    "refused": _CALL,
    "ask": {**_CALL, "questions": LIST},
    "progress": {**_CALL, "text": TEXT},
    "result": {**_CALL, "result": OBJECT},
    "raised": {**_CALL, "error": OBJECT},
    "hooks": {"event": TEXT, "subject": TEXT, "call": TEXT, "hooks": LIST, "answers": LIST},
    "answer": {"ask": OBJECT, "resolution": TEXT},
    "fold": {"prompt": TEXT, "attachments": LIST},
    "cancel": {"at": NUMBER},
    "event": {"type": TEXT, "value": OBJECT},
    "stored": {"run": TEXT, "messages": LIST},
    "end": {"state": TEXT},
}
"""The members of each kind of line; kinds that are not here have none."""

PARTS: Final[Mapping[str, Mapping[str, Types]]] = {
    "call": {"id": TEXT, "name": TEXT},
    "called": {"id": TEXT, "name": TEXT, "input": TEXT},
    "reasoned": {"signature": TEXT},
    "finished": {"reason": TEXT, "usage": OBJECT},
}
"""The further members of each `part`."""


def header_fault(header: Entry) -> str | None:
    """Return what is wrong with the header of a capsule; None if nothing is."""
    return next(_missing(1, "header", header, HEADER), None)


def entry_fault(entries: Sequence[Entry]) -> str | None:
    """Return what is wrong with the other lines of a capsule, and in which one; None if nothing is."""
    return next(_faults(entries), None)


def _faults(entries: Sequence[Entry]) -> Iterator[str]:
    exchanges, calls = set[int](), set[tuple[str, str]]()
    whole = bool(entries) and "lost" not in entries[-1]
    for number, entry in enumerate(entries, 2):
        kind = entry.get("k")
        if not isinstance(kind, str) or not _fits(entry.get("t"), NUMBER):
            yield f"line {number} has no kind or no time"
            return
        members = MEMBERS.get(kind, {})
        yield from _missing(number, kind, entry, members)
        match kind:
            case "request":
                exchanges.add(entry["x"])
                yield from _tools(number, entry)
            case "part":
                part = PARTS.get(entry["part"])
                if part is None:
                    yield f"line {number} has a `part` of an unknown kind"
                    return
                yield from _missing(number, entry["part"], entry, part)
            case "parts":
                yield from _pieces(number, entry)
            case "tool":
                calls.add((entry["session"], entry["call"]))
        if whole and "x" in members and entry["x"] not in exchanges:
            yield f"line {number} belongs to the model call {entry['x']}, which no line before it begins"
        theirs = members.keys() >= _CALL.keys()
        if whole and theirs and (entry["session"], entry["call"]) not in calls:
            yield f"line {number} belongs to a tool call that no line before it begins"


def _missing(number: int, kind: str, entry: Entry, members: Mapping[str, Types]) -> Iterator[str]:
    for name, types in members.items():
        if not _fits(entry.get(name), types):
            yield f"`{name}` of line {number} ({kind}) is missing, or not of its type"


def _fits(value: object, types: Types) -> bool:
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _tools(number: int, entry: Entry) -> Iterator[str]:
    tools = entry.get("tools", {})
    if not isinstance(tools, dict) or not all(
        isinstance(each, list) and len(each) == len(("description", "parameters"))
        for each in tools.values()
    ):
        yield f"`tools` of line {number} are not pairs of a description and parameters"


def _pieces(number: int, entry: Entry) -> Iterator[str]:
    if entry["part"] == "arguments" and not isinstance(entry.get("id"), str):
        yield f"`id` of line {number} (parts) is missing, or not of its type"
    for piece in entry["pieces"]:
        match piece:
            case [int() | float(), str()]:
                continue
        yield f"`pieces` of line {number} are not pairs of a time and a text"
