"""Security between nodes: who may pass requests on, and what is kept out of the table, the logs and errors."""

import logging
import ssl
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
import trio

from crush_trio.server.tokens import Right, TokenFile, tokens_path
from crush_trio.store.errors import StoreUnavailable
from crush_trio.store.open import StoreSettings, inspect_database
from crush_trio.testing.server.server import WrittenTurns, client_id, open_test_server
from crush_trio.testing.server.turns import Say
from tests.net.servers import make_certificate
from tests.server.cluster.nodes import TOKEN, open_node_server, open_two_nodes, project
from tests.store.postgres.server import PostgresServer, connect, free_port, new_database

pytestmark = pytest.mark.real_clock

FORWARDED = "x-crush-trio-forwarded"
CALLER = "x-crush-trio-caller"
ADMIN = '{"right":"admin","token":"","address":"","own_process":false}'
MARKED = {FORWARDED: "tcp://127.0.0.1:1", CALLER: ADMIN}
SECRET = "a-pa55word-of-the-database"
RIGHT = "the-right-pa55word"


# ── Who may pass requests on ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("token", [None, "a-token-that-is-not-theirs"])
@pytest.mark.parametrize("path", ["/v1/roster", "/v1/cluster", "/v1/workspaces", "/v1/events"])
async def test_a_stranger_who_marks_a_request_as_passed_on_is_refused(tmp_path, token, path):
    async with open_node_server(new_database(), tmp_path) as node:
        answer = await node.ask("GET", path, token=token, headers=MARKED)
        assert (answer.status, answer.json()["code"]) == (401, "unauthorized")


async def test_a_probe_that_is_marked_as_passed_on_is_refused(tmp_path):
    async with open_node_server(new_database(), tmp_path) as node:
        answer = await node.ask("GET", "/v1/health", token=None, headers=MARKED)
        assert (answer.status, answer.json()["code"]) == (403, "forward_forbidden")
        assert (await node.ask("GET", "/v1/health", token=None)).status == 200


async def test_a_server_without_a_token_accepts_no_request_that_is_passed_on():
    async with open_test_server() as server:
        headers = [(name.encode(), value.encode()) for name, value in MARKED.items()]
        exchange = server.driver.open(
            "GET", "/v1/roster", headers=[(n.decode(), v.decode()) for n, v in headers]
        )
        assert await exchange.head() == 403
        exchange.hang_up()


@pytest.mark.parametrize(
    "caller",
    [
        None,
        "",
        "nonsense",
        '{"right":"god","token":"","address":"","own_process":false}',
        '{"right":"admin"',
    ],
)
async def test_a_node_that_does_not_say_for_whom_it_asks_is_refused(tmp_path, caller):
    headers = {FORWARDED: "n"} if caller is None else {FORWARDED: "n", CALLER: caller}
    async with open_node_server(new_database(), tmp_path) as node:
        answer = await node.ask("GET", "/v1/roster", headers=headers)
        assert (answer.status, answer.json()["code"]) == (403, "forward_forbidden")


async def test_a_named_token_cannot_pass_requests_on_and_not_raise_its_right(tmp_path):
    url = new_database()
    watch = named(tmp_path, "phone", Right.WATCH)
    admin = named(tmp_path, "boss", Right.ADMIN)
    async with open_two_nodes(url, tmp_path, tokens=tokens_path(home(tmp_path))) as (first, second):
        place = await first.create(project(tmp_path))
        for token in (watch, admin):
            answer = await second.ask("GET", "/v1/roster", token=token, headers=MARKED)
            assert (answer.status, answer.json()["code"]) == (403, "forward_forbidden")
        target = f"/v1/workspaces/{place.id}/sessions"
        for node in (first, second):  # the right goes along with what is passed on
            assert (await node.ask("GET", target, token=watch)).status == 200
            answer = await node.ask("POST", target, {"title": "t"}, token=watch)
            assert (answer.status, answer.json()["code"]) == (403, "right_missing")
            answer = await node.ask("POST", target, {"title": "t"}, token=admin)
            assert answer.status == 200
        async with second.client.open(
            second.request(
                "GET", f"/v1/events?workspace={place.id}&client_id={client_id(9)}", token=watch
            )
        ) as response:
            assert response.status == 200
            assert b'"right":"watch"' in await response.receive()


