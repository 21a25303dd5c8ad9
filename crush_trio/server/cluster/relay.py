"""`Relay`: a request that is passed on to another node, and the answer on its way back."""

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

from attrs import define, field
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable

from crush_trio.backend.cluster.node import NodeMeters, Watch
from crush_trio.net.client import SAFE_METHODS, Request, Response
from crush_trio.net.errors import ConnectFailed, NetworkError
from crush_trio.nursery import open_hidden_nursery
from crush_trio.server.cluster.errors import AnotherAnswered, ForwardLost
from crush_trio.server.cluster.peers import Peers, passed_back
from crush_trio.server.cluster.pump import Pump
from crush_trio.server.http.outgoing import SendNow, begin_stream
from crush_trio.server.routing.call import Call
from crush_trio.server.routing.route import EVENTS

T = TypeVar("T")


def _always() -> bool:
    """Return True: a caller whose right cannot be withdrawn."""
    return True


class _NotOwnerError(Exception):
    """The other node has answered that it does not run the workspace."""


@define(eq=False)
class Relay:
    """A request that is passed on, and the answer on its way back."""

    _call: Call
    _peers: Peers
    _pump: Pump | None
    _request: Request
    _receive: ASGIReceiveCallable
    _send: ASGISendCallable
    _not_owner: int
    """The status by which the other node says that it does not run the workspace."""
    _begun: bool = field(default=False, init=False)
    """Whether the client has a part of the answer."""

    async def answered(self, watch: Watch) -> bool:
        """Have the other node answer; return False if it did not and the request may be sent again.

        If the workspace moves while the answer is being sent, the answer is cut, and the client asks
        again. A request that may have been carried out is not repeated, unless it only stops runs: that
        raises `ForwardLost`.
        """
        try:
            return bool(await unless_moved(watch, self._run)) or not self._may_repeat(None)
        except NetworkError as error:
            self._meters.forwarded["failed"] += 1
            return not self._may_repeat(error)  # noqa: ASYNC910 - the node has been asked
        except _NotOwnerError:
            return False  # noqa: ASYNC910 - the node has been asked

    async def _run(self) -> bool:
        """Send the request, and the answer to the client as it comes; ends when the client leaves."""
        async with open_hidden_nursery() as nursery:

            async def end_with_client() -> None:
                while (await self._receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(end_with_client)
            await self._relay()
            nursery.cancel_scope.cancel()
        return True

    async def _relay(self) -> None:
        valid = self._call.caller.valid or _always
        async with self._peers.open(self._request) as response:
            if response.status == self._not_owner:
                raise _NotOwnerError
            headers = list(passed_back(response.headers))
            streams = response.headers.get("content-type", "").startswith(EVENTS)
            self._meters.forwarded["stream" if streams else "answer"] += 1
            length = response.headers.get("content-length")
            send_now = begin_stream(self._call.scope) if streams else None
            if length is not None:
                headers.append((b"content-length", length.encode()))
            await self._send(
                {"type": "http.response.start", "status": response.status, "headers": headers}
            )
            self._begun = True
            with self._meters.streaming() if streams else nullcontext():
                data = await response.receive()
                while data and valid():
                    await self._send(
                        {"type": "http.response.body", "body": data, "more_body": True}
                    )
                    data = await self._next(response, send_now, valid)
            if not data:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    @property
    def _meters(self) -> NodeMeters:
        return self._peers.node.meters

    async def _next(
        self, response: Response, send_now: SendNow | None, valid: Callable[[], bool]
    ) -> bytes:
        """Return the next piece that the client does not take at once; no bytes at the end."""
        if send_now is None:
            return await response.receive()
        if response.socket is not None and self._pump is not None:
            return await self._pump.carry(response.socket, send_now, valid)
        while data := await response.receive():
            rest = data[send_now(data) :] if valid() else data
            if rest:
                return rest
        return b""  # noqa: ASYNC910 - it has received the end

    def _may_repeat(self, error: NetworkError | None) -> bool:
        """Whether the request may be sent again after *error*, or because the workspace has moved (None).

        False if the client has a part of the answer: that ends here. Raises `ForwardLost` for a request
        that may have been carried out.
        """
        if self._begun:
            return False
        if (
            isinstance(error, ConnectFailed | AnotherAnswered)
            or self._request.method in SAFE_METHODS
        ):
            return True
        if self._call.route.stops:
            return True  # what it was to stop has ended with its owner, or ends at the next
        raise ForwardLost from error


async def unless_moved(watch: Watch, work: Callable[[], Awaitable[T]]) -> T | None:
    """Do *work*, unless the workspace gets another owner meanwhile: then return None."""
    result = None
    async with open_hidden_nursery() as nursery:

        async def stop_when_moved() -> None:
            await watch.changed.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop_when_moved)
        result = await work()
        nursery.cancel_scope.cancel()
    return result
