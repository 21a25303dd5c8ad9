"""MCP servers that are not there, and a workspace that is configured with them. No threads, no processes."""

from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, evolve, field
from trio.lowlevel import ParkingLot, checkpoint

from crush_trio.clock import TrioClock
from crush_trio.config.sources import Places
from crush_trio.integrations.base import Surroundings
from crush_trio.integrations.mcp.servers import open_mcp_servers
from crush_trio.integrations.mcp.session import ListKind, McpAnswer, McpFailure, OfferedTool
from crush_trio.testing.server.config import open_fixed_config
from crush_trio.wire.config import McpServerConfig
from crush_trio.wire.ids import WorkspaceId
from crush_trio.wire.integrations import McpPrompt, McpResource

PLACE = Path("/w")


@define(eq=False)
class Desk:
    """The other side of one server: what it offers, how it behaves, and what was done with it."""

    name: str
    tools: list = field(factory=lambda: [OfferedTool(name="add"), OfferedTool(name="sub")])
    resources: list = field(factory=list)
    instructions: str = "Count with it."
    refusals: list = field(factory=list)
    """What the next connections fail with."""
    silent: bool = False
    """Whether it never says hello."""
    deaf: bool = False
    """Whether it answers no ping and lists no tools, until the next connection."""
    slow_calls: bool = False
    farewell: float = 0
    """How long it takes to go."""
    open: int = 0
    log: list = field(factory=list)
    _news: list = field(factory=list)
    _hung_up: bool = False
    _lot: ParkingLot = field(factory=ParkingLot)

    @asynccontextmanager
    async def connect(self, target):
        await checkpoint()
        assert self.open == 0, "two at once"
        self.open += 1
        self.log.append("open")
        session = Session(self, target)
        self._hung_up = self.deaf = False
        self._news.clear()
        try:
            if self.silent:
                await trio.sleep_forever()
            if self.refusals:
                raise self.refusals.pop(0)
            await checkpoint()
            yield session
        finally:
            session.closed = True
            self._lot.unpark_all()
            with trio.CancelScope(shield=True):
                await trio.sleep(self.farewell)
            self.log.append("close")
            self.open -= 1

    def change(self, listing=ListKind.TOOLS):
        """Say that a list is another one."""
        self._news.append(listing)
        self._lot.unpark_all()

    def hang_up(self):
        self._hung_up = True
        self._lot.unpark_all()

    async def news(self):
        await checkpoint()
        while not self._news:
            if self._hung_up:
                raise McpFailure("it has hung up")
            await self._lot.park()
        return self._news.pop(0)

    async def wait_for_ever(self, session):
        while not session.closed:
            await self._lot.park()
        raise McpFailure("the connection is closed")


@define(eq=False)
class Session:
    """Satisfies `McpSession`."""

    desk: Desk
    target: object
    closed: bool = False

    @property
    def instructions(self):
        return self.desk.instructions

    async def _ask(self):
        await checkpoint()
        if self.closed or self.desk._hung_up:
            raise McpFailure("the connection is closed")

    async def ping(self):
        await self._ask()
        if self.desk.deaf:
            await self.desk.wait_for_ever(self)

    async def tools(self):
        await self._ask()
        if self.desk.deaf:
            await self.desk.wait_for_ever(self)
        return tuple(self.desk.tools)

    async def prompts(self):
        await self._ask()
        name = self.desk.name
        return (McpPrompt(id=f"{name}:hi", prompt_id="hi", client_id=name),)

    async def resources(self):
        await self._ask()
        return tuple(self.desk.resources)

    async def call(self, tool, arguments, _context=None):
        await self._ask()
        self.desk.log.append(("call", tool, arguments))
        if self.desk.slow_calls:
            await self.desk.wait_for_ever(self)
        return McpAnswer(text=f"{tool} did it")

    async def prompt(self, prompt, arguments):
        await self._ask()
        return f"{prompt} {dict(arguments)}"

    async def read(self, uri):
        await self._ask()
        if uri == "none":
            raise McpFailure("there is no token=abcdefghij here")
        return (McpResource(uri=uri, text="hello"),)

    async def changed(self):
        return await self.desk.news()


@define(eq=False)
class Desks:
    """Satisfies `Connector`, for servers that come into being when they are asked for."""

    desks: dict = field(factory=dict)
    targets: list = field(factory=list)

    def __getitem__(self, name):
        return self.desks.setdefault(name, Desk(name))

    async def load(self):
        await checkpoint()

    def open(self, target):
        self.targets.append(target)
        return self[target.name].connect(target)


@define(eq=False)
class Told:
    """What the clients of a workspace are told: `name state` and `name what`, in order."""

    facts: list = field(factory=list)
    _more: ParkingLot = field(factory=ParkingLot)

    def publish(self, fact):
        self.facts.append(fact.entity)
        self._more.unpark_all()

    async def until(self, *words):
        """Wait until the last they were told are *words*."""
        while tuple(self.words()[-len(words) :]) != words:
            await self._more.park()

    def words(self, name=None):
        of = [fact for fact in self.facts if name in {None, fact.name}]
        return [
            fact.state.value if fact.type == "state_changed" else fact.type.value for fact in of
        ]


@define(eq=False)
class Configured:
    """A workspace that is configured with MCP servers."""

    live: object
    desks: Desks
    told: Told
    servers: object = None

    def configure(self, **entries):
        """Configure other servers, at once."""
        current = self.live.current
        config = evolve(current.config, mcp=entries)
        self.live.current = evolve(current, revision=current.revision + 1, config=config)
        self.live._newer.unpark_all()

    def reload(self):
        """Read the same again."""
        self.configure(**self.live.current.config.mcp)

    def state(self, name):
        return self.servers.states()[name].state.value

    def tool_names(self):
        return [tool.name for tool in self.servers.tools()]


def command(**more):
    return McpServerConfig(command="desk", **more)


@asynccontextmanager
async def open_configured(desks=None, **entries):
    """Open the MCP servers of a workspace that is configured with *entries*."""
    places = Places(directory=PLACE, home=Path("/home/u"), environment={"PATH": "/bin"})
    async with open_fixed_config(places) as live:
        place = Configured(live, Desks() if desks is None else desks, Told())
        place.configure(**entries)
        surroundings = Surroundings(
            workspace_id=WorkspaceId("w"),
            directory=PLACE,
            live=live,
            publish=place.told.publish,
            clock=TrioClock(),
        )
        async with open_mcp_servers(surroundings, place.desks) as place.servers:
            yield place
