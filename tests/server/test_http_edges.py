"""The edges of HTTP: what two programs may read in two ways is refused, in one way.

Every case is sent as bytes over a real socket, to the real application behind our own server. Hypercorn reads
HTTP itself; what holds there is tested in `tests/e2e/test_hypercorn.py`.
"""

from functools import partial

import pytest
import trio

from crush_trio.net.address import TcpAddress
from crush_trio.server.app import create_app
from crush_trio.server.http.serve import serve
from tests.server.in_process import open_site

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

LINE = b"GET /v1/health HTTP/1.1\r\n"
CROSS = b"Sec-Fetch-Site: cross-site\r\n"
NAVIGATION = CROSS + b"Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"
SHUTDOWN = b'{"command":"shutdown"}'


def get(target=b"/v1/health", more=b"", method=b"GET", host=b"HOST"):
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (method, target, host, more)


def post(more, body=SHUTDOWN):
    return get(b"/v1/control", more, b"POST") + body


def create(more, body):
    return get(b"/v1/workspaces", more, b"POST") + body


CREATE = b'\n{\n "path":\n\t"/x", "client_id": "00000000-0000-4000-8000-000000000001"}\n'
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CASES = {
    "as it should be": (get(), 200),
    # ── Pages of other sites
    "a page of another site": (get(more=CROSS), 403),
    "in another spelling": (get(more=b"sec-fetch-site:Cross-Site\r\n"), 403),
    "said twice": (get(more=b"Sec-Fetch-Site: none\r\n" + CROSS), 403),
    "an image of another site": (
        get(more=CROSS + b"Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n"),
        403,
    ),
    "a frame of another site": (get(more=NAVIGATION.replace(b"document", b"iframe")), 403),
    "a form of another site": (post(NAVIGATION + b"Content-Length: 22\r\n"), 403),
    "a link of another site": (get(more=NAVIGATION), 200),
    "our own page": (get(more=b"Sec-Fetch-Site: same-origin\r\n"), 200),
    "the address bar": (get(more=b"Sec-Fetch-Site: none\r\n"), 200),
    # ── Paths
    "two slashes": (get(b"//v1/health"), 404),
    "three slashes": (get(b"///v1/health"), 404),
    "two slashes inside": (get(b"/v1//health"), 404),
    "an encoded slash": (get(b"/v1%2Fhealth"), 404),
    "an encoded slash in small letters": (get(b"/v1%2fhealth"), 404),
    "an encoded slash at the beginning": (get(b"/%2Fv1/health"), 404),
    "an encoded backslash": (get(b"/v1%5Chealth"), 404),
    "a backslash": (get(b"/v1\\health"), 404),
    "a slash encoded twice": (get(b"/v1%252Fhealth"), 404),
    "dots": (get(b"/v1/../v1/health"), 404),
    "an encoded slash in a query": (get(b"/v1/health?a=%2F"), 200),
    # ── Methods
    "a method in small letters": (get(method=b"get"), 501),
    "a method in mixed letters": (get(method=b"Get"), 501),
    "a change in small letters": (
        b"post /v1/control HTTP/1.1\r\nHost: HOST\r\nContent-Length: 22\r\n\r\n" + SHUTDOWN,
        501,
    ),
    "a method that the path has not": (get(method=b"PUT"), 405),
    # ── Lines
    "bare line feeds": (get().replace(b"\r\n", b"\n"), 400),
    "one bare line feed": (get(more=b"A: b\nC: d\r\n"), 400),
    "a bare line feed at the end": (get()[:-2] + b"\n", 400),
    "a folded line": (get(more=b"A: b\r\n c\r\n"), 400),
    "a line folded with a tab": (get(more=b"A: b\r\n\tc\r\n"), 400),
    "bare line feeds in a body": (create(b"Content-Length: %d\r\n" % len(CREATE), CREATE), 200),
    "bare line feeds in a chunk": (
        create(CHUNKED, b"%x\r\n%b\r\n0\r\n\r\n" % (len(CREATE), CREATE)),
        200,
    ),
    "a bare line feed after chunks": (post(CHUNKED, b"2\r\n{}\r\n0\r\n\n"), 400),
    "a folded line after chunks": (post(CHUNKED, b"2\r\n{}\r\n0\r\nA: b\r\n c\r\n\r\n"), 400),
    # ── Hosts
    "the whole URL": (get(b"http://HOST/v1/health"), 200),
    "the whole URL in capitals": (get(b"HTTP://HOST/v1/health"), 200),
    "a URL of another host": (get(b"http://evil.example/v1/health"), 403),
    "a URL of another port": (get(b"http://127.0.0.1:1/v1/health"), 403),
    "a URL with a login": (get(b"http://HOST@evil.example/v1/health"), 403),
    "our URL and another host": (get(b"http://HOST/v1/health", host=b"evil.example"), 403),
    # ── Lengths
    "a length and chunks": (post(CHUNKED + b"Content-Length: 22\r\n"), 400),
    "chunks and a length": (post(b"Content-Length: 22\r\n" + CHUNKED), 400),
    "two lengths": (post(b"Content-Length: 22\r\nContent-Length: 21\r\n"), 400),
}


async def status_of(address, data):
    """Send *data* and return the status of the answer."""
    host = f"{address.host}:{address.port}".encode()
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await stream.send_all(data.replace(b"HOST", host))
        said = b""
        while b"\r\n" not in said:
            said += await stream.receive_some()
    return int(said.split(b" ", 2)[1])


@pytest.mark.item("L48")
async def test_what_can_be_read_in_two_ways_is_refused():
    stop, found = trio.Event(), {}
    with trio.fail_after(30):
        async with open_site() as site, trio.open_nursery() as nursery:
            app = create_app(site)
            start = partial(serve, app, [TcpAddress("127.0.0.1", 0)], shutdown=stop.wait)
            [address] = await nursery.start(start)
            for name, (data, _) in CASES.items():
                found[name] = await status_of(address, data)
            stop.set()
    assert found == {name: status for name, (_, status) in CASES.items()}
