r"""Redaction: removes secrets from logs and from answers about the configuration.

A secret is recognised by its name (`api_key`, `GITHUB_TOKEN`, `Authorization`), by its form
(`sk-…`, `Bearer …`, a private key, a password in a URL), or because the caller passes it. In case
of doubt text is removed. Only text is removed: numbers and structure stay, so that a client that
expects an integer can still read the answer.

All patterns take time linear in the text, because untrusted text reaches the logs.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from crush_trio.wire.fields import Json

REDACTED: Final = "[redacted]"
"""Replaces a secret."""

SHORTEST_SECRET: Final = 6
"""The fewest characters of a secret that is searched in text; a shorter one would match everywhere."""


def searchable_secrets(values: Iterable[str]) -> frozenset[str]:
    """Return the secrets that are long enough to be searched in text."""
    return frozenset(value for value in values if len(value) >= SHORTEST_SECRET)


# ── By name ─────────────────────────────────────────────────────────────────────────────────────

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_UNTELLING: Final = {"id", "base", "b"}  # AWS_ACCESS_KEY_ID, CERT_KEY_BASE64
_SECRET: Final = (
    *("password", "passwords", "passwd", "passphrase", "secret", "secrets", "token", "tokens"),
    *("apikey", "apikeys", "credential", "credentials", "authorization", "cookie", "cookies"),
    "sshpass",
)
_SECRET_IF_QUALIFIED: Final = {"key", "keys", "auth", "pass", "pat", "pwd"}
_HEADERS: Final = {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key"}


@lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Whether a value of this name is most likely a secret, in any spelling of the name.

    The last word decides: `token_url` is an address. `max_tokens` counts as secret but holds a
    number, which is not removed. A bare `key` and a public key are not secrets.
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    while words and words[-1] in _UNTELLING:
        words.pop()
    if not words:
        return False
    if words[-1].endswith(_SECRET):
        return True
    return words[-1] in _SECRET_IF_QUALIFIED and words[-2:-1] not in ([], ["public"])


# ── By form ─────────────────────────────────────────────────────────────────────────────────────

_HEADER: Final = re.compile(
    r"(authorization|cookie)(\\?[\"']?\s*[:=]\s*\\?[\"']?)[^\"'\\\r\n]++", re.IGNORECASE
)
_NAME: Final = re.compile(r"(?<![\w.-])([A-Za-z_-][\w.-]*+)\\?[\"']?\s*[:=]\s*")
_VALUE: Final = re.compile(
    r"\"(?:[^\"\\]++|\\.)*+\"?|'(?:[^'\\]++|\\.)*+'?|\\\"[^\"]*+\"?|[^\s,;&\"']++", re.DOTALL
)
_QUOTES: Final = ('"', "'", r"\"")
_SHAPES: Final = re.compile(
    # At the beginning of a word; also after an escape (`\n` in JSON) and after a colour of a terminal.
    r"(?:(?<![\w-])|(?<=\\[bfnrt])|(?<=[\d\[]m))(?:(?i:bearer)\s+[\w.~+/=-]{8,}"
    r"|(?:sk|rk)-[\w-]{16,}|gh[a-z]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}"
    r"|eyJ[\w-]{8,}+\.[\w-]++\.[\w-]*)"
)
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*+-----(?:(?!-----END ).)*+(?:-----END [A-Z ]*+-----)?", re.DOTALL
)
_LOGIN: Final = re.compile(r"(?<=://)[^\s/@]++@")
_QUERY: Final = re.compile(r"([?&](?:key|sig|signature)=)[^&#\s]++")


def redact_text(text: str, *, secrets: Collection[str] = ()) -> str:
    """Return *text* without *secrets* and without text that looks like a secret."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = _HEADER.sub(rf"\1\2{REDACTED}", text)
    text = _without_assigned(text)
    text = _PRIVATE_KEY.sub(REDACTED, _SHAPES.sub(REDACTED, text))
    text = _LOGIN.sub(f"{REDACTED}@", text)
    return _QUERY.sub(rf"\1{REDACTED}", text)


def _without_assigned(text: str) -> str:
    """Remove the values in `NAME=value`, `"name": "value"` and the like, if the name is a secret's.

    Names are searched everywhere, also inside the values of other names: in `url=…?token=…` the
    second one matters.
    """
    kept, place = [], 0
    for name in _NAME.finditer(text):
        if name.start() < place or not is_secret_name(name[1]):
            continue
        value = _VALUE.match(text, name.end())
        if value is not None:
            quote = next((mark for mark in _QUOTES if value[0].startswith(mark)), "")
            kept += [text[place : name.end()], quote, REDACTED, quote]
            place = value.end()
    return "".join((*kept, text[place:]))


# ── In values ───────────────────────────────────────────────────────────────────────────────────


def redact(value: Json, *, secrets: Collection[str] = ()) -> Json:
    """Return a copy of a tree of plain values without its secrets; see the module.

    Under a secret's name all text is removed, however deep. In lists it also recognises
    `NAME=value` of an environment, an option of a command before its value, and a header with its
    name.
    """
    match value:
        case str():
            return redact_text(value, secrets=secrets)
        case bytes():
            return redact_text(value.decode("latin-1"), secrets=secrets).encode("latin-1")
        case Mapping():
            return {
                key: _hidden(item) if is_secret_name(_text(key)) else redact(item, secrets=secrets)
                for key, item in value.items()
            }
        case list() | tuple():
            return type(value)(_redacted_items(value, secrets))
    return value


def _redacted_items(items: Sequence[Json], secrets: Collection[str]) -> list[Json]:
    if len(items) == 2 and _text(items[0]).lower() in _HEADERS:
        return [items[0], _hidden(items[1])]
    redacted = []
    before = ""
    for item in items:
        text = _text(item)
        name, assigned, _ = text.partition("=")
        if before.startswith("-") and is_secret_name(before):
            redacted.append(_hidden(item))
        elif assigned and name.isidentifier() and is_secret_name(name):
            redacted.append(f"{name}={REDACTED}")
        else:
            redacted.append(redact(item, secrets=secrets))
        before = text
    return redacted


def _hidden(value: Json) -> Json:
    """Return *value* with all its text replaced, except empty text."""
    match value:
        case str():
            return REDACTED if value else value
        case bytes():
            return REDACTED.encode() if value else value
        case Mapping():
            return {key: _hidden(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(_hidden(item) for item in value)
    return value


def _text(value: object) -> str:
    """Return a name as text; "" if it is not text."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def map_text(value: Json, change: Callable[[str], str]) -> Json:
    """Return a tree of plain values with every text in it changed, names of objects aside."""
    match value:
        case str():
            return change(value)
        case Mapping():
            return {key: map_text(item, change) for key, item in value.items()}
        case list() | tuple():
            return type(value)(map_text(item, change) for item in value)
    return value
