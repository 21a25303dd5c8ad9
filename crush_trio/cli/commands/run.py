"""`crush-trio run`: one prompt, its answer, and an exit code.

The prompt is submitted, and its run followed and reported to its end. The first signal, or the
timeout, cancels the run; the command then reports the receipt and still waits for the run to end.
"""

import locale
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

import click
import trio
from attrs import frozen
from rich.console import Console

from crush_trio.cli.exits import EXIT_HELP, NoModel, NoModelThere, PromptMissing
from crush_trio.cli.following import Canceller, RunWatcher, follow
from crush_trio.cli.import_hint import workspace_hint
from crush_trio.cli.names import find_model, find_session, latest_session
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
from crush_trio.cli.server_link import ServerLink, open_directory, open_link
from crush_trio.cli.terminal.signals import Interrupts, interruptible
from crush_trio.client.workspace import RemoteWorkspace
from crush_trio.config.known_providers import DEMO_PROVIDER, unsupported_key
from crush_trio.wire.asks import PermissionMode, PermissionPolicy
from crush_trio.wire.config import SelectedModel
from crush_trio.wire.ids import SessionId
from crush_trio.wire.runs import RunState

_ELSEWHERE = "{} uses its own environment and files, not the keys of this shell"

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
    "--demo", is_flag=True, help="If no model is configured, let the offline demo answer."
)
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
@click.option(
    "--record", is_flag=True, help="Record the run, for `crush-trio capsule` and `replay`."
)
@click.option(
    "-q", "--quiet", is_flag=True, help="Print only the answer and what is wrong with it."
)
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
    demo: bool,
    policy: str | None,
    allowed_tools: tuple[str, ...],
    output: str,
    timeout: float | None,
    record: bool,
    quiet: bool,
) -> int:
    """Run PROMPT and print the answer.

    The prompt is the arguments, standard input, or both; `-` stands for standard input. If no server
    is running, one is started in the background.

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
        demo=demo,
        policy=None if policy is None else PermissionMode(policy),
        allowed_tools=allowed_tools,
        timeout=float("inf") if timeout is None else timeout,
        record=record,
    )
    reporter = _reporter(invocation, output, quiet=quiet)
    return invocation.run(run_prompt, options, reporter, invocation.environ)


def _reporter(invocation: Invocation, output: str, *, quiet: bool) -> Reporter:
    """Return the reporter for the output format, and for a terminal or a pipe."""
    if output != "text":
        return JsonReporter(write, stream=output == "stream-json")
    if is_interactive(invocation.environ):
        # Not at the top: a script needs neither its dialogs nor its editor.
        from crush_trio.cli.report.terminal import TerminalReporter

        return TerminalReporter(Console(), quiet=quiet)
    return PlainReporter(write, Console(stderr=True), quiet=quiet)


def read_prompt(words: Sequence[str]) -> str:
    """Return the prompt, from the arguments and standard input; raises `PromptMissing`.

    Standard input is read if `-` is an argument, or if it is a pipe or a file.
    """
    stream: TextIO | None = sys.stdin
    wanted = stream is not None and (STDIN in words or _is_piped(stream))
    text = decoded(sys.stdin.buffer.read()) if wanted else ""
    prompt = join_prompt([decoded(os.fsencode(word)) for word in words], text)
    if not prompt:
        raise PromptMissing
    return prompt


def decoded(data: bytes) -> str:
    """Return text that is UTF-8, or else in the encoding of the locale."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(locale.getencoding(), errors="replace")


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
    demo: bool = False
    """Whether the offline demo may answer in a script, where its hint may not be read."""
    policy: PermissionMode | None = None
    """None means the default: ask at a terminal, otherwise deny."""
    allowed_tools: tuple[str, ...] = ()
    timeout: float = float("inf")
    record: bool = False

    def permissions(self, *, interactive: bool) -> PermissionPolicy:
        """Return the permission policy of the run."""
        default = PermissionMode.ASK if interactive else PermissionMode.DENY
        return PermissionPolicy(mode=self.policy or default, allow_list=self.allowed_tools)


async def run_prompt(options: RunOptions, reporter: Reporter, environ: Mapping[str, str]) -> int:
    """Run a prompt and report it; return the exit code."""

    async def work(interrupts: Interrupts) -> int:
        async with (
            reporter.open(interrupts),
            open_link(options.host, environ, start=True) as link,
            open_directory(
                link, options.directory, environ, interactive=reporter.interactive
            ) as workspace,
        ):
            reporter.opened(workspace)
            no_model = (
                NoModel(unsupported_key(environ))
                if link.local
                else NoModelThere(_ELSEWHERE.format(link.client.address))
            )
            return await _run(options, reporter, link, workspace, interrupts, no_model)

    return await interruptible(work)


async def _run(
    options: RunOptions,
    reporter: Reporter,
    link: ServerLink,
    workspace: RemoteWorkspace,
    interrupts: Interrupts,
    no_model: NoModel | NoModelThere,
) -> int:
    """Submit the prompt and follow its run; from here on a signal cancels the run, not the command.

    *no_model* is raised without a model; it says why keys of this shell are not used.
    """
    model = await _choose_model(options, workspace)
    answering = model or (await workspace.agent.info()).model_cfg
    unasked = not (reporter.interactive or options.demo or model)
    if unasked and answering.provider == DEMO_PROVIDER:
        raise no_model
    hint = await workspace_hint(link, workspace)
    session_id = await _choose_session(options, workspace)
    canceller, watcher = Canceller(options.timeout, reporter), RunWatcher(reporter)
    began, policy = trio.current_time(), options.permissions(interactive=reporter.interactive)
    with interrupts.reacting(canceller.request), canceller.bounded():
        handle = await workspace.submit(
            options.prompt,
            session=session_id,
            permissions=policy,
            interactive=reporter.interactive,
            model=model,
            record=options.record,
        )
        start = RunStart(
            session_id=session_id,
            run_id=handle.run_id,
            directory=options.directory,
            model=answering,
            server="embedded" if link.embedded else str(link.client.address),
            import_hint="" if hint is None else hint.line,
        )
        reporter.began(start)
        run = await follow(handle, watcher, canceller)
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
        refusal=watcher.refusal,
        policy=policy,
        text_is_refusal=watcher.text_is_refusal,
        receipt=canceller.receipt,
    )
    reporter.ended(end)
    if options.record:
        click.echo(f"Recorded. crush-trio capsule {run.id} writes it to a file.", err=True)
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
