"""Columns to values and back, with the errors for values that cannot be read.

Rows were written by this program or by another version of it. JSON that cannot be read means a
damaged file. An unknown word, such as a kind of part, means that a newer version wrote it. Such a
row is refused: showing it as something else, or leaving it out, could make a model act on half a
conversation.
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

from crush_trio.errors import DecodeError
from crush_trio.plain_json import dump
from crush_trio.store.errors import StoreCorrupt, StoreTooNew
from crush_trio.wire.codec import decode, decode_part, encode, unstructure
from crush_trio.wire.messages import PARTS, Part

Row: TypeAlias = Sequence[Any]
"""The columns of a row; the tables of every store guarantee their types."""

T = TypeVar("T")
Word = TypeVar("Word", bound=StrEnum)


def read_json(data: str | bytes, cls: type[T], where: str) -> T:
    """Decode a JSON column; *where* names it in the error."""
    try:
        return decode(data, cls)
    except DecodeError as exc:
        raise StoreCorrupt(f"{where} ({exc.detail})") from exc


def read_word(text: str, words: type[Word], where: str) -> Word:
    """Decode a column that holds one of a set of words."""
    try:
        return words(text)
    except ValueError:
        raise StoreTooNew(f"{where} is {text!r}") from None


def read_part(kind: str, data: str, where: str) -> Part:
    """Decode a part from its two columns."""
    if kind not in PARTS:
        raise StoreTooNew(f"{where} is of type {kind!r}")
    text = f'{{"type":"{kind}","data":{data}}}'
    try:
        return _remembered_part(text) if len(text) <= SHORT else decode_part(text)
    except DecodeError as exc:
        raise StoreCorrupt(f"{where} ({exc.detail})") from exc


SHORT: Final = 1024
"""Characters of a part up to which it is remembered: 2048 of them are 4 MB at most."""


@lru_cache(maxsize=2048)
def _remembered_part(text: str) -> Part:
    """Decode a part. Each step of a run reads the whole conversation, most of which it has read before."""
    return decode_part(text)


def part_columns(part: Part) -> tuple[str, str]:
    """Return the two columns of a part: its type, and its data as JSON."""
    return part.kind, dump(unstructure(part)["data"]).decode()


def json_column(value: object) -> str:
    """Return a value as the JSON text of a column."""
    return encode(value).decode()
