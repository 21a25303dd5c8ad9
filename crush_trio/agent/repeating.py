"""A model that goes in circles is stopped.

Counts identical tool interactions (the same tools, the same arguments, the same answers) over the
last steps of a turn. Steps without tool calls do not count: they end the turn anyway (D30).
"""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

import orjson
from attrs import define, field

from crush_trio.tools.base import ToolResult
from crush_trio.wire.messages import ToolCallPart

WINDOW: Final = 10
MOST: Final = 5


@define(eq=False)
class LoopGuard:
    """The last steps of one turn."""

    _recent: deque[bytes] = field(factory=lambda: deque(maxlen=WINDOW), init=False)

    def repeats(self, calls: Iterable[ToolCallPart], results: Iterable[ToolResult]) -> bool:
        """Take note of a step; whether it was seen too often among the last ones."""
        pairs = [
            (call.name, call.input, result.content)
            for call, result in zip(calls, results, strict=False)
        ]
        if not pairs:
            return False
        digest = hashlib.sha256(orjson.dumps(pairs)).digest()
        self._recent.append(digest)
        full = len(self._recent) == WINDOW
        return full and Counter(self._recent).most_common(1)[0][1] > MOST
