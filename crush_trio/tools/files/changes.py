"""`FileChanges`: how every tool changes a file: read, propose, ask for permission, replace, record.

First the file is read; the session must have read its current content before (H5). Then permission may
be asked, which can take minutes. Then the file is replaced atomically, in a thread that a cancel does
not abandon, and only if its content is still the same: the person agreed to exactly this diff. The old
content is recorded before the replacement, the new content right after it (H6).

Invariant: the sessions of a workspace replace files one at a time, so a session cannot overwrite what
another wrote between its read and its write. After a cancel the file is changed or it is not, and the
history says which.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from crush_trio.config.redaction import REDACTED
from crush_trio.tools.base import Metadata, ToolCall, ToolError, Wanted
from crush_trio.tools.files.disk import (
    Snapshot,
    display_path,
    locate,
    permission_path,
    read_file,
    replace_file,
)
from crush_trio.tools.files.text import Difference, FileText, difference
from crush_trio.tools.workbench import History, Workbench

EDIT_LIMIT: Final = 5 * 1024 * 1024
"""Bytes that a file may have: the content before and after is shown, stored and compared as a whole."""

Diagnose = Callable[[Path], Awaitable[str]]
"""Returns the diagnostics of a file after it was read or changed, as text; often empty."""


@frozen(kw_only=True)
class TargetFile:
    """A file to change, as it was read; `snapshot` is None if it does not exist yet."""

    path: Path
    text: FileText
    snapshot: Snapshot | None
    link: Path | None = None
    """The path in the workspace that was named, if links led from there out of it."""

    @property
    def exists(self) -> bool:
        """Whether the file existed."""
        return self.snapshot is not None


@frozen(kw_only=True)
class Proposal:
    """A computed change that has not been made yet."""

    target: TargetFile
    after: FileText
    difference: Difference = field(repr=False)

    @property
    def counts(self) -> Metadata:
        """The numbers of added and removed lines."""
        return {"additions": self.difference.additions, "removals": self.difference.removals}

    @property
    def contents(self) -> Metadata:
        """The whole text before and after, for clients that show the diff; a new file has none before."""
        before = {"old_content": self.target.text.plain} if self.target.exists else {}
        return {**before, "new_content": self.after.plain}

    @property
    def summary(self) -> str:
        """The size of the change, for the tool result."""
        return f"+{self.difference.additions} -{self.difference.removals} lines"


@define(eq=False)
class FileChanges:
    """Changes the files of a workspace. All its tools share one, and with it one limiter."""

    bench: Workbench
    history: History
    diagnose: Diagnose | None = field(default=None, repr=False)
    hide: Callable[[str], str] = field(default=str, repr=False)
    """Removes secrets from a text, as it is done with what the model reads."""
    _writer: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def find(self, file_path: str) -> TargetFile:
        """Read the file that the model named; it may not exist."""
        path = await locate(self.bench, file_path)
        link = self.bench.link_out(file_path, path)
        return await trio.to_thread.run_sync(_found, path, link)

    async def must_be_fresh(self, call: ToolCall, target: TargetFile) -> None:
        """Raise unless the file exists and the session has read its current content."""
        if target.snapshot is None:
            raise ToolError(f"{target.path} does not exist")
        modified = target.snapshot.modified
        await self.history.check_fresh(call.session_id, target.path, modified)

    async def propose(self, target: TargetFile, after: FileText) -> Proposal:
        """Compute the change; raise `ToolError` if nothing would change, or the file got too large."""
        if target.exists and after == target.text:
            raise ToolError(f"{target.path} already is exactly like that: nothing would change")
        return await trio.to_thread.run_sync(_proposed, target, after, self.hide)

    async def carry_out(
        self,
        call: ToolCall,
        proposal: Proposal,
        description: str,
        denied: Metadata,
        *,
        action: str = "write",
    ) -> str:
        """Ask for permission, write, and record; return the diagnostics of the file.

        A change through a link out of the workspace is always asked, with the path of the file that
        would be changed. Raises `ToolError` if permission is denied or the file changed in the meantime.
        """
        path, link = proposal.target.path, proposal.target.link
        through = (
            "" if link is None else f", to which the link {display_path(self.bench, link)} leads"
        )
        await call.permit(
            Wanted(
                action=action,
                description=f"{description}{through}",
                params={"file_path": str(path), **proposal.contents},
                path=permission_path(self.bench, path),
                denied=denied,
                always=link is not None,
            )
        )
        await self.write(call, proposal)
        return "" if self.diagnose is None else await self.diagnose(path)

    async def write(self, call: ToolCall, proposal: Proposal) -> None:
        """Make and record a permitted change; raise `ToolError` if the file changed meanwhile."""
        path, before, after = proposal.target.path, proposal.target.text, proposal.after
        await self.history.keep_before(call.session_id, path, before.content)
        modified = await trio.to_thread.run_sync(
            replace_file, path, after.encoded(), proposal.target.snapshot, limiter=self._writer
        )
        await self.history.keep_after(call.session_id, path, after.content, modified)


def _found(path: Path, link: Path | None) -> TargetFile:
    snapshot = read_file(path, EDIT_LIMIT)
    data = b"" if snapshot is None else snapshot.data
    try:
        text = FileText.decoded(data)
    except UnicodeDecodeError:
        raise ToolError(f"{path} is a binary file") from None
    if "\0" in text.content:
        raise ToolError(f"{path} is a binary file")
    return TargetFile(path=path, text=text, snapshot=snapshot, link=link)


def _proposed(target: TargetFile, after: FileText, hide: Callable[[str], str]) -> Proposal:
    before = target.text.plain
    if after.plain.count(REDACTED) > before.count(REDACTED) and hide(before) != before:
        raise ToolError(
            f"{target.path} has a secret in it, which was shown to you as {REDACTED}; that text would "
            "take its place. Use edit, and leave the secret out of old_string and new_string."
        )
    try:
        size = len(after.encoded())
    except UnicodeEncodeError as exc:
        raise ToolError(
            f"{target.path} is {after.encoding_name or 'UTF-8'} text, which cannot hold "
            f"{after.content[exc.start]!r}. Use other characters, or convert the file to UTF-8 first."
        ) from None
    if size > EDIT_LIMIT:
        raise ToolError(f"that would make {target.path} larger than {EDIT_LIMIT // 1024} KB")
    compared = difference(before, after.plain)
    return Proposal(target=target, after=after, difference=compared)
