"""`crush-trio cluster` and `crush-trio doctor --store`: what they print about a database and its servers."""

import json
import socket

import attrs
import pytest
import trio

from crush_trio.cli.commands.cluster.listing import print_cluster
from crush_trio.cli.main import main
from crush_trio.cli.report.findings import Level
from crush_trio.cli.store_checks import (
    check_store,
    describe_database,
    describe_nodes,
    own_address,
    reach_nodes,
)
from crush_trio.store.open import StoreSettings, inspect_database, read_cluster
from crush_trio.store.shared import DatabaseReport, NodeCard, NodeRow
from tests.server.cluster.nodes import TOKEN, open_node_server, open_two_nodes, project
from tests.store.postgres.server import connect, free_port, new_database, user_of
from tests.store.postgres.test_pgbouncer import open_pgbouncer

pytestmark = pytest.mark.real_clock

SECRET = "a-pa55word-of-the-database"
GOOD = DatabaseReport(
    label="PostgreSQL at db, database crush",
    program="18.4",
    user="crush",
    encrypted=True,
    verified=True,
    local=False,
    encoding="UTF8",
    schema=3,
    known=3,
    lacking=(),
    may_migrate=True,
    standby=False,
    read_only=False,
    durable=True,
    standbys="",
    pooled=False,
    shares=False,
    nodes=(),
)


def card(address, host="elsewhere", **more):
    values = {"boot": "b", "site": "s", "pid": 1, "version": "0", "started_at": 0}
    values |= {"id": address, "address": address, "host": host}
    return NodeCard(**{**values, **more})


def row(address, seconds=5.0, **more):
    return NodeRow(card=card(address, **more), seconds=seconds)


@pytest.fixture
def environ(tmp_path):
    return {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "CRUSH_TRIO_TOKEN": TOKEN}


def levels(findings):
    return {each.subject: each.level for each in findings}


# ── cluster ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_and_the_database_list_the_same(tmp_path, environ, capsys):
    url = new_database()
    async with open_two_nodes(url, tmp_path) as (first, second):
        place = await first.create(project(tmp_path))
        for host, store in ((second.address, None), (None, url)):
            assert await print_cluster(environ, host, store, True) == 0
            told = json.loads(capsys.readouterr().out)
            assert told["node"] == (host or "")
            leases = {each["id"]: each["leases"] for each in told["nodes"]}
            assert leases.keys() == {first.address, second.address}
            assert [each["workspace_id"] for each in leases[first.address]] == [place.id]
            assert await print_cluster(environ, host, store, False) == 0
            out = capsys.readouterr().out
            for text in (first.address, second.address, place.id, "epoch 1", "1 workspace"):
                assert text in out
    assert await print_cluster(environ, None, url, False) == 0
    out = capsys.readouterr().out
    assert out.count("gone") == 2
    assert place.id not in out


def test_a_database_without_servers_is_said_to_have_none(monkeypatch, environ, capsys):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["cluster", "--store", new_database()]) == 0
    assert "no server has used this database" in capsys.readouterr().out
    assert main(["cluster"]) == 0
    assert "No server is running" in capsys.readouterr().out
    assert main(["cluster", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) is None
    assert main(["cluster", "--store", "sqlite:"]) != 0
    assert "not a store that several servers share" in capsys.readouterr().err


def test_a_password_is_not_printed_when_the_database_cannot_be_reached(capsys):
    url = f"postgresql://crush:{SECRET}@127.0.0.1:{free_port()}/crush"
    for words in (["cluster"], ["doctor"]):
        assert main([*words, "--store", url]) != 0
        told = capsys.readouterr()
        assert SECRET not in told.out + told.err
        assert "PostgreSQL at 127.0.0.1" in told.out + told.err
    assert main(["doctor", "--store", f"postgresql://crush:{SECRET}@[db/x"]) != 0
    told = capsys.readouterr()
    assert SECRET not in told.out + told.err


# ── doctor --store ──────────────────────────────────────────────────────────────────────────────


async def test_a_database_with_servers_is_found_good(tmp_path, environ, capsys):
    url = new_database()
    found = levels(await check_store(environ, url))
    assert (found["store"], found["schema"], found["servers"]) == (Level.OK,) * 3
    async with open_two_nodes(url, tmp_path):
        findings = await check_store(environ, url)
    assert {each.level for each in findings} == {Level.OK}
    told = {each.subject: each.text for each in findings}
    assert told["servers"] == "2 servers alive at 1 site"
    assert [each.subject for each in findings].count("reachable") == 2
    assert "stays on this machine" in told["TLS"]
    assert user_of(url) in told["store"]


async def test_nothing_is_made_by_looking(environ):
    url = new_database()
    await check_store(environ, url)
    await read_cluster(StoreSettings(url))
    with connect(url) as database:
        assert database.execute("SELECT to_regclass('schema_versions')").fetchone() == (None,)


async def test_privileges_that_are_missing_are_named(tmp_path, environ):
    url = new_database()
    async with open_node_server(url, tmp_path):
        pass
    with connect(url) as database:
        name = f"reader_{database.info.backend_pid}"
        database.execute(f"CREATE ROLE {name} LOGIN")
        database.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}")
        database.execute(f"GRANT INSERT, UPDATE, DELETE ON leases TO {name}")
    theirs = url.replace(f"//{user_of(url)}@", f"//{name}@")
    report = await inspect_database(StoreSettings(theirs))
    assert "INSERT ON messages" in report.lacking
    assert not [each for each in report.lacking if "leases" in each or "SELECT" in each]
    assert not report.may_migrate
    assert levels(describe_database(report))["permissions"] is Level.FAIL
    with connect(url) as database:
        database.execute("INSERT INTO schema_versions (number, name) VALUES (99, 'later')")
    found = levels(await check_store(environ, url))
    assert found["schema"] is Level.FAIL


