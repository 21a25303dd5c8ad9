"""A renderer for tests: a console that goes nowhere, without colours unless they are asked for."""

import io

from rich.console import Console

from crush_trio.cli.terminal.screen import WIDEST, Renderer, plain


def renderer(*, colours=False):
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        width=WIDEST,
        color_system="standard" if colours else None,
        legacy_windows=False,
    )
    return Renderer(console)


def drawn(drawing, width=60):
    """Return a drawing as plain lines, without the spaces at their ends."""
    return [plain(line).rstrip() for line in renderer().lines(drawing, width)]
