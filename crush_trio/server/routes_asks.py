"""Routes about permissions and questions (wire.md §3.6).

Nothing in this build asks a person anything, so no answer can settle anything: `resolved` is false.
"""

from quart import Blueprint, Response

from crush_trio.errors import PermissionActionInvalid
from crush_trio.server.answers import answer, nothing, read_body
from crush_trio.server.site import Site
from crush_trio.wire.asks import PermissionAction
from crush_trio.wire.requests import AnswerRequest, GrantRequest, PermissionSkip
from crush_trio.wire.views import Resolved

_BASE = "/v1/workspaces/<wid>"


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("asks", __name__)

    @group.get(f"{_BASE}/permissions/skip")
    def skipping(site: Site, wid: str) -> Response:
        return answer(PermissionSkip(skip=site.opened(wid).skip_permissions))

    @group.post(f"{_BASE}/permissions/skip")
    async def skip(site: Site, wid: str) -> Response:
        opened = site.opened(wid)
        opened.skip_permissions = (await read_body(PermissionSkip)).skip
        return nothing()

    @group.post(f"{_BASE}/permissions/grant")
    async def grant(site: Site, wid: str) -> Response:
        site.opened(wid)
        body = await read_body(GrantRequest)
        if body.action not in set(PermissionAction):
            raise PermissionActionInvalid(body.action)
        return answer(Resolved(resolved=False))

    @group.post(f"{_BASE}/questions/answer")
    async def answer_questions(site: Site, wid: str) -> Response:
        site.opened(wid)
        await read_body(AnswerRequest)
        return answer(Resolved(resolved=False))

    @group.post(f"{_BASE}/questions/cancel")
    def cancel_questions(site: Site, wid: str) -> Response:
        site.opened(wid)
        return answer(Resolved(resolved=False))

    return group
