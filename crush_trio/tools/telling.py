"""What a model is told about a command: its output, in one piece, and how it ended (H13)."""

from typing import Final

from crush_trio.tools.jobs import JobOutput
from crush_trio.tools.output import Excerpt

COLUMNS: Final = 30_000
"""Display columns of each stream that a model sees."""

NO_OUTPUT: Final = "no output"
ABORTED: Final = "Command was aborted before completion"


def told(output: JobOutput) -> str:
    """Return standard output, a blank line, standard error, and how the command ended if not well."""
    streams = (output.stdout.rstrip("\n"), output.stderr.rstrip("\n"))
    text = "\n\n".join(stream for stream in streams if stream)
    return "\n".join(part for part in (text, _ending(output)) if part)


def clipped(text: str) -> str:
    """Return as much of *text* as a model sees of a stream: its beginning and its end."""
    return str(Excerpt(head=text).clipped(COLUMNS))


def _ending(output: JobOutput) -> str:
    if output.ended is None or (not output.ended.stopped and output.ended.status == 0):
        return ""
    return ABORTED if output.ended.stopped else f"Exit code {output.ended.status}"
