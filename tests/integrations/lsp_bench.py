"""Language servers in memory: connections without processes, and a host without a workspace."""

from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import trio
import trio.testing
from attrs import define, field

from crush_trio.clock import TrioClock
from crush_trio.integrations.lsp.connection import FrameDecoder, frame_message
from crush_trio.integrations.lsp.known_servers import ServerSpec
from crush_trio.integrations.lsp.server import LanguageServer
from crush_trio.tools.shell.process import Command
from crush_trio.wire.config import LspServerConfig
from tests.integrations.lsp_program import Toy


@define(eq=False)
class Far:
    """The other end of a connection: a test reads and writes messages there."""

    stream: trio.StapledStream
    _frames: FrameDecoder = field(factory=FrameDecoder)
    _unread: list = field(factory=list)

    async def next(self):
        """Return the next message; None at the end."""
        while not self._unread:
            data = await self.stream.receive_some()
            if not data:
                return None
            self._unread += map(orjson.loads, self._frames.feed(data))
        await trio.lowlevel.checkpoint()
        return self._unread.pop(0)

    async def say(self, **message):
        await self.stream.send_all(frame_message(orjson.dumps({"jsonrpc": "2.0", **message})))

    async def answer(self, request, result):
        await self.say(id=request["id"], result=result)


def ends():
    """Return a stream and the far end of it."""
    near, far = trio.testing.memory_stream_pair()
    return near, Far(far)


@define(eq=False)
class News:
    """Wakes whoever waits for something to be so, whenever something has happened."""

    _waiting: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    def tell(self):
        self._waiting.unpark_all()

    async def until(self, condition):
        with trio.fail_after(100):
            while not condition():
                await self._waiting.park()


async def serve_toy(toy, far):
    """Let a toy server answer until somebody leaves."""
    while not toy.ended and (message := await far.next()) is not None:
        for each in toy.handle(message):
            await far.say(**{key: value for key, value in each.items() if key != "jsonrpc"})
        toy.news.tell()
    await far.stream.aclose()


@define(eq=False)
class Launched:
    transport: object
    words: str = ""

    def last_error(self):
        return self.words


@define(eq=False)
class Programs:
    """Starts toy servers in memory; a test may replace what a start does."""

    toys: list = field(factory=list)
    make: object = Toy
    serve: object = serve_toy
    running: int = 0
    news: News = field(factory=News)
    words: str = ""

    @property
    def toy(self):
        """The last one that was started."""
        return self.toys[-1]

    @asynccontextmanager
    async def open(self, command):
        near, far = ends()
        self.toys.append(self.make(*command.argv[1:]))
        self.toy.news = self.news
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.serve, self.toy, far)
            self.running += 1
            try:
                yield Launched(near, self.words)
            finally:
                self.running -= 1
                self.news.tell()
            nursery.cancel_scope.cancel()


@define(eq=False)
class FakeHost:
    """Satisfies `Host`, with programs in memory and nothing to look up."""

    tasks: trio.Nursery
    programs: Programs = field(factory=Programs)
    directory: Path = Path("/w")
    clock: TrioClock = field(factory=TrioClock)
    told: list = field(factory=list)
    noted: list = field(factory=list)
    fails: Exception | None = None
    files: int = 0

    @property
    def open_program(self):
        return self.programs.open

    async def prepare(self, spec):
        await trio.lowlevel.checkpoint()
        if self.fails is not None:
            raise self.fails
        argv = (spec.config.command, *spec.config.args)
        return Command(argv=argv, working_dir=self.directory, env={}), spec.config

    async def count_files(self, spec):
        await trio.lowlevel.checkpoint()
        return self.files

    def publish(self, event):
        self.told.append(event)
        self.programs.news.tell()

    def redacted(self, text):
        return text.replace("hush", "[redacted]")

    def log_message(self, name, text):
        self.noted.append((name, text))

    def states(self):
        """Return the states that clients were told of, in order."""
        return [each.state.name for each in self.told if each.type.value == "state_changed"]


def spec(name="toy", **config):
    return ServerSpec(name=name, config=LspServerConfig(command="toy", **config))


@asynccontextmanager
async def open_server(**config):
    """Open a server that is not started, and its host; it is stopped in the end."""
    async with trio.open_nursery() as tasks:
        host = FakeHost(tasks)
        server = LanguageServer(spec(**config), host)
        yield server, host
        server.close()
