"""What one server has been told about files, and what it said about them.

Synchronous, but for the waiting. A file is *shown* before anything is asked about it: it is opened, or,
if the server knows another text of it, changed; so a server never speaks about a text that is not on
the disk. It takes its time and then says what it found, perhaps in pieces, perhaps nothing: `settled`
decides when there is nothing more to wait for (H7).

A server may say a lot. What is kept of it has a bound in every direction.

What is said before a server is ready, and what it is answered when it asks something itself.

Pure. We promise servers only what we do: they are told nothing of files that somebody else changes, they
may ask for their settings, and they may not change files by themselves: a workspace edit is something that
we ask for, show to a person and apply.
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
"""Files that a server has open at a time; the one that was not used longest is closed."""

MAX_PER_FILE: Final = 500
MAX_TOTAL: Final = 20_000
"""Diagnostics that are kept of a file, and of all of them."""

MAX_TEXT: Final = 2000
"""Letters that are kept of what one of them says."""

FIRST_WAIT: Final = 1.0
"""Seconds after which a server that has said nothing has nothing to say (H7)."""

QUIET_WAIT: Final = 0.3
"""Seconds of silence after which it has said everything (H7)."""

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
    """The files of a workspace as one server knows them."""

    _notify: Notify = field(repr=False)
    syncs: bool = True
    """Whether the server wants to be told of changes at all."""
    saves: bool = True
    """Whether it wants to be told that a file was saved."""
    updates: int = field(default=0, init=False)
    """How often it has said something about a file."""
    count: int = field(default=0, init=False)
    """How many diagnostics there are."""
    _open: dict[str, _Shown] = field(factory=dict, init=False, repr=False)
    _said: dict[str, tuple[JsonObject, ...]] = field(factory=dict, init=False, repr=False)
    _waiting: trio.lowlevel.ParkingLot = field(
        factory=trio.lowlevel.ParkingLot, init=False, repr=False
    )

    # ── What it is told ─────────────────────────────────────────────────────────────────────────

    def show(self, path: Path, text: str) -> bool:
        """Make sure that the server knows a file as it is; whether that was news to it."""
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
        self._open[uri] = shown  # the last one is the one that was used last
        if shown.digest == digest or not self.syncs:
            return False
        shown.version, shown.digest = shown.version + 1, digest
        changed = {"uri": uri, "version": shown.version}
        changes = [{"text": text}]
        self._notify("textDocument/didChange", {"textDocument": changed, "contentChanges": changes})
        return True

    def save(self, path: Path) -> None:
        """Say that the text which was shown is on the disk.

        A file that the server sees for the first time may be a new one. It is called that: a server
        that knew of it looks at it again, and one that did not takes it in.
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
        """Close a file that is not there any more, if it is open."""
        if uri_of(path) in self._open:
            self._close(uri_of(path))

    def version(self, uri: str) -> int | None:
        """Return the version in which the server has a file open; None if it has not."""
        shown = self._open.get(normalize_uri(uri))
        return None if shown is None else shown.version

    @property
    def opened(self) -> tuple[str, ...]:
        """The addresses of the files that the server has open."""
        return tuple(self._open)

    # ── What it says ────────────────────────────────────────────────────────────────────────────

    def receive_diagnostics(self, params: Json) -> None:
        """Take note of what the server says about one file; it replaces what it said before."""
        if not isinstance(params, dict) or not isinstance(params.get("uri"), str):
            return
        uri, version = normalize_uri(params["uri"]), params.get("version")
        shown = self._open.get(uri)
        if shown is not None and isinstance(version, int) and version < shown.version:
            return  # about a text that is gone; there will be another word
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
        """Return what the server last said, by file; files about which it has nothing are left out."""
        return dict(self._said)

    async def wait_for_update(self, heard: int) -> None:
        """Wait until it has said more than it had when `heard` was that."""
        await trio.lowlevel.checkpoint()
        while self.updates <= heard:
            await self._waiting.park()

    async def settled(self, heard: int) -> None:
        """Wait until the server has said what it has to say since `heard` was that.

        That is so when it says nothing at all for a while, or nothing more for a shorter one. How long
        this may take altogether is for the caller to limit.
        """
        patience = FIRST_WAIT
        while True:
            with trio.move_on_after(patience) as silence:
                await self.wait_for_update(heard)
            if silence.cancelled_caught:
                return
            heard, patience = self.updates, QUIET_WAIT


def _kept(given: list[Json], room: int) -> list[JsonObject]:
    """Return what is kept of a server's diagnostics: as it wrote them, less what nobody shows."""
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
    """Return a range with nothing in it but its four numbers; what is none begins the file."""
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
    """Return whether a server wants to be told of changes, and of saves."""
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
"""What we can do."""

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
"""What servers ask for and need no more than an answer to."""

_SPOKEN: Final = frozenset({"window/logMessage", "window/showMessage"})


def initialize_params(directory: Path, config: LspServerConfig) -> JsonObject:
    """Return the first thing that a server is told."""
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
    """Return what a server counts in; UTF-16 unless it says so."""
    try:
        return Encoding(capabilities.get("positionEncoding", Encoding.UTF16))
    except ValueError:
        return Encoding.UTF16


@define(eq=False)
class ClientPeer:
    """Satisfies `Peer`: what a server hears from us when it speaks first."""

    directory: Path
    config: LspServerConfig = field(repr=False)
    note: Callable[[str], None] = field(repr=False)
    """Where it goes what the server has to say to people."""
    documents: Documents | None = field(default=None, repr=False)
    """Where its diagnostics go, from when it is ready."""

    def notified(self, method: str, params: Json) -> None:
        """Take note of diagnostics, and pass on what is for people; the rest means nothing here."""
        if method == "textDocument/publishDiagnostics" and self.documents is not None:
            self.documents.receive_diagnostics(params)
        elif method in _SPOKEN and isinstance(params, dict):
            self.note(str(params.get("message", "")))

    def asked(self, method: str, params: Json) -> Json:
        """Answer what there is an answer to."""
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
    """Return the part of a server's settings that it asks for: `a.b` is the `b` of its `a`."""
    section = item.get("section") if isinstance(item, dict) else None
    if not isinstance(section, str) or not section:
        return options
    if isinstance(options, dict) and section in options:
        return options[section]
    for key in section.split("."):
        options = options.get(key) if isinstance(options, dict) else None
    return options
