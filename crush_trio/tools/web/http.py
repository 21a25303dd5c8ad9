"""The web tools' requests: one GET, its redirects, and which addresses they may reach.

Nothing comes from the environment of the process: no proxy, no certificates, no login, no cookie. Proxies and
certificates are those of the workspace's environment.

A user sees the whole URL before anything is requested, and may well mean a server on this machine. What a
user cannot see is where a name or a redirect leads. So the addresses that a host resolves to are checked, and
the connection goes to an address that was checked. Two kinds are refused:

* addresses at which clouds hand out credentials, and all link-local ones, always;
* addresses that are not public, once a redirect comes from a public one.

Where the workspace has a proxy, that resolves the names: then hosts are checked as they are written.
"""

from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.metadata import version
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, TypeAlias

from attrs import define, field, frozen

from crush_trio.net.address import Url
from crush_trio.net.client import Request, Response, open_http_client
from crush_trio.net.dial import Dialer
from crush_trio.net.encoding import ACCEPTED
from crush_trio.net.errors import AddressRefused, BadEncoding, BadUrl, NetworkError
from crush_trio.tools.base import ToolError

REDIRECTS: Final = 10
READ_MOST: Final = 64 * 1024
"""Bytes that are received at a time: a download writes each piece in a thread."""

_MOVED: Final = frozenset((301, 302, 303, 307, 308))

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
    """Return the text of the innermost error that has one: outer ones are often empty."""
    said = ""
    inner: BaseException | None = failure
    while inner is not None:
        said = str(inner) or said
        inner = inner.__cause__
    return said or type(failure).__name__
