"""The server, directory, session, run and model that a command's arguments name.

`open_link` connects to a running server, or starts an embedded one: a server in this process, for
this command only, on a socket with a private name. An embedded server shuts down with the command,
its runs first.

A session or run may be named by the first characters of its id, and a model without its provider, as
long as that is unambiguous.
"""

import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

import trio
from attrs import frozen

from crush_trio.cli.exits import IdAmbiguous, ModelUnknown, NothingToContinue, NotOurs
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
from crush_trio.clock import SystemClock
from crush_trio.config.load import load_config
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import Places
from crush_trio.errors import SessionNotFound
from crush_trio.net.address import PATH_LIMIT, Address, UnixAddress
from crush_trio.net.unix_socket import find_listener
from crush_trio.nursery import open_hidden_nursery
from crush_trio.providers.catalog import catalog_providers
from crush_trio.store.open import StoreSettings
from crush_trio.store.open import has_data as store_has_data
from crush_trio.tools.shell.environment import config_commands
from crush_trio.wire.config import ProviderConfig, SelectedModel
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import Session

PROBE_LIMIT: Final = 5.0
"""Seconds within which a running server must answer the version request."""

OWN_BUILD: Final = "crush_trio-"
"""The prefix of the build id of every crush_trio server."""

TOKEN_FILE_VARIABLE: Final = "CRUSH_TRIO_TOKEN_FILE"

SHORTEST: Final = 4
"""The fewest characters of an id that name it."""

_REFUSALS: Final = {401, 403}
_NAME_ROOM: Final = 40
_LISTED: Final = 8


# ── The server ──────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class ServerLink:
    """A connection to a server. Made by `open_link`."""

    client: Client
    embedded: bool
    """Whether the server is in this process, and shuts down with the command."""

    @property
    def local(self) -> bool:
        """Whether the server is on this machine and run by this user: it has a Unix socket."""
        return isinstance(self.client.address, UnixAddress)


@asynccontextmanager
async def open_link(
    host: str | None, environ: Mapping[str, str], *, embed: bool
) -> AsyncIterator[ServerLink]:
    """Connect to the server at *host*, by default at the user's socket, for the block.

    If no crush_trio server runs at the default address and *embed* is true, an embedded server is
    started. It never replaces an address that was given. Raises `ServerUnreachable` or `NotOurs`.
    """
    address = choose_address(host, environ, os.getuid())
    token = client_token(environ)
    required = host is not None or not embed
    running = await _is_running(address, token, environ, required=required)
    opened = (
        open_client(address, token=token, environ=environ) if running else _open_embedded(environ)
    )
    async with opened as client:
        yield ServerLink(client=client, embedded=not running)


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


async def probe(client: Client) -> str:
    """Return the server's version; raises `ServerUnreachable`, `NotOurs` or an `ApiError`."""
    with trio.move_on_after(PROBE_LIMIT):
        try:
            version = await client.version()
        except ApiError as error:
            if error.status in _REFUSALS:
                raise
            raise await _not_ours(client, str(error)) from error
        except (AnswerLost, AnswerGarbled) as error:
            raise await _not_ours(client, str(error)) from error
        if not version.build_id.startswith(OWN_BUILD):
            raise await _not_ours(client, f"version {version.version or 'unknown'}")
        return version.version
    raise ServerUnreachable(
        f"{await _program(client)} at {client.address} accepts connections and does not answer; restart it"
    )


async def _not_ours(client: Client, what: str) -> NotOurs:
    program = await _program(client)
    return NotOurs(
        f"{program} at {client.address} ({what}); stop it, or name another address with --host"
    )


async def _program(client: Client) -> str:
    """Return which program listens at the address of *client*, if that can be told."""
    address, found = client.address, None
    await trio.lowlevel.checkpoint()
    if isinstance(address, UnixAddress):
        found = await find_listener(address.path)
    return "the program" if found is None else str(found)


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


