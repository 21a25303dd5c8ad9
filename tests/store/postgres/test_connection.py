"""Connections that break: before and in the middle of a commit, while reading, and for a longer time."""

import logging
from contextlib import asynccontextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import trio

from benchmarks.driver.tcp_proxy import open_proxy
from crush_trio.cli.exits import explain
from crush_trio.store.changes import TextAppended
from crush_trio.store.errors import (
    DiskFull,
    StoreFailed,
    StoreSlow,
    StoreUnavailable,
    StoreUnreachable,
    StoreUnsuitable,
)
from crush_trio.store.postgres import connection as connections
from crush_trio.store.postgres.connection import Reconnector
from crush_trio.store.postgres.opening import open_postgres_store
from crush_trio.store.postgres.place import Place
from crush_trio.store.postgres.writer import _FORGET
from crush_trio.wire.ids import MessageId
from tests.store.postgres.server import (
    PostgresServer,
    connect,
    new_database,
    of_user,
    server_url,
    shared_database_url,
)
from tests.store.stores import M, S, ids, message, session, text

pytestmark = [pytest.mark.real_clock, pytest.mark.slow]


@asynccontextmanager
async def open_behind_proxy(directory, **options):
    url = urlsplit(shared_database_url())
    with open_proxy(url.port) as proxy:
        behind = url._replace(netloc=f"{url.username}@127.0.0.1:{proxy.port}").geturl()
        async with open_postgres_store(behind, directory, site="test", **options) as store:
            yield store, proxy


def more(piece):
    return TextAppended(message_id=M, index=0, text=piece, at=100)


async def content(store):
    [part] = (await store.message(M)).message.parts
    return part.text


# ── The connection of the writer ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_write_whose_commit_was_cut_off_is_stored_exactly_once(tmp_path, when):
    """Only the database knows whether it is; the writer asks before it does anything again."""
    async with open_behind_proxy(tmp_path) as (store, proxy):
        await store.commit(session("s"), message("m", text()))
        for piece in "abc":
            proxy.cut_at(b"COMMIT\0", when=when)
            await store.commit(more(piece))
        assert await content(store) == "abc"
        assert store.degraded is None
        assert proxy.at is None


async def test_a_group_whose_commit_was_cut_off_is_stored_exactly_once(tmp_path):
    async with open_behind_proxy(tmp_path) as (store, proxy):
        await store.commit(session("s"), message("m", text()))
        for when in ("before", "after"):
            proxy.cut_at(b"COMMIT\0", when=when)
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(store.commit, more("x"))
        assert await content(store) == "x" * 40


async def test_a_writer_without_work_for_days_is_not_forgotten_while_its_server_is_a_node(tmp_path):
    async with open_postgres_store(shared_database_url(), tmp_path, site="test") as store:
        ours = store.database.node_id
        with connect(shared_database_url()) as person:
            values = {"gone": f"gone-{ours}", "ours": ours, "idle": f"idle-{ours}"}
            person.execute(
                "INSERT INTO writers (id, used_at) VALUES (%(gone)s, now() - interval '8 days'),"
                " (%(idle)s, now() - interval '8 days')",
                values,
            )
            person.execute(
                "INSERT INTO nodes VALUES (%(idle)s, %(idle)s, '', 'test', 'h', 1, '1', 1, now())",
                values,
            )
            person.execute(_FORGET, {"id": ours})
            left = person.execute(
                "SELECT id FROM writers WHERE id = ANY(%s)", (list(values.values()),)
            )
            assert {row[0] for row in left} == {ours, values["idle"]}


async def test_a_connection_that_breaks_before_the_commit_costs_nothing(tmp_path):
    async with open_behind_proxy(tmp_path) as (store, proxy):
        await store.commit(session("s"), message("m", text()))
        for moment in (b"BEGIN", b"UPDATE writers", b"INSERT INTO chunks"):
            proxy.cut_at(moment, when="before")
            await store.commit(more("x"))
        assert await content(store) == "xxx"


