"""`crush-trio serve`: a server in the foreground, until a signal or a client ends it."""

import math

import click

from crush_trio.cli.invocation import Invocation, OneOf, debug_option, pass_invocation

GRACE = 3.0
"""Seconds that a server has to end; the same as in `crush_trio.server.serve`."""


def seconds(text: str | float) -> float:
    """Read a time that one can wait for; click says which option it was."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise click.BadParameter(f"{text!r} is not a number of seconds; write 0 or more")
    return found


def limit(text: str) -> tuple[str, float]:
    """Read NAME=VALUE; click says which option it was."""
    from crush_trio.errors import LimitInvalid
    from crush_trio.limits import read_pair

    try:
        return read_pair(text)
    except LimitInvalid as error:
        raise click.BadParameter(error.detail) from error


@click.command(
    epilog="""\b
Environment:
  CRUSH_TRIO_TOKEN           what every request has to show; CRUSH_TRIO_TOKEN_FILE names a file with it
  CRUSH_SERVER_DETACH_GRACE  seconds that a client may be away before its claim is dropped
  CRUSH_SERVER_IDLE_TIMEOUT  seconds without workspaces after which the server ends
  CRUSH_TRIO_LIMITS          limits, as NAME=VALUE,NAME=VALUE; --limit wins over them
"""
)
@click.option(
    "--host",
    metavar="ADDRESS",
    help="unix:///path or tcp://127.0.0.1:PORT (0 for a free port); by default the socket in the "
    "user's runtime directory where crush clients look.",
)
@click.option(
    "--grace",
    type=seconds,
    default=GRACE,
    show_default=True,
    metavar="S",
    help="Seconds that runs and requests have to end when the server stops.",
)
@click.option(
    "--idle-timeout",
    type=seconds,
    metavar="S",
    help="End after so many seconds without workspaces; by default stay, unless the environment "
    "says otherwise.",
)
@click.option(
    "--limit",
    "limits",
    type=limit,
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a limit, such as answer=32MiB or active_runs=16; may be repeated. docs/operations.md "
    "lists them.",
)
@click.option(
    "--log-format",
    type=OneOf(["human", "json"]),
    default="human",
    show_default=True,
    help="Lines for people, or JSON objects for programs.",
)
@click.option(
    "--log-level",
    type=OneOf(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least that is logged.",
)
@debug_option
@pass_invocation
def serve(
    invocation: Invocation,
    host: str | None,
    grace: float,
    idle_timeout: float | None,
    limits: tuple[tuple[str, float], ...],
    log_format: str,
    log_level: str,
) -> int:
    """Serve workspaces over HTTP and server-sent events.

    Standard output gets one line, once clients are answered: where. The log goes to standard error.
    The first SIGTERM or Ctrl-C ends the server in order, a second one at once.
    """
    from crush_trio.cli.serving import serve_until_told

    level = "debug" if invocation.debug else log_level
    serve_until_told(
        host,
        invocation.environ,
        grace=grace,
        idle_timeout=idle_timeout,
        limits=dict(limits),
        log=(log_format, level),
    )
    return 0
