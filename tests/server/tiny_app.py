"""A small application with the kinds of routes that transports get wrong, and a server around it."""

from contextlib import asynccontextmanager
from functools import partial

import trio
from attrs import define, field
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn_serve
from quart import Response, request
from quart_trio import QuartTrio

from crush_trio.limits import DEFAULTS
from crush_trio.server import StreamNeedsHttp1, TcpAddress, begin_stream, safe_app, serve

HERE = TcpAddress("127.0.0.1", 0)
FRAME = b"data: " + b"x" * 1000 + b"\n\n"
LAST = b"data: last\n\n"


@define(eq=False)
class TinyApp:
    """The application, and what a test may want to know of its streams."""

    quart: QuartTrio = field(factory=lambda: QuartTrio(__name__))
    begin: bool = True
    produced: int = 0
    opened: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)
    draining: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self):
        self.quart.config["RESPONSE_TIMEOUT"] = None
        self.quart.get("/hello")(self.hello)
        self.quart.get("/one-large")(self.one_large)
        self.quart.get("/flood")(self.flood)
        self.quart.get("/quiet")(self.quiet)
        self.quart.get("/regret")(self.regret)
        self.quart.post("/too-large")(self.too_large)
        self.quart.get("/crash")(self.crash)
        self.quart.errorhandler(StreamNeedsHttp1)(self.refuse)

    async def hello(self):
        return "hello"

    async def one_large(self):
        """Answer with more than the buffers hold, in a single piece."""
        return b"x" * 8_000_000

    async def flood(self):
        """Answer with frames as fast as they are taken, for ever or `?frames=` times."""
        return self.stream(self._frames(int(request.args.get("frames", 0))))

    async def quiet(self):
        """Answer with one frame, then nothing until the server drains, then the last frame."""
        return self.stream(self._quiet_frames())

    async def regret(self):
        """Begin a stream, and answer something else after all."""
        begin_stream(request.scope)
        return "no stream here", 404

    async def too_large(self):
        return "the body is too large", 413

    async def crash(self):
        async def fail():
            raise RuntimeError("a task of the application crashed")

        self.quart.nursery.start_soon(fail)
        return "crashing"

    async def has_produced(self, frames):
        """Return when the flood has come to *frames* frames."""
        while self.produced < frames:  # noqa: ASYNC110 - a counter wakes nobody
            await trio.sleep(0.01)

    async def refuse(self, error):
        return str(error), 505

    def stream(self, frames):
        if self.begin:
            begin_stream(request.scope)
        return Response(frames, content_type="text/event-stream")

    async def _frames(self, frames):
        self.opened.set()
        try:
            while not frames or self.produced < frames:
                self.produced += 1
                yield FRAME
        finally:
            self.ended.set()

    async def _quiet_frames(self):
        self.opened.set()
        try:
            yield FRAME
            await self.draining.wait()
            yield LAST
        finally:
            self.ended.set()


async def live(receive, send):
    """Be the lifespan of an application that has nothing to do in it."""
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


@define(eq=False)
class Serving:
    """A server under test: where it is, how to stop it, and when it has stopped."""

    address: object
    stop: trio.Event
    stopped: trio.Event
    cancel: object


@asynccontextmanager
async def open_own_server(app, addresses=(HERE,), **options):
    """Serve *app* with our server and stop it when the block ends."""
    stop = trio.Event()
    run = partial(serve, app, addresses, shutdown=stop.wait, **options)
    async with _in_nursery(run, stop, lambda bound: bound[0]) as serving:
        yield serving


@asynccontextmanager
async def open_safe_hypercorn(app, *, grace=3.0, keep_alive=120.0, sizes=DEFAULTS):
    """Serve *app* with Hypercorn, made safe."""
    timeouts = {"graceful_timeout": grace, "keep_alive_timeout": keep_alive}
    async with open_stock_server(safe_app(app, sizes), **timeouts) as serving:
        yield serving


@asynccontextmanager
async def open_stock_server(app, **settings):
    """Serve *app* as Hypercorn ships it: the negative control."""
    stop = trio.Event()
    config = Config.from_mapping(bind="127.0.0.1:0", errorlog=None, **settings)
    run = partial(hypercorn_serve, app, config, shutdown_trigger=stop.wait)
    async with _in_nursery(run, stop, _address_of_stock) as serving:
        yield serving


def _address_of_stock(binds):
    return TcpAddress("127.0.0.1", int(binds[0].rpartition(":")[2]))


@asynccontextmanager
async def _in_nursery(run, stop, address_of):
    stopped = trio.Event()

    async def until_stopped(task_status):
        try:
            await run(task_status=task_status)
        finally:
            stopped.set()

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(until_stopped)
        yield Serving(address_of(bound), stop, stopped, nursery.cancel_scope.cancel)
        stop.set()
