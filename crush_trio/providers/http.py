"""What all providers behind HTTP have in common: headers, a POST, and an answer that is read."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final
from urllib.parse import urlsplit

from attrs import frozen

from crush_trio.config.redaction import is_secret_name
from crush_trio.providers.base import Endpoint, ModelRequest, Parts
from crush_trio.providers.event_stream import AnswerParts, Reading, decoder_for
from crush_trio.providers.exchange import Answer, Connections, open_answer
from crush_trio.providers.failures import failure
from crush_trio.wire.converters import dump
from crush_trio.wire.fields import Json, JsonObject

AFFINITY_HEADERS: Final = ("x-session-affinity", "x-session-id")
"""Both carry the name of the conversation; what stands before models looks for one or the other."""

ERROR_MOST: Final = 65536
"""Bytes of an error that are read."""

SHORTEST_SECRET: Final = 4
"""Characters of a configured value that is looked for in errors; a shorter one is in every text."""

_FRAMING: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})


@frozen(kw_only=True)
class Post:
    """A request as it goes out; `url` is the whole of it."""

    url: str
    headers: Mapping[str, str]
    body: JsonObject

    @property
    def target(self) -> str:
        """What comes after the server in the URL."""
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def join_url(base_url: str, path: str, query: str = "") -> str:
    """Return the URL of *path* below *base_url*, which may have a query of its own."""
    parts = urlsplit(base_url)
    queries = "&".join(filter(None, (parts.query, query)))
    return parts._replace(path=parts.path.rstrip("/") + path, query=queries, fragment="").geturl()


def headers_for(
    endpoint: Endpoint, request: ModelRequest, own: Mapping[str, str]
) -> dict[str, str]:
    """Return the headers of a request; those of the configuration win, empty ones are not sent."""
    common = {
        "user-agent": user_agent(),
        "accept": "text/event-stream, application/json",
        "content-type": "application/json",
        **dict.fromkeys(AFFINITY_HEADERS, request.affinity),
    }
    named = {name.lower(): value for name, value in endpoint.extra_headers.items()}
    together = {**common, **own, **named}
    return {name: value for name, value in together.items() if value and name not in _FRAMING}


@cache
def user_agent() -> str:
    """Return who we say we are."""
    try:
        return f"crush_trio/{version('crush-trio')}"
    except PackageNotFoundError:  # run from its source
        return "crush_trio"


def secrets_of(endpoint: Endpoint) -> tuple[str, ...]:
    """Return what must not be repeated in any error.

    A header can let somebody in whatever it is called, so all that were configured count.
    """
    given = (*endpoint.extra_headers.values(), *_secret_texts(endpoint.extra_body))
    keys = (endpoint.api_key, *given)
    words = [key.rpartition(" ")[2] for key in keys]  # of "Bearer …", a server repeats the rest
    password = urlsplit(endpoint.base_url).password or ""
    telling = (each for each in (*given, *words) if len(each) >= SHORTEST_SECRET)
    return tuple(filter(None, (endpoint.api_key, *telling, password)))


def _secret_texts(value: Json, *, secret: bool = False) -> Iterator[str]:
    """Return the texts that are kept under a secret's name, however deep."""
    if isinstance(value, str) and secret:
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secret_texts(item, secret=secret or is_secret_name(str(name)))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secret_texts(item, secret=secret)


@asynccontextmanager
async def open_parts(
    connections: Connections, post: Post, reading: Reading, secrets: tuple[str, ...]
) -> AsyncIterator[Parts]:
    """Send *post* and have the parts of its answer, as *reading* reads them."""
    target, headers, body = post.target, post.headers.items(), dump(post.body)
    del post  # the answer may take minutes: what was sent need not lie about in pieces meanwhile
    async with open_answer(connections, target, headers, body) as answer:
        if not 200 <= answer.status < 300:
            raise failure(answer.status, answer.headers, await _text(answer), secrets)
        yield AnswerParts(answer, reading, decoder_for(answer))


async def _text(answer: Answer) -> str:
    """Return the body of an error, as far as it matters."""
    said = bytearray()
    while (more := await answer.receive()) and len(said) < ERROR_MOST:
        said += more
    return said.decode("utf-8", "replace")
