"""Routes about the agent: prompts in, cancels in, state out (wire.md §3.7)."""

from functools import partial

from quart import Blueprint, Response, request

from crush_trio.errors import DecodeError, SessionBusy, SummaryFailed
from crush_trio.runtime.outcome import Submission
from crush_trio.server import reads
from crush_trio.server.answers import answer, answer_values, nothing, read_body, respond
from crush_trio.server.native import accept, queue_kept, stopped
from crush_trio.server.site import Site
from crush_trio.wire.ids import SessionId
from crush_trio.wire.native import RunKind, RunState
from crush_trio.wire.requests import AgentInitRequest, AgentMessage, ShellRequest
from crush_trio.wire.views import ShellResult

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
        await site.opened(wid).live.reload()
        return nothing()

    @group.get(f"{_BASE}/default-small-model")
    def default_small_model(site: Site, wid: str) -> Response:
        provider_id = request.args.get("provider_id", "")
        return answer(site.opened(wid).live.current.default_small_model(provider_id))


def _sessions(group: Blueprint) -> None:
    @group.get(f"{_BASE}/sessions/<sid>")
    async def session(site: Site, wid: str, sid: str) -> Response:
        return respond(await reads.agent_session(site, request.args, wid, sid))

    @group.post(f"{_BASE}/sessions/<sid>/cancel")
    async def cancel(site: Site, wid: str, sid: str) -> Response:
        cancel_session = site.opened(wid).durable.runs.cancel
        return await stopped(partial(cancel_session, SessionId(sid), keep_queue=queue_kept()))

    @group.post(f"{_BASE}/sessions/<sid>/summarize")
    async def summarize(site: Site, wid: str, sid: str) -> Response:
        """Accept a summary as a run of its own kind, and answer when it has ended."""
        opened = site.opened(wid)
        opened.check_ready()
        await opened.store.session(SessionId(sid))
        if opened.durable.runs.session_busy(SessionId(sid)):
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
        return answer(len(site.opened(wid).durable.runs.queue(SessionId(sid))))

    @group.get(f"{_BASE}/sessions/<sid>/prompts/list")
    async def prompts(site: Site, wid: str, sid: str) -> Response:
        queue = site.opened(wid).durable.runs.queue(SessionId(sid))
        return await answer_values([run.submission.prompt for run in queue])

    @group.post(f"{_BASE}/sessions/<sid>/prompts/clear")
    def clear(site: Site, wid: str, sid: str) -> Response:
        site.opened(wid).durable.runs.clear_queue(SessionId(sid))
        return nothing()
