"""`read_script`: parses the text of a shell command, as far as `judge` needs it.

It splits a text into words and commands as a shell does, and raises `Unreadable` for syntax that it
does not support. `shlex` is not exact enough: a wrong split could let a command through. The tests
compare the result with a real shell.
"""

from typing import Final

from attrs import define, field

from crush_trio.tools.shell.script import (
    Redirection,
    Script,
    ScriptDraft,
    Unreadable,
    Word,
    WordDraft,
)

BLANKS: Final = frozenset(" \t")
META: Final = frozenset(" \t\n;&|()<>")
OPERATORS: Final = (";;&", ";;", ";&", "&&", "||", "|&", ";", "&", "|")
SEQUENCES: Final = frozenset({"&&", "||", ";", "|"})
REDIRECTIONS: Final = ("<<<", "<<-", "&>>", "<<", ">>", ">&", "<&", "<>", ">|", "&>", "<", ">")
DIGITS: Final = frozenset("0123456789")
ESCAPED: Final = frozenset('$`"\\')
"""The characters that a backslash escapes between double quotes."""

PARAMETERS: Final = frozenset("_@*#?-$![")
"""The characters, besides letters and digits, that begin a parameter after a dollar sign."""

DEEPEST: Final = 30
"""Maximum depth of nested substitutions."""


def read_script(text: str) -> Script:
    """Parse a shell script. Raises `Unreadable`."""
    if "\0" in text:
        raise Unreadable("a null character")
    return _Reader(text).script()


