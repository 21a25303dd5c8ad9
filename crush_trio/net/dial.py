"""Opens streams for the HTTP client: over TCP or a Unix socket, with TLS, through proxies, to checked addresses.

Proxies and certificates are those of an environment that is passed in, usually that of a workspace.
Nothing is read from the process: its proxies are the server operator's, not the workspace's.

Invariant: a stream that is opened here is returned or closed, even if a cancel comes between its first
packet and the end of the TLS handshake.
"""

import os
import ssl
from base64 import b64encode
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from pathlib import Path
from socket import SOCK_STREAM
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import trio
from attrs import define, evolve, field, frozen

from crush_trio.net.address import PORTS, Origin, UnixAddress, origin_of_parts
from crush_trio.net.errors import AddressRefused, ConnectFailed, ConnectionLost, NotHttp
from crush_trio.net.http1 import Http1
from crush_trio.net.unix_socket import (
    check_listener,
    check_private,
    credentials_of,
    open_unix_stream,
)

NEXT_ADDRESS: Final = 3.0
"""Seconds after which the next of a host's checked addresses is tried."""

_READ: Final = 65536
_UNTRUSTED: Final = "its certificate is not trusted"
_NAME_CA: Final = "; if it is right, name the file with your certificate authority in SSL_CERT_FILE"
_UNKNOWN_ISSUER: Final = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's codes for an issuer that is not trusted; the others are about names and dates."""

_NO_TLS: Final = "it does not speak TLS; write http:// if that is intended"
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})
_NO_TUNNEL: Final = "allow it there, or list the host in NO_PROXY"
_OTHER_PROXY: Final = "name another one, or list the host in NO_PROXY"
_FAILURES: Final = (OSError, UnicodeError, trio.BrokenResourceError, NotHttp, ConnectionLost)


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


@frozen(eq=False)
class ViaProxy:
    """A stream to a proxy that forwards plain HTTP: requests on it name the whole URL."""

    stream: trio.abc.Stream
    proxy: Proxy


class Dial(Protocol):
    """Opens connections. A test passes its own, which leads to a server in memory."""

    async def __call__(self, origin: Origin) -> trio.abc.Stream | ViaProxy:
        """Return a new stream to *origin*, with TLS if it is secure; raises `ConnectFailed`."""
        ...


class AddressCheck(Protocol):
    """Decides which hosts and addresses may be connected to. Refuses by raising `AddressRefused`."""

    def check_name(self, host: str) -> None:
        """Check a host of a URL before it is looked up."""
        ...

    def check_address(self, address: str) -> None:
        """Check an address that a host was resolved to, before a connection to it is opened."""
        ...

    def connected(self, address: str | None) -> None:
        """Record that a request is sent to *address*; None if a proxy resolves the host."""
        ...


@define(eq=False)
class Dialer:
    """Connects over TCP, with the proxies and certificates that *environment* names.

    `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the system's certificates; *trust* replaces both. With a
    *check*, only addresses that it allows are connected to. A proxy itself is not checked: it was
    configured by the user, and it is the proxy that resolves the host then.
    """

    environment: Mapping[str, str] = field(factory=dict, repr=False)
    trust: ssl.SSLContext | None = field(default=None, repr=False)
    check: AddressCheck | None = field(default=None, repr=False)

    async def __call__(self, origin: Origin) -> trio.abc.Stream | ViaProxy:
        """Return a new stream to *origin*; raises `AddressRefused` if the check does."""
        if self.check is not None:
            self.check.check_name(origin.host)
        proxy = proxy_for(origin, self.environment)
        near = origin if proxy is None else proxy.origin
        with dialing(near.authority):
            tcp = await self._open_tcp(near, checked=proxy is None)
            try:
                stream = await self._encrypted(tcp, near)
                if proxy is None:
                    return stream
                if not origin.secure:
                    return ViaProxy(stream, proxy)
                await open_tunnel(stream, origin, proxy)
                with dialing(origin.authority):  # the certificate is not the proxy's
                    return await self._encrypted(stream, origin)
            except BaseException:
                await trio.aclose_forcefully(tcp)
                raise

    async def _open_tcp(self, near: Origin, *, checked: bool) -> trio.SocketStream:
        if self.check is None:
            return await trio.open_tcp_stream(near.host, near.port)
        if checked:
            return await _open_checked_tcp(near, self.check)
        tcp = await trio.open_tcp_stream(near.host, near.port)
        self.check.connected(None)
        return tcp

    async def _encrypted(self, stream: trio.abc.Stream, peer: Origin) -> trio.abc.Stream:
        """Return *stream* with TLS on it, if *peer* wants that."""
        await trio.lowlevel.checkpoint()
        if not peer.secure:
            return stream
        if self.trust is None:  # reading the certificates takes a moment, once per dialer
            self.trust = await trio.to_thread.run_sync(tls_context, self.environment)
        tls = trio.SSLStream(stream, self.trust, server_hostname=peer.host, https_compatible=True)
        await tls.do_handshake()
        return tls


