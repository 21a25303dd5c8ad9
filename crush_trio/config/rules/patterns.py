"""Patterns: the text of what a grant or a rule is about, and its parsed form.

| Tool | Pattern | Meaning |
|---|---|---|
| `bash` | `git commit *` | the command, with any further arguments |
| | `touch <paths>` | the command, with paths as further operands and no further options |
| | `make test` | the command with exactly these words |
| | `> *` | output to a file |
| | `= sh -c 'make all'` | exactly this command line |
| | `*` | every command; not to allow |
| file tools | `src/**`, `/srv/data/**`, `notes.md` | a path, or what is below a directory |
| `fetch`, `download` | `example.org`, `*.example.org`, `https://example.org:8443` | a host |

Every other tool has no pattern: its rules are about the tool. How a request is compared with a pattern
is in `agent.asks`.
"""

import re
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from attrs import frozen
from typing_extensions import override

from crush_trio.config.rules.programs import AS_SHOWN, NEVER, SUBCOMMANDS, program_name


class PatternInvalid(ValueError):
    """The text is not a pattern; the message says what is expected."""


class PatternKind(StrEnum):
    """What the pattern of a tool is about."""

    COMMAND = "command"
    PATH = "path"
    HOST = "host"
    NONE = "none"


BASH: Final = "bash"

KINDS: Final[Mapping[str, PatternKind]] = {
    BASH: PatternKind.COMMAND,
    "fetch": PatternKind.HOST,
    "download": PatternKind.HOST,
    **dict.fromkeys(
        ("edit", "multiedit", "write", "view", "ls", "grep", "glob", "lsp_replace_symbol"),
        PatternKind.PATH,
    ),
}
"""What the patterns of the built-in tools are about."""


def kind_of(tool: str) -> PatternKind:
    """Return what the patterns of *tool* are about."""
    return KINDS.get(tool, PatternKind.NONE)


# ── Commands ────────────────────────────────────────────────────────────────────────────────────


class Rest(StrEnum):
    """Which arguments may follow the words of a pattern; the values are its last word."""

    NONE = ""
    PATHS = "<paths>"
    ANY = "*"


@frozen
class Invocation:
    """A program with its first words, and what may follow them."""

    words: tuple[str, ...]
    rest: Rest = Rest.NONE

    @property
    def program(self) -> str:
        """The program as it is written; empty if the pattern is about every command."""
        return self.words[0] if self.words else ""

    @override
    def __str__(self) -> str:
        return " ".join(filter(None, (shlex.join(self.words), self.rest.value)))


@frozen
class Output:
    """A redirection that writes a file."""

    @override
    def __str__(self) -> str:
        return "> *"


@frozen
class ExactLine:
    """A whole command line, character by character."""

    text: str

    @override
    def __str__(self) -> str:
        return f"= {self.text}"


CommandPattern = Invocation | Output | ExactLine


def parse_command(text: str) -> CommandPattern:
    """Parse the pattern of a command. Raises `PatternInvalid`."""
    text = text.strip()
    if text.startswith("= "):
        return ExactLine(text[2:].strip())
    if text == str(Output()):
        return Output()
    rest = next((each for each in (Rest.ANY, Rest.PATHS) if _ends_with(text, each)), Rest.NONE)
    try:
        words = shlex.split(text.removesuffix(rest.value))
    except ValueError as error:
        raise PatternInvalid(f"expected a command: {error}") from None
    if not words and rest is not Rest.ANY:
        raise PatternInvalid("expected a command such as 'git commit *', got nothing")
    if any(word and not word.strip(";&|<>()`") for word in words):
        raise PatternInvalid("expected one command; write one rule for each command of a line")
    return Invocation(tuple(words), rest)


def _ends_with(text: str, rest: Rest) -> bool:
    return text == rest.value or text.endswith(f" {rest.value}")


def unallowable(pattern: CommandPattern) -> str:
    """Return why no rule may allow *pattern*; empty if one may."""
    if not isinstance(pattern, Invocation):
        return ""
    name = program_name(pattern.program)
    if not name:
        return "name the program; to allow every command, add bash to permissions.allowed_tools"
    if name in NEVER:
        return f"{name} runs other programs; only '= COMMAND', the whole line, can be allowed"
    if pattern.rest is not Rest.NONE and name in AS_SHOWN:
        return f"write the whole command, without {pattern.rest.value!r}: {name} is allowed as shown only"
    verbs = pattern.words[1:]
    known = SUBCOMMANDS.get(name)
    if known is None or pattern.rest is Rest.NONE:
        return ""
    if not verbs or len(pattern.words) < known.depth(verbs[0]) or verbs[0].startswith("-"):
        return f"name the subcommand of {name}, as in '{name} SUBCOMMAND *'"
    if verbs[0] in known.never:
        return f"{name} {verbs[0]} can run other programs; write the whole command, without '*'"
    return ""


