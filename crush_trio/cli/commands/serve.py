"""`crush-trio serve`: a server in the foreground, until a signal or a client stops it.

Standard output gets one line per address, once the server accepts connections, another one if the
Crush client would not look there, and one with the address of the page if a browser can reach it. The log
goes to standard error.

The first SIGTERM or SIGINT ends the server: runs first have the drain to end by themselves, then the grace. A
second one ends the drain, and the one after that, or the second without a drain, kills the server. SIGHUP
reads the configuration again; with a controlling terminal, which was then closed, it ends the server.
"""

import grp
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
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
from crush_trio.server.http.serve import GRACE
from crush_trio.server.http.sockets import SocketAccess
from crush_trio.server.logging import LogFormat, LogLevel, open_log
from crush_trio.server.page.login import CODE_LIFE, new_code
from crush_trio.server.run import Orders, run_server
from crush_trio.server.service_manager import ServiceManager
from crush_trio.server.settings import (
    ClusterSettings,
    GuardSettings,
    ServerSettings,
    warn_without_audit,
)
from crush_trio.store.lease import TTL
from crush_trio.store.open import check_driver, check_site, check_url

_DEMO: Final = "Where no model is configured, the offline demo answers."
_NOT_NAMED: Final = (
    "For the page in a browser, start with --public-url and the address that the browser uses."
)
_ELSEWHERE: Final = "XDG_RUNTIME_DIR is not set. With the Crush client, name this address:"


_MODE: Final = re.compile(r"0?[0-7]{3}")


def socket_mode(text: str) -> int:
    """Parse the mode of a socket file; click adds the option's name to the error."""
    mode = int(text, 8) if _MODE.fullmatch(text) else 0
    if mode & 0o600 != 0o600:
        raise click.BadParameter(f"{text!r} is not a mode with 6 for the owner, such as 0660")
    return mode


def socket_group(text: str) -> int:
    """Parse the name or the number of a group; click adds the option's name to the error."""
    with suppress(KeyError):
        return grp.getgrnam(text).gr_gid
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise click.BadParameter(f"there is no group {text!r}")


