"""Host coding agents for many clients at once, on Trio.

An accepted run can be cancelled at any moment and ends exactly once. These are the names that programs
use: the run core, a server and its settings, tools, providers, and the values that both sides of the
wire share. Further doors: `crush_trio.client`, `crush_trio.server`, `crush_trio.testing`,
`crush_trio.errors`; for those who build on the parts `crush_trio.runtime`, `crush_trio.events`,
`crush_trio.store` and `crush_trio.integrations`. `docs/library.md` is the reference.

A name's module is imported when the name is first used.
"""

from crush_trio._exports import Homes, lazy, names_of

__version__ = "0.1.0"

_HOMES: Homes = {
    "crush_trio.backend.embedded": (
        "Agent",
        "open_agent",
    ),
    "crush_trio.backend.run_handle": (
        "AgentRun",
        "RunFailed",
    ),
    "crush_trio.backend.settings": ("WorkspaceSettings",),
    "crush_trio.client.client": ("open_client",),
    "crush_trio.errors": ("CrushError",),
    "crush_trio.events.cursor": ("Cursor",),
    "crush_trio.events.facts": ("RunChange",),
    "crush_trio.limits": ("SizeLimits",),
    "crush_trio.net.address": ("Address",),
    "crush_trio.providers.base": (
        "Finished",
        "ModelRequest",
        "Parts",
        "Provider",
        "StreamPart",
        "TextDelta",
    ),
    "crush_trio.runtime.accepted": ("AcceptedRun",),
    "crush_trio.runtime.outcome": (
        "Completion",
        "Outcome",
        "Submission",
    ),
    "crush_trio.runtime.receipt": ("StopReceipt",),
    "crush_trio.runtime.run": (
        "Run",
        "Turn",
    ),
    "crush_trio.runtime.workspace": (
        "Workspace",
        "open_workspace",
    ),
    "crush_trio.server.run": ("open_server",),
    "crush_trio.server.settings": ("ServerSettings",),
    "crush_trio.store.open": ("StoreSettings",),
    "crush_trio.tools.base": (
        "About",
        "Tool",
        "ToolCall",
        "ToolError",
        "ToolResult",
        "Wanted",
        "read_arguments",
        "schema_of",
    ),
    "crush_trio.wire.asks": (
        "GrantScope",
        "PermissionMode",
        "PermissionPolicy",
        "PermissionRequest",
        "PermissionRule",
        "Question",
        "QuestionResponse",
        "RuleDecision",
    ),
    "crush_trio.wire.events": (
        "Envelope",
        "EventType",
    ),
    "crush_trio.wire.ids": (
        "MessageId",
        "RunId",
        "SessionId",
        "ToolCallId",
        "WorkspaceId",
    ),
    "crush_trio.wire.messages": (
        "FinishPart",
        "FinishReason",
        "Message",
        "Role",
        "TextPart",
        "ToolCallPart",
        "ToolResultPart",
    ),
    "crush_trio.wire.answers": ("ReceiptView",),
    "crush_trio.wire.runs": (
        "RunKind",
        "RunState",
        "RunView",
        "WhenBusy",
        "WhenUnclaimed",
    ),
    "crush_trio.wire.views": ("Session",),
}

__all__ = names_of(_HOMES)
__getattr__, __dir__ = lazy(
    __name__,
    _HOMES,
    doors=(
        "client",
        "errors",
        "events",
        "integrations",
        "runtime",
        "server",
        "store",
        "testing",
    ),
)
