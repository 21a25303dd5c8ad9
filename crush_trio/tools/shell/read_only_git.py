"""The commands of `git` and `find` that only read; both have their own argument syntax.

For git these are the subcommands that read, with the options that are allowed; others write, run
programs or fetch (`--output`, `--ext-diff`, `-c core.pager=…`, `branch -D`, a bare `stash`). Programs
named in the configuration of the user's own clone are not checked: that file is not part of a checkout,
and changing it needs permission. A directory inside a checkout that looks like a repository is
different: its configuration came with the checkout, so every git command there needs permission.
"""

from collections.abc import Callable, Mapping, Sequence
from os.path import lexists
from typing import Final

from crush_trio.tools.shell.read_only import (
    Arguments,
    CommandScope,
    ProgramRule,
    nothing,
    paths,
    text,
)
from crush_trio.tools.shell.script import Word

# ── git ─────────────────────────────────────────────────────────────────────────────────────────

SIGNATURE: Final = "%G"
"""A format with this placeholder runs the program that verifies signatures."""

_REPOSITORIES: Final = (("HEAD", "objects", "refs"), ("HEAD", "commondir"))
"""The entries by which git recognises a repository, whatever the directory is called."""


def git_is_read_only(words: Sequence[Word], place: CommandScope) -> bool:
    """Whether `git` with these arguments only reads."""
    if words and words[0].text == "--no-pager":
        words = words[1:]
    if _poses_as_repository(place):
        return False
    rule = READ_ONLY_GIT.get(words[0].text) if words else None
    signatures = any(SIGNATURE in word.text for word in words)
    return rule is not None and not signatures and rule.allows(words[1:], place)


def _poses_as_repository(place: CommandScope) -> bool:
    """Whether the directory, or one above it in the workspace, looks like a bare repository."""
    upward = (place.directory, *place.directory.parents)
    within = [each for each in upward if each.is_relative_to(place.workspace)]
    return any(
        all(lexists(each / name) for name in names) for each in within for names in _REPOSITORIES
    )


def _when(*options: str) -> Callable[[Arguments, CommandScope], bool]:
    """Return a check that allows operands only with one of *options*; else they would be created."""

    def listed(arguments: Arguments, place: CommandScope) -> bool:
        return not arguments.operands or not arguments.options.isdisjoint(options)

    return listed


def _verbs(*verbs: str, bare: bool = False) -> Callable[[Arguments, CommandScope], bool]:
    """Return a check that allows one of *verbs* and paths inside; no operands only if *bare*."""

    def verb_first(arguments: Arguments, place: CommandScope) -> bool:
        if not arguments.operands:
            return bare
        return arguments.operands[0].text in verbs and paths(arguments, place)

    return verb_first


_DIFF_WORDS: Final = (
    "stat cached staged name-only name-status numstat shortstat summary color no-color word-diff patch no-patch"
    " no-ext-diff no-textconv exit-code quiet check ignore-all-space ignore-space-change ignore-blank-lines"
    " minimal histogram patience find-renames no-renames raw function-context merge-base compact-summary"
)
_LOG_WORDS: Final = (
    f"{_DIFF_WORDS} oneline graph decorate no-decorate all branches tags remotes no-merges merges first-parent"
    " reverse follow abbrev-commit abbrev topo-order date-order left-right no-walk full-history format pretty"
    " date relative-date count regexp-ignore-case fixed-strings walk-reflogs"
)
_LOG_NAMED: Final = (
    "diff-filter unified since until after before author committer grep max-count skip"
)
_LOG: Final = ProgramRule(
    flags="pubwzasRiEgm",
    valued="nSGL",
    attached="UMCB",
    words=_LOG_WORDS,
    named=_LOG_NAMED,
    numbers=True,
    operands=paths,
)

