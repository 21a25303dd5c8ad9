"""`crush-trio run`: one prompt, its answer, and an exit code."""

from typing import TYPE_CHECKING

import click

from crush_trio.cli.exits import EXIT_HELP
from crush_trio.cli.invocation import (
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
from crush_trio.cli.serve import seconds

if TYPE_CHECKING:
    from crush_trio.cli.reports import Reporter


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
    from crush_trio.cli.prompts import read_prompt
    from crush_trio.cli.running import RunOptions, run_prompt
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

    from crush_trio.cli.report_plain import JsonReporter, PlainReporter

    if output != "text":
        return JsonReporter(write, stream=output == "stream-json")
    if is_interactive(invocation.environ):
        from crush_trio.cli.report_terminal import TerminalReporter

        return TerminalReporter(Console(), quiet=quiet)
    return PlainReporter(write, Console(stderr=True), quiet=quiet)
