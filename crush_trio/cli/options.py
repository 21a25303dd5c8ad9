"""Options that commands share, the state of one invocation, and writing to standard output.

`cli.main` imports this module for `--help`, so heavy imports are inside the functions.
"""

import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias, TypeVar

import click
from typing_extensions import override

from crush_trio.cli.exits import OutputFailed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from crush_trio.net.address import Address

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

BROKEN_PIPE: Final = 141
"""The exit code of a command whose output is no longer read: 128 + SIGPIPE, as in shells."""

_DUMB: Final = {"", "dumb"}


class Invocation:
    """One call of the program: its environment, and whether it debugs. Click's context object.

    A plain class, because importing attrs would make `--version` a quarter slower (13 ms of 60).
    """

    def __init__(self) -> None:
        self.debug = False
        self.environ: Mapping[str, str] = os.environ

    def run(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Run an async function in Trio and return its result; logs go to standard error.

        Exits without a message if the reader of standard output has closed it. Raises
        `OutputFailed` if standard output cannot be written to for another reason.
        """
        import trio

        try:
            with self._log():
                result = trio.run(function, *args)
        except BrokenPipeError:
            discard_output()
            raise SystemExit(BROKEN_PIPE) from None
        except BaseException:
            # The command ends for another reason, for example because its terminal was closed. Output
            # that cannot be written any more must not change the exit code.
            with suppress(OSError, OutputFailed):
                write("")
            raise
        try:
            flush_output()
        except OutputFailed:
            if not result:
                raise
            # It has failed already, for example because its terminal was closed: keep that code.
        return result

    @contextmanager
    def _log(self) -> Iterator[None]:
        """Log everything to standard error with `--debug`, and nothing without."""
        if self.debug:
            from crush_trio.server.logging import LogFormat, LogLevel, open_log

            with open_log(LogFormat.HUMAN, LogLevel.DEBUG):
                yield
            return
        import logging

        handler = logging.NullHandler()
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)
"""Gives a command the invocation as its first argument."""


# ── Types of option values ──────────────────────────────────────────────────────────────────────


class OneOf(click.Choice[str]):
    """A choice whose error message lists the valid values."""

    @override
    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """Return the error message for an invalid value."""
        return f"{value!r} is not valid; choose from {', '.join(map(str, self.choices))}"


def seconds(text: str | float) -> float:
    """Parse a finite number of seconds, 0 or more; click adds the option's name to the error."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        raise click.BadParameter(f"{text!r} is not a number of seconds; write 0 or more")
    return found


def limit(text: str) -> tuple[str, float]:
    """Parse NAME=VALUE of a size limit; click adds the option's name to the error."""
    from crush_trio.errors import LimitInvalid
    from crush_trio.limits import read_pair

    try:
        return read_pair(text)
    except LimitInvalid as error:
        raise click.BadParameter(error.detail) from error


# ── Options ─────────────────────────────────────────────────────────────────────────────────────


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
        help="Log everything, and print the traceback of errors.",
    )(command)


