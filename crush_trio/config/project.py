"""Whether a project has been introduced to agents yet.

It has if somebody said so, which a flag file in the data directory remembers, or if it has a file with
instructions for agents. An empty directory has nothing to introduce.
"""

from pathlib import Path
from typing import Final

import trio

from crush_trio.config.context_files import has_context_file
from crush_trio.config.files import DIRECTORY_MODE, FILE_MODE

FLAG_NAME: Final = "init"
DEFAULT_INITIALIZE_AS: Final = "AGENTS.md"
"""The file that an introduction is written to, unless `options.initialize_as` says otherwise."""


async def needs_init(directory: Path, data_dir: Path) -> bool:
    """Whether a client should offer to introduce the project in *directory*."""
    return await trio.to_thread.run_sync(_needs_init, directory, data_dir)


async def mark_initialized(data_dir: Path) -> None:
    """Remember that the project has been introduced, or that nobody wants it to be."""
    await trio.to_thread.run_sync(_mark, data_dir)


def _needs_init(directory: Path, data_dir: Path) -> bool:
    if (data_dir / FLAG_NAME).exists() or has_context_file(directory):
        return False
    ours = {".git", data_dir.name} if data_dir.parent == directory else {".git"}
    try:
        return any(entry.name not in ours for entry in directory.iterdir())
    except OSError:
        return False  # what cannot be looked into cannot be introduced


def _mark(data_dir: Path) -> None:
    data_dir.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    (data_dir / FLAG_NAME).touch(mode=FILE_MODE)
