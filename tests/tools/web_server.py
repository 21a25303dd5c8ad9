"""A web server on a real socket that answers as the test wrote, byte by byte if need be."""

import gzip
from contextlib import asynccontextmanager, suppress

import h11
import trio
from attrs import define, field


def page(body=b"", *, status=200, content_type="text/html", **headers):
    """Return an answer with everything in it that an answer should have."""
    data = body if isinstance(body, bytes) else body.encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return [status, {"content-type": content_type, "content-length": str(len(data)), **named}, data]


def redirect(target):
    return page(status=302, location=target)


def zipped(body):
    return page(gzip.compress(body), content_encoding="gzip")


@define(eq=False)
class WebServer:
    """What is where, and what was asked. A page may also be a function that gets the stream."""

    pages: dict = field(factory=dict)
    port: int = 0
    tls: object = None
    requests: list = field(factory=list)
    """Path and headers of each request, in order."""
    gone: trio.Event = field(factory=trio.Event)
    """Set when a client hung up in the middle of an answer."""

    def url(self, path):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}{path}"

    async def serve(self, stream):
        connection = h11.Connection(h11.SERVER)
        if self.tls is not None:
            stream = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
        async with stream:
            try:
                request = await self._request(connection, stream)
            except (h11.RemoteProtocolError, trio.BrokenResourceError):
                return  # a client that speaks something else, or does not trust us
            if request is None:
                return
            path = request.target.decode()
            self.requests.append((path, dict(request.headers.raw_items())))
            answer = self.pages[path]
            if callable(answer):
                await self._by_hand(answer, stream)
                return
            with suppress(trio.BrokenResourceError):  # a client may have seen enough
                await stream.send_all(_bytes(*answer))

    async def _request(self, connection, stream):
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            connection.receive_data(await stream.receive_some())

    async def _by_hand(self, answer, stream):
        try:
            await answer(stream)
            await stream.receive_some()  # until the client hangs up
            self.gone.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.gone.set()


def _bytes(status, headers, body):
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body


async def _serve(server, *, task_status):
    await trio.serve_tcp(server.serve, 0, host="127.0.0.1", task_status=task_status)


@asynccontextmanager
async def open_web_server(*, tls=None, **pages):
    """Serve pages on the loopback interface; keys are paths without the slash."""
    server = WebServer({f"/{name}": answer for name, answer in pages.items()}, tls=tls)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(_serve, server)
        server.port = listeners[0].socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()
