"""The client for programs without async: `open_client_sync`. Every method waits for its answer.

The client itself runs under Trio, in a thread of its own; a call here is a call there. So everything that
is said of `Client`, `RemoteWorkspace` and `RunHandle` holds here too: streams are resumed, a lost answer is asked
for again. A method is stated once, by the name of the async one: its parameters, its result and its docstring are those.

Ctrl-C ends the call that waits, and what it was doing in the other thread. Objects may be used by several
threads. In a program that has an event loop, use `open_client`: a call here would hold the loop up.
"""

import os
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec

from anyio.from_thread import start_blocking_portal

from crush_trio.client.client import Client, open_client
from crush_trio.client.events import WorkspaceEvent
from crush_trio.client.follower import RunPiece
from crush_trio.client.run import RunHandle
from crush_trio.client.session_routes import (
    AgentRoutes,
    PermissionRoutes,
    QuestionRoutes,
    QueueRoutes,
    RunRoutes,
    SessionRoutes,
)
from crush_trio.client.sync_calls import (
    Caller,
    Face,
    Group,
    SyncReader,
    blocking,
    check_may_block,
    limited,
)
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.client.workspace_routes import (
    ConfigRoutes,
    LspRoutes,
    McpRoutes,
    ProjectRoutes,
    SkillRoutes,
)
from crush_trio.net.address import Address
from crush_trio.wire.config import WorkspaceView
from crush_trio.wire.ids import ClientId, RunId, WorkspaceId

P = ParamSpec("P")


# ── The routes ──────────────────────────────────────────────────────────────────────────────────


class SyncSessions(Face[SessionRoutes]):
    """The conversations of a workspace."""

    list = blocking(SessionRoutes.list)
    create = blocking(SessionRoutes.create)
    get = blocking(SessionRoutes.get)
    save = blocking(SessionRoutes.save)
    rename = blocking(SessionRoutes.rename)
    delete = blocking(SessionRoutes.delete)
    messages = blocking(SessionRoutes.messages)
    prompts = blocking(SessionRoutes.prompts)
    history = blocking(SessionRoutes.history)
    files_read = blocking(SessionRoutes.files_read)
    note_read = blocking(SessionRoutes.note_read)
    last_read = blocking(SessionRoutes.last_read)


class SyncRuns(Face[RunRoutes]):
    """The runs of a workspace. Every route takes the server's id of a run or the caller's."""

    list = blocking(RunRoutes.list)
    get = blocking(RunRoutes.get)
    cancel = blocking(RunRoutes.cancel)
    capsule = blocking(RunRoutes.capsule)
    timeline = blocking(RunRoutes.timeline)


class SyncQueue(Face[QueueRoutes]):
    """The runs of a session that wait behind the active one."""

    list = blocking(QueueRoutes.list)
    edit = blocking(QueueRoutes.edit)
    move = blocking(QueueRoutes.move)
    run_now = blocking(QueueRoutes.run_now)
    delete = blocking(QueueRoutes.delete)
    clear = blocking(QueueRoutes.clear)
    count = blocking(QueueRoutes.count)
    prompts = blocking(QueueRoutes.prompts)


class SyncPermissions(Face[PermissionRoutes]):
    """Permissions of tools. Of several answers to a request the first one counts."""

    pending = blocking(PermissionRoutes.pending)
    answer = blocking(PermissionRoutes.answer)
    grant = blocking(PermissionRoutes.grant)
    deny = blocking(PermissionRoutes.deny)
    grants = blocking(PermissionRoutes.grants)
    revoke = blocking(PermissionRoutes.revoke)
    rules = blocking(PermissionRoutes.rules)
    add_rule = blocking(PermissionRoutes.add_rule)
    remove_rule = blocking(PermissionRoutes.remove_rule)
    skipping = blocking(PermissionRoutes.skipping)
    skip = blocking(PermissionRoutes.skip)