# ── Paths ───────────────────────────────────────────────────────────────────────────────────────

_BELOW: Final = "/**"


@frozen
class PathPattern:
    """A path, or with `below` everything at and below a directory. Relative to the workspace."""

    path: str
    below: bool = False

    def matches(self, path: Path, workspace: Path) -> bool:
        """Whether an absolute, resolved path is meant."""
        base = workspace / self.path
        return path.is_relative_to(base) if self.below else path == base

    @override
    def __str__(self) -> str:
        if not self.below:
            return self.path
        return "**" if self.path == "." else f"{self.path.rstrip('/')}{_BELOW}"


def parse_path(text: str) -> PathPattern:
    """Parse the pattern of a path. Raises `PatternInvalid`."""
    below = text == "**" or text.endswith(_BELOW)
    path = (
        (text.removesuffix("**").rstrip("/") or ("/" if text.startswith("/") else "."))
        if below
        else text
    )
    if ".." in path.split("/") or path.startswith("~"):
        raise PatternInvalid(
            "expected an absolute path, or one relative to the workspace, without '..'"
        )
    if not path or any(mark in path for mark in "*?["):
        raise PatternInvalid("expected a path, or a directory followed by '/**'")
    return PathPattern(str(PurePosixPath(path)), below)


# ── Hosts ───────────────────────────────────────────────────────────────────────────────────────

_HOST: Final = re.compile(r"(\*\.)?([a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\])(:\d{1,5})?")
_PORTS: Final = {"http": 80, "https": 443}


@frozen
class HostPattern:
    """A host, with `*.` also those below it. An empty `scheme` and port 0 mean any."""

    host: str
    scheme: str = ""
    port: int = 0

    def matches(self, scheme: str, host: str, port: int) -> bool:
        """Whether an address is meant."""
        parent = self.host.removeprefix("*.")
        named = host.endswith(f".{parent}") if self.host != parent else host == parent
        return named and self.scheme in {"", scheme} and self.port in {0, port}

    @override
    def __str__(self) -> str:
        scheme = f"{self.scheme}://" if self.scheme else ""
        port = f":{self.port}" if self.port and self.port != _PORTS.get(self.scheme) else ""
        return f"{scheme}{self.host}{port}"


def parse_host(text: str) -> HostPattern:
    """Parse the pattern of a host. Raises `PatternInvalid`."""
    scheme, separator, rest = text.lower().rpartition("://")
    if not _HOST.fullmatch(rest) or (separator and scheme not in _PORTS):
        raise PatternInvalid("expected a host such as 'example.org' or 'https://example.org:8443'")
    name, _, port = rest.rpartition(":") if re.search(r":\d+$", rest) else (rest, "", "")
    return HostPattern(name.rstrip("."), scheme, int(port) if port else _PORTS.get(scheme, 0))


def origin_of(url: str) -> HostPattern | None:
    """Return scheme, host and port of a URL; None if it has none."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    scheme = parts.scheme.lower()
    if not host or scheme not in _PORTS:
        return None
    name = f"[{host}]" if ":" in host else host.rstrip(".")
    return HostPattern(name, scheme, port or _PORTS[scheme])


# ── All of them ─────────────────────────────────────────────────────────────────────────────────

Pattern = CommandPattern | PathPattern | HostPattern


def parse_pattern(tool: str, text: str) -> Pattern | None:
    """Parse the pattern of a rule about *tool*; None if it is empty. Raises `PatternInvalid`."""
    if not text.strip():
        return None
    match kind_of(tool):
        case PatternKind.COMMAND:
            return parse_command(text)
        case PatternKind.PATH:
            return parse_path(text.strip())
        case PatternKind.HOST:
            return parse_host(text.strip())
        case PatternKind.NONE:
            raise PatternInvalid(
                f"expected no pattern: rules about {tool} are about the whole tool"
            )
