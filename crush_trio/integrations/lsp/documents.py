"""`Documents`: the open documents of one server, its diagnostics, and the work that it reports.

A file is *shown* before any request about it: opened, or changed if the server has another text of it.
So a server never answers about a text that is not on disk. It publishes diagnostics later, perhaps in
parts, perhaps never: `settled` decides when to stop waiting, and `doubt` says why they may be incomplete
(H7). A server that reports work with `$/progress`, such as loading the project, is waited for until it
has ended that work. Diagnostics that it published and those that we asked for are kept apart, because one
kind does not replace the other. All that is stored is bounded.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from crush_trio.integrations.lsp.known_servers import language_of
from crush_trio.integrations.lsp.protocol import normalize_uri, path_of, server_text, uri_of
from crush_trio.tools.base import ToolError
from crush_trio.tools.files.changes import EDIT_LIMIT
from crush_trio.tools.files.disk import read_file
from crush_trio.tools.files.text import FileText
from crush_trio.wire.answers import Diagnostics
from crush_trio.wire.fields import Json, JsonObject

MAX_OPEN: Final = 200
"""Maximum open documents of a server; the least recently used one is closed."""

MAX_PER_FILE: Final = 500
MAX_TOTAL: Final = 20_000
"""Maximum diagnostics kept of one file, and of all files."""

MAX_TEXT: Final = 2000
"""Maximum characters kept of each text in a diagnostic."""

MAX_WORK: Final = 100
"""Maximum tasks of a server that are counted at a time."""

MAX_TITLE: Final = 80
"""Maximum characters shown of what a server says of its work."""

FIRST_WAIT: Final = 1.0
"""Seconds to wait for the first diagnostics of a file, in a small project (H7)."""

QUIET_WAIT: Final = 0.3
"""Seconds without new diagnostics after which they count as complete (H7)."""

LOADING_LIMIT: Final = 30.0
"""Seconds after its start in which the silence of a server may mean that it is loading, in a small project."""

_CREATED: Final = 1
_CHANGED: Final = 2
_DELETED: Final = 3

Notify = Callable[[str, JsonObject], None]
"""Sends a notification."""


@define(eq=False)
class _Shown:
    """A file that the server has open."""

    version: int
    digest: bytes = field(repr=False)
    reported: bool = False
    """Whether the server has sent diagnostics of this version."""


@define(eq=False)
class Documents:
    """The open documents of one server, and its diagnostics."""

    _notify: Notify = field(repr=False)
    syncs: bool = True
    """Whether the server wants notifications of changes."""
    saves: bool = True
    """Whether it wants notifications of saves."""
    pace: float = 1.0
    """The factor of the time limits; greater than 1 in a large project."""
    ready_at: float = 0.0
    """When the server became ready, or last ended work that it had reported, in Trio's time."""
    updates: int = field(default=0, init=False)
    """How many times the server has sent diagnostics."""
    refreshes: int = field(default=0, init=False)
    """How many times the server has asked us to request the diagnostics again."""
    count: int = field(default=0, init=False)
    """The number of current diagnostics."""
    _open: dict[str, _Shown] = field(factory=dict, init=False, repr=False)
    _said: dict[tuple[str, bool], tuple[JsonObject, ...]] = field(
        factory=dict, init=False, repr=False
    )
    """The diagnostics by file and by whether we had asked for them."""
    _work: dict[Hashable, str] = field(factory=dict, init=False, repr=False)
    """The tasks that the server has begun and not ended, with their titles."""
    _reports_always: bool = field(default=False, init=False)
    """Whether the server reports on a text without mistakes even if there were none before."""
    _news: int = field(default=0, init=False)
    _waiting: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    # ── Documents ───────────────────────────────────────────────────────────────────────────────

    def show(self, path: Path, text: str) -> bool:
        """Open or update a document if needed; return whether the server was notified."""
        uri, digest = (
            uri_of(path),
            blake2b(text.encode("utf-8", "replace"), digest_size=16).digest(),
        )
        shown = self._open.pop(uri, None)
        if shown is None:
            self._make_room()
            self._open[uri] = shown = _Shown(1, digest)
            document = {"uri": uri, "languageId": language_of(path), "version": 1, "text": text}
            self._notify("textDocument/didOpen", {"textDocument": document})
            return True
        self._open[uri] = shown  # the dict is in order of last use
        if shown.digest == digest or not self.syncs:
            return False
        shown.version, shown.digest, shown.reported = shown.version + 1, digest, False
        changed = {"uri": uri, "version": shown.version}
        changes = [{"text": text}]
        self._notify("textDocument/didChange", {"textDocument": changed, "contentChanges": changes})
        return True

    def save(self, path: Path) -> None:
        """Notify the server that the shown text is on disk.

        A document that was just opened may be a new file, so it is reported as created: a server that
        knew the file reads it again, and one that did not adds it to its project.
        """
        uri = uri_of(path)
        if self.saves:
            self._notify("textDocument/didSave", {"textDocument": {"uri": uri}})
        self.report_change(path, _CREATED if self.version(uri) == 1 else _CHANGED)

    def report_change(self, path: Path, change: int = _CHANGED) -> None:
        """Notify the server of a change on disk."""
        changes = [{"uri": uri_of(path), "type": change}]
        self._notify("workspace/didChangeWatchedFiles", {"changes": changes})

    def _make_room(self) -> None:
        while len(self._open) >= MAX_OPEN:
            uri = next(iter(self._open))
            self._close(uri)

    def _close(self, uri: str) -> None:
        del self._open[uri]
        self._notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    def forget(self, path: Path) -> None:
        """Close the document of a deleted file, if it is open, and report the deletion."""
        if uri_of(path) in self._open:
            self._close(uri_of(path))
            self.report_change(path, _DELETED)

    def version(self, uri: str) -> int | None:
        """Return the version of an open document; None if it is not open."""
        shown = self._open.get(normalize_uri(uri))
        return None if shown is None else shown.version

    @property
    def opened(self) -> tuple[str, ...]:
        """The URIs of the open documents."""
        return tuple(self._open)

    # ── Diagnostics ─────────────────────────────────────────────────────────────────────────────

    def receive_diagnostics(self, params: Json, *, asked: bool = False) -> None:
        """Store the diagnostics of one file; they replace the previous ones of the same kind."""
        if not isinstance(params, dict) or not isinstance(params.get("uri"), str):
            return
        uri, version = normalize_uri(params["uri"]), params.get("version")
        shown = self._open.get(uri)
        if shown is not None and isinstance(version, int) and version < shown.version:
            return  # for an outdated text; the server will publish again for the current one
        before = self._said.pop((uri, asked), ())
        room = min(MAX_PER_FILE, MAX_TOTAL - (self.count - len(before)))
        given = params.get("diagnostics")
        kept = tuple(_kept(given if isinstance(given, list) else [], room))
        if kept:
            self._said[uri, asked] = kept
        self.count += len(kept) - len(before)
        if shown is not None and shown.version > 1 and not (shown.reported or kept or before):
            self._reports_always = True
        self.confirm(uri)

    def confirm(self, uri: str) -> None:
        """Record that the diagnostics of a file are those of its current version."""
        shown = self._open.get(uri)
        if shown is not None:
            shown.reported = True
        self.updates += 1
        self._tell()

    def diagnostics(self) -> Diagnostics:
        """Return the current diagnostics by file; files without any are left out."""
        found: dict[str, tuple[JsonObject, ...]] = {}
        for (uri, _), said in self._said.items():
            found[uri] = (*found.get(uri, ()), *said)
        return found

    # ── Work ────────────────────────────────────────────────────────────────────────────────────

    def receive_progress(self, params: Json) -> None:
        """Record what a `$/progress` notification says: that work has begun, goes on, or has ended."""
        value = params.get("value") if isinstance(params, dict) else None
        token = params.get("token") if isinstance(params, dict) else None
        if not isinstance(value, dict) or not isinstance(token, str | int):
            return
        if value.get("kind") == "end":
            if self._work.pop(token, None) is not None:
                self.ready_at = trio.current_time()
        elif token in self._work or (value.get("kind") == "begin" and len(self._work) < MAX_WORK):
            said = [value.get("title"), value.get("message")]
            text = ": ".join(each for each in said if isinstance(each, str) and each)
            self._work[token] = " ".join(text.split())[:MAX_TITLE] or self._work.get(token, "")
        self._tell()

    def receive_refresh(self) -> None:
        """Record that the diagnostics we asked for are outdated."""
        self.refreshes += 1
        self._tell()

    @property
    def busy(self) -> bool:
        """Whether the server has begun work and not ended it."""
        return bool(self._work)

    def doubt(self, uri: str | None = None) -> str:
        """Return why diagnostics, or those of one file, may be missing; empty if they are complete.

        A server need not report on a file in which it finds nothing. So its silence means that there is
        nothing if it has reported on any file before, or was started some time ago; unless it is known
        to report on every text.
        """
        if self._work:
            titles = ", ".join(dict.fromkeys(filter(None, self._work.values())))
            return f"is still loading ({titles})" if titles else "is still loading"
        shown = None if uri is None else self._open.get(uri)
        if shown is not None and not shown.reported and self._reports_always:
            return "has not reported on this text yet"
        old = trio.current_time() > self.ready_at + LOADING_LIMIT * self.pace
        if self.updates or old or (shown is not None and shown.reported):
            return ""
        return "has reported nothing yet and may still be loading"

    # ── Waiting ─────────────────────────────────────────────────────────────────────────────────

    def _tell(self) -> None:
        self._news += 1
        self._waiting.unpark_all()

    async def _wait_for_news(self, heard: int) -> None:
        await trio.lowlevel.checkpoint()
        while self._news <= heard:
            await self._waiting.park()

    async def wait_for_update(self, heard: int) -> None:
        """Wait until `updates` is greater than *heard*."""
        await trio.lowlevel.checkpoint()
        while self.updates <= heard:
            await self._waiting.park()

    async def wait_for_refresh(self, heard: int) -> None:
        """Wait until `refreshes` is greater than *heard*."""
        await trio.lowlevel.checkpoint()
        while self.refreshes <= heard:
            await self._waiting.park()

    async def idle(self) -> None:
        """Wait until the server has ended the work that it reported. The caller sets the time limit.

        A server that has just become ready gets a moment to begin its work.
        """
        await trio.sleep_until(self.ready_at + QUIET_WAIT)
        while self._work:
            await self._waiting.park()

    async def settled(self, uri: str | None = None) -> None:
        """Wait until the diagnostics, or those of one file, seem complete.

        That is when the server reports no work and is silent: for FIRST_WAIT if it has not reported on
        the current text of the file, otherwise for QUIET_WAIT. The protocol has no message for "done".
        A server that is known to report on every text is waited for until it does. The caller sets the
        total time limit.
        """
        await trio.lowlevel.checkpoint()
        begun = self.updates
        while True:
            shown = None if uri is None else self._open.get(uri)
            spoken = self.updates > begun if shown is None else shown.reported
            sure = self._work or (shown is not None and not spoken and self._reports_always)
            wait = QUIET_WAIT if spoken else FIRST_WAIT * self.pace
            with trio.move_on_after(inf if sure else wait) as silence:
                await self._wait_for_news(self._news)
            if silence.cancelled_caught:
                return


