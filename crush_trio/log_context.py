"""Whose work is being done, for the log.

A failure deep down in a provider or a store does not know which workspace it belongs to, and should not
have to. So whoever begins a piece of work says it once, around everything that the work starts: tasks and
threads inherit what held where they were started. A record that names a workspace itself is believed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import LogRecord
from typing import Final

WORKSPACE_FIELD: Final = "workspace_id"
"""The field of a record, and of a line, that says whose it is."""

_workspace_id: ContextVar[str | None] = ContextVar(WORKSPACE_FIELD, default=None)


@contextmanager
def logged_for(workspace_id: str) -> Iterator[None]:
    """Have everything that is logged in the block, or by what it starts, belong to a workspace."""
    before = _workspace_id.set(workspace_id)
    try:
        yield
    finally:
        _workspace_id.reset(before)


def owner_of(record: LogRecord) -> str | None:
    """Return the workspace that a record belongs to, None if it is about the process as a whole.

    To be called where the record was made, not later: handlers and formatters are.
    """
    named = getattr(record, WORKSPACE_FIELD, None)
    return _workspace_id.get() if named is None else str(named)


def owner_field(record: LogRecord) -> dict[str, str]:
    """Return the field that says whose a record is; none if it is nobody's."""
    owner = owner_of(record)
    return {} if owner is None else {WORKSPACE_FIELD: owner}
