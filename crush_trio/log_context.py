"""The workspace of a log record and the secrets to hide in it, by context variables.

Code deep down in a provider or a store does not know which workspace it works for. So the
workspace's id is set once, around everything that is started for it: tasks and threads inherit the
context in which they were started. A record with its own `workspace_id` keeps it.

The same holds for the secrets that the workspace knows: what formats a record, or records a trace,
passes its text through `hide_secrets`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import LogRecord
from typing import Final

WORKSPACE_FIELD: Final = "workspace_id"
"""The field of a log record with the id of its workspace."""

_workspace_id: ContextVar[str | None] = ContextVar(WORKSPACE_FIELD, default=None)

Hide = Callable[[str], str]
"""Returns a text without the secrets of a workspace."""

_hide: ContextVar[Hide | None] = ContextVar("hide", default=None)


@contextmanager
def logged_for(workspace_id: str, hide: Hide | None = None) -> Iterator[None]:
    """Assign everything that is logged in the block, or by tasks it starts, to a workspace.

    *hide* removes its secrets.
    """
    before = _workspace_id.set(workspace_id)
    hidden = _hide.set(_hide.get() if hide is None else hide)
    try:
        yield
    finally:
        _hide.reset(hidden)
        _workspace_id.reset(before)


def hide_secrets(text: str) -> str:
    """Return *text* without the secrets of the workspace that this code works for."""
    hide = _hide.get()
    return text if hide is None else hide(text)


def owner_of(record: LogRecord) -> str | None:
    """Return the id of a record's workspace; None if it is about the whole process.

    Must be called in the context in which the record was made, as handlers and formatters are.
    """
    named = getattr(record, WORKSPACE_FIELD, None)
    return _workspace_id.get() if named is None else str(named)


def owner_field(record: LogRecord) -> dict[str, str]:
    """Return the field with the record's workspace; an empty dict if it has none."""
    owner = owner_of(record)
    return {} if owner is None else {WORKSPACE_FIELD: owner}
