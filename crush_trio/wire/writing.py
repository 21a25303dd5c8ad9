"""From wire values to JSON.

Writing cannot fail for a value that was read or built according to its types. The one thing a
string can hold that JSON cannot is half of a surrogate pair, as a model or a file name may leave
behind: such a half is replaced, and only once writing has stumbled over it, so that ordinary text
is not searched for something it almost never has.
"""

import binascii
from collections.abc import Callable
from typing import Any

import orjson
from cattrs import Converter
from cattrs.fns import identity

from crush_trio.wire.fields import Json, wire_fields


def class_writer(
    cls: type[Any], converter: Converter, *, without: str = ""
) -> Callable[[Any], dict[str, Json]]:
    """Make the writer of a wire class: its keys in order, but for those that may be left off.

    The field called *without* is not even looked at.
    """
    plan = []
    for field in wire_fields(cls):
        if field.name == without:
            continue
        hook = converter.get_unstructure_hook(field.type)
        plan.append(
            (
                field.name,
                field.key,
                None if hook is identity else hook,
                field.omit_empty,
                field.default,
            )
        )

    def write(value: object) -> dict[str, Json]:
        written = {}
        for name, key, hook, omit_empty, default in plan:
            item = getattr(value, name)
            if omit_empty and item == default:
                continue
            written[key] = item if hook is None else hook(item)
        return written

    return write


def write_bytes(value: bytes) -> str:
    """Write bytes as base64 with padding."""
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def clean_text(text: str) -> str:
    """Return *text* as it can be written: surrogate halves joined where they meet, else replaced.

    Text that needs nothing is returned itself.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def dump(tree: Json) -> bytes:
    """Write a tree of plain values, cleaning its text if that turns out to be necessary."""
    try:
        return orjson.dumps(tree)
    except orjson.JSONEncodeError:
        return orjson.dumps(_clean(tree))


def _clean(tree: Json) -> Json:
    if isinstance(tree, str):
        return clean_text(tree)
    if isinstance(tree, dict):
        return {_clean(key): _clean(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_clean(item) for item in tree]
    return tree
