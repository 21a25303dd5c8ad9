"""The server that a command talks to: the one that runs, or one of its own.

A server of its own lives in this process and for this command only. It listens on a socket that
nobody else knows, and ends in order with the command: its runs first.

What is configured for a directory, and where its data is, looked at from outside.

Which session, run or model somebody means by a few characters.

An id may be shortened as long as it means one thing. A model may be named with its provider or
without, as long as one provider has it.
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

from crush_trio.backend.agency import config_commands
from crush_trio.cli.exits import IdAmbiguous, ModelUnknown, NothingToContinue, NotOurs
from crush_trio.cli.options import choose_address
from crush_trio.client.client import TOKEN_VARIABLE, Client, open_client
from crush_trio.client.errors import AnswerGarbled, AnswerLost, ApiError, ServerUnreachable
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.clock import SystemClock
from crush_trio.config.load import load_config
from crush_trio.config.snapshot import LoadedConfig
from crush_trio.config.sources import Places
from crush_trio.errors import SessionNotFound
from crush_trio.net.address import PATH_LIMIT, Address, UnixAddress
from crush_trio.nursery import open_hidden_nursery
from crush_trio.providers.catalog import catalog_providers
from crush_trio.store.sqlite.database import DATABASE_NAME
from crush_trio.wire.config import ProviderConfig, SelectedModel
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import RunView
from crush_trio.wire.views import Session


def places_of(directory: Path, environ: Mapping[str, str]) -> Places:
    """Return where the configuration of a directory is looked for."""
    home = Path(environ.get("HOME") or "/")
    return Places(
        directory=directory, home=home if home.is_absolute() else Path("/"), environment=environ
    )


async def configuration_of(directory: Path, environ: Mapping[str, str]) -> LoadedConfig:
    """Return the configuration that a workspace would have; raises `ConfigInvalid`.

    Commands that stand in it are run as a workspace runs them: what they give is part of it.
    """
    return await load_config(
        places_of(directory, environ),
        catalogue=catalog_providers(),
        run_command=config_commands(SystemClock()),
    )


async def has_data(directory: Path, environ: Mapping[str, str]) -> bool:
    """Whether a directory has ever been a workspace."""
    config = await configuration_of(directory, environ)
    return await trio.Path(config.data_dir / DATABASE_NAME).exists()


SHORTEST: Final = 4
"""How many characters of an id are needed at least."""

_LISTED: Final = 8


def match_id(text: str, ids: Iterable[str]) -> str | None:
    """Return the id that *text* is, or the only one that it begins; raises `IdAmbiguous`."""
    found = set()
    for each in ids:
        if each == text:
            return each
        if len(text) >= SHORTEST and each.startswith(text):
            found.add(each)
    if len(found) > 1:
        raise IdAmbiguous(f"{text!r} is the beginning of {len(found)}; write more of it")
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
    """Return the run that *text* names, by our id or by its submitter's; None if there is none."""
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
    """Whether a provider has a model, or could: some find out later which ones there are."""
    return bool(provider.discover_models) or any(each.id == model for each in provider.models)


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
        from crush_trio.server.settings import load_token

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

    from crush_trio.server.run import run_server
    from crush_trio.server.settings import ServerSettings

    settings = ServerSettings.from_environment(environ)
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


def open_directory(
    reached: Reached,
    directory: str,
    environ: Mapping[str, str],
    *,
    interactive: bool = False,
    init: bool = True,
) -> AbstractAsyncContextManager[RemoteWorkspace]:
    """Open a directory as a workspace.

    A server of this user's is told this environment: the keys of the shell in which somebody types are
    those that are meant. It counts if nobody has the directory open yet. Other servers have their own.
    """
    env = None
    if reached.local and not reached.embedded:
        env = {name: text for name, text in environ.items() if not name.startswith(TOKEN_VARIABLE)}
    return reached.client.open_workspace(directory, interactive=interactive, init=init, env=env)
