"""`crush-trio serve`: a server in the foreground, until a signal or a client ends it.

Standard output gets one line, once clients are answered: where. Everything else goes to standard
error, as events with their fields. The first SIGTERM or SIGINT ends the server in order, within the
grace; a second one ends it as signals do.
"""

import argparse
import math
import os
from collections.abc import Mapping
from functools import partial
from typing import Final, TypeAlias

import trio
from attrs import evolve

from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.hosting import HostSettings, run_server
from crush_trio.server.logging_setup import LogFormat, LogLevel, open_log
from crush_trio.server.serve import GRACE, wait_for_signal
from crush_trio.wire.addresses import Address, default_address, parse_address

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Where the command line keeps its commands; argparse has no public name for it."""

_EPILOG: Final = """environment:
  CRUSH_TRIO_TOKEN           what every request has to show; CRUSH_TRIO_TOKEN_FILE names a file with it
  CRUSH_SERVER_DETACH_GRACE  seconds that a client may be away before its claim is dropped
  CRUSH_SERVER_IDLE_TIMEOUT  seconds without workspaces after which the server ends
"""


def add_serve(commands: Commands) -> None:
    """Add the command to *commands*."""
    parser = commands.add_parser(
        "serve",
        help="serve workspaces over HTTP and server-sent events",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help="unix:///path or tcp://127.0.0.1:PORT (0 for a free port); by default the socket "
        "in the user's runtime directory where crush clients look",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=GRACE,
        metavar="S",
        help="seconds that runs and requests have to end when the server stops (%(default)s)",
    )
    parser.add_argument(
        "--idle-timeout",
        type=_seconds,
        metavar="S",
        help="end after so many seconds without workspaces; by default stay, unless the "
        "environment says otherwise",
    )
    parser.add_argument(
        "--log-format",
        choices=[form.value for form in LogFormat],
        default=LogFormat.HUMAN.value,
        help="lines for people, or JSON objects for programs (%(default)s)",
    )
    parser.add_argument(
        "--log-level",
        choices=[level.value for level in LogLevel],
        default=LogLevel.INFO.value,
        help="the least that is logged (%(default)s)",
    )
    parser.set_defaults(run=_serve)


def _seconds(text: str) -> float:
    """Read a time that one can wait for."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds; write 0 or more")
    return seconds


def _serve(arguments: argparse.Namespace) -> None:
    """Serve until told to stop; raises a `CrushError` if that cannot be done."""
    address = choose_address(arguments.host, os.environ, os.getuid())
    settings = choose_settings(arguments.idle_timeout, os.environ)
    token = settings.guard.token
    with open_log(
        LogFormat(arguments.log_format),
        LogLevel(arguments.log_level),
        secrets=() if token is None else (token,),
    ):
        trio.run(partial(_serve_until_told, address, settings, arguments.grace))


def choose_address(host: str | None, environ: Mapping[str, str], uid: int) -> Address:
    """Return the address that was asked for, or where clients look; raises `BadAddress`."""
    return default_address(environ, uid) if host is None else parse_address(host)


def choose_settings(idle_timeout: float | None, environ: Mapping[str, str]) -> HostSettings:
    """Return the settings of *environ*; an *idle_timeout* that was given wins over it."""
    settings = HostSettings.from_environment(environ)
    if idle_timeout is None:
        return settings
    return evolve(settings, backend=evolve(settings.backend, idle_linger=idle_timeout))


async def _serve_until_told(address: Address, settings: HostSettings, grace: float) -> None:
    """Serve, say where, and end at the first signal.

    The signals are waited for before anything is opened: whoever reads the address may send one.
    """
    stop = trio.Event()
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(_set_at_signal, stop)
        server = partial(run_server, [address], settings=settings, shutdown=stop.wait, grace=grace)
        async with open_hidden_nursery() as serving:
            [bound] = await serving.start(server)
            print(f"Listening on {bound}. The offline demo model answers.", flush=True)
        nursery.cancel_scope.cancel()


async def _set_at_signal(stop: trio.Event) -> None:
    await wait_for_signal()
    stop.set()
