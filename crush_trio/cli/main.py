"""The `crush-trio` program: the table of commands, and exit codes for errors.

A command returns its exit code. An expected error (`CrushError`) is printed as two lines, what
happened and what to do next, without a traceback. A command's module is imported when the command is
called, so `--help` and `--version` load neither Trio nor a command.
"""

import codecs
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem
from typing_extensions import Buffer, override

from crush_trio import __version__
from crush_trio.cli.exits import ExitCode, exit_code_of, expected, explain
from crush_trio.cli.options import (
    BROKEN_PIPE,
    Invocation,
    debug_option,
    discard_output,
    flush_output,
)
from crush_trio.errors import CrushError

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("serve:serve", "Serve workspaces over HTTP and server-sent events."),
    "run": ("run:run", "Run PROMPT and print the answer."),
    "attach": ("attach:attach", "Watch SESSION live and take part in it."),
    "sessions": (
        "sessions:sessions",
        "List the sessions of a directory; show or change one.",
    ),
    "ps": ("sessions:ps", "List all sessions of a server, those that need you first."),
    "cancel": (
        "cancel:cancel",
        "Cancel the runs of a session, or one run; print the receipt.",
    ),
    "capsule": ("capsule:capsule", "Write what a recorded run saw to a file."),
    "replay": ("replay:replay", "Replay a recorded run from FILE, offline, and compare."),
    "permissions": (
        "permissions:permissions",
        "List your permission rules; add or remove one.",
    ),
    "config": ("config:config", "Check the configuration, or print its JSON Schema."),
    "trust": ("trust:trust", "Trust the configuration files of DIRECTORY."),
    "import": ("import_:import_sessions", "Import the sessions of Crush from PATH."),
    "backup": ("data.backup:backup", "Copy the stored data of DIRECTORY to FILE, and check it."),
    "restore": ("data.backup:restore", "Put the data in FILE back into DIRECTORY."),
    "store": ("data.store:store", "Copy stored data from one store into another."),
    "prune": (
        "data.prune:prune",
        "Delete the sessions of a directory that were not used for long.",
    ),
    "cluster": (
        "cluster.listing:cluster",
        "List the servers that share a database, and what each runs.",
    ),
    "doctor": ("doctor:doctor", "Check this installation and a directory for problems."),
    "token": ("token:token", "Add, list or revoke the named tokens of this user's servers."),
    "audit": ("audit:audit", "Show who did what on this user's servers."),
}
"""For each command: `module:function` in `cli.commands`, and the first line of its docstring.

The line is repeated here so that `crush-trio --help` does not import the commands; a test compares
the two.
"""


_SUBSTITUTE: Final = "crush_trio.substitute"

SUBSTITUTES: Final[Mapping[str, str]] = dict(
    zip("✓✗→…·“”•─│", ["+", "x", "->", "...", "-", '"', '"', "*", "-", "|"], strict=True)
)
"""What is written instead of characters of our own, and common ones, in an encoding without them.

With a "?" for each, what a report found good and what it found bad would look the same.
"""

_SERVED: Final = {"run", "attach"}
"""The commands that always need a server; if none runs, one is started before their imports."""


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
        unknown = name not in {*COMMANDS, *self.commands} and not ctx.resilient_parsing
        if unknown and (similar := get_close_matches(name, COMMANDS)):
            meant = " or ".join(map(repr, similar))
            raise click.UsageError(f"No such command {name!r}. Did you mean {meant}?", ctx)
        if name in _SERVED:
            from crush_trio.cli.background import start_ahead

            start_ahead(args, os.environ)
        return super().resolve_command(ctx, args)

    @override
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands from the table; click would import every command for its help."""
        names = [
            CompletionItem(name, help=line)
            for name, (_, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    @override
    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _exit_if_unread():
            return super().make_context(info_name, args, parent, **extra)

    @override
    def invoke(self, ctx: click.Context) -> object:
        with _exit_if_unread():
            return super().invoke(ctx)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@contextmanager
def _exit_if_unread() -> Iterator[None]:
    """Exit as documented if the reader of standard output has closed it; click would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        discard_output()
        raise SystemExit(BROKEN_PIPE) from None


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="crush-trio %(version)s")
@debug_option
def cli() -> None:
    """Host coding agents, and talk to them.

    Commands that need a server start one in the background if none is running.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in *argv*, by default the process's arguments; return its exit code.

    Wrong usage raises `SystemExit`, as click programs do.
    """
    _replace_closed_streams()
    _allow_lost_notes()
    _encode_output()
    invocation = Invocation()
    try:
        code = _call(argv, invocation)
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.NoSuchOption) and error.ctx and error.ctx.command.name == "run":
            click.echo("Write -- before a prompt that begins with a dash.", err=True)
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


class _Notes(FileIO):
    """Standard error; what cannot be written there is dropped."""

    @override
    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def _allow_lost_notes() -> None:
    """Let no command fail, and no answer be lost, because standard error cannot be written to."""
    if isinstance(sys.stderr, TextIOWrapper) and sys.stderr is sys.__stderr__:
        file = _Notes(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = TextIOWrapper(file, sys.stderr.encoding, write_through=True)


def _encode_output() -> None:
    """Write in the encoding of the locale, and a substitute for characters that it does not have.

    The default is to raise `UnicodeEncodeError`, and an answer would be lost because of one letter.
    """
    codecs.register_error(_SUBSTITUTE, _substitute)
    encoding = None
    if "utf8" in sys._xoptions and "PYTHONIOENCODING" not in os.environ:  # see `__main__`
        import locale

        encoding = locale.getencoding()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors=_SUBSTITUTE)


def _substitute(error: UnicodeError) -> tuple[str, int]:
    """Return what is written for a character that the encoding does not have: see `SUBSTITUTES`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return SUBSTITUTES.get(error.object[error.start], "?"), error.start + 1


def _print_error(error: CrushError) -> int:
    """Print what happened and what to do next; return the exit code."""
    from crush_trio.cli.terminal.text import visible

    what, advice = explain(error)
    print(f"crush-trio: {visible(what)}", file=sys.stderr)
    if advice:
        print(f"Next: {visible(advice)}", file=sys.stderr)
    return exit_code_of(error)
