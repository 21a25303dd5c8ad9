"""`DirectoryWalk`: lists a directory tree. `IgnoreFilter`: what searches skip.

A walk runs in a worker thread, because a directory can be slow to read. It checks regularly whether its
task was cancelled, so that a cancelled run does not wait for it. It goes level by level, sorted by name,
so a walk that is cut short has seen the upper levels completely. Symbolic links are listed but not
followed, so there are no loops and no way out of the tree, also not through a link that is put in
place of a directory during the walk.

`.gitignore` and `.crushignore` follow Git's rules: the rules of a file apply to its directory and below,
the nearest file decides, within a file the last matching rule, and nothing inside an ignored directory
can be re-included. If no rule matches, the entries of `NOISE` are skipped, and by searches those of
`SECRETS` too; in a home directory, all hidden entries are. Private paths are skipped whatever the rules say,
because the rules are part of the project. Git's excludes outside the tree are not used, so the result
depends on the project only.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import Final

import trio
from attrs import define, field, frozen

from crush_trio.nofollow import open_regular, opened_directory
from crush_trio.tools.search.patterns import BadPattern, PathPattern, name_regex

IGNORE_FILES: Final = (".gitignore", ".crushignore")
"""Read in this order, so that the second overrides the first."""

LARGEST: Final = 64 * 1024
"""Bytes read of an ignore file."""

NOISE: Final = (
    *(".git", ".hg", ".svn", ".bzr", ".jj", "CVS/", ".crush/"),
    *("node_modules/", "bower_components/", "__pycache__/", ".venv/", "venv/", ".tox/", ".nox/"),
    *(".cache/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".hypothesis/", ".gradle/"),
    *(".idea/", ".DS_Store", "Thumbs.db", "*.pyc", "*.pyo", "*.swp", "*~"),
)
"""Skipped by default: version control, installed packages, caches, temporary files of editors."""

SECRETS: Final = (".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template")
"""Files that usually hold secrets, which a search would show by accident; they can be named by path."""

_NOWHERE: Final = frozenset(("", ".", ".."))
"""Parts that no path has; Git ignores a rule with one of them."""


# ── Rules ───────────────────────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class IgnoreRule:
    """One line of an ignore file."""

    pattern: PathPattern
    negated: bool = False
    directories: bool = False

    @classmethod
    def parse(cls, line: str) -> "IgnoreRule | None":
        """Parse a line; None if it is empty, a comment, or invalid."""
        text = _without_trailing_blanks(line.rstrip("\r\n"))
        if not text or text.startswith("#"):
            return None
        negated = text.startswith("!")
        text = text[negated:]
        plain = text.removesuffix("/")
        anchored = "/" in plain
        plain = plain.removeprefix("/")
        if _NOWHERE.intersection(plain.split("/")):
            return None
        try:
            pattern = PathPattern.parse(plain if anchored else f"**/{plain}")
        except BadPattern:
            return None
        return cls(pattern=pattern, negated=negated, directories=text.endswith("/"))


def _without_trailing_blanks(text: str) -> str:
    """Remove spaces from the end, except one that a backslash escapes."""
    bare = text.rstrip(" ")
    slashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if slashes % 2 and len(bare) < len(text) else bare


@frozen
class IgnoreRules:
    """The rules of one directory; later rules override earlier ones."""

    rules: tuple[IgnoreRule, ...]
    _names: re.Pattern[str] = field(init=False, repr=False, eq=False)

    @_names.default
    def _any_name(self) -> re.Pattern[str]:
        """Compile one expression for the names of all rules: most entries match none of them."""
        names = dict.fromkeys(rule.pattern.parts[-1] for rule in self.rules)
        return re.compile("|".join(f"(?:{name_regex(name)})" for name in names), re.DOTALL)

    @classmethod
    def parse(cls, lines: Iterable[str]) -> "IgnoreRules | None":
        """Parse lines; None if they contain no rule."""
        rules = tuple(rule for rule in map(IgnoreRule.parse, lines) if rule is not None)
        return cls(rules) if rules else None

    def verdict(self, path: Sequence[str], *, is_dir: bool) -> bool | None:
        """Whether *path*, relative to the rules' directory, is ignored; None if no rule matches."""
        if self._names.fullmatch(path[-1]) is None:
            return None
        for rule in reversed(self.rules):
            if (is_dir or not rule.directories) and rule.pattern.matches(path):
                return not rule.negated
        return None


def read_rules(directory: str) -> IgnoreRules | None:
    """Return the rules of the ignore files directly in *directory*, None if there are none."""
    lines: list[str] = []
    for name in IGNORE_FILES:
        lines += _read_regular(f"{directory}/{name}").splitlines()
    return IgnoreRules.parse(lines) if lines else None


def _read_regular(path: str) -> str:
    """Return the beginning of a regular file; empty for a link, a pipe or a missing file.

    Git does not follow such a link either, and opening a pipe would wait for its writer.
    """
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(LARGEST).decode("utf-8", "surrogateescape")
    except OSError:
        return ""


# ── The filter of one search ────────────────────────────────────────────────────────────────────


def project_root(directory: Path, workspace: Path) -> Path:
    """Return the topmost directory whose ignore files apply to a search in *directory*.

    That is the root of its Git work tree, else the workspace, else the directory itself.
    """
    tree = work_tree(directory)
    if tree is not None:
        return tree
    return workspace if directory.is_relative_to(workspace) else directory


def work_tree(directory: Path) -> Path | None:
    """Return the root of the Git work tree that *directory* lies in."""
    candidates = (directory, *directory.parents)
    return next((each for each in candidates if os.path.lexists(each / ".git")), None)


