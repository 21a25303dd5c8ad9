"""`Documents`: the open documents and diagnostics of one server. `ClientPeer`: answers its requests.

A file is *shown* before any request about it: opened, or changed if the server has another text of it.
So a server never answers about a text that is not on disk. It publishes diagnostics later, perhaps in
parts, perhaps never: `settled` decides when to stop waiting (H7). All stored diagnostics are bounded.

The capabilities that we announce are only those that we have: servers may ask for their settings, but
are not notified of files that other programs change, and cannot apply edits. A workspace edit is
requested by us, shown to a person, and applied here.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from crush_trio.integrations.lsp.connection import UnknownMethod
from crush_trio.integrations.lsp.known_servers import language_of
from crush_trio.integrations.lsp.positions import Encoding, normalize_uri, uri_of
from crush_trio.wire.config import LspServerConfig
from crush_trio.wire.fields import Json, JsonObject
from crush_trio.wire.views import Diagnostics

MAX_OPEN: Final = 200
"""Maximum open documents of a server; the least recently used one is closed."""

MAX_PER_FILE: Final = 500
MAX_TOTAL: Final = 20_000
"""Maximum diagnostics kept of one file, and of all files."""

MAX_TEXT: Final = 2000
"""Maximum characters kept of each text in a diagnostic."""

FIRST_WAIT: Final = 1.0
"""Seconds to wait for the first diagnostics (H7)."""

QUIET_WAIT: Final = 0.3
"""Seconds without new diagnostics after which they count as complete (H7)."""

_CREATED: Final = 1
_CHANGED: Final = 2
_NO_SYNC: Final = 0

Notify = Callable[[str, JsonObject], None]
"""Sends a notification."""


@define(eq=False)
class _Shown:
    """A file that the server has open."""

    version: int
    digest: bytes = field(repr=False)


@define(eq=False)
class Documents:
    """The open documents of one server, and its diagnostics."""

    _notify: Notify = field(repr=False)
    syncs: bool = True
    """Whether the server wants notifications of changes."""
    saves: bool = True
    """Whether it wants notifications of saves."""
    updates: int = field(default=0, init=False)
    """How many times the server has published diagnostics."""
    count: int = field(default=0, init=False)
    """The number of current diagnostics."""
    _open: dict[str, _Shown] = field(factory=dict, init=False, repr=False)
    _said: dict[str, tuple[JsonObject, ...]] = field(factory=dict, init=False, repr=False)
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
        shown.version, shown.digest = shown.version + 1, digest
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
        changes = [{"uri": uri, "type": _CREATED if self.version(uri) == 1 else _CHANGED}]
        self._notify("workspace/didChangeWatchedFiles", {"changes": changes})

    def _make_room(self) -> None:
        while len(self._open) >= MAX_OPEN:
            uri = next(iter(self._open))
            self._close(uri)

    def _close(self, uri: str) -> None:
        del self._open[uri]
        self._notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    def forget(self, path: Path) -> None:
        """Close the document of a deleted file, if it is open."""
        if uri_of(path) in self._open:
            self._close(uri_of(path))

    def version(self, uri: str) -> int | None:
        """Return the version of an open document; None if it is not open."""
        shown = self._open.get(normalize_uri(uri))
        return None if shown is None else shown.version

    @property
    def opened(self) -> tuple[str, ...]:
        """The URIs of the open documents."""
        return tuple(self._open)

    # ── Diagnostics ─────────────────────────────────────────────────────────────────────────────

    def receive_diagnostics(self, params: Json) -> None:
        """Store the published diagnostics of one file; they replace the previous ones."""
        if not isinstance(params, dict) or not isinstance(params.get("uri"), str):
            return
        uri, version = normalize_uri(params["uri"]), params.get("version")
        shown = self._open.get(uri)
        if shown is not None and isinstance(version, int) and version < shown.version:
            return  # for an outdated text; the server will publish again for the current one
        before = self._said.pop(uri, ())
        room = min(MAX_PER_FILE, MAX_TOTAL - (self.count - len(before)))
        given = params.get("diagnostics")
        kept = tuple(_kept(given if isinstance(given, list) else [], room))
        if kept:
            self._said[uri] = kept
        self.count += len(kept) - len(before)
        self.updates += 1
        self._waiting.unpark_all()

    def diagnostics(self) -> Diagnostics:
        """Return the current diagnostics by file; files without any are left out."""
        return dict(self._said)

    async def wait_for_update(self, heard: int) -> None:
        """Wait until `updates` is greater than *heard*."""
        await trio.lowlevel.checkpoint()
        while self.updates <= heard:
            await self._waiting.park()

    async def settled(self, heard: int) -> None:
        """Wait until the diagnostics published after update *heard* seem complete.

        That is when none come within FIRST_WAIT, or no more within QUIET_WAIT: the protocol has no
        message for "done". The caller sets the total time limit.
        """
        wait = FIRST_WAIT
        while True:
            with trio.move_on_after(wait) as silence:
                await self.wait_for_update(heard)
            if silence.cancelled_caught:
                return
            heard, wait = self.updates, QUIET_WAIT


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


def sync_of(capabilities: JsonObject) -> tuple[bool, bool]:
    """Return whether a server wants notifications of changes, and of saves."""
    sync = capabilities.get("textDocumentSync")
    if isinstance(sync, int):
        return sync != _NO_SYNC, sync != _NO_SYNC
    if not isinstance(sync, dict):
        return False, False
    return sync.get("change", _NO_SYNC) != _NO_SYNC, bool(sync.get("save"))


CAPABILITIES: Final[JsonObject] = {
    "general": {"positionEncodings": [Encoding.UTF16.value]},
    "workspace": {
        "configuration": True,
        "workspaceFolders": True,
        "applyEdit": False,
        "workspaceEdit": {"documentChanges": True, "failureHandling": "abort"},
        "didChangeConfiguration": {"dynamicRegistration": True},
        "didChangeWatchedFiles": {"dynamicRegistration": True},
    },
    "textDocument": {
        "synchronization": {"didSave": True},
        "publishDiagnostics": {"versionSupport": True},
        "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
        "definition": {"linkSupport": True},
        "references": {},
        "rename": {"prepareSupport": False},
        "callHierarchy": {},
    },
    "window": {"workDoneProgress": True},
}
"""The capabilities that we announce."""

_NOTED: Final = frozenset(
    {
        "client/registerCapability",
        "client/unregisterCapability",
        "window/workDoneProgress/create",
        "window/showMessageRequest",
        "workspace/codeLens/refresh",
        "workspace/diagnostic/refresh",
        "workspace/inlayHint/refresh",
        "workspace/inlineValue/refresh",
        "workspace/semanticTokens/refresh",
    }
)
"""Requests that are answered with null and have no effect."""

_SPOKEN: Final = frozenset({"window/logMessage", "window/showMessage"})


def initialize_params(directory: Path, config: LspServerConfig) -> JsonObject:
    """Return the params of the `initialize` request."""
    params: dict[str, Json] = {
        "processId": os.getpid(),
        "clientInfo": {"name": "crush_trio"},
        "rootPath": str(directory),
        "rootUri": uri_of(directory),
        "workspaceFolders": [_folder(directory)],
        "capabilities": CAPABILITIES,
    }
    if config.init_options:
        params["initializationOptions"] = config.init_options
    return params


def _folder(directory: Path) -> JsonObject:
    return {"uri": uri_of(directory), "name": directory.name}


def encoding_of(capabilities: JsonObject) -> Encoding:
    """Return the position encoding of a server; UTF-16 by default."""
    try:
        return Encoding(capabilities.get("positionEncoding", Encoding.UTF16))
    except ValueError:
        return Encoding.UTF16


@define(eq=False)
class ClientPeer:
    """A `Peer` that handles the notifications and requests of one server."""

    directory: Path
    config: LspServerConfig = field(repr=False)
    note: Callable[[str], None] = field(repr=False)
    """Called with the server's messages for people."""
    documents: Documents | None = field(default=None, repr=False)
    """Gets its diagnostics; None until the server is ready."""

    def notified(self, method: str, params: Json) -> None:
        """Handle diagnostics and messages for people; ignore other notifications."""
        if method == "textDocument/publishDiagnostics" and self.documents is not None:
            self.documents.receive_diagnostics(params)
        elif method in _SPOKEN and isinstance(params, dict):
            self.note(str(params.get("message", "")))

    def asked(self, method: str, params: Json) -> Json:
        """Answer the known requests; raises `UnknownMethod` for others."""
        match method:
            case "workspace/configuration":
                items = params.get("items") if isinstance(params, dict) else None
                return [_setting(self.config.options, item) for item in _list(items)]
            case "workspace/workspaceFolders":
                return [_folder(self.directory)]
            case "workspace/applyEdit":
                return {"applied": False, "failureReason": "files change on request only"}
            case "window/showDocument":
                return {"success": False}
            case _ if method in _NOTED:
                return None
        raise UnknownMethod


def _list(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else ()


def _setting(options: Json, item: Json) -> Json:
    """Return the requested section of a server's settings: `a.b` is the key `b` of `a`."""
    section = item.get("section") if isinstance(item, dict) else None
    if not isinstance(section, str) or not section:
        return options
    if isinstance(options, dict) and section in options:
        return options[section]
    for key in section.split("."):
        options = options.get(key) if isinstance(options, dict) else None
    return options
