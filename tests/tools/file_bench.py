"""A workspace with files, one session in it, and a person who answers as the test wants."""

import os
from contextlib import asynccontextmanager
from functools import partial

import orjson
from attrs import define, field

from crush_trio.clock import CountingIds
from crush_trio.store.memory.store import MemoryStore
from crush_trio.tools.base import ToolCall, ToolError
from crush_trio.tools.files.changes import FileChanges
from crush_trio.tools.files.edit import EditTool, MultiEditTool, WriteTool
from crush_trio.tools.files.view import ViewTool
from crush_trio.tools.todos import TodosTool
from crush_trio.tools.workbench import History, Workbench
from crush_trio.wire.events import PayloadType
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId
from tests.store.stores import session

NOW = 2_000_000_000
"""Later than the modification time of any file that a test writes."""


@define(eq=False)
class SetClock:
    """A clock that stands where it is put."""

    now: int = NOW

    def unix(self):
        return self.now

    def monotonic(self):
        return float(self.now)


@define(eq=False)
class Person:
    """Takes note of what is asked, does something meanwhile, and says yes unless told not to."""

    refuses: bool = False
    meanwhile: object = None
    asked: list = field(factory=list)

    async def __call__(self, wanted):
        self.asked.append(wanted)
        if self.meanwhile is not None:
            await self.meanwhile()
        if self.refuses:
            raise ToolError("User denied permission", stop_turn=True, metadata=wanted.denied)

    @property
    def wanted(self):
        """The one thing that was asked."""
        [wanted] = self.asked
        return wanted


@define(eq=False)
class FileBench:
    """The file tools of one workspace."""

    bench: Workbench
    published: list
    person: Person = field(factory=Person)
    history: History = field(init=False)
    changes: FileChanges = field(init=False)

    def __attrs_post_init__(self):
        self.history = History(self.bench)
        self.changes = FileChanges(self.bench, self.history)

    # ── Files ───────────────────────────────────────────────────────────────────────────────────

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

    def touch(self, name, at):
        os.utime(self.root / name, (at, at))

    def leftovers(self):
        return [path.name for path in self.root.rglob(".crush-*")]

    async def put_seen(self, name, content="", session_id="s"):
        """Put a file that the session has read."""
        path = self.put(name, content)
        await self.history.record_read(SessionId(session_id), path, NOW)
        return path

    # ── Calls ───────────────────────────────────────────────────────────────────────────────────

    def call(self, name, arguments, *, session_id="s", images=False, person=None):
        return ToolCall(
            id=ToolCallId("c"),
            name=name,
            input=arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode(),
            session_id=SessionId(session_id),
            run_id=RunId("r"),
            message_id=MessageId("m"),
            permit=person or self.person,
            images=images,
        )

    async def _run(self, tool, *, session_id="s", images=False, person=None, **arguments):
        call = partial(self.call, session_id=session_id, images=images, person=person)
        return await tool.run(call(tool.name, arguments))

    async def view(self, file_path, *, readable=(), diagnose=None, **options):
        tool = ViewTool(self.bench, self.history, readable=readable, diagnose=diagnose)
        return await self._run(tool, file_path=str(file_path), **options)

    async def edit(self, file_path, old_string, new_string, **options):
        texts = {"old_string": old_string, "new_string": new_string}
        return await self._run(EditTool(self.changes), file_path=str(file_path), **texts, **options)

    async def multiedit(self, file_path, *edits, **options):
        keys = ("old_string", "new_string", "replace_all")
        sent = [dict(zip(keys, edit, strict=False)) for edit in edits]
        tool = MultiEditTool(self.changes)
        return await self._run(tool, file_path=str(file_path), edits=sent, **options)

    async def write(self, file_path, content, **options):
        tool = WriteTool(self.changes)
        return await self._run(tool, file_path=str(file_path), content=content, **options)

    async def todos(self, *items, **options):
        keys = ("content", "status", "active_form")
        sent = [dict(zip(keys, item, strict=False)) for item in items]
        return await self._run(TodosTool(self.bench), todos=sent, **options)

    # ── Records ─────────────────────────────────────────────────────────────────────────────────

    async def versions(self, path, session_id="s"):
        """Return the versions that a session has of a file, as (version, content)."""
        files = await self.bench.store.files(SessionId(session_id))
        return [(file.version, file.content) for file in files if file.path == str(path)]

    def announced(self):
        """Return the file versions that readers were told of."""
        facts = [fact for fact in self.published if fact.payload_type is PayloadType.FILE]
        return [(fact.change.value, fact.entity.version, fact.entity.content) for fact in facts]


def make_bench(directory, store):
    published = []
    bench = Workbench(
        directory=directory.resolve(),
        store=store,
        publish=published.append,
        clock=SetClock(),
        ids=CountingIds("file"),
    )
    return FileBench(bench, published)


@asynccontextmanager
async def open_bench(tmp_path, store=None):
    """Open a bench on an empty directory, with the sessions `s` and `other`."""
    store = store or MemoryStore()
    await store.commit(session("s"), session("other"))
    directory = tmp_path / "workspace"
    directory.mkdir()
    yield make_bench(directory, store)
