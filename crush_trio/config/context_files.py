"""Context files, which have instructions for the agent; and project set-up.

They are read when a prompt is built, not at start. Each file is read once, even if several names
lead to it; names that differ in case only count as one. Links in a checkout are followed only
within it: a link out of it could lead to any file of the machine.

A project is set up for agents if it has such a file, or if a flag file in the data directory says
so. An empty directory needs no set-up.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio
from attrs import field, frozen

from crush_trio.config.sources import Project, real_path
from crush_trio.private_files import DIRECTORY_MODE, FILE_MODE, read_plain_file

CONTEXT_NAMES: Final = (
    ".github/copilot-instructions.md",
    ".cursorrules",
    ".cursor/rules",
    ".windsurfrules",
    ".clinerules",
    "CLAUDE.md",
    "CLAUDE.local.md",
    "GEMINI.md",
    "GEMINI.local.md",
    "CRUSH.md",
    "CRUSH.local.md",
    "AGENTS.md",
    "AGENTS.local.md",
)
"""The names of context files in a workspace; case does not matter. A directory means its files."""

USER_NAMES: Final = ("CRUSH.md", "AGENTS.md")
"""The names of context files in the user's configuration directory."""

SIZE_LIMIT: Final = 200_000
"""The most bytes that are read of one file."""

COUNT_LIMIT: Final = 100
"""The most files that are read of one directory."""


@frozen(kw_only=True)
class ContextPath:
    """A file or directory to read. A `confined` one is read only if it is inside the project."""

    path: Path
    confined: bool = False


@frozen(kw_only=True)
class ContextFile:
    """The text of one file."""

    path: Path
    text: str = field(repr=False)


async def read_context_files(
    project: Project,
    *,
    configured: Iterable[ContextPath] = (),
    user_directory: Path | None = None,
    everywhere: Iterable[ContextPath] = (),
) -> tuple[ContextFile, ...]:
    """Return the context files: those of the workspace, *configured* ones, then the user's.

    A file that is missing or cannot be read is left out. Invalid UTF-8 is replaced, and a long file
    is cut, with a note at its end.
    """
    wanted = (*configured, *_in_user_directory(user_directory), *everywhere)
    return await trio.to_thread.run_sync(_read_all, project, wanted)


def has_context_file(directory: Path) -> bool:
    """Whether any file of the fixed list is in *directory*. Touches the disk."""
    return any(path.exists() for path in _by_name(directory))


def _in_user_directory(directory: Path | None) -> Iterator[ContextPath]:
    if directory is not None:
        yield from (ContextPath(path=directory / name) for name in USER_NAMES)


def _read_all(project: Project, wanted: tuple[ContextPath, ...]) -> tuple[ContextFile, ...]:
    known = [ContextPath(path=path, confined=True) for path in _by_name(project.directory)]
    found: dict[str, ContextFile] = {}
    for each in (*known, *wanted):
        for path in _files(each.path):
            name, real = str(path).casefold(), real_path(path)
            if name in found or (each.confined and not real.is_relative_to(project.root)):
                continue
            text = _read(real)
            if text is not None:
                found[name] = ContextFile(path=path, text=text)
    return tuple(found.values())


def _by_name(directory: Path) -> Iterator[Path]:
    """Yield the files with the fixed names, whatever the case of their names on the disk."""
    listed: dict[str, list[str]] = {}  # most names are of one directory, which may be long
    for name in CONTEXT_NAMES:
        parent, _, last = name.rpartition("/")
        if parent not in listed:
            listed[parent] = _entries(directory / parent)
        for entry in listed[parent]:
            if entry.lower() == last.lower():
                yield directory / parent / entry


def _entries(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - a path for each name would cost more
    except OSError:
        return []


def _files(path: Path) -> Iterator[Path]:
    """Yield *path*, or the first files below it if it is a directory; links are not followed."""
    if not path.is_dir():
        yield path
        return
    count = 0
    for parent, directories, names in os.walk(path):
        directories.sort()
        for name in sorted(names):
            if count == COUNT_LIMIT:
                return
            count += 1
            yield Path(parent) / name


def _read(path: Path) -> str | None:
    """Return the text of a resolved path; None if it cannot be read."""
    try:
        data = read_plain_file(path, SIZE_LIMIT + 1)
    except OSError:
        return None
    if data is None:
        return None
    text = data[:SIZE_LIMIT].decode("utf-8", "replace")
    if len(data) > SIZE_LIMIT:
        text += f"\n\n[The file goes on; only its first {SIZE_LIMIT} bytes are shown.]\n"
    return text


FLAG_NAME: Final = "init"
DEFAULT_INITIALIZE_AS: Final = "AGENTS.md"
"""The default file that project set-up writes; `options.initialize_as` overrides it."""


async def needs_init(directory: Path, data_dir: Path) -> bool:
    """Whether a client should offer to set up the project in *directory* for agents."""
    return await trio.to_thread.run_sync(_needs_init, directory, data_dir)


async def mark_initialized(data_dir: Path) -> None:
    """Remember that the project was set up, or that the user declined."""
    await trio.to_thread.run_sync(_mark, data_dir)


def _needs_init(directory: Path, data_dir: Path) -> bool:
    if (data_dir / FLAG_NAME).exists() or has_context_file(directory):
        return False
    ours = {".git", data_dir.name} if data_dir.parent == directory else {".git"}
    try:
        return any(entry.name not in ours for entry in directory.iterdir())
    except OSError:
        return False  # a directory that cannot be read cannot be set up


def _mark(data_dir: Path) -> None:
    data_dir.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # follows no link
    with suppress(FileExistsError):
        os.close(os.open(data_dir / FLAG_NAME, flags, FILE_MODE))
