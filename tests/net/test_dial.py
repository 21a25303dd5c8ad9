"""Streams over real sockets, TLS and proxies: whatever is opened is returned or closed at once."""

import os
import ssl
import subprocess
from contextlib import closing
from ipaddress import ip_address
from pathlib import PurePosixPath

import pytest
import trio
import trio.testing
from attrs import define, field

from crush_trio.net.address import Origin, UnixAddress
from crush_trio.net.client import READ_MOST, Request, open_http_client
from crush_trio.net.dial import Dialer, FixedUnixDialer, UnixDialer, ViaProxy
from crush_trio.net.errors import AddressRefused, ConnectFailed
from tests.net.servers import make_certificate, open_deaf_server, open_proxy, open_secure_server

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

AT_ONCE = 0.05
ELSEWHERE = Origin("model.test", 443, secure=True)


def here(port, *, secure=False, host="127.0.0.1"):
    return Origin(host, port, secure)


async def free_port():
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    return port


async def ok(stream):
    """Answer one request."""
    async with stream:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")


async def fetched(dial, origin, target="/"):
    async with open_http_client(dial) as http:
        request = Request(method="GET", origin=origin, target=target)
        async with http.open(request) as response:
            return await response.read(100)


# ── TCP and Unix sockets ────────────────────────────────────────────────────────────────────────


async def test_a_server_that_is_not_there_is_named_with_the_reason():
    port = await free_port()
    with pytest.raises(ConnectFailed, match=f"no connection to 127.0.0.1:{port}: ") as failed:
        await Dialer()(here(port))
    assert failed.value.reason


@pytest.mark.parametrize("host", ["a..b", "no-such-host.invalid"])
async def test_a_host_that_cannot_be_looked_up_is_not_connected_to(host):
    with pytest.raises(ConnectFailed):
        await Dialer()(Origin(host, 80, secure=False))


async def test_a_unix_socket_is_connected_to_and_a_missing_one_is_named(tmp_path):
    path = tmp_path / "s"
    with pytest.raises(ConnectFailed, match="No such file"):
        await UnixDialer(UnixAddress(PurePosixPath(path)))(ELSEWHERE)
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.bind(str(path))
    sock.listen()
    listener = trio.SocketListener(sock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, ok, [listener])
        assert await fetched(UnixDialer(UnixAddress(PurePosixPath(path))), ELSEWHERE) == b"ok"
        nursery.cancel_scope.cancel()


async def listener_at(path):
    sock = trio.socket.socket(trio.socket.AF_UNIX)
    await sock.bind(str(path))
    sock.listen()
    return trio.SocketListener(sock)


async def test_a_fixed_dialer_stays_with_its_server_until_that_ends_whatever_happens_to_the_file(
    tmp_path,
):
    """The streams of a client were at one server and its requests at another."""
    path = tmp_path / "s"
    with closing(FixedUnixDialer(UnixAddress(PurePosixPath(path)))) as dial:
        with pytest.raises(ConnectFailed, match="No such file"):
            await dial()

        async def reached(listener):
            async with await dial(), await listener.accept():
                return True

        async with await listener_at(path) as first:
            assert await reached(first)
            path.unlink()
            assert await reached(first)
            async with await listener_at(path) as second:
                assert await reached(first)
                await first.aclose()
                assert await reached(second)
                path.unlink()
                await second.aclose()
                with pytest.raises(ConnectFailed):
                    await dial()


async def test_a_socket_with_too_many_waiting_clients_is_waited_for(tmp_path):
    """The stream was not connected, and the socket seemed to belong to another user."""
    path = str(tmp_path / "s")
    with trio.socket.socket(trio.socket.AF_UNIX) as sock:
        await sock.bind(path)
        sock.listen(0)
        dial = UnixDialer(UnixAddress(PurePosixPath(path), owner=os.getuid()))
        async with await dial(ELSEWHERE), trio.open_nursery() as nursery:
            nursery.start_soon(accepted_twice, sock)
            async with await dial(ELSEWHERE) as stream:
                assert await stream.receive_some() == b"hello"


async def accepted_twice(sock):
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(2):
        taken, _ = await sock.accept()
        async with trio.SocketStream(taken) as stream:
            await stream.send_all(b"hello")


# ── Checked addresses ───────────────────────────────────────────────────────────────────────────


@define
class Check:
    """Allows addresses that *allows* returns True for, and takes note of all."""

    allows: object = lambda _: True
    names: list = field(factory=list)
    addresses: list = field(factory=list)
    reached: list = field(factory=list)

    def check_name(self, host):
        self.names.append(host)

    def check_address(self, address):
        self.addresses.append(address)
        if not self.allows(address):
            raise AddressRefused(address)

    def connected(self, address):
        self.reached.append(address)


