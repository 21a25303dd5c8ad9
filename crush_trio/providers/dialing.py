"""How a connection to a provider comes about: an address, perhaps a proxy, and TLS.

Invariant: a connection that is opened in here is returned or closed, also if a cancel comes between
its first packet and the end of the TLS handshake.
"""

import ssl
from base64 import b64encode
from collections.abc import Generator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Final, Protocol
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import h11
import trio
from attrs import define, field, frozen

from crush_trio.providers.errors import ProviderRefused, ProviderUnreachable

_READ: Final = 65536
_PORTS: Final = {"http": 80, "https": 443}


@frozen
class Origin:
    """A server: connections to the same origin can stand in for each other."""

    host: str
    port: int
    secure: bool

    @property
    def authority(self) -> str:
        """Host and port, as CONNECT has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def name(self) -> str:
        """The same as a `Host` header has it: a port that goes without saying is not said."""
        usual = _PORTS["https" if self.secure else "http"]
        return (
            self.authority.removesuffix(f":{self.port}") if self.port == usual else self.authority
        )


def origin_of(url: str) -> Origin:
    """Return the server that *url* is on; an unusable URL is refused, and not repeated."""
    try:
        return _origin(urlsplit(url))
    except ValueError as exc:
        raise ProviderRefused("the base URL is not one of http:// or https:// with a host") from exc


def _origin(parts: SplitResult) -> Origin:
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(parts.scheme)
    host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode()
    return Origin(host, parts.port or _PORTS[parts.scheme], parts.scheme == "https")


class Dial(Protocol):
    """Opens connections. A test gives its own, which leads to a server in memory."""

    async def __call__(self, origin: Origin) -> trio.abc.Stream:
        """Return a new stream to *origin*, with TLS if it is secure."""
        ...


@define(eq=False)
class Dialer:
    """Connects over TCP, through the proxy that the environment names, if it names one.

    The certificates that count are those of the system, unless *trust* is given.
    """

    trust: ssl.SSLContext | None = field(default=None, repr=False)

    async def __call__(self, origin: Origin) -> trio.abc.Stream:
        """Return a new stream to *origin*; raises `ProviderUnreachable` if there is no way."""
        proxy = proxy_for(origin)
        near = origin if proxy is None else proxy.origin
        with _reaching(near):
            tcp = await trio.open_tcp_stream(near.host, near.port)
            try:
                stream: trio.abc.Stream = tcp
                if proxy is not None:
                    stream = await self._encrypted(stream, near)
                    await _tunnel(stream, origin, proxy)
                return await self._encrypted(stream, origin)
            except BaseException:
                await trio.aclose_forcefully(tcp)
                raise

    async def _encrypted(self, stream: trio.abc.Stream, peer: Origin) -> trio.abc.Stream:
        """Return *stream* with TLS on it, if *peer* wants that."""
        await trio.lowlevel.checkpoint()
        if not peer.secure:
            return stream
        if self.trust is None:  # reading the system's certificates takes a moment, once
            self.trust = await trio.to_thread.run_sync(ssl.create_default_context)
        tls = trio.SSLStream(stream, self.trust, server_hostname=peer.host, https_compatible=True)
        await tls.do_handshake()
        return tls


@contextmanager
def _reaching(origin: Origin) -> Generator[None]:
    try:
        yield
    except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError) as exc:
        reason = exc.__cause__ if isinstance(exc, trio.BrokenResourceError) else exc
        raise ProviderUnreachable(f"no connection to {origin.authority}: {reason or exc}") from exc


# ── Proxies ─────────────────────────────────────────────────────────────────────────────────────


@frozen
class Proxy:
    """A server that connects us to others, and what it wants to know about us."""

    origin: Origin
    login: str = field(default="", repr=False)


def proxy_for(origin: Origin) -> Proxy | None:
    """Return the proxy that the environment has for *origin*; none for servers on this machine."""
    proxies = getproxies_environment()
    url = proxies.get("https" if origin.secure else "http") or proxies.get("all")
    if not url or _is_local(origin.host) or proxy_bypass(origin.authority, proxies):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        own = _origin(parts)
    except ValueError:
        raise ProviderUnreachable(f"no way through a {parts.scheme} proxy, only http") from None
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(own, login)


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


async def _tunnel(stream: trio.abc.Stream, origin: Origin, proxy: Proxy) -> None:
    """Have the proxy connect *stream* to *origin*."""
    http = h11.Connection(h11.CLIENT)
    headers = [("host", origin.authority)]
    if proxy.login:
        token = b64encode(proxy.login.encode()).decode()
        headers.append(("proxy-authorization", f"Basic {token}"))
    ask = h11.Request(method="CONNECT", target=origin.authority, headers=headers)
    await stream.send_all((http.send(ask) or b"") + (http.send(h11.EndOfMessage()) or b""))
    while not isinstance(event := http.next_event(), h11.Response):
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(_READ)))
    if not 200 <= event.status_code < 300:
        raise ProviderUnreachable(
            f"the proxy {proxy.origin.authority} answered {event.status_code}",
            status=event.status_code,
        )
