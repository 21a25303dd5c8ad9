"""Routes about permissions and questions (wire.md §3.6), and ours beside them (docs/http.md)."""

from quart import Blueprint, Response

from crush_trio.errors import PermissionActionInvalid
from crush_trio.server.answers import answer, nothing, read_body
from crush_trio.server.server import Site
from crush_trio.wire.asks import PermissionAction
from crush_trio.wire.ids import AskId
from crush_trio.wire.requests import (
    AnswerRequest,
    GrantRequest,
    PermissionSkip,
    RefusalRequest,
)
from crush_trio.wire.views import Resolved

_PERMISSIONS = "/v1/workspaces/<wid>/permissions"
_QUESTIONS = "/v1/workspaces/<wid>/questions"


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("asks", __name__)
    _permissions(group)
    _grants(group)
    _questions(group)
    return group


# ── Permissions ─────────────────────────────────────────────────────────────────────────────────


def _permissions(group: Blueprint) -> None:
    @group.get(_PERMISSIONS)
    def pending(site: Site, wid: str) -> Response:
        return answer(site.opened(wid).asks.permissions.pending)

    @group.get(f"{_PERMISSIONS}/skip")
    def skipping(site: Site, wid: str) -> Response:
        return answer(PermissionSkip(skip=site.opened(wid).asks.permissions.skip))

    @group.post(f"{_PERMISSIONS}/skip")
    async def skip(site: Site, wid: str) -> Response:
        permissions = site.opened(wid).asks.permissions
        permissions.skip = (await read_body(PermissionSkip)).skip
        return nothing()

    @group.post(f"{_PERMISSIONS}/grant")
    async def grant(site: Site, wid: str) -> Response:
        permissions = site.opened(wid).asks.permissions
        body = await read_body(GrantRequest)
        if body.action not in set(PermissionAction):
            raise PermissionActionInvalid(body.action)
        action = PermissionAction(body.action)
        return _resolved(permissions.answer(body.permission.id, action, body.scope))


def _grants(group: Blueprint) -> None:
    @group.get(f"{_PERMISSIONS}/grants")
    def grants(site: Site, wid: str) -> Response:
        return answer(site.opened(wid).asks.permissions.grants)

    @group.delete(f"{_PERMISSIONS}/grants/<gid>")
    def revoke(site: Site, wid: str, gid: str) -> Response:
        return _resolved(site.opened(wid).asks.permissions.revoke(AskId(gid)))


# ── Questions ───────────────────────────────────────────────────────────────────────────────────


def _questions(group: Blueprint) -> None:
    @group.get(_QUESTIONS)
    def pending_questions(site: Site, wid: str) -> Response:
        return answer(site.opened(wid).asks.questions.pending)

    @group.post(f"{_QUESTIONS}/answer")
    async def answer_questions(site: Site, wid: str) -> Response:
        questions = site.opened(wid).asks.questions
        body = await read_body(AnswerRequest)
        return _resolved(questions.answer(body.batch_request_id, body.responses))

    @group.post(f"{_QUESTIONS}/cancel")
    async def cancel_questions(site: Site, wid: str) -> Response:
        questions = site.opened(wid).asks.questions
        body = await read_body(RefusalRequest, RefusalRequest())
        return _resolved(questions.cancel(body.batch_request_id))


def _resolved(resolved: bool) -> Response:
    """Say whether a call settled anything; that it did not is no error (F2, F13)."""
    return answer(Resolved(resolved=resolved))