class SyncQuestions(Face[QuestionRoutes]):
    """Questions of models. A batch of questions is answered together."""

    pending = blocking(QuestionRoutes.pending)
    answer = blocking(QuestionRoutes.answer)
    cancel = blocking(QuestionRoutes.cancel)


class SyncAgent(Face[AgentRoutes]):
    """The agent of the workspace."""

    info = blocking(AgentRoutes.info)
    init = blocking(AgentRoutes.init)
    update = blocking(AgentRoutes.update)
    default_small_model = blocking(AgentRoutes.default_small_model)
    session = blocking(AgentRoutes.session)


class SyncLsp(Face[LspRoutes]):
    """The language servers of a workspace."""

    list = blocking(LspRoutes.list)
    diagnostics = blocking(LspRoutes.diagnostics)
    start = blocking(LspRoutes.start)
    stop = blocking(LspRoutes.stop)


class SyncSkills(Face[SkillRoutes]):
    """The skills that a workspace knows."""

    list = blocking(SkillRoutes.list)
    read = blocking(SkillRoutes.read)


class SyncMcp(Face[McpRoutes]):
    """The MCP servers of a workspace."""

    list = blocking(McpRoutes.list)
    pending_logins = blocking(McpRoutes.pending_logins)
    login_url = blocking(McpRoutes.login_url)
    log_in = blocking(McpRoutes.log_in)
    prompts = blocking(McpRoutes.prompts)
    prompt = blocking(McpRoutes.prompt)
    read_resource = blocking(McpRoutes.read_resource)
    refresh_tools = blocking(McpRoutes.refresh_tools)
    refresh_prompts = blocking(McpRoutes.refresh_prompts)
    refresh_resources = blocking(McpRoutes.refresh_resources)
    enable_docker = blocking(McpRoutes.enable_docker)
    disable_docker = blocking(McpRoutes.disable_docker)


class SyncConfig(Face[ConfigRoutes]):
    """The configuration. `scope` says which file a change goes to; keys are dotted paths."""

    get = blocking(ConfigRoutes.get)
    set = blocking(ConfigRoutes.set)
    remove = blocking(ConfigRoutes.remove)
    select_model = blocking(ConfigRoutes.select_model)
    compact = blocking(ConfigRoutes.compact)
    provider_key = blocking(ConfigRoutes.provider_key)
    refresh_oauth = blocking(ConfigRoutes.refresh_oauth)
    import_copilot = blocking(ConfigRoutes.import_copilot)


class SyncProject(Face[ProjectRoutes]):
    """Project set-up."""

    needs_init = blocking(ProjectRoutes.needs_init)
    mark_initialized = blocking(ProjectRoutes.mark_initialized)
    init_prompt = blocking(ProjectRoutes.init_prompt)


# ── Runs, workspaces, the client ────────────────────────────────────────────────────────────────


class SyncRun(Face[RunHandle]):
    """One run of the workspace; see `RunHandle`."""

    view = blocking(RunHandle.view)
    cancel = blocking(RunHandle.cancel)
    wait = blocking(RunHandle.wait)
    result_text = blocking(RunHandle.result_text)

    @property
    def id(self) -> RunId:
        """The id of the run: the caller's or the server's; every route takes both."""
        return self._of.id

    @property
    def run_id(self) -> RunId:
        """The name the handle was made with."""
        return self._of.run_id

    def stream(self) -> Iterator[RunPiece]:
        """Follow the run: iterate over what happens in it, from its beginning to `RunEnded`."""
        return SyncReader(self._caller, self._of.stream)


def _submitting(
    method: Callable[Concatenate[Any, P], Awaitable[RunHandle]],
) -> Callable[Concatenate[Any, P], SyncRun]:
    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> SyncRun:
        handle = face._caller.call(partial(method, face._of, *args, **kwargs))
        return SyncRun(face._caller, handle)

    return call


