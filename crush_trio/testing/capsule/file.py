"""`CapsuleFile`: a capsule that was read; and `read_capsule`, which reads and checks one.

A capsule may come from anyone: no file makes this use more memory than a whole recording does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson
from attrs import field, frozen

from crush_trio.agent.record.capsule import CUT, END, MOST, VERSION, Entry
from crush_trio.errors import CrushError
from crush_trio.testing.capsule.shape import entry_fault

LARGEST: Final = MOST + 1024 * 1024
"""Bytes that a file may have: a recording, and its last lines."""


class CapsuleInvalid(CrushError):
    """The file is no capsule that can be read; the detail says why."""

    code = "capsule_invalid"
    message = "this is not a capsule that can be read"


@frozen
class CapsuleFile:
    """A capsule that was read: its header, its entries in order, and its last line."""

    header: Entry = field(repr=False)
    entries: Sequence[Entry] = field(repr=False)
    end: Entry

    def of(self, *kinds: str) -> list[Entry]:
        """Return the entries of some kinds, in order."""
        return [each for each in self.entries if each["k"] in kinds]

    @property
    def cut(self) -> bool:
        """Whether the recording stopped at its size limit."""
        return any(each["k"] == CUT for each in self.entries)


def load_capsule(path: Path) -> CapsuleFile:
    """Read the file of a capsule; raise `CapsuleInvalid` for anything else."""
    with path.open("rb") as file:
        return read_capsule(file.read(LARGEST + 1))


def read_capsule(data: bytes) -> CapsuleFile:
    """Read a capsule; raise `CapsuleInvalid` for anything else."""
    if len(data) > LARGEST:
        raise CapsuleInvalid(f"it has more than {LARGEST:,} bytes, which no capsule has")
    lines = data.splitlines()
    header = _line(lines[0], 1) if lines else {}
    version = header.get("capsule")
    if version is None:
        raise CapsuleInvalid("its first line is not the header of a capsule")
    if version != VERSION:
        raise CapsuleInvalid(
            f"it has version {version!r} of the format, and this program reads version {VERSION}; "
            "replay it with the program that wrote it"
        )
    whole = data.endswith(b"\n")
    entries = [_line(line, number) for number, line in enumerate(lines[1:] if whole else [], 2)]
    if not entries or entries[-1].get("k") != END:
        raise CapsuleInvalid("its last line is missing: the file was cut off; fetch it again")
    if (fault := entry_fault(entries)) is not None:
        raise CapsuleInvalid(fault)
    return CapsuleFile(header, entries[:-1], entries[-1])


def _line(line: bytes, number: int) -> Entry:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise CapsuleInvalid(f"line {number} is not JSON") from None
    if not isinstance(value, dict):
        raise CapsuleInvalid(f"line {number} is not an object")
    return value
