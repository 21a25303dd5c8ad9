"""Rendered messages: made once for all pages, in a thread, and kept as the bytes that are sent.

A finished message does not change, so what was made of it is kept until there is no room. Requests for the same
message at the same moment wait for one rendering. One thread at a time renders: a page that scrolls through
a long session must not take the processor from the runs.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Final

import trio
from attrs import define, field

from crush_trio.errors import Conflict
from crush_trio.wire.answers import RenderedDiff, RenderedMessage, RenderedPart
from crush_trio.wire.codec import encode
from crush_trio.wire.messages import Message, Part, ReasoningPart, TextPart, ToolResultPart

KEPT_MOST: Final = 16 * 1024 * 1024
"""The most bytes that are kept."""

SECONDS: Final = 5.0
"""How long the parts of one message may take; those that are not begun by then are shown as plain text."""

_EDITED: Final = re.compile(r"(?:Edited|Created|Wrote|Applied \d+ of \d+ edits to) (/.+?) \(")


class MessageGrowing(Conflict):
    """A message that is still being written is shown as it grows, and rendered when it is finished."""

    code = "message_growing"
    message = "the message is not finished; ask again when it is"


@define(eq=False)
class Rendering:
    """What a server has rendered, the least recently used first."""

    most: int = KEPT_MOST
    _kept: OrderedDict[Hashable, bytes] = field(factory=OrderedDict, init=False, repr=False)
    _size: int = field(default=0, init=False)
    _under_way: dict[Hashable, trio.Event] = field(factory=dict, init=False, repr=False)
    _turn: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)

    @property
    def size(self) -> int:
        """How many bytes are kept."""
        return self._size

    async def message(self, workspace_id: str, message: Message) -> bytes:
        """Return the answer with a finished message."""
        key = workspace_id, message.id, message.updated_at
        return await self._made(key, lambda: encode(render_message(message)))

    async def diff(self, path: str, old: str, new: str) -> bytes:
        """Return the answer with a change."""

        def make() -> bytes:
            from crush_trio.server.page.diff import diff_of_contents

            return encode(RenderedDiff(html=diff_of_contents(path, old, new)))

        return await self._made((path, old, new), make)

    async def _made(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        await trio.lowlevel.checkpoint()
        while (other := self._under_way.get(key)) is not None:
            await other.wait()
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        done = self._under_way[key] = trio.Event()
        try:
            made = await trio.to_thread.run_sync(make, limiter=self._turn)
            self._keep(key, made)
        finally:
            del self._under_way[key]
            done.set()
        return made

    def _keep(self, key: Hashable, made: bytes) -> None:
        """Keep *made*, and drop what was used longest ago while there is too much."""
        self._kept[key] = made
        self._size += weight_of(key, made)
        while self._size > self.most:
            self._size -= weight_of(*self._kept.popitem(last=False))


def weight_of(key: Hashable, made: bytes) -> int:
    """Return about how many bytes an entry takes, its key included: that of a diff has the contents."""
    return len(made) + sum(len(str(each)) for each in key) if isinstance(key, tuple) else len(made)


def render_message(message: Message) -> RenderedMessage:
    """Return the parts of *message* that are more than plain text, as far as the time goes. Takes time: call it in a thread."""
    from crush_trio.server.page.code import code_time

    parts, until = [], monotonic() + SECONDS
    with code_time():
        for index, part in enumerate(message.parts):
            html = render_part(part) if monotonic() < until else None
            if html is not None:
                parts.append(RenderedPart(index=index, html=html))
    return RenderedMessage(id=message.id, updated_at=message.updated_at, parts=tuple(parts))


def render_part(part: Part) -> str | None:
    """Return a part as HTML; None if plain text is all there is to show."""
    from crush_trio.server.page.markdown import markdown

    match part:
        case TextPart(text=text) if text.strip():
            return markdown(text)
        case ReasoningPart(thinking=text) if text.strip():
            return markdown(text)
        case ToolResultPart():
            return _tool_result(part)
    return None


def _tool_result(part: ToolResultPart) -> str | None:
    """Return a change as a diff, and the content of a file whose language is known as code."""
    from crush_trio.server.page.code import code_block, language_of_file
    from crush_trio.server.page.diff import diff_of_contents, diff_table
    from crush_trio.server.page.markdown import TEXT_MOST, plain

    about = _metadata(part.metadata)
    path, content = about.get("file_path", ""), about.get("content")
    if "new_content" in about:
        edited = _EDITED.match(part.content)
        name = path or (edited[1] if edited else "")
        return diff_of_contents(name, about.get("old_content", ""), about["new_content"])
    if about.get("diff"):
        return diff_table(about["diff"], path)
    if part.is_error or not content or language_of_file(path) is None:
        return None
    return (
        plain(content) if len(content) > TEXT_MOST else code_block(content, language_of_file(path))
    )


def _metadata(text: str) -> dict[str, str]:
    """Return the texts of a result's metadata; none if it is not an object, as that of foreign tools may be."""
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}
