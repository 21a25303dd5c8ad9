"""The secrets that a workspace knows: found in the configuration and the environment, and hidden.

`KnownSecrets` collects values: keys and tokens in the configuration files, what their templates stand
for once it is known, variables with a secret's name, and passwords in the URLs of others.
`SecretMatcher` finds them in text, also where only a part of one is left because the text was cut, and in
the forms in which programs write them: URL-encoded, in JSON, in base64 at any position. It is made once,
and again when a value is added.

A short value is not searched, and neither is a plain word or a small number: `postgres` as a password
would be removed wherever the word occurs. Such a value is still kept from commands by its name.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, unquote

from attrs import define, field

from crush_trio.config.redaction import REDACTED, is_secret_name, map_text, searchable_secrets
from crush_trio.wire.codec import unstructure
from crush_trio.wire.config import Config
from crush_trio.wire.fields import Json

SHORTEST: Final = 8
"""The fewest characters of a value that is searched in the output of tools."""

PIECE: Final = 12
"""The fewest characters of a part of a value that are hidden: half of it, but not fewer than this."""

_PLAIN: Final = re.compile(r"[A-Za-z]+(?:[-_ .][A-Za-z]+)*|[0-9]+|[~.]{0,2}/.*", re.DOTALL)
_PLAIN_LENGTH: Final = 16
_SCHEME: Final = re.compile(r"(?:Bearer|Basic|Token) +", re.IGNORECASE)
"""What precedes the secret in the value of a header."""


# ── Finding values ──────────────────────────────────────────────────────────────────────────────


def config_secrets(config: Config) -> frozenset[str]:
    """Return the values of the secret keys in a configuration."""
    return searchable_secrets(_secrets(unstructure(config), False))


def environment_secrets(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the values of the secret variables in an environment."""
    return searchable_secrets(value for name, value in environment.items() if is_secret_name(name))


_URL_PASSWORD: Final = re.compile(
    r"://[^\s/:@?#]*+:(?![0-9]*+(?:[/?#]|$))([^\s@]++(?:@[^\s@/?#]*+(?=@))*+)@"
)
"""The password in the user part of a URL. A port comes in the same place; no `@` ends it."""


def url_passwords(text: str) -> list[str]:
    """Return the passwords of the URLs in *text*, as they are written."""
    return _URL_PASSWORD.findall(text) if "@" in text else []


def _secrets(value: Json, secret: bool) -> Iterator[str]:
    if isinstance(value, str) and secret:
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secrets(item, secret or is_secret_name(str(name)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, secret)


# ── Hiding them ─────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class SecretMatcher:
    """Hides a fixed set of values."""

    values: frozenset[str] = field(default=frozenset(), repr=False)
    _forms: dict[str, list[tuple[str, int]]] = field(factory=dict, init=False, repr=False)
    """For each piece that is searched: the forms it is from, and where it is in each."""

    def __attrs_post_init__(self) -> None:
        for form in sorted({form for value in self.values for form in _forms_of(value)}):
            size = len(form) if len(form) < _PLAIN_LENGTH else max(PIECE, (len(form) + 1) // 2)
            for start in {0, len(form) - size}:
                self._forms.setdefault(form[start : start + size], []).append((form, start))

    def redact(self, text: str) -> str:
        """Return *text* with every known value, or what is left of one, replaced."""
        # One search per piece: a regular expression of all of them takes eight times as long.
        found = [piece for piece in self._forms if piece in text]
        if not found:
            return text
        kept, place = list[str](), 0
        for start, end in sorted(span for piece in found for span in self._spans(text, piece)):
            if start > place or not kept:
                kept += [text[place:start], REDACTED]
            place = max(place, end)
        return "".join((*kept, text[place:]))

    def _spans(self, text: str, piece: str) -> Iterator[tuple[int, int]]:
        """Yield where *piece* is, each time with as much of its value as is there around it."""
        begin = text.find(piece)
        while begin >= 0:
            for form, at in self._forms[piece]:
                start, end, before, after = begin, begin + len(piece), at, at + len(piece)
                while before and start and text[start - 1] == form[before - 1]:
                    start, before = start - 1, before - 1
                while after < len(form) and end < len(text) and text[end] == form[after]:
                    end, after = end + 1, after + 1
                yield start, end
            begin = text.find(piece, begin + len(piece))


def _forms_of(value: str) -> Iterator[str]:
    """Yield the ways in which programs write *value*."""
    yield value
    yield quote(value, safe="")
    yield json.dumps(value)[1:-1]
    data = value.encode(errors="replace")
    for lead in range(
        3
    ):  # the characters depend on where the value begins in a group of three bytes
        whole = base64.b64encode(bytes(lead) + data).decode().rstrip("=")
        first, last = (0, 2, 3)[lead], (lead + len(data)) % 3
        form = whole[first : len(whole) - 1 if last else len(whole)]
        if len(form) >= PIECE:
            yield form
            yield form.replace("+", "-").replace("/", "_")


@define(eq=False)
class KnownSecrets:
    """The secrets of one workspace. They only become more: an old key stays a secret."""

    matcher: SecretMatcher = field(factory=SecretMatcher, init=False, repr=False)

    def learn(self, values: Iterable[str]) -> None:
        """Add *values*; those that are too short or too plain are left out."""
        lines = (line for value in values for line in (value.strip(), *_long_lines(value)))
        bare = (_SCHEME.sub("", line) for line in lines)
        new = {value for value in bare if _is_searchable(value)} - self.matcher.values
        if new:
            self.matcher = SecretMatcher(self.matcher.values | new)

    def learn_config(self, config: Config, environment: Mapping[str, str]) -> None:
        """Add the secrets of a configuration and of its environment; templates are no secrets."""
        written = (value for value in config_secrets(config) if "$" not in value)
        in_urls = [each for value in environment.values() for each in url_passwords(value)]
        self.learn((*written, *environment_secrets(environment), *in_urls, *map(unquote, in_urls)))

    def redact(self, text: str) -> str:
        """Return *text* without known secrets."""
        return self.matcher.redact(text)

    def redact_tree(self, value: Json) -> Json:
        """Return a copy of a tree of plain values without known secrets.

        One that is nested too deeply to be searched is left out: the result is an empty object.
        """
        try:
            return map_text(value, self.matcher.redact)
        except RecursionError:
            return {}


def _long_lines(value: str) -> list[str]:
    """Return the lines of a long value such as a private key, which tools show one by one."""
    lines = value.split("\n") if "\n" in value else ()
    return [line.strip() for line in lines if len(line) >= 2 * PIECE and line[:2] != "--"]


def _is_searchable(value: str) -> bool:
    plain = len(value) < _PLAIN_LENGTH or value.startswith(("/", "~/", "./", "../"))
    return len(value) >= SHORTEST and not (plain and _PLAIN.fullmatch(value))
