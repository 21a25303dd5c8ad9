"""The directories that the user has worked in lately, in a small file of the user's data directory."""

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from crush_trio.errors import DecodeError
from crush_trio.wire.codec import decode, encode
from crush_trio.wire.views import RecentDirectory

MOST: Final = 20
"""The most directories that are kept."""

_AGAIN: Final = 60
"""Seconds in which a directory is not noted a second time."""

log = logging.getLogger(__name__)


@define(eq=False)
class RecentDirectories:
    """The directories and when they were opened. Without a file there are none."""

    _path: Path | None = None
    _noted: dict[str, int] = field(factory=dict, init=False)

    async def note(self, directory: str, at: int) -> None:
        """Put a directory first. A failure is logged: opening a workspace does not depend on this."""
        await trio.lowlevel.checkpoint()
        path = self._path
        if path is None or at - self._noted.get(directory, -_AGAIN) < _AGAIN:
            return
        self._noted[directory] = at
        try:
            await trio.to_thread.run_sync(_write, path, RecentDirectory(path=directory, used_at=at))
        except OSError as error:
            log.warning("recent.not_written", extra={"error": str(error)})

    async def read(self, without: Collection[str] = ()) -> tuple[RecentDirectory, ...]:
        """Return those that exist and are not in *without*, the last used first."""
        await trio.lowlevel.checkpoint()
        path = self._path
        if path is None:
            return ()
        found = await trio.to_thread.run_sync(_existing, path)
        return tuple(each for each in found if each.path not in without)


def _existing(path: Path) -> list[RecentDirectory]:
    return [each for each in _read(path) if Path(each.path).is_dir()]


def _read(path: Path) -> tuple[RecentDirectory, ...]:
    try:
        return decode(path.read_bytes(), tuple[RecentDirectory, ...])[:MOST]
    except (OSError, DecodeError):  # no file yet, or one that a person has edited
        return ()


def _write(path: Path, newest: RecentDirectory) -> None:
    others = (each for each in _read(path) if each.path != newest.path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(encode((newest, *others)[:MOST]))
    draft.replace(path)
