"""What is said before a server is ready, and what it is answered when it asks something itself.

Pure. We promise servers only what we do: they are told nothing of files that somebody else changes, they
may ask for their settings, and they may not change files by themselves: a workspace edit is something that
we ask for, show to a person and apply.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from attrs import define, field

from crush_trio.integrations.lsp.connection import Unknown
from crush_trio.integrations.lsp.documents import Documents
from crush_trio.integrations.lsp.text import Encoding, uri_of
from crush_trio.wire.config import LspServerConfig
from crush_trio.wire.fields import Json, JsonObject

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
class Answers:
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
            self.documents.take(params)
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
        raise Unknown


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
