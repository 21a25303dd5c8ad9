"""`crush-trio token`: the named tokens of the user's servers.

A token is printed once, when it is made. Running servers read the file again when it changes, so a new
token works and a revoked one is refused at once.
"""

import re
import sys
from typing import Final

import click
from rich.table import Table
from rich.text import Text

from crush_trio.audit.record import Action
from crush_trio.cli.audited import record_change
from crush_trio.cli.options import (
    Invocation,
    OneOf,
    debug_option,
    json_text,
    pass_invocation,
    print_report,
    write,
)
from crush_trio.clock import SystemClock
from crush_trio.server.tokens import NamedToken, Right, TokenFile, tokens_path
from crush_trio.wire.fields import timestamp

_UNITS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,5})([mhdw])")


def duration(text: str) -> int:
    """Parse a time such as 90m, 12h, 30d or 8w as seconds; click adds the option's name to the error."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not a time; write 90m, 12h, 30d or 8w")
    return int(found[1]) * _UNITS[found[2]]


@click.group()
@debug_option
def token() -> None:
    """Add, list or revoke the named tokens of this user's servers.

    As soon as there is one, every request to a server of this user needs a token, on the Unix socket as
    well unless it was started with --open-to-owner. Clients send the one in CRUSH_TRIO_TOKEN.
    """


@token.command()
@click.argument("name")
@click.option(
    "--rights",
    type=OneOf([right.value for right in Right]),
    default=Right.ANSWER.value,
    show_default=True,
    help="watch: read and follow; answer: also prompt, cancel and answer; admin: everything.",
)
@click.option(
    "--expires", type=duration, metavar="TIME", help="Valid for 90m, 12h, 30d or 8w; default: ever."
)
@pass_invocation
def add(invocation: Invocation, name: str, rights: str, expires: int | None) -> int:
    """Make a token called NAME and print it; it is shown only this once."""
    environ = invocation.environ
    made = TokenFile(tokens_path(environ)).add(name, Right(rights), expires)
    lasts = "without end" if expires is None else f"until {_time(SystemClock().unix() + expires)}"
    invocation.run(record_change, environ, Action.TOKEN_ADDED, f"{name}, {rights}, {lasts}")
    print(f"Token {name}, {rights}, valid {lasts}. It is not shown again.", file=sys.stderr)
    write(f"{made}\n")
    return 0


@token.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_invocation
def list_tokens(invocation: Invocation, as_json: bool) -> int:
    """List the tokens: names, rights and when they end; never the tokens themselves."""
    found, now = TokenFile(tokens_path(invocation.environ)).read(), SystemClock().unix()
    if as_json:
        write(json_text([_shown(each, now) for each in found], indent=True))
        return 0
    if not found:
        write("There are no tokens. Make one with: crush-trio token add NAME\n")
        return 0
    table = Table("name", "rights", "made", "ends", box=None, pad_edge=False)
    for each in found:
        row = _shown(each, now)
        ends = f"{row['expires']}{' (expired)' if row['expired'] else ''}"
        table.add_row(*map(Text, (each.name, each.right.value, str(row["created"]), ends)))
    print_report(table)
    return 0


@token.command()
@click.argument("name")
@pass_invocation
def revoke(invocation: Invocation, name: str) -> int:
    """Revoke the token called NAME; servers refuse it from their next request on."""
    TokenFile(tokens_path(invocation.environ)).revoke(name)
    invocation.run(record_change, invocation.environ, Action.TOKEN_REVOKED, name)
    return 0


def _shown(each: NamedToken, now: int) -> dict[str, object]:
    return {
        "name": each.name,
        "rights": each.right.value,
        "created": _time(each.created_at),
        "expires": "never" if each.expires_at is None else _time(each.expires_at),
        "expired": each.expired(now),
    }


def _time(unix: int) -> str:
    return str(timestamp(unix))
