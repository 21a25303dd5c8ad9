"""Behind PgBouncer in transaction mode every transaction may run on another connection of the server."""

import os
import subprocess
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest
import trio

from crush_trio.store.changes import MessageFinished, TextAppended
from crush_trio.store.errors import StoreLocked
from crush_trio.store.pages import SessionMessages
from crush_trio.store.postgres.opening import open_postgres_store
from tests.store.postgres.server import NOBODY, free_port, new_database
from tests.store.stores import M, S, ids, message, session, text

pytestmark = [pytest.mark.real_clock, pytest.mark.slow, pytest.mark.needs("pgbouncer")]

CONFIGURATION = """
[databases]
{name} = host=127.0.0.1 port={port} dbname={name} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listens}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
server_reset_query_always = 0
server_round_robin = 1
"""
PATIENCE = 30


@contextmanager
def open_pgbouncer(directory, url):
    """Start PgBouncer with three connections, taken in turn; yield the URL behind it."""
    to, listens = urlsplit(url), free_port()
    name = to.path.strip("/")
    path = directory / "pgbouncer.ini"
    path.write_text(
        CONFIGURATION.format(name=name, port=to.port, user=to.username, listens=listens)
    )
    as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    through = f"postgresql://{to.username}@127.0.0.1:{listens}/{name}"
    with path.open("rb") as configuration, (directory / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(
            ["pgbouncer", "/dev/stdin"],  # this user need not be able to reach the directory
            stdin=configuration,
            stdout=log,
            stderr=log,
            **as_user,
        )
    try:
        await_ready(through, directory / "pgbouncer.log")
        yield through
    finally:
        process.terminate()
        process.wait(PATIENCE)


def await_ready(url, log):
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise RuntimeError(log.read_text()) from None
            time.sleep(0.02)  # only a connection tells
        else:
            return


async def test_everything_works_although_each_transaction_has_another_connection(tmp_path):
    with open_pgbouncer(tmp_path, new_database()) as url:
        async with open_postgres_store(url, tmp_path / "a", site="test", ttl=1.0) as store:
            await store.commit(session("s"), message("m", text()))
            async with trio.open_nursery() as nursery:
                for _ in range(30):
                    nursery.start_soon(
                        store.commit, TextAppended(message_id=M, index=0, text="x", at=100)
                    )
                    nursery.start_soon(store.messages, S)
            assert (await store.message(M)).message.parts == (text("x" * 30),)
            assert ids(await store.sessions()) == ["s"]
            await store.commit(MessageFinished(message_id=M, at=100))
            assert len(await store.search("xxx", 10)) == 1  # a cursor of the server
            assert b"xxx" in (await store.pages(SessionMessages(session_id=S)).read())[0]
            with pytest.raises(StoreLocked):
                async with open_postgres_store(url, tmp_path / "a", site="test", ttl=1.0):
                    pass
            assert store.degraded is None
        async with open_postgres_store(url, tmp_path / "a", site="test", ttl=1.0) as again:
            assert again.lease.epoch == 2
