"""The commands of `git` and `find` that only read; both have their own argument syntax.

For git these are the subcommands that read, with the options that are allowed; others write, run
programs or fetch (`--output`, `--ext-diff`, `-c core.pager=…`, `branch -D`, a bare `stash`). Git accepts
bundles of short options, any unique beginning of a long one, and for some options a value that may be
missing; its commands differ in which. So an option must be spelled in full and stand in a word of its
own, and its value must not look like an option.

Git also runs programs that a repository names. A repository whose configuration may do so needs
permission (`git_repository.py`); in others git runs with the settings of `unasked.py`.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from os.path import lexists
from typing import Final

from attrs import field, frozen

from crush_trio.tools.shell.git_repository import reason_to_ask
from crush_trio.tools.shell.read_only import (
    Arguments,
    CommandScope,
    nothing,
    paths,
    text,
)
from crush_trio.tools.shell.script import Word

# ── git ─────────────────────────────────────────────────────────────────────────────────────────

SIGNATURE: Final = re.compile(
    r"%[^A-Za-z]*G|%\([^)]*signature|--sort=.*signature|^[-*]*signature(:|$)"
)
"""Formats and sort keys that run the program which verifies signatures (`%G?`, `%+GK`)."""

_REPOSITORIES: Final = (("HEAD", "objects", "refs"), ("HEAD", "commondir"))
"""The entries by which git recognises a repository, whatever the directory is called."""


def git_is_read_only(words: Sequence[Word], place: CommandScope) -> bool:
    """Whether `git` with these arguments only reads, in the repository of this directory."""
    if words and words[0].text == "--no-pager":
        words = words[1:]
    rule = READ_ONLY_GIT.get(words[0].text) if words else None
    return (
        rule is not None
        and not any(SIGNATURE.search(word.text) for word in words)
        and rule.allows(words[1:], place)
        and not _poses_as_repository(place)
        and reason_to_ask(place.directory, place.workspace) is None
    )


def _poses_as_repository(place: CommandScope) -> bool:
    """Whether the directory, or one above it in the workspace, looks like a bare repository."""
    upward = (place.directory, *place.directory.parents)
    within = [each for each in upward if each.is_relative_to(place.workspace)]
    return any(
        all(lexists(each / name) for name in names) for each in within for names in _REPOSITORIES
    )


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


@frozen(kw_only=True)
class GitRule:
    """The allowed options of a git command, spelled as they are written, and a check of its operands.

    `flags` are options without a value. `attached` may have a value in the same word: `-U3`,
    `--stat=80`. `valued` need one, in the same word or the next: `-n3`, `-n 3`, `--grep=x`, `--grep x`.
    `last` take the next word as their value, and none only at the end. `verbs` are the words of which
    one must come first, unless it is `bare` without operands. `numbers` allows `-20`.
    """

    flags: frozenset[str] = field(default="", converter=_split)
    attached: frozenset[str] = field(default="", converter=_split)
    valued: frozenset[str] = field(default="", converter=_split)
    last: frozenset[str] = field(default="", converter=_split)
    verbs: frozenset[str] = field(default="", converter=_split)
    bare: bool = True
    numbers: bool = False
    operands: Callable[[Arguments, CommandScope], bool] = paths

    def allows(self, words: Sequence[Word], place: CommandScope) -> bool:
        """Whether the command with these arguments only reads, and only inside."""
        if self.verbs:
            if words and words[0].text in self.verbs:
                words = words[1:]
            elif not self.bare or any(not word.text.startswith("-") for word in words):
                return False
        arguments = self._sorted(words, place)
        return arguments is not None and self.operands(arguments, place)

    def _sorted(self, words: Sequence[Word], place: CommandScope) -> Arguments | None:
        """Separate options and operands; None if an option is not listed."""
        options, operands = set[str](), list[Word]()
        rest = deque(words)
        while rest:
            word = rest.popleft()
            if word.text == "--":
                operands.extend(rest)
                break
            if not word.text.startswith("-") or word.text == "-":
                operands.append(word)
                continue
            name = None if word.globs else self._name(word.text)
            if name is None:
                return None
            if (word.text in self.valued or (word.text in self.last and rest)) and not (
                rest and _is_value(rest.popleft(), place)
            ):
                return None
            options.add(name)
        return Arguments(frozenset(options), tuple(operands))

    def _name(self, text: str) -> str | None:
        """Return the name of the option in one word; None if it is not listed."""
        if text in self.flags | self.attached | self.valued | self.last:
            return text
        if self.numbers and text[1:].isdecimal() and text.isascii():
            return "-n"
        name = text.partition("=")[0] if text.startswith("--") else text[:2]
        return name if name in self.attached | self.valued and len(text) > len(name) else None


def _is_value(word: Word, place: CommandScope) -> bool:
    """Whether a word may be the value of the option before it.

    It must be allowed as an operand too, in case a version of git does not take it as a value.
    """
    return not word.text.startswith("-") and not word.globs and place.holds(word)


def _when(*options: str) -> Callable[[Arguments, CommandScope], bool]:
    """Return a check that allows operands only with one of *options*; else they would be created."""

    def listed(arguments: Arguments, place: CommandScope) -> bool:
        return not arguments.operands or not arguments.options.isdisjoint(options)

    return listed


_DIFF_FLAGS: Final = (
    "-p -u -s -b -w -z -a -R -W --patch --no-patch --raw --numstat --shortstat --summary --compact-summary"
    " --name-only --name-status --exit-code --quiet --check --full-index --no-color --no-ext-diff --no-textconv"
    " --no-renames --no-prefix --ignore-all-space --ignore-space-change --ignore-space-at-eol"
    " --ignore-blank-lines --ignore-cr-at-eol --minimal --histogram --patience --function-context --pickaxe-all"
    " --pickaxe-regex --text"
)
_DIFF_ATTACHED: Final = (
    "-U -M -C -B --unified --stat --color --word-diff --color-words --color-moved --abbrev --find-renames"
    " --find-copies --dirstat"
)
_DIFF_VALUED: Final = "-S -G --diff-filter --diff-algorithm"

_WALK_FLAGS: Final = (
    "-i -E -F --all --merges --no-merges --first-parent --reverse --topo-order --date-order --author-date-order"
    " --left-right --full-history --simplify-merges --regexp-ignore-case --fixed-strings --extended-regexp"
    " --all-match --invert-grep --boundary --cherry-pick"
)
_WALK_ATTACHED: Final = "--branches --tags --remotes --no-walk"
_WALK_VALUED: Final = (
    "-n --max-count --skip --since --until --after --before --author --committer --grep"
)
_SHOWN_FLAGS: Final = (
    "--oneline --graph --no-decorate --abbrev-commit --no-abbrev-commit --no-notes"
)
_SHOWN_ATTACHED: Final = "--decorate --format --pretty --date"

_LOG: Final = GitRule(
    flags=f"{_DIFF_FLAGS} {_WALK_FLAGS} {_SHOWN_FLAGS} -m -c -g --cc --follow --walk-reflogs --relative-date"
    " --source",
    attached=f"{_DIFF_ATTACHED} {_WALK_ATTACHED} {_SHOWN_ATTACHED}",
    valued=f"{_DIFF_VALUED} {_WALK_VALUED} -L",
    numbers=True,
)

READ_ONLY_GIT: Final[Mapping[str, GitRule]] = {
    "status": GitRule(
        flags="-s -b -v -z -sb -bs --short --branch --long --verbose --show-stash --ahead-behind"
        " --no-ahead-behind --renames --no-renames --no-column",
        attached="-u --porcelain --untracked-files --ignored --column",
    ),
    "diff": GitRule(
        flags=f"{_DIFF_FLAGS} --cached --staged --merge-base",
        attached=_DIFF_ATTACHED,
        valued=_DIFF_VALUED,
    ),
    "log": _LOG,
    "show": _LOG,
    "rev-list": GitRule(
        flags=f"{_WALK_FLAGS} --count --oneline --abbrev-commit",
        attached=f"{_WALK_ATTACHED} --format --pretty --abbrev",
        valued=_WALK_VALUED,
        numbers=True,
    ),
    "shortlog": GitRule(
        flags="-n -s -e -c -sn -ns -sne -nse --all --no-merges --merges --numbered --summary --email",
        valued="--since --until --after --before --author --committer --grep --max-count --skip",
    ),
    "branch": GitRule(
        flags="-a -r -v -vv -av -avv -rv --list --all --remotes --verbose --show-current --no-column --no-color"
        " --ignore-case",
        attached="--column --color --abbrev",
        valued="--sort --format",
        last="--merged --no-merged --contains --no-contains --points-at",
        operands=_when("--list"),
    ),
    "tag": GitRule(
        flags="-l --list --ignore-case",
        attached="-n --column --color",
        valued="--sort --format",
        last="--merged --no-merged --contains --no-contains --points-at",
        operands=_when("-l", "--list"),
    ),
    "remote": GitRule(flags="-v --verbose --push --all", verbs="get-url"),
    "stash": GitRule(
        flags="-p --patch --oneline --name-only --name-status",
        attached="--stat",
        verbs="list show",
        bare=False,
    ),
    "reflog": GitRule(flags="--oneline", attached="--date", numbers=True, verbs="show"),
    "worktree": GitRule(flags="-v -z --porcelain --verbose", verbs="list", bare=False),
    "rev-parse": GitRule(
        flags="-q --show-toplevel --verify --quiet --git-dir --absolute-git-dir --git-common-dir --show-prefix"
        " --show-cdup --is-inside-work-tree --is-inside-git-dir --is-bare-repository --symbolic-full-name"
        " --is-shallow-repository",
        attached="--abbrev-ref --short",
        operands=text,
    ),
    "ls-files": GitRule(
        flags="-c -d -m -o -i -s -k -u -v -t -z --cached --deleted --modified --others --ignored --stage --killed"
        " --unmerged --exclude-standard --full-name --directory --error-unmatch --eol",
        attached="--abbrev",
        valued="-x --exclude",
    ),
    "ls-tree": GitRule(
        flags="-r -t -d -l -z --name-only --name-status --full-name --full-tree --long",
        attached="--abbrev",
    ),
    "cat-file": GitRule(flags="-p -t -s -e", operands=text),
    "blame": GitRule(
        flags="-l -s -w -e -f -t -p -b --porcelain --line-porcelain --show-email --root",
        attached="-M -C --date --abbrev",
        valued="-L",
    ),
    "describe": GitRule(
        flags="--tags --always --all --long --exact-match --contains --first-parent",
        attached="--abbrev",
        valued="--match --exclude --candidates",
        operands=text,
    ),
    "merge-base": GitRule(flags="-a --all --is-ancestor --octopus", operands=text),
    "version": GitRule(flags="--build-options", operands=nothing),
    "--version": GitRule(operands=nothing),
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

FIND_LESS: Final = re.compile(r"-(?:[0-9]+[a-zA-Z]?|[ugoa]*[=+][rwxst]*)")


def _is_find_value(value: str) -> bool:
    """Whether a word can be the value of a test: not an option, but "less than", as in `-mtime -1`."""
    return not value.startswith("-") or bool(FIND_LESS.fullmatch(value))


def find_is_read_only(words: Sequence[Word], place: CommandScope) -> bool:
    """Whether `find` with these arguments only reads, and only inside."""
    rest = iter(words)
    started = False
    for word in rest:
        if word.text in FIND_VALUED:
            value = next(rest, None)
            if value is None or value.globs or not _is_find_value(value.text):
                return False
            started = True
        elif word.text in FIND_TESTS:
            started = True
        elif started or word.text.startswith("-") or not place.holds(word):
            return False
    return True
