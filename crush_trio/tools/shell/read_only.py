"""The programs that only read, and for each the options that are allowed.

A program that is not listed may do anything, and so may an option that is not listed: `sort` writes
with `-o` and runs programs with `--compress-program`, `tree` writes with `-o`, `find` deletes. Option
names must be complete, because an abbreviation could mean an option that is not listed. Options that
follow symbolic links are not listed: a link inside the workspace may lead out of it.

A path is resolved before it is checked. A command that reads outside the workspace is not read-only in
this sense, because what it reads is sent to a model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from attrs import evolve, field, frozen

from crush_trio.tools.shell.script import Word

DEV_NULL: Final = "/dev/null"


# ── Paths ───────────────────────────────────────────────────────────────────────────────────────


@frozen
class CommandScope:
    """The directory in which a command runs, and the workspace outside of which it must not read.

    `private` are paths in the workspace that a model may read only with permission.
    """

    directory: Path
    workspace: Path
    private: tuple[Path, ...] = ()

    def entered(self, path: str) -> "CommandScope":
        """Return the scope after `cd`."""
        return evolve(self, directory=(self.directory / path).resolve())

    def holds(self, word: Word) -> bool:
        """Whether a path, and everything its pattern matches, is inside and not private."""
        try:
            return all(path == DEV_NULL or self._open(path) for path in self._meant(word))
        except (OSError, RuntimeError, ValueError):  # a loop of links, a name that cannot be one
            return False

    def encloses_private(self, word: Word) -> bool:
        """Whether a private path lies below a path, or below anything its pattern matches."""
        below = [(self.directory / path).resolve() for path in self._meant(word)]
        return any(each.is_relative_to(path) for each in self.private for path in below)

    def _open(self, path: str) -> bool:
        """Whether a path is inside the workspace and not private."""
        place = (self.directory / path).resolve()
        return place.is_relative_to(self.workspace) and not any(
            map(place.is_relative_to, self.private)
        )

    def _meant(self, word: Word) -> Sequence[str]:
        return self._matching(word) if word.globs else [word.text]

    def _matching(self, word: Word) -> Sequence[str]:
        """Return the paths that a pattern may match: its directory, and the matching entries.

        Only the last part may be a pattern. A matching name that begins with a hyphen would be read
        as an option; then this returns `/`, which is never inside. A pattern that begins with a dot
        may match the directory above: in some shells `.*` matches `..`.
        """
        parent, _, pattern = word.text.rpartition("/")
        if not {"*", "?"}.isdisjoint(parent) or "[" in word.text:
            return ["/"]
        directory = self.directory / (f"{parent}/" if parent or word.text.startswith("/") else "")
        try:
            names = [each.name for each in directory.iterdir() if fnmatchcase(each.name, pattern)]
        except OSError:
            names = []
        if not parent and any(name.startswith("-") for name in names):
            return ["/"]
        if pattern.startswith(".") and fnmatchcase("..", pattern):
            names.append("..")
        return [str(directory), *(str(directory / name) for name in names)]


# ── Options and operands ────────────────────────────────────────────────────────────────────────


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _names(text: str) -> frozenset[str]:
    return frozenset(f"--{name}" for name in text.split())


@frozen
class Arguments:
    """A command's arguments: the names of its options, and its operands."""

    options: frozenset[str]
    operands: tuple[Word, ...]


@frozen(kw_only=True)
class ProgramRule:
    """The allowed options of a program, and a check of its operands.

    `flags` and `valued` are one-letter options without and with a value, `attached` those whose
    optional value is part of the same word. `words` are long options, with or without `=value`,
    `named` are long options whose value may be the next word. `numbers` allows `-20`.

    A value in a word of its own must not begin with `-`: if the program does not take it as a value,
    it is an option. With `single`, a word has only one letter and no value: `tree` takes the values of
    all letters of a word from the following words.
    """

    flags: str = ""
    valued: str = ""
    attached: str = ""
    words: frozenset[str] = field(default="", converter=_names)
    named: frozenset[str] = field(default="", converter=_names)
    numbers: bool = False
    single: bool = False
    operands: "Callable[[Arguments, CommandScope], bool]"

    def allows(self, words: Sequence[Word], place: CommandScope) -> bool:
        """Whether a command with these arguments only reads, and only inside."""
        arguments = self._sorted(words)
        return arguments is not None and self.operands(arguments, place)

    def _sorted(self, words: Sequence[Word]) -> Arguments | None:
        """Separate options and operands; None if an option is not listed."""
        options, operands = set[str](), list[Word]()
        rest = iter(words)
        for word in rest:
            if word.text == "--":
                operands.extend(rest)
            elif word.text.startswith("-") and word.text != "-":
                known = None if word.globs else self._option(word.text, rest)
                if known is None:
                    return None
                options |= known
            else:
                operands.append(word)
        return Arguments(frozenset(options), tuple(operands))

    def _option(self, text: str, rest: Iterator[Word]) -> set[str] | None:
        """Return the names of the options in one word; a value may be taken from *rest*."""
        if text.startswith("--"):
            name, equals, _ = text.partition("=")
            if name in self.words or (name in self.named and (equals or _taken(rest))):
                return {name}
            return None
        if self.numbers and text[1:].isdecimal():
            return {"-n"}
        return self._letters(text[1:], rest)

    def _letters(self, letters: str, rest: Iterator[Word]) -> set[str] | None:
        if self.single and len(letters) > 1:
            return None
        known = set()
        for at, letter in enumerate(letters):
            known.add(f"-{letter}")
            if letter in self.attached:
                break
            if letter in self.valued:
                if at + 1 < len(letters) or _taken(rest):
                    break
                return None
            if letter not in self.flags:
                return None
        return known


