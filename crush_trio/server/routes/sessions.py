"""Routes about sessions, their messages and files (wire.md §3.3, §3.4)."""

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from crush_trio.errors import DecodeError, MessageNotFound, SessionNotFound
from crush_trio.server.audit_notes import SESSION_CHANGED, SESSION_DELETED
from crush_trio.server.bodies import JsonPages, check_amounts, check_id
from crush_trio.server.routing import (
    STORE_ERRORS,
    WORKSPACE,
    Call,
    Query,
    Reply,
    Route,
    paged,
    under,
)
from crush_trio.server.tokens import Right
from crush_trio.store.changes import FileRead
from crush_trio.store.pages import (
    SESSION_REST,
    FileVersions,
    Hole,
    SessionList,
    SessionMessages,
    UserMessages,
)
from crush_trio.wire.codec import encode
from crush_trio.wire.fields import ZERO_TIME, timestamp
from crush_trio.wire.ids import MessageId, SessionId
from crush_trio.wire.messages import Message
from crush_trio.wire.requests import FileReadRequest, SessionCreate, SessionUpdate
from crush_trio.wire.views import File, Session

if TYPE_CHECKING:
    from crush_trio.backend.workspace import HostedWorkspace
    from crush_trio.server.cluster.stored import StoredWorkspace

MESSAGES_AT_MOST: Final = 1_000_000
"""The highest number of messages that can be asked for by number."""

_NO_SESSION: Final = ("session_not_found",)
_TITLE: Final = ("title_too_long",)


# ── Sessions ────────────────────────────────────────────────────────────────────────────────────


def listed(call: Call) -> JsonPages:
    """Return the sessions, each with whether it is busy and how many clients look at it."""
    workspace, clients = call.records, call.attached_clients

    def present(hole: Hole) -> bytes:
        busy = workspace.runs.session_busy(SessionId(hole.id))
        return SESSION_REST % (b"true" if busy else b"false", clients[SessionId(hole.id)])

    return JsonPages(workspace.store.pages(SessionList()), present)


async def create(call: Call) -> Session:
    """Store a new session."""
    return _seen(call, await call.workspace.create_session(call.body.title))


async def show(call: Call) -> Session:
    """Return a session."""
    return _seen(call, await call.records.store.session(call.session_id))


async def save(call: Call) -> Session:
    """Store what a client may change of the session in the body."""
    check_amounts(call.body)
    return _seen(call, await call.workspace.edit_session(call.body))


async def delete(call: Call) -> None:
    """Stop a session's runs and delete it."""
    await call.workspace.delete_session(call.session_id)


def _seen(call: Call, session: Session) -> Session:
    """Return a session with what is known about it now: whether it is busy, and who looks at it."""
    return call.records.seen(session, call.attached_clients[session.id])


# ── Messages and files ──────────────────────────────────────────────────────────────────────────


async def messages(call: Call) -> Reply:
    """Return the messages of a session: all, or the newest `limit` of those `before` one."""
    workspace = call.records
    wanted = SessionMessages(
        session_id=call.session_id,
        limit=call.number("limit", MESSAGES_AT_MOST),
        before=_before(call.query.get("before")),
    )
    pages = JsonPages(workspace.store.pages(wanted), partial(_growing, workspace))
    try:
        return await paged(pages)
    except MessageNotFound as error:
        raise DecodeError(f"before: this session has no message {wanted.before}") from error


def _before(text: str | None) -> MessageId | None:
    if text is None:
        return None
    if not text:
        raise DecodeError("before is empty; leave it out, or give the id of a message")
    check_id(text, "before")
    return MessageId(text)


def _growing(workspace: "HostedWorkspace | StoredWorkspace", hole: Hole) -> bytes:
    """Return a message without an end: as it is now if it is still being written (D12).

    Text that is not stored yet is included: waiting for it would let each reader cause a commit.
    """
    for message in workspace.transcript.open_messages():
        if message.open and message.id == hole.id:
            return encode(message.message())
    return hole.default


def user_messages(call: Call) -> JsonPages:
    """Return what people said in a session, or in all, the newest first."""
    session_id = call.session_id if "sid" in call.values else None
    return JsonPages(call.records.store.pages(UserMessages(session_id=session_id)))


