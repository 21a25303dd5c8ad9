"""`crush-trio serve`: a server in the foreground, until a signal or a client stops it.

Standard output gets one line per address, once the server accepts connections, another one if the
Crush client would not look there, and one with the address of the page if a browser can reach it. The log goes to standard error. The first SIGTERM or SIGINT shuts the
server down within the grace period; a second one kills it.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import click
import trio
from attrs import evolve

from crush_trio.cli.options import (
    Invocation,
    OneOf,
    choose_address,
    debug_option,
    limit,
    pass_invocation,
    seconds,
    write,
)
from crush_trio.net.address import Address, TcpAddress, UnixAddress, is_loopback
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.guard import tokens_of
from crush_trio.server.http.serve import GRACE, wait_for_signal
from crush_trio.server.logging import LogFormat, LogLevel, open_log
from crush_trio.server.page.login import CODE_LIFE, new_code
from crush_trio.server.run import run_server
from crush_trio.server.settings import GuardSettings, ServerSettings, warn_without_audit

_DEMO: Final = "Where no model is configured, the offline demo answers."
_NOT_NAMED: Final = (
    "For the page in a browser, start with --public-url and the address that the browser uses."
)
_ELSEWHERE: Final = "XDG_RUNTIME_DIR is not set. With the Crush client, name this address:"


@click.command(
    epilog="""\b
Environment:
  CRUSH_TRIO_TOKEN           a token with all rights; CRUSH_TRIO_TOKEN_FILE names a file with it. With it, or
                             with tokens of `crush-trio token`, every request must have one
  CRUSH_TRIO_PATIENCE        seconds that a permission or question waits while no client can answer it
  CRUSH_TRIO_LIMITS          limits, as NAME=VALUE,NAME=VALUE; --limit overrides them
  CRUSH_SERVER_DETACH_GRACE  seconds after which the claim of a disconnected client is dropped
  CRUSH_SERVER_IDLE_TIMEOUT  seconds without workspaces after which the server shuts down
"""
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="ADDRESS",
    help="unix:///path or tcp://127.0.0.1:PORT (0 for a free port); may be repeated; by default the "
    "socket in the user's runtime directory where crush clients look.",
)
@click.option(
    "--grace",
    type=seconds,
    default=GRACE,
    show_default=True,
    metavar="S",
    help="Seconds that runs and requests have to end when the server shuts down.",
)
@click.option(
    "--idle-timeout",
    type=seconds,
    metavar="S",
    help="Shut down after so many seconds without workspaces; by default never, unless the "
    "environment says otherwise.",
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
    help="The lowest level that is logged.",
)
@click.option(
    "--open-to-owner",
    is_flag=True,
    help="On a Unix socket, need no token from the user who runs the server. Not behind a proxy that "
    "runs as this user.",
)
@click.option(
    "--public-url",
    metavar="URL",
    help="The address of the page behind a proxy, such as https://agents.example.com; by default what "
    "CRUSH_TRIO_PUBLIC_URL says.",
)
@debug_option
@pass_invocation
def serve(
    invocation: Invocation,
    hosts: tuple[str, ...],
    grace: float,
    idle_timeout: float | None,
    limits: tuple[tuple[str, float], ...],
    log_format: str,
    log_level: str,
    open_to_owner: bool,
    public_url: str | None,
) -> int:
    """Serve workspaces over HTTP and server-sent events.

    Prints the address once clients can connect. The log goes to standard error.
    The first SIGTERM or Ctrl-C shuts the server down, a second one kills it.
    """
    environ = invocation.environ
    addresses = [
        choose_address(host, environ, os.getuid(), listen=True) for host in hosts or (None,)
    ]
    settings = choose_settings(idle_timeout, environ, dict(limits))
    guard = evolve(settings.guard, open_to_owner=open_to_owner, login_code=new_code())
    if public_url is not None:
        guard = guard.behind(public_url)
    settings = evolve(settings, guard=guard)
    token = settings.guard.token
    secrets = () if token is None else (token,)
    level = LogLevel.DEBUG if invocation.debug else LogLevel(log_level)
    with open_log(LogFormat(log_format), level, secrets=secrets):
        trio.run(serve_until_signal, addresses, settings, grace)
    return 0


def choose_settings(
    idle_timeout: float | None,
    environ: Mapping[str, str],
    limits: Mapping[str, float] | None = None,
) -> ServerSettings:
    """Return the settings of *environ*, overridden by *idle_timeout* and *limits* if given."""
    settings = ServerSettings.from_environment(environ)
    settings = evolve(settings, sizes=settings.sizes.changed(limits or {}))
    if idle_timeout is None:
        return settings
    return evolve(settings, backend=evolve(settings.backend, idle_linger=idle_timeout))


async def serve_until_signal(
    addresses: Sequence[Address], settings: ServerSettings, grace: float
) -> None:
    """Serve, print the addresses, and shut down at the first signal.

    Signals are received before the socket is opened: a process that has read the address may send
    one at once.
    """
    warn_without_audit(settings)
    stop = trio.Event()
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(_set_at_signal, stop)
        server = partial(
            run_server,
            addresses,
            settings=settings,
            shutdown=stop.wait,
            grace=grace,
            whole_process=True,
        )
        async with open_hidden_nursery() as serving:
            for bound, address in zip(await serving.start(server), addresses, strict=True):
                write(f"Listening on {bound}. {_DEMO}\n")
                if isinstance(address, UnixAddress) and address.private:
                    write(f"{_ELSEWHERE} CRUSH_CLIENT_SERVER=1 crush --host {bound}\n")
                for line in page_lines(bound, settings.guard):
                    write(f"{line}\n")
            if settings.guard.public_url is not None:
                write(f"{page_line(settings.guard.public_url, settings.guard)}\n")
        nursery.cancel_scope.cancel()


def page_lines(bound: Address, guard: GuardSettings) -> list[str]:
    """Return the line about the page at the address *bound*, if a browser can open it there."""
    if guard.public_url is not None or not isinstance(bound, TcpAddress):
        return []
    anywhere = bound.host in {"0.0.0.0", "::"}
    if not anywhere and not is_loopback(bound):
        return [_NOT_NAMED]
    here = TcpAddress("127.0.0.1", bound.port) if anywhere else bound
    return [page_line(str(here).replace("tcp:", "http:"), guard)]


def page_line(url: str, guard: GuardSettings) -> str:
    """Return the line about the page at *url*; where tokens are needed, its link logs one browser in."""
    if guard.login_code is None or not tokens_of(guard).required:
        return f"The page: {url}/"
    minutes = CODE_LIFE // 60
    return f"The page, logged in once within {minutes} minutes: {url}/#login={guard.login_code}"


async def _set_at_signal(stop: trio.Event) -> None:
    await wait_for_signal()
    stop.set()
