"""Shell scripts as values, made by `script_parser`.

A `Script` is a list of simple commands: their words with quotes removed, their assignments and
redirections, the operators between them, and the scripts inside them (`$(…)`, backticks, process
substitution, here-documents). Compound commands are flattened: each command in an `if`, a loop, a
function or a subshell is a command of the script, which is then not `plain`.

`Word.literal` is False if the shell expands the word at run time. `Word.exotic` is True if it contains
characters whose meaning is not modelled here. A check that a command is harmless must test both.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from attrs import define, field, frozen

PREFIXES: Final = frozenset(
    {"if", "then", "else", "elif", "fi", "while", "until", "do", "done", "esac", "coproc"}
    | {"{", "}", "!"}
)
"""Reserved words that can occur where a command begins."""

ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?", re.ASCII)


class Unreadable(ValueError):
    """The text is not a shell script, or uses syntax that the parser does not support."""


@frozen(kw_only=True)
class Word:
    """One word of a command; `text` is its value if it is literal and has no `globs`."""

    text: str
    literal: bool = True
    exotic: bool = False
    globs: bool = False
    quoted: bool = False
    assigns: bool = False
    scripts: "tuple[Script, ...]" = ()


@frozen(kw_only=True)
class Redirection:
    """A redirection of input or output. The target of a here-document is its delimiter."""

    operator: str
    descriptor: str
    target: Word


@frozen(kw_only=True)
class SimpleCommand:
    """A command with its arguments, and the operator that follows it."""

    words: tuple[Word, ...]
    assignments: tuple[Word, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    operator: str = ""


@frozen(kw_only=True)
class Script:
    """A list of simple commands; `plain` is False if it contains anything else."""

    commands: tuple[SimpleCommand, ...]
    documents: tuple[Word, ...] = ()
    plain: bool = True


# ── State of the parser ─────────────────────────────────────────────────────────────────────────


@define(eq=False)
class WordDraft:
    """A word that is being parsed."""

    text: list[str] = field(factory=list)
    literal: bool = True
    exotic: bool = False
    globs: bool = False
    quoted: bool = False
    assigns: bool = False
    scripts: list[Script] = field(factory=list)
    _equals: bool = False

    def put(self, character: str) -> None:
        """Add an unquoted character."""
        if character in "*?":
            self.globs = True
        elif character in "[]{}" or not character.isascii() or not character.isprintable():
            self.exotic = True
        elif character == "~":
            self.exotic |= not self.text or self.text[-1] in ":="  # a home directory
        elif character == "=" and not self._equals:
            self._equals = True
            self.assigns = not self.quoted and bool(ASSIGNED.fullmatch("".join(self.text)))
        self.text.append(character)

    def quote(self, text: str) -> None:
        """Add quoted text."""
        self.quoted = True
        self.text.append(text)

    def substitute(self, script: Script) -> None:
        """Add a command substitution."""
        self.literal = False
        self.scripts.append(script)

    def word(self) -> Word:
        """Return the finished word."""
        return Word(
            text="".join(self.text),
            literal=self.literal,
            exotic=self.exotic,
            globs=self.globs,
            quoted=self.quoted,
            assigns=self.assigns,
            scripts=tuple(self.scripts),
        )


@define(eq=False)
class ScriptDraft:
    """A script that is being parsed."""

    done: list[SimpleCommand] = field(factory=list)
    documents: list[Word] = field(factory=list)
    words: list[Word] = field(factory=list)
    assignments: list[Word] = field(factory=list)
    redirections: list[Redirection] = field(factory=list)
    parentheses: int = 0
    cases: int = 0
    plain: bool = True

    def add(self, word: Word) -> None:
        """Add a word to the current command; reserved words only clear `plain`."""
        if not self.words and word.assigns:
            self.assignments.append(word)
        elif not self.words and not word.quoted and word.text in PREFIXES:
            self.plain = False
            self.cases -= word.text == "esac"
        else:
            self.cases += not self.words and word.text == "case"
            self.words.append(word)
            if len(self.words) == 2 and self.words[0].text == "function":
                self.end("")  # its body comes next

    def parenthesis(self, which: str) -> None:
        """Handle a parenthesis: a subshell, the head of a function, or a pattern of `case`."""
        self.plain = False
        if which == ")" and self.cases and not self.parentheses:
            self._clear()  # the words were a pattern
        elif which == ")" and not self.parentheses:
            raise Unreadable("a parenthesis is not opened")
        else:
            self.parentheses += 1 if which == "(" else -1
            self.end("")

    def end(self, operator: str) -> None:
        """Finish the current command, if there is one."""
        if self.words or self.assignments or self.redirections:
            command = SimpleCommand(
                words=tuple(self.words),
                assignments=tuple(self.assignments),
                redirections=tuple(self.redirections),
                operator=operator,
            )
            self.done.append(command)
        self._clear()

    def script(self) -> Script:
        """Return the finished script."""
        self.end("")
        plain = self.plain and not (self.parentheses or self.documents)
        return Script(commands=tuple(self.done), documents=tuple(self.documents), plain=plain)

    def _clear(self) -> None:
        self.words, self.assignments, self.redirections = [], [], []


# ── Walking a script ────────────────────────────────────────────────────────────────────────────


def all_commands(script: Script) -> Iterator[SimpleCommand]:
    """Yield every simple command, also those in substitutions."""
    for command in script.commands:
        yield command
        yield from _nested(_words_of(command))
    yield from _nested(script.documents)


def _nested(words: Iterable[Word]) -> Iterator[SimpleCommand]:
    for word in words:
        for inner in word.scripts:
            yield from all_commands(inner)


def _words_of(command: SimpleCommand) -> Iterator[Word]:
    yield from command.assignments
    yield from command.words
    yield from (each.target for each in command.redirections)


def all_words(script: Script) -> Iterator[str]:
    """Yield every word of a script, also those in substitutions."""
    for command in all_commands(script):
        yield from (word.text for word in _words_of(command))
