"""How a file is changed: looked at, agreed upon, and replaced if it still is what was looked at.

All tools that change a file go this way. First the file is read, and whoever wants to change it must
have seen it as it is (H5). Then a person may be asked, who may take minutes. Then the file is
replaced in one step, in a thread that no cancel abandons, and only if nobody has touched it since:
the person agreed to this difference and to no other. What it held before is kept first, what it holds
now is kept right after (H6).

Invariant: the sessions of a workspace change files one at a time, so none can undo what another did
between its look and its write. A cancelled call has changed the file or not, and the history says
which.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from crush_trio.tools.base import Metadata, ToolCall, ToolError, Wanted
from crush_trio.tools.files.disk import Snapshot, judged, locate, read_file, replace_file
from crush_trio.tools.files.text import Difference, Text, difference
from crush_trio.tools.workbench import History, Workbench

EDIT_LIMIT: Final = 5 * 1024 * 1024
"""Bytes that a file may have to be changed: before and after are shown, kept and compared whole."""

Diagnose = Callable[[Path], Awaitable[str]]
"""Returns what there is to say about a file after it was looked at or changed; often nothing."""


@frozen(kw_only=True)
class Target:
    """A file that is to be changed, as it was found; without a snapshot it is not there yet."""

    path: Path
    text: Text
    snapshot: Snapshot | None

    @property
    def exists(self) -> bool:
        """Whether there was a file."""
        return self.snapshot is not None


@frozen(kw_only=True)
class Proposal:
    """A change that has been worked out and not yet been made."""

    target: Target
    after: Text
    difference: Difference = field(repr=False)

    @property
    def counts(self) -> Metadata:
        """How many lines come and go."""
        return {"additions": self.difference.additions, "removals": self.difference.removals}

    @property
    def contents(self) -> Metadata:
        """The whole text before and after, for whoever draws the difference."""
        return {"old_content": self.target.text.plain, "new_content": self.after.plain}

    @property
    def summary(self) -> str:
        """What changes, in a few words."""
        return f"+{self.difference.additions} -{self.difference.removals} lines"


@define(eq=False)
class FileChanges:
    """Changes the files of a workspace. Its tools share one, and with it the door to the disk."""

    bench: Workbench
    history: History
    diagnose: Diagnose | None = field(default=None, repr=False)
    _door: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)

    async def find(self, file_path: str) -> Target:
        """Read the file that a model named, or find that it is not there."""
        path = await locate(self.bench, file_path)
        return await trio.to_thread.run_sync(_found, path)

    async def must_be_fresh(self, call: ToolCall, target: Target) -> None:
        """Raise unless the file is there, and the session has seen it as it is."""
        if target.snapshot is None:
            raise ToolError(f"{target.path} does not exist")
        modified = target.snapshot.modified
        await self.history.check_fresh(call.session_id, target.path, modified)

    async def propose(self, target: Target, after: Text) -> Proposal:
        """Work out what would change; raise if nothing would, or too much."""
        if target.exists and after == target.text:
            raise ToolError(f"{target.path} already is exactly like that: nothing would change")
        return await trio.to_thread.run_sync(_proposed, target, after)

    async def carry_out(
        self,
        call: ToolCall,
        proposal: Proposal,
        description: str,
        denied: Metadata,
        *,
        action: str = "write",
    ) -> str:
        """Ask, write, and keep a record; return what there is to say about the file then.

        Raises the `ToolError` of a denial, or one that says that the file changed in the meantime.
        """
        path = proposal.target.path
        await call.permit(
            Wanted(
                action=action,
                description=description,
                params={"file_path": str(path), **proposal.contents},
                path=judged(self.bench, path),
                denied=denied,
            )
        )
        await self.write(call, proposal)
        return "" if self.diagnose is None else await self.diagnose(path)

    async def write(self, call: ToolCall, proposal: Proposal) -> None:
        """Make a change that was agreed upon, unless the file changed in the meantime; keep a record."""
        path, before, after = proposal.target.path, proposal.target.text, proposal.after
        await self.history.keep_before(call.session_id, path, before.content)
        modified = await trio.to_thread.run_sync(
            replace_file, path, after.encoded(), proposal.target.snapshot, limiter=self._door
        )
        await self.history.keep_after(call.session_id, path, after.content, modified)


def _found(path: Path) -> Target:
    snapshot = read_file(path, EDIT_LIMIT)
    data = b"" if snapshot is None else snapshot.data
    try:
        text = Text.decoded(data)
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not UTF-8 text") from None
    if "\0" in text.content:
        raise ToolError(f"{path} is a binary file")
    return Target(path=path, text=text, snapshot=snapshot)


def _proposed(target: Target, after: Text) -> Proposal:
    if len(after.encoded()) > EDIT_LIMIT:
        raise ToolError(f"that would make {target.path} larger than {EDIT_LIMIT // 1024} KB")
    compared = difference(target.text.plain, after.plain)
    return Proposal(target=target, after=after, difference=compared)
