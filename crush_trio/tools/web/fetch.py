"""The tool `fetch`: gets a page from the web and returns it as text or Markdown.

`open_answer` makes the request of both web tools: one GET and its redirects. Nothing comes from the
environment of the process: no proxy, no certificates, no login, no cookie. Proxies and certificates are
those of the workspace's environment.

`Reach` decides which addresses may be reached. A user sees the whole URL before anything is requested, and
may well mean a server on this machine. What a user cannot see is where a name or a redirect leads. So the
addresses that a host resolves to are checked, and the connection goes to an address that was checked. Two
kinds are refused:

* addresses at which clouds hand out credentials, and all link-local ones, always;
* addresses that are not public, once a redirect comes from a public one.

If the workspace has a proxy, the proxy resolves the names: then hosts are checked as they are written.
"""

from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from enum import StrEnum
from importlib.metadata import version
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Annotated, Final, TypeAlias

import trio
from attrs import define, field, frozen

from crush_trio.net.address import Url
from crush_trio.net.client import Request, Response, open_http_client
from crush_trio.net.dial import Dialer
from crush_trio.net.errors import AddressRefused, BadEncoding, BadUrl, ConnectionLost, NetworkError
from crush_trio.net.http1 import ACCEPTED
from crush_trio.tools.base import (
    About,
    BuiltIn,
    ToolCall,
    ToolError,
    ToolResult,
    Wanted,
    read_arguments,
)
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


# ── Address rules ───────────────────────────────────────────────────────────────────────────────

IpAddress: TypeAlias = IPv4Address | IPv6Address

FORBIDDEN: Final = tuple(
    ip_network(text)
    for text in (
        *("169.254.0.0/16", "fe80::/10"),  # link-local, with the metadata services of most clouds
        *("fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
    )
)
_FORBIDDEN_NAMES: Final = frozenset(("metadata.google.internal", "metadata.goog"))
_NAT64: Final = ip_network("64:ff9b::/96")


@define(eq=False)
class Reach:
    """The address check of one request and its redirects. Satisfies `AddressCheck`."""

    forbidden: tuple[IPv4Network | IPv6Network, ...] = FORBIDDEN
    _public: bool = field(default=False, init=False)
    """Whether it has been at a public address."""

    def check_name(self, host: str) -> None:
        """Refuse a host that needs no look-up to be refused."""
        name = host.rstrip(".").lower()
        if name in _FORBIDDEN_NAMES:
            raise _refused(host)
        try:
            address = ip_address(name.strip("[]"))
        except ValueError:
            return
        self._check(_plain(address), host)

    def check_address(self, address: str) -> None:
        """Refuse an address that the request, or its next redirect, may not be sent to."""
        self._check(_plain(ip_address(address)), address)

    def connected(self, address: str | None) -> None:
        """Record where the request goes; what a proxy connects to counts as public."""
        here = address is None or _plain(ip_address(address)).is_global
        self._public = self._public or here

    def _check(self, address: IpAddress, shown: str) -> None:
        if any(address in network for network in self.forbidden):
            raise _refused(shown)
        if self._public and not address.is_global:
            raise AddressRefused(f"refused: a public site redirects to the private address {shown}")


def _refused(shown: str) -> AddressRefused:
    return AddressRefused(f"refused: {shown} is a link-local or metadata address")


def _plain(address: IpAddress) -> IpAddress:
    """Return the IPv4 address that an IPv6 address stands for, if it stands for one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


# ── Requests ────────────────────────────────────────────────────────────────────────────────────

REDIRECTS: Final = 10

READ_MOST: Final = 64 * 1024
"""Bytes that are received at a time: a download writes each piece in a thread."""

_MOVED: Final = frozenset((301, 302, 303, 307, 308))


@frozen(eq=False)
class WebAnswer:
    """The response to a GET. `url` is where it came from, after all redirects."""

    url: Url
    _response: Response = field(repr=False)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._response.status

    @property
    def content_type(self) -> str:
        """The type of the content, as the server names it; may be empty."""
        return self._response.headers.get("content-type", "")

    @property
    def length(self) -> int | None:
        """The number of bytes in the body, if the server says so and they are not compressed."""
        headers = self._response.headers
        length = headers.get("content-length", "")
        return int(length) if length and not headers.get("content-encoding") else None

    async def receive(self) -> bytes:
        """Return more of the body; no bytes at its end."""
        with _translated(self.url):
            return await self._response.receive()

    async def read_first(self, most: int) -> tuple[bytes, bool]:
        """Return the first *most* bytes of the body, and whether there are more."""
        with _translated(self.url):
            return await self._response.read_first(most)


def parse_url(text: str) -> Url:
    """Parse a URL that a model gave; raises `ToolError`."""
    try:
        return Url.parse(text)
    except BadUrl as exc:
        raise ToolError(exc.detail) from exc


@asynccontextmanager
async def open_answer(
    text: str,
    environment: Mapping[str, str],
    *,
    compressed: bool = False,
    reach: Reach | None = None,
) -> AsyncIterator[WebAnswer]:
    """Request a URL and follow its redirects; raises `ToolError` if that leads nowhere.

    The answer may have any other status. Leaving the block closes the connection at once. *compressed*
    allows the server to compress the body. How long all of it may take is up to the caller.
    """
    url, check = parse_url(text), reach or Reach()
    dialer = Dialer(environment, check=check)
    # No connection is kept: what may be reached depends on where the request has been.
    async with open_http_client(dialer, idle_most=0, read_most=READ_MOST) as http:
        for _ in range(REDIRECTS + 1):
            async with AsyncExitStack() as stack:
                with _translated(url):
                    request = _request(url, compressed=compressed)
                    response = await stack.enter_async_context(http.open(request))
                location = response.headers.get("location", "")
                if response.status not in _MOVED or not location:
                    yield WebAnswer(url, response)
                    return
            with _translated(url):
                url = url.join(location)
    raise ToolError(f"{text} redirects more than {REDIRECTS} times")


def _request(url: Url, *, compressed: bool) -> Request:
    headers = {
        "user-agent": f"crush-trio/{version('crush-trio')}",
        "accept": "*/*",
        "accept-encoding": ACCEPTED if compressed else "identity",
        "connection": "close",
    }
    return Request(method="GET", origin=url.origin, target=url.target, headers=headers)


# ── Failures ────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _translated(url: Url) -> Generator[None]:
    """Turn the network errors of a block into what the model is told."""
    try:
        yield
    except (BadUrl, AddressRefused, BadEncoding) as exc:
        raise ToolError(exc.detail) from exc
    except NetworkError as exc:
        raise ToolError(f"cannot fetch {url}: {_reason(exc)}") from exc


def _reason(failure: BaseException) -> str:
    """Return the text of the innermost error that has one: outer ones are often empty.

    For a lost connection it is our own text: its cause is an error of h11 about event types.
    """
    said = ""
    inner: BaseException | None = failure
    while inner is not None:
        if isinstance(inner, ConnectionLost):
            return inner.detail or str(inner)
        said = str(inner) or said
        inner = inner.__cause__
    return said or type(failure).__name__
