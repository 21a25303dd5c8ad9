"""The tool `fetch`, against a server on a real socket."""

import gc
import gzip
import ssl
import subprocess
from ipaddress import ip_network

import pytest
import trio

from crush_trio.tools.base import ToolError
from crush_trio.tools.web.fetch import PAGE, REDIRECTS, SHOWN, FetchTool, Reach, open_answer
from tests.net.servers import open_proxy
from tests.tools.search_bench import search_bench
from tests.tools.web_server import open_web_server, page, redirect, zipped

pytestmark = [pytest.mark.slow, pytest.mark.real_clock]

HELLO = page("<title>T</title><h1>Hello</h1><p>a <a href='/x'>link</a>")


async def fetched(bench, url, form="markdown", **arguments):
    return await bench.run(FetchTool(bench.bench), url=url, format=form, **arguments)


async def failed(bench, url, form="markdown", **arguments):
    return await bench.error(FetchTool(bench.bench), url=url, format=form, **arguments)


async def test_page_is_returned_in_the_form_that_was_asked_for(tmp_path):
    bench = search_bench(tmp_path)
    async with open_web_server(hello=HELLO) as server:
        url = server.url("/hello")
        markdown = f"T\n\n# Hello\n\na [link]({server.url('/x')})"
        assert (await fetched(bench, url)).content == markdown
        assert (await fetched(bench, url, "text")).content == "T\n\nHello\n\na link"
        assert (await fetched(bench, url, "html")).content.startswith("<title>T</title>")


async def test_other_text_is_returned_unchanged(tmp_path):
    bench = search_bench(tmp_path)
    data = page('{"a": "<b>"}', content_type="application/json")
    async with open_web_server(data=data, empty=page("")) as server:
        assert (await fetched(bench, server.url("/data"))).content == '{"a": "<b>"}'
        assert (await fetched(bench, server.url("/empty"))).content == "(The answer is empty.)"


async def test_person_sees_the_whole_url_before_anything_is_requested(tmp_path):
    bench = search_bench(tmp_path, refuses=True)
    async with open_web_server(hello=HELLO) as server:
        url = server.url("/hello") + "?q=1"
        assert await failed(bench, url, timeout=5) == "User denied permission"
        assert server.requests == []
    [wanted] = bench.asked.wanted
    assert wanted.action == "fetch"
    assert wanted.params == {"url": url, "format": "markdown", "timeout": 5}
    assert url in wanted.description
    assert wanted.path == bench.root


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("", "url is required"),
        ("ftp://host/x", "must begin with http"),
        ("file:///etc/passwd", "must begin with http"),
        ("http://", "name a host"),
        ("host/x", "must begin with http"),
        ("http://[::1", "not a usable URL"),
        ("http://h:x/", "not a usable URL"),
        ("http://user:secret@h/", "must not hold a login"),
        ("http://h/a b", "not a usable URL"),
    ],
)
async def test_urls_that_cannot_be_fetched_are_refused_without_asking(tmp_path, url, part):
    bench = search_bench(tmp_path)
    assert part in await failed(bench, url)
    assert bench.asked.wanted == []


async def test_missing_and_wrong_arguments_are_told(tmp_path):
    bench = search_bench(tmp_path)
    tool = FetchTool(bench.bench)
    assert await bench.error(tool, format="text") == "url is required"
    assert await bench.error(tool, url="http://h") == "format is required"
    assert "format" in await bench.error(tool, url="http://h", format="pdf")


async def test_statuses_other_than_200_are_errors(tmp_path):
    bench = search_bench(tmp_path)
    async with open_web_server(gone=page("x", status=404), part=page("x", status=206)) as server:
        assert "status 404" in await failed(bench, server.url("/gone"))
        assert "status 206" in await failed(bench, server.url("/part"))


async def test_what_is_not_text_is_an_error(tmp_path):
    bench = search_bench(tmp_path)
    async with open_web_server(latin=page(b"caf\xe9"), torn=page(b"caf\xc3")) as server:
        assert "not text in UTF-8" in await failed(bench, server.url("/latin"))
        assert "not text in UTF-8" in await failed(bench, server.url("/torn"))


