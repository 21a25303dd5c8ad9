"""Chunks of chat completions, with as little typing as a test wants."""

import json

from hypothesis import strategies as st

from crush_trio.net.sse import SseEvent
from crush_trio.providers.base import Finished
from crush_trio.providers.openai.chat import ChatReading

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(*chunks, done=True):
    """Return the parts of an answer that came as *chunks*: deltas, or whole chunks."""
    reading = ChatReading(prefix="call_7", secrets=("top secret",))
    parts = []
    for chunk in chunks:
        whole = chunk if "choices" in chunk or "error" in chunk else chunk_of(chunk)
        parts += reading.read(event(whole))
    parts += reading.read(SseEvent("", b"[DONE]")) if done else reading.end()
    assert reading.finished
    return parts


def event(chunk):
    """Return the event that carries *chunk*."""
    return SseEvent("", json.dumps(chunk).encode())


def chunk_of(delta, reason=None, **more):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def end(reason, **more):
    return chunk_of({}, reason, **more)


def call(index=0, arguments="", **more):
    """Return a delta of one call; `id` and `name` if given."""
    function = {"arguments": arguments}
    if "name" in more:
        function["name"] = more.pop("name")
    return {"tool_calls": [{"index": index, "function": function, **more}]}


def without_end(parts):
    assert isinstance(parts[-1], Finished)
    return parts[:-1]