def _taken(rest: Iterator[Word]) -> bool:
    """Consume the next word as the value of an option; neither a pattern nor an option itself."""
    word = next(rest, None)
    return word is not None and not word.globs and not word.text.startswith("-")


# ── Checks of operands ──────────────────────────────────────────────────────────────────────────


def paths(arguments: Arguments, place: CommandScope) -> bool:
    """Allow files and directories, all of them inside."""
    return all(map(place.holds, arguments.operands))


def text(arguments: Arguments, place: CommandScope) -> bool:
    """Allow words that are not paths; a pattern must match only paths inside."""
    return all(place.holds(word) for word in arguments.operands if word.globs)


def files(arguments: Arguments, place: CommandScope) -> bool:
    """Allow files inside, but no directories: the program would follow links in them."""
    return paths(arguments, place) and not any(
        word.globs or (place.directory / word.text).is_dir() for word in arguments.operands
    )


def nothing(arguments: Arguments, place: CommandScope) -> bool:
    """Allow no operands."""
    return not arguments.operands


def one_path(arguments: Arguments, place: CommandScope) -> bool:
    """Allow at most one file: the program would write to a second one."""
    operands = arguments.operands
    return (
        len(operands) <= 1 and not any(word.globs for word in operands) and paths(arguments, place)
    )


def grep_operands(arguments: Arguments, place: CommandScope) -> bool:
    """Allow a pattern, unless an option gives it, and paths; a recursive search needs that no
    private path lies below.
    """
    deep = not arguments.options.isdisjoint({"-r", "--recursive", "-d", "--directories"})
    return _pattern_and_paths(arguments, place, deep=deep)


def ripgrep_operands(arguments: Arguments, place: CommandScope) -> bool:
    """Like `grep_operands`, for a program that is recursive unless `--files` is given."""
    return _pattern_and_paths(arguments, place, deep="--files" not in arguments.options)


def _pattern_and_paths(arguments: Arguments, place: CommandScope, *, deep: bool) -> bool:
    operands = arguments.operands
    if arguments.options.isdisjoint({"-e", "--regexp", "--files"}):
        if operands and operands[0].globs:
            return False
        operands = operands[1:]
    if not all(map(place.holds, operands)):
        return False
    return not deep or not any(map(place.encloses_private, operands or (Word(text="."),)))


def format_only(arguments: Arguments, place: CommandScope) -> bool:
    """Allow a format for `date`; any other operand would set the time."""
    return all(word.text.startswith("+") and not word.globs for word in arguments.operands)


# ── The list ────────────────────────────────────────────────────────────────────────────────────

_SUM: Final = ProgramRule(flags="btz", words="binary text tag zero", operands=paths)
_GREP: Final = ProgramRule(
    flags="EFGPivwxcoqsnHhbTZzaIlLrUy",
    valued="emABCdD",
    words="color colour count ignore-case no-ignore-case invert-match word-regexp line-regexp line-number"
    " with-filename no-filename only-matching quiet silent no-messages files-with-matches text null"
    " files-without-match recursive extended-regexp fixed-strings basic-regexp perl-regexp byte-offset",
    named="regexp max-count after-context before-context context include exclude exclude-dir"
    " binary-files directories devices",
    numbers=True,
    operands=grep_operands,
)