@define(eq=False)
class _Reader:
    """A recursive descent parser; every method continues at the current offset."""

    _text: str
    _depth: int = 0
    _at: int = field(default=0, init=False)
    _awaited: list[Redirection] = field(factory=list, init=False)

    def script(self, *, closed: bool = False) -> Script:
        """Parse to the end, or to the closing parenthesis if *closed*."""
        self._descend()
        commands = ScriptDraft()
        while (character := self._begin_token()) != "":
            if character == ")" and closed and not (commands.parentheses or commands.cases):
                break
            self._token(commands, character)
        if closed and not self._next():
            raise Unreadable("a parenthesis is not closed")
        self._depth -= 1
        return commands.script()

    def _descend(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unreadable("too many substitutions in each other")

    def _token(self, commands: ScriptDraft, character: str) -> None:
        if character in "()":
            commands.parenthesis(self._next())
        elif character == "\n":
            self._next()
            commands.end("\n")
            self._documents(commands)
        elif (redirection := self._taken(REDIRECTIONS)) is not None:
            self._redirection(commands, redirection, "")
        elif (operator := self._taken(OPERATORS)) is not None:
            commands.plain &= operator in SEQUENCES
            commands.end(operator)
        else:
            self._word_of_command(commands)

    def _word_of_command(self, commands: ScriptDraft) -> None:
        word = self._word()
        plain = word.literal and not word.quoted
        if plain and DIGITS.issuperset(word.text) and self._peek() in {"<", ">"}:
            redirection = self._taken(REDIRECTIONS)
            assert redirection is not None
            self._redirection(commands, redirection, word.text)
        else:
            commands.add(word)

    def _redirection(self, commands: ScriptDraft, operator: str, descriptor: str) -> None:
        if operator in {"<", ">"} and self._peek() == "(":
            self._next()
            inner = self.script(closed=True)
            commands.add(Word(text="", literal=False, quoted=True, scripts=(inner,)))
            return
        self._begin_token()
        target = self._word()
        if not (target.text or target.quoted or target.scripts):
            raise Unreadable("a redirection has no target")
        redirection = Redirection(operator=operator, descriptor=descriptor, target=target)
        commands.redirections.append(redirection)
        if operator in {"<<", "<<-"}:
            self._awaited.append(redirection)

    # ── Here-documents ──────────────────────────────────────────────────────────────────────────

    def _documents(self, commands: ScriptDraft) -> None:
        """Parse the here-documents that the line which has just ended declared."""
        awaited, self._awaited = self._awaited, []
        for redirection in awaited:
            body = self._body(redirection.target.text, strip=redirection.operator == "<<-")
            draft = WordDraft(quoted=True)
            if redirection.target.quoted:
                draft.text.append(body)
            else:
                _Reader(body, self._depth).expansions(draft)
            commands.documents.append(draft.word())

    def _body(self, delimiter: str, *, strip: bool) -> str:
        lines = []
        while self._at < len(self._text):
            end = self._text.find("\n", self._at)
            line = self._text[self._at : end if end >= 0 else None]
            self._at += len(line) + 1
            if (line.lstrip("\t") if strip else line) == delimiter:
                break
            lines.append(line)
        return "\n".join(lines)

    def expansions(self, draft: WordDraft) -> None:
        """Parse the whole text as the body of a here-document."""
        while character := self._next():
            self._quoted(draft, character)

    # ── Words ───────────────────────────────────────────────────────────────────────────────────

    def _word(self) -> Word:
        draft = WordDraft()
        while (character := self._peek()) and character not in META:
            self._next()
            match character:
                case "\\":
                    self._escaped(draft)
                case "'":
                    draft.quote(self._until("'"))
                case '"':
                    self._double(draft)
                case "$":
                    self._dollar(draft, quoted=False)
                case "`":
                    self._backtick(draft)
                case _:
                    draft.put(character)
        return draft.word()

    def _escaped(self, draft: WordDraft) -> None:
        character = self._exact()
        if not character:
            raise Unreadable("a backslash escapes nothing")
        draft.quote(character)

    def _double(self, draft: WordDraft) -> None:
        draft.quoted = True
        while (character := self._next()) != '"':
            if not character:
                raise Unreadable("a quotation mark is not closed")
            self._quoted(draft, character)

    def _quoted(self, draft: WordDraft, character: str) -> None:
        """Handle a character between double quotes."""
        if character == "$":
            self._dollar(draft, quoted=True)
        elif character == "`":
            self._backtick(draft)
        elif character == "\\" and self._text[self._at : self._at + 1] in ESCAPED:
            draft.text.append(self._exact())
        else:
            draft.text.append(character)

    # ── Expansions ──────────────────────────────────────────────────────────────────────────────

    def _dollar(self, draft: WordDraft, *, quoted: bool) -> None:
        character = self._peek()
        if character == "(":
            self._next()
            draft.substitute(self.script(closed=True))
        elif character == "{":
            self._next()
            draft.literal = False
            self._braced(draft, quoted=quoted)
        elif character == "'" and not quoted:
            self._next()
            draft.literal = False
            self._ansi()
        elif character == '"' and not quoted:
            draft.literal = False
        elif character and (character.isalnum() or character in PARAMETERS):
            draft.literal = False
            draft.text.append(self._next())
        else:
            draft.text.append("$")

    def _braced(self, draft: WordDraft, *, quoted: bool) -> None:
        while (character := self._next()) != "}":
            match character:
                case "":
                    raise Unreadable("a brace is not closed")
                case "\\":
                    self._exact()
                case "'" if not quoted:
                    self._until("'")
                case '"':
                    self._double(draft)
                case "$" | "`":
                    self._quoted(draft, character)

    def _ansi(self) -> None:
        """Skip a `$'…'`, in which a backslash escapes the quotation mark."""
        while (character := self._exact()) != "'":
            if not character:
                raise Unreadable("a quotation mark is not closed")
            if character == "\\":
                self._exact()

    def _backtick(self, draft: WordDraft) -> None:
        inner = []
        while (character := self._exact()) != "`":
            if not character:
                raise Unreadable("a backtick is not closed")
            if character == "\\" and self._text[self._at : self._at + 1] in {"$", "`", "\\"}:
                character = self._exact()
            inner.append(character)
        draft.substitute(_Reader("".join(inner), self._depth).script())

    # ── Characters ──────────────────────────────────────────────────────────────────────────────

    def _peek(self) -> str:
        """Return the next character, skipping backslashes that join lines."""
        while self._text.startswith("\\\n", self._at):
            self._at += 2
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        character = self._peek()
        self._at += 1
        return character

    def _exact(self) -> str:
        """Consume and return the next character without joining lines."""
        character = self._text[self._at : self._at + 1]
        self._at += 1
        return character

    def _taken(self, candidates: tuple[str, ...]) -> str | None:
        taken = next((each for each in candidates if self._text.startswith(each, self._at)), None)
        self._at += len(taken or "")
        return taken

    def _until(self, mark: str) -> str:
        end = self._text.find(mark, self._at)
        if end < 0:
            raise Unreadable("a quotation mark is not closed")
        start, self._at = self._at, end + 1
        return self._text[start:end]

    def _begin_token(self) -> str:
        """Skip blanks and a comment; return the next character."""
        while self._peek() in BLANKS:
            self._at += 1
        if self._peek() == "#":
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end
        return self._peek()
