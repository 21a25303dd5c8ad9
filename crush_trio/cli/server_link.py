"""The server and the directory that a command's arguments name.

`open_link` connects to a running server, or starts the one in the background (`cli.background`). Where
that cannot be or is not wanted, the command has an embedded server: in its own process, on a socket with
a private name. An embedded server shuts down with the command, its runs first.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Final

import click
import trio
from attrs import frozen

from crush_trio.cli.background import Background
from crush_trio.cli.exits import NotOurs
from crush_trio.cli.options import choose_address
from crush_trio.client.client import (
    CA_VARIABLE,
    INSECURE_VARIABLE,
    TOKEN_VARIABLE,
    Client,
    open_client,
)
from crush_trio.client.http import AnswerGarbled, AnswerLost, ApiError, ServerUnreachable
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.errors import CrushError, ServerShuttingDown
from crush_trio.net.address import HOST_VARIABLE, PATH_LIMIT, Address, UnixAddress
from crush_trio.net.dial import FixedUnixDialer
from crush_trio.net.errors import ConnectFailed, ForeignSocket
from crush_trio.net.unix_socket import Credentials, find_listener
from crush_trio.nursery import open_hidden_nursery

PROBE_LIMIT: Final = 30.0
"""Seconds within which a running server must answer the version request; a busy machine may need some."""

PROBE_NOTICE: Final = 5.0
"""Seconds after which the user is told that the command waits for that answer."""

START_LIMIT: Final = 30.0
"""Seconds within which a server in the background must listen; on a quiet machine it takes less than one."""

RETIRE_LIMIT: Final = 5.0
"""Seconds within which an unused server of another version ends; one that does not is used."""

REOPENINGS: Final = 2
"""How often a directory is opened again if the server in the background ends just then."""

STUCK: Final = "end it with: kill -9 {pid} (the next command starts another)"
"""What to do about a server in the background that does not answer."""

OWN_BUILD: Final = "crush_trio-"
"""The prefix of the build id of every crush_trio server."""

TOKEN_FILE_VARIABLE: Final = "CRUSH_TRIO_TOKEN_FILE"

_REFUSALS: Final = {401, 403}
_NAME_ROOM: Final = 40
_PAUSE: Final = 0.02
_REST: Final = 1.0


# ── The server ──────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class ServerLink:
    """A connection to a server. Made by `open_link`."""

    client: Client
    embedded: bool = False
    """Whether the server is in this process, and shuts down with the command."""
    background: Background | None = None
    """The server in the background, if it is that one."""

    @property
    def local(self) -> bool:
        """Whether the server is on this machine and run by this user: it has a Unix socket."""
        return isinstance(self.client.address, UnixAddress)


@asynccontextmanager
async def open_link(
    host: str | None, environ: Mapping[str, str], *, start: bool
) -> AsyncIterator[ServerLink]:
    """Connect to the server at *host*, by default at the user's socket, for the block.

    If no crush_trio server runs at the default address, it is the one in the background, which is
    started if *start* is true. It never replaces an address that was given. Raises `ServerUnreachable`,
    `NotOurs` or `BackgroundFailed`.
    """
    address = choose_address(host, environ, os.getuid())
    token = client_token(environ)
    shared = None if host is not None else Background.of(environ, os.getuid())
    required = host is not None or not (start or (shared is not None and shared.listening()))
    if await _is_running(address, token, environ, required=required):
        async with open_client(address, token=token, environ=environ) as client:
            yield ServerLink(client=client)
    elif shared is not None and await _reached(shared, environ):
        async with _open_background(shared, environ) as client:
            yield ServerLink(client=client, background=shared)
    else:
        async with _open_embedded(environ) as client:
            yield ServerLink(client=client, embedded=True)


async def finds_server(environ: Mapping[str, str]) -> bool:
    """Whether a server runs that commands without `--host` would use."""
    await trio.lowlevel.checkpoint()
    shared = Background.of(environ, os.getuid())
    if shared is not None and shared.listening():
        return True
    address = choose_address(None, environ, os.getuid())
    return await _is_running(address, client_token(environ), environ, required=False)


def client_token(environ: Mapping[str, str]) -> str | None:
    """Return the token for servers, from the same variable or file that servers read it from."""
    if environ.get(TOKEN_FILE_VARIABLE) and not environ.get(TOKEN_VARIABLE):
        from crush_trio.server.settings import load_token

        return load_token(environ)
    return environ.get(TOKEN_VARIABLE) or None


async def _is_running(
    address: Address, token: str | None, environ: Mapping[str, str], *, required: bool
) -> bool:
    """Whether a crush_trio server answers at *address*; raises if it does not and is *required*."""
    await trio.lowlevel.checkpoint()
    try:
        async with open_client(address, token=token, environ=environ) as client:
            await probe(client)
    except (ServerUnreachable, NotOurs):
        if required:
            raise
        return False
    return True


async def probe(client: Client, *, remedy: str = "restart it", started: bool = False) -> str:
    """Return the server's version; raises `ServerUnreachable`, `NotOurs` or an `ApiError`.

    *remedy* is what to do about a server that does not answer, with `{pid}` for its process. A server tells
    its version before it has started; with *started*, this waits for that too.
    """
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(_watch_silence, client, remedy)
        version = await _version_of(client, started)
        nursery.cancel_scope.cancel()
    return version


async def _watch_silence(client: Client, remedy: str) -> None:
    """Tell the user that the command waits; raise `ServerUnreachable` when it has waited for long enough."""
    await trio.sleep(PROBE_NOTICE)
    found = await _listener(client)
    program = f"{found or 'the program'} at {client.address}"
    if found is not None and found.stopped:
        raise ServerUnreachable(f"{program} is stopped; continue it with: kill -CONT {found.pid}")
    click.echo(f"crush-trio: waiting for an answer of {program}", err=True)
    await trio.sleep(PROBE_LIMIT - PROBE_NOTICE)
    advice = remedy.format(pid="PID" if found is None else found.pid)
    raise ServerUnreachable(f"{program} accepts connections and does not answer; {advice}")


async def _version_of(client: Client, started: bool) -> str:
    await trio.lowlevel.checkpoint()
    try:
        version = await client.version()
        if started:
            await client.server_config()  # the least that is answered then, and not before
    except ApiError as error:
        if error.status in _REFUSALS:
            raise
        raise await _not_ours(client, str(error)) from error
    except (AnswerLost, AnswerGarbled) as error:
        raise await _not_ours(client, str(error)) from error
    if not version.build_id.startswith(OWN_BUILD):
        kind = "Crush, the Go program, " if version.go_version else ""
        raise await _not_ours(client, f"{kind}version {version.version or 'unknown'}")
    return version.version


async def _not_ours(client: Client, what: str) -> NotOurs:
    program = await _listener(client) or "the program"
    return NotOurs(
        f"{program} at {client.address} ({what}); stop it, or name another address with --host"
    )


async def _listener(client: Client) -> Credentials | None:
    """Return which process listens at the address of *client*, if that can be told."""
    await trio.lowlevel.checkpoint()
    address = client.address
    return await find_listener(address.path) if isinstance(address, UnixAddress) else None


# ── The server in the background ────────────────────────────────────────────────────────────────


async def _reached(shared: Background, environ: Mapping[str, str]) -> bool:
    """Reach the server in the background; False if its files cannot be made, as on a read-only disk."""
    await trio.lowlevel.checkpoint()
    try:
        await reach_background(shared, environ)
    except OSError:
        return False
    return True


async def reach_background(shared: Background, environ: Mapping[str, str]) -> None:
    """Wait until the server in the background listens, and start it if need be.

    One that another version or installation has started is replaced, if no client uses it. Raises
    `BackgroundFailed`, or `OSError` if its files cannot be made.
    """
    started = False
    await trio.lowlevel.checkpoint()
    if shared.listening() and not shared.ours:
        await _retire(shared)
    with trio.move_on_after(START_LIMIT):
        while not shared.listening():
            if shared.start(environ, spawn=not started):
                if started:
                    raise shared.failure()
                started = True
            await trio.sleep(_PAUSE)  # neither the lock nor the socket sends an event
        return
    raise shared.failure()


async def _retire(shared: Background) -> None:
    """End a server of another version or installation, unless a client uses it."""
    await trio.lowlevel.checkpoint()
    with suppress(CrushError), trio.move_on_after(RETIRE_LIMIT):
        async with open_client(shared.address, environ={}) as client:
            await client.shutdown()
        while shared.listening():  # noqa: ASYNC110 - as above
            await trio.sleep(_PAUSE)


@asynccontextmanager
async def _open_background(shared: Background, environ: Mapping[str, str]) -> AsyncIterator[Client]:
    """Connect to the server in the background; if it is killed, start another one."""
    dial = FixedUnixDialer(shared.address)
    with closing(dial):
        async with (
            open_client(shared.address, environ={}, dial=dial) as client,
            open_hidden_nursery() as nursery,
        ):
            await _greet(client, shared, environ)
            nursery.start_soon(_revive, shared, dial, environ)
            yield client
            nursery.cancel_scope.cancel()


async def _greet(client: Client, shared: Background, environ: Mapping[str, str]) -> None:
    """Wait until the server has started. Its idle time may be over just now: then the next one is used.

    Raises `BackgroundFailed` if that ends as well: then it cannot start.
    """
    await trio.lowlevel.checkpoint()
    for attempt in range(REOPENINGS + 1):
        try:
            await probe(client, remedy=STUCK, started=True)
            return
        except (ServerUnreachable, NotOurs) as error:
            if not isinstance(error.__cause__, ConnectFailed | AnswerLost):
                raise
        if attempt < REOPENINGS:
            await _reached(shared, environ)
    with trio.move_on_after(RETIRE_LIMIT):  # until it has ended, and written why
        while not shared.start(environ, spawn=False):  # noqa: ASYNC110 - as in `reach_background`
            await trio.sleep(_PAUSE)
    raise shared.failure()


async def _revive(shared: Background, dial: FixedUnixDialer, environ: Mapping[str, str]) -> None:
    """Start the server again whenever it has ended, so that clients can reconnect."""
    while True:
        with suppress(ConnectFailed, ForeignSocket, trio.BrokenResourceError):
            async with await dial() as stream:
                await stream.receive_some()  # returns when the server closes the connection
        if not shared.listening():
            await _reached(shared, environ)
        await trio.sleep(_REST)


# ── An embedded server ──────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _open_embedded(environ: Mapping[str, str]) -> AsyncIterator[Client]:
    """Run a server in this process, on a socket with a private name, for the block."""
    from attrs import evolve

    from crush_trio.server.run import run_server
    from crush_trio.server.settings import ServerSettings

    settings = ServerSettings.from_environment(environ)
    settings = evolve(
        settings,
        backend=evolve(settings.backend, idle_linger=float("inf")),
        guard=evolve(settings.guard, token_file=None),  # this command is the only client
    )
    stop = trio.Event()
    with tempfile.TemporaryDirectory(prefix="crush-trio-", dir=_socket_folder()) as folder:
        address = UnixAddress(PurePosixPath(folder, "s.sock"))
        async with open_hidden_nursery() as nursery:
            serve = partial(run_server, [address], settings=settings, shutdown=stop.wait)
            [bound] = await nursery.start(serve)
            try:
                async with open_client(bound, token=settings.guard.token) as client:
                    yield client
            finally:
                stop.set()


def _socket_folder() -> str:
    """Return the folder for the socket: one whose path is short enough for a socket's name."""
    default = tempfile.gettempdir()
    return default if len(os.fsencode(default)) < PATH_LIMIT - _NAME_ROOM else "/tmp"


# ── The directory ───────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_directory(
    link: ServerLink,
    directory: str,
    environ: Mapping[str, str],
    *,
    interactive: bool = False,
    init: bool = True,
) -> AsyncIterator[RemoteWorkspace]:
    """Open a directory as a workspace, for the block.

    A local server of this user gets this environment, so that the API keys of the user's shell are
    used. It counts only if no other client has the directory open. A remote server uses its own.

    The server in the background may end just before: its idle time was over. Then the next one is used.
    """
    env = None
    if link.local and not link.embedded:
        own = (TOKEN_VARIABLE, CA_VARIABLE, INSECURE_VARIABLE, HOST_VARIABLE)
        env = {name: text for name, text in environ.items() if not name.startswith(own)}
    open_it = partial(
        link.client.open_workspace, directory, interactive=interactive, init=init, env=env
    )
    async with AsyncExitStack() as stack:
        for _ in range(REOPENINGS if link.background is not None else 0):
            try:
                workspace = await stack.enter_async_context(open_it())
            except (ServerShuttingDown, ServerUnreachable, AnswerLost):
                assert link.background is not None
                await _reached(link.background, environ)
            else:
                yield workspace
                return
        yield await stack.enter_async_context(open_it())
