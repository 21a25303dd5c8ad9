"""From columns back to values, and what it means if that does not work.

Rows were written by this program or by another version of it. JSON that cannot be read means a
damaged file. A word that is not known, such as a kind of part, means that a newer version wrote it:
then the row cannot be shown as what it is, and showing it as something else, or leaving it out, could
end with a model that acts on half a conversation. So it is refused, with the advice that helps.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from crush_trio.errors import DecodeError
from crush_trio.store.errors import StoreCorrupt, StoreTooNew
from crush_trio.wire.codec import decode, decode_part, encode, unstructure
from crush_trio.wire.messages import PARTS, Part

Row: TypeAlias = Sequence[Any]
"""The columns of a row as SQLite returns them; a STRICT table vouches for their types."""

T = TypeVar("T")
Word = TypeVar("Word", bound=StrEnum)


def read_json(data: str | bytes, cls: type[T], where: str) -> T:
    """Read a JSON column; *where* says which, for the error."""
    try:
        return decode(data, cls)
    except DecodeError as exc:
        raise StoreCorrupt(f"{where} ({exc.detail})") from exc


def read_word(text: str, words: type[Word], where: str) -> Word:
    """Read a column that holds one of a set of words."""
    try:
        return words(text)
    except ValueError:
        raise StoreTooNew(f"{where} is {text!r}") from None


def read_part(kind: str, data: str, where: str) -> Part:
    """Read a part from its two columns."""
    if kind not in PARTS:
        raise StoreTooNew(f"{where} is of type {kind!r}")
    try:
        return decode_part(f'{{"type":"{kind}","data":{data}}}')
    except DecodeError as exc:
        raise StoreCorrupt(f"{where} ({exc.detail})") from exc


def part_columns(part: Part) -> tuple[str, str]:
    """Return the two columns of a part: its type, and its data as JSON."""
    return part.kind, json_column(unstructure(part)["data"])


def json_column(value: object) -> str:
    """Return a value as the JSON text of a column."""
    return encode(value).decode()
