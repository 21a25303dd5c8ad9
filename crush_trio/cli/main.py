"""`crush-trio`: which command was meant, and what its end means to the shell.

A command returns its exit code. What is refused on purpose is told in two lines, what happened and what
to do next, without a traceback: it is about the caller's machine and not about our code. Commands
import what they need when they are run, so that asking for help costs next to nothing.
"""

import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

import click
from typing_extensions import override

from crush_trio import __version__
from crush_trio.cli.exits import ExitCode, exit_code_of, expected, explain
from crush_trio.cli.options import Invocation, debug_option
from crush_trio.cli.terminal.text import visible
from crush_trio.errors import CrushError

FAILED = ExitCode.FAILED
MISUSED = ExitCode.MISUSED


COMMANDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "serve": ("serve", "serve", "Serve workspaces over HTTP and server-sent events."),
    "run": ("run", "run", "Run PROMPT and print the answer."),
    "attach": ("attach", "attach", "Watch SESSION live and take part in it."),
    "sessions": (
        "sessions",
        "sessions",
        "List the sessions of a directory, or show, rename or delete one.",
    ),
    "cancel": ("cancel", "cancel", "Cancel the runs of a session, or one run."),
    "config": ("config", "config", "Look at the configuration."),
    "import": ("import_", "import_sessions", "Import the sessions of the Go program."),
    "doctor": ("doctor", "doctor", "Examine this installation and the current directory."),
}
"""Each command's module in `cli.commands`, its function there, and its line in the help."""


class LazyCommands(click.Group):
    """A group that imports a command when it is called, so that help and completion stay fast."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, function, _ = COMMANDS[cmd_name]
        command = getattr(import_module(f"crush_trio.cli.commands.{module}"), function)
        assert isinstance(command, click.Command)
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="crush-trio %(version)s")
@debug_option
def cli() -> None:
    """Host coding agents, and talk to them.

    Without a server, commands that need one bring their own.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that *argv* asks for, by default the process's arguments; return its code.

    Misuse leaves as `SystemExit`, as it does in any program of this kind.
    """
    invocation = Invocation()
    try:
        code = cli.main(argv, prog_name="crush-trio", standalone_mode=False, obj=invocation)
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
        return _refuse(failure)
    return code if isinstance(code, int) else ExitCode.OK


def _refuse(error: CrushError) -> int:
    """Say what happened and what to do next; return what that means to the shell."""
    what, following = explain(error)
    print(f"crush-trio: {visible(what)}", file=sys.stderr)
    if following:
        print(f"Next: {visible(following)}", file=sys.stderr)
    return exit_code_of(error)