READ_ONLY_GIT: Final[Mapping[str, ProgramRule]] = {
    "status": ProgramRule(
        flags="sbvz",
        attached="u",
        words="short branch porcelain long show-stash untracked-files ignored column no-column ahead-behind"
        " no-ahead-behind renames no-renames ignore-submodules verbose",
        operands=paths,
    ),
    "diff": ProgramRule(
        flags="pubwzasR",
        valued="SG",
        attached="UMCB",
        words=_DIFF_WORDS,
        named="diff-filter unified",
        operands=paths,
    ),
    "log": _LOG,
    "show": _LOG,
    "rev-list": _LOG,
    "shortlog": ProgramRule(
        flags="nsec", words="all no-merges numbered summary email", named=_LOG_NAMED, operands=paths
    ),
    "branch": ProgramRule(
        flags="avr",
        words="list all remotes verbose show-current merged no-merged contains no-contains column no-column color"
        " no-color abbrev ignore-case",
        named="sort format points-at",
        operands=_when(
            "--list", "--merged", "--no-merged", "--contains", "--no-contains", "--points-at"
        ),
    ),
    "tag": ProgramRule(
        flags="l",
        attached="n",
        words="list merged no-merged contains no-contains column color ignore-case",
        named="sort format points-at",
        operands=_when("-l", "--list"),
    ),
    "remote": ProgramRule(flags="v", words="verbose", operands=_verbs("get-url", bare=True)),
    "stash": ProgramRule(flags="p", words="stat patch oneline", operands=_verbs("list", "show")),
    "reflog": ProgramRule(numbers=True, words="oneline", operands=_verbs("show", bare=True)),
    "worktree": ProgramRule(words="porcelain", operands=_verbs("list")),
    "rev-parse": ProgramRule(
        words="show-toplevel abbrev-ref short verify quiet git-dir absolute-git-dir git-common-dir show-prefix"
        " show-cdup is-inside-work-tree is-inside-git-dir is-bare-repository symbolic-full-name",
        operands=text,
    ),
    "ls-files": ProgramRule(
        flags="cdmoiskuvtz",
        valued="x",
        words="cached deleted modified others ignored stage killed unmerged exclude-standard full-name directory"
        " error-unmatch",
        named="exclude",
        operands=paths,
    ),
    "ls-tree": ProgramRule(
        flags="rtdlz", words="name-only name-status full-name full-tree long", operands=paths
    ),
    "cat-file": ProgramRule(flags="ptse", operands=text),
    "blame": ProgramRule(
        flags="lsweftp", valued="L", attached="MC", words="porcelain date", operands=paths
    ),
    "describe": ProgramRule(
        words="tags always dirty all long abbrev exact-match contains first-parent",
        named="match exclude candidates",
        operands=text,
    ),
    "merge-base": ProgramRule(flags="a", words="all is-ancestor", operands=text),
    "version": ProgramRule(words="build-options", operands=nothing),
    "--version": ProgramRule(operands=nothing),
}
"""Subcommands that only read if their arguments match the rule."""


# ── find ────────────────────────────────────────────────────────────────────────────────────────

FIND_TESTS: Final = frozenset(
    {"(", ")", "!", ",", "-a", "-o", "-and", "-or", "-not", "-true", "-false", "-empty", "-prune"}
    | {"-print", "-print0", "-ls", "-quit", "-depth", "-mount", "-xdev", "-daystart", "-readable"}
    | {"-writable", "-executable", "-nouser", "-nogroup", "-P", "-noleaf"}
)
FIND_VALUED: Final = frozenset(
    {"-name", "-iname", "-path", "-ipath", "-wholename", "-iwholename", "-regex", "-iregex"}
    | {
        "-regextype",
        "-type",
        "-maxdepth",
        "-mindepth",
        "-size",
        "-perm",
        "-user",
        "-group",
        "-links",
    }
    | {"-mtime", "-mmin", "-atime", "-amin", "-ctime", "-cmin", "-inum", "-printf", "-uid", "-gid"}
)


def find_is_read_only(words: Sequence[Word], place: CommandScope) -> bool:
    """Whether `find` with these arguments only reads, and only inside."""
    rest = iter(words)
    started = False
    for word in rest:
        if word.text in FIND_VALUED:
            value = next(rest, None)
            if value is None or value.globs:
                return False
            started = True
        elif word.text in FIND_TESTS:
            started = True
        elif started or word.text.startswith("-") or not place.holds(word):
            return False
    return True
