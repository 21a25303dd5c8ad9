"""What the native routes and the agent's share: accepting with a policy, stopping with a receipt.

Values of the runtime become values of the wire here, and nowhere else.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import trio
from quart import Response, request

from crush_trio.backend.opened import OpenedWorkspace
from crush_trio.errors import DecodeError, RunIdStored, RunIdTaken, RunNotFound, SessionBusy
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Submission
from crush_trio.runtime.receipt import Hit, StopReceipt
from crush_trio.server.answers import answer, nothing
from crush_trio.server.site import Site
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.asks import PermissionPolicy
from crush_trio.wire.native import (
    HitView,
    QueueItem,
    ReceiptView,
    Repeated,
    RunView,
    WhenBusy,
    WhenUnclaimed,
)
from crush_trio.wire.requests import AgentMessage

RECEIPT_LIMIT: Final = 20.0
"""Seconds that a caller waits for a receipt; a turn that will not end cannot hold the answer."""


async def accept(site: Site, wid: str, body: AgentMessage) -> Repeated | None:
    """Accept a prompt and return once that is durable; what is returned says that it was before."""
    opened = site.opened(wid)
    submission = Submission(
        session_id=body.session_id,
        prompt=body.prompt,
        attachments=body.attachments,
        run_id=body.run_id or None,
        when_busy=body.when_busy or WhenBusy.ENQUEUE,
        when_unclaimed=body.when_unclaimed or WhenUnclaimed.CANCEL,
        permissions=body.permissions or PermissionPolicy(),
        interactive=_is_interactive(body),
        model=body.model,
    )
    runs, name = opened.durable.runs, submission.run_id
    known = name is not None and runs.knows(name)
    try:
        accepted = opened.send(submission, partial(site.backend.reconsider, opened.id))
        await accepted.journaled()
    except (SessionBusy, RunIdStored):
        earlier = await _earlier(opened, submission)
        if earlier is None:
            raise
        return _repeated(earlier)
    return _repeated(accepted.view) if known else None


def _is_interactive(body: AgentMessage) -> bool:
    """Whether a person sits at the client that sent *body*, unless it says so itself.

    The Go program's `run` command names its runs and answers nothing it is asked; its terminal
    client does neither.
    """
    return not body.run_id if body.interactive is None else body.interactive


async def _earlier(opened: OpenedWorkspace, submission: Submission) -> RunView | None:
    """Return the stored run that the caller's id names, if there is one; it must be the same run.

    The workspace remembers its last runs only; of those before, and of those before a restart, the
    store knows, and refuses a second one.
    """
    await trio.lowlevel.checkpoint()
    if submission.run_id is None or opened.durable.runs.knows(submission.run_id):
        return None
    try:
        stored = await opened.store.run(submission.run_id)
    except (RunNotFound, StoreUnavailable):
        return None
    if stored.view.run_id != submission.run_id:  # our own id of some other run
        return None
    if (stored.view.session_id, stored.prompt) != (submission.session_id, submission.prompt):
        raise RunIdTaken(submission.run_id)
    return stored.view


def _repeated(run: RunView) -> Repeated:
    return Repeated(id=run.id, run_id=run.run_id or run.id)


# ── Stopping ────────────────────────────────────────────────────────────────────────────────────


async def stopped(stop: Callable[[], StopReceipt]) -> Response:
    """Cancel and answer: at once, or with `?receipt=1` when everything that was hit has ended.

    A query that makes no sense is refused first. After that there is no checkpoint before the
    cancel, and a caller that hangs up only stops waiting: the runs end all the same.
    """
    wanted = _flag("receipt")
    receipt = stop()
    await trio.lowlevel.checkpoint()
    if not wanted:
        return nothing()
    with trio.move_on_after(RECEIPT_LIMIT):
        await receipt.settled()
    return answer(receipt_view(receipt))


def receipt_view(receipt: StopReceipt) -> ReceiptView:
    """Return a receipt as it stands now."""
    return ReceiptView(complete=receipt.complete, hits=tuple(map(_hit, receipt.hits)))


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


def queue_item(run: AcceptedRun) -> QueueItem:
    """Return a waiting run as an item of its queue."""
    return QueueItem(
        id=run.id,
        run_id=run.submission.run_id,
        prompt=run.submission.prompt,
        attachments=len(run.submission.attachments),
        accepted_at=run.view.accepted_at,
        when_unclaimed=run.submission.when_unclaimed,
    )


# ── Queries ─────────────────────────────────────────────────────────────────────────────────────


def queue_kept() -> bool:
    """Whether a cancel is to leave the queue alone, as the query says."""
    value = request.args.get("queue", "cancel")
    if value not in {"keep", "cancel"}:
        raise DecodeError("queue is neither keep nor cancel")
    return value == "keep"


def _flag(name: str) -> bool:
    """Whether a switch in the query is on."""
    value = request.args.get(name, "0")
    if value not in {"0", "1", "false", "true"}:
        raise DecodeError(f"{name} is neither 0 nor 1")
    return value in {"1", "true"}
