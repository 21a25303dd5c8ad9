"""The client of a server: `open_client`, and the routes that belong to no workspace."""

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from attrs import define, field

from crush_trio.audit.record import AuditRecord
from crush_trio.client.http import Link, open_link, segment
from crush_trio.client.workspace import PATIENCE, RemoteWorkspace, open_remote_workspace
from crush_trio.clock import IdSource, RandomIds
from crush_trio.errors import DecodeError
from crush_trio.net.address import (
    Address,
    TcpAddress,
    default_address,
    named_server,
    parse_server_url,
)
from crush_trio.net.client import Transport
from crush_trio.net.dial import Dial
from crush_trio.wire.answers import Health, Version
from crush_trio.wire.codec import decode
from crush_trio.wire.config import WorkspaceView
from crush_trio.wire.fields import JsonObject
from crush_trio.wire.ids import ClientId
from crush_trio.wire.requests import ControlCommand, ControlRequest, WorkspaceRequest
from crush_trio.wire.views import ClusterView, Roster, SearchHit, UsageDay

TOKEN_VARIABLE: Final = "CRUSH_TRIO_TOKEN"
"""The environment variable that holds the token, for servers and their clients alike."""

CA_VARIABLE: Final = "CRUSH_TRIO_CA"
"""The environment variable that names the file with the certificates to trust, in place of all others."""

INSECURE_VARIABLE: Final = "CRUSH_TRIO_INSECURE"
"""The environment variable that allows, if it is 1, to send a token to another machine without TLS."""


@define(eq=False)
class Client:
    """One client of one server. Made by `open_client` only."""

    id: ClientId
    """The client id, by which the server knows our claims."""
    _link: Link = field(repr=False)
    _ids: IdSource = field(repr=False)

    @property
    def address(self) -> Address:
        """The address of the server."""
        return self._link.address

    async def health(self) -> Health:
        """Return what the server lacks, usually nothing; raises `ServerUnreachable` without one."""
        data = await self._link.tell("GET", "/v1/health")
        try:
            return decode(data, Health) if data else Health()
        except DecodeError:  # a server of another kind
            return Health()

    async def ready(self) -> None:
        """Return if the server should get new clients; raises `ApiError` with its reason otherwise."""
        await self._link.tell("GET", "/v1/ready")

    async def version(self) -> Version:
        """Return the version of the server."""
        return await self._link.ask("GET", "/v1/version", Version)

    async def server_config(self) -> JsonObject:
        """Return the server's own configuration, which is empty."""
        return await self._link.ask("GET", "/v1/config", dict[str, Any])

    async def openapi(self) -> JsonObject:
        """Return the interface of the server as an OpenAPI document."""
        return await self._link.ask("GET", "/v1/openapi.json", dict[str, Any])

    async def config_schema(self) -> JsonObject:
        """Return the JSON schema of configuration files."""
        return await self._link.ask("GET", "/v1/crush.schema.json", dict[str, Any])

    async def event_schema(self) -> JsonObject:
        """Return the JSON schema of the events of native streams."""
        return await self._link.ask("GET", "/v1/events.schema.json", dict[str, Any])

    async def metrics(self) -> str:
        """Return the metrics of the server, in the format of Prometheus."""
        return (await self._link.tell("GET", "/v1/metrics")).decode()

    async def cluster(self) -> ClusterView:
        """Return the servers of the database and the workspaces that each runs; without one, this server."""
        return await self._link.ask("GET", "/v1/cluster", ClusterView)

    async def audit(
        self, *, after: int | None = None, limit: int | None = None
    ) -> tuple[AuditRecord, ...]:
        """Return records of the audit: the first *limit* after the record *after*, or the newest.

        Needs a token with the right `admin`, if the server has tokens.
        """
        given = {"after": after, "limit": limit}
        query = {name: str(value) for name, value in given.items() if value is not None}
        return await self._link.ask("GET", "/v1/audit", tuple[AuditRecord, ...], query=query)

    async def usage(self, days: int = 30) -> tuple[UsageDay, ...]:
        """Return what each of the last days used in the open workspaces; at most 366."""
        query = {"days": str(days)}
        return await self._link.ask("GET", "/v1/usage", tuple[UsageDay, ...], query=query)

    async def workspaces(self) -> tuple[WorkspaceView, ...]:
        """Return the workspaces that the server hosts now."""
        return await self._link.ask("GET", "/v1/workspaces", tuple[WorkspaceView, ...])

    async def roster(self) -> Roster:
        """Return all sessions of all hosted workspaces, and what each of them does or needs."""
        return await self._link.ask("GET", "/v1/roster", Roster)

    async def search(self, text: str, *, limit: int | None = None) -> tuple[SearchHit, ...]:
        """Return where *text* is in the titles and messages of hosted workspaces, the newest first."""
        query = {"q": text} if limit is None else {"q": text, "limit": str(limit)}
        return await self._link.ask("GET", "/v1/search", tuple[SearchHit, ...], query=query)

    async def shutdown(self, *, if_idle: bool = False) -> None:
        """Ask the server to shut down; raises `ServerNotIdle` if it hosts a workspace, ours included.

        *if_idle* matters only for a server of the Go program, which distinguishes the two.
        """
        command = ControlCommand.SHUTDOWN_IF_IDLE if if_idle else ControlCommand.SHUTDOWN
        await self._link.tell("POST", "/v1/control", body=ControlRequest(command=command.value))

    async def retire(self) -> None:
        """Release every claim of this client at once; it can open no workspace afterwards."""
        await self._link.tell("DELETE", f"/v1/clients/{segment(self.id)}")

    def open_workspace(
        self,
        path: str | os.PathLike[str],
        *,
        interactive: bool = False,
        init: bool = True,
        patience: float = PATIENCE,
        yolo: bool = False,
        debug: bool = False,
        data_dir: str = "",
        env: Mapping[str, str] | None = None,
        channels: Iterable[str] = (),
        create: bool = False,
    ) -> AbstractAsyncContextManager[RemoteWorkspace]:
        """Open a directory of the server's machine as a workspace, or join it if it is open.

        A relative path is relative to this program's working directory. While the block lasts, one event
        stream is open, and resumed if it breaks; the server may be unreachable for *patience* seconds.
        Leaving the block releases the claim: if no other client has one, the workspace closes, and its
        runs are cancelled except those that were submitted to continue.

        The directory has to exist, unless *create* says to make it; `PathInvalid` is raised otherwise.

        *interactive* says whether a user can answer asks. *init* tells the server so (`agent/init`). The
        rest counts for the client that opens the workspace first: *yolo* allows everything without asking,
        *env* is the environment of its tools.
        """
        request = WorkspaceRequest(
            path=str(Path(path).absolute()),
            client_id=self.id,
            yolo=yolo,
            debug=debug,
            data_dir=data_dir,
            env=tuple(f"{name}={value}" for name, value in (env or {}).items()),
            channels=tuple(channels),
            create=create,
        )
        return open_remote_workspace(
            self._link, request, self._ids, interactive=interactive, init=init, patience=patience
        )


