"""`reason_to_ask`: whether git may run unasked in a directory, decided by reading files only.

Git runs programs that a repository's configuration names: filters, external diffs, converters, file
system monitors, transports. Some keys contain a name that the repository chooses (`filter.x.clean`), so
no setting can switch all of them off. The configuration is therefore compared with a list of keys that
name no program and no other file. A key that is not listed, or a line that is not understood, is a reason
to ask. So a gap in the list costs a question.

Git takes the first directory upward with a valid `.git`. Which one is valid is not decided here: all of
them are checked. A `.git` that leads out of the workspace would show another repository, so it must be
one that names this directory as its own: a linked worktree or a submodule.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Final

from attrs import frozen

MAX_BYTES: Final = 1024 * 1024
"""The longest configuration file that is read."""

MAX_INDEX: Final = 256 * 1024 * 1024
"""The longest index that is searched for submodules."""


# ── Configuration files ─────────────────────────────────────────────────────────────────────────


@frozen
class Setting:
    """One setting of a configuration file; section and key in lower case.

    `value` is None if it is written in a way that is not decoded here, with escapes or a comment.
    """

    section: str
    subsection: str | None
    key: str
    value: str | None

    @property
    def name(self) -> str:
        """The name for `git config`."""
        parts = (self.section, self.subsection, self.key)
        return ".".join(part for part in parts if part is not None)


_HEADER: Final = re.compile(r'\[([A-Za-z0-9-]+)(?:[ \t]+"([^"\\]*)")?\][ \t]*(?:[#;].*)?')
_LINE: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=[ \t]*(.*))?")
_PLAIN: Final = re.compile(r'[^"\\#;]*')
_QUOTED: Final = re.compile(r'"([^"\\]*)"')


def read_settings(text: str) -> Iterator[Setting | None]:
    """Yield the settings of a configuration file, and None for each line that is not understood.

    Lines are read one by one: a line that continues on the next is not understood. So a line cannot
    mean something else to git than it does here.
    """
    section, subsection = None, None
    for line in text.replace("\r\n", "\n").split("\n"):
        stripped = line.strip(" \t")
        if not stripped or stripped[0] in "#;":
            continue
        if header := _HEADER.fullmatch(stripped):
            section, subsection = header[1].lower(), header[2]
        elif section is None or stripped.endswith("\\") or not stripped.isprintable():
            yield None
        elif entry := _LINE.fullmatch(stripped):
            yield Setting(section, subsection, entry[1].lower(), _value(entry[2]))
        else:
            yield None


def _value(text: str | None) -> str | None:
    if text is None:
        return "true"
    if quoted := _QUOTED.fullmatch(text):
        return quoted[1]
    return text if _PLAIN.fullmatch(text) else None


def read_config(path: Path) -> Iterator[Setting | None]:
    """Yield the settings of a file; None if it cannot be read, nothing if there is none."""
    try:
        data = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        return
    except OSError:
        yield None
        return
    yield from read_settings(data.decode("utf-8", "replace"))


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file of at most *limit* bytes; never waits, as a named pipe would."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not S_ISREG(state.st_mode) or state.st_size > limit:
            raise OSError(f"not a regular file of at most {limit} bytes: {path}")
        return file.read(limit)


# ── Keys that name no program ───────────────────────────────────────────────────────────────────


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _keys(section: str, keys: str) -> frozenset[str]:
    return frozenset(f"{section}.{key}" for key in keys.split())


_SECTIONS: Final = _split(
    "advice author color column committer fetch gitflow http i18n index init lfs pull push rebase rerere"
    " status url user"
)
"""Sections in which no key names a program or a file that a command without permission uses."""

_PLAIN_KEYS: Final = (
    _keys(
        "core",
        "abbrev autocrlf bare bigfilethreshold checkstat commentchar commitgraph compression"
        " deltabasecachelimit eol filemode fscache hidedotfiles ignorecase logallrefupdates longpaths"
        " loosecompression multipackindex packedgitlimit packedgitwindowsize precomposeunicode preloadindex"
        " protecthfs protectntfs quotepath repositoryformatversion safecrlf sharedrepository sparsecheckout"
        " sparsecheckoutcone splitindex symlinks trustctime untrackedcache warnambiguousrefs whitespace",
    )
    | _keys("branch", "autosetupmerge autosetuprebase")
    | _keys("commit", "gpgsign status verbose")
    | _keys("credential", "usehttppath username")
    | _keys(
        "diff",
        "algorithm colormoved colormovedws context indentheuristic interhunkcontext mnemonicprefix noprefix"
        " relative renamelimit renames statgraphwidth wserrorhighlight",
    )
    | _keys(
        "extensions", "objectformat preciousobjects refstorage relativeworktrees worktreeconfig"
    )
    | _keys("feature", "experimental manyfiles")
    | _keys("gc", "auto autodetach autopacklimit pruneexpire reflogexpire")
    | _keys("log", "abbrevcommit date decorate diffmerges follow graphcolors initialdecorationset")
    | _keys("maintenance", "auto strategy")
    | _keys("merge", "conflictstyle ff renames stat")
    | _keys("pack", "threads window windowmemory")
    | _keys("remote", "pushdefault")
    | _keys("submodule", "active fetchjobs recurse")
    | _keys("tag", "gpgsign")
    | _keys("transfer", "fsckobjects")
)
"""Keys without a subsection."""

_NAMED_KEYS: Final = _keys(
    "remote", "fetch followremotehead gh-resolved mirror prune push pushurl tagopt url"
) | _keys("submodule", "active branch fetchrecursesubmodules shallow url")
"""Keys with a subsection, such as `remote.origin.url`."""

_OVERRIDDEN: Final = _keys("core", "editor fsmonitor hookspath pager")
"""Keys that name programs, but which the environment of an unasked command always overrides."""

_HARMLESS_VALUES: Final = {
    "submodule.ignore": frozenset({"all", "dirty"}),
    "submodule.update": frozenset({"checkout", "merge", "none", "rebase"}),
}
"""Keys with a subsection of which only these values are harmless.