Target: TypeAlias = tuple[str | None, str]
"""The address of a server, None for the default one, and a directory."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def host_option(command: Command) -> Command:
    """Add `--host`, `--ca` and `--insecure` to a command that talks to a server.

    The last two are put into the invocation's environment, where `open_client` looks for them.
    """
    host = click.option(
        "--host",
        metavar="ADDRESS",
        envvar="CRUSH_TRIO_HOST",
        help="The server: unix:///path, tcp://host:port or https://host[:port]; by default that in "
        "CRUSH_TRIO_HOST, else the user's socket.",
    )
    ca = click.option(
        "--ca",
        metavar="FILE",
        expose_value=False,
        callback=partial(_set_variable, "CRUSH_TRIO_CA"),
        help="The certificates to trust for https://, in place of the system's.",
    )
    insecure = click.option(
        "--insecure",
        is_flag=True,
        expose_value=False,
        callback=partial(_set_variable, "CRUSH_TRIO_INSECURE"),
        help="Send the token to another machine without TLS.",
    )
    return host(ca(insecure(command)))


def _set_variable(
    name: str, context: click.Context, _parameter: click.Parameter, value: str | bool | None
) -> None:
    if value:
        invocation = context.ensure_object(Invocation)
        text = value if isinstance(value, str) else "1"
        invocation.environ = {**invocation.environ, name: text}


def choose_address(
    host: str | None, environ: Mapping[str, str], uid: int, *, listen: bool = False
) -> "Address":
    """Return the address *host*, to connect to or to *listen* on, or the default one; raises `BadAddress`.

    The default of clients is `CRUSH_TRIO_HOST`, if it is set.
    """
    from crush_trio.net.address import (
        HOST_VARIABLE,
        default_address,
        named_server,
        parse_address,
        parse_server_url,
    )

    if listen:
        return default_address(environ, uid) if host is None else parse_address(host)
    if host is None or host == environ.get(HOST_VARIABLE):
        return named_server(environ) or default_address(environ, uid)
    return parse_server_url(host)


def cwd_option(command: Command) -> Command:
    """Add `--cwd` to a command that works in a directory."""
    return click.option(
        "--cwd",
        metavar="DIR",
        default=".",
        help="The directory to work in, by default the current one.",
    )(command)


def directory_of(
    cwd: str, host: str | None = None, *, hint: str = "--cwd", exists: bool = True
) -> str:
    """Return a directory as an absolute path; it must be there, if it *exists* and the server is local.

    *hint* is the name of the argument. A path that is not UTF-8 is refused, because JSON has no way to write it.
    """
    try:
        path = os.path.normpath(Path(cwd).expanduser().absolute())
    except FileNotFoundError:
        raise click.BadParameter(
            "the current directory no longer exists; change to one that does", param_hint=hint
        ) from None
    try:
        path.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(
            f"{path!r} is not valid UTF-8; rename the directory", param_hint=hint
        ) from None
    remote = host is not None and not host.startswith("unix://")
    if exists and not remote and not Path(path).is_dir():
        raise click.BadParameter(
            f"{cwd!r} is not a directory; name one that exists", param_hint=hint
        )
    return path


# ── Output ──────────────────────────────────────────────────────────────────────────────────────


def write(text: str) -> None:
    """Write to standard output and flush; raises `OutputFailed`, or `BrokenPipeError`."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise OutputFailed(error.strerror or str(error)) from error


def flush_output() -> None:
    """Flush standard output; raises `OutputFailed`, or exits if its reader has closed it."""
    try:
        write("")
    except BrokenPipeError:
        discard_output()
        raise SystemExit(BROKEN_PIPE) from None


def discard_output() -> None:
    """Redirect standard output to nowhere, so that the flush at the exit does not fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def json_text(value: object, *, indent: bool = False) -> str:
    """Return *value* as JSON, ending in a newline.

    Characters that standard output cannot encode are escaped: a "?" in their place would be valid
    JSON with another content.
    """
    import json

    import orjson

    data = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0)
    text = data.decode()
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(orjson.loads(data), indent=2 if indent else None)
    return text + "\n"


def print_report(drawing: "RenderableType") -> None:
    """Print a report: as wide as the terminal, or without line breaks into files and pipes."""
    from rich.console import Console

    from crush_trio.cli.terminal.screen import WIDEST, Renderer

    console = Console()
    width = console.width if sys.stdout.isatty() else WIDEST
    write("".join(f"{line}\n" for line in Renderer.like(console).lines(drawing, width)))


def is_interactive(environ: Mapping[str, str]) -> bool:
    """Whether both input and output are a terminal that understands escape sequences."""
    ends: tuple[TextIO | None, ...] = (sys.stdin, sys.stdout)
    able = environ.get("TERM", "") not in _DUMB
    return able and all(end is not None and end.isatty() for end in ends)
