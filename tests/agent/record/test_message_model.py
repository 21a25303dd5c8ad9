"""The state of a message in progress, against a slow model, and applied to real messages.

The machine makes changes, demands and releases, lets writes succeed and fail, and lets time pass. The
model of the store holds what the writes have put there; whatever happens, applying what the state says
leads to the message as it was said.
"""

from math import inf

from attrs import define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from crush_trio.agent.record.message import (
    DONE,
    MessageState,
    Stop,
    TicketResult,
    WaitUntil,
    Write,
    WriteTicket,
    changes_between,
)
from crush_trio.events.growing_message import GrowingMessage, MessageView
from crush_trio.store.changes import PartsCut
from crush_trio.store.memory.apply import apply
from crush_trio.store.memory.tables import BootRow, Tables
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import Message, Role
from tests.store.stores import call, message, session

PACE, RETRY = 1.0, 5.0


@define(eq=False)
class Waiting:
    """A caller, and what it may be told."""

    ticket: WriteTicket
    failures_before: int


class MessageMachine(RuleBasedStateMachine):
    """One message, its writer, its callers and its store."""

    def __init__(self) -> None:
        super().__init__()
        self.state = MessageState(PACE, RETRY)
        self.now = 0.0
        self.growing = GrowingMessage(
            Message(id=MessageId("m"), role=Role.ASSISTANT, session_id=SessionId("s"))
        )
        self.tables = Tables(boots={"b": BootRow()})
        for change in (session(), message("m")):
            apply(self.tables, change, "b")
        self.views = [self.growing.view()]
        self.stored_view = self.views[0]
        self.kinds: list[bool] = []
        """Of each change, whether it is structural."""
        self.under_way: tuple[Write, list] | None = None
        self.overtaken: list | None = None
        self.waiting: list[Waiting] = []
        self.failures: list[Exception] = []
        self.last_ended: tuple[float, bool] | None = None

    # ── The turn ────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: not self.state.released)
    @rule(text=st.sampled_from(["a", "bc", "é"]))
    def say(self, text: str) -> None:
        self.growing.append_text(text)
        self.changed(structural=False)

    @precondition(lambda self: not self.state.released)
    @rule(name=st.sampled_from("xyz"), finished=st.booleans())
    def call_tool(self, name: str, finished: bool) -> None:
        self.growing.put(call(name, finished=finished))
        self.changed(structural=True)

    @precondition(lambda self: not self.state.released)
    @rule()
    def reset(self) -> None:
        self.growing.reset()
        self.changed(structural=True)

    def changed(self, *, structural: bool) -> None:
        self.state.change(structural=structural)
        self.kinds.append(structural)
        self.views.append(self.growing.view())

    @precondition(lambda self: not self.state.released)
    @rule()
    def demand(self) -> None:
        self.waiting.append(Waiting(self.state.demand(), len(self.failures)))

    @rule()
    def release(self) -> None:
        """The ending hands over what is left, behind the write that may be under way."""
        if not self.state.released:
            self.state.release()
            assert self.state.in_doubt == (self.under_way is not None)
            self.overtaken = self.left()

    def left(self) -> list:
        view = self.growing.view()
        if self.state.in_doubt:
            anew = PartsCut(message_id=view.head.id, length=0, at=1)
            return [anew, *changes_between(MessageView(view.head, ()), view, 1)]
        return changes_between(self.stored_view, view, 1)

    # ── The writer ──────────────────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def look(self) -> None:
        action = self.state.next(self.now)
        if isinstance(action, Write):
            version = self.state.version
            assert action.version == version
            assert action.plain == (not any(self.kinds[self.state.stored :]))
            hurried = self.state.demanded > self.state.stored
            if self.last_ended is not None and not hurried:
                ended, failed = self.last_ended
                assert self.now >= ended + (RETRY if failed else PACE), (
                    "an unhurried write too soon"
                )
            changes = changes_between(self.stored_view, self.views[version], 1)
            self.state.began(action)
            self.under_way = action, changes

    @precondition(lambda self: self.under_way is not None)
    @rule(lands=st.booleans())
    def end_write(self, lands: bool) -> None:
        """The store answers; a write that fails has stored nothing."""
        write, changes = self.under_way
        self.under_way = None
        if lands:
            self.store(changes)
            counts = self.state.succeeded(self.now)
            assert counts == (not self.state.released)
            if counts:
                self.stored_view = self.views[write.version]
                self.last_ended = self.now, False
        else:
            error = OSError(f"failure {len(self.failures)}")
            first = self.state.failed(error, self.now)
            if not self.state.released:
                assert first == (self.last_ended is None or not self.last_ended[1])
                self.failures.append(error)
                self.last_ended = self.now, True

    def store(self, changes: list) -> None:
        for change in changes:
            apply(self.tables, change, "b")

    # ── The callers ─────────────────────────────────────────────────────────────────────────────

    @rule()
    def ask(self) -> None:
        for waiting in list(self.waiting):
            answer = self.state.answer(waiting.ticket)
            stored = self.state.stored >= waiting.ticket.version
            if answer is None:
                assert not stored
                assert not self.state.released
            elif answer == DONE:
                assert stored or self.state.released
                self.waiting.remove(waiting)
            else:
                assert isinstance(answer, TicketResult)
                assert answer.error in self.failures[waiting.failures_before :], "an old failure"
                self.waiting.remove(waiting)

    # ── What always holds ───────────────────────────────────────────────────────────────────────

    @invariant()
    def what_is_stored_was_said(self) -> None:
        state = self.state
        writing = state.version if state.writing is None else state.writing
        assert state.stored <= writing <= state.version
        assert (state.writing is not None) == (self.under_way is not None)

    @invariant()
    def nothing_is_written_by_the_writer_after_the_release(self) -> None:
        if self.state.released:
            assert self.state.next(self.now) == Stop()

    @invariant()
    def the_writer_does_not_sleep_while_there_is_something_to_do(self) -> None:
        action = self.state.next(self.now)
        if isinstance(action, WaitUntil) and self.under_way is None:
            behind = self.state.stored < self.state.version
            assert action.at > self.now
            assert action.at == inf or action.at == self.state.not_before
            assert not (behind and action.at == inf)

    @invariant()
    def the_store_has_what_is_said_to_be_stored(self) -> None:
        if self.under_way is None and not self.state.released:
            assert self.stored_message() == self.stored_view.message().parts

    def stored_message(self):
        return self.tables.message(MessageId("m")).stored().message.parts

    def teardown(self) -> None:
        """The end of the run: whatever became of the write under way, the message is stored whole."""
        self.release()
        if self.under_way is not None:
            self.store(self.under_way[1])
        self.store(self.overtaken)
        assert self.stored_message() == self.growing.view().message().parts
        for waiting in self.waiting:
            assert self.state.answer(waiting.ticket) is not None, "a caller was left waiting"


class OvertakenMachine(MessageMachine):
    """The same, where the write that is under way at the end fails."""

    def teardown(self) -> None:
        self.under_way = None
        self.state.writing = None
        self.state.release()
        self.store(self.overtaken if self.overtaken is not None else self.left())
        assert self.stored_message() == self.growing.view().message().parts


TestMessageModel = MessageMachine.TestCase
TestOvertakenModel = OvertakenMachine.TestCase
for case in (TestMessageModel, TestOvertakenModel):
    case.settings = settings(
        derandomize=True, max_examples=150, stateful_step_count=40, deadline=None
    )
