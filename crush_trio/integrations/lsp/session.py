"""`LspSession`: a language server that is ready. `ClientPeer`: handles what the server sends unasked.

The capabilities that we announce are only those that we have: servers may ask for their settings, report
their work and offer diagnostics on request, but are notified only of files that our tools change or find
deleted, and cannot apply edits. A workspace edit is requested by us, shown to a person, and applied here.

Time limits are for small projects, and grow with the number of files up to MAX_PACE times (`pace_of`).
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from crush_trio.integrations.lsp.connection import (
    LspFailure,
    RequestRefused,
    RpcConnection,
    UnknownMethod,
)
from crush_trio.integrations.lsp.documents import Documents
from crush_trio.integrations.lsp.protocol import Encoding, normalize_uri, uri_of
from crush_trio.tools.search.patterns import BadPattern, Patterns
from crush_trio.wire.config import LspServerConfig
from crush_trio.wire.fields import Json, JsonObject

REQUEST_LIMIT: Final = 5.0
LONG_REQUEST_LIMIT: Final = 10.0
"""Seconds for an answer, and for an answer to a rename or call hierarchy request (I.4)."""

SHUTDOWN_WAIT: Final = 1.0
"""Seconds for a server to shut down before its processes are stopped."""

FILES_PER_PACE: Final = 1000
MAX_PACE: Final = 4.0
"""The time limits grow by their own length with every so many files, up to so many times."""

MAX_RETRIES: Final = 3
RETRY_WAIT: Final = 0.2
"""How often a request is repeated that a server gave up while it was loading, and the pause in seconds."""

_GIVEN_UP: Final = frozenset({-32801, -32802})
"""The codes of a request that a server gave up because files changed, or it has other work."""

_NO_SYNC: Final = 0
_TOKEN: Final = "crush-initialize"
"""The token by which a server reports progress of its initialisation."""


class ServerUnavailable(LspFailure):
    """A server is not running and cannot be started now."""


def pace_of(files: int) -> float:
    """Return the factor of the time limits in a project with so many files of a server."""
    return min(MAX_PACE, 1.0 + files // FILES_PER_PACE)


MOST_FILES: Final = int((MAX_PACE - 1) * FILES_PER_PACE)
"""A project with more files than this has the same time limits."""


@define(eq=False, kw_only=True)
class LspSession:
    """A server that is ready: its connection, documents and capabilities."""

    name: str
    connection: RpcConnection = field(repr=False)
    documents: Documents = field(repr=False)
    capabilities: JsonObject = field(repr=False)
    encoding: Encoding
    peer: "ClientPeer" = field(repr=False)
    _result_ids: dict[str, str] = field(factory=dict, init=False, repr=False)
    """By file: the id of the last diagnostics that the server sent on request."""

    def can(self, capability: str) -> bool:
        """Whether the server has a capability, such as `renameProvider`."""
        offered = self.capabilities.get(capability)
        return offered is not None and offered is not False

    def report_change(self, path: Path) -> None:
        """Notify the server of a changed file that it does not handle, if it watches such files."""
        if self.peer.watches(path):
            self.documents.report_change(path)

    async def request(self, method: str, params: Json, *, limit: float = REQUEST_LIMIT) -> Json:
        """Send a request and return its answer; raises `LspFailure`.

        A request that the server gave up because it was loading is repeated when it has ended that.
        """
        limit *= self.documents.pace
        for _ in range(MAX_RETRIES):
            try:
                return await self.connection.request(method, params, limit=limit)
            except RequestRefused as refusal:
                if refusal.code not in _GIVEN_UP:
                    raise
            await trio.sleep(RETRY_WAIT)
            with trio.move_on_after(limit):
                await self.documents.idle()
        return await self.connection.request(method, params, limit=limit)

    async def check(self, path: Path, text: str, *, changed: bool) -> None:
        """Show the server a file, and wait until its diagnostics seem complete; raises `LspFailure`.

        The caller sets the time limit.
        """
        news = self.documents.show(path, text)
        if changed:
            self.documents.save(path)
        await trio.lowlevel.checkpoint()
        if not news and not changed and not self.documents.busy:
            return
        uri = uri_of(path)
        while self.can("diagnosticProvider"):
            await self.pull(uri)
            if not self.documents.busy:
                break
            await self.documents.idle()  # what it answered before it was loaded may be incomplete
        await self.documents.settled(uri)

    async def pull(self, uri: str) -> None:
        """Request the diagnostics of an open document; raises `LspFailure`."""
        offered = self.capabilities.get("diagnosticProvider")
        identifier = offered.get("identifier") if isinstance(offered, dict) else None
        params: dict[str, Json] = {"textDocument": {"uri": uri}}
        if isinstance(identifier, str):
            params["identifier"] = identifier
        if uri in self._result_ids:
            params["previousResultId"] = self._result_ids[uri]
        version = self.documents.version(uri)
        report = await self.request("textDocument/diagnostic", params)
        if not isinstance(report, dict):
            raise LspFailure("textDocument/diagnostic: the server sent no report")
        self._store(uri, report, version)
        related = report.get("relatedDocuments")
        for other, found in related.items() if isinstance(related, dict) else ():
            if isinstance(found, dict):
                self._store(normalize_uri(other), found, None)

    def _store(self, uri: str, report: JsonObject, version: int | None) -> None:
        result_id = report.get("resultId")
        if isinstance(result_id, str):
            self._result_ids[uri] = result_id
        else:
            self._result_ids.pop(uri, None)
        if report.get("kind") != "unchanged":
            found = {"uri": uri, "version": version, "diagnostics": report.get("items")}
            self.documents.receive_diagnostics(found, asked=True)
        elif version == self.documents.version(uri):
            self.documents.confirm(uri)

    async def keep_pulled(self) -> None:
        """Request the diagnostics of all open documents again whenever the server asks for it."""
        heard = 0
        while True:
            await self.documents.wait_for_refresh(heard)
            heard = self.documents.refreshes
            with suppress(LspFailure):
                await self.pull_all()

    async def pull_all(self) -> None:
        """Request the diagnostics of all open documents, if the server offers that."""
        await trio.lowlevel.checkpoint()
        for uri in self.documents.opened if self.can("diagnosticProvider") else ():
            await self.pull(uri)


async def initialize(
    name: str, connection: RpcConnection, answers: "ClientPeer", pace: float = 1.0
) -> LspSession:
    """Initialise the protocol with a server that was just started; the caller sets the time limit."""
    params = initialize_params(answers.directory, answers.config)
    answer = await connection.request("initialize", params, limit=inf)
    given = answer.get("capabilities") if isinstance(answer, dict) else None
    capabilities: JsonObject = given if isinstance(given, dict) else {}
    syncs, saves = sync_of(capabilities)
    documents = Documents(connection.notify, syncs, saves, pace=pace, ready_at=trio.current_time())
    answers.documents = documents
    connection.notify("initialized", {})
    if answers.config.options:
        settings = {"settings": answers.config.options}
        connection.notify("workspace/didChangeConfiguration", settings)
    return LspSession(
        name=name,
        connection=connection,
        documents=documents,
        capabilities=capabilities,
        encoding=encoding_of(capabilities),
        peer=answers,
    )


async def shut_down(connection: RpcConnection) -> None:
    """Ask a server to shut down, and wait shortly for its end."""
    await trio.lowlevel.checkpoint()
    if connection.lost:
        return
    with trio.move_on_after(SHUTDOWN_WAIT):
        try:
            await connection.request("shutdown", limit=SHUTDOWN_WAIT)
        except LspFailure:
            return
        connection.notify("exit")
        await connection.ended.wait()


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
        "diagnostics": {"refreshSupport": True},
    },
    "textDocument": {
        "synchronization": {"didSave": True},
        "publishDiagnostics": {"versionSupport": True},
        "diagnostic": {"relatedDocumentSupport": True},
        "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
        "definition": {"linkSupport": True},
        "references": {},
        "rename": {"prepareSupport": False},
        "callHierarchy": {},
    },
    "window": {"workDoneProgress": True},
}
"""The capabilities that we announce."""

MAX_WATCHES: Final = 100
"""Maximum registrations of watched files, and patterns in one of them."""

_WATCHES: Final = "workspace/didChangeWatchedFiles"

_NOTED: Final = frozenset(
    {
        "window/workDoneProgress/create",
        "window/showMessageRequest",
        "workspace/codeLens/refresh",
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
        "workDoneToken": _TOKEN,
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
    _watched: dict[str, tuple[Patterns, ...]] = field(factory=dict, init=False, repr=False)
    """The files that the server watches, by the id of its registration."""

    def notified(self, method: str, params: Json) -> None:
        """Handle diagnostics, progress and messages for people; ignore other notifications."""
        if method == "textDocument/publishDiagnostics" and self.documents is not None:
            self.documents.receive_diagnostics(params)
        elif method == "$/progress" and self.documents is not None:
            self.documents.receive_progress(params)
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
            case "workspace/diagnostic/refresh":
                if self.documents is not None:
                    self.documents.receive_refresh()
                return None
            case "client/registerCapability":
                self._watch(_items(params, "registrations"))
                return None
            case "client/unregisterCapability":
                self._unwatch(_items(params, "unregisterations"))  # the protocol's spelling
                return None
            case _ if method in _NOTED:
                return None
        raise UnknownMethod

    def _watch(self, registrations: Iterable[JsonObject]) -> None:
        for each in registrations:
            if each.get("method") == _WATCHES and len(self._watched) < MAX_WATCHES:
                watchers = _items(each.get("registerOptions"), "watchers")[:MAX_WATCHES]
                found = tuple(filter(None, (_pattern(one.get("globPattern")) for one in watchers)))
                self._watched[str(each.get("id"))] = found

    def _unwatch(self, registrations: Iterable[JsonObject]) -> None:
        for each in registrations:
            self._watched.pop(str(each.get("id")), None)

    def watches(self, path: Path) -> bool:
        """Whether the server has asked to be notified of changes of such a file."""
        inside = path.is_relative_to(self.directory)
        names = [path.parts[1:], path.relative_to(self.directory).parts if inside else ()]
        every = [pattern for patterns in self._watched.values() for pattern in patterns]
        return any(pattern.matches(each) for pattern in every for each in names)


def _pattern(glob: Json) -> Patterns | None:
    """Return a pattern for a path, from the root or from the directory; None if it is not usable."""
    try:
        return Patterns.parse(glob) if isinstance(glob, str) else None
    except BadPattern:
        return None


def _items(params: Json, key: str) -> list[JsonObject]:
    found = params.get(key) if isinstance(params, dict) else None
    return [each for each in _list(found) if isinstance(each, dict)]


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
