"""What every store does the same way, whatever it keeps its rows in.

A change is looked at here before it is applied: its text becomes text that can be stored, and a path
that means something else in every directory is refused. How a part grows and when a message is
complete on arrival are questions that two stores must not answer differently either.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from itertools import islice
from operator import is_
from pathlib import PurePath
from typing import Any, Final, TypeVar, cast

import attrs
from attrs import evolve

from crush_trio.store.changes import Change, FileRead
from crush_trio.wire.codec import clean_text
from crush_trio.wire.messages import FinishPart, Message, Part, ReasoningPart, TextPart

T = TypeVar("T")

GROWING: Final = (TextPart, ReasoningPart)
"""The parts that text can be appended to."""


def admitted(change: Change) -> Change:
    """Return *change* as it can be stored.

    Raises `ValueError` for a relative path: it would depend on where the program was started (L21).
    """
    change = cleaned(change)
    if isinstance(change, FileRead):
        absolute(change.path)
    return change


def cleaned(value: T) -> T:
    """Return *value* with all text in it free of surrogate halves, which no database can keep.

    What needs nothing, which is nearly everything, is returned itself.
    """
    return cast("T", _clean(value))


def _clean(value: object) -> object:
    if isinstance(value, str):
        return value if isinstance(value, Enum) else clean_text(value)
    if isinstance(value, tuple):
        items = tuple(_clean(item) for item in value)
        return value if all(map(is_, items, value)) else items
    cls: Any = type(value)
    names = _fields(cls)
    return _clean_fields(value, names) if names else value


def _clean_fields(value: object, names: tuple[str, ...]) -> object:
    changed = {}
    for name in names:
        old = getattr(value, name)
        new = _clean(old)
        if new is not old:
            changed[name] = new
    return evolve(cast("Any", value), **changed) if changed else value


@cache
def _fields(cls: type[object]) -> tuple[str, ...]:
    """Return the names of the fields of an attrs class; none for other classes.

    Remembered, because every change that is stored comes by here.
    """
    return tuple(attrs.fields_dict(cls)) if attrs.has(cls) else ()


def absolute(path: str) -> str:
    """Return *path* as it can be stored; raise `ValueError` if it is not absolute."""
    if not PurePath(path).is_absolute():
        raise ValueError(f"not an absolute path: {path!r}")
    return clean_text(path)


def grown(part: Part, text: str) -> Part:
    """Return *part* with *text* at its end; only text and reasoning grow."""
    match part:
        case TextPart():
            return evolve(part, text=part.text + text)
        case ReasoningPart():
            return evolve(part, thinking=part.thinking + text)
        case _:
            raise TypeError(f"a {part.kind} part does not grow")


def page(rows: Iterable[T], limit: int, size: int, length: Callable[[T], int]) -> list[T]:
    """Return the first of *rows*: at most *limit*, and none after they have *size* characters."""
    found: list[T] = []
    for row in islice(rows, limit):
        found.append(row)
        size -= length(row)
        if size <= 0:
            break
    return found


def complete(message: Message) -> bool:
    """Whether a new message is finished as it comes: the user's and the tools' are (D1)."""
    return any(isinstance(part, FinishPart) for part in message.parts)