async def test_a_server_that_takes_bytes_and_says_nothing_is_given_up(tmp_path):
    """TCP does not notice: a proxy or a frozen server still takes what is sent."""
    async with open_behind_proxy(tmp_path) as (store, proxy):
        await store.commit(session("s"))
        assert ids(await store.sessions()) == ["s"]
        [(reader, _)] = store.database.readers._pool.queue
        writer = store.database.writer._connection
        assert (reader.silence, writer.silence) == (32, 32)
        reader.silence = writer.silence = 0  # give up when it is looked at for the first time
        proxy.hold()
        for connection in (reader, writer):
            with pytest.raises(psycopg.OperationalError, match="has not answered for 0 seconds"):
                await trio.to_thread.run_sync(connection.execute, "SELECT 1")
            assert connection.closed
        proxy.mend()
        await store.commit(session("t"))
        assert sorted(ids(await store.sessions())) == ["s", "t"]
        assert store.degraded is None


async def test_the_connection_for_leases_is_given_up_in_time_for_another_try(tmp_path):
    async with open_postgres_store(shared_database_url(), tmp_path, site="test") as store:
        [(keeper, _)] = store.database.keeper._pool.queue
        assert keeper.silence == 6


async def test_a_session_that_an_administrator_ends_is_replaced(tmp_path):
    async with open_behind_proxy(tmp_path) as (store, _):
        await store.commit(session("s"), message("m", text("a")))
        assert await content(store) == "a"
        with connect(shared_database_url()) as person:
            person.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'crush-trio'"
            )
        assert await content(store) == "a"
        await store.commit(more("b"))
        assert await content(store) == "ab"


async def test_while_the_database_is_away_writes_are_refused_and_nothing_of_them_is_stored(
    tmp_path,
):
    async with open_behind_proxy(tmp_path) as (store, proxy):
        await store.commit(session("s"))
        proxy.cut()
        with pytest.raises(StoreUnreachable, match="PostgreSQL at 127"):
            await store.commit(session("t"))
        store.post(session("u"))
        with pytest.raises(StoreUnreachable):
            await store.sessions()
        assert "cannot be reached" in store.degraded
        proxy.mend()
        for part in (store.database.writer._reconnector, store.database.readers._reconnector):
            part.forget()
        await store.commit(session("v"))
        assert sorted(ids(await store.sessions())) == ["s", "v"]
        store.post(session("w"))
        await store.commit()
        assert store.degraded is None


async def test_a_server_that_was_restarted_goes_on_with_everything(tmp_path):
    server = PostgresServer()
    try:
        async with open_postgres_store(server.url, tmp_path, site="test") as store:
            await store.commit(session("s"), message("m", text("a")))
            for end in (server.stop, server.kill):
                await trio.to_thread.run_sync(end)
                with pytest.raises(StoreUnavailable):
                    await store.commit(session("t"))
                await trio.to_thread.run_sync(server.start)
                store.database.writer._reconnector.forget()
                await store.commit(more("b"))
            assert await content(store) == "abb"
            assert ids(await store.sessions()) == ["s"]
    finally:
        server.remove()


async def commit_until_refused(store):
    """A setting takes effect a moment after the reload."""
    with trio.fail_after(60):
        for number in count():
            await store.commit(session(f"t{number}"))


