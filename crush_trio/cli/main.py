"""`crush-trio`: which command was meant, and what its end means to the shell.

A command returns its exit code. What is refused on purpose is told in two lines, what happened and what
to do next, without a traceback: it is about the caller's machine and not about our code. Commands
import what they need when they are run, so that asking for help costs next to nothing.
"""

import sys
import traceback
from collections.abc import Sequence

import click

from crush_trio import __version__
from crush_trio.cli.attach import attach
from crush_trio.cli.cancel import cancel
from crush_trio.cli.config import config
from crush_trio.cli.doctor import doctor
from crush_trio.cli.exits import ExitCode, exit_code_of, expected, explain
from crush_trio.cli.importing import import_sessions
from crush_trio.cli.invocation import Invocation, debug_option
from crush_trio.cli.run import run
from crush_trio.cli.serve import serve
from crush_trio.cli.sessions import sessions
from crush_trio.cli.visible import visible
from crush_trio.errors import CrushError

FAILED = ExitCode.FAILED
MISUSED = ExitCode.MISUSED


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="crush-trio %(version)s")
@debug_option
def cli() -> None:
    """Host coding agents, and talk to them.

    Without a server, commands that need one bring their own.
    """


for command in (serve, run, attach, sessions, cancel, config, import_sessions, doctor):
    cli.add_command(command)


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
