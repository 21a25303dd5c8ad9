"""Routes about the agent: prompts in, cancels in, state out (wire.md §3.7).

What the native routes and the agent's share: accepting with a policy, stopping with a receipt.

Values of the runtime become values of the wire here, and nowhere else.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import trio
from quart import Blueprint, Response, request

from crush_trio.backend.workspace import HostedWorkspace
from crush_trio.errors import (
    DecodeError,
    RunIdStored,
    RunIdTaken,
    RunNotFound,
    SessionBusy,
    SummaryFailed,
)
from crush_trio.runtime.accepted import AcceptedRun
from crush_trio.runtime.outcome import Submission
from crush_trio.runtime.receipt import Hit, StopReceipt
from crush_trio.server import reads
from crush_trio.server.answers import answer, answer_values, nothing, read_body, respond
from crush_trio.server.server import Site
from crush_trio.store.errors import StoreUnavailable
from crush_trio.wire.asks import PermissionPolicy
from crush_trio.wire.ids import SessionId
from crush_trio.wire.requests import AgentInitRequest, AgentMessage, ShellRequest
from crush_trio.wire.runs import (
    HitView,
    QueueItem,
    ReceiptView,
    Repeated,
    RunKind,
    RunState,
    RunView,
    WhenBusy,
    WhenUnclaimed,
)
from crush_trio.wire.views import ShellResult

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
    runs, name = opened.runs, submission.run_id
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


async def _earlier(opened: HostedWorkspace, submission: Submission) -> RunView | None:
    """Return the stored run that the caller's id names, if there is one; it must be the same run.

    The workspace remembers its last runs only; of those before, and of those before a restart, the
    store knows, and refuses a second one.
    """
    await trio.lowlevel.checkpoint()
    if submission.run_id is None or opened.runs.knows(submission.run_id):
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


_BASE = "/v1/workspaces/<wid>/agent"


def routes() -> Blueprint:
    """Return the routes of this group."""
    group = Blueprint("agent", __name__)
    _agent(group)
    _sessions(group)
    _queue(group)
    return group


def _agent(group: Blueprint) -> None:
    @group.get(_BASE)
    async def info(site: Site, wid: str) -> Response:
        return respond(await reads.agent(site, request.args, wid))

    @group.post(_BASE)
    async def post(site: Site, wid: str) -> Response:
        """Accept a prompt. The run is the workspace's: a hang-up from here on changes nothing.

        Most prompts do not come this way, see `server.direct`.
        """
        repeated = await accept(site, wid, await read_body(AgentMessage))
        return nothing(202) if repeated is None else answer(repeated, 202)

    @group.post(f"{_BASE}/init")
    async def init(site: Site, wid: str) -> Response:
        opened = site.opened(wid)
        await read_body(AgentInitRequest, absent=AgentInitRequest())
        opened.init_agent()
        return nothing()

    @group.post(f"{_BASE}/update")
    async def update(site: Site, wid: str) -> Response:
        """Read the configuration again; what runs now goes on as it began."""
        await site.opened(wid).config.reload()
        return nothing()

    @group.get(f"{_BASE}/default-small-model")
    def default_small_model(site: Site, wid: str) -> Response:
        provider_id = request.args.get("provider_id", "")
        return answer(site.opened(wid).config.current.default_small_model(provider_id))


def _sessions(group: Blueprint) -> None:
    @group.get(f"{_BASE}/sessions/<sid>")
    async def session(site: Site, wid: str, sid: str) -> Response:
        return respond(await reads.agent_session(site, request.args, wid, sid))

    @group.post(f"{_BASE}/sessions/<sid>/cancel")
    async def cancel(site: Site, wid: str, sid: str) -> Response:
        cancel_session = site.opened(wid).runs.cancel
        return await stopped(partial(cancel_session, SessionId(sid), keep_queue=queue_kept()))

    @group.post(f"{_BASE}/sessions/<sid>/summarize")
    async def summarize(site: Site, wid: str, sid: str) -> Response:
        """Accept a summary as a run of its own kind, and answer when it has ended."""
        opened = site.opened(wid)
        opened.check_ready()
        await opened.store.session(SessionId(sid))
        if opened.runs.session_busy(SessionId(sid)):
            raise SessionBusy
        accepted = opened.send(Submission(session_id=SessionId(sid), kind=RunKind.SUMMARIZE))
        outcome = await accepted.wait()
        if outcome.state is RunState.ERRORED:
            raise SummaryFailed(outcome.error)
        return nothing()

    @group.post(f"{_BASE}/sessions/<sid>/shell")
    async def shell(site: Site, wid: str, sid: str) -> Response:
        """Run a command; a client that hangs up ends it."""
        opened = site.opened(wid)
        body = await read_body(ShellRequest)
        if "\0" in body.command:
            raise DecodeError("command: a null character cannot be part of a command")
        ran = await opened.run_shell(SessionId(sid), body.command, body.term_width)
        return answer(ShellResult(output=ran.output, exit_code=ran.exit_code))


def _queue(group: Blueprint) -> None:
    @group.get(f"{_BASE}/sessions/<sid>/prompts/queued")
    def queued(site: Site, wid: str, sid: str) -> Response:
        return answer(len(site.opened(wid).runs.queue(SessionId(sid))))

    @group.get(f"{_BASE}/sessions/<sid>/prompts/list")
    async def prompts(site: Site, wid: str, sid: str) -> Response:
        queue = site.opened(wid).runs.queue(SessionId(sid))
        return await answer_values([run.submission.prompt for run in queue])

    @group.post(f"{_BASE}/sessions/<sid>/prompts/clear")
    def clear(site: Site, wid: str, sid: str) -> Response:
        site.opened(wid).runs.clear_queue(SessionId(sid))
        return nothing()
