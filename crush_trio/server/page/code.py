"""Code as HTML: Pygments finds the tokens, and every token becomes a span with a class.

The text may come from a hostile model. Everything is escaped, only well-known languages are read, and
there are limits on the length of the text, of a line, and on the time: what comes after is plain.
Pygments is imported with the first code.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from html import escape
from pathlib import PurePosixPath
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pygments.lexer import Lexer

PREFIX: Final = "hl-"
"""What the classes of tokens begin with; the rest is Pygments' short name of the kind."""

CODE_MOST: Final = 64 * 1024
"""The most characters that are read as code."""

LINE_MOST: Final = 2000
"""The most characters of a line of code."""

SECONDS: Final = 1.0
"""How long the code of one message may take."""

_until: ContextVar[float] = ContextVar("_until")

_LANGUAGES: Final = {
    "bash": "bash sh zsh shell .sh .bash .zsh",
    "c": "c .c .h",
    "clojure": "clojure clj .clj",
    "cmake": "cmake .cmake CMakeLists.txt",
    "cpp": "cpp c++ cc .cc .cpp .cxx .hpp .hh",
    "csharp": "csharp c# cs .cs",
    "css": "css .css",
    "dart": "dart .dart",
    "diff": "diff patch .diff .patch",
    "docker": "docker dockerfile Dockerfile",
    "elixir": "elixir ex .ex .exs",
    "erlang": "erlang erl .erl",
    "go": "go golang .go",
    "graphql": "graphql .graphql",
    "haskell": "haskell hs .hs",
    "html": "html .html .htm",
    "ini": "ini cfg conf .ini .cfg .conf",
    "java": "java .java",
    "javascript": "javascript js jsx mjs .js .mjs .cjs .jsx",
    "json": "json jsonc .json .webmanifest",
    "julia": "julia jl .jl",
    "kotlin": "kotlin kt .kt .kts",
    "lua": "lua .lua",
    "make": "make makefile Makefile .mk",
    "markdown": "markdown md .md",
    "nginx": "nginx nginxconf",
    "nix": "nix .nix",
    "objective-c": "objective-c objc .m",
    "ocaml": "ocaml ml .ml .mli",
    "perl": "perl pl .pl .pm",
    "php": "php .php",
    "powershell": "powershell ps1 pwsh .ps1",
    "protobuf": "protobuf proto .proto",
    "python": "python py python3 .py .pyi",
    "pycon": "pycon",
    "r": "r .r .R",
    "ruby": "ruby rb .rb",
    "rust": "rust rs .rs",
    "scala": "scala .scala",
    "scss": "scss .scss",
    "sql": "sql .sql",
    "swift": "swift .swift",
    "terraform": "terraform tf hcl .tf",
    "toml": "toml .toml",
    "tsx": "tsx .tsx",
    "typescript": "typescript ts .ts .mts",
    "vim": "vim .vim",
    "xml": "xml svg .xml .svg",
    "yaml": "yaml yml .yaml .yml",
    "zig": "zig .zig",
}
"""The languages that are read: Pygments' name of each, and how authors and files call it."""

_NAMES: Final = {word: name for name, words in _LANGUAGES.items() for word in words.split()}
_TURNING: Final = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LABEL: Final = re.compile(r"[A-Za-z0-9+#._-]{1,40}")


@contextmanager
def code_time(seconds: float = SECONDS) -> Iterator[None]:
    """Give all code that is read in the block *seconds* in total."""
    token = _until.set(monotonic() + seconds)
    try:
        yield
    finally:
        _until.reset(token)


def language_of(word: str) -> str | None:
    """Return the language that the first word after a fence names; None if it is not read."""
    return _NAMES.get(word.lower()) if not word.startswith(".") else None


def language_of_file(path: str) -> str | None:
    """Return the language of a file by its name."""
    pure = PurePosixPath(path)
    return _NAMES.get(pure.suffix) or _NAMES.get(pure.name)


def code_block(text: str, language: str | None) -> str:
    """Return *text* as a block of code."""
    label = f' data-lang="{escape(language)}"' if language and _LABEL.fullmatch(language) else ""
    return f'<pre class="code"{label}><code>{"".join(code_lines(text, language))}</code></pre>\n'


def shown(text: str) -> str:
    """Return *text* for HTML, with marks in place of characters that would change the order of a line."""
    return escape(_TURNING.sub(lambda found: f"<U+{ord(found[0]):04X}>", text))


def code_lines(text: str, language: str | None) -> list[str]:
    """Return the lines of *text* as HTML, each with its line feed; none leaves a tag open."""
    text = text.replace("\r\n", "\n")
    lines = _split(text)
    if language is None or len(text) > CODE_MOST or any(len(line) > LINE_MOST for line in lines):
        return [shown(line) for line in lines]
    return list(_coloured(text, language))


def _split(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _coloured(text: str, language: str) -> Iterator[str]:
    """Yield the lines of *text*; plain from where the time is over, or where the lexer has lost its way."""
    from pygments.token import STANDARD_TYPES

    done, line = 0, list[str]()
    until = _until.get(None) or monotonic() + SECONDS
    for kind, value in _lexer(language).get_tokens(text):
        if not text.startswith(value, done) or monotonic() > until:
            break
        done += len(value)
        short = next(
            STANDARD_TYPES[each] for each in reversed(kind.split()) if each in STANDARD_TYPES
        )
        for piece in _split(value):
            html = shown(piece.removesuffix("\n"))
            line.append(f'<span class="{PREFIX}{short}">{html}</span>' if short and html else html)
            if piece.endswith("\n"):
                yield "".join(line) + "\n"
                line = []
    rest = _split(text[done:])
    if line or rest:
        head = "".join(line)
        for number, each in enumerate(rest or [""]):
            yield (head if number == 0 else "") + shown(each)


@lru_cache(maxsize=32)
def _lexer(language: str) -> "Lexer":
    from pygments.lexers import get_lexer_by_name

    return get_lexer_by_name(language, stripnl=False, ensurenl=False)
