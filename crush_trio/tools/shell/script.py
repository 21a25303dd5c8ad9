"""Shell commands as values: what `script_reader` makes of a text.

A script is simple commands in a row: their words after quotes are removed, their assignments and
redirections, the operators between them, and whatever runs inside them (`$(…)`, backticks, process
substitution, here-documents). Compound commands are not understood, only seen through: each
command in an `if`, a loop, a function or a subshell is a command of the script, which is then not
`plain`.

A word knows what it is not: `literal` is False if the shell puts something into it at run time,
`exotic` is True if it contains anything that nobody here vouches for. Whoever concludes that a
command is harmless must look at both.
"""

import re
from typing import Final

from attrs import define, field, frozen

PREFIXES: Final = frozenset(
    {"if", "then", "else", "elif", "fi", "while", "until", "do", "done", "esac", "coproc"}
    | {"{", "}", "!"}
)
"""Reserved words that stand before a command, or where one could stand."""

ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?", re.ASCII)


class Unreadable(ValueError):
    """The text is not a shell script, or a stranger one than we read."""


@frozen(kw_only=True)
class Word:
    """One word of a command; `text` is what it becomes if it is literal and has no `globs`."""

    text: str
    literal: bool = True
    exotic: bool = False
    globs: bool = False
    quoted: bool = False
    assigns: bool = False
    scripts: "tuple[Script, ...]" = ()


@frozen(kw_only=True)
class Redirection:
    """Where input comes from or output goes to. The target of a here-document is its delimiter."""

    operator: str
    descriptor: str
    target: Word


@frozen(kw_only=True)
class SimpleCommand:
    """A command with its arguments, and the operator behind it."""

    words: tuple[Word, ...]
    assignments: tuple[Word, ...] = ()
    redirections: tuple[Redirection, ...] = ()
    operator: str = ""


@frozen(kw_only=True)
class Script:
    """Simple commands in a row. If it is not `plain` there is more to it than that."""

    commands: tuple[SimpleCommand, ...]
    documents: tuple[Word, ...] = ()
    plain: bool = True


# ── In the making ───────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class WordDraft:
    """A word as far as it has been read."""

    text: list[str] = field(factory=list)
    literal: bool = True
    exotic: bool = False
    globs: bool = False
    quoted: bool = False
    assigns: bool = False
    scripts: list[Script] = field(factory=list)
    _equals: bool = False

    def put(self, character: str) -> None:
        """Take a character that was not quoted."""
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
        """Take text that means only itself."""
        self.quoted = True
        self.text.append(text)

    def substitute(self, script: Script) -> None:
        """Take a script whose output will stand here."""
        self.literal = False
        self.scripts.append(script)

    def word(self) -> Word:
        """Return the word, which is complete."""
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
    """The commands of a script as far as they have been read."""

    done: list[SimpleCommand] = field(factory=list)
    documents: list[Word] = field(factory=list)
    words: list[Word] = field(factory=list)
    assignments: list[Word] = field(factory=list)
    redirections: list[Redirection] = field(factory=list)
    parentheses: int = 0
    cases: int = 0
    plain: bool = True

    def add(self, word: Word) -> None:
        """Take a word, which may be reserved where it stands."""
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
        """See through a subshell, the head of a function, or a pattern of `case`."""
        self.plain = False
        if which == ")" and self.cases and not self.parentheses:
            self._clear()  # the words were a pattern
        elif which == ")" and not self.parentheses:
            raise Unreadable("a parenthesis is not opened")
        else:
            self.parentheses += 1 if which == "(" else -1
            self.end("")

    def end(self, operator: str) -> None:
        """Complete the command, if there is one."""
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
        """Return what has been read, which is all."""
        self.end("")
        plain = self.plain and not (self.parentheses or self.documents)
        return Script(commands=tuple(self.done), documents=tuple(self.documents), plain=plain)

    def _clear(self) -> None:
        self.words, self.assignments, self.redirections = [], [], []
