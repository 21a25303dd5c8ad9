"""The `crush-trio` program: the table of commands, and exit codes for errors.

A command returns its exit code. An expected error (`CrushError`) is printed as two lines, what
happened and what to do next, without a traceback. A command's module is imported when the command is
called, so `--help` and `--version` load neither Trio nor a command.
"""

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Final

import click
from typing_extensions import override

from crush_trio import __version__
from crush_trio.cli.exits import ExitCode, exit_code_of, expected, explain
from crush_trio.cli.options import Invocation, debug_option, flush_output
from crush_trio.errors import CrushError

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("serve:serve", "Serve workspaces over HTTP and server-sent events."),
    "run": ("run:run", "Run PROMPT and print the answer."),
    "attach": ("attach:attach", "Watch SESSION live and take part in it."),
    "sessions": (
        "sessions:sessions",
        "List the sessions of a directory; show, rename or delete one.",
    ),
    "cancel": (
        "cancel:cancel",
        "Cancel the runs of a session, or one run; print the receipt.",
    ),
    "permissions": (
        "permissions:permissions",
        "List your permission rules; add or remove one.",
    ),
    "config": ("config:config", "Check the configuration, or print its JSON Schema."),
    "trust": ("trust:trust", "Trust the configuration files of DIRECTORY."),
    "import": ("import_:import_sessions", "Import the sessions of the Go program from PATH."),
    "doctor": ("doctor:doctor", "Check this installation and a directory for problems."),
    "token": ("token:token", "Add, list or revoke the named tokens of this user's servers."),
    "audit": ("audit:audit", "Show who did what on this user's servers."),
}
"""For each command: `module:function` in `cli.commands`, and the first line of its docstring.

The line is repeated here so that `crush-trio --help` does not import the commands; a test compares
the two.
"""


class LazyCommands(click.Group):
    """A click group that imports a command's module when the command is called."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, function = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(f"crush_trio.cli.commands.{module}"), function)
        assert isinstance(command, click.Command)
        return command

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command in *args*; suggest similar names for one that does not exist.

        Click looks for similar names in `commands` only, which is empty here.
        """
        from difflib import get_close_matches

        name = args[0]
        unknown = self.get_command(ctx, name) is None and not ctx.resilient_parsing
        if unknown and (similar := get_close_matches(name, COMMANDS)):
            meant = " or ".join(map(repr, similar))
            raise click.UsageError(f"No such command {name!r}. Did you mean {meant}?", ctx)
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="crush-trio %(version)s")
@debug_option
def cli() -> None:
    """Host coding agents, and talk to them.

    Commands that need a server start one in their own process if none is running.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in *argv*, by default the process's arguments; return its exit code.

    Wrong usage raises `SystemExit`, as click programs do.
    """
    _replace_closed_streams()
    _replace_unencodable()
    invocation = Invocation()
    try:
        code = _call(argv, invocation)
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.CANCELLED
    except (CrushError, BaseExceptionGroup) as error:
        failure = expected(error)
        if failure is None:
            raise
        if invocation.debug:
            traceback.print_exception(error)
        return _print_error(failure)
    return code if isinstance(code, int) else ExitCode.OK


def _call(argv: Sequence[str] | None, invocation: Invocation) -> object:
    """Call the command in *argv*; return what it returns."""
    try:
        return cli.main(argv, prog_name="crush-trio", standalone_mode=False, obj=invocation)
    except OSError:
        # Click prints `--help` and `--version` itself. If that failed, the text is still in the
        # buffer, and flushing it again raises `OutputFailed`.
        flush_output()
        raise


def _replace_closed_streams() -> None:
    """Discard what is written to standard output or standard error if the caller closed it (`>&-`).

    Python sets such a stream to None. The replacement also occupies the free descriptor: otherwise
    the next file that is opened, perhaps the database, would be the standard output of child
    processes.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def _replace_unencodable() -> None:
    """Write "?" for characters that standard output cannot encode, as in an ASCII locale.

    The default is to raise `UnicodeEncodeError`, and an answer would be lost because of one letter.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _print_error(error: CrushError) -> int:
    """Print what happened and what to do next; return the exit code."""
    from crush_trio.cli.terminal.text import visible

    what, advice = explain(error)
    print(f"crush-trio: {visible(what)}", file=sys.stderr)
    if advice:
        print(f"Next: {visible(advice)}", file=sys.stderr)
    return exit_code_of(error)
