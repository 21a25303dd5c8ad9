"""The tool `fetch`: gets a page from the web and returns it as text or Markdown."""

from codecs import getincrementaldecoder
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import trio
from attrs import define, frozen

from crush_trio.tools.arguments import About, BuiltIn, read_arguments
from crush_trio.tools.base import ToolCall, ToolError, ToolResult, Wanted
from crush_trio.tools.web.http import open_answer, parse_url
from crush_trio.tools.web.page import to_markdown, to_text
from crush_trio.tools.workbench import Workbench
from crush_trio.wire.fields import JsonObject

SECONDS: Final = 30
MOST_SECONDS: Final = 120
SHOWN: Final = 100 * 1024
"""Bytes of an answer that the model sees."""

PAGE: Final = 1024 * 1024
"""Bytes read of a page that is converted; most of a page is markup and scripts."""

_PAGES: Final = ("text/html", "application/xhtml")


class Format(StrEnum):
    """How a page is returned."""

    TEXT = "text"
    MARKDOWN = "markdown"
    HTML = "html"


@frozen(kw_only=True)
class FetchArguments:
    """What to fetch, and in which form."""

    url: Annotated[str, About("The address, beginning with http:// or https://.")]
    format: Annotated[Format, About("How to return a web page.")]
    timeout: Annotated[
        int, About("Seconds to wait for all of it; 30 if left out, 120 at most.")
    ] = 0


@frozen(kw_only=True)
class Fetched:
    """Text from the web; `url` is where it came from, after all redirects."""

    url: str
    content_type: str
    text: str
    truncated: bool


@define(eq=False)
class FetchTool(BuiltIn):
    """The tool `fetch`."""

    name = "fetch"
    parallel = True
    arguments = FetchArguments

    bench: Workbench

    async def run(self, call: ToolCall) -> ToolResult:
        """Ask for permission, fetch, and return the text."""
        arguments = read_arguments(call.input, FetchArguments)
        parse_url(arguments.url)
        await call.permit(
            Wanted(
                action="fetch",
                description=f"Fetch content from {arguments.url}",
                params=_params(arguments),
                path=self.bench.directory,
            )
        )
        seconds = seconds_of(arguments.timeout, default=SECONDS, most=MOST_SECONDS)
        with trio.move_on_after(seconds) as limit:
            fetched = await _fetch(arguments, self.bench.env)
        if limit.cancelled_caught:
            raise ToolError(f"{arguments.url} was not answered completely within {seconds} seconds")
        return _answer(fetched)


def seconds_of(asked: int, *, default: int, most: int) -> int:
    """Return the time limit of a request, in seconds."""
    return min(asked, most) if asked > 0 else default


def _params(arguments: FetchArguments) -> JsonObject:
    timeout = {"timeout": arguments.timeout} if arguments.timeout else {}
    return {"url": arguments.url, "format": arguments.format.value, **timeout}


async def _fetch(arguments: FetchArguments, environment: Mapping[str, str]) -> Fetched:
    async with open_answer(arguments.url, environment, compressed=True) as answer:
        if answer.status != 200:
            raise ToolError(f"{arguments.url} answered with status {answer.status}")
        converted = arguments.format is not Format.HTML and _is_page(answer.content_type)
        data, more = await answer.read_first(PAGE if converted else SHOWN)
    text = _decoded(data, more)
    if converted:
        text = await trio.to_thread.run_sync(_converted, arguments.format, text, str(answer.url))
    shown = _beginning(text)
    return Fetched(
        url=str(answer.url),
        content_type=answer.content_type,
        text=shown,
        truncated=more or len(shown) < len(text),
    )


def _is_page(content_type: str) -> bool:
    return content_type.strip().lower().startswith(_PAGES)


def _decoded(data: bytes, more: bool) -> str:
    """Return *data* as text; if there was *more*, its last character may be incomplete."""
    try:
        return getincrementaldecoder("utf-8")().decode(data, final=not more)
    except UnicodeDecodeError as exc:
        raise ToolError("the answer is not text in UTF-8; use download to save it") from exc


def _converted(form: Format, page: str, url: str) -> str:
    """Convert a page; runs in a worker thread."""
    check = trio.from_thread.check_cancelled
    if form is Format.TEXT:
        return to_text(page, check=check)
    return to_markdown(page, base=url, check=check)


def _beginning(text: str) -> str:
    """Return the part of *text* that the model sees."""
    data = text.encode()
    return text if len(data) <= SHOWN else data[:SHOWN].decode(errors="ignore")


def _answer(fetched: Fetched) -> ToolResult:
    note = f"\n\n[cut after {SHOWN // 1024} KB]" if fetched.truncated else ""
    return ToolResult(
        content=(fetched.text or "(The answer is empty.)") + note,
        metadata={
            "url": fetched.url,
            "content_type": fetched.content_type,
            "truncated": fetched.truncated,
        },
    )