class SyncWorkspace(Face[RemoteWorkspace]):
    """A directory that a server hosts; see `RemoteWorkspace`. The routes of one subject form a group."""

    submit = _submitting(RemoteWorkspace.submit)
    cancel = blocking(RemoteWorkspace.cancel)
    summarize = blocking(RemoteWorkspace.summarize)
    shell = blocking(RemoteWorkspace.shell)
    show = blocking(RemoteWorkspace.show)
    select = blocking(RemoteWorkspace.select)
    providers = blocking(RemoteWorkspace.providers)
    prompts = blocking(RemoteWorkspace.prompts)
    tasks = blocking(RemoteWorkspace.tasks)

    agent = Group(SyncAgent)
    config = Group(SyncConfig)
    lsp = Group(SyncLsp)
    mcp = Group(SyncMcp)
    permissions = Group(SyncPermissions)
    project = Group(SyncProject)
    questions = Group(SyncQuestions)
    queue = Group(SyncQueue)
    runs = Group(SyncRuns)
    sessions = Group(SyncSessions)
    skills = Group(SyncSkills)

    @property
    def created(self) -> WorkspaceView:
        """The workspace as it was when it was opened."""
        return self._of.created

    @property
    def id(self) -> WorkspaceId:
        """The server's id of the workspace; it changes when the workspace is created again."""
        return self._of.id

    def run(self, run_id: RunId) -> SyncRun:
        """Return a handle of any client's run, by the server's id or the submitter's."""
        return SyncRun(self._caller, self._of.run(run_id))

    def events(self) -> Iterator[WorkspaceEvent]:
        """Watch the workspace: iterate over everything that happens from now on."""
        return SyncReader(self._caller, self._of.events)


def _opening(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[RemoteWorkspace]],
) -> Callable[Concatenate[Any, P], AbstractContextManager[SyncWorkspace]]:
    @contextmanager
    @wraps(method)
    def opened(face: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> Generator[SyncWorkspace]:
        with face._caller.hold(method(face._of, *args, **kwargs)) as workspace:
            yield SyncWorkspace(face._caller, workspace)

    return opened


class SyncClient(Face[Client]):
    """One client of one server; see `Client`. Made by `open_client_sync` only."""

    health = blocking(Client.health)
    ready = blocking(Client.ready)
    version = blocking(Client.version)
    server_config = blocking(Client.server_config)
    openapi = blocking(Client.openapi)
    config_schema = blocking(Client.config_schema)
    event_schema = blocking(Client.event_schema)
    metrics = blocking(Client.metrics)
    cluster = blocking(Client.cluster)
    audit = blocking(Client.audit)
    roster = blocking(Client.roster)
    search = blocking(Client.search)
    usage = blocking(Client.usage)
    workspaces = blocking(Client.workspaces)
    shutdown = blocking(Client.shutdown)
    retire = blocking(Client.retire)
    open_workspace = _opening(Client.open_workspace)

    @property
    def id(self) -> ClientId:
        """The client id, by which the server knows our claims."""
        return self._of.id

    @property
    def address(self) -> Address:
        """The address of the server."""
        return self._of.address

    def timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Have the calls of this thread in a block raise `TimeoutError` once *seconds* have passed.

        What a call was doing is cancelled. A run goes on: it belongs to the server.
        """
        return limited(seconds)


@contextmanager
def open_client_sync(
    address: str | Address | None = None,
    *,
    token: str | None = None,
    client_id: ClientId | None = None,
    environ: Mapping[str, str] = os.environ,
    ca: str | os.PathLike[str] | None = None,
    insecure: bool | None = None,
) -> Generator[SyncClient]:
    """Open a client whose methods wait, for programs without async; the arguments are those of `open_client`.

    Leaving the block closes its connections and ends its thread.
    """
    check_may_block()
    with start_blocking_portal("trio") as portal:
        caller = Caller(portal)
        opened = open_client(
            address, token=token, client_id=client_id, environ=environ, ca=ca, insecure=insecure
        )
        try:
            with caller.hold(opened) as client:
                yield SyncClient(caller, client)
        finally:
            caller.stop()
