"""The tool `view`: a section of a text file with line numbers, or a picture, or a whole skill.

Parts of files, read without reading the rest.

A section is some lines of a file. The lines before it are counted and passed over, what is behind
it is not read, and of a line too long to be shown only the beginning is kept: the memory it takes
has nothing to do with how large the file is. While it works through a large file it looks, once in a
while, whether its call has been cancelled.
"""

import codecs
import os
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Final

import trio
from attrs import define, field, frozen

from crush_trio.tools.arguments import About, BuiltIn, read_arguments
from crush_trio.tools.base import Media, Metadata, ToolCall, ToolError, ToolResult, Wanted
from crush_trio.tools.files.changes import Diagnose
from crush_trio.tools.files.disk import (
    judged,
    locate,
    missing,
    modified_at,
    open_regular,
    outside,
    told,
)
from crush_trio.tools.files.text import BOM
from crush_trio.tools.workbench import History, Workbench
from crush_trio.wire.integrations import SkillInfo

SECTION_LIMIT: Final = 200 * 1024
"""Bytes of text that one section may have."""

PICTURE_LIMIT: Final = 200 * 1024
"""Bytes that a picture may have."""

LINE_LIMIT: Final = 2000
"""Bytes of a line that are shown."""

CUT: Final = "..."
"""What stands where the rest of a long line was."""

_CHUNK: Final = 1024 * 1024
_HEAD: Final = 8000


@frozen(kw_only=True)
class Section:
    """Some lines of a file. `more` says that there are others behind them."""

    lines: tuple[str, ...] = field(repr=False)
    more: bool
    modified: int


@frozen(kw_only=True)
class Picture:
    """A file that is to be looked at."""

    media: Media
    modified: int


def look(path: Path, offset: int, limit: int, most: int = SECTION_LIMIT) -> Section | Picture:
    """Return *limit* lines after the first *offset*, or the picture that the file is.

    *most* is how many bytes of text there may be. Runs in a thread of Trio. Raises `ToolError` if the
    file is not there, or neither text nor a picture.
    """
    with told("read", path):
        try:
            file = open_regular(path)
        except FileNotFoundError:
            raise missing(path) from None
        with file:
            return _look(path, file, offset, limit, most)


def _look(
    path: Path, file: BufferedReader, offset: int, limit: int, most: int
) -> Section | Picture:
    modified = modified_at(file)
    head = file.read(_HEAD)
    file.seek(0)
    if (mime_type := picture_type(head)) is not None:
        return Picture(media=_picture(path, file, mime_type), modified=modified)
    if b"\0" in head:
        raise ToolError(f"{path} is a binary file")
    _skip_lines(path, file, offset)
    try:
        lines, more = _read_lines(file, limit, most)
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not UTF-8 text") from None
    if lines and not offset:
        lines[0] = lines[0].removeprefix(BOM)
    return Section(lines=tuple(lines), more=more, modified=modified)


# ── Lines ───────────────────────────────────────────────────────────────────────────────────────


def _skip_lines(path: Path, file: BufferedReader, count: int) -> None:
    """Go to the beginning of the line after the first *count*; raise if there is none."""
    left, open_line = count, False
    while left:
        trio.from_thread.check_cancelled()
        chunk = file.read(_CHUNK)
        if not chunk:
            break
        open_line = not chunk.endswith(b"\n")
        found = chunk.count(b"\n")
        if found >= left:
            file.seek(_after_newlines(chunk, left) - len(chunk), os.SEEK_CUR)
            left, open_line = 0, False
        left -= min(found, left)
    if left or (count and not file.peek(1)):
        total = count - left + open_line
        raise ToolError(f"offset {count} is behind the end of {path}, which has {total} lines")


def _after_newlines(chunk: bytes, count: int) -> int:
    """Return the place behind the first *count* line feeds."""
    at = 0
    for _ in range(count):
        at = chunk.index(b"\n", at) + 1
    return at


def _read_lines(file: BufferedReader, limit: int, most: int) -> tuple[list[str], bool]:
    """Read up to *limit* lines, and up to *most* bytes."""
    lines: list[str] = []
    size = 0
    while len(lines) < limit and (line := _read_line(file)) is not None:
        size += len(line.encode()) + 1
        if size > most:
            return lines, True
        lines.append(line)
    return lines, bool(file.peek(1))


def _read_line(file: BufferedReader) -> str | None:
    """Read one line, and keep as much of it as is shown; None at the end of the file."""
    start = file.readline(LINE_LIMIT + 2)
    if not start:
        return None
    rest = start
    while rest and not rest.endswith(b"\n"):
        trio.from_thread.check_cancelled()
        rest = file.readline(_CHUNK)
    shown = start.removesuffix(b"\n").removesuffix(b"\r")
    if len(shown) <= LINE_LIMIT:
        return shown.decode()
    return _whole_characters(shown[:LINE_LIMIT]) + CUT