With another value of `ignore`, `git status` runs git in the submodule, with its own configuration.
"""


def names_no_program(setting: Setting) -> bool:
    """Whether a setting names no program, and no file whose content git would show."""
    short = f"{setting.section}.{setting.key}"
    if setting.section in _SECTIONS:
        return True
    if setting.subsection is None:
        return short in _PLAIN_KEYS
    if short in _HARMLESS_VALUES:
        return setting.value in _HARMLESS_VALUES[short]
    return setting.section == "branch" or short in _NAMED_KEYS


# ── Repositories ────────────────────────────────────────────────────────────────────────────────

_SHOWN: Final = _split(
    ". info logs objects objects/info objects/pack rebase-apply rebase-merge refs sequencer"
)
"""Directories of a repository in which a link must not lead out: git shows what it finds there.

`git log` shows objects, `git status` the lines of a rebase that is not finished.
"""

_GITLINK: Final = b"\x00\x00\xe0\x00"
"""The mode of a submodule in an index, in every version of the format. It may also be found in other
fields; then a repository without submodules is asked for.
"""


class _Doubtful(Exception):
    """The reason for which git in a repository needs permission."""


def reason_to_ask(directory: Path, workspace: Path) -> str | None:
    """Return why git in *directory* needs permission, None if it does not. Both paths are resolved.

    The text contains nothing that the repository wrote.
    """
    try:
        for each in (directory, *directory.parents):
            if os.path.lexists(each / ".git"):
                _check(each, workspace)
    except _Doubtful as doubt:
        return str(doubt)
    except (OSError, RuntimeError, ValueError):  # loops of links, names that cannot be paths
        return "the repository cannot be read"
    return None


def _check(top: Path, workspace: Path) -> None:
    """Check the repository whose `.git` is in *top*."""
    entry = top / ".git"
    git_dir = _pointed(entry, top) if entry.is_file() else entry.resolve()
    linked = entry.is_symlink() or entry.is_file()
    if linked and not (git_dir.is_relative_to(workspace) or _names_back(git_dir, top)):
        raise _Doubtful("its .git leads to a repository elsewhere")
    common = _common(git_dir)
    worktree_of = git_dir.parent.parent if git_dir.parent.name == "worktrees" else git_dir
    if common not in {git_dir, worktree_of} and not common.is_relative_to(workspace):
        raise _Doubtful("it borrows from a repository elsewhere")
    for config in {common / "config", git_dir / "config.worktree", common / "config.worktree"}:
        _check_config(config, git_dir, top)
    for base in {git_dir, common}:
        _check_links(base, workspace)
    _check_submodules(top, git_dir)


def _pointed(entry: Path, top: Path) -> Path:
    """Return the directory that a `.git` file names."""
    text = _text(entry)
    if not text.startswith("gitdir: ") or "\n" in text:
        raise _Doubtful("its .git file cannot be read")
    return (top / text.removeprefix("gitdir: ")).resolve()


def _common(git_dir: Path) -> Path:
    """Return the directory with the configuration: of a linked worktree, that of the main one."""
    try:
        text = _text(git_dir / "commondir")
    except FileNotFoundError:
        return git_dir
    return (git_dir / text).resolve()


def _names_back(git_dir: Path, top: Path) -> bool:
    """Whether a repository outside the workspace says that *top* is its worktree or submodule."""
    try:
        return Path(_text(git_dir / "gitdir")).resolve() == (top / ".git").resolve()
    except FileNotFoundError:
        settings = read_config(git_dir / "config")
        return any(each is not None and _is_worktree(each, git_dir, top) for each in settings)


def _is_worktree(setting: Setting, git_dir: Path, top: Path) -> bool:
    return (
        setting.name == "core.worktree"
        and setting.value is not None
        and (git_dir / setting.value).resolve() == top
    )


def _check_config(path: Path, git_dir: Path, top: Path) -> None:
    for setting in read_config(path):
        if setting is None:
            raise _Doubtful("its configuration cannot be read")
        if not (
            names_no_program(setting)
            or setting.name in _OVERRIDDEN
            or _is_worktree(setting, git_dir, top)
        ):
            raise _Doubtful("its configuration may name programs or other files")


def _check_links(base: Path, workspace: Path) -> None:
    """Check that what git shows of a repository is its own."""
    for folder in (base / name for name in _SHOWN):
        if folder.is_dir():
            links = [Path(each.path) for each in os.scandir(folder) if each.is_symlink()]
            if not all(link.resolve().is_relative_to(workspace) for link in links):
                raise _Doubtful("it has links to files elsewhere")
    objects = base / "objects"
    try:
        borrowed = _text(objects / "info" / "alternates").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return
    if not all((objects / each).resolve().is_relative_to(workspace) for each in borrowed):
        raise _Doubtful("it borrows objects from a repository elsewhere")


def _check_submodules(top: Path, git_dir: Path) -> None:
    """Check that git does not look into submodules: it would use their configuration."""
    listed = top / ".gitmodules"
    if listed.exists():
        for setting in read_config(listed):
            short = None if setting is None else f"{setting.section}.{setting.key}"
            if setting is None or (short == "submodule.ignore" and not names_no_program(setting)):
                raise _Doubtful("git would run in its submodules")
        return
    # Without the file git takes its content from the index, which is not decoded here.
    shared = git_dir.glob("sharedindex.*")
    if any(_has_submodules(index) for index in (git_dir / "index", *shared)):
        raise _Doubtful("it has submodules that no file lists")


def _has_submodules(index: Path) -> bool:
    try:
        return _GITLINK in read_regular(index, MAX_INDEX)
    except FileNotFoundError:
        return False


def _text(path: Path) -> str:
    return os.fsdecode(read_regular(path, MAX_BYTES)).rstrip("\r\n")