async def test_a_commit_that_no_standby_has_confirmed_is_not_said_to_be_stored(tmp_path):
    """A time limit, or a person, ends the wait for a synchronous standby; the server then says COMMIT."""
    server = PostgresServer()
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    try:
        async with open_postgres_store(server.url, tmp_path, site="test") as store:
            await store.commit(session("s"))
            server.ask("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            server.ask("SELECT pg_reload_conf()")
            async with trio.open_nursery() as nursery:

                async def cancel_all():
                    while True:
                        await trio.to_thread.run_sync(server.ask, cancel)

                nursery.start_soon(cancel_all)
                with pytest.raises(StoreSlow, match="no standby has confirmed"):
                    await commit_until_refused(store)
                nursery.cancel_scope.cancel()
            server.ask("ALTER SYSTEM RESET synchronous_standby_names")
            server.ask("SELECT pg_reload_conf()")
            await store.commit(session("u"))
    finally:
        server.remove()


async def test_a_reader_that_lost_its_connections_takes_new_ones(tmp_path):
    async with open_behind_proxy(tmp_path) as (store, proxy):
        await store.commit(session("s"))
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(store.sessions)
        proxy.cut()
        proxy.mend()
        assert ids(await store.sessions()) == ["s"]
        assert store.degraded is None


def test_attempts_to_connect_are_made_with_growing_pauses():
    now, made, fails = [0.0], [], [True]

    def attempt(place):
        made.append(now[0])
        if fails[0]:
            raise StoreUnreachable("no route")
        return "connection"

    reconnector = Reconnector(Place.of("postgresql://h/d"), attempt, lambda: now[0])
    for _ in range(200):
        with pytest.raises(StoreUnreachable, match="no route"):
            reconnector.connect()
        now[0] += 0.05
    pauses = [round(b - a, 1) for a, b in pairwise(made)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    fails[0] = False
    now[0] += 10
    assert reconnector.connect() == "connection"
    fails[0] = True
    with pytest.raises(StoreUnreachable):
        reconnector.connect()
    assert made[-1] == now[0]  # the first attempt after a success is made at once


# ── What an error says, and does not say ────────────────────────────────────────────────────────

SECRET = "correct-horse-battery"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://nobody:{SECRET}@127.0.0.1:1/db",
        f"postgresql://nobody:{SECRET}@127.0.0.1:1,127.0.0.1:2/db?target_session_attrs=read-write",
        f"postgresql://127.0.0.1:1/db?user=nobody&password={SECRET}",
        f"postgresql://nobody:{SECRET}@127.0.0.1:port/db",
        f"postgresql://nobody:{SECRET}@127.0.0.1:1/db?nonsense={SECRET}",
        f"postgresql://nobody:{SECRET}%zz@127.0.0.1:1/db",
        f"postgresql://nobody:{SECRET}/x@127.0.0.1:1/db",
        f"postgresql://nobody:{SECRET}?x@127.0.0.1:1/db",
        f"postgresql://nobody:{SECRET}#x@127.0.0.1:1/db",
    ],
)
async def test_no_error_and_no_log_has_the_password(url, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StoreUnavailable) as caught:
        async with open_postgres_store(url, tmp_path):
            pass
    shown = "".join(str(caught.getrepr(style="long", showlocals=False)).splitlines()[-3:])
    error = caught.value
    while error is not None:
        shown += str(error) + repr(error)
        error = error.__cause__
    shown += caplog.text
    with suppress(StoreUnsuitable):
        place = Place.of(url)
        shown += place.label + repr(place)
    assert SECRET not in shown


def test_a_place_is_called_by_its_hosts_and_its_database():
    place = Place.of("postgres://u:p%40ss@one,two:5433/data?sslmode=verify-full&password=other")
    assert place.label == "PostgreSQL at one,two:5433, database data"
    assert set(place.secrets) == {"p%40ss", "p@ss", "other"}
    assert place.without_password("no p@ss, no other") == "no [redacted], no [redacted]"
    assert Place.of("postgresql:///data?host=/run/pg").label == (
        "PostgreSQL at /run/pg, database data"
    )
    assert Place.of("postgresql://").label == "PostgreSQL at the local server"


async def test_a_database_with_another_encoding_is_refused(tmp_path):
    url = new_database(encoding="SQL_ASCII")
    with pytest.raises(StoreUnsuitable, match="has the encoding SQL_ASCII; create it with"):
        async with open_postgres_store(url, tmp_path):
            pass


def test_a_misspelt_parameter_is_named():
    place = Place.of("postgresql://u:hunter2@127.0.0.1/data?sslmod=require")
    with pytest.raises(StoreUnsuitable, match=r'invalid URI query parameter: "sslmod".*; correct'):
        connections.connect(place)


async def test_a_path_that_is_too_long_for_an_index_is_told_so():
    path = "/" + "/".join(f"{number * 7919 % 99991:05d}" for number in range(800))
    with pytest.raises(StoreUnsuitable, match="index row") as caught:
        async with open_postgres_store(shared_database_url(), Path(path), site="test"):
            pytest.fail("it was opened")
    assert explain(caught.value)[1] == "use a shorter path: 2,600 bytes always fit"