async def test_what_was_passed_on_once_is_never_passed_on_again(tmp_path):
    async with open_two_nodes(new_database(), tmp_path) as (first, second):
        place = await first.create(project(tmp_path))
        session = await place.session()
        before = (await first.scrape()).counts()
        for method, path, body in (
            ("POST", "/sessions", {"title": "t"}),
            ("GET", "/tasks", None),
            ("GET", f"/events?client_id={client_id(1)}", None),
        ):
            target = f"/v1/workspaces/{place.id}{path}"
            answer = await second.ask(method, target, body, headers=MARKED)
            assert (answer.status, answer.json()["code"]) == (421, "not_owner")
        told = (await second.ask("GET", "/v1/roster", headers=MARKED)).json()
        assert told["sessions"] == []
        assert (await second.ask("GET", "/v1/search?q=t%20", headers=MARKED)).status == 400
        gone = await second.ask("DELETE", f"/v1/clients/{client_id(1)}", headers=MARKED)
        assert gone.status == 200
        after = (await first.scrape()).counts()
        asked = {key: after[key] - before.get(key, 0) for key in after if "http_requests" in key[0]}
        assert sum(asked.values()) == 1  # the scrape before
        assert session in {row["id"] for row in (await place.ask("GET", "/sessions")).json()}


def home(folder):
    return {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}


def named(folder, name, right):
    return TokenFile(tokens_path(home(folder))).add(name, right)


# ── What is kept out of tables, logs and errors ─────────────────────────────────────────────────


