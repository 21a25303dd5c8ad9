"""A typed client of a server, for Trio programs.

`open_client` finds the server, `Client.open_workspace` holds a directory open, and a `RemoteWorkspace`
has every route of the interface (`session_routes`, `workspace_routes`). `attachment` keeps the event stream
open, `state` is the picture of the workspace made from it, `run` the handle of a run, `http` the requests
and errors. docs/client.md is the guide.
"""

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
from crush_trio.client.follower import Asked, RunEnded, RunPiece, Settled
from crush_trio.client.http import (
    AnswerGarbled,
    AnswerLost,
    ApiError,
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

__all__ = [
    "AnswerGarbled",
    "AnswerLost",
    "ApiError",
    "Asked",
    "Client",
    "Disconnected",
    "EventReader",
    "MessageEvent",
    "MessageFinished",
    "MessagePiece",
    "MessageRestarted",
    "NoAnswer",
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
    "TextPiece",
    "TokenExposed",
    "ToolCallBegun",
    "ToolCallFinished",
    "ToolResult",
    "WorkspaceEvent",
    "open_client",
]
