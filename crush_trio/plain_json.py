"""JSON of dicts, lists and texts, and texts of clients made fit for JSON and for messages.

It does without the codec, so that the HTTP server can refuse a request before that is imported.
"""

from typing import Any, Final

import orjson

_SHOWN: Final = 40


def clean_text(text: str) -> str:
    """Return *text* without lone surrogates: two that form a pair are joined, others replaced.

    Text that needs no change is returned itself.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def dump(tree: Any) -> bytes:  # noqa: ANN401 - a tree of plain values
    """Return the JSON of a tree of plain values; clean its text if encoding fails."""
    try:
        return orjson.dumps(tree)
    except orjson.JSONEncodeError:
        return orjson.dumps(_clean(tree))


def _clean(tree: Any) -> Any:  # noqa: ANN401 - the same
    if isinstance(tree, str):
        return clean_text(tree)
    if isinstance(tree, dict):
        return {_clean(key): _clean(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_clean(item) for item in tree]
    return tree


def shown(text: str) -> str:
    """Return *text* quoted and short enough for a message."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