def _whole_characters(data: bytes) -> str:
    """Decode *data*, without the beginning of a character at its end."""
    return codecs.getincrementaldecoder("utf-8")().decode(data)


# ── Pictures ────────────────────────────────────────────────────────────────────────────────────


def picture_type(head: bytes) -> str | None:
    """Say which kind of picture begins like that; what the file is called does not matter."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def _picture(path: Path, file: BufferedReader, mime_type: str) -> Media:
    data = file.read(PICTURE_LIMIT + 1)
    if len(data) > PICTURE_LIMIT:
        raise ToolError(f"the picture {path} is too large: more than {PICTURE_LIMIT // 1024} KB")
    return Media(data=data, mime_type=mime_type)


LINES: Final = 200
"""How many lines are shown if the model does not say."""

SKILL_LIMIT: Final = 2 * 1024 * 1024
"""Lines, and bytes, of a skill that are shown if the model does not say: more than a skill may have."""


@frozen(kw_only=True)
class ViewArguments:
    """What the model says."""

    file_path: Annotated[str, About("The file to read, absolute or relative to the workspace.")]
    offset: Annotated[int, About("How many lines to pass over first. Default 0.")] = 0
    limit: Annotated[int, About(f"How many lines to show. Default {LINES}.")] = 0


@define(eq=False)
class ViewTool(BuiltIn):
    """Shows files. It asks first for those outside the workspace and *readable*, and for private ones."""

    name = "view"
    parallel = True
    arguments = ViewArguments

    bench: Workbench
    history: History
    readable: tuple[Path, ...] = ()
    skills: Mapping[Path, SkillInfo] = field(factory=dict, repr=False)
    """The skills, by their files. Of such a file there are no parts: half of it may say the opposite."""
    diagnose: Diagnose | None = field(default=None, repr=False)

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Show a file, and take note that the session has seen it."""
        arguments = read_arguments(call.input, ViewArguments)
        offset = arguments.offset
        if offset < 0:
            raise ToolError("offset counts lines from the beginning and cannot be negative")
        path = await locate(self.bench, arguments.file_path)
        skill = self.skills.get(path)
        usual, most = (LINES, SECTION_LIMIT) if skill is None else (SKILL_LIMIT, SKILL_LIMIT)
        limit = arguments.limit if arguments.limit > 0 else usual
        await self._ask(call, path, offset, limit)
        now = self.bench.clock.unix()
        seen = await trio.to_thread.run_sync(look, path, offset, limit, most)
        if isinstance(seen, Picture) and not call.images:
            raise ToolError(f"{path} is a picture, and this model cannot look at pictures")
        await self.history.record_read(call.session_id, path, max(now, seen.modified))
        if isinstance(seen, Picture):
            return ToolResult(
                content=f"{path}: {seen.media.mime_type}",
                media=seen.media,
                metadata=_metadata(path, ""),
            )
        said = "" if self.diagnose is None else await self.diagnose(path)
        return ToolResult(
            content="\n\n".join(filter(None, [_shown(seen, offset), said])),
            metadata=_metadata(path, "\n".join(seen.lines), skill),
        )

    async def _ask(self, call: ToolCall, path: Path, offset: int, limit: int) -> None:
        """Ask for permission where it is needed, before anything is touched there."""
        await trio.lowlevel.checkpoint()
        if self.bench.shared(path) or any(map(path.is_relative_to, self.readable)):
            return
        await call.permit(
            Wanted(
                action="read",
                description=f"Read {path}, which is {outside(self.bench, path)}",
                params={"file_path": str(path), "offset": offset, "limit": limit},
                path=judged(self.bench, path),
            )
        )


def _metadata(path: Path, content: str, skill: SkillInfo | None = None) -> Metadata:
    """Return what clients are told; that a skill was read they show by its name (I8)."""
    about = {"file_path": str(path), "content": content}
    if skill is None:
        return about
    return {
        **about,
        "resource_type": "skill",
        "resource_name": skill.name,
        "resource_description": skill.description,
    }


def _shown(section: Section, offset: int) -> str:
    if not section.lines:
        return "(The file is empty.)"
    text = f"<file>\n{numbered(section.lines, offset + 1)}\n</file>"
    if not section.more:
        return text
    end = offset + len(section.lines)
    return (
        f"{text}\n\n(The file has more lines. To see those after line {end}, set offset to {end}.)"
    )


def numbered(lines: Sequence[str], first: int) -> str:
    """Put its number before each line, right-aligned to six columns, and a vertical bar."""
    return "\n".join(f"{number:>6}|{line}" for number, line in enumerate(lines, first))
