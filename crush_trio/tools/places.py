"""Where a path leads, and whose business it is.

A path is resolved before anybody judges it: `..` and links may lead anywhere. What lies inside the
workspace is judged as the workspace, so that one permission covers it all (F1), except for what is
private there: that is asked for by itself, like what lies outside.
"""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Final

import trio

from crush_trio.tools.base import ToolError
from crush_trio.tools.workbench import Workbench

SUGGESTIONS: Final = 3
_LOOKED_AT: Final = 2000


async def locate(bench: Workbench, path: str) -> Path:
    """Return where *path* leads, absolute and resolved (H4), or tell the model what is wrong."""
    return await trio.to_thread.run_sync(_resolved, bench, path)


def _resolved(bench: Workbench, path: str) -> Path:
    if not path:
        raise ToolError("file_path is required")
    try:
        return bench.resolve(path)
    except (OSError, RuntimeError, ValueError) as exc:
        raise ToolError(f"not a usable path: {path!r}: {exc}") from exc


def judged(bench: Workbench, path: Path) -> Path:
    """Return the directory for which permission to touch the file *path* is asked."""
    return bench.directory if bench.shared(path) else path.parent


def outside(bench: Workbench, path: Path) -> str:
    """Return why there is something to ask about *path*, for the person who is asked."""
    return "private" if bench.inside(path) else "outside the workspace"


def named(bench: Workbench, path: Path) -> str:
    """Return *path* as it is called inside the workspace."""
    return str(path.relative_to(bench.directory)) if bench.inside(path) else str(path)


def missing(path: Path) -> ToolError:
    """Say that there is no such file, and what else is there that the model may have meant."""
    similar = similar_names(path)
    if not similar:
        return ToolError(f"{path} does not exist")
    listed = "\n".join(str(path.with_name(name)) for name in similar)
    return ToolError(f"{path} does not exist. Did you mean one of these?\n{listed}")


def similar_names(path: Path) -> list[str]:
    """Return up to three names in the directory of *path* that look like its name."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, _LOOKED_AT)]
    except OSError:
        return []
    return _most_similar(path.name, names)


def _most_similar(wanted: str, names: Iterable[str]) -> list[str]:
    """Names that contain the wanted one, or are contained in it, come first; case is no matter."""
    by_folded = {name.casefold(): name for name in sorted(names)}
    folded = wanted.casefold()
    stem = folded.partition(".")[0] or folded
    related = [each for each in by_folded if stem in each or each in folded]
    close = get_close_matches(folded, by_folded, n=SUGGESTIONS, cutoff=0.6)
    found = dict.fromkeys([*close, *related])
    return [by_folded[each] for each in islice(found, SUGGESTIONS)]
