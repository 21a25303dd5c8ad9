"""`Peers`: requests to the other nodes of the cluster."""

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from attrs import define, field

from crush_trio.backend.cluster.node import Node
from crush_trio.net.address import Origin, TcpAddress, parse_server_url
from crush_trio.net.client import Request, Response, Transport
from crush_trio.net.dial import Dial, ViaProxy
from crush_trio.net.errors import NetworkError
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.cluster.conveyed import CALLER, NODE, headers_of
from crush_trio.server.cluster.errors import AnotherAnswered
from crush_trio.server.guard import FORWARDED, Caller
from crush_trio.server.routing.call import Reply
from crush_trio.store.errors import StoreUnavailable
from crush_trio.store.shared import NodeCard

CONNECT_SECONDS: Final = 2.0
"""Seconds in which a node has to accept a connection."""

ANSWER_SECONDS: Final = 5.0
"""Seconds in which a node has to answer what all nodes are asked."""

SILENT_SECONDS: Final = 10
"""Seconds after which a connection to a node whose machine does not acknowledge anything counts as broken.
Without it a request, or a stream that is idle, would wait for a quarter of an hour for a network that is cut."""

ANSWER_MOST: Final = 64 * 1024 * 1024
"""Bytes that such an answer may have."""

_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": SILENT_SECONDS // 2,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": SILENT_SECONDS // 2,
    "TCP_USER_TIMEOUT": SILENT_SECONDS * 1000,
}

_NOT_PASSED_ON: Final = frozenset(
    {
        *(b"host", b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"expect"),
        *(b"content-length", b"transfer-encoding", b"accept-encoding"),
        *(b"authorization", b"cookie", b"origin", FORWARDED, CALLER, NODE),
    }
)
"""Headers that concern this connection, or that this node has checked."""

_NOT_PASSED_BACK: Final = frozenset(
    {
        *("connection", "keep-alive", "transfer-encoding", "date", "server", "trailer", "upgrade"),
        *("content-length", NODE.decode()),
    }
)


@define(eq=False)
class Peers:
    """The other nodes, as this node asks them."""

    node: Node
    _client: Transport = field(repr=False)
    _token: str = field(repr=False)

    def request(
        self,
        card: NodeCard,
        caller: Caller,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Request:
        """Return a request to the node of *card* on behalf of *caller*."""
        told = headers_of(self.node.card.id, caller, card.boot)
        own = {"authorization": f"Bearer {self._token}", **told}
        return Request(
            method=method,
            origin=origin_of_node(card),
            target=target,
            headers={**(headers or {}), **own},
            body=body,
            connect_within=CONNECT_SECONDS,
        )

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[Response]:
        """Send *request*, and have its response for as long as the block lasts.

        Raises a `NetworkError`: `AnotherAnswered` if the response is not that of the node that is asked.
        """
        name = NODE.decode()
        async with self._client.open(request) as response:
            if response.headers.get(name) != request.headers[name]:
                raise AnotherAnswered(f"{request.origin.authority}, status {response.status}")
            yield response

    async def ask(self, request: Request) -> Reply:
        """Send *request* and return the whole answer, to be sent as ours. Raises a `NetworkError`."""
        async with self.open(request) as response:
            body = await response.read(ANSWER_MOST)
            return Reply(body, response.status, passed_back(response.headers))

    async def ask_all(
        self, caller: Caller, method: str, target: str, *, within: float = ANSWER_SECONDS
    ) -> dict[str, bytes]:
        """Ask every other node, and return the bodies of the good answers, by the ids of the nodes.

        A node that does not answer in time is left out: its workspaces cannot be reached either.
        """
        try:
            rows = await self.node.peers()
        except StoreUnavailable:
            return {}  # noqa: ASYNC910 - the store has been asked
        found: dict[str, bytes] = {}

        async def ask_one(card: NodeCard) -> None:
            with trio.move_on_after(within):
                try:
                    reply = await self.ask(self.request(card, caller, method, target))
                except NetworkError:
                    return  # noqa: ASYNC910 - the node has been asked
                if reply.status < 300:
                    found[card.id] = reply.body

        async with open_hidden_nursery() as nursery:
            for row in rows:
                nursery.start_soon(ask_one, row.card)
        return {row.card.id: found[row.card.id] for row in rows if row.card.id in found}


def attentive(dial: Dial) -> Dial:
    """Return what opens connections like *dial* that notice when the network to the other end is cut."""

    async def opened(origin: Origin) -> trio.abc.Stream | ViaProxy:
        stream = await dial(origin)
        inner = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        if isinstance(inner, trio.SocketStream):
            inner.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if (option := getattr(socket, name, None)) is not None:  # not on every system
                    inner.setsockopt(socket.IPPROTO_TCP, option, value)
        return stream

    return opened


def origin_of_node(card: NodeCard) -> Origin:
    """Return the origin of a node that has an address."""
    address = parse_server_url(card.address)
    assert isinstance(address, TcpAddress), "nodes advertise hosts and ports"
    return Origin(address.host, address.port, secure=address.secure)


def passed_on(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request that the owner needs."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = bytes(raw).lower()
        if name not in _NOT_PASSED_ON and not name.startswith(b"sec-"):
            key, text = name.decode("latin-1"), bytes(value).decode("latin-1")
            found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def passed_back(headers: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of an owner's answer that the client gets; the length is made anew."""
    return tuple(
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if name not in _NOT_PASSED_BACK
    )
