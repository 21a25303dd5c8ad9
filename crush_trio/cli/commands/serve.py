"""`crush-trio serve`: a server in the foreground, until a signal or a client ends it.

A server in the foreground, until a signal or a client ends it.

Standard output gets one line, once clients are answered: where. Everything else goes to standard
error, as events with their fields. The first SIGTERM or SIGINT ends the server in order, within the
grace; a second one ends it as signals do.
"""

import math
import os
from collections.abc import Mapping
from functools import partial
from typing import Final

import click
import trio
from attrs import evolve

from crush_trio.cli.options import Invocation, OneOf, choose_address, debug_option, pass_invocation
from crush_trio.net.address import Address
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.http.serve import wait_for_signal
from crush_trio.server.logging import LogFormat, LogLevel, open_log
from crush_trio.server.run import run_server
from crush_trio.server.settings import ServerSettings

_WHO_ANSWERS: Final = "Where no model is configured, the offline demo answers."


def serve_until_told(
    host: str | None,
    environ: Mapping[str, str],
    *,
    grace: float,
    idle_timeout: float | None = None,
    limits: Mapping[str, float] | None = None,
    log: tuple[str, str] = ("human", "info"),
) -> None:
    """Serve until told to stop; raises a `CrushError` if that cannot be done."""
    address = choose_address(host, environ, os.getuid())
    settings = choose_settings(idle_timeout, environ, limits)
    token = settings.guard.token
    secrets = () if token is None else (token,)
    with open_log(LogFormat(log[0]), LogLevel(log[1]), secrets=secrets):
        trio.run(_serve, address, settings, grace)


def choose_settings(
    idle_timeout: float | None,
    environ: Mapping[str, str],
    limits: Mapping[str, float] | None = None,
) -> ServerSettings:
    """Return the settings of *environ*; an *idle_timeout* and *limits* that were given win over it."""
    settings = ServerSettings.from_environment(environ)
    settings = evolve(settings, sizes=settings.sizes.changed(limits or {}))
    if idle_timeout is None:
        return settings
    return evolve(settings, backend=evolve(settings.backend, idle_linger=idle_timeout))


async def _serve(address: Address, settings: ServerSettings, grace: float) -> None:
    """Serve, say where, and end at the first signal.

    The signals are waited for before anything is opened: whoever reads the address may send one.
    """
    stop = trio.Event()
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(_set_at_signal, stop)
        server = partial(
            run_server,
            [address],
            settings=settings,
            shutdown=stop.wait,
            grace=grace,
            whole_process=True,
        )
        async with open_hidden_nursery() as serving:
            [bound] = await serving.start(server)
            print(f"Listening on {bound}. {_WHO_ANSWERS}", flush=True)
        nursery.cancel_scope.cancel()


async def _set_at_signal(stop: trio.Event) -> None:
    await wait_for_signal()
    stop.set()


GRACE = 3.0
"""Seconds that a server has to end; the same as in `crush_trio.server.http.serve`."""


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