@click.command(
    epilog="""\b
Environment:
  CRUSH_TRIO_TOKEN           a token with all rights; CRUSH_TRIO_TOKEN_FILE names a file with it. With it, or
                             with tokens of `crush-trio token`, every request must have one
  CRUSH_TRIO_PATIENCE        seconds that a permission or question waits while no client can answer it
  CRUSH_TRIO_STORE           the URL of the store; --store overrides it
  CRUSH_TRIO_SITE            the site of the workspaces in a shared store; --site overrides it
  CRUSH_TRIO_ADVERTISE       the address for other servers on a shared store; --advertise overrides it
  CRUSH_TRIO_LEASE_TTL       seconds for which leases hold; --lease-ttl overrides it
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
    "--socket-mode",
    type=socket_mode,
    default="0600",
    show_default=True,
    metavar="MODE",
    help="Who may open the Unix socket. With 0660, who is in its group can do all that the server "
    "allows without a token.",
)
@click.option(
    "--socket-group",
    type=socket_group,
    metavar="GROUP",
    help="The group of the Unix socket, such as that of a reverse proxy; one that the server's user "
    "is in.",
)
@click.option(
    "--drain",
    type=seconds,
    default=0.0,
    show_default=True,
    metavar="S",
    help="Seconds that runs have to end by themselves before the server shuts down; new prompts are "
    "refused meanwhile.",
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
@click.option(
    "--store",
    metavar="URL",
    help="Where the data is kept: sqlite: (a file in the data directory of each workspace, the default), "
    "sqlite:?synchronous=full (the same, and every commit waits for the disk) or "
    "postgresql://HOST/DATABASE. A URL with a password belongs into CRUSH_TRIO_STORE instead: other users "
    "see the arguments of commands.",
)
@click.option(
    "--site",
    metavar="NAME",
    help="With a shared store: the name of the machines that see the same files as this one, by default its "
    "host name. A workspace is known by its site and its directory.",
)
@click.option(
    "--advertise",
    metavar="ADDRESS",
    help="With a shared store: where other servers on it reach this one, such as tcp://10.0.0.5:8765. They pass "
    "requests about its workspaces on to it, with the token that all of them have.",
)
@click.option(
    "--lease-ttl",
    type=seconds,
    metavar="S",
    help=f"With a shared store: seconds after which others may take over the workspaces of a server that is "
    f"gone, by default {TTL:g}. The same on all servers.",
)
@debug_option
@pass_invocation
def serve(
    invocation: Invocation,
    hosts: tuple[str, ...],
    socket_mode: int,
    socket_group: int | None,
    drain: float,
    grace: float,
    idle_timeout: float | None,
    limits: tuple[tuple[str, float], ...],
    log_format: str,
    log_level: str,
    open_to_owner: bool,
    public_url: str | None,
    store: str | None,
    site: str | None,
    advertise: str | None,
    lease_ttl: float | None,
) -> int:
    """Serve workspaces over HTTP and server-sent events.

    Prints the address once clients can connect. The log goes to standard error.
    The first SIGTERM or Ctrl-C shuts the server down, a second one kills it, or ends the drain.
    SIGHUP reads the configuration again.
    """
    environ = invocation.environ
    addresses = [
        choose_address(host, environ, os.getuid(), listen=True) for host in hosts or (None,)
    ]
    settings = choose_settings(idle_timeout, environ, dict(limits))
    guard = evolve(settings.guard, open_to_owner=open_to_owner, login_code=new_code())
    if public_url is not None:
        guard = guard.behind(public_url)
    access = SocketAccess(socket_mode, socket_group)
    settings = evolve(settings, guard=guard, socket_access=access)
    manager = ServiceManager.from_environment(environ)
    chosen = settings.store
    chosen = evolve(
        chosen,
        url=chosen.url if store is None else store,
        site=chosen.site if site is None else site,
    )
    check_url(chosen)
    check_site(chosen)
    check_driver(chosen)
    cluster = ClusterSettings.of(
        settings.cluster.advertise if advertise is None else advertise,
        settings.cluster.lease_ttl if lease_ttl is None else lease_ttl,
    )
    settings = evolve(settings, store=chosen, cluster=cluster)
    level = LogLevel.DEBUG if invocation.debug else LogLevel(log_level)
    with open_log(LogFormat(log_format), level, secrets=settings.secrets):
        serving = partial(serve_until_signal, drain=drain, manager=manager)
        trio.run(serving, addresses, settings, grace)
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
    addresses: Sequence[Address],
    settings: ServerSettings,
    grace: float,
    *,
    drain: float = 0.0,
    manager: ServiceManager | None = None,
) -> None:
    """Serve, print the addresses, and shut down at the first signal.

    Signals are received before the socket is opened: a process that has read the address may send
    one at once. The *manager* gets signs of life until the server has closed.
    """
    warn_without_audit(settings)
    orders = Orders()
    manager = ServiceManager() if manager is None else manager
    async with open_hidden_nursery() as nursery:
        await nursery.start(obey_hangups, orders, has_terminal())
        await nursery.start(obey_signals, orders)
        nursery.start_soon(manager.watch)
        server = partial(
            run_server,
            addresses,
            settings=settings,
            grace=grace,
            drain=drain,
            orders=orders,
            manager=manager,
            whole_process=True,
        )
        async with open_hidden_nursery() as serving:
            found = await serving.start(server)
            manager.ready(f"Listening on {', '.join(map(str, found))}")
            for bound, address in zip(found, addresses, strict=True):
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


# ── Signals ─────────────────────────────────────────────────────────────────────────────────────


async def obey_signals(
    orders: Orders, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Have the first SIGTERM or SIGINT stop the server and the second end its drain.

    Once the drain is over, the signals have their previous handlers again: the next one kills the server.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as arrivals:
        task_status.started()
        async with open_hidden_nursery() as nursery:
            nursery.start_soon(_give_orders, arrivals, orders)
            await orders.drained.wait()
            nursery.cancel_scope.cancel()


async def _give_orders(arrivals: AsyncIterator[int], orders: Orders) -> None:
    async for _ in arrivals:
        if orders.stop.is_set():
            orders.hurry.set()
        orders.stop.set()


async def obey_hangups(
    orders: Orders, terminal: bool, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Have SIGHUP read the configuration again; if there was a *terminal*, have it stop the server.

    A program that was started to survive its terminal (`nohup`) ignores it. A terminal that is closed may
    send it twice, so later ones do not count.
    """
    if terminal and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        task_status.started()
        await trio.lowlevel.checkpoint()
        return
    with trio.open_signal_receiver(signal.SIGHUP) as arrivals:
        task_status.started()
        async for _ in arrivals:
            if terminal:
                orders.stop.set()
            else:
                orders.reload()


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
