"""Matching lines: reads ripgrep's output, and the lines themselves, in the encoding of their file.

The functions below `read_match` read the disk and run in worker threads.
"""

import os
from codecs import BOM_UTF8
from collections.abc import Iterator
from io import BufferedReader
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen

from crush_trio.nofollow import open_regular
from crush_trio.tools.files.text import SINGLE_BYTE, UTF8, UTF16, FileText
from crush_trio.tools.search.ripgrep import SearchScope

SHOWN_BYTES: Final = 2000
"""Bytes read of a line."""

LARGEST: Final = 10 * 1024 * 1024
"""Bytes that a file may have for the worker to search it, and for lines to be found by their number."""


@frozen(kw_only=True)
class LineMatch:
    """A matching line; the path is relative to the searched directory."""

    path: str
    line: int
    text: str = field(default="", repr=False)
    offset: int = 0
    """Where the line begins in the file, in bytes; known of ripgrep's matches only."""
    single_byte: bool = False
    """Whether it counts only if the file is in a single-byte encoding."""


def read_match(record: bytes, *, single_byte: bool = False) -> LineMatch | None:
    """Parse one line of ripgrep's output: path, null byte, line number, byte offset, and the text.

    The text is not used: see `read_lines`.
    """
    path, null, rest = record.partition(b"\0")
    number, _, rest = rest.partition(b":")
    offset, colon, _ = rest.partition(b":")
    if not null or not colon or not number.isdigit() or not offset.isdigit():
        return None
    return LineMatch(
        path=os.fsdecode(path).removeprefix("./"),
        line=int(number),
        offset=int(offset),
        single_byte=single_byte,
    )


def newest_first(place: SearchScope, matches: list[LineMatch]) -> list[LineMatch]:
    """Sort the matches by age of their files, and drop those in ignored files."""
    by_path: dict[str, list[LineMatch]] = {}
    for match in matches:
        by_path.setdefault(match.path, []).append(match)
    kept = [path for path in by_path if _is_searched(place, path)]
    return [
        match
        for path in by_age(place.root, kept)
        for match in sorted(by_path[path], key=attrgetter("line"))
    ]


def read_lines(root: Path, matches: list[LineMatch]) -> list[LineMatch]:
    """Return *matches* with their lines, read here without following links.

    Ripgrep opens files by name. A directory that was replaced by a link meanwhile leads it out of the
    workspace, so what it read is not shown.
    """
    found: list[LineMatch] = []
    for path, group in groupby(matches, key=attrgetter("path")):
        try:
            with os.fdopen(open_regular(root / path), "rb") as file:
                found += _lines_of(file, list(group))
        except (OSError, UnicodeDecodeError):
            continue
    return found


def _lines_of(file: BufferedReader, matches: list[LineMatch]) -> Iterator[LineMatch]:
    """Yield the matches of one file, each line once, with the beginnings of their lines."""
    head = file.read(len(BOM_UTF8))
    whole = head[:2] in UTF16 or any(each.single_byte for each in matches)
    file.seek(0)
    text = FileText.decoded(file.read(LARGEST)) if whole else FileText("")
    lines = text.plain.split("\n")
    shown = set[int]()
    for each in matches:
        if each.line in shown or (each.single_byte and text.encoding not in SINGLE_BYTE):
            continue
        shown.add(each.line)
        if whole and text.encoding != UTF8:
            line = lines[each.line - 1] if each.line <= len(lines) else ""
        else:  # ripgrep does not count a byte order mark
            file.seek(each.offset + len(BOM_UTF8) * (head == BOM_UTF8))
            line = decoded_line(file.readline(SHOWN_BYTES))
        yield evolve(each, text=line.removesuffix("\n").removesuffix("\r"))


def decoded_line(data: bytes) -> str:
    """Decode the beginning of a line, whose last character may be incomplete."""
    try:
        return data.decode(UTF8)
    except UnicodeDecodeError as exc:
        if exc.end == len(data) and exc.reason == "unexpected end of data":
            return data[: exc.start].decode(UTF8)
    try:
        return FileText.decoded(data).content
    except UnicodeDecodeError:
        return data.decode(UTF8, "replace")


def _is_searched(place: SearchScope, path: str) -> bool:
    return place.file is not None or not place.ignoring.leaves_out_file(tuple(path.split("/")))


def by_age(root: Path, paths: list[str]) -> list[str]:
    """Return *paths* with the most recently changed file first."""
    ages = {path: _changed_at(root / path) for path in paths}
    return sorted(paths, key=lambda path: (-ages[path], path))


def _changed_at(path: Path) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0
