"""`crush-trio`: which command was meant, and what its end means to the shell.

0 is success, 1 that it could not be done, 2 that it could not be meant; an interrupt that was not
waited for gives 130, as shells do. What is refused on purpose is told in one sentence, without a
traceback: it is about the caller's machine and not about our code.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from crush_trio import __version__
from crush_trio.cli.serve import add_serve
from crush_trio.errors import CrushError
from crush_trio.server.guard import TokenUnusable
from crush_trio.server.sockets import AddressExposed
from crush_trio.wire.addresses import BadAddress

FAILED: Final = 1
"""The exit code of a command that could not do what it was told."""

MISUSED: Final = 2
"""The exit code of a command whose arguments or environment make no sense; argparse uses it too."""

INTERRUPTED: Final = 130
"""The exit code of a command that was interrupted before it could end by itself."""

_MISUSE: Final = (AddressExposed, BadAddress, TokenUnusable)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that *argv* asks for, by default the process's arguments; return its code."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except CrushError as error:
        print(f"crush-trio: {error}", file=sys.stderr)
        return MISUSED if isinstance(error, _MISUSE) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="crush-trio", description="Host coding agents on Trio.")
    parser.add_argument("--version", action="version", version=f"crush-trio {__version__}")
    add_serve(parser.add_subparsers(required=True, metavar="command"))
    return parser