READ_ONLY_PROGRAMS: Final[Mapping[str, ProgramRule]] = {
    "pwd": ProgramRule(flags="LP", operands=nothing),
    "whoami": ProgramRule(operands=nothing),
    "arch": ProgramRule(operands=nothing),
    "nproc": ProgramRule(words="all", operands=nothing),
    "true": ProgramRule(operands=nothing),
    "false": ProgramRule(operands=nothing),
    "uname": ProgramRule(flags="asnrvmpio", words="all", operands=nothing),
    "hostname": ProgramRule(flags="sI", operands=nothing),
    "id": ProgramRule(flags="ugGnrz", operands=text),
    "which": ProgramRule(flags="a", operands=text),
    "type": ProgramRule(flags="atpP", operands=text),
    "basename": ProgramRule(flags="az", valued="s", operands=text),
    "dirname": ProgramRule(flags="z", operands=text),
    "tr": ProgramRule(flags="cCdst", operands=text),
    "date": ProgramRule(
        flags="uR",
        valued="d",
        attached="I",
        words="utc iso-8601 rfc-3339",
        named="date",
        operands=format_only,
    ),
    "ls": ProgramRule(
        flags="1ABCFGNQRSUXabcdfghiklmnopqrstuvx",
        valued="wTI",
        words="all almost-all author color group-directories-first human-readable recursive reverse size sort"
        " time time-style full-time inode directory classify file-type format si numeric-uid-gid no-group",
        named="hide ignore width",
        operands=paths,
    ),
    "tree": ProgramRule(
        flags="adfhipsugDFNQSJvtrcC",
        valued="LIP",
        words="dirsfirst noreport prune gitignore si",
        single=True,
        operands=paths,
    ),
    "cat": ProgramRule(
        flags="AbeEnstTuv",
        words="number number-nonblank show-all show-ends show-tabs squeeze-blank show-nonprinting",
        operands=paths,
    ),
    "head": ProgramRule(
        flags="qvz",
        valued="nc",
        words="quiet verbose",
        named="lines bytes",
        numbers=True,
        operands=paths,
    ),
    "tail": ProgramRule(
        flags="fqvz",
        valued="nc",
        words="quiet verbose",
        named="lines bytes",
        numbers=True,
        operands=paths,
    ),
    "nl": ProgramRule(valued="bnwsv", operands=paths),
    "wc": ProgramRule(
        flags="cmlLw", words="bytes chars lines words max-line-length", operands=paths
    ),
    "file": ProgramRule(
        flags="bihk", words="brief mime mime-type mime-encoding keep-going", operands=paths
    ),
    "stat": ProgramRule(
        flags="ft", valued="c", words="terse file-system", named="format printf", operands=paths
    ),
    "du": ProgramRule(
        flags="abchkmsxS0",
        valued="d",
        words="all human-readable summarize total apparent-size",
        named="max-depth exclude",
        operands=paths,
    ),
    "df": ProgramRule(flags="ahHikPTl", words="human-readable total", operands=paths),
    "realpath": ProgramRule(flags="emqsz", operands=paths),
    "readlink": ProgramRule(flags="efmnqsz", operands=paths),
    "sort": ProgramRule(
        flags="bdfgiMhnRrVcCsuz",
        valued="kt",
        words="reverse unique numeric-sort human-numeric-sort version-sort ignore-case stable check"
        " general-numeric-sort ignore-leading-blanks dictionary-order",
        named="key field-separator",
        operands=paths,
    ),
    "uniq": ProgramRule(
        flags="cdDiuz", valued="fsw", words="count repeated unique ignore-case", operands=one_path
    ),
    "cut": ProgramRule(
        flags="nsz",
        valued="bcdf",
        words="complement only-delimited",
        named="bytes characters delimiter fields output-delimiter",
        operands=paths,
    ),
    "comm": ProgramRule(flags="123", operands=paths),
    "cmp": ProgramRule(flags="bls", operands=paths),
    "diff": ProgramRule(
        flags="qsuabBiwyZcpdE",
        valued="UCW",
        words="unified brief side-by-side color report-identical-files ignore-case ignore-all-space"
        " ignore-space-change ignore-blank-lines minimal",
        operands=files,
    ),
    "md5sum": _SUM,
    "sha1sum": _SUM,
    "sha256sum": _SUM,
    "sha512sum": _SUM,
    "cksum": ProgramRule(operands=paths),
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": ProgramRule(
        flags="iSsvwxclnoNHIFPUuapq0b",
        valued="eABCmtTgMrdjE",
        words="hidden no-ignore no-ignore-vcs files json stats heading no-heading line-number no-line-number count"
        " count-matches files-with-matches files-without-match ignore-case smart-case case-sensitive column trim"
        " word-regexp line-regexp fixed-strings multiline pcre2 only-matching invert-match vimgrep no-filename"
        " with-filename no-messages text type-list",
        named="regexp glob iglob type type-not max-count max-depth context after-context before-context replace"
        " sort sortr color max-columns max-filesize",
        operands=ripgrep_operands,
    ),
}
"""Programs that only read if their arguments match the rule."""

CANNOT_WRITE: Final = _split(
    "arch basename cat cd cksum cmp comm command cut dirname du echo egrep false fgrep grep head id ls md5sum"
    " nl nproc pwd readlink realpath sha1sum sha256sum sha512sum stat tail tr true type uname wc which whoami"
)
"""Programs without an option or operand that writes, runs another program or sets something.

Not `sort`, `uniq`, `tree` and `file`, which can write files, `date` and `hostname`, which can set what
they show, `diff` and `rg`, which can run programs, nor `find` and `git`.
"""
