"""Routes that the Go program does not have: runs, queue items, tasks (docs/http.md)."""

from contextlib import suppress
from functools import partial

import trio
from quart import Blueprint, Response, request

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import DecodeError, RunNotFound, RunNotQueued
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.receipt import StopReceipt
from crush_trio.server.answers import answer, answer_values, nothing, read_body
from crush_trio.server.reads import number
from crush_trio.server.routes.agent import queue_item, stopped
from crush_trio.server.server import Site
from crush_trio.wire.ids import RunId, SessionId
from crush_trio.wire.runs import QueueEdit, QueueItem, RunView

_BASE = "/v1/workspaces/<wid>"
_QUEUE = f"{_BASE}/agent/sessions/<sid>/queue"

RUNS_LISTED = 100
RUNS_LISTED_AT_MOST = 1000


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("native", __name__)
    _runs(group)
    _queue(group)

    @group.get(f"{_BASE}/tasks")
    def tasks(site: Site, wid: str) -> Response:
        return answer(site.opened(wid).runs.tasks())

    return group


# ── Runs ────────────────────────────────────────────────────────────────────────────────────────


def _runs(group: Blueprint) -> None:
    @group.get(f"{_BASE}/runs")
    async def runs(site: Site, wid: str) -> Response:
        opened = site.opened(wid)
        session_id = request.args.get("session_id")
        query = {"limit": str(RUNS_LISTED), **request.args.to_dict()}
        limit = number(query, "limit", RUNS_LISTED_AT_MOST)
        stored = await opened.store.runs(SessionId(session_id) if session_id else None, limit)
        return await answer_values([_fresh(opened, view) for view in stored])

    @group.get(f"{_BASE}/runs/<rid>")
    async def run(site: Site, wid: str, rid: str) -> Response:
        opened, run_id = site.opened(wid), RunId(rid)
        await trio.lowlevel.checkpoint()
        if opened.runs.knows(run_id):
            return answer(opened.runs.find(run_id).view)
        return answer((await opened.store.run(run_id)).view)

    @group.post(f"{_BASE}/runs/<rid>/cancel")
    async def cancel_run(site: Site, wid: str, rid: str) -> Response:
        """Cancel one run. One that only the store remembers has ended: there is nothing to hit."""
        opened, run_id = site.opened(wid), RunId(rid)
        if not opened.runs.knows(run_id):
            await opened.store.run(run_id)  # or there is no such run at all
            return await stopped(lambda: StopReceipt(()))
        return await stopped(partial(opened.runs.cancel_run, run_id))


def _fresh(opened: HostedWorkspace, stored: RunView) -> RunView:
    """Return the run as it is now: its row may be a moment behind."""
    with suppress(RunNotFound):
        return opened.runs.find(stored.id).view
    return stored


# ── The queue ───────────────────────────────────────────────────────────────────────────────────


def _queue(group: Blueprint) -> None:
    @group.get(_QUEUE)
    async def queue(site: Site, wid: str, sid: str) -> Response:
        return await answer_values(_items(site.opened(wid), sid))

    @group.patch(f"{_QUEUE}/<rid>")
    async def edit_item(site: Site, wid: str, sid: str, rid: str) -> Response:
        body = await read_body(QueueEdit)
        if body.index is not None and body.index < 0:
            raise DecodeError("index is negative")
        opened = site.opened(wid)
        run = _waiting(opened, sid, rid)
        await opened.edit_queued(run.id, body.prompt, body.index)
        return await answer_values(_items(opened, sid))

    @group.delete(f"{_QUEUE}/<rid>")
    def delete_item(site: Site, wid: str, sid: str, rid: str) -> Response:
        opened = site.opened(wid)
        opened.runs.cancel_run(_waiting(opened, sid, rid).id)
        return nothing()


def _items(opened: HostedWorkspace, sid: str) -> list[QueueItem]:
    return [queue_item(run) for run in opened.runs.queue(SessionId(sid))]


def _waiting(opened: HostedWorkspace, sid: str, rid: str) -> AcceptedRun:
    """Return a run that waits in the queue of the session, or say what is wrong with it."""
    run = opened.runs.find(RunId(rid))
    if run.session_id != sid:
        raise RunNotFound(rid)
    if run not in opened.runs.queue(run.session_id):
        raise RunNotQueued(rid)
    return run