@asynccontextmanager
async def open_client(
    address: str | Address | None = None,
    *,
    token: str | None = None,
    client_id: ClientId | None = None,
    environ: Mapping[str, str] = os.environ,
    ca: str | os.PathLike[str] | None = None,
    insecure: bool | None = None,
    ids: IdSource | None = None,
    transport: Transport | None = None,
    dial: Dial | None = None,
) -> AsyncIterator[Client]:
    """Open a client of the server at *address*; leaving the block closes its connections.

    An address is `unix:///path`, `tcp://host:port` or `https://host[:port]`, by default what
    `CRUSH_TRIO_HOST` in *environ* names, else the socket in the user's runtime directory, where servers
    listen by default. The *token*, if the server wants one, is by
    default `CRUSH_TRIO_TOKEN` in *environ*. *client_id* is a UUID, by default a new one; a client that
    returns with the same id has its old claims. *ids* makes the ids of runs, *transport* replaces the
    sockets, *dial* only how they are connected.

    For `https://`, *ca* is a file with the certificates to trust, by default `CRUSH_TRIO_CA` or
    `SSL_CERT_FILE` in *environ*, else the system's. Without TLS a token is sent to this machine only:
    `TokenExposed` is raised for others, unless *insecure*, by default `CRUSH_TRIO_INSECURE=1`.

    Nothing is sent yet. The first request to a server that is not there raises `ServerUnreachable`.
    """
    home = default_address(environ, os.getuid())
    place = named_server(environ) or home if address is None else _address(address)
    names = RandomIds() if ids is None else ids
    own = ClientId(RandomIds().new()) if client_id is None else client_id
    async with open_link(
        place,
        advice=_advice(place, home),
        token=(token or environ.get(TOKEN_VARIABLE) or "").strip() or None,  # as read from a file
        client_id=own,
        insecure=environ.get(INSECURE_VARIABLE) == "1" if insecure is None else insecure,
        certificates=_certificates(ca, environ),
        transport=transport,
        dial=dial,
    ) as link:
        yield Client(own, link, names)


def _address(address: str | Address) -> Address:
    return parse_server_url(address) if isinstance(address, str) else address


def _certificates(
    ca: str | os.PathLike[str] | None, environ: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the variables that name the certificates to trust; *ca* replaces all others."""
    file = environ.get(CA_VARIABLE) if ca is None else os.fspath(ca)
    if file:
        return {"SSL_CERT_FILE": file, "SSL_CERT_DIR": os.devnull}
    return {name: environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in environ}


def _advice(place: Address, home: Address) -> str:
    if isinstance(place, TcpAddress) and place.secure:
        return "check the address, and the certificate: --ca names the file of a private authority"
    command = "crush-trio serve" if place == home else f"crush-trio serve --host {place}"
    return f"start one with: {command}"
