"""The tool `view`: a section of a text file with line numbers, or a picture, or a whole skill."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import trio
from attrs import define, field, frozen

from crush_trio.tools.arguments import About, read_arguments
from crush_trio.tools.base import Metadata, ToolCall, ToolError, ToolResult, Wanted
from crush_trio.tools.built_in import BuiltIn
from crush_trio.tools.changing import Diagnose
from crush_trio.tools.history import History
from crush_trio.tools.places import judged, locate, outside
from crush_trio.tools.sections import SECTION_LIMIT, Picture, Section, look
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.integrations import SkillInfo

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
