"""A model of the event log: whatever is published, whoever reads it and however badly.

The model knows what every message says and how every run ended. Readers of both forms take when they
please, receive their bytes in pieces, lose the connection anywhere and come back with the id of the
last frame they have. The window is tiny, so that they lose their place all the time. Once a reader has
caught up it must know what the model knows:

* every message that is still open, and every message that changed since its last resync;
* every ending, exactly once.

`Replica` sees to it that ids grow and that no delta is applied where it does not belong.
"""

from collections import Counter
from math import inf

import orjson
from attrs import define, field
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from crush_trio.events import (
    Cursor,
    EventLog,
    Fact,
    Form,
    GrowingMessage,
    MessageChange,
    Position,
    RunChange,
    Window,
)
from crush_trio.testing.server.client import Replica
from crush_trio.wire.codec import encode
from crush_trio.wire.events import ConfigChanged, EventType, PayloadType
from crush_trio.wire.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from crush_trio.wire.messages import FinishPart, FinishReason, Message, Role, ToolCallPart
from crush_trio.wire.runs import RunState, RunView
from crush_trio.wire.views import Session

BOOT = "boot"
ELSEWHERE = Position(boot="an earlier boot", seq=3)
FACT = Fact(
    payload_type=PayloadType.CONFIG_CHANGED,
    change=EventType.UPDATED,
    entity=ConfigChanged(workspace_id=WorkspaceId("w")),
)
TEXTS = st.sampled_from(["a", "word ", '"\\\n', "é", "😀", "\ud83d", "long " * 400])
SESSIONS = st.sampled_from(["s1", "s2"])
ENDINGS = st.sampled_from([state for state in RunState if state.terminal])


@define(eq=False)
class Known:
    """What the model knows of a message: its JSON, and when it last changed and was closed."""

    growing: GrowingMessage
    json: dict = field(factory=dict)
    changed_at: int = 0
    closed_at: float = inf

    def known_since(self, synced_at):
        """Whether a resync at *synced_at* told of the message, or something that came later did."""
        return max(self.changed_at, self.closed_at) > synced_at


@define(eq=False)
class NativeClient(Replica):
    """A client that trusts nothing it knew of messages before a resync."""

    start: Position = field(kw_only=True)
    synced_at: int = field(default=0, init=False)
    frames: int = field(default=0, init=False)

    @property
    def place(self):
        return self.start if self.last_id is None else Position.parse(self.last_id)

    @property
    def known_endings(self):
        return dict.fromkeys(self.endings, 1)

    def _apply(self, frame):
        super()._apply(frame)
        self.frames += 1

    def _resync(self, state):
        self.messages.clear()
        super()._resync(state)
        self.synced_at = self.place.seq


@define(eq=False)
class CrushClient:
    """A client of the Go program: whole messages, completions, no ids and no way back."""

    synced_at: int = 0
    messages: dict = field(factory=dict)
    known_endings: Counter = field(factory=Counter)

    def receive(self, batch):
        if batch.resync is not None:
            self.messages.clear()
            self.synced_at = batch.upto
        for frame in batch.encode(Form.CRUSH).split(b"\n\n")[:-1]:
            event = orjson.loads(frame.removeprefix(b"data: "))
            self._apply(event["type"], event["payload"]["type"], event["payload"]["payload"])

    def _apply(self, kind, change, entity):
        if kind == "run_complete":
            self.known_endings[entity["run_id"]] += 1
        elif kind == "message" and change == "deleted":
            self.messages.pop(entity["id"], None)
        elif kind == "message":
            self.messages[entity["id"]] = entity


@define(eq=False)
class Reader:
    """A client, its cursor, and the bytes that are on their way to it."""

    client: NativeClient | CrushClient
    cursor: Cursor
    pipe: bytes = b""

    def take(self):
        batch = self.cursor.take()
        if isinstance(self.client, CrushClient):
            self.client.receive(batch)
        else:
            self.pipe += batch.encode(Form.NATIVE)

    def deliver(self, size):
        if isinstance(self.client, NativeClient):
            self.client.feed(self.pipe[:size])
            self.pipe = self.pipe[size:]

    def catch_up(self):
        self.take()
        while self.cursor.behind:
            self.take()
        self.deliver(len(self.pipe))


