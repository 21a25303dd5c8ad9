"""One prompt from its submission to its end.

The run is submitted, followed and reported. The first signal, or the end of its time, cancels it; what
the cancel hit is reported, and the run still ends in order. Whatever happens, the command ends with one
exit code, and with nothing of it left.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

import trio
from attrs import define, field, frozen

from crush_trio.cli.choosing import find_model, find_session, latest_session
from crush_trio.cli.interrupts import Interrupts, interruptible
from crush_trio.cli.reaching import Reached, open_server
from crush_trio.cli.reports import End, Reporter, Start, exit_code_of_run, is_refusal
from crush_trio.client.client import TOKEN_VARIABLE
from crush_trio.client.following import RunEnded, RunPiece
from crush_trio.client.pieces import TextPiece, ToolCallFinished, ToolResult
from crush_trio.client.run_handle import RunHandle
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.asks import PermissionMode, PermissionPolicy
from crush_trio.wire.catalog import SelectedModel
from crush_trio.wire.ids import SessionId, ToolCallId
from crush_trio.wire.messages import ToolCallPart
from crush_trio.wire.native import ReceiptView, RunState, RunView


@frozen(kw_only=True)
class RunOptions:
    """What was asked for on the command line."""

    prompt: str
    directory: str
    host: str | None = None
    session: str | None = None
    continued: bool = False
    model: str | None = None
    policy: PermissionMode | None = None
    """None leaves it to the circumstances: ask where somebody can answer, else deny."""
    allowed_tools: tuple[str, ...] = ()
    timeout: float = float("inf")

    def permissions(self, *, interactive: bool) -> PermissionPolicy:
        """Return what the run may do without being asked, and what becomes of the rest."""
        usual = PermissionMode.ASK if interactive else PermissionMode.DENY
        return PermissionPolicy(mode=self.policy or usual, allow_list=self.allowed_tools)


async def run_prompt(options: RunOptions, reporter: Reporter, environ: Mapping[str, str]) -> int:
    """Run a prompt and report it; return the exit code."""

    async def work(interrupts: Interrupts) -> int:
        async with (
            reporter.open(interrupts),
            open_server(options.host, environ, embed=True) as reached,
            open_directory(
                reached, options.directory, environ, interactive=reporter.interactive
            ) as workspace,
        ):
            reporter.opened(workspace)
            return await _run(options, reporter, reached, workspace, interrupts)

    return await interruptible(work)


def open_directory(
    reached: Reached,
    directory: str,
    environ: Mapping[str, str],
    *,
    interactive: bool = False,
    init: bool = True,
) -> AbstractAsyncContextManager[RemoteWorkspace]:
    """Open a directory as a workspace.

    A server of this user's is told this environment: the keys of the shell in which somebody types are
    those that are meant. It counts if nobody has the directory open yet. Other servers have their own.
    """
    env = None
    if reached.local and not reached.embedded:
        env = {name: text for name, text in environ.items() if not name.startswith(TOKEN_VARIABLE)}
    return reached.client.open_workspace(directory, interactive=interactive, init=init, env=env)


async def _run(
    options: RunOptions,
    reporter: Reporter,
    reached: Reached,
    workspace: RemoteWorkspace,
    interrupts: Interrupts,
) -> int:
    """Submit the prompt and follow it to its end; from here on a signal cancels the run, not us."""
    model = await _choose_model(options, workspace)
    answering = model or (await workspace.agent.info()).model_cfg
    session_id = await _choose_session(options, workspace)
    stop, watch, began = _Stop(options.timeout), _Watch(reporter), trio.current_time()
    with interrupts.reacting(stop.told.set):
        handle = await workspace.submit(
            options.prompt,
            session=session_id,
            permissions=options.permissions(interactive=reporter.interactive),
            interactive=reporter.interactive,
            model=model,
        )
        start = Start(
            session_id=session_id,
            run_id=handle.run_id,
            directory=options.directory,
            model=answering,
            server="embedded" if reached.embedded else str(reached.client.address),
        )
        reporter.began(start)
        run = await _follow(handle, watch, stop)
    code: int = exit_code_of_run(run, denied=watch.denied is not None, timed_out=stop.timed_out)
    if run.state is RunState.CANCELLED and interrupts.number is not None:
        code = interrupts.exit_code
    end = End(
        run=run,
        code=code,
        seconds=trio.current_time() - began,
        denied=watch.denied,
        receipt=stop.receipt,
    )
    reporter.ended(end)
    return code


async def _choose_model(options: RunOptions, workspace: RemoteWorkspace) -> SelectedModel | None:
    """Return the model that was asked for; None if it is the workspace's own."""
    await trio.lowlevel.checkpoint()
    if options.model is None:
        return None
    return find_model(options.model, (await workspace.config.get()).providers)


async def _choose_session(options: RunOptions, workspace: RemoteWorkspace) -> SessionId:
    if options.session is not None:
        return (await find_session(workspace, options.session)).id
    if options.continued:
        return (await latest_session(workspace)).id
    return (await workspace.sessions.create()).id


async def _follow(handle: RunHandle, watch: "_Watch", stop: "_Stop") -> RunView:
    """Report everything that happens in a run; return it as it ended."""
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(stop.attend, handle)
        async with handle.stream() as pieces:
            async for piece in pieces:
                watch.see(piece)
        if not stop.begun:
            nursery.cancel_scope.cancel()
    assert watch.run is not None  # a stream ends with the end of its run
    return watch.run


@define(eq=False)
class _Stop:
    """Cancels a run when it is told to, or when its time is up."""

    timeout: float
    told: trio.Event = field(factory=trio.Event, init=False)
    begun: bool = field(default=False, init=False)
    timed_out: bool = field(default=False, init=False)
    receipt: ReceiptView | None = field(default=None, init=False)

    async def attend(self, handle: RunHandle) -> None:
        """Wait for the word; then cancel, and keep the receipt."""
        with trio.move_on_after(self.timeout):
            await self.told.wait()
        self.begun, self.timed_out = True, not self.told.is_set()
        self.receipt = await handle.cancel()


@define(eq=False)
class _Watch:
    """Passes on what happens, and remembers what the exit code depends on."""

    reporter: Reporter
    run: RunView | None = field(default=None, init=False)
    denied: ToolCallPart | None = field(default=None, init=False)
    """The last call that was not allowed, as long as nothing was said after it."""
    _calls: dict[ToolCallId, ToolCallPart] = field(factory=dict, init=False)

    def see(self, piece: RunPiece) -> None:
        """Take note of a piece and report it."""
        match piece:
            case ToolCallFinished(call=call):
                self._calls[call.id] = call
            case ToolResult(result=result) if result.is_error:
                if is_refusal(result.content):
                    self.denied = self._calls.get(result.tool_call_id)
            case TextPiece():
                self.denied = None
            case RunEnded(run=run):
                self.run = run
        self.reporter.tell(piece)
