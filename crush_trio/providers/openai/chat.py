"""The chat completions provider, and the chunks of its stream as parts of an answer.

The format is OpenAI's, and every server deviates from it somewhere. Tool calls are identified by their
index; an id may come once, late, or never, and some servers give every call the same index. The finish
reason may come before the usage, and the usage without a choice. Reasoning has three names. A call is
complete when the answer is: until then there may be more of it.

Invariant: however the text of an answer is cut into chunks, its parts have the same content and order.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import orjson
from attrs import define, field, frozen

from crush_trio.net.client import Transport
from crush_trio.net.sse import SseEvent
from crush_trio.providers.base import (
    CALLS_MOST,
    COST_MOST,
    ECHO,
    Endpoint,
    Finished,
    ModelRequest,
    Parts,
    ReasoningDelta,
    ReasoningEnd,
    StreamPart,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallEnd,
    Usage,
    pack,
    token_count,
)
from crush_trio.providers.catalog import model_id, options_of
from crush_trio.providers.errors import ProviderGarbled, ProviderUnreadable
from crush_trio.providers.failures import error_of, failure_in_stream, json_of, secrets_of
from crush_trio.providers.http import Post, headers_for, join_url, open_parts
from crush_trio.providers.openai.request import OUR_OPTIONS, Dialect, chat_body
from crush_trio.providers.think_tags import ThinkTags
from crush_trio.wire.fields import Json, JsonObject
from crush_trio.wire.ids import ToolCallId
from crush_trio.wire.messages import FinishReason

DONE: Final = b"[DONE]"

_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": FinishReason.END_TURN,
    "length": FinishReason.MAX_TOKENS,
    "tool_calls": FinishReason.TOOL_USE,
    "function_call": FinishReason.TOOL_USE,
    "content_filter": FinishReason.CONTENT_FILTER,
}
_CUT: Final = frozenset({FinishReason.MAX_TOKENS, FinishReason.CONTENT_FILTER})


@define(eq=False)
class _Call:
    """A tool call as far as it is known."""

    index: int
    id: ToolCallId
    name: str = ""
    pieces: list[str] = field(factory=list, init=False)
    """Its arguments, in pieces: they may contain a file, in thousands of them."""

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


@define(eq=False)
class ChatReading:
    """Reads one answer. *prefix* begins the ids of calls that come without one; it is unique to the answer."""

    prefix: str
    secrets: Iterable[str] = field(default=(), repr=False)
    finished: bool = field(default=False, init=False)
    _reason: str = field(default="", init=False)
    _usage: Usage = field(factory=Usage, init=False)
    _calls: list[_Call] = field(factory=list, init=False)
    _thinking: bool = field(default=False, init=False)
    _echo: bool = field(default=False, init=False)
    _tags: ThinkTags = field(factory=ThinkTags, init=False)
    _details: list[dict[str, Any]] = field(factory=list, init=False)
    _grown: dict[str, list[str]] = field(factory=dict, init=False)
    """What the last detail has grown by, in pieces: copying it each time would take too long."""

    @property
    def ending(self) -> bool:
        """Whether the model has told why it ended."""
        return bool(self._reason)

    def read(self, event: SseEvent) -> Iterator[StreamPart]:
        """Yield the parts of one chunk."""
        if event.data.strip() == DONE:
            yield from self._finish()
            return
        chunk = _object(json_of(event.data))
        if error := error_of(chunk):
            raise failure_in_stream(error, self.secrets)
        used = chunk.get("usage") or _object(chunk.get("x_groq")).get("usage")
        if isinstance(used, dict):
            self._usage = usage_of(used)
        for choice in _objects(chunk.get("choices"))[:1]:
            yield from self._choice(choice)

    def end(self) -> Iterator[StreamPart]:
        """Yield the end of an answer whose body has ended; some servers send no other sign."""
        if not self._reason:
            raise ProviderGarbled("the answer ended early")
        yield from self._finish()

    def _choice(self, choice: JsonObject) -> Iterator[StreamPart]:
        delta = _object(choice.get("delta") or choice.get("message"))
        self._echo = self._echo or bool(delta.get(ECHO))
        self._collect(_objects(delta.get("reasoning_details")))
        for thinking, text in (*_thoughts(delta), *_texts(delta)):
            for thought, piece in [(True, text)] if thinking else self._tags.split(text):
                if piece:
                    yield from self._text(piece, thinking=thought)
        for call in _calls(delta):
            yield from self._call(call)
        reason = str(choice.get("finish_reason") or "")
        if reason == "error":
            raise failure_in_stream(choice.get("error") or "the model failed", self.secrets)
        self._reason = reason or self._reason

    def _text(self, text: str, *, thinking: bool) -> Iterator[StreamPart]:
        if thinking:
            self._thinking = True
            yield ReasoningDelta(text)
        else:
            yield from self._end_thinking()
            yield TextDelta(text)

    def _end_text(self) -> Iterator[StreamPart]:
        """Yield text that was held back, and end the reasoning."""
        for thinking, text in self._tags.rest():
            yield from self._text(text, thinking=thinking)
        yield from self._end_thinking()

    def _end_thinking(self) -> Iterator[StreamPart]:
        if self._thinking:
            self._thinking = False
            self._join_details()
            own = ECHO if self._echo else ""
            yield ReasoningEnd(pack(self._details) if self._details else own)

    def _collect(self, details: Iterable[JsonObject]) -> None:
        """Join the details of reasoning: they come in pieces and have to go back whole."""
        for detail in details:
            last = self._details[-1] if self._details else {}
            if not _goes_on(last, detail):
                self._join_details()
                self._details.append(dict(detail))
                continue
            for key, value in detail.items():
                if key in {"text", "summary", "data"} and isinstance(value, str):
                    self._grown.setdefault(key, []).append(value)
                else:
                    last[key] = value or last.get(key)

    def _join_details(self) -> None:
        """Add to the last detail what it has grown by."""
        for key, pieces in self._grown.items():
            self._details[-1][key] = f"{self._details[-1].get(key) or ''}{''.join(pieces)}"
        self._grown.clear()

    # ── Tool calls ──────────────────────────────────────────────────────────────────────────────

    def _call(self, said: JsonObject) -> Iterator[StreamPart]:
        yield from self._end_text()
        function = _object(said.get("function"))
        call = self._called(said, named=bool(function.get("name")))
        if not call.name and function.get("name"):
            call.name = str(function["name"])
            yield ToolCallBegin(call.id, call.name)
            if call.pieces:
                yield ToolCallDelta(call.id, call.arguments)
        more = _arguments(function.get("arguments"))
        if more:
            call.pieces.append(more)
        if call.name and more:
            yield ToolCallDelta(call.id, more)

    def _called(self, said: JsonObject, *, named: bool) -> _Call:
        """Return the call that a delta belongs to: that of its index, unless it begins another."""
        given, index = str(said.get("id") or ""), said.get("index")
        known = [c for c in self._calls if index is None or c.index == index]
        same = [c for c in known if given and c.id == given]
        begins = named and (index is None or bool(given)) and not same
        if known and not (begins and known[-1].name):
            call = same[-1] if same else known[-1]
            call.id = self._unique(given) if given and not call.name else call.id
            return call
        number = len(self._calls)
        if number >= CALLS_MOST:
            raise ProviderUnreadable(f"it has more than {CALLS_MOST} tool calls")
        self._calls.append(_Call(number if index is None else index, self._unique(given)))
        return self._calls[-1]

    def _unique(self, given: str) -> ToolCallId:
        """Return the server's id, or one of ours if there is none or another call has it."""
        taken = {call.id for call in self._calls}
        number = len(self._calls)
        free = given or f"{self.prefix}_{number}"
        while free in taken:
            free = f"{free}_{number}"
        return ToolCallId(free)

    # ── The end ─────────────────────────────────────────────────────────────────────────────────

    def _finish(self) -> Iterator[StreamPart]:
        yield from self._end_text()
        reason = _REASONS.get(self._reason, FinishReason.UNKNOWN)
        named = [call for call in self._calls if call.name]
        for call in named:
            if reason not in _CUT or _is_json(call.arguments):
                yield ToolCallEnd(call.id, call.name, call.arguments or "{}")
        if named and reason not in _CUT:
            reason = FinishReason.TOOL_USE
        self.finished = True
        yield Finished(reason=reason, usage=self._usage)


