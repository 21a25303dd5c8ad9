"""Routes of the page: its files, what a browser may do, logging in and out, rendered messages.

`FILES` are rows like all others, so the guard, the limits and the metrics hold for them; they are no part
of the interface for programs, so no document lists them. They hold no secret and are open to all, like
the form that asks for a token.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Final

from crush_trio.errors import MessageNotFound
from crush_trio.server.audit_notes import LOGGED_IN, LOGGED_OUT
from crush_trio.server.guard import Caller, Unauthorized
from crush_trio.server.page.files import INDEX, SAFE_HEADERS, PageFiles
from crush_trio.server.page.login import cookie_header, is_secure, peer_name
from crush_trio.server.page.rendering import MessageGrowing
from crush_trio.server.routing import (
    EXTENSIONS,
    HTML,
    JSON,
    STORE_ERRORS,
    WORKSPACE,
    Call,
    Reply,
    Route,
    under,
)
from crush_trio.server.tokens import Right
from crush_trio.wire.answers import PageView, RenderedDiff, RenderedMessage
from crush_trio.wire.ids import MessageId
from crush_trio.wire.requests import DiffRequest, LoginRequest

_NOT_STORED: Final = (b"cache-control", b"no-store")
_NO_FILE: Final = Reply(
    b"404 page not found\n",
    404,
    ((b"content-type", b"text/plain; charset=utf-8"), *SAFE_HEADERS),
)


# ── Files ───────────────────────────────────────────────────────────────────────────────────────


@cache
def _files() -> PageFiles:
    return PageFiles()


def index(call: Call) -> Reply:
    """Return the document of the page; the address says what it will show."""
    return _file(call, INDEX)


def page_file(call: Call) -> Reply:
    """Return a file of the page."""
    folder = f"{call.values['folder']}/" if "folder" in call.values else ""
    return _file(call, f"page/{folder}{call.values['file']}")


def module_file(call: Call) -> Reply:
    """Return a file of the JavaScript module."""
    name = call.values["file"]
    return _file(call, name) if name.endswith(".js") else _NO_FILE


def _file(call: Call, name: str) -> Reply:
    found = _files().find(name)
    if found is None:
        return _NO_FILE
    if found.matches(call.header(b"if-none-match")):
        return Reply(status=304, headers=found.headers)
    return Reply(found.content, headers=found.headers)


# ── Logging in ──────────────────────────────────────────────────────────────────────────────────


def page(call: Call) -> PageView:
    """Return whether the browser must log in, and what it may do."""
    caller = call.caller
    if not caller.known:
        return PageView(login=True)
    return PageView(
        login=caller.cookie,
        right=caller.right.value,
        logged_in=caller.cookie,
        version=call.server.version.version,
        directory=_own_directory(),
    )


def _own_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - as text, which it is sent as
    except OSError:
        return ""  # it was deleted


def login(call: Call) -> Reply:
    """Exchange a token or a one-time code for a cookie."""
    logins, body = call.server.logins, call.body
    if not logins.tokens.required:
        return Reply(status=204)
    peer = peer_name(call.scope)
    logins.check_tries(peer)
    opened = logins.open_with_code(body.code) if body.code else logins.open_with_token(body.token)
    if opened is None:
        logins.note_failed(peer)
        raise Unauthorized
    name, value = opened
    call.caller = Caller(token=name)  # for the audit
    return Reply(status=204, headers=(_cookie(call, value), _NOT_STORED))


def logout(call: Call) -> Reply:
    """End the session of the browser."""
    call.server.logins.close(call.header(b"cookie") or "")
    return Reply(status=204, headers=(_cookie(call, ""), _NOT_STORED))


def _cookie(call: Call, value: str) -> tuple[bytes, bytes]:
    scheme = call.scope.get("scheme", "http")
    secure = is_secure(call.server.public_url, scheme, call.header(b"origin"))
    return cookie_header(value, secure=secure)


# ── Rendered ────────────────────────────────────────────────────────────────────────────────────


async def rendered(call: Call) -> Reply:
    """Return a finished message as HTML."""
    stored = await call.workspace.store.message(MessageId(call.values["mid"]))
    if stored.message.session_id != call.session_id:
        raise MessageNotFound(call.values["mid"])
    if not stored.finished:
        raise MessageGrowing
    return _json(await call.server.rendering.message(call.values["wid"], stored.message))


async def rendered_diff(call: Call) -> Reply:
    """Return a change of a file as HTML."""
    body = call.body
    return _json(await call.server.rendering.diff(body.path, body.old, body.new))


def _json(body: bytes) -> Reply:
    return Reply(body, headers=((b"content-type", JSON.encode()),))


def _open_file(path: str, handler: Callable[[Call], Reply], name: str) -> Route:
    return Route(
        "GET",
        path,
        "Show the page.",
        handler,
        name=name,
        answer=str,
        media=HTML,
        needs_workspace=False,
        open_to_all=True,
        direct=True,
    )


FILES: Final[tuple[Route, ...]] = (
    _open_file("/", index, "get_page"),
    _open_file("/w/{wid}/s/{sid}", index, "get_page_of_session"),
    _open_file("/w/{wid}/s/{sid}/m/{mid}", index, "get_page_of_message"),
    _open_file("/w/{wid}/s/{sid}/r/{rid}", index, "get_page_of_run"),
    _open_file("/page/{file}", page_file, "get_page_file"),
    _open_file("/page/{folder}/{file}", page_file, "get_file_of_page_folder"),
    _open_file("/web/{file}", module_file, "get_module_file"),
)

ROUTES: Final = (
    *under(
        "/v1",
        Route(
            "GET",
            "/page",
            "Show whether this browser must log in, and what it may do.",
            page,
            name="get_page_state",
            answer=PageView,
            open_to_all=True,
            direct=True,
        ),
        Route(
            "POST",
            "/login",
            "Log a browser in, with a token or a one-time code: the answer sets a cookie.",
            login,
            name="log_in",
            body=LoginRequest,
            status=204,
            errors=("csrf", "too_many_logins", "unauthorized"),
            right=Right.WATCH,
            open_to_all=True,
            direct=True,
            audit=LOGGED_IN,
        ),
        Route(
            "POST",
            "/logout",
            "Log a browser out: its cookie is worth nothing any more.",
            logout,
            name="log_out",
            status=204,
            errors=("csrf",),
            right=Right.WATCH,
            open_to_all=True,
            direct=True,
            audit=LOGGED_OUT,
        ),
        Route(
            "POST",
            "/render/diff",
            "Show a change of a file as an HTML table.",
            rendered_diff,
            name="render_diff",
            body=DiffRequest,
            answer=RenderedDiff,
            right=Right.WATCH,
            changes=False,
            errors=("csrf",),
        ),
        group=EXTENSIONS,
    ),
    *under(
        WORKSPACE,
        Route(
            "GET",
            "/sessions/{sid}/messages/{mid}/rendered",
            "Show a finished message as HTML.",
            rendered,
            name="get_rendered_message",
            answer=RenderedMessage,
            errors=("message_growing", "message_not_found"),
        ),
        group=EXTENSIONS,
        errors=STORE_ERRORS,
    ),
)
