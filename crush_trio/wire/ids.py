"""Names of things. A type of its own for each kind, so that a checker notices a mix-up.

At run time an id is a plain string. The empty string is the wire's "none" for ids that are always
written; ids that may be left out are `None` in Python instead.
"""

from typing import Final, NewType

WorkspaceId = NewType("WorkspaceId", str)
"""A hosted directory, as it stands in every path."""

ClientId = NewType("ClientId", str)
"""A program that may hold claims: a UUID it chose for itself."""

SessionId = NewType("SessionId", str)
"""A conversation. A sub-agent's is `<message id>$$<tool call id>`."""

RunId = NewType("RunId", str)
"""The execution of one submission."""

MessageId = NewType("MessageId", str)
"""A stored utterance."""

ToolCallId = NewType("ToolCallId", str)
"""One call of a tool, named by the model that asked for it."""

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
