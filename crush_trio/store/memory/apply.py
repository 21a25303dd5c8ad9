"""Applies changes to the tables of the in-memory store.

Has the same rules as the statements of `store.sqlite`, in Python; the conformance tests compare the
two.
"""

from typing import TypeVar, assert_never

from attrs import evolve

from crush_trio.errors import MessageNotFound, RunIdTaken
from crush_trio.store.base import PendingAsk, StoredRun, TailEvent, Totals
from crush_trio.store.changes import (
    GROWING,
    AskOpened,
    AskResolved,
    BootClosed,
    Change,
    FileRead,
    MessageCreated,
    MessageDeleted,
    MessageFinished,
    PartPut,
    PartsCut,
    RunAccepted,
    RunEdited,
    RunEnded,
    RunMoved,
    RunRecorded,
    RunRetracted,
    SessionCreated,
    SessionDeleted,
    SessionEdited,
    SessionPruned,
    TailKept,
    TextAppended,
    UsageAdded,
    is_complete,
)
from crush_trio.store.memory.tables import AskRow, MessageRow, PartRow, RunRow, SessionRow, Tables
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunState
from crush_trio.wire.views import DAY, Session, UsageDay, day_of

T = TypeVar("T")


def apply(tables: Tables, change: Change, boot_id: str) -> None:
    """Apply *change* to *tables*, for the start *boot_id*.

    If it raises, *tables* may be half changed, so the caller must be able to drop them.
    """
    match change:
        case SessionCreated() | SessionEdited() | UsageAdded() | SessionDeleted() | SessionPruned():
            _apply_to_sessions(tables, change)
        case MessageCreated():
            _create_message(tables, change)
        case PartPut() | TextAppended() | PartsCut() | MessageFinished():
            _change_message(tables, change)
        case MessageDeleted(id=message_id):
            _delete_message(tables, tables.message(message_id))
        case RunAccepted() | RunRetracted() | RunMoved() | RunEdited() | RunEnded() | RunRecorded():
            _apply_to_runs(tables, change, boot_id)
        case AskOpened() | AskResolved():
            _apply_to_asks(tables, change)
        case FileRead(session_id=session_id, path=path, at=at):
            tables.session(session_id)  # raises if it is missing
            tables.read_marks[session_id, path] = max(
                at, tables.read_marks.get((session_id, path), at)
            )
        case TailKept():
            _keep(tables, change, boot_id)
        case BootClosed(last=last):
            in_order = last <= tables.newest_kept(boot_id)
            tables.boots[boot_id] = evolve(tables.boots[boot_id], closed=in_order)
        case _:
            assert_never(change)


# ── Sessions ────────────────────────────────────────────────────────────────────────────────────


def _apply_to_sessions(
    tables: Tables,
    change: SessionCreated | SessionEdited | UsageAdded | SessionDeleted | SessionPruned,
) -> None:
    match change:
        case SessionCreated(session=session):
            if session.id not in tables.sessions:
                tables.sessions[session.id] = SessionRow(n=tables.next_n(), session=_blank(session))
        case SessionEdited():
            _edit(tables, change)
        case UsageAdded():
            _add_usage(tables, change)
        case SessionDeleted(id=session_id):
            tables.session(session_id)  # raises if it is missing
            del tables.sessions[session_id]
            _drop_belongings(tables, session_id)
        case SessionPruned():
            _prune(tables, change)


def _prune(tables: Tables, change: SessionPruned) -> None:
    """Remove a session that was not used for long, with the sessions of its tasks and the text of its runs."""
    family = {change.id} & tables.sessions.keys()
    while more := {
        row.session.id
        for row in tables.sessions.values()
        if row.session.parent_session_id in family and row.session.id not in family
    }:
        family |= more
    runs = [row for row in tables.runs.values() if row.stored.view.session_id in family]
    used = any(tables.sessions[each].session.updated_at >= change.before for each in family)
    if used or any(not row.stored.view.state.terminal for row in runs):
        return
    for session_id in family:
        del tables.sessions[session_id]
        _drop_belongings(tables, session_id)
    for row in runs:
        view = evolve(row.stored.view, text="", error="", notices=())
        stored = evolve(row.stored, view=view, prompt="", attachments=())
        tables.runs[view.id] = evolve(row, stored=stored)
    for asked in list(tables.asks.values()):
        if asked.ask.session_id in family:
            tables.asks[asked.ask.id] = evolve(asked, ask=evolve(asked.ask, payload=""))


def _blank(session: Session) -> Session:
    """Return a new session with counters at zero."""
    return Session(
        id=session.id,
        parent_session_id=session.parent_session_id,
        title=session.title,
        created_at=session.created_at,
        updated_at=session.updated_at,
    )


