"""The tool `view`: shows a section of a text file with line numbers, an image, or a whole skill.

Memory is bounded whatever the size of the file: the lines before a section are skipped, those after it
are not kept, and only the beginning of a long line is. Text that is not UTF-8 is decoded as an edit would
decode it. Reading runs in a thread, which checks between chunks whether its call was cancelled.
"""

import codecs
import os
from collections.abc import Mapping, Sequence
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Annotated, Final

import trio
from attrs import define, field, frozen

from crush_trio.tools.base import (
    About,
    BuiltIn,
    Media,
    Metadata,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
    read_arguments,
)
from crush_trio.tools.files.changes import EDIT_LIMIT, Diagnose
from crush_trio.tools.files.disk import (
    locate,
    missing_file_error,
    modified_at,
    open_regular,
    os_errors_reported,
    permission_path,
    reason_to_ask,
)
from crush_trio.tools.files.text import BOM, UTF8, UTF16, name_of_encoding, single_byte_encoding
from crush_trio.tools.workbench import History, Workbench
from crush_trio.wire.integrations import SkillInfo

DEFAULT_LINES: Final = 200
"""Lines shown by default."""

SKILL_LIMIT: Final = 2 * 1024 * 1024
"""Lines and bytes shown of a skill by default: more than a skill file may have."""


SECTION_LIMIT: Final = 200 * 1024
"""Maximum bytes of text in one section."""

PICTURE_LIMIT: Final = 200 * 1024
"""Maximum bytes of an image."""

LINE_LIMIT: Final = 2000
"""Bytes of a line that are shown."""

CUT: Final = "..."
"""Appended to a line that was cut."""

_CHUNK: Final = 1024 * 1024
_HEAD: Final = 8000


@frozen(kw_only=True)
class ViewArguments:
    """The arguments of `view`."""

    file_path: Annotated[str, About("The file to read, absolute or relative to the workspace.")]
    offset: Annotated[int, About("How many lines to pass over first. Default 0.")] = 0
    limit: Annotated[int, About(f"How many lines to show. Default {DEFAULT_LINES}.")] = 0


@frozen(kw_only=True)
class Section:
    """Some lines of a file. `more` says that the file continues after them."""

    lines: tuple[str, ...] = field(repr=False)
    more: bool
    modified: int
    encoding: str = UTF8


@frozen(kw_only=True)
class ViewedImage:
    """An image file."""

    media: Media
    modified: int


@define(eq=False)
class ViewTool(BuiltIn):
    """The tool `view`. Asks for permission if a file is private, or neither inside the workspace nor
    in one of the *readable* directories.
    """

    name = "view"
    parallel = True
    arguments = ViewArguments

    bench: Workbench
    history: History
    readable: tuple[Path, ...] = ()
    skills: Mapping[Path, SkillInfo] = field(factory=dict, repr=False)
    """The skills, by their files. A skill is shown whole: a part of it could be misleading."""
    diagnose: Diagnose | None = field(default=None, repr=False)

    async def run(self, call: ToolCall, /) -> ToolResult:
        """Return the section or image, and mark the file as read by the session."""
        arguments = read_arguments(call.input, ViewArguments)
        offset = arguments.offset
        if offset < 0:
            raise ToolError("offset counts lines from the beginning and cannot be negative")
        path = await locate(self.bench, arguments.file_path)
        skill = self.skills.get(path)
        usual, most = (
            (DEFAULT_LINES, SECTION_LIMIT) if skill is None else (SKILL_LIMIT, SKILL_LIMIT)
        )
        limit = arguments.limit if arguments.limit > 0 else usual
        await self._ask(call, path, offset, limit)
        now = self.bench.clock.unix()
        seen = await trio.to_thread.run_sync(read_view, path, offset, limit, most)
        if isinstance(seen, ViewedImage) and not call.images:
            raise ToolError(f"{path} is an image, and this model does not accept images")
        await self.history.record_read(call.session_id, path, max(now, seen.modified))
        if isinstance(seen, ViewedImage):
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
        """Ask for permission if it is needed, before the file is opened."""
        await trio.lowlevel.checkpoint()
        if self.bench.shared(path) or any(map(path.is_relative_to, self.readable)):
            return
        await call.permit(
            Wanted(
                action="read",
                description=f"Read {path}, which is {reason_to_ask(self.bench, path)}",
                params={"file_path": str(path), "offset": offset, "limit": limit},
                path=permission_path(self.bench, path),
            )
        )


def _metadata(path: Path, content: str, skill: SkillInfo | None = None) -> Metadata:
    """Return the metadata for clients, which show a skill by its name (I8)."""
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
    text = f"<file>\n{number_lines(section.lines, offset + 1)}\n</file>"
    if name := name_of_encoding(section.encoding):
        text += f"\n\n(The encoding of the file is {name}. A change keeps it.)"
    if not section.more:
        return text
    end = offset + len(section.lines)
    return (
        f"{text}\n\n(The file has more lines. To see those after line {end}, set offset to {end}.)"
    )


