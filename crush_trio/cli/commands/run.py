"""`crush-trio run`: one prompt, its answer, and an exit code.

Where a prompt comes from: the words of the command line, and what is piped in.

One prompt from its submission to its end.

The run is submitted, followed and reported. The first signal, or the end of its time, cancels it; what
the cancel hit is reported, and the run still ends in order. Whatever happens, the command ends with one
exit code, and with nothing of it left.
"""

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

import click
import trio
from attrs import define, field, frozen

from crush_trio.cli.commands.serve import seconds
from crush_trio.cli.exits import EXIT_HELP, PromptMissing
from crush_trio.cli.options import (
    Invocation,
    OneOf,
    cwd_option,
    debug_option,
    directory_of,
    host_option,
    is_interactive,
    pass_invocation,
    write,
)
from crush_trio.cli.report.reporter import End, Reporter, Start, exit_code_of_run, is_refusal
from crush_trio.cli.server_link import (
    Reached,
    find_model,
    find_session,
    latest_session,
    open_directory,
    open_server,
)
from crush_trio.cli.terminal.signals import Interrupts, interruptible
from crush_trio.client.follower import RunEnded, RunPiece
from crush_trio.client.messages import TextPiece, ToolCallFinished, ToolResult
from crush_trio.client.run import RunHandle
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.asks import PermissionMode, PermissionPolicy
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.ids import SessionId, ToolCallId
from crush_trio.wire.messages import ToolCallPart
from crush_trio.wire.runs import ReceiptView, RunState, RunView

STDIN = "-"
"""The argument that stands for what is piped in."""


def read_prompt(words: Sequence[str]) -> str:
    """Return the prompt, reading standard input where it has something to say.

    That is where an argument asks for it, or where a pipe or a file stands in the place of the
    terminal. Raises `PromptMissing`.
    """
    stream: TextIO | None = sys.stdin
    wanted = stream is not None and (STDIN in words or _is_piped(stream))
    text = sys.stdin.buffer.read().decode(errors="replace") if wanted else ""
    prompt = join_prompt(words, text)
    if not prompt:
        raise PromptMissing
    return prompt


def join_prompt(words: Sequence[str], piped: str) -> str:
    """Return words and piped text as one prompt: in the place of `-`, or else below the words."""
    if STDIN in words:
        return " ".join(piped.strip() if word == STDIN else word for word in words).strip()
    return "\n\n".join(part for part in (" ".join(words).strip(), piped.strip()) if part)


def _is_piped(stream: TextIO) -> bool:
    """Whether something can be expected to come and to end: neither a terminal nor a device does."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


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


@click.command(epilog=EXIT_HELP)
@click.argument("prompt", nargs=-1)
@host_option
@cwd_option
@click.option(
    "-s", "--session", metavar="ID", help="Continue this session; its beginning is enough."
)
@click.option("-c", "--continue", "continued", is_flag=True, help="Continue the last session.")
@click.option("-m", "--model", metavar="[PROVIDER/]MODEL", help="Have this model answer.")
@click.option(
    "--policy",
    type=OneOf(["ask", "deny", "allow"]),
    help="What becomes of a tool that needs permission: by default a person at this terminal is "
    "asked, and where there is none it is denied.",
)
@click.option(
    "--allow-tool",
    "allowed_tools",
    multiple=True,
    metavar="NAME",
    help="A tool, or tool:action, that needs no permission; may be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=OneOf(["text", "json", "stream-json"]),
    default="text",
    show_default=True,
    help="The answer, one JSON object, or one JSON object for each thing that happens.",
)
@click.option("--timeout", type=seconds, metavar="S", help="Cancel the run after so many seconds.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but the answer and errors.")
@debug_option
@pass_invocation
def run(
    invocation: Invocation,
    prompt: tuple[str, ...],
    host: str | None,
    cwd: str,
    session: str | None,
    continued: bool,
    model: str | None,
    policy: str | None,
    allowed_tools: tuple[str, ...],
    output: str,
    timeout: float | None,
    quiet: bool,
) -> int:
    """Run PROMPT and print the answer.

    The prompt is the arguments, what is piped in, or both; `-` stands for what is piped in. If no
    server is there, one is started for the length of the run.

    Ctrl-C cancels the run and says what was stopped; a second one leaves at once.
    """
    if session is not None and continued:
        raise click.UsageError("--session and --continue exclude each other; leave one out")
    from crush_trio.wire.asks import PermissionMode

    options = RunOptions(
        prompt=read_prompt(prompt),
        directory=directory_of(cwd, host),
        host=host,
        session=session,
        continued=continued,
        model=model,
        policy=None if policy is None else PermissionMode(policy),
        allowed_tools=allowed_tools,
        timeout=float("inf") if timeout is None else timeout,
    )
    reporter = _reporter(invocation, output, quiet=quiet)
    return invocation.run(run_prompt, options, reporter, invocation.environ)


def _reporter(invocation: Invocation, output: str, *, quiet: bool) -> "Reporter":
    """Return what suits the reader: a terminal, a pipe or a program."""
    from rich.console import Console

    from crush_trio.cli.report.plain import JsonReporter, PlainReporter

    if output != "text":
        return JsonReporter(write, stream=output == "stream-json")
    if is_interactive(invocation.environ):
        from crush_trio.cli.report.terminal import TerminalReporter

        return TerminalReporter(Console(), quiet=quiet)
    return PlainReporter(write, Console(stderr=True), quiet=quiet)