async def test_neither_tables_nor_logs_have_the_token_or_the_password(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    url = with_password(new_database())
    turns = WrittenTurns({"hello": [Say("done")]})
    async with open_two_nodes(url, tmp_path, turns=turns) as (first, second):
        place = await first.create(project(tmp_path))
        session = await second.at(place).session()
        query = f"workspace={place.id}&client_id={client_id(1)}"
        async with second.page(query) as page, second.page() as beside:
            await second.at(place).submit(session, "hello")
            await page.until(lambda page: any(name == "run" for name in page.names()))
            await beside.until(lambda page: session in page.sessions)
        await second.ask("GET", "/v1/roster", token="wrong-token-of-a-stranger", headers=MARKED)
        await second.ask("GET", "/v1/search?q=hello")
    dump = dumped(url)
    assert first.address in dump
    logged = "\n".join(f"{vars(record)}{record.exc_text}" for record in caplog.records)
    assert "node.entered" in logged
    for secret in (TOKEN, SECRET):
        assert secret not in dump
        assert secret not in logged


async def test_a_store_that_cannot_be_reached_is_told_without_its_password(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    for host in (f"127.0.0.1:{free_port()}", "no-such-host.invalid:5432"):
        url = f"postgresql://crush:{SECRET}@{host}/crush"
        with pytest.raises(StoreUnavailable) as caught:
            async with open_node_server(url, tmp_path):
                pass
        shown = repr(caught.value) + str(caught.value) + caught.value.detail
        shown += "".join(map(str, (caught.value.__cause__, caught.value.__context__)))
        assert host.split(":")[0] in shown
        assert SECRET not in shown
    assert SECRET not in "\n".join(str(vars(record)) for record in caplog.records)


async def test_a_wrong_password_is_told_and_not_shown(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    server = await trio.to_thread.run_sync(open_asking_server)
    try:
        for word, refused in ((SECRET, True), (RIGHT, False)):
            url = f"postgresql://crush:{word}@127.0.0.1:{server.port}/postgres"
            if refused:
                with pytest.raises(StoreUnavailable, match="password authentication failed") as it:
                    await inspect_database(StoreSettings(url))
                assert SECRET not in str(it.value) + it.value.detail
                with pytest.raises(StoreUnavailable):
                    async with open_node_server(url, tmp_path):
                        pass
                continue
            async with open_node_server(url, tmp_path) as node:
                assert (await node.cluster())["shared"]
    finally:
        await trio.to_thread.run_sync(server.remove)
    logged = "\n".join(str(vars(record)) for record in caplog.records)
    for secret in (SECRET, RIGHT, TOKEN):
        assert secret not in logged


def open_asking_server():
    """Start a PostgreSQL that asks the user `crush` for a password."""
    server = PostgresServer()
    with connect(server.url) as database:
        database.execute(f"CREATE ROLE crush LOGIN SUPERUSER PASSWORD '{RIGHT}'")
    rules = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    (server.data / "pg_hba.conf").write_text(rules)
    server.stop()
    server.start()
    return server


def with_password(url):
    """Return *url* with a password, which the server of the tests does not ask for."""
    parts = urlsplit(url)
    if parts.password:
        return url
    return url.replace(f"{parts.username}@", f"{parts.username}:{SECRET}@", 1)


def dumped(url):
    """Return every row of every table as text."""
    with connect(url) as database:
        tables = database.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = current_schema()::regnamespace"
        ).fetchall()
        return "\n".join(
            str(database.execute(f"SELECT t::text FROM {name} AS t").fetchall())
            for (name,) in tables
        )


# ── TLS to the database ─────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def open_tls_front(url, folder):
    """Speak TLS in front of a PostgreSQL that has none, as a pooler does; yield the URL and the certificate."""
    key, cert = make_certificate(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    target = urlsplit(url)

    async def serve(stream):
        asked = await stream.receive_some(8)
        if asked[4:] != (80877103).to_bytes(4, "big"):  # SSLRequest
            return  # a client that wants no TLS is not let in
        await stream.send_all(b"S")
        safe = trio.SSLStream(stream, context, server_side=True)
        with trio.CancelScope() as scope:
            try:
                inner = await trio.open_tcp_stream("127.0.0.1", target.port)
                async with safe, inner, trio.open_nursery() as nursery:
                    nursery.start_soon(copy, safe, inner, scope)
                    nursery.start_soon(copy, inner, safe, scope)
            except* (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
                pass

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        port = listener.socket.getsockname()[1]
        yield url.replace(f":{target.port}/", f":{port}/"), cert
        nursery.cancel_scope.cancel()


async def copy(source, sink, scope):
    while data := await source.receive_some(65536):
        await sink.send_all(data)
    scope.cancel()


@pytest.mark.needs("openssl")
async def test_tls_to_the_database_is_as_its_url_says(tmp_path):
    async with open_tls_front(new_database(), tmp_path) as (front, cert):
        url = with_password(front)
        for mode in ("require", "verify-ca", "verify-full"):
            more = f"?sslmode={mode}&sslrootcert={cert}"
            report = await inspect_database(StoreSettings(url + more))
            assert (report.encrypted, report.verified) == (True, mode == "verify-full")
        _, other = make_certificate(folder_in(tmp_path, "other"))
        for refused in ("sslmode=disable", f"sslmode=verify-full&sslrootcert={other}"):
            with pytest.raises(StoreUnavailable) as caught:
                await inspect_database(StoreSettings(f"{url}?{refused}"))
            assert SECRET not in str(caught.value) + caught.value.detail
        store = f"{url}?sslmode=verify-full&sslrootcert={cert}"
        async with open_node_server(store, tmp_path) as node:
            assert (await (await node.create(project(tmp_path))).session()) != ""


def folder_in(folder, name):
    path = folder / name
    path.mkdir()
    return path