async def test_only_an_address_that_was_checked_is_connected_to():
    async with open_deaf_server() as deaf:
        refusing = Check(lambda _: False)
        with pytest.raises(AddressRefused, match=r"127\.0\.0\.1"):
            await Dialer(check=refusing)(here(deaf.port))
        assert refusing.reached == []
        allowing = Check()
        stream = await Dialer(check=allowing)(here(deaf.port, host="localhost"))
        await stream.aclose()
        assert allowing.names == ["localhost"]
        assert "127.0.0.1" in allowing.addresses
        assert allowing.reached == ["127.0.0.1"]
        await deaf.ended(1)
        assert len(deaf.endings) == 1


class Resolver(trio.abc.HostnameResolver):
    """Resolves every name to these addresses, another row of them each time."""

    def __init__(self, *rows):
        self.rows = list(rows)

    async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):  # noqa: A002
        await trio.lowlevel.checkpoint()
        kinds = {4: trio.socket.AF_INET, 6: trio.socket.AF_INET6}
        return [
            (kinds[ip_address(each).version], trio.socket.SOCK_STREAM, 0, "", (each, port))
            for each in self.rows.pop(0)
        ]

    async def getnameinfo(self, sockaddr, flags):
        raise NotImplementedError


@pytest.fixture
def resolve():
    def use(*rows):
        trio.socket.set_custom_hostname_resolver(Resolver(*rows))

    return use


async def test_a_name_that_changes_its_address_after_the_check_gains_nothing(resolve):
    async with open_deaf_server() as deaf:
        resolve(["127.0.0.1"], ["127.0.0.2"])
        check = Check()
        stream = await Dialer(check=check)(here(deaf.port, host="rebinding.test"))
        assert stream.socket.getpeername()[0] == "127.0.0.1"
        assert (check.addresses, check.reached) == (["127.0.0.1"], ["127.0.0.1"])
        await stream.aclose()


async def test_addresses_that_are_refused_are_passed_over(resolve):
    async with open_deaf_server() as deaf:
        resolve(["169.254.169.254", "127.0.0.1"])
        check = Check(lambda address: address != "169.254.169.254")
        stream = await Dialer(check=check)(here(deaf.port, host="mixed.test"))
        assert check.reached == ["127.0.0.1"]
        await stream.aclose()


async def test_the_next_address_is_tried_if_one_does_not_answer(resolve):
    async with open_deaf_server() as deaf:
        resolve(["127.0.0.9", "127.0.0.1"])  # the server listens at the second one only
        check = Check()
        stream = await Dialer(check=check)(here(deaf.port, host="two.test"))
        assert check.reached == ["127.0.0.1"]
        await stream.aclose()


# ── TLS ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_a_cancel_in_a_handshake_closes_the_connection_at_once():
    async with open_deaf_server() as deaf:
        dial = Dialer(trust=ssl.create_default_context())
        for n in range(10):
            with trio.move_on_after(0.01) as scope:
                await dial(here(deaf.port, secure=True))
            assert scope.cancelled_caught
            with trio.fail_after(5):
                await deaf.ended(n + 1)
            assert deaf.endings[n] - scope.deadline < AT_ONCE


@pytest.fixture
def folder_of_certificates(certificate, tmp_path):
    """Return a directory with the certificate, under the name that OpenSSL looks for."""
    command = ["openssl", "x509", "-noout", "-hash", "-in", str(certificate[1])]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / f"{name}.0").symlink_to(certificate[1])
    return tmp_path


@pytest.mark.needs("openssl")
async def test_certificates_are_those_of_the_environment_and_not_of_the_process(
    certificate, folder_of_certificates, monkeypatch
):
    file, folder = str(certificate[1]), str(folder_of_certificates)
    async with open_secure_server(certificate, ok) as port:
        origin = here(port, secure=True, host="localhost")
        monkeypatch.setenv("SSL_CERT_FILE", file)
        with pytest.raises(ConnectFailed, match=r"not trusted: .*in SSL_CERT_FILE") as refused:
            await fetched(Dialer(), origin)
        assert refused.value.permanent
        monkeypatch.delenv("SSL_CERT_FILE")
        assert await fetched(Dialer({"SSL_CERT_FILE": file}), origin) == b"ok"
        assert await fetched(Dialer({"SSL_CERT_DIR": folder}), origin) == b"ok"