def usage_of(said: JsonObject) -> Usage:
    """Return the usage. The server's prompt tokens include those of the cache; ours do not."""
    details = _object(said.get("prompt_tokens_details"))
    read = token_count(
        details.get("cached_tokens")
        or said.get("prompt_cache_hit_tokens")
        or said.get("cached_tokens")
    )
    written = token_count(details.get("cache_write_tokens"))
    cost = said.get("cost")
    return Usage(
        input_tokens=max(0, token_count(said.get("prompt_tokens")) - read - written),
        output_tokens=token_count(said.get("completion_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cost=float(cost) if isinstance(cost, int | float) and 0 <= cost <= COST_MOST else None,
    )


# ── What a delta holds ──────────────────────────────────────────────────────────────────────────


def _thoughts(delta: JsonObject) -> list[tuple[bool, str]]:
    """Return the reasoning in a delta, under any of its names."""
    for name in (ECHO, "reasoning"):
        if isinstance(said := delta.get(name), str) and said:
            return [(True, said)]
    details = _objects(delta.get("reasoning_details"))
    return [(True, str(d.get("text") or d.get("summary") or "")) for d in details]


def _texts(delta: JsonObject) -> list[tuple[bool, str]]:
    """Return the text in a delta; some servers send a list with reasoning between texts."""
    content = delta.get("content")
    if isinstance(content, str):
        said = [(False, content)]
    else:
        said = [(b.get("type") == "thinking", _words(b)) for b in _objects(content)]
    refusal = delta.get("refusal")
    return [*said, (False, refusal)] if isinstance(refusal, str) else said


def _words(block: JsonObject) -> str:
    said = block.get("text") or block.get("thinking") or ""
    return said if isinstance(said, str) else "".join(map(_words, _objects(said)))


def _calls(delta: JsonObject) -> list[JsonObject]:
    calls = _objects(delta.get("tool_calls"))
    alone = delta.get("function_call")  # as it was before there could be several
    return calls or ([{"index": 0, "function": alone}] if isinstance(alone, dict) else [])


def _goes_on(last: JsonObject, detail: JsonObject) -> bool:
    """Whether *detail* continues *last*."""
    same = all(last.get(key) == detail.get(key) for key in ("type", "index"))
    return same and (not detail.get("id") or last.get("id") in {None, detail["id"]})


def _arguments(said: Json) -> str:
    if said is None or isinstance(said, str):
        return said or ""
    return orjson.dumps(said).decode()


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _object(said: Json) -> JsonObject:
    return said if isinstance(said, dict) else {}


def _objects(said: Json) -> list[JsonObject]:
    return [item for item in said if isinstance(item, dict)] if isinstance(said, list) else []


@frozen
class ChatProvider:
    """Satisfies `Provider`. The base URL of *endpoint* is what comes before `/chat/completions`."""

    endpoint: Endpoint
    http: Transport = field(repr=False)
    dialect: Dialect

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[Parts]:
        """Open one answer; see `Provider.stream`."""
        secrets = secrets_of(self.endpoint)
        reading = ChatReading(prefix=f"call_{len(request.messages)}", secrets=secrets)
        post = self.post(request)
        async with open_parts(self.http, post, reading, secrets, request.heard) as parts:
            yield parts

    def post(self, request: ModelRequest) -> Post:
        """Return what is sent for *request*."""
        key = self.endpoint.api_key
        own = {"api-key": key} if self.dialect.azure else {"authorization": f"Bearer {key}"}
        return Post(
            url=self._azure_url(request) if self.dialect.azure else self._url,
            headers=headers_for(self.endpoint, request, own if key else {}),
            body=chat_body(request, self.endpoint, self.dialect),
            connect_within=self.endpoint.connect_limit,
        )

    @property
    def _url(self) -> str:
        return join_url(self.endpoint.base_url, "/chat/completions")

    def _azure_url(self, request: ModelRequest) -> str:
        """Return the URL at Azure.

        With an API version among the options, each model is a deployment with its own path; without
        one, the newer URL is used, which needs no version.
        """
        options = options_of(request, self.endpoint)
        version = next((str(options[name]) for name in OUR_OPTIONS if options.get(name)), "")
        if not version:
            above = "" if self.endpoint.base_url.rstrip("/").endswith("/v1") else "/openai/v1"
            return join_url(self.endpoint.base_url, f"{above}/chat/completions")
        above = "" if "/deployments/" in self.endpoint.base_url else "/openai/deployments/"
        model = quote(model_id(request), safe="") if above else ""
        query = f"api-version={quote(version, safe='')}"
        return join_url(self.endpoint.base_url, f"{above}{model}/chat/completions", query)
