"""`crush-trio run`: one prompt, its answer, and an exit code.

The prompt is submitted, and its run followed and reported to its end. The first signal, or the
timeout, cancels the run; the command then reports the receipt and still waits for the run to end.
"""

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

import click
import trio
from attrs import define, field, frozen
from rich.console import Console

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
    seconds,
    write,
)
from crush_trio.cli.report.plain import JsonReporter, PlainReporter
from crush_trio.cli.report.reporter import Reporter, RunEnd, RunStart, exit_code_of_run
from crush_trio.cli.report.terminal import TerminalReporter
from crush_trio.cli.server_link import (
    ServerLink,
    find_model,
    find_session,
    latest_session,
    open_directory,
    open_link,
)
from crush_trio.cli.terminal.signals import Interrupts, interruptible
from crush_trio.client.follower import RunEnded, RunPiece
from crush_trio.client.messages import (
    MessageRestarted,
    TextPiece,
    ToolCallFinished,
    ToolResult,
)
from crush_trio.client.run import RunHandle
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.nursery import open_hidden_nursery
from crush_trio.wire.asks import PermissionMode, PermissionPolicy, is_refused
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.ids import MessageId, SessionId, ToolCallId
from crush_trio.wire.messages import ToolCallPart
from crush_trio.wire.runs import ReceiptView, RunState, RunView

STDIN = "-"
"""The argument that stands for standard input."""


@click.command(epilog=EXIT_HELP)
@click.argument("prompt", nargs=-1)
@host_option
@cwd_option
@click.option(
    "-s",
    "--session",
    metavar="ID",
    help="Continue this session; the first characters of its id are enough.",
)
@click.option("-c", "--continue", "continued", is_flag=True, help="Continue the last session.")
@click.option("-m", "--model", metavar="[PROVIDER/]MODEL", help="Use this model for this run.")
@click.option(
    "--policy",
    type=OneOf(["ask", "deny", "allow"]),
    help="What happens when a tool needs permission; by default ask at a terminal, otherwise deny.",
)
@click.option(
    "--allow-tool",
    "allowed_tools",
    multiple=True,
    metavar="NAME",
    help="Allow a tool, or tool:action, without asking; may be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=OneOf(["text", "json", "stream-json"]),
    default="text",
    show_default=True,
    help="The answer as text, one JSON object, or one JSON object per event.",
)
@click.option("--timeout", type=seconds, metavar="S", help="Cancel the run after so many seconds.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the answer and errors.")
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

    The prompt is the arguments, standard input, or both; `-` stands for standard input. If no server
    is running, one is started for this run.

    Ctrl-C cancels the run and prints what was stopped; a second one exits at once.
    """
    if session is not None and continued:
        raise click.UsageError("--session and --continue cannot be combined; leave one out")
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


def _reporter(invocation: Invocation, output: str, *, quiet: bool) -> Reporter:
    """Return the reporter for the output format, and for a terminal or a pipe."""
    if output != "text":
        return JsonReporter(write, stream=output == "stream-json")
    if is_interactive(invocation.environ):
        return TerminalReporter(Console(), quiet=quiet)
    return PlainReporter(write, Console(stderr=True), quiet=quiet)


def read_prompt(words: Sequence[str]) -> str:
    """Return the prompt, from the arguments and standard input; raises `PromptMissing`.

    Standard input is read if `-` is an argument, or if it is a pipe or a file.
    """
    stream: TextIO | None = sys.stdin
    wanted = stream is not None and (STDIN in words or _is_piped(stream))
    text = sys.stdin.buffer.read().decode(errors="replace") if wanted else ""
    prompt = join_prompt(words, text)
    if not prompt:
        raise PromptMissing
    return prompt


def join_prompt(words: Sequence[str], piped: str) -> str:
    """Join arguments and standard input: in the place of `-`, otherwise after the arguments."""
    if STDIN in words:
        return " ".join(piped.strip() if word == STDIN else word for word in words).strip()
    return "\n\n".join(part for part in (" ".join(words).strip(), piped.strip()) if part)


def _is_piped(stream: TextIO) -> bool:
    """Whether *stream* is a pipe or a file: reading a terminal or a device might never end."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


@frozen(kw_only=True)
class RunOptions:
    """The arguments of the command."""

    prompt: str
    directory: str
    host: str | None = None
    session: str | None = None
    continued: bool = False
    model: str | None = None
    policy: PermissionMode | None = None
    """None means the default: ask at a terminal, otherwise deny."""
    allowed_tools: tuple[str, ...] = ()
    timeout: float = float("inf")

    def permissions(self, *, interactive: bool) -> PermissionPolicy:
        """Return the permission policy of the run."""
        default = PermissionMode.ASK if interactive else PermissionMode.DENY
        return PermissionPolicy(mode=self.policy or default, allow_list=self.allowed_tools)


