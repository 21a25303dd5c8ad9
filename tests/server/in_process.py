"""The application in this process: a backend in memory, and requests without sockets."""

import posixpath
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import quote, urlencode

import orjson
import trio
from attrs import define, field

from crush_trio.backend.backend import open_backend
from crush_trio.backend.open import open_hosted_workspace
from crush_trio.backend.settings import WorkspaceSettings
from crush_trio.clock import TrioClock
from crush_trio.server.server import Server
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.server.config import no_commands, open_fixed_config
from crush_trio.testing.server.server import WrittenTurns

CLIENT = "00000000-0000-4000-8000-000000000001"


@asynccontextmanager
async def open_site():
    """Open a backend that touches no disk and no thread, and runs on Trio's clock."""
    clock = TrioClock()

    @asynccontextmanager
    async def in_memory(_settings, _data_dir):
        await trio.lowlevel.checkpoint()
        yield MemoryStore()

    async def resolve(path):
        await trio.lowlevel.checkpoint()
        return posixpath.normpath(posixpath.join("/", path))

    workspaces = WorkspaceSettings(
        make_turn=WrittenTurns(),
        open_config=open_fixed_config,
        opens=no_commands,
        open_store=in_memory,
        clock=clock,
    )
    async with open_backend(
        partial(open_hosted_workspace, settings=workspaces),
        version="0",
        resolve=resolve,
        clock=clock,
    ) as backend:
        yield Server(backend)


@define
class Answer:
    """What came back. Of a stream, the head and whatever came with it."""

    status: int = 0
    headers: dict[str, str] = field(factory=dict)
    body: bytes = b""

    def json(self):
        return orjson.loads(self.body)

    @property
    def media(self):
        return self.headers.get("content-type", "")


async def call(app, method, path, body=None, query=None):
    """Send one request and return its answer; a stream is hung up on when it has begun.

    *path* is not yet quoted. *body* is bytes, or a value to write as JSON.
    """
    data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
    text = path.encode("utf-8", "surrogateescape")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": text.decode("utf-8", "replace"),
        "raw_path": quote(text).encode(),
        "query_string": urlencode(query or {}).encode(),
        "root_path": "",
        "headers": [(b"host", b"local"), (b"content-length", str(len(data)).encode())],
        "client": None,
        "server": None,
        "state": {},
        "extensions": {},
    }
    answer, left = Answer(), trio.Event()
    pending = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive():
        await trio.lowlevel.checkpoint()
        if pending:
            return pending.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {
                name.decode().lower(): value.decode() for name, value in message["headers"]
            }
            if answer.media.startswith("text/event-stream"):
                left.set()
        elif message["type"] == "http.response.body":
            answer.body += message.get("body", b"")

    await app(scope, receive, send)
    return answer