# A name of a role, what its database lacks for it, and what the error advises.
LACKING = {
    "may_not_create": ("CREATE ROLE {role} LOGIN", "ALTER DATABASE NAME OWNER TO USER"),
    "has_no_schema": (
        "CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET search_path = ''",
        "create the schema that the search_path of its user names",
    ),
    "may_only_read": (
        "CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET default_transaction_read_only = on",
        "its user may only read",
    ),
}


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("made", [False, True], ids=["empty", "with tables"])
async def test_a_user_without_rights_is_told_which_are_missing(tmp_path, lacking, made):
    statements, advice = LACKING[lacking]
    url = new_database()
    if made:
        async with open_postgres_store(url, tmp_path, site="test"):
            pass
    role = url.rpartition("/")[2] + "_user"
    with connect(url) as person:
        person.execute(statements.format(role=role))
    try:
        with pytest.raises(StoreUnsuitable) as caught:
            async with open_postgres_store(of_user(url, role), tmp_path, site="test"):
                pass
        assert advice in explain(caught.value)[1]
    finally:
        with connect(url) as person:
            person.execute(f"DROP ROLE {role}")


async def test_of_several_hosts_the_one_that_can_be_written_is_taken(tmp_path):
    url = urlsplit(shared_database_url())
    hosts = f"{url.username}@127.0.0.1:1,127.0.0.1:{url.port}"
    several = url._replace(netloc=hosts, query="target_session_attrs=read-write").geturl()
    async with open_postgres_store(several, tmp_path, site="test") as store:
        await store.commit(session("s"))
        assert ids(await store.sessions()) == ["s"]


# ── Faults ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("53100", DiskFull),
        ("25006", StoreUnsuitable),
        ("42501", StoreUnsuitable),
        ("57014", StoreSlow),
        ("53300", StoreUnreachable),
    ],
)
async def test_a_fault_of_the_server_is_an_error_of_the_store(tmp_path, state, error):
    """A trigger raises what the server would raise; then the store goes on."""
    url = new_database()
    async with open_postgres_store(url, tmp_path, site="test") as store:
        with connect(url) as person:
            person.execute(
                "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                f" RAISE EXCEPTION 'told so' USING ERRCODE = '{state}'; END $$;"
                "CREATE TRIGGER failing BEFORE INSERT ON sessions"
                " FOR EACH ROW WHEN (NEW.id = 'bad') EXECUTE FUNCTION fail()"
            )
        with pytest.raises(error, match="told so"):
            await store.commit(session("bad"))
        assert "told so" in store.degraded
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(store.commit, session(name))
        assert sorted(ids(await store.sessions())) == ["a", "b", "c"]
        assert store.degraded is None


async def test_a_statement_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    limited = connections.BEGIN_READ.replace("30000", "20")
    monkeypatch.setattr("crush_trio.store.postgres.database.BEGIN_READ", limited)
    async with open_postgres_store(shared_database_url(), tmp_path, site="test") as store:
        with pytest.raises(StoreSlow, match="statement timeout"):
            await store._read(lambda t: t.run("SELECT pg_sleep(10)"))
        assert await store.sessions() == []


async def test_text_may_have_every_character(tmp_path):
    every = "".join(map(chr, range(0x300))) + "\x01\x02\x01\x03\x00\x01😀"
    async with open_postgres_store(shared_database_url(), tmp_path, site="test") as store:
        await store.commit(session("s", title=every), message("m", text(every)))
        assert (await store.session(S)).title == every
        assert (await store.message(MessageId("m"))).message.parts == (text(every),)


async def test_a_closed_store_says_so(tmp_path):
    async with open_postgres_store(shared_database_url(), tmp_path, site="test") as store:
        pass
    with pytest.raises(StoreFailed, match="is closed"):
        await store.commit(session("s"))
    with pytest.raises(StoreFailed, match="is closed"):
        await store.sessions()


async def test_one_writer_and_few_connections_serve_many_workspaces(tmp_path):
    url = new_database()
    async with open_postgres_store(url, tmp_path / "0", site="test") as first:
        async with open_postgres_store(url, tmp_path / "1", site="test") as second:
            assert first.database is second.database
            async with trio.open_nursery() as nursery:
                for store in (first, second):
                    for number in range(20):
                        nursery.start_soon(store.commit, session(f"{number}"))
                        nursery.start_soon(store.sessions)
            with connect(server_url()) as person:
                [number] = person.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = %s",
                    (url.rpartition("/")[2],),
                ).fetchone()
            assert number <= 6  # the writer, that of the leases, and four for reads
            assert len(await first.sessions()) == len(await second.sessions()) == 20
            counted = first.load.commits, second.load.commits
            assert (first.load.pending, second.load.pending) == (0, 0)
            total = first.database.writer.load.commits
            assert sum(map(sum, (each.counts for each in counted))) == sum(total.counts)
