"""`lay_out`: decides, for a confinement, what each path of the file system is in the sandbox.

The result is a list of paths with a role, parents first: mounted in this order, they give the file
system that the confinement describes. Three attacks shape it:

* A directory that *contains* a mount point can be renamed, and then a new one can be made in its place.
  A mount point itself can not. So every directory between a writable one and a protected or hidden path
  below it becomes a mount point as well (role `WRITABLE`).
* A protected name that does not exist yet could be made. There is nothing to mount on, so the guard
  makes an empty directory while the command runs (`tools/shell/guard/placeholder.py`) and removes it
  afterwards.
* A symbolic link cannot be a mount point and could be replaced. So the directory that holds it is
  read-only; if that is one of the writable directories themselves, the confinement is refused.

A path that a former command could have replaced by a link is never followed to make something
writable: a writable path below another writable one is left out, because it is writable already.
"""

import errno
import os
import stat
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

from crush_trio.tools.sandbox.confinement import Confinement, NotConfined
from crush_trio.tools.shell.guard.placeholder import is_placeholder

MOST_LINKS: Final = 8
"""Maximum links followed from a protected path to what must be protected with it."""


class Role(IntEnum):
    """What a path is in the sandbox. If a path has two roles, the higher one counts."""

    WRITABLE = 1
    READ_ONLY = 2
    HIDDEN = 3


@frozen(kw_only=True)
class Layout:
    """The roles of paths, parents first, and the names that need a placeholder."""

    roles: tuple[tuple[Path, Role], ...]
    placeholders: tuple[Path, ...]

    def role(self, path: Path) -> Role:
        """Return the role of *path*, which is that of the nearest path above it that has one."""
        return nearest_role(dict(self.roles), path)[1]


def lay_out(confinement: Confinement) -> Layout:
    """Return the layout for *confinement*; raise `NotConfined` if a path cannot be protected.

    Reads the file system, so it belongs in a thread.
    """
    plan = _Plan()
    wanted = [(path, Role.WRITABLE) for path in confinement.writable]
    wanted += [(path, Role.HIDDEN) for path in confinement.hidden]
    for path, role in sorted(wanted, key=lambda each: (len(each[0].parts), each[1])):
        plan.hide(path) if role is Role.HIDDEN else plan.allow(path)
    for path in confinement.protected:
        plan.protect(path)
    ordered = sorted(plan.roles.items(), key=lambda each: len(each[0].parts))
    return Layout(roles=tuple(ordered), placeholders=tuple(plan.placeholders))


@define(eq=False)
class _Plan:
    """A layout in the making. `_roots` has the writable paths as they were given, and resolved."""

    roles: dict[Path, Role] = field(factory=dict)
    placeholders: list[Path] = field(factory=list)
    _roots: dict[Path, Path] = field(factory=dict)

    def allow(self, path: Path) -> None:
        """Make *path* writable, unless it is already or does not exist."""
        if nearest_role(self.roles, self._in_root(path) or path)[1] is Role.WRITABLE:
            return
        real = _resolved(path)
        if real is not None and nearest_role(self.roles, real)[1] is not Role.WRITABLE:
            self._roots[path] = real
            self.roles.setdefault(real, Role.WRITABLE)

    def hide(self, path: Path) -> None:
        """Hide *path*, if it exists and is not below a hidden directory."""
        real = _resolved(path)
        if real is None or nearest_role(self.roles, real)[1] is Role.HIDDEN:
            return
        root, role = nearest_role(self.roles, real)
        if role is Role.WRITABLE and root != real:
            self._hold(root, real.parent)
        self.roles[real] = Role.HIDDEN

    def protect(self, path: Path, links: int = 0) -> None:
        """Make *path* read-only and keep its name from being replaced, if it can be written."""
        real = self._in_root(path) or Path(os.path.realpath(path.parent), path.name)
        root, role = nearest_role(self.roles, real)
        if role is not Role.WRITABLE:
            return
        current = root
        for part in real.relative_to(root).parts:
            current /= part
            kind = _kind(current)
            if kind == stat.S_IFLNK:
                self._hold_link(current)
                target = _resolved(current)
                if target is not None and links < MOST_LINKS:
                    self.protect(target / real.relative_to(current), links + 1)
                return
            if kind is None and not _can_be_made(current):
                return
            if kind is None or is_placeholder(current):
                self.placeholders += [] if current in self.placeholders else [current]
                break
            if kind != stat.S_IFDIR:
                break
            self._give(current, Role.WRITABLE)
        self._give(current, Role.READ_ONLY)

    def _hold_link(self, link: Path) -> None:
        if link.parent in self._roots.values():
            raise NotConfined(
                errno.EPERM,
                f"the sandbox cannot protect {link}: it is a symbolic link in a writable directory. "
                "Replace the link by what it points to, or run the command outside the sandbox",
            )
        self._give(link.parent, Role.READ_ONLY)

    def _hold(self, root: Path, path: Path) -> None:
        """Make every directory from *root* to *path* a mount point, so that none can be renamed."""
        for directory in (path, *path.parents):
            if directory == root:
                return
            self._give(directory, Role.WRITABLE)

    def _give(self, path: Path, role: Role) -> None:
        self.roles[path] = max(role, self.roles.get(path, role))

    def _in_root(self, path: Path) -> Path | None:
        """Return *path* with the writable directory that it was given under resolved."""
        for each in (path, *path.parents):
            if each in self._roots:
                return self._roots[each] / path.relative_to(each)
        return None


def nearest_role(roles: Mapping[Path, Role], path: Path) -> tuple[Path, Role]:
    """Return the nearest path at or above *path* that has a role; the root is read-only."""
    for each in (path, *path.parents):
        if each in roles:
            return each, roles[each]
    return Path("/"), Role.READ_ONLY


def _resolved(path: Path) -> Path | None:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):  # missing, or links in a circle
        return None


def _can_be_made(path: Path) -> bool:
    """Whether a command, which runs as our user, could make *path*."""
    if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
        return False
    return os.access(path.parent, os.W_OK) or path.parent.stat().st_uid == os.geteuid()


def _kind(path: Path) -> int | None:
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except FileNotFoundError:
        return None