def _edit(tables: Tables, change: SessionEdited) -> None:
    row = tables.session(change.id)
    old = row.session
    keeps = change.title_over and old.title not in change.title_over
    session = evolve(
        old,
        title=_given(None if keeps else change.title, old.title),
        prompt_tokens=_given(change.prompt_tokens, old.prompt_tokens),
        completion_tokens=_given(change.completion_tokens, old.completion_tokens),
        summary_message_id=_given(change.summary_message_id, old.summary_message_id),
        cost=_given(change.cost, old.cost),
        todos=_given(change.todos, old.todos),
    )
    _touch(tables, evolve(row, session=session), change.at)


def _add_usage(tables: Tables, change: UsageAdded) -> None:
    row = tables.session(change.id)
    old = row.session
    session = evolve(
        old,
        prompt_tokens=_given(change.prompt_tokens, old.prompt_tokens),
        completion_tokens=_given(change.completion_tokens, old.completion_tokens),
        cost=old.cost + change.cost,
    )
    totals = Totals(
        prompt_tokens=row.totals.prompt_tokens + change.spent_prompt_tokens,
        completion_tokens=row.totals.completion_tokens + change.spent_completion_tokens,
    )
    _touch(tables, evolve(row, session=session, totals=totals), change.at)
    spent = change.spent_prompt_tokens or change.spent_completion_tokens or change.cost
    if spent and not change.counted:
        used = tables.usage.get(change.at // DAY) or UsageDay(day=day_of(change.at))
        tables.usage[change.at // DAY] = evolve(
            used,
            tokens_in=used.tokens_in + change.spent_prompt_tokens,
            tokens_out=used.tokens_out + change.spent_completion_tokens,
            cost=used.cost + change.cost,
        )


def _given(new: T | None, old: T) -> T:
    return old if new is None else new


def _touch(tables: Tables, row: SessionRow, at: int) -> None:
    """Store a session's row; its time does not go backwards."""
    session = evolve(row.session, updated_at=max(at, row.session.updated_at))
    tables.sessions[session.id] = evolve(row, session=session)


def _count(tables: Tables, row: SessionRow, difference: int) -> None:
    session = evolve(row.session, message_count=row.session.message_count + difference)
    tables.sessions[session.id] = evolve(row, session=session)


def _drop_belongings(tables: Tables, session_id: SessionId) -> None:
    """Remove the messages, files, read marks and recordings of a session (J4)."""
    for row in tables.messages_of(session_id):
        del tables.messages[row.head.id]
    for file in list(tables.files.values()):
        if file.session_id == session_id:
            del tables.files[file.id]
    for key in list(tables.read_marks):
        if key[0] == session_id:
            del tables.read_marks[key]
    for place, (owner, _) in list(tables.recordings.items()):
        if owner == session_id:
            del tables.recordings[place]


# ── Messages ────────────────────────────────────────────────────────────────────────────────────


def _create_message(tables: Tables, change: MessageCreated) -> None:
    message = change.message
    if message.id in tables.messages:
        return
    if change.if_there and not _has_place(tables, change):
        return
    session = tables.session(message.session_id)
    session = evolve(session, last_seq=session.last_seq + 1)
    tables.messages[message.id] = MessageRow(
        n=tables.next_n(),
        seq=session.last_seq,
        head=evolve(message, parts=()),
        parts={index: PartRow(part) for index, part in enumerate(message.parts)},
        finished=is_complete(message),
        run_id=change.run_id,
    )
    _touch(tables, session, message.updated_at)
    _count(tables, tables.session(message.session_id), 1)


def _has_place(tables: Tables, change: MessageCreated) -> bool:
    """Whether the session of a new message exists, and its run, if it has one."""
    has_run = change.run_id is None or change.run_id in tables.runs
    return has_run and change.message.session_id in tables.sessions


def _delete_message(tables: Tables, row: MessageRow) -> None:
    del tables.messages[row.head.id]
    _count(tables, tables.session(row.head.session_id), -1)


def _change_message(
    tables: Tables, change: PartPut | TextAppended | PartsCut | MessageFinished
) -> None:
    row = tables.message(change.message_id)
    parts = dict(row.parts)
    match change:
        case PartPut(index=index, part=part):
            old = parts.get(index)
            kept = old.appended if old is not None and old.put.kind == part.kind else ""
            parts[index] = PartRow(part, kept)
        case TextAppended(index=index, text=text):
            old = parts.get(index)
            if old is None or not isinstance(old.put, GROWING):
                raise MessageNotFound(f"{change.message_id} has no text at part {index}")
            parts[index] = PartRow(old.put, old.appended + text)
        case PartsCut(length=length):
            parts = {index: part for index, part in parts.items() if index < length}
        case MessageFinished():
            parts = {index: PartRow(part.part) for index, part in parts.items()}
            row = evolve(row, finished=True)
    head = evolve(row.head, updated_at=max(change.at, row.head.updated_at))
    tables.messages[head.id] = evolve(row, parts=parts, head=head)
    _touch(tables, tables.session(head.session_id), change.at)


# ── Runs ────────────────────────────────────────────────────────────────────────────────────────


def _apply_to_runs(
    tables: Tables,
    change: RunAccepted | RunRetracted | RunMoved | RunEdited | RunEnded | RunRecorded,
    boot_id: str,
) -> None:
    match change:
        case RunAccepted():
            _accept(tables, change, boot_id)
        case RunRetracted():
            tables.runs.pop(change.id, None)
            for message in tables.messages_of_run(change.id):
                _delete_message(tables, message)
        case RunMoved():
            _move(tables, change)
        case RunEdited():
            row = tables.run(change.id)
            if not row.stored.view.state.terminal:
                tables.runs[change.id] = RunRow(row.n, evolve(row.stored, prompt=change.prompt))
        case RunEnded():
            _end(tables, change, boot_id)
        case RunRecorded(session_id=session_id):
            if session_id in tables.sessions:
                tables.recordings[change.run_id, change.n] = session_id, change.data


def _accept(tables: Tables, change: RunAccepted, boot_id: str) -> None:
    run = change.run
    if run.id in tables.runs:
        return
    if run.run_id is not None and tables.run_called(run.run_id) is not None:
        raise RunIdTaken(run.run_id)
    stored = StoredRun(
        view=run, boot_id=boot_id, prompt=change.prompt, attachments=change.attachments
    )
    tables.runs[run.id] = RunRow(tables.next_n(), stored)


def _move(tables: Tables, change: RunMoved) -> None:
    row = tables.run(change.id)
    view = row.stored.view
    if view.state.terminal:
        return
    started = change.at if change.state is RunState.ACTIVE else 0
    view = evolve(view, state=change.state, started_at=view.started_at or started)
    tables.runs[view.id] = RunRow(row.n, evolve(row.stored, view=view))


def _end(tables: Tables, change: RunEnded, boot_id: str) -> None:
    ended = change.run
    if change.if_there and ended.id not in tables.runs:
        return
    row = tables.run(ended.id)
    view = row.stored.view
    if view.state.terminal:
        return
    view = evolve(
        view,
        state=ended.state,
        started_at=view.started_at or ended.started_at,
        ended_at=ended.ended_at,
        message_id=ended.message_id,
        text=ended.text,
        error=ended.error,
        folded_into=ended.folded_into,
        notices=ended.notices,
    )
    tables.runs[view.id] = RunRow(row.n, evolve(row.stored, view=view, attachments=()))
    if change.withdrawn:
        for message in tables.messages_of_run(view.id):
            tables.messages[message.head.id] = evolve(message, withdrawn=True)
    if tables.endings.get(view.id, ("", None))[0] != boot_id:
        tables.endings[view.id] = boot_id, None


# ── Asks and events ─────────────────────────────────────────────────────────────────────────────


def _apply_to_asks(tables: Tables, change: AskOpened | AskResolved) -> None:
    known = tables.asks.get(change.id)
    match change:
        case AskOpened() if known is None:
            ask = PendingAsk(
                id=change.id,
                kind=change.kind,
                session_id=change.session_id,
                run_id=change.run_id,
                tool_call_id=change.tool_call_id,
                payload=change.payload,
                created_at=change.at,
            )
            tables.asks[ask.id] = AskRow(tables.next_n(), ask)
        case AskResolved() if known is not None:
            tables.asks[change.id] = evolve(known, pending=False)


def _keep(tables: Tables, change: TailKept, boot_id: str) -> None:
    if change.previous > tables.newest_kept(boot_id):
        tables.boots[boot_id] = evolve(tables.boots[boot_id], trimmed=change.seq - 1)
    if not any((old.boot_id, old.seq) == (boot_id, change.seq) for old in tables.tail):
        tables.tail.append(
            TailEvent(boot_id=boot_id, seq=change.seq, terminal=change.terminal, event=change.event)
        )
    if change.ended is not None:
        tables.endings[change.ended] = boot_id, change.seq
    surplus = max(0, len(tables.tail) - change.keep)
    for old in tables.tail[:surplus]:
        boot = tables.boots[old.boot_id]
        trimmed = old.seq if boot.trimmed is None else max(boot.trimmed, old.seq)
        tables.boots[old.boot_id] = evolve(boot, trimmed=trimmed)
    del tables.tail[:surplus]
