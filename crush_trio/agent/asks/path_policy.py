"""`PathPolicy`: which paths a grant or an allowing rule may reach; and the paths that are always asked about.

`.git`, `.crush`, `crush.json` and the start-up files of shells decide which programs run later: a hook, a
setting, an alias. No grant and no rule covers them, so each use is shown to a person.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from attrs import field, frozen

from crush_trio.config.sources import PROJECT_NAMES

PROTECTED: Final = frozenset(
    {
        *PROJECT_NAMES,
        *(".git", ".crush", ".gitconfig", ".envrc", ".direnvrc", ".inputrc", ".pam_environment"),
        *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"),
        *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc"),
        *(".cshrc", ".tcshrc", ".login", ".logout", "config.fish"),
        *(".xinitrc", ".xprofile", ".xsession", ".xsessionrc"),
    }
)
"""Names of files and directories that are always asked about, wherever they are."""

_IN_TEXT: Final = re.compile(
    rf"(?<![\w.-])(?:{'|'.join(map(re.escape, sorted(PROTECTED, reverse=True)))})(?![\w.-])"
)


def names_protected(parts: Iterable[str]) -> bool:
    """Whether a path with these names is, or is in, something that is always asked about."""
    return not PROTECTED.isdisjoint(parts)


def mentions_protected(text: str) -> bool:
    """Whether a text mentions a protected name; for texts that cannot be parsed."""
    return _IN_TEXT.search(text) is not None


def without_links(path: Path) -> Path:
    """Return *path* with `..` and symbolic links resolved, as far as it exists. Reads the disk."""
    return Path(os.path.realpath(path))


def directory_of(path: Path, working_directory: Path) -> str:
    """Return the directory for which permission of an action on *path* is asked (F1).

    That is the parent of an existing file, and any other path itself. The check needs no thread:
    the tool has just resolved the path, so its entry is in the kernel's cache.
    """
    absolute = working_directory / path
    try:
        is_file = absolute.is_file()
    except OSError:  # a parent directory may not be read
        is_file = False
    return str(absolute.parent if is_file else absolute)


@frozen(kw_only=True)
class PathPolicy:
    """Which paths grants and rules of one workspace may reach.

    *workspace* and *private* are absolute and resolved. *resolve* resolves links: a grant must not reach
    through a link that a repository brought along.
    """

    workspace: Path
    private: tuple[Path, ...] = ()
    resolve: Callable[[Path], Path] = field(default=without_links, repr=False)

    def holds(self, path: Path) -> bool:
        """Whether *path* leads into the workspace, to nothing private and nothing protected."""
        real = self.resolve(path)
        return real.is_relative_to(self.workspace) and not (
            self.is_private(real) or names_protected(real.relative_to(self.workspace).parts)
        )

    def is_private(self, path: Path) -> bool:
        """Whether a resolved path is among the data of the program and the user."""
        return any(map(path.is_relative_to, self.private))

    def is_protected(self, path: Path) -> bool:
        """Whether a resolved path is always asked about."""
        inside = path.is_relative_to(self.workspace)
        return names_protected((path.relative_to(self.workspace) if inside else path).parts)

    def reaches(self, directory: Path, path: Path) -> bool:
        """Whether permission for *directory* reaches *path*; both are resolved.

        It does not reach into private directories. Outside the workspace it does not reach hidden
        files either, unless the directory itself is hidden: a home directory is full of keys.
        """
        if not path.is_relative_to(directory):
            return False
        if any(path.is_relative_to(p) and not directory.is_relative_to(p) for p in self.private):
            return False
        hidden = any(name.startswith(".") for name in path.relative_to(directory).parts)
        return path.is_relative_to(self.workspace) or not hidden