@pytest.mark.needs("openssl")
async def test_a_certificate_for_another_host_is_not_the_issuers_fault(certificate, resolve):
    resolve(["127.0.0.1"])
    dial = Dialer(trust=ssl.create_default_context(cafile=certificate[1]), check=Check())
    async with open_secure_server(certificate, ok) as port:
        with pytest.raises(ConnectFailed, match=r"not trusted: .*mismatch") as refused:
            await dial(here(port, secure=True, host="two.test"))
    assert refused.value.permanent
    assert "SSL_CERT_FILE" not in str(refused.value)


async def test_certificates_that_cannot_be_read_are_named(tmp_path):
    async with open_deaf_server() as deaf:
        missing = str(tmp_path / "missing.pem")
        with pytest.raises(ConnectFailed, match=r"missing\.pem cannot be read: No such file"):
            await Dialer({"SSL_CERT_FILE": missing})(here(deaf.port, secure=True))


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
UNASKED = OK[:-2] + b"no"


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("records", [1, 2])
async def test_a_response_without_a_request_is_not_the_answer_to_the_next_one(certificate, records):
    async def serve(tls):
        """Send two responses in one segment for the first request, so that one read gets both."""
        await tls.receive_some()
        if records == 1:
            await tls.send_all(OK + UNASKED)
        else:
            tls._ssl_object.write(OK)  # stays in the stream until the next send
            await tls.send_all(UNASKED)
        while await tls.receive_some():
            await tls.send_all(UNASKED)

    context = ssl.create_default_context(cafile=certificate[1])
    async with open_secure_server(certificate, serve) as port:
        # Reading exactly one response leaves the other decrypted in the TLS stream.
        read_most = len(OK) if records == 1 else READ_MOST
        request = Request(method="GET", origin=here(port, secure=True), target="/")
        async with open_http_client(Dialer(trust=context), read_most=read_most) as http:
            for _ in range(2):
                async with http.open(request) as response:
                    assert await response.read(100) == b"ok"
                assert http.idle == 1


# ── Proxies ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.needs("openssl")
async def test_a_secure_server_is_reached_through_a_tunnel(certificate):
    context = ssl.create_default_context(cafile=certificate[1])
    context.check_hostname = False
    async with (
        open_secure_server(certificate, ok) as port,
        open_proxy(port) as (proxy, proxy_port),
    ):
        environment = {"HTTPS_PROXY": f"http://me:pass%20word@127.0.0.1:{proxy_port}"}
        check = Check()
        dial = Dialer(environment, trust=context, check=check)
        assert await fetched(dial, ELSEWHERE) == b"ok"
        assert proxy.asked == [
            [
                "CONNECT model.test:443 HTTP/1.1",
                "host: model.test:443",
                "proxy-authorization: Basic bWU6cGFzcyB3b3Jk",
                "",
                "",
            ]
        ]
        assert (check.names, check.addresses, check.reached) == (["model.test"], [], [None])


async def test_a_plain_server_is_asked_for_at_the_proxy():
    async with open_proxy(0) as (proxy, proxy_port):
        dial = Dialer({"http_proxy": f"http://127.0.0.1:{proxy_port}"})
        origin = Origin("model.test", 80, secure=False)
        near = await dial(origin)
        assert isinstance(near, ViaProxy)
        await near.stream.aclose()
        assert await fetched(dial, origin, "/a?b") == b"ok"
        assert proxy.asked == [["GET http://model.test/a?b HTTP/1.1", "host: model.test", "", ""]]


async def test_a_proxy_that_refuses_is_named_without_its_password():
    async with open_proxy(0, status=b"407 Who are you") as (_, port):
        dial = Dialer({"https_proxy": f"http://me:password@127.0.0.1:{port}"})
        with pytest.raises(ConnectFailed, match=f"127.0.0.1:{port} answered 407") as refused:
            await dial(ELSEWHERE)
        assert refused.value.status == 407
        assert "password" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "permanent"), [(b"403 Forbidden", True), (b"405 No", True), (b"502 Later", False)]
)
async def test_a_proxy_without_a_tunnel_is_told_with_the_next_step(status, permanent):
    async with open_proxy(0, status=status) as (_, port):
        with pytest.raises(ConnectFailed) as refused:
            await Dialer({"https_proxy": f"http://127.0.0.1:{port}"})(ELSEWHERE)
    said = str(refused.value)
    assert f"the proxy 127.0.0.1:{port} answered {status[:3].decode()} to CONNECT" in said
    assert ("list the host in NO_PROXY" in said, refused.value.permanent) == (permanent, permanent)


async def test_a_cancel_while_a_proxy_thinks_closes_the_connection_at_once():
    async with open_deaf_server() as deaf:
        with trio.move_on_after(0.01) as scope:
            await Dialer({"https_proxy": f"http://127.0.0.1:{deaf.port}"})(ELSEWHERE)
        assert scope.cancelled_caught
        with trio.fail_after(5):
            await deaf.ended(1)
