"""What the tools of one workspace share.

Everything a tool touches is in here, explicitly: the directory it works in, the environment of its
commands, the store. Nothing is taken from the process: two workspaces in one server have nothing in
common (L20, L21).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from attrs import define, field

from crush_trio.clock import Clock, IdSource
from crush_trio.events.facts import Event
from crush_trio.store.base import Changes, FileHistory, SessionReads


class ToolStore(Changes, SessionReads, FileHistory, Protocol):
    """What tools need of a store: file versions, read marks, the session's own row."""


@define(eq=False)
class Workbench:
    """One workspace, as its tools see it. `directory` is absolute and resolved, and so is `private`.

    What is `private` is not the project's but the program's and the user's: keys, conversations. It may
    lie inside the directory, and nobody gets to see it without asking.
    """

    directory: Path
    store: ToolStore = field(repr=False)
    publish: Callable[[Event], object] = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdSource = field(repr=False)
    env: Mapping[str, str] = field(factory=dict, repr=False)
    private: tuple[Path, ...] = ()

    def resolve(self, path: str) -> Path:
        """Return where *path* really leads: absolute, `..` and links followed (H4)."""
        return (self.directory / self._expanded(path)).resolve()

    def _expanded(self, path: str) -> Path:
        """Return *path* with the home directory of the workspace's environment in place of `~`."""
        home = self.env.get("HOME", "")
        if home and (path == "~" or path.startswith("~/")):
            return Path(home, path[2:])
        return Path(path)

    def inside(self, path: Path) -> bool:
        """Whether a resolved path lies in the workspace."""
        return path.is_relative_to(self.directory)

    def shared(self, path: Path) -> bool:
        """Whether a resolved path lies in the workspace and is not private."""
        return self.inside(path) and not any(map(path.is_relative_to, self.private))