async def test_long_answer_is_cut_and_not_read_to_its_end(tmp_path):
    async def endless(stream):
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        while True:
            await stream.send_all("ä".encode() * 1000)

    bench = search_bench(tmp_path)
    async with open_web_server(endless=endless) as server:
        result = await fetched(bench, server.url("/endless"))
        await server.gone.wait()
    text, _, note = result.content.rpartition("\n\n")
    assert text == "ä" * (SHOWN // 2)
    assert note == "[cut after 100 KB]"
    assert result.metadata["truncated"]


async def test_more_is_read_of_a_page_than_is_shown_of_it(tmp_path):
    bench = search_bench(tmp_path)
    script = f"<script>{'x' * (3 * SHOWN)}</script>"
    pages = {"app": page(script + "<p>end"), "vast": page("<p>a" * (PAGE // 4 + 1))}
    async with open_web_server(**pages) as server:
        assert (await fetched(bench, server.url("/app"))).content == "end"
        vast = await fetched(bench, server.url("/vast"))
    assert len(vast.content.encode()) < SHOWN + 100
    assert vast.metadata["truncated"]


async def test_compressed_answer_is_inflated_within_the_limit(tmp_path):
    bench = search_bench(tmp_path)
    bomb = gzip.compress(bytes(50_000_000))
    pages = {
        "small": zipped(b"<p>small"),
        "bomb": page(bomb, content_type="text/plain", content_encoding="gzip"),
        "torn": page(gzip.compress(b"x" * 5000)[:-20], content_encoding="gzip"),
        "junk": page(b"junk", content_encoding="gzip"),
        "br": page(b"x", content_encoding="br"),
    }
    async with open_web_server(**pages) as server:
        assert (await fetched(bench, server.url("/small"))).content == "small"
        assert len((await fetched(bench, server.url("/bomb"))).content) < SHOWN + 100
        assert "in the middle" in await failed(bench, server.url("/torn"))
        assert "cannot be decompressed" in await failed(bench, server.url("/junk"))
        assert "not asked for: br" in await failed(bench, server.url("/br"))
        assert server.requests[0][1][b"accept-encoding"] == b"gzip, deflate"


async def test_redirects_are_followed_a_while(tmp_path):
    bench = search_bench(tmp_path)
    pages = {"a": redirect("/hello"), "hello": HELLO, "loop": redirect("/loop")}
    async with open_web_server(**pages) as server:
        result = await fetched(bench, server.url("/a"), "text")
        assert result.content.startswith("T\n\nHello")
        assert result.metadata["url"] == server.url("/hello")
        server.requests.clear()
        assert f"more than {REDIRECTS} times" in await failed(bench, server.url("/loop"))
        assert len(server.requests) == REDIRECTS + 1


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("file:///etc/passwd", "must begin with http"),
        ("http://169.254.169.254/latest/", "link-local or metadata"),
        ("http://[::ffff:169.254.169.254]/", "link-local or metadata"),
        ("http://metadata.google.internal/", "link-local or metadata"),
        ("http://[bad/", "not a usable URL"),
    ],
)
async def test_redirects_to_where_nobody_should_go_are_refused(tmp_path, target, part):
    bench = search_bench(tmp_path)
    async with open_web_server(a=redirect(target)) as server:
        assert part in await failed(bench, server.url("/a"))


async def test_address_is_judged_before_it_is_connected_to():
    here = Reach((ip_network("127.0.0.0/8"), ip_network("::1/128")))
    async with open_web_server(a=HELLO) as server:
        url = server.url("/a").replace("127.0.0.1", "localhost")
        with pytest.raises(ToolError, match="link-local or metadata"):
            async with open_answer(url, {}, reach=here):
                pass
        assert server.requests == []


async def test_cookies_and_environment_do_not_leak(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    bench = search_bench(tmp_path)
    hop = page(status=302, location="/hello", set_cookie="a=b")
    async with open_web_server(hop=hop, hello=HELLO) as server:
        await fetched(bench, server.url("/hop"))
        assert {name.lower() for name in server.requests[1][1]} == {
            *(b"host", b"user-agent", b"accept", b"accept-encoding", b"connection"),
        }


async def test_answer_that_does_not_come_ends_with_the_time(tmp_path):
    async def silent(stream):
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")

    bench = search_bench(tmp_path)
    async with open_web_server(silent=silent) as server:
        assert "within 1 seconds" in await failed(bench, server.url("/silent"), timeout=1)
        await server.gone.wait()


async def test_cancelled_fetch_hangs_up_at_once(tmp_path):
    sent = trio.Event()

    async def silent(stream):
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
        sent.set()

    bench = search_bench(tmp_path)
    async with open_web_server(silent=silent) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failed, bench, server.url("/silent"))
            await sent.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            await server.gone.wait()
    gc.collect()  # a generator left behind would warn now


async def test_server_that_is_not_there_or_talks_nonsense_is_an_error(tmp_path):
    async def nonsense(stream):
        await stream.send_all(b"nonsense\r\n\r\n")

    async def short(stream):
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
        await stream.aclose()

    async def silent(stream):
        await stream.aclose()

    bench = search_bench(tmp_path)
    closed = "the connection was closed before the response was complete"
    async with open_web_server(nonsense=nonsense, short=short, silent=silent) as server:
        assert "cannot fetch" in await failed(bench, server.url("/nonsense"))
        for path in ("/short", "/silent"):
            url = server.url(path)
            assert f"cannot fetch {url}: {closed}" in await failed(bench, url)
        url = server.url("/")
    assert "cannot fetch" in await failed(bench, url)
    assert "cannot fetch" in await failed(bench, url.replace("http:", "https:"))


# ── Proxies and TLS ─────────────────────────────────────────────────────────────────────────────


async def test_proxy_of_the_workspace_is_used_and_its_redirects_are_judged(tmp_path):
    bench = search_bench(tmp_path)
    async with open_proxy(0) as (proxy, port):
        bench.bench.env = {"http_proxy": f"http://127.0.0.1:{port}"}
        assert (await fetched(bench, "http://page.test/x")).content == "ok"
        assert "metadata" in await failed(bench, "http://169.254.169.254/latest")
    assert [head[0] for head in proxy.asked] == ["GET http://page.test/x HTTP/1.1"]


def certificate(tmp_path):
    """Return a file with the certificate and the key of a server on this machine."""
    path = tmp_path / "server.pem"
    subject = ("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1")
    words = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject)
    files = ("-keyout", str(path), "-out", str(tmp_path / "cert.pem"))
    subprocess.run((*words, *files), check=True, stderr=subprocess.DEVNULL)
    path.write_bytes(path.read_bytes() + (tmp_path / "cert.pem").read_bytes())
    return path


@pytest.mark.needs("openssl")
async def test_certificates_are_checked(tmp_path, monkeypatch):
    pem = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    bench = search_bench(tmp_path)
    async with open_web_server(tls=tls, hello=HELLO) as server:
        assert "certificate verify failed" in await failed(bench, server.url("/hello"))
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        assert "certificate verify failed" in await failed(bench, server.url("/hello"))
        bench.bench.env = {"SSL_CERT_FILE": str(pem)}
        assert (await fetched(bench, server.url("/hello"), "text")).content.startswith("T\n")
