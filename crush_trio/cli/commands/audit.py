"""`crush-trio audit`: show the audit of the user's servers, from its files or from a server."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import click
import trio

from crush_trio.audit.file import AuditFile
from crush_trio.audit.log import AuditLog, AuditUnreadable
from crush_trio.audit.record import NO_PLACE, AuditRecord, audit_path
from crush_trio.cli.commands.token import duration
from crush_trio.cli.options import (
    Invocation,
    debug_option,
    host_option,
    json_text,
    pass_invocation,
    write,
)
from crush_trio.cli.server_link import open_link
from crush_trio.cli.terminal.text import one_line
from crush_trio.clock import SystemClock
from crush_trio.wire.codec import unstructure
from crush_trio.wire.fields import is_timestamp, timestamp

PAGE: Final = 1000
"""How many records are read at once."""

FOLLOW_PAUSE: Final = 0.5
"""Seconds between two looks for new records."""

Read = Callable[[int | None, int], Awaitable[Sequence[AuditRecord]]]

_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def moment(text: str) -> str:
    """Parse a time as 90m, 2h, 3d ago, a date, or RFC 3339 in UTC; return it as records have it."""
    if is_timestamp(text):
        return _utc(datetime.fromisoformat(text))
    try:
        if _DATE.fullmatch(text):
            return _utc(datetime.fromisoformat(text).replace(tzinfo=UTC))
        return str(timestamp(SystemClock().unix() - duration(text)))
    except (click.BadParameter, ValueError):
        raise click.BadParameter(
            f"{text!r} is not a time; write 90m, 2h or 3d, or a date such as 2026-01-31"
        ) from None


def _utc(at: datetime) -> str:
    return str(timestamp(int(at.timestamp())))


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with new records until Ctrl-C.")
@click.option("--since", type=moment, metavar="TIME", help="Only later ones: 2h, 3d, 2026-01-31.")
@click.option(
    "--last",
    type=click.IntRange(1, PAGE),
    default=100,
    show_default=True,
    metavar="N",
    help="How many of the newest, without --since.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@host_option
@debug_option
@pass_invocation
def audit(
    invocation: Invocation,
    follow: bool,
    since: str | None,
    last: int,
    as_json: bool,
    host: str | None,
) -> int:
    """Show who did what on this user's servers.

    Reads the files of this user; with --host, asks that server, which needs a token with the right admin
    if it has tokens.
    """
    environ = invocation.environ
    return invocation.run(show_audit, environ, host, since, last, follow, as_json)


async def show_audit(
    environ: Mapping[str, str],
    host: str | None,
    since: str | None,
    last: int,
    follow: bool,
    as_json: bool,
) -> int:
    """Print records; return the exit code."""
    if host is None:
        path = audit_path(environ)
        if path is None:
            raise AuditUnreadable(NO_PLACE)
        local = AuditLog(AuditFile(path))
        return await print_records(local.read, since, last, follow=follow, as_json=as_json)
    async with open_link(host, environ, start=False) as link:
        client = link.client

        async def read(after: int | None, limit: int) -> Sequence[AuditRecord]:
            return await client.audit(after=after, limit=limit)

        return await print_records(read, since, last, follow=follow, as_json=as_json)


async def print_records(
    read: Read, since: str | None, last: int, *, follow: bool, as_json: bool
) -> int:
    """Print what *read* returns, page by page; with *follow*, wait for more at the end."""
    after = 0
    found = await (read(None, last) if since is None else read(0, PAGE))
    while True:
        for record in found:
            after = max(after, record.seq)
            if since is None or record.time >= since:
                write(json_text(unstructure(record)) if as_json else f"{line_of(record)}\n")
        more = len(found) == PAGE
        if not more and not follow:
            return 0
        if not more:
            await trio.sleep(FOLLOW_PAUSE)
        found = await read(after, PAGE)


def line_of(record: AuditRecord) -> str:
    """Return a record as a line for people."""
    who = [record.token and f"token {record.token}", record.address]
    who += [f"uid {record.uid}" if record.uid is not None else "", record.client_id[:8]]
    where = [record.directory, record.session_id[:8], record.tool]
    result = "" if record.result == "ok" else f"({record.result})"
    parts = [record.time, record.action.value, result, *who, *where, record.what]
    return "  ".join(one_line(part) for part in parts if part)