async def run_prompt(options: RunOptions, reporter: Reporter, environ: Mapping[str, str]) -> int:
    """Run a prompt and report it; return the exit code."""

    async def work(interrupts: Interrupts) -> int:
        async with (
            reporter.open(interrupts),
            open_link(options.host, environ, embed=True) as link,
            open_directory(
                link, options.directory, environ, interactive=reporter.interactive
            ) as workspace,
        ):
            reporter.opened(workspace)
            return await _run(options, reporter, link, workspace, interrupts)

    return await interruptible(work)


async def _run(
    options: RunOptions,
    reporter: Reporter,
    link: ServerLink,
    workspace: RemoteWorkspace,
    interrupts: Interrupts,
) -> int:
    """Submit the prompt and follow its run; from here on a signal cancels the run, not the command."""
    model = await _choose_model(options, workspace)
    answering = model or (await workspace.agent.info()).model_cfg
    session_id = await _choose_session(options, workspace)
    canceller, watcher = _Canceller(options.timeout), _RunWatcher(reporter)
    began = trio.current_time()
    with interrupts.reacting(canceller.requested.set):
        handle = await workspace.submit(
            options.prompt,
            session=session_id,
            permissions=options.permissions(interactive=reporter.interactive),
            interactive=reporter.interactive,
            model=model,
        )
        start = RunStart(
            session_id=session_id,
            run_id=handle.run_id,
            directory=options.directory,
            model=answering,
            server="embedded" if link.embedded else str(link.client.address),
        )
        reporter.began(start)
        run = await _follow(handle, watcher, canceller)
    code: int = exit_code_of_run(
        run, denied=watcher.denied is not None, timed_out=canceller.timed_out
    )
    if run.state is RunState.CANCELLED and interrupts.number is not None:
        code = interrupts.exit_code
    end = RunEnd(
        run=run,
        code=code,
        seconds=trio.current_time() - began,
        denied=watcher.denied,
        text_is_refusal=watcher.text_is_refusal,
        receipt=canceller.receipt,
    )
    reporter.ended(end)
    return code


async def _choose_model(options: RunOptions, workspace: RemoteWorkspace) -> SelectedModel | None:
    """Return the model of `--model`; None without it: the workspace's own answers."""
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


async def _follow(handle: RunHandle, watcher: "_RunWatcher", canceller: "_Canceller") -> RunView:
    """Report the run until it ends; return its final view."""
    async with open_hidden_nursery() as nursery:
        nursery.start_soon(canceller.wait, handle)
        async with handle.stream() as pieces:
            async for piece in pieces:
                watcher.see(piece)
        if not canceller.begun:
            nursery.cancel_scope.cancel()
    assert watcher.run is not None  # the last piece of a stream is the run's end
    return watcher.run


@define(eq=False)
class _Canceller:
    """Cancels the run when `requested` is set, or after the timeout."""

    timeout: float
    requested: trio.Event = field(factory=trio.Event, init=False)
    begun: bool = field(default=False, init=False)
    timed_out: bool = field(default=False, init=False)
    receipt: ReceiptView | None = field(default=None, init=False)

    async def wait(self, handle: RunHandle) -> None:
        """Wait for the request or the timeout, then cancel and keep the receipt."""
        with trio.move_on_after(self.timeout):
            await self.requested.wait()
        self.begun, self.timed_out = True, not self.requested.is_set()
        self.receipt = await handle.cancel()


@define(eq=False)
class _RunWatcher:
    """Passes the pieces of a run to the reporter, and keeps what the exit code depends on."""

    reporter: Reporter
    run: RunView | None = field(default=None, init=False)
    denied: ToolCallPart | None = field(default=None, init=False)
    """The last call that was refused permission, unless the model wrote text after it."""
    text_is_refusal: bool = field(default=False, init=False)
    """Whether the message with that call has no text, so that the run's text is the refusal."""
    _calls: dict[ToolCallId, ToolCallFinished] = field(factory=dict, init=False)
    _spoken: MessageId | None = field(default=None, init=False)
    """The last message in which the model wrote text."""

    def see(self, piece: RunPiece) -> None:
        """Report a piece."""
        match piece:
            case ToolCallFinished(call=call):
                self._calls[call.id] = piece
            case ToolResult(result=result) if result.is_error and is_refused(result.metadata):
                if (refused := self._calls.get(result.tool_call_id)) is not None:
                    self.denied = refused.call
                    self.text_is_refusal = refused.message_id != self._spoken
            case TextPiece(message_id=message_id):
                self._spoken = message_id
                self.denied, self.text_is_refusal = None, False
            case MessageRestarted(message_id=message_id) if message_id == self._spoken:
                self._spoken = None
            case RunEnded(run=run):
                self.run = run
        self.reporter.tell(piece)
