"""The system prompt: how to work, where, and what the project itself asks for.

Put together when a run begins, so that the date, the state of the repository and the project's own
instruction files are those of that moment (L29).
"""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from attrs import frozen

from crush_trio.config.context_files import ContextFile

MAIN = "coder"
TASK = "task"


@frozen(kw_only=True)
class Place:
    """Where and when a run works. `git` is the state of the repository; empty outside of one."""

    directory: Path
    at: int
    git: str = ""


def instructions(role: str, place: Place, context: Sequence[ContextFile] = ()) -> tuple[str, ...]:
    """Return the system messages for an agent of *role*: what stays the same first.

    Providers cache a prompt from its beginning, so the part that never changes comes before the
    part that does.
    """
    text = files("crush_trio.agent").joinpath(f"{role}.md").read_text(encoding="utf-8").strip()
    return (text, "\n\n".join([_environment(place), *map(_quoted, context)]))


def _environment(place: Place) -> str:
    today = datetime.fromtimestamp(place.at, UTC).strftime("%A, %d %B %Y")
    lines = [
        "# Where you are",
        f"Working directory: {place.directory}",
        f"Platform: {platform.system().lower()} ({platform.machine()})",
        f"Date: {today} (UTC)",
        f"Git repository: {'yes' if place.git else 'no'}",
    ]
    if place.git:
        lines.append(f"\nState of the repository when this run began:\n{place.git}")
    return "\n".join(lines)


def _quoted(found: ContextFile) -> str:
    """Return what a file of the project says to agents, with its name."""
    return f'<instructions path="{found.path}">\n{found.text.strip()}\n</instructions>'
