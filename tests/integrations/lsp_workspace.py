"""A workspace with a configuration on disk, and language servers that run in memory."""

from contextlib import asynccontextmanager
from functools import partial

import orjson
import trio
from attrs import define, field

from crush_trio.clock import CountingIds, SystemClock
from crush_trio.config.live import open_live_config
from crush_trio.config.template import refuse_command
from crush_trio.integrations.base import Surroundings
from crush_trio.integrations.lsp.servers import open_language_servers
from crush_trio.store.memory.store import MemoryStore
from crush_trio.tools.base import ToolCall
from crush_trio.tools.files.changes import FileChanges
from crush_trio.tools.files.edit import WriteTool
from crush_trio.tools.files.view import ViewTool
from crush_trio.tools.workbench import History, Workbench
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from tests.integrations.lsp_bench import Programs
from tests.store.stores import session
from tests.tools.file_bench import Person

TOY = {"command": "/bin/true", "filetypes": ["toy"]}
"""A server whose program exists; what is started instead is in memory."""


@define(eq=False)
class Place:
    """One workspace and everything a test wants of it."""

    servers: object
    live: object
    programs: Programs
    bench: Workbench
    facts: list
    person: Person = field(factory=Person)
    changes: FileChanges = field(init=False)

    def __attrs_post_init__(self):
        history = History(self.bench)
        self.changes = FileChanges(self.bench, history, self.servers.changed)

    @property
    def root(self):
        return self.bench.directory

    def put(self, name, content=""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def get(self, name):
        return (self.root / name).read_bytes().decode()

    def tools(self):
        return {tool.name: tool for tool in self.servers.code_tools(self.changes)}

    async def call(self, name, /, **arguments):
        """Call a tool of the language servers, or one that looks at files or writes them."""
        tools = {
            **self.tools(),
            "view": ViewTool(self.bench, self.changes.history, diagnose=self.servers.viewed),
            "write": WriteTool(self.changes),
        }
        call = ToolCall(
            id=ToolCallId("c"),
            name=name,
            input=orjson.dumps(arguments).decode(),
            session_id=SessionId("s"),
            run_id=RunId("r"),
            message_id=MessageId("m"),
            permit=self.person,
        )
        with trio.fail_after(30):
            return await tools[name].run(call)

    async def said(self, name, /, **arguments):
        return (await self.call(name, **arguments)).content

    def events(self):
        return [fact.entity for fact in self.facts]

    async def versions(self, path):
        files = await self.bench.store.files(SessionId("s"))
        return [(file.version, file.content) for file in files if file.path == str(path)]


@asynccontextmanager
async def open_place(home, config=None, *, programs=None, private=(), real=False):
    """Open the language servers of the project of *home*; the user configures *config*."""
    if config is not None:
        home.write(home.user_file, config)
    facts, programs = [], programs or Programs()

    def publish(fact):
        facts.append(fact)
        programs.news.tell()

    store = MemoryStore()
    await store.commit(session("s"))
    async with open_live_config(home.places(), run_command=refuse_command) as live:
        surroundings = Surroundings(
            workspace_id=WorkspaceId("w"),
            directory=home.project,
            live=live,
            publish=publish,
            clock=SystemClock(),
        )
        bench = Workbench(
            directory=home.project,
            store=store,
            publish=publish,
            clock=SystemClock(),
            ids=CountingIds("file"),
            private=private,
        )
        opened = partial(open_language_servers, surroundings)
        async with opened() if real else opened(programs.open) as servers:
            yield Place(servers, live, programs, bench, facts)


def lsp(**servers):
    return {"lsp": servers}
