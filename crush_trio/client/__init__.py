"""A typed client of a server, for programs under Trio or asyncio, and for those without async.

`open_client` finds the server, `Client.open_workspace` holds a directory open, and a `RemoteWorkspace`
has every route of the interface (`session_routes`, `workspace_routes`). `attachment` keeps the event stream
open, `state` is the picture of the workspace made from it, `run` the handle of a run, `http` the requests
and errors. `sync` is the same client for programs without async. docs/client.md is the guide.
"""

from typing import TYPE_CHECKING

from crush_trio._exports import lazy
from crush_trio.client.client import Client, open_client
from crush_trio.client.events import (
    Disconnected,
    EventReader,
    MessageEvent,
    Reconnected,
    Resynced,
    RunEvent,
    WorkspaceEvent,
)
from crush_trio.client.follower import Asked, Progress, RunEnded, RunPiece, Settled
from crush_trio.client.http import (
    AnswerGarbled,
    AnswerLost,
    ApiError,
    ClientClosed,
    NoAnswer,
    RunNotCompleted,
    ServerForeign,
    ServerUnreachable,
    TokenExposed,
)
from crush_trio.client.messages import (
    MessageFinished,
    MessagePiece,
    MessageRestarted,
    ReasoningPiece,
    TextPiece,
    ToolCallBegun,
    ToolCallFinished,
    ToolResult,
)
from crush_trio.client.run import RunHandle, RunStream
from crush_trio.client.workspace import RemoteWorkspace

if TYPE_CHECKING:
    from crush_trio.client.sync import SyncClient, SyncRun, SyncWorkspace, open_client_sync

__all__ = [
    "AnswerGarbled",
    "AnswerLost",
    "ApiError",
    "Asked",
    "Client",
    "ClientClosed",
    "Disconnected",
    "EventReader",
    "MessageEvent",
    "MessageFinished",
    "MessagePiece",
    "MessageRestarted",
    "NoAnswer",
    "Progress",
    "ReasoningPiece",
    "Reconnected",
    "RemoteWorkspace",
    "Resynced",
    "RunEnded",
    "RunEvent",
    "RunHandle",
    "RunNotCompleted",
    "RunPiece",
    "RunStream",
    "ServerForeign",
    "ServerUnreachable",
    "Settled",
    "SyncClient",
    "SyncRun",
    "SyncWorkspace",
    "TextPiece",
    "TokenExposed",
    "ToolCallBegun",
    "ToolCallFinished",
    "ToolResult",
    "WorkspaceEvent",
    "open_client",
    "open_client_sync",
]

# Imported when it is used: it starts a thread, and the command line does without.
_SYNC = ("SyncClient", "SyncRun", "SyncWorkspace", "open_client_sync")
__getattr__, __dir__ = lazy(__name__, {"crush_trio.client.sync": _SYNC})
