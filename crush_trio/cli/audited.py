"""`record_change`: records in the audit what a command has changed by itself, without a server."""

import os
from collections.abc import Mapping

import trio

from crush_trio.audit.log import open_audit
from crush_trio.audit.record import Action, AuditRecord, audit_path


async def record_change(
    environ: Mapping[str, str], action: Action, what: str, *, directory: str = ""
) -> None:
    """Record a change of the user's files; the command succeeds even if the audit cannot be written."""
    await trio.lowlevel.checkpoint()
    async with open_audit(audit_path(environ)) as audit:
        audit.note(AuditRecord(action=action, what=what, uid=os.getuid(), directory=directory))
