"""What goes back to a provider together with a thought.

Some providers want to see again what their models thought, in exactly the form in which it came. A
stored thought has its text and one more string for that, its signature, of one of three kinds:

* the provider's own, which is passed on as it is (Anthropic);
* a JSON array of everything that has to go back, text and signatures included: OpenRouter's details,
  and Anthropic's blocks when there is more than one;
* `ECHO`: the text itself goes back, under the name it came under (DeepSeek and its relatives).

A conversation may change its provider. What one of them signed means nothing to another, so everyone
takes what is his and leaves the rest.
"""

from collections.abc import Iterable
from typing import Any, Final

import orjson

from crush_trio.providers.base import PromptMessage
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.messages import ReasoningPart

ECHO: Final = "reasoning_content"
"""The field that a thought came in, and the signature of one that goes back in it."""


def pack(blocks: Iterable[JsonObject]) -> str:
    """Return the signature that holds *blocks*."""
    return orjson.dumps([dict(block) for block in blocks]).decode()


def unpack(signature: str, *types: str) -> list[dict[str, Any]]:
    """Return the blocks in *signature* whose type begins with one of *types*, if it holds any."""
    if not signature.startswith("["):
        return []
    try:
        blocks = orjson.loads(signature)
    except orjson.JSONDecodeError:
        return []
    return [b for b in blocks if isinstance(b, dict) and str(b.get("type")).startswith(types)]


def is_plain(signature: str) -> bool:
    """Whether *signature* is a provider's own."""
    return bool(signature) and signature != ECHO and not signature.startswith("[")


def reasoning_in(message: PromptMessage) -> ReasoningPart | None:
    """Return what the model thought before it wrote *message*."""
    return next((part for part in message.parts if isinstance(part, ReasoningPart)), None)