@define(eq=False)
class UnixDialer:
    """Connects to a Unix socket, whatever the origin; raises `ForeignSocket` if it is not its owner's."""

    address: UnixAddress

    async def __call__(self, origin: Origin) -> trio.abc.Stream:
        """Return a new stream to the socket."""
        return await _open_unix(self.address)


@define(eq=False)
class FixedUnixDialer:
    """Connects as `UnixDialer` does, and always to the same server for as long as that server listens.

    If the socket file is deleted, another server may listen under its name; a client with half of its
    connections there would wait for itself. So the file is kept open: a socket can be reached through a
    descriptor of its file, also when the name is gone. Close it at the end.
    """

    address: UnixAddress
    _file: int | None = field(default=None, init=False)

    async def __call__(self, origin: Origin | None = None) -> trio.abc.Stream:
        """Return a new stream to the server; look for another one only if this one has ended."""
        await trio.lowlevel.checkpoint()
        if (file := self._file) is not None:
            try:
                return await self._open(file)
            except ConnectFailed:
                if self._file == file:  # another task may have looked meanwhile
                    self.close()
        if self._file is None:
            with dialing(str(self.address.path)):
                self._file = os.open(self.address.path, os.O_PATH | os.O_CLOEXEC)
        return await self._open(self._file)

    async def _open(self, file: int) -> trio.abc.Stream:
        path = f"/proc/self/fd/{file}"
        return await _open_unix(self.address, path if os.access(path, os.F_OK) else None)

    def close(self) -> None:
        """Close the descriptor; streams stay open."""
        if self._file is not None:
            os.close(self._file)
        self._file = None


async def _open_unix(address: UnixAddress, path: str | None = None) -> trio.SocketStream:
    """Connect to the socket of *address*, by another *path* if given, and check that it is the owner's."""
    owner = address.owner
    with dialing(str(address.path)):
        if owner is not None and address.private:
            check_private(address.path.parent, owner)
        stream = await open_unix_stream(path or str(address.path))
        try:
            if owner is not None:
                check_listener(address.path, credentials_of(stream.socket), owner)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return stream


@contextmanager
def dialing(peer: str) -> Generator[None]:
    """Turn what goes wrong while connecting to *peer* into `ConnectFailed`."""
    try:
        yield
    except _FAILURES as exc:
        cause = exc.__cause__ if isinstance(exc, trio.BrokenResourceError) else exc
        reason, permanent = str(cause or exc), False
        if isinstance(cause, ssl.SSLCertVerificationError):
            advice = _NAME_CA if cause.verify_code in _UNKNOWN_ISSUER else ""
            said = cause.verify_message.rstrip(".")
            reason, permanent = f"{_UNTRUSTED}: {said}{advice}", True
        elif isinstance(cause, ssl.SSLError) and cause.reason in _NOT_TLS:
            reason, permanent = _NO_TLS, True
        raise ConnectFailed(
            f"no connection to {peer}: {reason}", reason=reason, permanent=permanent
        ) from exc