def number_lines(lines: Sequence[str], first: int) -> str:
    """Prefix each line with its number, right-aligned to six columns, and a vertical bar."""
    return "\n".join(f"{number:>6}|{line}" for number, line in enumerate(lines, first))


def read_view(
    path: Path, offset: int, limit: int, most: int = SECTION_LIMIT
) -> Section | ViewedImage:
    """Return *limit* lines after the first *offset*, or the whole file if it is an image.

    *most* limits the bytes of text. Runs in a Trio thread. Raises `ToolError` if the file does not
    exist, or is neither text nor an image.
    """
    with os_errors_reported("read", path):
        try:
            file = open_regular(path)
        except FileNotFoundError:
            raise missing_file_error(path) from None
        with file:
            return _look(path, file, offset, limit, most)


def _look(
    path: Path, file: BufferedReader, offset: int, limit: int, most: int
) -> Section | ViewedImage:
    modified = modified_at(file)
    head = file.read(_HEAD)
    file.seek(0)
    if (mime_type := picture_type(head)) is not None:
        return ViewedImage(media=_picture(path, file, mime_type), modified=modified)
    encoding = UTF16.get(head[:2]) or UTF8
    if encoding is not UTF8:
        file = _transcoded(path, file, encoding)
    elif b"\0" in head:
        raise ToolError(f"{path} is a binary file")
    elif not _is_utf8(file):
        encoding = _single_byte_encoding(path, file)
    _skip_lines(path, file, offset)
    try:
        lines, more = _read_lines(
            file, limit, most, UTF8 if encoding in UTF16.values() else encoding
        )
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not UTF-8 text") from None
    if lines and not offset:
        lines[0] = lines[0].removeprefix(BOM)
    return Section(lines=tuple(lines), more=more, modified=modified, encoding=encoding)


# ── Encodings ───────────────────────────────────────────────────────────────────────────────────


def _transcoded(path: Path, file: BufferedReader, encoding: str) -> BufferedReader:
    """Return a UTF-16 file as UTF-8, so that its lines can be read in the same way."""
    data = file.read(EDIT_LIMIT + 1)
    if len(data) > EDIT_LIMIT:
        raise ToolError(f"{path} is UTF-16 and too large: more than {EDIT_LIMIT // 1024} KB")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise ToolError(f"{path} is a binary file") from None
    if "\0" in text:
        raise ToolError(f"{path} is a binary file")
    return BufferedReader(BytesIO(text.encode(UTF8)))


def _is_utf8(file: BufferedReader) -> bool:
    """Whether the part of a file that an edit would read is UTF-8: both must decode it alike."""
    decoder = codecs.getincrementaldecoder(UTF8)()
    try:
        for _ in range(EDIT_LIMIT // _CHUNK):
            trio.from_thread.check_cancelled()
            chunk = file.read(_CHUNK)
            decoder.decode(chunk, final=not chunk)
            if not chunk:
                break
    except UnicodeDecodeError:
        return False
    finally:
        file.seek(0)
    return True


def _single_byte_encoding(path: Path, file: BufferedReader) -> str:
    encoding = single_byte_encoding(file.read(EDIT_LIMIT))
    if encoding is None:
        raise ToolError(f"{path} is a binary file")
    file.seek(0)
    return encoding


# ── Lines ───────────────────────────────────────────────────────────────────────────────────────


def _skip_lines(path: Path, file: BufferedReader, count: int) -> None:
    """Skip *count* lines; raise `ToolError` if the file ends before."""
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
    """Return the offset after the first *count* line feeds."""
    at = 0
    for _ in range(count):
        at = chunk.index(b"\n", at) + 1
    return at


def _read_lines(
    file: BufferedReader, limit: int, most: int, encoding: str = UTF8
) -> tuple[list[str], bool]:
    """Read up to *limit* lines and *most* bytes; return them, and whether there is more."""
    lines: list[str] = []
    size = 0
    while len(lines) < limit and (line := _read_line(file, encoding)) is not None:
        size += len(line.encode()) + 1
        if size > most:
            return lines, True
        lines.append(line)
    return lines, bool(file.peek(1))


def _read_line(file: BufferedReader, encoding: str) -> str | None:
    """Read one line and keep the part that is shown; None at the end of the file."""
    start = file.readline(LINE_LIMIT + 2)
    if not start:
        return None
    rest = start
    while rest and not rest.endswith(b"\n"):
        trio.from_thread.check_cancelled()
        rest = file.readline(_CHUNK)
    shown = start.removesuffix(b"\n").removesuffix(b"\r")
    if len(shown) <= LINE_LIMIT:
        return shown.decode(encoding)
    return _whole_characters(shown[:LINE_LIMIT], encoding) + CUT


def _whole_characters(data: bytes, encoding: str) -> str:
    """Decode *data*, dropping an incomplete character at its end."""
    return codecs.getincrementaldecoder(encoding)().decode(data)


# ── Pictures ────────────────────────────────────────────────────────────────────────────────────


def picture_type(head: bytes) -> str | None:
    """Return the media type of an image that begins like this, whatever its file name."""
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
