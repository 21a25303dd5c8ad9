r"""Templates: `$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME:?message}` and `$(command)`.

Parsing and filling in are synchronous; only commands are awaited, and only those whose output is
needed. A variable that is not set is empty text. Any other `$` is an error, because it usually is a
mistake: `\$` is a dollar sign. Quotes have no special meaning.

The value of a template may be a secret, and so may the plain text in it. No error repeats either: a
template is shown with `…` in place of its plain text.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from attrs import define, field, frozen
from typing_extensions import override

from crush_trio.config.errors import printable

COMMAND_LIMIT: Final = 300.0
"""Seconds that one command may take (I4)."""

RunCommand: TypeAlias = Callable[[str, Mapping[str, str], Path], Awaitable[str]]
"""Runs a shell command with this environment in this directory, and returns its standard output.

It raises `CommandFailed` if the command could not be run or failed. When cancelled, it ends the
command and everything the command has started; the caller sets the time limit.
"""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PLAIN: Final = re.compile(r"[^$\\}]+")
_MESSAGE: Final = re.compile(r"[^}]*")
_IN_COMMAND: Final = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|[()]|[^'\"\\()]+", re.DOTALL)
_DEPTH: Final = 20
_SHOWN: Final = 160


class TemplateError(Exception):
    """A template cannot be parsed or filled in; the text holds no secret."""


class CommandFailed(Exception):
    """A command failed. The text says how it ended, without its output."""


@frozen
class Plain:
    """Plain text."""

    text: str = field(repr=False)

    @override
    def __str__(self) -> str:
        """Return `…`: the text may be a secret."""
        return "…"


@frozen(kw_only=True)
class Variable:
    """A variable, with a default or an error text for when it is empty or not set."""

    name: str
    default: "Template | None" = None
    complaint: str | None = None

    @override
    def __str__(self) -> str:
        """Return the variable as it is written, without the text of its default."""
        if self.default is not None:
            return f"${{{self.name}:-{self.default}}}"
        return f"${{{self.name}}}" if self.complaint is None else f"${{{self.name}:?}}"


@frozen
class Command:
    """The output of a command."""

    text: str

    @override
    def __str__(self) -> str:
        """Return the command as it is written."""
        return f"$({self.text})"


@frozen
class Template:
    """A parsed template."""

    pieces: tuple[Plain | Variable | Command, ...]

    @override
    def __str__(self) -> str:
        """Return the template without its plain text, for errors."""
        return printable("".join(map(str, self.pieces)), _SHOWN)

    def commands(self, environment: Mapping[str, str]) -> Iterator[str]:
        """Yield the commands whose output is needed to fill this in with *environment*."""
        for piece in self.pieces:
            if isinstance(piece, Command):
                yield piece.text
            elif isinstance(piece, Variable) and not environment.get(piece.name):
                yield from () if piece.default is None else piece.default.commands(environment)

    def expansions(self) -> Iterator[Variable | Command]:
        """Yield all variables and commands, needed or not."""
        for piece in self.pieces:
            if not isinstance(piece, Plain):
                yield piece
            if isinstance(piece, Variable) and piece.default is not None:
                yield from piece.default.expansions()

    def fill(self, environment: Mapping[str, str], outputs: Mapping[str, str]) -> str:
        """Return the value; *outputs* has what each of `commands` printed."""
        return "".join(_value(piece, environment, outputs) for piece in self.pieces)


def parse(text: str) -> Template:
    """Parse *text*, or raise `TemplateError`."""
    return _Parser(text).template()


def escape(text: str) -> str:
    """Return the template that yields exactly *text*."""
    return text.replace("$", r"\$")


def _value(
    piece: Plain | Variable | Command, environment: Mapping[str, str], outputs: Mapping[str, str]
) -> str:
    match piece:
        case Plain(text):
            return text
        case Command(text):
            return outputs[text].rstrip("\n")
    value = environment.get(piece.name, "")
    if value:
        return value
    if piece.complaint is not None:
        raise TemplateError(f"{piece}: {piece.complaint or 'the variable is not set'}")
    return "" if piece.default is None else piece.default.fill(environment, outputs)


@define
class _Parser:
    """Parses a template from left to right; `place` is the next character."""

    text: str = field(repr=False)
    place: int = 0
    depth: int = 0

    def template(self) -> Template:
        """Read to the end, or to the brace that closes a default."""
        pieces: list[Plain | Variable | Command] = []
        plain = ""
        while self.place < len(self.text) and not (self.depth and self._at("}")):
            if self.text[self.place] != "$":
                plain += self._plain()
                continue
            if plain:
                pieces.append(Plain(plain))
                plain = ""
            pieces.append(self._expansion())
        return Template((*pieces, Plain(plain)) if plain else tuple(pieces))

    def _at(self, mark: str) -> bool:
        return self.text.startswith(mark, self.place)

    def _take(self, mark: str) -> bool:
        found = self._at(mark)
        self.place += len(mark) if found else 0
        return found

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.place)
        self.place = self.place if found is None else found.end()
        return "" if found is None else found[0]

    def _plain(self) -> str:
        """Read plain text: a backslash is literal unless it escapes the next character."""
        if self._take(r"\$"):
            return "$"
        if self.depth and self._take(r"\}"):
            return "}"
        run = self._match(_PLAIN)
        if not run:  # a backslash, or a brace that closes nothing
            run = self.text[self.place]
            self.place += 1
        return run

    def _expansion(self) -> Variable | Command:
        self.place += 1
        if self._take("("):
            return self._command()
        if self._take("{"):
            return self._braced()
        name = self._match(_NAME)
        if not name:
            raise TemplateError(
                rf"a lone $ at character {self.place}: expected a name, {{ or ( after it; "
                r"write \$ for a dollar sign"
            )
        return Variable(name=name)

    def _braced(self) -> Variable:
        name = self._match(_NAME)
        if name and self._take("}"):
            return Variable(name=name)
        found = None
        if name and self._take(":-"):
            found = Variable(name=name, default=self._default())
        elif name and self._take(":?"):
            found = Variable(name=name, complaint=self._match(_MESSAGE))
        if found is None or not self._take("}"):
            raise TemplateError(
                f"${{{name}…: expected ${{NAME}}, ${{NAME:-default}} or ${{NAME:?message}}"
            )
        return found

    def _default(self) -> Template:
        self.depth += 1
        if self.depth > _DEPTH:
            raise TemplateError(f"expected at most {_DEPTH} defaults within each other")
        inner = self.template()
        self.depth -= 1
        return inner

    def _command(self) -> Command:
        """Read a command up to its closing parenthesis; those in quotes do not count."""
        begin, open_ = self.place, 1
        while open_:
            piece = self._match(_IN_COMMAND)
            if not piece:
                raise TemplateError("$(…: expected a ) that closes the command")
            open_ += {"(": 1, ")": -1}.get(piece, 0)
        text = self.text[begin : self.place - 1]
        if not text.strip() or text.startswith("("):
            raise TemplateError("$(…): expected a command; there is no arithmetic")
        return Command(text)


async def refuse_command(command: str, environment: Mapping[str, str], directory: Path) -> str:
    """Refuse to run a command: the default for programs that cannot run commands."""
    raise CommandFailed("commands are not available here")