def tls_context(environment: Mapping[str, str]) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates that *environment* names, else the system's.

    OpenSSL itself would read these variables from the process. Blocks: call it in a thread. Raises
    `ConnectFailed` if certificates are named that cannot be read.
    """
    system = ssl.get_default_verify_paths()
    file = environment.get("SSL_CERT_FILE") or _if_there(system.openssl_cafile)
    folder = environment.get("SSL_CERT_DIR") or _if_there(system.openssl_capath)
    try:
        context = ssl.create_default_context(cafile=file, capath=folder)
    except OSError as exc:  # ssl.SSLError is one
        reason = f"the certificates in {file or folder} cannot be read: {exc.strerror or exc}"
        raise ConnectFailed(reason, reason=reason, permanent=True) from exc
    context.set_alpn_protocols(["http/1.1"])
    return context


def _if_there(path: str) -> str | None:
    return path if Path(path).exists() else None


# ── Checked addresses ───────────────────────────────────────────────────────────────────────────


async def _open_checked_tcp(origin: Origin, check: AddressCheck) -> trio.SocketStream:
    """Connect to the first address of *origin* that *check* allows and that answers.

    The host is resolved once, and the connection goes to an address that was checked: a name that
    resolves to another address a moment later does not matter. Addresses are tried one after the other;
    `trio.open_tcp_stream` would resolve the host itself.
    """
    found = await trio.socket.getaddrinfo(origin.host, origin.port, type=SOCK_STREAM)
    allowed = _allowed([str(where[0]) for *_, where in found], check)
    failure: OSError | None = None
    for number, address in enumerate(allowed, 1):
        patience = NEXT_ADDRESS if number < len(allowed) else float("inf")
        try:
            with trio.move_on_after(patience):
                tcp = await trio.open_tcp_stream(address, origin.port)
                check.connected(address)
                return tcp
        except OSError as exc:
            failure = exc
    raise failure or TimeoutError("no address answers")


def _allowed(addresses: list[str], check: AddressCheck) -> list[str]:
    """Return the addresses that *check* allows; raises its refusal if that is none of them."""
    allowed, refusal = [], AddressRefused("the host has no address")
    for address in dict.fromkeys(addresses):
        try:
            check.check_address(address)
        except AddressRefused as exc:
            refusal = exc
        else:
            allowed.append(address)
    if not allowed:
        raise refusal
    return allowed


# ── Proxies ─────────────────────────────────────────────────────────────────────────────────────


def proxy_for(origin: Origin, environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy that *environment* names for *origin*, None to connect directly.

    `HTTPS_PROXY` or `HTTP_PROXY` counts, else `ALL_PROXY`; each in lower case first. Servers on this
    machine and hosts in `NO_PROXY` are connected to directly. Raises `ConnectFailed` for a proxy that
    does not speak HTTP, and for a variable that is not a URL.
    """
    name, url = _proxy_variable(origin.scheme, environment)
    if not url or _is_local(origin.host) or _bypassed(origin, _variable("no_proxy", environment)):
        return None
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme and parts.scheme not in PORTS:
            reason = f"no way through the {parts.scheme} proxy in {name}, only http; {_OTHER_PROXY}"
            raise ConnectFailed(reason, permanent=True)
        own = origin_of_parts(parts)
    except ValueError:
        # The text of these errors would repeat parts of the URL, which may contain a password.
        reason = f"the proxy in {name} is not a usable URL; write http://host:port"
        raise ConnectFailed(reason, reason=reason, permanent=True) from None
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
        refused = 400 <= head.status < 500
        answer = f"the proxy {proxy.origin.authority} answered {head.status} to CONNECT"
        raise ConnectFailed(
            f"{answer} {origin.authority}; {_NO_TUNNEL}" if refused else answer,
            status=head.status,
            permanent=refused or head.status == HTTPStatus.NOT_IMPLEMENTED,
        )


def _proxy_variable(scheme: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and the value of the variable with the proxy for *scheme*; empty if there is none."""
    for lower in (f"{scheme}_proxy", "all_proxy"):
        if url := _variable(lower, environment):
            return lower if lower in environment else lower.upper(), url
    return "", ""


def _variable(name: str, environment: Mapping[str, str]) -> str:
    """Return a variable in lower case if it is set, even to nothing, else in upper case."""
    return environment.get(name, environment.get(name.upper(), "")).strip()


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _bypassed(origin: Origin, no_proxy: str) -> bool:
    """Whether *no_proxy* lists the origin: `*`, a domain, a host with a port, an address, a network.

    Entries are separated by commas or blanks. A dot at the end of a host has no meaning here.
    """
    listed = no_proxy.lower().replace(",", " ").split()
    host = origin.host.lower().removesuffix(".")
    authority = evolve(origin, host=host).authority
    return "*" in listed or any(
        entry in {host, authority}
        or host.endswith(f".{entry}")
        or authority.endswith(f".{entry}")
        or _contains(entry, host)
        for entry in _entries(listed)
    )


def _entries(listed: list[str]) -> Iterator[str]:
    for raw in listed:
        entry = raw.removeprefix("*").strip(".")
        if entry:
            yield entry


def _contains(network: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(network.strip("[]"), strict=False)
    except ValueError:
        return False
