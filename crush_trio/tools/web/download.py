"""The tool `download`: saves a file from the web, all of it or nothing.

The bytes go into a file beside the target, which is renamed to the target when it is complete. Both
happen in the directory that was opened at the beginning, without following links. A download that fails, is too large or is cancelled leaves nothing behind, not even a directory.
"""

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from typing import Annotated, Final

import trio
from attrs import define, field, frozen

from crush_trio.nofollow import make_directories, remove_directories
from crush_trio.tools.base import (
    About,
    BuiltIn,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
    read_arguments,
)
from crush_trio.tools.files.disk import (
    create_beside,
    display_path,
    locate,
    os_errors_reported,
)
from crush_trio.tools.web.fetch import open_answer, parse_url, seconds_of
from crush_trio.tools.workbench import Workbench

SECONDS: Final = 300
MOST_SECONDS: Final = 600
LARGEST: Final = 1024**3
"""Bytes that a file may have by default."""

TIDYING: Final = 5.0
"""Seconds for removing an unfinished download."""


@frozen(kw_only=True)
class DownloadArguments:
    """What to download, and where to."""

    url: Annotated[str, About("The address, beginning with http:// or https://.")]
    file_path: Annotated[str, About("The file to save it as. Relative to the workspace.")]
    timeout: Annotated[
        int, About("Seconds to wait for all of it; 300 if left out, 600 at most.")
    ] = 0


@frozen(kw_only=True)
class Saved:
    """How much was saved, and what the server says it is."""

    size: int
    content_type: str


@define(eq=False)
class DownloadTool(BuiltIn):
    """The tool `download`. `largest` is how many bytes a file may have."""

    name = "download"
    parallel = True
    arguments = DownloadArguments

    bench: Workbench
    largest: int = field(default=LARGEST, kw_only=True)

    async def run(self, call: ToolCall) -> ToolResult:
        """Ask for permission, download, and put the file in its place."""
        arguments = read_arguments(call.input, DownloadArguments)
        parse_url(arguments.url)
        target = await locate(self.bench, arguments.file_path)
        link = self.bench.link_out(arguments.file_path, target)
        await call.permit(await trio.to_thread.run_sync(_wanted, arguments, target, link))
        seconds = seconds_of(arguments.timeout, default=SECONDS, most=MOST_SECONDS)
        with trio.move_on_after(seconds) as limit:
            saved = await self._download(arguments.url, target)
        if limit.cancelled_caught:
            raise ToolError(f"{arguments.url} could not be downloaded within {seconds} seconds")
        kind = f" ({saved.content_type})" if saved.content_type else ""
        return ToolResult(
            content=f"Saved {saved.size} bytes{kind} as {display_path(self.bench, target)}",
            metadata={"file_path": str(target), "size": saved.size},
        )

    async def _download(self, url: str, target: Path) -> Saved:
        async with open_answer(url, self.bench.env) as answer:
            if answer.status != 200:
                raise ToolError(f"{url} answered with status {answer.status}")
            if answer.length is not None and answer.length > self.largest:
                raise self._too_large(url)
            async with open_partial(target) as partial:
                while piece := await answer.receive():
                    await partial.write(piece)
                    if partial.size > self.largest:
                        raise self._too_large(url)
                await partial.complete()
        return Saved(size=partial.size, content_type=answer.content_type)

    def _too_large(self, url: str) -> ToolError:
        return ToolError(f"{url} is larger than the limit of {self.largest} bytes")


def _wanted(arguments: DownloadArguments, target: Path, link: Path | None) -> Wanted:
    """Return what the user is asked; runs in a worker thread."""
    if target.is_dir():
        raise ToolError(f"{target} is a directory; give the name of a file in it")
    replaced = ", replacing the file that is there" if target.exists() else ""
    through = "" if link is None else f", to which the link {link} leads"
    timeout = {"timeout": arguments.timeout} if arguments.timeout else {}
    return Wanted(
        action="download",
        description=f"Download {arguments.url} to {target}{through}{replaced}",
        params={"url": arguments.url, "file_path": str(target), **timeout},
        path=target,
        always=link is not None,
    )


# ── The unfinished file ─────────────────────────────────────────────────────────────────────────


@define(eq=False)
class Partial:
    """An unfinished file beside its target. `size` is the number of bytes written so far."""

    target: Path
    made: list[str]
    """Directories that were created for it, the uppermost first."""
    _folder: int
    """The descriptor of the target's directory."""
    _name: str
    _file: BufferedWriter
    size: int = field(default=0, init=False)
    _completed: bool = field(default=False, init=False)

    @classmethod
    def create(cls, target: Path) -> "Partial":
        """Create the file, and the directories above it."""
        name = f".crush-{token_hex(8)}.part"
        made: list[str] = []
        with os_errors_reported("write", target), ExitStack() as undo:
            undo.callback(remove_directories, made)
            folder = make_directories(target.parent, made)
            undo.callback(os.close, folder)
            file = create_beside(folder, name)
            undo.pop_all()
        return cls(target=target, made=made, folder=folder, name=name, file=file)

    async def write(self, piece: bytes) -> None:
        """Append *piece*. A cancel takes effect when it has been written."""
        with os_errors_reported("write", self.target):
            await trio.to_thread.run_sync(self._file.write, piece)
        self.size += len(piece)

    async def complete(self) -> None:
        """Put the file in its place."""
        with os_errors_reported("write", self.target):
            await trio.to_thread.run_sync(self._complete)

    def _complete(self) -> None:
        folder, name = self._folder, self.target.name
        with suppress(FileNotFoundError):
            there = os.stat(name, dir_fd=folder, follow_symlinks=False)
            os.fchmod(self._file.fileno(), S_IMODE(there.st_mode))
        self._file.close()
        os.replace(self._name, name, src_dir_fd=folder, dst_dir_fd=folder)
        self._completed = True

    def discard(self) -> None:
        """Close the file, and remove it with its directories unless it is complete."""
        with suppress(OSError):
            self._file.close()
        try:
            if not self._completed:
                with suppress(FileNotFoundError):
                    os.unlink(self._name, dir_fd=self._folder)
        finally:
            os.close(self._folder)
        if not self._completed:
            remove_directories(self.made)


@asynccontextmanager
async def open_partial(target: Path) -> AsyncIterator[Partial]:
    """Create an unfinished file; leaving the block removes it unless it was completed."""
    partial = await trio.to_thread.run_sync(Partial.create, target)
    try:
        yield partial
    finally:
        with trio.move_on_after(TIDYING, shield=True):
            await trio.to_thread.run_sync(partial.discard)
