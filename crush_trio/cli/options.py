"""One call of the program: its environment, its output, and the options that every command has."""

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import click
from attrs import define, field
from typing_extensions import override

from crush_trio.net.address import Address, default_address, parse_address

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

BROKEN_PIPE: Final = 141
"""The exit code of a command whose reader went away, as shells have it."""

_DUMB: Final = {"", "dumb"}


@define(eq=False)
class Invocation:
    """What commands share; click carries it along as the object of its context."""

    debug: bool = False
    environ: Mapping[str, str] = field(factory=lambda: os.environ, repr=False)

    def run(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run an async function to its end, with the log where it belongs.

        If nobody reads what is written any more, the process ends without a word.
        """
        import trio

        try:
            with self._log():
                return trio.run(function, *args)
        except BrokenPipeError:
            raise SystemExit(BROKEN_PIPE) from None
        finally:
            _flush()

    @contextmanager
    def _log(self) -> Iterator[None]:
        """Log everything to standard error in debugging, and else nothing: we are not a server."""
        if self.debug:
            from crush_trio.server.logging import LogFormat, LogLevel, open_log

            with open_log(LogFormat.HUMAN, LogLevel.DEBUG):
                yield
            return
        handler = logging.NullHandler()
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


def _flush() -> None:
    """Write what is left; if nobody is there to read it, see to it that it is not tried again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)
"""Gives a command the invocation as its first argument."""


class OneOf(click.Choice[str]):
    """A choice whose refusal says what there is to choose from."""

    @override
    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """Return what is said of a value that is not one of them."""
        return f"{value!r} is none of them; choose from {', '.join(map(str, self.choices))}"


def _set_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Invocation).debug = True


def debug_option(command: Command) -> Command:
    """Add `--debug` to a command."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_set_debug,
        help="Log everything, and show where errors come from.",
    )(command)


def host_option(command: Command) -> Command:
    """Add `--host` to a command that talks to a server."""
    return click.option(
        "--host",
        metavar="ADDRESS",
        help="The server: unix:///path or tcp://host:port; by default the user's socket.",
    )(command)


def choose_address(host: str | None, environ: Mapping[str, str], uid: int) -> Address:
    """Return the address that was asked for, or where clients look; raises `BadAddress`."""
    return default_address(environ, uid) if host is None else parse_address(host)


def cwd_option(command: Command) -> Command:
    """Add `--cwd` to a command about a directory."""
    return click.option(
        "--cwd",
        metavar="DIR",
        default=".",
        help="The directory to work in, by default this one.",
    )(command)


def directory_of(cwd: str, host: str | None = None) -> str:
    """Return a directory as an absolute path; one of this machine has to exist."""
    path = Path(cwd).expanduser().absolute()
    far = host is not None and not host.startswith("unix://")
    if not far and not path.is_dir():
        raise click.BadParameter(
            f"{cwd!r} is no directory; name one that exists", param_hint="--cwd"
        )
    return os.path.normpath(path)


# ── Output ──────────────────────────────────────────────────────────────────────────────────────


def write(text: str) -> None:
    """Write to standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_report(drawing: "RenderableType") -> None:
    """Print what people read: as wide as the terminal, and in files and pipes without any breaks."""
    from rich.console import Console

    from crush_trio.cli.terminal.screen import WIDEST, Renderer

    console = Console()
    width = console.width if sys.stdout.isatty() else WIDEST
    write("".join(f"{line}\n" for line in Renderer.like(console).lines(drawing, width)))


def is_interactive(environ: Mapping[str, str]) -> bool:
    """Whether a person is at both ends of a terminal that can do more than print."""
    ends: tuple[TextIO | None, ...] = (sys.stdin, sys.stdout)
    able = environ.get("TERM", "") not in _DUMB
    return able and all(end is not None and end.isatty() for end in ends)
