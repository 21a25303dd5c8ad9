"""Proxies: which one an environment names for an origin, and the tunnel through it.

The environment is a mapping that is passed in, usually that of a workspace. Nothing is read from the
process: its proxies are the server operator's, not the workspace's.
"""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import unquote, urlsplit

import trio
from attrs import field, frozen

from crush_trio.net.address import Origin, origin_of_parts
from crush_trio.net.errors import ConnectFailed
from crush_trio.net.http1 import Http1

_READ: Final = 65536


@frozen
class Proxy:
    """An HTTP proxy. `login` is `name:password`, empty if it needs none."""

    origin: Origin
    login: str = field(default="", repr=False)

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers that the proxy itself wants."""
        if not self.login:
            return []
        token = b64encode(self.login.encode()).decode()
        return [("proxy-authorization", f"Basic {token}")]


def proxy_for(origin: Origin, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that *environment* names for *origin*, None to connect directly.

    `HTTPS_PROXY` or `HTTP_PROXY` counts, else `ALL_PROXY`; each in lower case first. Servers on this
    machine and hosts in `NO_PROXY` are connected to directly. Raises `ConnectFailed` for a proxy that
    does not speak HTTP.
    """
    url = _variable(f"{origin.scheme}_proxy", environment) or _variable("all_proxy", environment)
    if not url or _is_local(origin.host) or _bypassed(origin, _variable("no_proxy", environment)):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        own = origin_of_parts(parts)
    except ValueError:
        raise ConnectFailed(f"no way through a {parts.scheme} proxy, only http") from None
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(own, login)


async def open_tunnel(stream: trio.abc.Stream, origin: Origin, proxy: Proxy) -> None:
    """Have *proxy*, at the other end of *stream*, connect it to *origin*."""
    http = Http1()
    headers = [("host", origin.authority), *proxy.headers()]
    await stream.send_all(http.request("CONNECT", origin.authority, headers))
    while (head := http.head()) is None:
        http.feed(bytes(await stream.receive_some(_READ)))
    if not 200 <= head.status < 300:
        raise ConnectFailed(
            f"the proxy {proxy.origin.authority} answered {head.status}", status=head.status
        )


# ── The environment ─────────────────────────────────────────────────────────────────────────────


def _variable(name: str, environment: Mapping[str, str]) -> str:
    """Return a variable in lower case if it is set, even to nothing, else in upper case."""
    return environment.get(name, environment.get(name.upper(), "")).strip()


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _bypassed(origin: Origin, no_proxy: str) -> bool:
    """Whether *no_proxy* lists the origin: `*`, a domain, a host with a port, an address, a network."""
    if no_proxy == "*":
        return True
    host = origin.host.lower()
    return any(
        entry in {host, origin.authority.lower()}
        or host.endswith(f".{entry}")
        or origin.authority.lower().endswith(f".{entry}")
        or _contains(entry, host)
        for entry in _entries(no_proxy)
    )


def _entries(no_proxy: str) -> Iterator[str]:
    for raw in no_proxy.lower().split(","):
        entry = raw.strip().removeprefix("*").lstrip(".")
        if entry:
            yield entry


def _contains(network: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(network.strip("[]"), strict=False)
    except ValueError:
        return False