class LogModel(RuleBasedStateMachine):
    """See the module."""

    authors = Bundle("authors")
    runs = Bundle("runs")
    readers = Bundle("readers")

    @initialize(
        events=st.integers(1, 6),
        weight=st.sampled_from([1000, 4000, 10**9]),
        fresh=st.sampled_from([0, 1, 3, 64]),
        batch=st.sampled_from([1, 2, 5, 128]),
    )
    def open(self, events, weight, fresh, batch):
        window = Window(events=events, weight=weight, endings=10**6, fresh=fresh, batch=batch)
        self.log = EventLog(BOOT, window=window)
        self.messages = {}
        self.endings = {}
        self.all_readers = []
        self.fast = [self.join(form, from_elsewhere=False) for form in Form]

    def publish(self, event):
        head, log = self.log.head, self.log
        assert log.publish(event) == head + 1
        assert len(log._entries) <= 2 * log.window.events
        assert log._meter.total <= log.window.weight or len(log._entries) == 1
        for reader in self.fast:
            reader.catch_up()
            assert reader.client.synced_at == 0, "a reader that keeps up never loses its place"

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────

    @rule(target=authors, session=SESSIONS)
    def begin(self, session):
        name = f"m{self.log.head}"
        message = Message(id=MessageId(name), role=Role.ASSISTANT, session_id=SessionId(session))
        self.messages[name] = author = Known(GrowingMessage(message))
        self.tell(author, EventType.CREATED)
        return author

    def tell(self, author, change=EventType.UPDATED, *, plain=False):
        view = author.growing.view(updated_at=self.log.head)
        author.json = orjson.loads(encode(view.message()))
        author.changed_at = self.log.head + 1
        author.closed_at = author.changed_at if view.finished else inf
        self.publish(MessageChange(change=change, view=view, plain=plain))

    @rule(author=authors, texts=st.lists(TEXTS, min_size=1, max_size=6))
    def say(self, author, texts):
        for text in texts:
            author.growing.append_text(text)
            self.tell(author, plain=True)

    @rule(author=authors, text=TEXTS)
    def think(self, author, text):
        author.growing.append_reasoning(text)
        self.tell(author, plain=True)

    @rule(author=authors, text=TEXTS)
    def say_without_telling(self, author, text):
        author.growing.append_text(text)

    @rule(author=authors, text=TEXTS)
    def call_tool(self, author, text):
        author.growing.put(ToolCallPart(id=ToolCallId("c"), name="bash", input=text))
        self.tell(author)

    @rule(author=authors)
    def stop_thinking(self, author):
        author.growing.close_reasoning(finished_at=1, signature="sig")
        self.tell(author)

    @rule(author=authors)
    def begin_again(self, author):
        author.growing.reset()
        self.tell(author)

    @rule(author=authors)
    def finish(self, author):
        author.growing.put(FinishPart(reason=FinishReason.END_TURN, time=1))
        self.tell(author)

    @rule(author=consumes(authors))
    def delete(self, author):
        self.tell(author, EventType.DELETED)
        del self.messages[author.growing.head.id]

    @rule(session=SESSIONS)
    def delete_session(self, session):
        for author in self.messages.values():
            if author.growing.head.session_id == session:
                author.closed_at = min(author.closed_at, self.log.head + 1)
        entity = Session(id=SessionId(session))
        self.publish(
            Fact(payload_type=PayloadType.SESSION, change=EventType.DELETED, entity=entity)
        )

    @rule(times=st.integers(1, 4))
    def change_something_else(self, times):
        for _ in range(times):
            self.publish(FACT)

    @rule(target=runs)
    def accept(self):
        name = RunId(f"r{self.log.head}")
        run = RunView(id=name, run_id=name, session_id=SessionId("s1"), state=RunState.ACCEPTED)
        self.publish(RunChange(run=run))
        return name

    @rule(name=consumes(runs), state=ENDINGS, text=TEXTS)
    def end(self, name, state, text):
        run = RunView(id=name, run_id=name, session_id=SessionId("s1"), state=state, text=text)
        self.endings[name] = state
        self.publish(RunChange(run=run))

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────

    @rule(target=readers, form=st.sampled_from(Form), from_elsewhere=st.booleans())
    def join(self, form, from_elsewhere):
        start = ELSEWHERE if from_elsewhere else Position(boot=BOOT, seq=0)
        client = NativeClient(start=start) if form is Form.NATIVE else CrushClient()
        reader = Reader(client, self.log.cursor(form, after=start))
        self.all_readers.append(reader)
        return reader

    @rule(reader=readers)
    def take(self, reader):
        reader.take()

    @rule(reader=readers, percent=st.integers(0, 100))
    def deliver(self, reader, percent):
        reader.deliver(len(reader.pipe) * percent // 100)

    @rule(reader=readers, percent=st.integers(0, 100))
    def lose_connection_and_come_back(self, reader, percent):
        if isinstance(reader.client, NativeClient):
            reader.take()
            reader.deliver(len(reader.pipe) * percent // 100)
            reader.client.cut()
            reader.pipe = b""
            reader.cursor = self.log.cursor(Form.NATIVE, after=reader.client.place)

    @rule(reader=readers)
    def catch_up(self, reader):
        reader.catch_up()
        self.check(reader)

    # ── What must hold ──────────────────────────────────────────────────────────────────────────

    def check(self, reader):
        client = reader.client
        assert client.messages == {
            name: known.json
            for name, known in self.messages.items()
            if known.known_since(client.synced_at)
        }
        assert client.known_endings == {
            name: 1 for name, state in self.endings.items() if self.told(client, state)
        }
        if isinstance(client, NativeClient) and client.resyncs == 0:
            assert client.frames == self.log.head, "every event came, and came once"

    @staticmethod
    def told(client, state):
        """Only the native form has a word for a folded run."""
        return isinstance(client, NativeClient) or state is not RunState.FOLDED

    @invariant()
    def the_meter_shows_what_is_kept(self):
        entries = self.log._entries
        assert self.log._meter.total == sum(entry._weight for entry in entries)
        assert all(entry._weight > 0 for entry in entries)

    def teardown(self):
        for reader in getattr(self, "all_readers", ()):
            reader.catch_up()
            self.check(reader)


LogModel.TestCase.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    stateful_step_count=50,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
TestEventLog = LogModel.TestCase