async def test_a_database_that_only_reads_is_told(environ):
    url = new_database()
    sep = "&" if "?" in url else "?"
    options = f"{sep}options=-c%20default_transaction_read_only%3Don"
    assert levels(await check_store(environ, url + options))["writing"] is Level.FAIL


@pytest.mark.slow
@pytest.mark.needs("pgbouncer")
async def test_a_pooler_in_transaction_mode_is_noticed(tmp_path):
    url = new_database()
    direct = await inspect_database(StoreSettings(url))
    with open_pgbouncer(tmp_path, url) as through:
        pooled = await inspect_database(StoreSettings(through))
    assert (direct.pooled, direct.shares) == (False, False)
    assert (pooled.pooled, pooled.shares) == (True, True)


@pytest.mark.parametrize(
    ("changed", "subject", "level"),
    [
        ({}, "TLS", Level.OK),
        ({"verified": False}, "TLS", Level.WARN),
        ({"encrypted": False}, "TLS", Level.WARN),
        ({"encrypted": False, "local": True}, "TLS", Level.OK),
        ({"schema": 2}, "schema", Level.WARN),
        ({"schema": 2, "may_migrate": False}, "schema", Level.FAIL),
        ({"schema": 0, "may_migrate": False}, "schema", Level.FAIL),
        ({"schema": 0}, "schema", Level.OK),
        ({"schema": 4}, "schema", Level.FAIL),
        ({"encoding": "LATIN1"}, "encoding", Level.FAIL),
        ({"standby": True}, "writing", Level.FAIL),
        ({"durable": False}, "durability", Level.WARN),
        ({"standbys": "standby"}, "durability", Level.OK),
        ({"pooled": True, "shares": True}, "pooler", Level.OK),
    ],
)
def test_what_is_wrong_with_a_database_is_told_with_what_to_do(changed, subject, level):
    findings = list(describe_database(attrs.evolve(GOOD, **changed)))
    [finding] = [each for each in findings if each.subject == subject]
    assert finding.level is level
    assert bool(finding.advice) is (level is not Level.OK)


async def test_servers_that_cannot_be_reached_or_differ_are_told(environ):
    silent = f"tcp://127.0.0.1:{free_port()}"
    rows = [row(silent), row("", id="h/1"), row("tcp://127.0.0.1:1", seconds=-1)]
    [finding] = await reach_nodes(rows, environ)
    assert (finding.level, finding.subject) == (Level.FAIL, "reachable")
    assert silent in finding.text
    found = levels(describe_nodes(rows))
    assert (found["versions"], found["addresses"]) == (Level.WARN, Level.WARN)


def test_an_address_that_another_machine_uses_is_told():
    own = "tcp://10.0.0.5:8765"
    environ = {"CRUSH_TRIO_ADVERTISE": own}
    here = row(own, host=socket.gethostname())
    assert [each.level for each in own_address([row(own)], environ)] == [Level.FAIL]
    assert [each.level for each in own_address([here], environ)] == [Level.OK]
    assert list(own_address([row(own, seconds=-1)], environ)) == []
    assert list(own_address([row(own)], {})) == []
    wrong = {"CRUSH_TRIO_ADVERTISE": "nonsense"}
    assert [each.level for each in own_address([], wrong)] == [Level.FAIL]


async def test_no_token_is_sent_to_the_addresses_of_the_table(environ):
    seen = []

    async def listen(stream):
        seen.append(await stream.receive_some())
        await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, listen, [listener])
        port = listener.socket.getsockname()[1]
        [finding] = await reach_nodes([row(f"tcp://127.0.0.1:{port}")], environ)
        nursery.cancel_scope.cancel()
    assert finding.level is Level.OK
    assert TOKEN.encode() not in b"".join(seen)
