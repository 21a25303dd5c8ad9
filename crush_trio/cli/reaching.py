"""The server that a command talks to: the one that runs, or one of its own.

A server of its own lives in this process and for this command only. It listens on a socket that
nobody else knows, and ends in order with the command: its runs first.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Final

import trio
from attrs import frozen

from crush_trio.cli.errors import NotOurs
from crush_trio.cli.invocation import choose_address
from crush_trio.client.client import TOKEN_VARIABLE, Client, open_client
from crush_trio.client.errors import AnswerGarbled, AnswerLost, ApiError, ServerUnreachable
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.addresses import PATH_LIMIT, Address, UnixAddress

PROBE_LIMIT: Final = 5.0
"""Seconds within which a server that is there says what it is."""

OWN_BUILD: Final = "crush_trio-"
"""How the build of every server of ours begins."""

TOKEN_FILE_VARIABLE: Final = "CRUSH_TRIO_TOKEN_FILE"

_REFUSALS: Final = {401, 403}
_NAME_ROOM: Final = 40


@frozen(kw_only=True)
class Reached:
    """A server that answers."""

    client: Client
    embedded: bool
    """Whether it is our own, and ends with us."""

    @property
    def local(self) -> bool:
        """Whether it can only be on this machine, and run by this user."""
        return isinstance(self.client.address, UnixAddress)


@asynccontextmanager
async def open_server(
    host: str | None, environ: Mapping[str, str], *, embed: bool
) -> AsyncIterator[Reached]:
    """Reach the server at *host*, by default at the usual place, for the length of the block.

    If nothing of ours is at the usual place and *embed* allows it, the server is our own. An address
    that was asked for is never replaced. Raises `ServerUnreachable` or `NotOurs`.
    """
    address = choose_address(host, environ, os.getuid())
    token = client_token(environ)
    there = await _is_there(address, token, insist=host is not None or not embed)
    opened = (
        open_client(address, token=token, environ=environ) if there else _open_embedded(environ)
    )
    async with opened as client:
        yield Reached(client=client, embedded=not there)


def _folder() -> str:
    """Return where the socket may lie; its whole path must be short enough to be bound."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) < PATH_LIMIT - _NAME_ROOM else "/tmp"


def client_token(environ: Mapping[str, str]) -> str | None:
    """Return the token that servers are told, as they find it: in a variable or in a file."""
    if environ.get(TOKEN_FILE_VARIABLE) and not environ.get(TOKEN_VARIABLE):
        from crush_trio.server.guard import load_token

        return load_token(environ)
    return environ.get(TOKEN_VARIABLE) or None


async def _is_there(address: Address, token: str | None, *, insist: bool) -> bool:
    """Whether a server of ours answers at *address*; with *insist*, anything else is an error."""
    await trio.lowlevel.checkpoint()
    try:
        async with open_client(address, token=token) as client:
            await probe(client)
    except (ServerUnreachable, NotOurs):
        if insist:
            raise
        return False
    return True


async def probe(client: Client) -> str:
    """Return the version of the server; raises `ServerUnreachable`, `NotOurs`, or what it refuses with."""
    with trio.move_on_after(PROBE_LIMIT):
        try:
            version = await client.version()
        except ApiError as error:
            if error.status in _REFUSALS:
                raise
            raise _not_ours(client, str(error)) from error
        except (AnswerLost, AnswerGarbled) as error:
            raise _not_ours(client, str(error)) from error
        if not version.build_id.startswith(OWN_BUILD):
            raise _not_ours(client, f"version {version.version or 'unknown'}")
        return version.version
    raise ServerUnreachable(
        f"the server at {client.address} accepts connections and does not answer; restart it"
    )


def _not_ours(client: Client, what: str) -> NotOurs:
    return NotOurs(f"{client.address} ({what}); stop it, or name another address with --host")


@asynccontextmanager
async def _open_embedded(environ: Mapping[str, str]) -> AsyncIterator[Client]:
    """Serve in this process, on a socket of our own, for the length of the block."""
    from attrs import evolve

    from crush_trio.server.hosting import HostSettings, run_server

    settings = HostSettings.from_environment(environ)
    settings = evolve(settings, backend=evolve(settings.backend, idle_linger=float("inf")))
    stop = trio.Event()
    with tempfile.TemporaryDirectory(prefix="crush-trio-", dir=_folder()) as folder:
        address = UnixAddress(PurePosixPath(folder, "s.sock"))
        async with open_hidden_nursery() as nursery:
            serve = partial(run_server, [address], settings=settings, shutdown=stop.wait)
            [bound] = await nursery.start(serve)
            try:
                async with open_client(bound, token=settings.guard.token) as client:
                    yield client
            finally:
                stop.set()
