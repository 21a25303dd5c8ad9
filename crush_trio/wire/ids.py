"""Id types, one for each kind of thing, so that the type checker finds mix-ups.

At run time an id is a plain string. An id that is always written is the empty string on the wire
for "none"; an id that may be omitted is `None` in Python.
"""

from typing import Final, NewType
from uuid import UUID, uuid5

WorkspaceId = NewType("WorkspaceId", str)
"""A hosted directory; part of most URL paths."""

ClientId = NewType("ClientId", str)
"""A client, which may hold claims: a UUID that the client has chosen."""

SessionId = NewType("SessionId", str)
"""A session. That of a subagent is `<message id>$$<tool call id>`."""

RunId = NewType("RunId", str)
"""The execution of one submission."""

MessageId = NewType("MessageId", str)
"""A stored message."""

ToolCallId = NewType("ToolCallId", str)
"""One call of a tool; the id comes from the model."""

AskId = NewType("AskId", str)
"""A permission request or a batch of questions that waits for a person."""

QuestionId = NewType("QuestionId", str)
"""One question of a batch."""

FileId = NewType("FileId", str)
"""One version of a file in a session's history."""

SkillId = NewType("SkillId", str)
"""A skill: the path of its file."""

NO_WORKSPACE: Final = WorkspaceId("")
NO_CLIENT: Final = ClientId("")
NO_SESSION: Final = SessionId("")
NO_MESSAGE: Final = MessageId("")
NO_ASK: Final = AskId("")

_WORKSPACES: Final = UUID("6f0c2b1e-4f0e-5d0c-9a55-3d1f0c7a1b52")
"""The namespace of the ids of workspaces."""


def workspace_id_of(site: str, path: str) -> WorkspaceId:
    """Return the id of the workspace of a directory: the same after every restart and on every node."""
    return WorkspaceId(str(uuid5(_WORKSPACES, f"{site}\0{path}")))
