"""Command lines as grants and rules see them: what patterns describe a line, and which cover it.

There are two comparisons, and both err on the side of asking.

*Covering*, for grants and allowing rules: every simple command of the line must match a pattern, and so
must every output to a file. Anything that cannot be known from the text, such as a variable, a
substitution, a glob, an assignment, or a path that leads out of the workspace, makes the line coverable
only by a pattern with exactly its text.

*Touching*, for rules that ask or deny: one command that looks like the pattern is enough, also inside a
substitution, behind `env` or `xargs`, or in the text of `sh -c`.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import field, frozen

from crush_trio.agent.asks.path_policy import PathPolicy, mentions_protected, names_protected
from crush_trio.config.rules.patterns import (
    CommandPattern,
    ExactLine,
    Invocation,
    Output,
    Rest,
)
from crush_trio.config.rules.programs import (
    AS_SHOWN,
    FLAGS,
    NEVER,
    READERS,
    SUBCOMMANDS,
    TARGETS,
    program_name,
    sets_variable,
)
from crush_trio.tools.shell.script import (
    Script,
    SimpleCommand,
    Unreadable,
    Word,
    all_commands,
    all_words,
)
from crush_trio.tools.shell.script_parser import read_script

LONGEST: Final = 16 * 1024
"""The most characters of a line that is parsed here; a longer one is covered by its text only."""

DEEPEST: Final = 5
"""How deep scripts in the arguments of shells are searched."""

_OUTPUTS: Final = frozenset({">", ">>", "&>", "&>>", ">|"})
_DOCUMENTS: Final = frozenset({"<<", "<<-", "<<<"})
_STREAMS: Final = frozenset({"1", "2", "-"})
_NULL: Final = "/dev/null"

_ADDRESS: Final = re.compile(r"[\w.+-]*:/|[\w.+-]+@[\w.-]+:")
_REMOTE: Final = re.compile(r"[\w.+@-]+:(?=\S)")
"""What git takes for a repository elsewhere: a URL, `host:path`, `ext::command`."""

_PIECES: Final = re.compile(r"[=:,]")
_NAMES: Final = re.compile(r"[/=:,]")


@frozen(kw_only=True)
class CommandLine:
    """A command line and its working directory; `script` is None if it cannot be parsed."""

    text: str
    directory: Path
    script: Script | None = field(repr=False)

    @classmethod
    def parse(cls, text: str, directory: Path) -> "CommandLine":
        """Parse a command line."""
        script = None
        if len(text) <= LONGEST:
            with suppress(Unreadable):
                script = read_script(text)
        return cls(text=text.strip(), directory=directory, script=script)

    @property
    def runs_anything(self) -> bool:
        """Whether the line has an interpreter, a wrapper or a program that is not known from its text."""
        return self.script is None or any(map(_runs_anything, all_commands(self.script)))

    @property
    def is_protected(self) -> bool:
        """Whether the line names something that is always asked about."""
        if self.script is None:
            return mentions_protected(self.text)
        return any(map(_names_protected, all_words(self.script))) or (
            self.runs_anything and any(map(mentions_protected, _texts(self.script)))
        )


# ── Patterns that cover a line ──────────────────────────────────────────────────────────────────


def patterns_of(line: CommandLine, paths: PathPolicy) -> tuple[CommandPattern, ...]:
    """Return the patterns of a grant for *line*: of each command, or exactly its text."""
    exact = (ExactLine(line.text),)
    parts = _parts(line, paths)
    if parts is None:
        return exact
    acting = (words for words in parts.commands if words[0] not in READERS)
    found: dict[CommandPattern, None] = dict.fromkeys(map(_invocation, acting))
    return (*found, *([Output()] if parts.writes else [])) or exact


def is_covered(line: CommandLine, patterns: Collection[CommandPattern], paths: PathPolicy) -> bool:
    """Whether *patterns* cover every command of *line*, and every output to a file."""
    if ExactLine(line.text) in patterns:
        return True
    parts = _parts(line, paths)
    if parts is None or (parts.writes and Output() not in patterns):
        return False
    invocations = [each for each in patterns if isinstance(each, Invocation)]
    acting = [words for words in parts.commands if words[0] not in READERS]
    return bool(acting or parts.writes) and all(
        any(_matches(each, words) for each in invocations) for words in acting
    )


@frozen(kw_only=True)
class _Parts:
    """The simple commands of a line that patterns can cover, and whether it writes files."""

    commands: tuple[tuple[str, ...], ...]
    writes: bool


def _parts(line: CommandLine, paths: PathPolicy) -> _Parts | None:
    """Return the parts of a line; None if only its exact text can be covered."""
    script = line.script
    if script is None or not script.commands or not paths.holds(line.directory):
        return None
    if not all(
        each.literal and not each.scripts and "\\\n" not in each.text for each in script.documents
    ):
        return None
    directories = [line.directory]
    commands = []
    writes = False
    for command in script.commands:
        words = _plain_words(command)
        outputs = _outputs(command, directories, paths)
        if words is None or outputs is None or not _may_vary(words, directories, paths):
            return None
        if words[:1] == ("cd",):
            # A `cd` that fails leaves the following commands where they were: both places count.
            directories += [each / words[1] for each in directories]
        if words:
            commands.append(words)
        writes = writes or outputs
    return _Parts(commands=tuple(commands), writes=writes)


def _plain_words(command: SimpleCommand) -> tuple[str, ...] | None:
    if command.assignments or not all(map(_is_plain, command.words)):
        return None
    return tuple(word.text for word in command.words)


def _is_plain(word: Word) -> bool:
    return word.literal and not (word.exotic or word.globs or word.scripts)


def _outputs(command: SimpleCommand, directories: Sequence[Path], paths: PathPolicy) -> bool | None:
    """Return whether a command writes files; None if a redirection leads anywhere else."""
    writes = False
    for each in command.redirections:
        target = each.target.text
        if not _is_plain(each.target):
            return None
        if each.operator in _DOCUMENTS or (each.operator in {">&", "<&"} and target in _STREAMS):
            continue
        if each.operator not in _OUTPUTS | {"<"} or not (
            target == _NULL or _is_inside(target, directories, paths)
        ):
            return None
        writes = writes or (each.operator in _OUTPUTS and target != _NULL)
    return writes


def _may_vary(words: tuple[str, ...], directories: Sequence[Path], paths: PathPolicy) -> bool:
    """Whether a pattern can describe a command, and all its paths are inside the workspace."""
    if not words:
        return True
    name = program_name(words[0])
    if name in NEVER or name in AS_SHOWN or sets_variable(name, words[1:]):
        return False
    if _depends_on_directory(words[0]) and not _in_workspace(directories, paths):
        return False
    if name == "cd":
        usual = len(words) == 2 and not words[1].startswith("-")
        return usual and len(directories) < 8 and _is_inside(words[1], directories, paths)
    rest = words[1:]
    known = SUBCOMMANDS.get(name)
    if known is not None:
        depth = known.depth(words[1]) if len(words) > 1 else 2
        if len(words) == 1 or any(word.startswith("-") for word in words[1:depth]):
            return False
        rest = words[depth:]
        if words[1] in known.never or not known.accepts(rest) or any(map(_is_remote, rest)):
            return False
    return all(_is_argument(word, directories, paths) for word in rest)


def _depends_on_directory(program: str) -> bool:
    """Whether a program is named by a relative path: elsewhere, `./build.sh` is another program."""
    return "/" in program and not program.startswith("/")


def _in_workspace(directories: Sequence[Path], paths: PathPolicy) -> bool:
    """Whether a command certainly runs in the workspace itself, not in a directory below it."""
    return all(paths.resolve(each) == paths.workspace for each in directories)


def _is_remote(word: str) -> bool:
    return _REMOTE.match(word.partition("=")[2] or word) is not None


def _is_argument(word: str, directories: Sequence[Path], paths: PathPolicy) -> bool:
    """Whether an argument names no other machine, no file of options, and no path outside."""
    if word.startswith("@") or _ADDRESS.match(word) or (word.startswith("-") and "://" in word):
        return False
    return all(_is_inside(path, directories, paths) for path in _paths_in(word))


def _paths_in(word: str) -> Iterator[str]:
    """Yield the parts of an argument that may be paths."""
    if not word.startswith("-"):
        yield word
    elif not word.startswith("--") and "/" in word:
        yield word[word.index("/") :]  # the value of a short option, after any number of letters
    for piece in _PIECES.split(word):
        if piece.startswith(("/", "~")) or ".." in piece:
            yield piece
    if value := word.partition("=")[2]:
        yield value


def _is_inside(text: str, directories: Sequence[Path], paths: PathPolicy) -> bool:
    return all(paths.holds(directory / text) for directory in directories)


# ── One command ─────────────────────────────────────────────────────────────────────────────────


def _invocation(words: tuple[str, ...]) -> Invocation:
    """Return the pattern of a command that `_may_vary`."""
    name = program_name(words[0])
    if name in TARGETS:
        return Invocation(words)
    known = SUBCOMMANDS.get(name)
    if known is None:
        options = [part for item in _options(words)[0] for part in item]
        return Invocation((words[0], *options), Rest.PATHS)
    depth = known.depth(words[1])
    return Invocation(words[:depth], Rest.ANY if len(words) >= depth else Rest.NONE)


def _matches(pattern: Invocation, words: tuple[str, ...]) -> bool:
    """Whether a command that `_may_vary` matches *pattern*."""
    match pattern.rest:
        case Rest.NONE:
            return words == pattern.words
        case Rest.ANY:
            return bool(pattern.words) and words[: len(pattern.words)] == pattern.words
        case Rest.PATHS:
            shown, _ = _options(pattern.words)
            used, operands = _options(words)
            return (
                words[0] == pattern.program
                and set(used) <= set(shown)
                and not any(word.startswith("-") for word in operands)
            )


_Options = list[tuple[str, ...]]


def _options(words: Sequence[str]) -> tuple[_Options, list[str]]:
    """Return the options of a command, each with the value that it may have, and its operands."""
    flags = FLAGS.get(program_name(words[0]), "")
    options: _Options = []
    operands: list[str] = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "--":
            operands += rest
            break
        if not word.startswith("-") or word == "-":
            operands.append(word)
        elif word[1] != "-" and set(word[1:]) <= set(flags):
            options += ((f"-{letter}",) for letter in word[1:])
        elif "=" in word or not rest or rest[0].startswith("-"):
            options.append((word,))
        else:
            options.append((word, rest.pop(0)))
    return options, operands


# ── Patterns that touch a line ──────────────────────────────────────────────────────────────────


def is_touched(line: CommandLine, pattern: CommandPattern) -> bool:
    """Whether some command of *line* looks like *pattern*."""
    if isinstance(pattern, ExactLine):
        return line.text == pattern.text
    if isinstance(pattern, Output):
        return line.script is None or any(map(_writes, all_commands(line.script)))
    if not pattern.words:
        return True
    if line.script is None:
        name = re.escape(program_name(pattern.program))
        return re.search(rf"(?<![\w.-]){name}(?![\w-])", line.text) is not None
    return any(_looks_like(pattern, words) for words in _invocations(line.script))


def _writes(command: SimpleCommand) -> bool:
    return any(
        each.operator in _OUTPUTS | {">&", "<>"} and each.target.text not in _STREAMS | {_NULL}
        for each in command.redirections
    )


def _looks_like(pattern: Invocation, words: Sequence[str]) -> bool:
    """Whether the words of the pattern are among those of the command, in order."""
    if not words or program_name(words[0]) != program_name(pattern.program):
        return False
    letters = {letter for word in words[1:] if _is_short(word) for letter in word[1:]}
    rest = iter(words[1:])
    return all(
        set(wanted[1:]) <= letters
        if _is_short(wanted)
        else any(_is_spelling(word, wanted) for word in rest)
        for wanted in pattern.words[1:]
    )


def _is_spelling(word: str, wanted: str) -> bool:
    """Whether a word is the one of a pattern, or a long option abbreviated or with a value."""
    name = word.partition("=")[0]
    return word == wanted or (len(name) > 2 and name[:2] == "--" and wanted.startswith(name))


def _is_short(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and word[1] != "-"


def _invocations(script: Script, depth: int = 0) -> Iterator[Sequence[str]]:
    """Yield the words of every command, also of those among the arguments of wrappers and shells."""
    for command in all_commands(script):
        words = [word.text for word in command.words]
        yield words
        if _runs_anything(command):
            yield from (words[at:] for at in range(1, len(words)))
    if depth < DEEPEST and any(map(_runs_anything, all_commands(script))):
        for text in _texts(script):
            with suppress(Unreadable):
                yield from _invocations(read_script(text), depth + 1)


# ── Words of a script ────────────────────────────────────────────────────────────────────────────


def _texts(script: Script) -> Iterator[str]:
    """Yield the texts that an interpreter may read as a script: quoted arguments and documents."""
    for command in all_commands(script):
        texts = [word.text for word in command.words[1:]]
        yield from (text for text in texts if re.search(r"\s|[;|&/]", text))
        yield " ".join(texts)
        yield from (each.target.text for each in command.redirections if each.operator == "<<<")
    yield from (document.text for document in script.documents)


def _runs_anything(command: SimpleCommand) -> bool:
    if not command.words:
        return False
    program = command.words[0]
    return not _is_plain(program) or program_name(program.text) in NEVER


def _names_protected(word: str) -> bool:
    short = word[2:] if _is_short(word) else word
    return names_protected((*_NAMES.split(word), *_NAMES.split(short)))