def history(call: Call) -> JsonPages:
    """Return every version of every file of a session."""
    return JsonPages(call.records.store.pages(FileVersions(session_id=call.session_id)))


async def files_read(call: Call) -> list[str]:
    """Return the paths that a session has read."""
    return await call.records.store.read_paths(call.session_id)


async def note_read(call: Call) -> None:  # noqa: ASYNC910 - the store is always asked
    """Note that a session has read a file."""
    workspace, body = call.workspace, call.body
    path = str(workspace.directory / body.path)
    read = FileRead(session_id=body.session_id, path=path, at=workspace.clock.unix())
    with suppress(SessionNotFound):  # a session that was deleted needs no note
        await workspace.store.commit(read)


async def last_read(call: Call) -> str:
    """Return when a session read a file last."""
    workspace = call.records
    path = str(workspace.directory / call.query.get("path", ""))
    session_id = SessionId(call.query.get("session_id", ""))
    at = await workspace.store.last_read(session_id, path)
    return ZERO_TIME if at is None else timestamp(at)


ROUTES: Final = (
    *under(
        f"{WORKSPACE}/sessions",
        Route(
            "GET",
            "",
            "List the sessions, the last used first.",
            listed,
            name="list_sessions",
            stored=True,
            answer=tuple[Session, ...],
            direct=True,
        ),
        Route(
            "POST",
            "",
            "Create a session.",
            create,
            name="create_session",
            body=SessionCreate,
            answer=Session,
            errors=_TITLE,
            right=Right.ANSWER,
            direct=True,
        ),
        Route(
            "GET",
            "/{sid}",
            "Show a session.",
            show,
            name="get_session",
            stored=True,
            answer=Session,
            errors=_NO_SESSION,
            direct=True,
        ),
        Route(
            "PUT",
            "/{sid}",
            "Save a session: each key of the body replaces what is stored.",
            save,
            name="update_session",
            body=SessionUpdate,
            answer=Session,
            errors=(*_NO_SESSION, *_TITLE),
            audit=SESSION_CHANGED,
        ),
        Route(
            "DELETE",
            "/{sid}",
            "Stop a session's runs and delete it.",
            delete,
            name="delete_session",
            errors=_NO_SESSION,
            audit=SESSION_DELETED,
        ),
        Route(
            "GET",
            "/{sid}/history",
            "List the file versions of a session.",
            history,
            name="list_file_versions",
            stored=True,
            answer=tuple[File, ...],
        ),
        Route(
            "GET",
            "/{sid}/messages",
            "List the messages of a session, oldest first.",
            messages,
            name="list_messages",
            stored=True,
            answer=tuple[Message, ...],
            query=(
                Query(
                    "limit",
                    "how many, the newest of them; default all",
                    shape=int,
                    least=1,
                    most=MESSAGES_AT_MOST,
                ),
                Query("before", "the id of a message: only those that came before it"),
            ),
            errors=("bad_request",),
            direct=True,
        ),
        Route(
            "GET",
            "/{sid}/messages/user",
            "List the messages of people in a session.",
            user_messages,
            name="list_session_prompts",
            stored=True,
            answer=tuple[Message, ...],
        ),
        group="Sessions",
        errors=STORE_ERRORS,
    ),
    *under(
        WORKSPACE,
        Route(
            "GET",
            "/messages/user",
            "List the messages of people in all sessions.",
            user_messages,
            name="list_prompts",
            stored=True,
            answer=tuple[Message, ...],
        ),
        Route(
            "GET",
            "/sessions/{sid}/filetracker/files",
            "List the files that a session has read.",
            files_read,
            name="list_read_files",
            stored=True,
            answer=tuple[str, ...],
        ),
        Route(
            "POST",
            "/filetracker/read",
            "Note that a session has read a file.",
            note_read,
            name="note_file_read",
            body=FileReadRequest,
            right=Right.ANSWER,
        ),
        Route(
            "GET",
            "/filetracker/lastread",
            "Show when a session last read a file; the zero time for never.",
            last_read,
            name="get_last_read",
            stored=True,
            answer=str,
            query=(Query("session_id", "the session"), Query("path", "the file")),
        ),
        group="Messages and files",
        errors=STORE_ERRORS,
    ),
)