async def refresh_documents(documents: Documents, known: Iterable[str] = ()) -> None:
    """Send a server the current content of its open documents, and of the *known* ones."""
    await trio.lowlevel.checkpoint()
    for path in filter(None, map(path_of, (*documents.opened, *known))):
        text = await document_text(path)
        if text is None:
            documents.forget(path)
        elif documents.show(path, text):
            documents.save(path)


async def document_text(path: Path) -> str | None:
    """Return the text of a file for a server; None if it is missing, too large, or not text."""
    return await trio.to_thread.run_sync(read_document, path)


def read_document(path: Path, limit: int = EDIT_LIMIT) -> str | None:
    """Return what `document_text` returns; runs in a thread."""
    with suppress(ToolError, UnicodeDecodeError):
        snapshot = read_file(path, limit)
        text = None if snapshot is None else server_text(FileText.decoded(snapshot.data))
        return None if text is None or "\0" in text else text
    return None


def _kept(given: list[Json], room: int) -> list[JsonObject]:
    """Return at most *room* diagnostics, reduced to the fields that clients show."""
    found = (each for each in given if isinstance(each, dict))
    return [_without_the_rest(each) for each, _ in zip(found, range(room), strict=False)]


def _without_the_rest(diagnostic: Mapping[str, Json]) -> JsonObject:
    kept: dict[str, Json] = {}
    for key in ("range", "severity", "code", "source", "message", "tags"):
        value = diagnostic.get(key)
        if isinstance(value, str):
            kept[key] = value[:MAX_TEXT]
        elif isinstance(value, int) or (key == "range" and isinstance(value, dict)):
            kept[key] = _places(value) if key == "range" else value
        elif key == "tags" and isinstance(value, list):
            kept[key] = [tag for tag in value[:4] if isinstance(tag, int)]
    return kept


def _places(value: Json) -> Json:
    """Return a range reduced to its four numbers; invalid ones become 0."""
    sides = {}
    for side in ("start", "end"):
        place = value.get(side) if isinstance(value, dict) else None
        numbers = place if isinstance(place, dict) else {}
        sides[side] = {
            key: numbers[key] if isinstance(numbers.get(key), int) else 0
            for key in ("line", "character")
        }
    return sides