def open_directory(
    link: ServerLink,
    directory: str,
    environ: Mapping[str, str],
    *,
    interactive: bool = False,
    init: bool = True,
) -> AbstractAsyncContextManager[RemoteWorkspace]:
    """Open a directory as a workspace.

    A local server of this user gets this environment, so that the API keys of the user's shell are
    used. It counts only if no other client has the directory open. A remote server uses its own.
    """
    env = None
    if link.local and not link.embedded:
        own = (TOKEN_VARIABLE, CA_VARIABLE, INSECURE_VARIABLE)
        env = {name: text for name, text in environ.items() if not name.startswith(own)}
    return link.client.open_workspace(directory, interactive=interactive, init=init, env=env)


def places_of(directory: Path, environ: Mapping[str, str]) -> Places:
    """Return where the configuration of a directory is looked for."""
    home = Path(environ.get("HOME") or "/")
    return Places(
        directory=directory, home=home if home.is_absolute() else Path("/"), environment=environ
    )


async def configuration_of(directory: Path, environ: Mapping[str, str]) -> LoadedConfig:
    """Return the configuration that a workspace would have; raises `ConfigInvalid`.

    Commands in it are run as a workspace runs them, because their output is part of it.
    """
    return await load_config(
        places_of(directory, environ),
        catalogue=catalog_providers(),
        run_command=config_commands(SystemClock()),
    )


async def has_data(directory: Path, environ: Mapping[str, str]) -> bool:
    """Whether a directory has the database of a workspace."""
    config = await configuration_of(directory, environ)
    return await store_has_data(StoreSettings(), config.data_dir)


# ── Sessions, runs and models ───────────────────────────────────────────────────────────────────


def match_id(text: str, ids: Iterable[str]) -> str | None:
    """Return the id that equals *text*, or the only one that begins with it; raises `IdAmbiguous`."""
    found = set()
    for each in ids:
        if each == text:
            return each
        if len(text) >= SHORTEST and each.startswith(text):
            found.add(each)
    if len(found) > 1:
        raise IdAmbiguous(f"{len(found)} ids begin with {text!r}; write more of it")
    return found.pop() if found else None


async def find_session(workspace: RemoteWorkspace, text: str) -> Session:
    """Return the session that *text* names; raises `SessionNotFound` or `IdAmbiguous`."""
    sessions = await workspace.sessions.list()
    found = match_id(text, (session.id for session in sessions))
    if found is None and len(text) >= SHORTEST:
        return await workspace.sessions.get(SessionId(text))
    if found is None:
        raise SessionNotFound(repr(text))
    return next(session for session in sessions if session.id == found)


async def latest_session(workspace: RemoteWorkspace) -> Session:
    """Return the session that was used last; raises `NothingToContinue`."""
    sessions = await workspace.sessions.list()
    if not sessions:
        raise NothingToContinue
    return sessions[0]


def find_run(text: str, runs: Iterable[RunView]) -> RunId | None:
    """Return the run that *text* names, by its id or its submitter's run id; None if none matches."""
    names: dict[str, RunId] = {
        name: run.id for run in runs for name in (run.id, run.run_id) if name
    }
    found = match_id(text, names)
    return None if found is None else names[found]


def find_model(text: str, providers: Mapping[str, ProviderConfig]) -> SelectedModel:
    """Return the model that *text* names, as `provider/model` or `model`; raises `ModelUnknown`."""
    for name, provider in providers.items():
        if text.startswith(f"{name}/") and _may_have(provider, text[len(name) + 1 :]):
            return SelectedModel(provider=name, model=text[len(name) + 1 :])
    owners = [
        name
        for name, provider in providers.items()
        if any(model.id == text for model in provider.models)
    ]
    if len(owners) == 1:
        return SelectedModel(provider=owners[0], model=text)
    if owners:
        raise ModelUnknown(
            f"{len(owners)} providers have {text!r}; write {' or '.join(f'{name}/{text}' for name in owners)}"
        )
    known = [f"{name}/{model.id}" for name, each in providers.items() for model in each.models]
    more = ", …" if len(known) > _LISTED else ""
    raise ModelUnknown(f"{text!r}; choose one of: {', '.join(known[:_LISTED])}{more}")


def _may_have(provider: ProviderConfig, model: str) -> bool:
    """Whether a provider lists a model, or discovers its models only later."""
    return bool(provider.discover_models) or any(each.id == model for each in provider.models)
