"""The capsule of a run: its file format, and how one is written; `testing.capsule` reads it.

A capsule is JSON lines in UTF-8. The first line is the header; its key `capsule` is the version of the
format. Every other line is an entry: `k` is its kind, `t` its time in seconds since the run began. The last
line has the kind `end`; a file without it was cut off. docs/capsules.md describes every kind.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from crush_trio.errors import Conflict

VERSION: Final = 1
"""The version of the format that this program writes and reads."""

MOST: Final = 32 * 1024 * 1024
"""Bytes that the recording of one run may have."""

MEDIA: Final = "text/plain; charset=utf-8"

END: Final = "end"
CUT: Final = "cut"

Entry = dict[str, Any]
"""One line of a capsule."""


class NotRecorded(Conflict):
    """The run has no recording; the detail says how to get one."""

    code = "not_recorded"
    message = "this run was not recorded"


def written(lines: Iterable[Entry]) -> str:
    """Return entries as lines of a capsule."""
    return "".join(orjson.dumps(line).decode() + "\n" for line in lines)


def completed(pieces: Sequence[str], state: str) -> bytes:
    """Return the capsule of a run from the stored pieces of its recording.

    A recording without an end belongs to a run that has not ended, or whose program was killed. A last
    line then says in which *state* the run is, and that the recording is not complete. So does that of a
    recording of which pieces could not be stored; raises `NotRecorded` if the header is among them.
    """
    whole = "".join(pieces)
    if not whole.startswith('{"capsule":'):
        raise NotRecorded("the beginning of its recording could not be stored; record another run")
    rest, _, last = whole.rstrip("\n").rpartition("\n")
    if '"k":"end"' not in last:
        whole += written([{"t": 0, "k": END, "state": state, "complete": False}])
    elif (lost := (end := orjson.loads(last)).get("pieces", 0) - len(pieces)) > 0:
        whole = rest + "\n" + written([{**end, "complete": False, "lost": lost}])
    return whole.encode()
