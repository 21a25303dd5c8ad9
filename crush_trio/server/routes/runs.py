"""Routes that the Go program does not have: runs, cancel receipts, queue items, tasks (docs/http.md)."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from crush_trio.agent.record.capsule import MEDIA, NotRecorded, completed
from crush_trio.errors import DecodeError, RunNotFound, RunNotQueued
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.receipt import Hit, StopReceipt
from crush_trio.server.audit_notes import CANCELLED, QUEUE_CHANGED
from crush_trio.server.routing import (
    EXTENSIONS,
    RECEIPT,
    STORE_ERRORS,
    WORKSPACE,
    Call,
    Query,
    Reply,
    Route,
    under,
)
from crush_trio.server.tokens import Right, RightMissing
from crush_trio.wire.answers import HitView, QueueEdit, QueueItem, ReceiptView, TaskTree
from crush_trio.wire.asks import PermissionMode, PermissionPolicy
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunState, RunView

if TYPE_CHECKING:
    from crush_trio.backend.workspace import HostedWorkspace
    from crush_trio.server.cluster.stored import StoredWorkspace

NOT_RECORDED: Final = (
    'ask for it with "record": true in the submission, with run --record, or with crush_trio.record in '
    "your own configuration; a run that was cancelled before it began has no recording"
)

RUNS_LISTED: Final = 100
RUNS_LISTED_AT_MOST: Final = 1000

RECEIPT_LIMIT: Final = 20.0
"""Seconds that a caller waits for a receipt; a turn that does not end cannot delay the answer for longer."""


# ── Runs ────────────────────────────────────────────────────────────────────────────────────────


async def listed(call: Call) -> list[RunView]:
    """Return the runs, the newest first."""
    workspace, session_id = call.records, call.query.get("session_id")
    limit = call.number("limit", RUNS_LISTED_AT_MOST) or RUNS_LISTED
    stored = await workspace.store.runs(SessionId(session_id) if session_id else None, limit)
    return [_fresh(workspace, view) for view in stored]


def _fresh(workspace: "HostedWorkspace | StoredWorkspace", stored: RunView) -> RunView:
    """Return the run as it is now: its row may be a moment behind."""
    with suppress(RunNotFound):
        return workspace.runs.find(stored.id).view
    return stored


async def show(call: Call) -> RunView:
    """Return a run."""
    await trio.lowlevel.checkpoint()
    workspace = call.records
    if workspace.runs.knows(call.run_id):
        return workspace.runs.find(call.run_id).view
    return (await workspace.store.run(call.run_id)).view


async def cancel(call: Call) -> ReceiptView | None:
    """Cancel one run. A run that only the store remembers has ended: there is nothing to hit."""
    workspace = call.workspace
    if not workspace.runs.knows(call.run_id):
        await workspace.store.run(call.run_id)  # raises RunNotFound if there is no such run
        stop: Callable[[], StopReceipt] = lambda: StopReceipt(())  # noqa: E731
    else:
        stop = partial(workspace.runs.cancel_run, call.run_id)
    return await stopped(call, stop, lambda run: call.run_id in {run.id, run.run_id})


async def capsule(call: Call) -> Reply:
    """Return the recording of a run, as the lines of a capsule."""
    workspace = call.workspace
    run = await show(call)
    recordings = workspace.agent.recordings
    if recordings is not None:
        await recordings.settled(run.id)
    pieces = await workspace.store.recording(run.id)
    if not pieces:
        raise NotRecorded(NOT_RECORDED)
    name = f'attachment; filename="{run.id}.capsule"'.encode()
    headers = ((b"content-type", MEDIA.encode()), (b"content-disposition", name))
    return Reply(completed(pieces, (await show(call)).state.value), headers=headers)


def tasks(call: Call) -> TaskTree:
    """Return the tasks of the workspace, and what each waits on."""
    return call.workspace.runs.tasks()


# ── Receipts ────────────────────────────────────────────────────────────────────────────────────


async def stopped(
    call: Call, stop: Callable[[], StopReceipt], meant: Callable[[RunView], bool]
) -> ReceiptView | None:
    """Cancel, and return what was hit: at once, or with `?receipt=1` when all of it has ended.

    After a server of the workspace was killed, its runs are being ended by the next one, or this very
    request has it do so. Those that are *meant* are part of the receipt: they end here.

    Clients of the Go program do not ask for a receipt, and get none.

    A query that makes no sense is refused first. After that there is no checkpoint before the
    cancel, and a caller that disconnects only stops waiting: the runs end all the same.
    """
    wanted = call.flag("receipt")
    recovery = call.workspace.recovery
    before = () if call.here.reopened else {run.id for run in recovery.ended}
    receipt = stop()
    await trio.lowlevel.checkpoint()
    if RECEIPT.name not in call.query:
        return None
    if wanted:
        with trio.move_on_after(RECEIPT_LIMIT):
            await recovery.done.wait()
            await receipt.settled()
    found = [run for run in recovery.ended if run.id not in before and meant(run)]
    hits = *map(_found, found), *map(_hit, receipt.hits)
    return ReceiptView(complete=receipt.complete and recovery.done.is_set(), hits=hits)


def _found(run: RunView) -> HitView:
    """Return a run of a server that is gone, as a receipt has it: its processes ended with that server."""
    return HitView(
        id=run.id,
        run_id=run.run_id,
        session_id=run.session_id,
        state=RunState.ACTIVE if run.started_at else RunState.QUEUED,
        ended=run.state,
        error=run.error,
        seconds=0.0,
    )


def _hit(hit: Hit) -> HitView:
    outcome, took = hit.outcome, hit.took
    return HitView(
        id=hit.run_id,
        run_id=hit.run.submission.run_id,
        session_id=hit.session_id,
        state=hit.state,
        ended=None if outcome is None else outcome.state,
        error="" if outcome is None else outcome.error,
        seconds=None if took is None else round(took, 6),
        processes=hit.processes,
        left=hit.left,
    )


# ── The queue ───────────────────────────────────────────────────────────────────────────────────


def queue(call: Call) -> list[QueueItem]:
    """Return the queued runs of a session."""
    return [_item(run) for run in call.workspace.runs.queue(call.session_id)]


async def edit_item(call: Call) -> list[QueueItem]:
    """Change the text or the place of a queued run, or have it run now."""
    body: QueueEdit = call.body
    if body.index is not None and body.index < 0:
        raise DecodeError("index is negative")
    if body.index and body.interrupt:
        raise DecodeError("interrupt needs index 0: the run would not be the next")
    run = _queued(call)
    if body.prompt is not None:
        check_unasked(call, run.submission.permissions)
    await call.workspace.edit_queued(run.id, body.prompt, body.index, interrupt=body.interrupt)
    return queue(call)


def check_unasked(call: Call, policy: PermissionPolicy) -> None:
    """Raise `RightMissing` if a run with this policy asks about less, and the caller is no administrator.

    Who may answer allows what is asked. In a run that does not ask, the same token would choose the
    action as well, unseen by anyone else.
    """
    unasked = policy.mode is PermissionMode.ALLOW or policy.allow_list
    if unasked and not call.caller.right.covers(Right.ADMIN):
        raise RightMissing(
            f"{call.caller.token} may {call.caller.right}, and a run that allows tools without asking "
            f"needs {Right.ADMIN}; without permissions.mode allow and permissions.allow_list it asks"
        )


def delete_item(call: Call) -> None:
    """Cancel a queued run."""
    call.workspace.runs.cancel_run(_queued(call).id)


def _queued(call: Call) -> AcceptedRun:
    """Return a run that is in the queue of the session; raise `RunNotFound` or `RunNotQueued`."""
    runs = call.workspace.runs
    run = runs.find(call.run_id)
    if run.session_id != call.session_id:
        raise RunNotFound(call.run_id)
    if run not in runs.queue(run.session_id):
        raise RunNotQueued(call.run_id)
    return run


def _item(run: AcceptedRun) -> QueueItem:
    return QueueItem(
        id=run.id,
        run_id=run.submission.run_id,
        prompt=run.submission.prompt,
        attachments=len(run.submission.attachments),
        accepted_at=run.view.accepted_at,
        when_unclaimed=run.submission.when_unclaimed,
    )


ROUTES: Final = (
    *under(
        f"{WORKSPACE}/runs",
        Route(
            "GET",
            "",
            "List the runs, the newest first.",
            listed,
            name="list_runs",
            stored=True,
            answer=tuple[RunView, ...],
            query=(
                Query("session_id", "only of this session"),
                Query(
                    "limit",
                    "how many at most",
                    shape=int,
                    least=1,
                    most=RUNS_LISTED_AT_MOST,
                    usual=RUNS_LISTED,
                ),
            ),
            errors=("bad_request",),
            direct=True,
        ),
        Route(
            "GET",
            "/{rid}",
            "Show a run.",
            show,
            name="get_run",
            stored=True,
            answer=RunView,
            errors=("run_not_found",),
            direct=True,
        ),
        Route(
            "GET",
            "/{rid}/capsule",
            "Get the recording of a run, as a capsule (docs/capsules.md).",
            capsule,
            name="get_capsule",
            answer=str,
            media=MEDIA,
            errors=("not_recorded", "run_not_found"),
            right=Right.ADMIN,
        ),
        Route(
            "POST",
            "/{rid}/cancel",
            "Cancel one run.",
            cancel,
            name="cancel_run",
            stops=True,
            answer=ReceiptView,
            query=(RECEIPT,),
            errors=("bad_request", "run_not_found"),
            right=Right.ANSWER,
            audit=CANCELLED,
            direct=True,
        ),
        group=EXTENSIONS,
        errors=STORE_ERRORS,
    ),
    *under(
        f"{WORKSPACE}/agent/sessions/{{sid}}/queue",
        Route(
            "GET",
            "",
            "List the queued runs.",
            queue,
            name="list_queue",
            answer=tuple[QueueItem, ...],
            direct=True,
        ),
        Route(
            "PATCH",
            "/{rid}",
            "Change the text or the place of a queued run, or have it run now.",
            edit_item,
            name="edit_queued_run",
            body=QueueEdit,
            answer=tuple[QueueItem, ...],
            errors=(
                *("prompt_empty", "prompt_too_long", "run_not_found", "run_not_queued"),
                *(*STORE_ERRORS, "right_missing", "workspace_not_found"),
            ),
            needs_workspace=False,
            right=Right.ANSWER,
            audit=QUEUE_CHANGED,
        ),
        Route(
            "DELETE",
            "/{rid}",
            "Cancel a queued run.",
            delete_item,
            name="remove_queued_run",
            errors=("run_not_found", "run_not_queued"),
            right=Right.ANSWER,
            audit=CANCELLED,
        ),
        group=EXTENSIONS,
    ),
    *under(
        WORKSPACE,
        Route(
            "GET",
            "/tasks",
            "Show the tasks of the workspace, and what each waits on.",
            tasks,
            name="get_tasks",
            answer=TaskTree,
        ),
        group=EXTENSIONS,
    ),
)
