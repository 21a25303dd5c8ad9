"""Nodes of a cluster in this process: real servers on real sockets, on one real PostgreSQL."""

from contextlib import asynccontextmanager

import orjson
import trio
from attrs import define, evolve

from benchmarks.driver.process import free_port
from crush_trio import ServerSettings, WorkspaceSettings, open_server
from crush_trio.net.address import Origin
from crush_trio.net.client import HttpClient, Request, open_http_client
from crush_trio.server.settings import ClusterSettings, GuardSettings
from crush_trio.store.open import StoreSettings
from crush_trio.testing.server.server import WrittenTurns, client_id
from tests.server.page_client import Page
from tests.server.scraping import Scrape

TOKEN = "a-token-that-all-nodes-have"
SITE = "files"
TTL = 2.0
LIMIT = 30.0
"""Seconds that anything may take on a busy machine."""

A = client_id(1)


@define
class Answer:
    status: int
    body: bytes

    def json(self):
        return orjson.loads(self.body)


@define(eq=False)
class Place:
    """A workspace, asked about through any node."""

    node: "TestNode"
    id: str

    async def ask(self, method, path, body=None):
        return await self.node.ask(method, f"/v1/workspaces/{self.id}{path}", body)

    async def session(self, title="t"):
        return (await self.ask("POST", "/sessions", {"title": title})).json()["id"]

    async def submit(self, session, prompt, run_id="r1"):
        body = {"session_id": session, "prompt": prompt, "run_id": run_id}
        answer = await self.ask("POST", "/agent", body)
        assert answer.status == 202, answer


@define(eq=False)
class TestNode:
    """A node, and requests to it."""

    __test__ = False

    port: int
    client: HttpClient

    @property
    def address(self):
        return f"tcp://127.0.0.1:{self.port}"

    @property
    def origin(self):
        return Origin("127.0.0.1", self.port, secure=False)

    def request(self, method, target, body=None, *, token=TOKEN, headers=None):
        own = {} if token is None else {"authorization": f"Bearer {token}"}
        return Request(
            method=method,
            origin=self.origin,
            target=target,
            headers={**own, "content-type": "application/json", **(headers or {})},
            body=b"" if body is None else orjson.dumps(body),
        )

    async def ask(self, method, target, body=None, **more):
        with trio.fail_after(LIMIT):
            async with self.client.open(self.request(method, target, body, **more)) as response:
                return Answer(response.status, await response.read(1 << 24))

    async def cluster(self):
        answer = await self.ask("GET", "/v1/cluster")
        assert answer.status == 200, answer
        return answer.json()

    async def scrape(self):
        return Scrape((await self.ask("GET", "/v1/metrics")).body.decode())

    async def create(self, path, client=A):
        body = {"path": str(path), "client_id": client}
        answer = await self.ask("POST", "/v1/workspaces", body)
        assert answer.status == 200, answer
        return Place(self, answer.json()["id"])

    def at(self, place):
        """Return a workspace as this node answers about it."""
        return Place(self, place.id)

    @asynccontextmanager
    async def page(self, query=""):
        """Open a page; its first frame, the whole roster, is read."""
        async with self.client.open(self.request("GET", f"/v1/events?{query}")) as response:
            assert response.status == 200, response
            page = Page(response)
            assert (await page.next())[0] == "roster"
            yield page


@asynccontextmanager
async def open_node_server(
    url,
    folder,
    *,
    turns=None,
    token=TOKEN,
    site=SITE,
    port=None,
    ttl=TTL,
    tokens=None,
    advertised=True,
):
    """Run a node on the database at *url*; yield it when it answers."""
    port = port or free_port()
    sep = "&" if "?" in url else "?"
    store = StoreSettings(f"{url}{sep}application_name=node-{port}", site)
    address = f"tcp://127.0.0.1:{port}"
    settings = ServerSettings(
        guard=GuardSettings(token=token, token_file=tokens),
        environment={"HOME": str(folder)},
        store=store,
        cluster=ClusterSettings.of(address if advertised else "", ttl),
    )
    settings = evolve(settings, backend=evolve(settings.backend, detach_grace=0.0))
    workspaces = WorkspaceSettings(
        make_turn=WrittenTurns() if turns is None else turns, home=folder, store=store
    )
    async with open_http_client() as client:
        async with open_server(address, settings=settings, workspaces=workspaces, grace=2.0):
            yield TestNode(port, client)


@asynccontextmanager
async def open_two_nodes(url, folder, **more):
    async with open_node_server(url, folder, **more) as first:
        async with open_node_server(url, folder, **more) as second:
            yield first, second


def project(tmp_path, name="project"):
    path = tmp_path / name
    path.mkdir()
    return path
