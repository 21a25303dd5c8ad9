"""MCP servers at an address: streamable HTTP and SSE, over real sockets."""

from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat

import pytest
import trio
from attrs import define, field
from hypercorn.config import Config
from hypercorn.trio import serve

from tests.config.homes import SECRET, Home
from tests.integrations.mcp_desk import make_server
from tests.integrations.mcp_real import open_real, use

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_clock,
    pytest.mark.item("I.4"),
    # The package leaves the iterators of closed answers to the garbage collector.
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),
]


SESSION = b"mcp-session-id"


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@define(eq=False)
class Site:
    """A server at an address; it takes note of the requests, and may want a password."""

    app: object
    password: str = ""
    requests: list = field(factory=list)
    forgotten: set = field(factory=set)
    url: str = ""

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        self.requests.append((scope["method"], headers))
        if self.password and headers.get(b"authorization") != self.password.encode():
            return await refuse(send, 401)
        if headers.get(SESSION) in self.forgotten:
            return await refuse(send, 404)
        return await self.app(scope, receive, send)

    def forget(self):
        """Know none of the sessions any more that were used so far."""
        self.forgotten = {headers[SESSION] for _, headers in self.requests if SESSION in headers}

    def methods(self):
        return [method for method, _ in self.requests]


async def refuse(send, status):
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b"who are you?"})


@asynccontextmanager
async def served(site):
    """Serve an application on a port of its own."""
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.graceful_timeout = 0
    config.errorlog = None
    async with trio.open_nursery() as nursery:
        [bound] = await nursery.start(partial(serve, site, config, mode="asgi"))
        site.url = f"{bound}/mcp"
        yield site
        nursery.cancel_scope.cancel()


def at(site, **more):
    return {"mcp": {"desk": {"type": "http", "url": site.url, **more}}}


async def test_a_server_at_an_address_is_talked_to_and_told_when_it_is_over(home):
    async with served(Site(make_server().streamable_http_app())) as site:
        home.write(home.user_file, at(site))
        async with open_real(home) as place:
            await place.servers.settled()
            assert place.servers.states()["desk"].error == ""
            assert place.servers.states()["desk"].tool_count == 7
            assert (await use(place, "add", {"a": 40, "b": 2})).text == "42"
            await use(place, "learn")
            await place.told.until("tools_list_changed")
            assert (await use(place, "fresh")).text == "new"
        assert site.methods()[-1] == "DELETE"


async def test_an_sse_server_is_talked_to(home):
    app = make_server().sse_app()
    async with served(Site(app)) as site:
        entry = {"type": "sse", "url": site.url.replace("/mcp", "/sse")}
        home.write(home.user_file, {"mcp": {"desk": entry}})
        async with open_real(home) as place:
            assert (await use(place, "add", {"a": 40, "b": 2})).text == "42"


async def test_headers_go_along_and_a_server_that_wants_a_login_is_known_by_its_answer(home):
    site = Site(make_server().streamable_http_app(), password=f"Bearer {SECRET}")
    async with served(site):
        home.write(home.user_file, at(site))
        async with open_real(home) as place:
            await place.servers.settled()
            info = place.servers.states()["desk"]
            assert (info.state, info.error) == (
                "needs auth",
                "it wants a login; configure a header or an oauth_token",
            )
        home.environment["KEY"] = SECRET
        home.write(home.user_file, at(site, headers={"Authorization": "Bearer $KEY"}))
        async with open_real(home) as place:
            assert (await use(place, "add", {"a": 1, "b": 2})).text == "3"
        home.write(home.user_file, at(site, oauth_token={"access_token": SECRET}))
        async with open_real(home) as place:
            assert (await use(place, "add", {"a": 1, "b": 2})).text == "3"


async def test_a_server_that_has_forgotten_us_is_greeted_again(home):
    """It was restarted, say: it does not know our session any more."""
    async with served(Site(make_server().streamable_http_app())) as site:
        home.write(home.user_file, at(site))
        async with open_real(home) as place:
            assert (await use(place, "add", {"a": 1, "b": 2})).text == "3"
            site.forget()
            assert (await use(place, "add", {"a": 2, "b": 2})).text == "4"
            assert place.told.words() == [
                *("starting", "connected"),
                *("error", "starting", "connected"),
            ]


@define(eq=False)
class Broken:
    """Something that answers every request, and is no MCP server."""

    body: object
    headers: dict
    status: int = 200

    async def __call__(self, scope, receive, send):
        assert scope["type"] == "http"
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        start = {"type": "http.response.start", "status": self.status, "headers": headers}
        await send(start)
        for piece in self.body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


JSON = {"content-type": "application/json"}
BROKEN = {
    "endless": (Broken(repeat(b"[" * 65536), JSON), "too long"),
    "garbage": (Broken([b"no json, s3cr3t"], JSON), "parse"),
    "page": (Broken([b"<html>"], {"content-type": "text/html"}), "content type: text/html"),
    "bomb": (Broken([b"x"], JSON | {"content-encoding": "gzip"}), "compresses"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_no_server_is_an_error_and_costs_no_memory(home, name, caplog):
    app, why = BROKEN[name]
    async with served(Site(app)) as site:
        home.write(home.user_file, at(site))
        async with open_real(home) as place:
            await place.servers.settled()
            info = place.servers.states()["desk"]
            assert info.state == "error"
            assert why in info.error
    assert {record.name.partition(".")[0] for record in caplog.records} == {"crush_trio"}


async def test_a_server_that_sends_us_elsewhere_is_not_followed(home):
    """The headers are meant for this address."""
    async with served(Site(make_server().streamable_http_app())) as elsewhere:
        sending = Broken([], {"location": elsewhere.url}, 307)
        async with served(Site(sending)) as site:
            home.write(home.user_file, at(site, headers={"Authorization": f"Bearer {SECRET}"}))
            async with open_real(home) as place:
                await place.servers.settled()
                assert "not followed" in place.servers.states()["desk"].error
        assert elsewhere.requests == []


async def test_nobody_at_the_address_is_an_error(home):
    async with served(Site(None)) as site:
        pass
    home.write(home.user_file, at(site))
    async with open_real(home) as place:
        await place.servers.settled()
        info = place.servers.states()["desk"]
        assert info.state == "error"
        assert "connect" in info.error.lower()


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_an_address_is_needed(home, kind):
    home.write(home.user_file, {"mcp": {"desk": {"type": kind}}})
    async with open_real(home) as place:
        await place.servers.settled()
        assert place.servers.states()["desk"].error == "it has no url"


async def test_the_proxies_of_the_process_are_not_asked(home, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    async with served(Site(make_server().streamable_http_app())) as site:
        home.write(home.user_file, at(site))
        async with open_real(home) as place:
            assert (await use(place, "add", {"a": 1, "b": 2})).text == "3"
