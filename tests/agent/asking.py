"""A workspace's asks with nothing around them but a store and a log, both in memory.

`Office` has the permissions and the questions. `office.want` asks in a task of its own, as a tool
call does, and gives a `Call` to look at and to cancel. What readers were told is a list of words:
`asked c1`, `request c1`, `granted c1`, and so on.
"""

from pathlib import Path

import orjson
import trio
from attrs import define, evolve, field

from crush_trio.agent.asks.attendance import DEFAULT_PATIENCE, Attendance
from crush_trio.agent.asks.permissions import Permissions
from crush_trio.agent.asks.questions import Questions, QuestionTool
from crush_trio.clock import CountingIds, TrioClock
from crush_trio.events.log import EventLog
from crush_trio.store.changes import AskOpened, AskResolved
from crush_trio.store.memory.store import MemoryStore
from crush_trio.testing.server.faulty_store import FaultyStore
from crush_trio.tools.base import ToolCall, ToolError, Wanted
from crush_trio.wire.asks import (
    PermissionNotification,
    PermissionPolicy,
    PermissionRequest,
    QuestionRequest,
)
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId

ROOT = Path("/srv/project")
WANTED = Wanted(
    action="execute",
    description="Execute command: ls",
    params={"command": "ls"},
    path=ROOT,
)


@define(eq=False)
class Call:
    """A tool call that asks. `result` is None until it has an answer; then "allowed" or the error."""

    result: str | None = field(default=None, init=False)
    error: ToolError | None = field(default=None, init=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    async def perform(self, function, *args):
        with self.scope:
            try:
                done = await function(*args)
            except ToolError as error:
                self.error, self.result = error, error.result.content
            else:
                self.result = "allowed" if done is None else done.content

    def cancel(self):
        """Stop the run of this call."""
        self.scope.cancel()


@define(eq=False)
class Office:
    """Permissions and questions of one workspace."""

    store: FaultyStore = field(factory=lambda: FaultyStore(MemoryStore("b1")))
    patience: float = DEFAULT_PATIENCE
    directory: Path = ROOT
    allowed: list[str] = field(factory=list)
    log: EventLog = field(factory=lambda: EventLog("b1"), init=False)
    attendance: Attendance = field(init=False)
    permissions: Permissions = field(init=False)
    questions: Questions = field(init=False)

    def __attrs_post_init__(self):
        self.attendance = Attendance(self.patience)
        parts = {
            "store": self.store,
            "publish": self.log.publish,
            "clock": TrioClock(),
            "ids": CountingIds("ask"),
            "attendance": self.attendance,
        }
        self.permissions = Permissions(
            directory=self.directory, allowed_tools=lambda: self.allowed, **parts
        )
        self.questions = Questions(**parts)

    # ── Asking ──────────────────────────────────────────────────────────────────────────────────

    def permit(self, call="c1", *, tool="bash", session="s", run="r", **more):
        if isinstance(more.get("policy"), str):
            more["policy"] = PermissionPolicy(mode=more["policy"])
        return self.permissions.permit_for(
            session_id=SessionId(session),
            run_id=RunId(run),
            tool_call_id=ToolCallId(call),
            tool_name=tool,
            **more,
        )

    def want(self, nursery, call="c1", *, wanted=WANTED, **more):
        """Ask for a permission in a task of its own."""
        asking = Call()
        nursery.start_soon(asking.perform, self.permit(call, **more), wanted, name=f"call {call}")
        return asking

    def question(self, nursery, arguments, call="c1", **more):
        """Run the question tool in a task of its own."""
        asking = Call()
        nursery.start_soon(
            asking.perform, QuestionTool(self.questions).run, tool_call(arguments, call, **more)
        )
        return asking

    async def verdict(self, call="c1", *, wanted=WANTED, **more):
        """Ask for what a rule must settle: nothing waits here but for one checkpoint."""
        asking = Call()
        await asking.perform(self.permit(call, **more), wanted)
        return asking.result

    # ── Looking ─────────────────────────────────────────────────────────────────────────────────

    @property
    def told(self):
        """What every reader was told so far, in order."""
        batch = _from_the_start(self.log).take()
        return [_word(event.entity) for event in batch.events]

    @property
    def notices(self):
        """The events that every reader got so far, as they are."""
        return [event.entity for event in _from_the_start(self.log).take().events]

    @property
    def pending(self):
        return [request.tool_call_id for request in self.permissions.pending]

    def opened(self):
        """The asks that were to be stored, in order."""
        return self.store.committed(AskOpened)

    def resolutions(self):
        """How asks ended, by id."""
        posted = [change for post in self.store.posts for change in post]
        return {c.id: c.resolution for c in posted if isinstance(c, AskResolved)}


def _from_the_start(log):
    """Return a reader that has read nothing yet."""
    cursor = log.cursor()
    cursor.after = 0
    return cursor


def _word(entity):
    match entity:
        case PermissionRequest(tool_call_id=call):
            return f"request {call}"
        case PermissionNotification(tool_call_id=call, granted=True, denied=False):
            return f"granted {call}"
        case PermissionNotification(tool_call_id=call, denied=True, withdrawn=True):
            return f"withdrawn {call}"
        case PermissionNotification(tool_call_id=call, denied=True):
            return f"denied {call}"
        case PermissionNotification(tool_call_id=call):
            return f"asked {call}"
        case QuestionRequest(id=batch):
            return f"questions {batch}"
        case _:
            return f"settled {entity.batch_id}"


def wanted(**changes):
    """Return what a tool wants, with some things other than usual."""
    return evolve(WANTED, **changes)


async def _nobody(_wanted):
    raise AssertionError("a question needs no permission")


def tool_call(arguments, call="c1", *, session="s", run="r", interactive=True):
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return ToolCall(
        id=ToolCallId(call),
        name="question",
        input=text,
        session_id=SessionId(session),
        run_id=RunId(run),
        message_id=MessageId("m"),
        permit=_nobody,
        interactive=interactive,
    )