_NOISE: Final = IgnoreRules.parse(NOISE)
_SECRETS: Final = IgnoreRules.parse(SECRETS)


@define(eq=False)
class IgnoreFilter:
    """Decides which entries below `root` a search skips; reads ignore files as needed.

    `top` is `root` or a directory above it whose ignore files apply too. The root itself is never
    skipped: a search may be started in an ignored directory.
    """

    root: Path
    top: Path
    hidden: bool = False
    """Whether hidden entries are skipped."""
    secrets: bool = False
    """Whether files that usually hold secrets are skipped."""
    more: IgnoreRules | None = None
    """Rules of the caller, relative to the root; they override all others."""
    private: tuple[Path, ...] = ()
    """Resolved paths that no rule can re-include."""
    _above: tuple[str, ...] = field(init=False)
    _private: frozenset[tuple[str, ...]] = field(init=False)
    _known: dict[tuple[str, ...], tuple[tuple[int, IgnoreRules], ...]] = field(
        factory=dict, init=False
    )

    @_above.default
    def _parts_above(self) -> tuple[str, ...]:
        return self.root.relative_to(self.top).parts

    @_private.default
    def _private_parts(self) -> frozenset[tuple[str, ...]]:
        below = (each for each in self.private if each.is_relative_to(self.root))
        return frozenset(each.relative_to(self.root).parts for each in below)

    def leaves_out(self, path: tuple[str, ...], *, is_dir: bool) -> bool:
        """Whether the entry at *path*, relative to the root, is skipped by itself."""
        if path in self._private:
            return True
        if self.more is not None:
            verdict = self.more.verdict(path, is_dir=is_dir)
            if verdict is not None:
                return verdict
        whole = (*self._above, *path)
        for depth, rules in self._rules_in(whole[:-1]):
            verdict = rules.verdict(whole[depth:], is_dir=is_dir)
            if verdict is not None:
                return verdict
        if self.hidden and path[-1].startswith("."):
            return True
        skipped = (_NOISE, _SECRETS if self.secrets else None)
        return any(each.verdict(path[-1:], is_dir=is_dir) for each in skipped if each is not None)

    def leaves_out_file(self, path: tuple[str, ...]) -> bool:
        """Whether a file is skipped, by itself or because of a directory above it."""
        above = (path[:depth] for depth in range(1, len(path)))
        return any(self.leaves_out(each, is_dir=True) for each in above) or self.leaves_out(
            path, is_dir=False
        )

    def _rules_in(self, directory: tuple[str, ...]) -> tuple[tuple[int, IgnoreRules], ...]:
        """Return the rules that apply in *directory*, the nearest first, with their depths."""
        depth = len(directory)
        while depth >= 0 and directory[:depth] not in self._known:
            depth -= 1
        rules = self._known[directory[:depth]] if depth >= 0 else ()
        # Not recursive: a tree can be deeper than the call stack.
        for deeper in range(depth + 1, len(directory) + 1):
            here = directory[:deeper]
            own = read_rules("/".join((str(self.top), *here)))
            rules = rules if own is None else ((deeper, own), *rules)
            self._known[here] = rules
        return rules


# ── The walk ────────────────────────────────────────────────────────────────────────────────────

STEP: Final = 256
"""Entries of a directory between two checks for a cancel."""


@frozen
class WalkEntry:
    """An entry of a directory. `parts` is its path relative to the root of the walk."""

    parts: tuple[str, ...]
    is_dir: bool
    is_file: bool
    """Whether it is a regular file: no directory, link, socket or pipe."""

    @property
    def path(self) -> str:
        """The path relative to the root."""
        return "/".join(self.parts)


@define(eq=False)
class DirectoryWalk:
    """One walk below the root of *ignoring*. Iterate over `entries` once, in a worker thread.

    `seconds` is real time, not Trio's: under a virtual clock the thread still takes real time.
    `cut_short` says afterwards whether the time ran out.
    """

    ignoring: IgnoreFilter
    depth: int | None = None
    seconds: float = inf
    check: Callable[[], None] = trio.from_thread.check_cancelled
    """Called between steps; raises if the walk should end."""
    cut_short: bool = field(default=False, init=False)

    def entries(self) -> Iterator[WalkEntry]:
        """Yield the entries that are not skipped, each directory before its contents."""
        deadline = monotonic() + self.seconds
        waiting: deque[tuple[str, ...]] = deque([()])
        while waiting:
            directory = waiting.popleft()
            for entry in self._in(directory):
                yield entry
                if entry.is_dir and (self.depth is None or len(entry.parts) < self.depth):
                    waiting.append(entry.parts)
            if monotonic() > deadline:
                self.cut_short = True
                return

    def _in(self, directory: tuple[str, ...]) -> Iterator[WalkEntry]:
        self.check()
        for number, raw in enumerate(_sorted("/".join((str(self.ignoring.root), *directory)))):
            if number % STEP == STEP - 1:
                self.check()
            name, is_dir, is_file = raw
            parts = (*directory, name)
            if not self.ignoring.leaves_out(parts, is_dir=is_dir):
                yield WalkEntry(parts, is_dir=is_dir, is_file=is_file)


def _sorted(directory: str) -> list[tuple[str, bool, bool]]:
    """Return the names in a directory, each with whether it is a directory and a regular file.

    Nothing if the directory cannot be read, or is a link by now.
    """
    try:
        with opened_directory(directory, os.O_RDONLY) as handle, os.scandir(handle) as found:
            return sorted(
                (each.name, each.is_dir(follow_symlinks=False), each.is_file(follow_symlinks=False))
                for each in found
            )
    except OSError:
        return []
