"""What there is to say about a file after a tool has looked at it or changed it (H7).

The file is shown to every server that is for it, to all of them at once, and each gets some time to find
something. It is not much: a model waits. A server that is still starting, or does not answer, has nothing
to say this time, and is not in the way either.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from crush_trio.integrations.lsp.connection import LspFailure
from crush_trio.integrations.lsp.life import Conversation
from crush_trio.integrations.lsp.report import report
from crush_trio.integrations.lsp.server import Server
from crush_trio.integrations.lsp.text import body_of, path_of, uri_of
from crush_trio.tools.base import ToolError
from crush_trio.tools.changing import EDIT_LIMIT
from crush_trio.tools.disk import read_file
from crush_trio.tools.text import Text
from crush_trio.wire.views import Diagnostics

CHANGED_LIMIT: Final = 5.0
"""Seconds that a model waits for servers after a change (H7)."""

VIEWED_LIMIT: Final = 0.3
"""Seconds that it waits when it has only looked (H7)."""


async def after_view(servers: Sequence[Server], path: Path, root: Path) -> str:
    """Show *servers* a file that somebody looks at, and return what they say within a moment."""
    return await _after(servers, path, root, VIEWED_LIMIT, changed=False)


async def after_change(servers: Sequence[Server], path: Path, root: Path) -> str:
    """Tell *servers* that a file is another one now, and return what they make of it."""
    return await _after(servers, path, root, CHANGED_LIMIT, changed=True)


async def _after(
    servers: Sequence[Server], path: Path, root: Path, limit: float, *, changed: bool
) -> str:
    text = await text_of(path)
    if text is None:
        return ""
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + limit
        for server in servers:
            nursery.start_soon(_attend, server, path, text, changed)
    return report(said_by(servers), uri_of(path), root)


async def _attend(server: Server, path: Path, text: str, changed: bool) -> None:
    """Show one server a file and wait until it has said what it has to say, if it has anything."""
    try:
        conversation = await server.get_ready()
    except LspFailure:
        return  # noqa: ASYNC910  # getting ready is a checkpoint, also if it fails
    documents = conversation.documents
    heard = documents.heard
    news = documents.show(path, text)
    if changed:
        documents.save(path)
    if news or changed:
        await documents.settled(heard)


def said_by(servers: Iterable[Server]) -> list[Diagnostics]:
    """Return what each of those servers has said that are ready."""
    talking = (server.conversation for server in servers)
    return [each.documents.said() for each in talking if each is not None]


async def refresh(conversation: Conversation, known: Iterable[str] = ()) -> None:
    """Show a server again what it has open, and those that are *known*, as they are on the disk now."""
    documents = conversation.documents
    await trio.lowlevel.checkpoint()
    for path in filter(None, map(path_of, (*documents.opened, *known))):
        text = await text_of(path)
        if text is None:
            documents.forget(path)
        elif documents.show(path, text):
            documents.save(path)


async def text_of(path: Path) -> str | None:
    """Return what a server sees of a file; None if it is not there, or no text of a usual size."""
    return await trio.to_thread.run_sync(_text, path)


def _text(path: Path) -> str | None:
    with suppress(ToolError, UnicodeDecodeError):
        snapshot = read_file(path, EDIT_LIMIT)
        return None if snapshot is None else body_of(Text.decoded(snapshot.data))
    return None
